"""Audits a run: loads its model once, measures, and writes precision_audit.json and .txt next to run.json.

An audit reads run.json, the base file and the cache, and trains nothing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from ..abilities import abilities_of
from ..accelerator import has_float64
from ..cache import Batches
from ..checkpoint import WanVariant
from ..config import Config, setting
from ..control import Control
from ..errors import ConfigError, OutOfMemory, Stopped
from ..events import Emit, Finished, Note, Stage
from ..files import Roots, atomic_write_bytes, atomic_write_json, locked, read_json
from ..flow import draw_noise, seeded_generator
from ..footprint import job_shape
from ..job import OpenRun, open_experts
from ..load import ModelPlan, WanFile, materialize, packed_dtypes
from ..lora import LoraConfig, LoraWeights
from ..model import Numerics, WanTransformer
from ..placement import MemoryEstimate, StepShape, estimate_memory, resolve_placement, total_bytes
from ..placement.model_offload import device_memory_ran_out
from ..precision import check_matmul, dtype_name, float32_products
from ..train import NoisedBatch, SaveStore, noise_batch
from ..words import first_line
from .any_dtype import fill_empty_adapters, let_linears_cast
from .candidates import REFERENCE, candidates
from .measure import Measurement, measure
from .report import AuditReport, AuditRow

REPORT_FILE = "precision_audit.json"
_DOUBT = 1.1
"""An audit is refused if its predicted memory exceeds device memory times this factor; predictions are inexact."""
_NEVER_TRAINED = ("alone", "floor")
_SHORTER = (
    "Audit shorter or smaller clips (num_frames, width and height in Wan Video Dataset): the ranking hardly depends on "
    "their size. Fp8 / Int8 Quantize or Split Across GPUs help too."
)


def import_libraries() -> None:
    """Imports the library that an audit needs in addition to training: torch's compiler."""
    import torch._dynamo  # noqa: F401  # pyright: ignore[reportUnusedImport]


@dataclass(frozen=True, kw_only=True)
class AuditConfig(Config):
    """The number of clips and noise levels that an audit measures."""

    clips: int = setting(
        1, "Number of cached clips to measure. Raise it for a steadier ranking, which takes longer.", low=1, high=100
    )
    """number of clips, each measured with batch size 1"""
    timesteps: int = setting(
        3,
        "Number of noise levels per clip, spread over the model's range. Raise it for a steadier ranking, which takes "
        "longer.",
        within=(1, 100),
    )
    """number of noise levels, at the centres of equal parts of the model's sigma range"""
    alone: bool = setting(
        False,
        "Also measure float32 with one part at a time in a narrower dtype. This separates small effects and takes "
        "twice as long. "
        "Turn it on when small effects matter.",
    )


def read_report(directory: Path) -> AuditReport:
    return AuditReport.from_dict(read_json(directory / REPORT_FILE), REPORT_FILE)


def audit_job(directory: Path, roots: Roots, config: AuditConfig, *, emit: Emit, control: Control) -> Finished:
    """Audits the model plan of the run in `directory` on its cached clips; returns "done", or "stopped" (no files).

    The LoRA is that of the last saved step, or a new one. Raises OutOfMemory before loading if the float32 pass cannot
    fit, and another WanTrainerError for a problem that a user can fix.
    """
    busy = f"{directory.name} is being audited by another process. Wait for it, or stop it."
    with locked(directory / ".audit.lock", busy):
        try:
            report = _Audit(open_experts(directory, roots)[0], config, emit, control).run()
        except Stopped as stop:
            return Finished(state="stopped", step=0, result={"reason": stop.reason})
        except RuntimeError as error:
            if not device_memory_ran_out(error):
                raise
            raise OutOfMemory(f"The GPU ran out of memory in the audit. {_SHORTER} ({first_line(error)})") from error
    atomic_write_bytes(directory / "precision_audit.txt", (report.table() + "\n").encode())
    # written last: if this file exists, the others are complete
    atomic_write_json(directory / REPORT_FILE, report.to_dict())
    return Finished(state="done", step=0, result={"report": REPORT_FILE})


class _Audit:
    def __init__(self, run: OpenRun, config: AuditConfig, emit: Emit, control: Control) -> None:
        plan = run.config.model
        self._run, self._seed = run, run.config.train.seed
        self._plan = plan.with_placement(plan.placement.without_parts())
        self._emit, self._control = emit, control
        self._saved = SaveStore(run.directory).latest()
        run.check(with_start=self._saved is None)
        self._batches = Batches(run.cache_set, run.cache, seed=self._seed, batch_size=1)
        self._items = self._batches.evaluation_items(config.clips)
        self._timesteps = _timesteps(run.variant, config.timesteps)
        self._lora: LoraConfig = replace(run.adapters(with_start=self._saved is None), dropout=0.0)
        self._rows = candidates(
            self._plan.precision,
            run.file.compute_dtype,
            alone=config.alone,
            products=_products(self._plan, run.file),
        )

    def run(self) -> AuditReport:
        self._require_float64()
        self._require_memory()
        trained = dict.fromkeys(row.numerics for row in self._rows if row.kind not in _NEVER_TRAINED)
        predicted = {
            numerics: max(memory.peak for memory in self._estimate(numerics).devices.values()) for numerics in trained
        }
        model, adapters = self._load()
        distinct = list(dict.fromkeys(row.numerics for row in self._rows))
        done, total = 0, len(self._items) * len(self._timesteps) * (1 + len(distinct))

        def on_pass() -> None:
            nonlocal done
            done += 1
            self._emit(Stage(stage="audit", done=done, total=total))

        device = next(model.parameters()).device
        with _full_float32():
            found, reference_s = measure(
                model,
                lambda: self._points(device),
                distinct,
                on_pass=on_pass,
                stop_reason=self._control.stop_reason,
            )
        return self._report(found, predicted, reference_s, device, adapters)

    def _load(self) -> tuple[WanTransformer, str]:
        def on_tensor(done: int, total: int) -> None:
            if done % 50 == 0 or done == total:
                self._emit(Stage(stage="load", done=done, total=total))
            if reason := self._control.stop_reason():
                raise Stopped(reason)

        model = materialize(
            self._plan, self._run.roots, self._lora, seed=self._seed, on_tensor=on_tensor, found=self._run.file
        )
        adapters = f"LoRA of rank {self._lora.rank}"
        if self._saved is not None:
            state = {k[5:]: v for k, v in self._saved.read_state().items() if k.startswith("lora.")}
            LoraWeights(state).load_into(model, f"saved step {self._saved.step}")
            adapters += f", saved step {self._saved.step}"
        if fill_empty_adapters(model, self._seed):
            adapters += ", small random weights"
        let_linears_cast(model)
        return model, adapters

    def _points(self, device: torch.device) -> Iterator[NoisedBatch]:
        """Yields each clip at each timestep, with noise seeded by clip and timestep."""
        first_frame = self._run.first_frame_share > 0
        for item in self._items:
            batch = self._batches.load([item])
            # As in the training of TI2V-5B, the model is given the first latent frame.
            given = torch.ones(1, dtype=torch.bool) if first_frame and batch.latents.shape[2] > 1 else None
            for timestep in self._timesteps:
                noise = draw_noise(batch.latents.shape, seeded_generator("audit", item.latent_key, timestep))
                sigma = torch.tensor([timestep / 1000])
                yield noise_batch(batch, noise, sigma, device, given)

    def _estimate(self, numerics: Numerics | None) -> MemoryEstimate:
        shape = job_shape(self._plan, self._run.roots, self._lora, numerics=numerics, found=self._run.file)
        return estimate_memory(shape, self._largest())

    def _require_float64(self) -> None:
        """ConfigError for a device without float64, in which the reference's rotary embedding is computed."""
        for device in resolve_placement(self._plan.placement, self._run.variant.shape.num_layers).devices:
            if not has_float64(device):
                raise ConfigError(
                    f"The audit compares with float64, which {abilities_of(device).what} lacks. Set device to cpu in "
                    "Load Wan Model for it, with a small model."
                )

    def _require_memory(self) -> None:
        """Raises OutOfMemory if the float32 pass cannot fit: stored weights, one block cast to float32, and float32
        activations."""
        wide, stored = (self._estimate(numerics).devices for numerics in (REFERENCE, None))
        shape = self._run.variant.shape
        block = 4 * (8 * shape.dim**2 + 2 * shape.dim * shape.ffn_dim)
        for name, memory in wide.items():
            need = memory.peak - memory.weights + stored[name].weights + block
            have = total_bytes(torch.device(name))
            if need > _DOUBT * have:
                raise OutOfMemory(
                    f"The audit's float32 pass needs about {need / 2**30:.1f} GiB on {name}, which has "
                    f"{have / 2**30:.1f} GiB. {_SHORTER}"
                )

    def _largest(self) -> StepShape:
        item = max(self._items, key=self._run.cache_set.tokens)
        _, frames, height, width = self._run.cache_set.latent_shape(item)
        return StepShape(
            batch_size=1, latent_frames=frames, latent_height=height, latent_width=width, context=item.context
        )

    def _report(
        self,
        found: dict[Numerics, Measurement],
        predicted: dict[Numerics, int],
        reference_s: list[float],
        device: torch.device,
        adapters: str,
    ) -> AuditReport:
        plan = self._plan
        report = AuditReport(
            model=plan.base_file,
            variant=self._run.variant.name,
            policy=plan.precision.describe(),
            compute=dtype_name(self._run.file.compute_dtype),
            quantized=plan.quantize.scheme if plan.quantize is not None else "",
            adapters=adapters,
            clips=tuple(item.name for item in self._items),
            timesteps=self._timesteps,
            tokens=self._largest().tokens,
            device=abilities_of(device).name,
            torch=torch.__version__,
            reference_seconds=sorted(reference_s)[len(reference_s) // 2],
            rows=tuple(
                AuditRow.of(row, found[row.numerics], None if row.kind in _NEVER_TRAINED else predicted[row.numerics])
                for row in self._rows
            ),
        )
        worst = next(iter(report.ranked("change")))
        self._emit(Note(text=f"Of the single changes, {worst.label} changes the velocity most."))
        return report


def _products(plan: ModelPlan, found: WanFile) -> tuple[torch.dtype, ...]:
    able: list[torch.dtype] = []
    for dtype in sorted(packed_dtypes(plan, found), key=str):
        with contextlib.suppress(ConfigError):
            for device in resolve_placement(plan.placement, found.variant.shape.num_layers).devices:
                check_matmul(dtype, device)
            able.append(dtype)
    return tuple(able)


def _timesteps(variant: WanVariant, count: int) -> tuple[float, ...]:
    low, high = variant.sigma_range()
    return tuple(round(1000 * (low + (high - low) * (index + 0.5) / count), 1) for index in range(count))


@contextlib.contextmanager
def _full_float32() -> Iterator[None]:
    """Turns TF32 off, so that the reference is computed in float32."""
    convolution, torch.backends.cudnn.allow_tf32 = torch.backends.cudnn.allow_tf32, False
    try:
        with float32_products("highest"):
            yield
    finally:
        torch.backends.cudnn.allow_tf32 = convolution
