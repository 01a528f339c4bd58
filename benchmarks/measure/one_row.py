"""Trains one row for a few steps, as a run does, on random weights; returns measured time and memory."""

from __future__ import annotations

import gzip
import math
import re
import statistics
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from wan_core.accelerator import default_device, gpu_count, is_gpu
from wan_core.cache import LatentCache, SyntheticConfig, synthetic_set
from wan_core.checkpoint import write_drawn
from wan_core.control import NoControl
from wan_core.errors import WanTrainerError
from wan_core.events import Event, Note, StepDone
from wan_core.files import Roots, atomic_write_bytes
from wan_core.job import DataConfig, OpenRun, RunConfig, choose_run, open_experts, prepare_run, with_scaled_loss
from wan_core.load import ModelPlan, inspect_model, resolved
from wan_core.lora import LoraConfig
from wan_core.model import WanShape, WanTransformer, check_compile, condition_named
from wan_core.plan import MemoryPlan, plan_run
from wan_core.precision import PrecisionPolicy, QuantizeConfig
from wan_core.session.train_job import run_job

from .apart import Figures, Needs, NoTime
from .rows import SHAPES, Row, space_of

_BEGIN_S = 25.0
"""seconds before the first step of a large row, with compilation"""
_WARM_UP, _FEWEST = 2, 3
"""number of first steps that are not timed, if there are more steps; smallest number of steps of a row"""
_GIB = 2**30
_KERNEL = re.compile(rb'"cat": "kernel"')
"""regular expression of a kernel in a trace, because parsing the JSON of a 14B step takes ten seconds"""


@dataclass(frozen=True)
class Where:
    """The folders, time and options of a measurement."""

    work: Path
    """folder of temporary runs"""

    tiny: bool = False
    """tiny shapes, to try the code on a CPU"""

    left_s: float = math.inf
    """remaining seconds; a row with a longer prediction is not started"""

    out: Path | None = None
    """folder of the results, for traces and snapshots"""

    trace: bool = False
    """whether to write a profile of one step of each row"""

    snapshot: bool = False
    """whether to write a memory snapshot of the step after the profile"""

    @property
    def profiles(self) -> bool:
        """Whether the second and the third step of a row are profiled."""
        return self.trace or self.snapshot


def measure_row(row: Row, where: Where) -> Figures:
    """Runs a row; returns its measured and predicted figures. Raises Needs or NoTime if it cannot run."""
    gpus = gpu_count()
    if not gpus and not where.tiny:
        raise Needs("needs a GPU")
    row = row.tiny if where.tiny else row
    with tempfile.TemporaryDirectory(dir=where.work, ignore_cleanup_errors=True) as folder:
        directory, roots = _made(Path(folder).resolve(), row)
        run = open_experts(directory, roots)[0]
        plan, seconds = _planned(run)
        steps = _steps(row, seconds, where.left_s)
        steps, listener = steps + int(where.profiles), _Listener()
        began = time.monotonic()
        run_job(
            directory,
            roots,
            emit=listener.hear,
            control=NoControl(),
            max_steps=steps,
            profile_steps=int(where.profiles),
        )
        figures = _figures(row, plan, seconds, listener.steps, _WARM_UP + int(where.profiles), on_gpu=gpus > 0)
        figures["ok"] &= len(listener.steps) == steps
        figures |= {"notes": listener.notes, "run_s": round(time.monotonic() - began, 2)}
        figures |= _profile(directory / "profile", where, _slug(row.name))
    return figures


def _made(place: Path, row: Row) -> tuple[Path, Roots]:
    """Creates a run directory below `place` with a base file without weights and synthetic clips."""
    shape, space = SHAPES[row.shape], space_of(SHAPES[row.shape])
    base = write_base(place / "base", shape)
    roots = Roots({"diffusion_models": (str(place),), "cache": (str(place / "cache"),)})
    plan = ModelPlan(
        base_file=f"diffusion_models:{base.name}",
        base_precision=row.base_precision,
        precision=PrecisionPolicy(preset=row.preset, matmul=row.matmul),
        quantize=QuantizeConfig(scheme=row.quantize) if row.quantize else None,
    )
    plan = resolved(plan, (inspect_model(plan, roots),))
    train = row.train()
    if train.compile:
        _check_compile()
    clips = SyntheticConfig(
        count=max(2, train.batch_size), width=row.size.width, height=row.size.height, num_frames=row.size.frames
    )
    drawn = synthetic_set(clips, space=space, size_multiple=2 * space.spatial_stride, kind=condition_named("none"))
    config = RunConfig(
        run_name="measure",
        model=plan,
        data=DataConfig(fingerprint=LatentCache(place / "cache").write_set(drawn), num_items=len(drawn.items)),
        lora=LoraConfig(rank=row.rank),
        train=with_scaled_loss(train, plan),
    )
    decision = choose_run(place / "runs", config)
    prepare_run(decision, config)
    return decision.directory, roots


def write_base(path: Path, shape: WanShape) -> Path:
    """Writes a model file without weights (`write_drawn`); returns its path."""
    with torch.device("meta"):
        model = WanTransformer(shape)
    return write_drawn(path, {name: tuple(parameter.shape) for name, parameter in model.named_parameters()})


def _check_compile() -> None:
    try:
        check_compile(default_device())
    except WanTrainerError as refusal:
        raise Needs(f"needs what torch.compile takes: {refusal}") from refusal


def _planned(run: OpenRun) -> tuple[MemoryPlan, float | None]:
    """Returns the plan of a run and its predicted seconds per step; raises Needs if the plan does not fit."""
    plan = plan_run(run)
    for place, needed, free in plan.room.lacks(plan.estimate):
        raise Needs(f"needs {needed / _GIB:.1f} GiB on {place} by its prediction, and {free / _GIB:.1f} are free")
    return plan, None if plan.card is None else plan.seconds(plan.card)


def _steps(row: Row, seconds: float | None, left_s: float) -> int:
    """Returns the number of steps that fit into `left_s`, at most the row's; raises NoTime if that is too few."""
    if seconds is None:
        return row.steps
    if left_s < _BEGIN_S + _FEWEST * seconds:
        raise NoTime(f"would take {_BEGIN_S + _FEWEST * seconds:.0f} s, and {max(left_s, 0):.0f} are left")
    return int(min(row.steps, max(_FEWEST, (left_s - _BEGIN_S) / seconds)))


class _Listener:
    """Collects the steps and notes of a run."""

    def __init__(self) -> None:
        self.steps, self.notes = list[StepDone](), list[str]()

    def hear(self, event: Event) -> None:
        if isinstance(event, Note):
            self.notes.append(event.text)
        if isinstance(event, StepDone):
            self.steps.append(event)


def _figures(
    row: Row, plan: MemoryPlan, predicted_s: float | None, steps: list[StepDone], untimed: int, *, on_gpu: bool
) -> Figures:
    if not steps:
        raise Needs("needs a step that ends: none did")
    work, card = plan.work(), plan.card
    settled_steps = steps[min(untimed, len(steps) - 1) :]
    held = [memory for name, memory in steps[-1].memory.items() if is_gpu(name)]
    return {
        "tokens": row.size.tokens(SHAPES[row.shape]) * plan.job.step.batch_size,
        "rank": row.rank,
        "seconds": [round(step.seconds, 4) for step in steps],
        "median_s": statistics.median(step.seconds for step in settled_steps),
        "predicted_s": predicted_s,
        "copies_s": None if card is None or predicted_s is None else max(0.0, predicted_s - work.seconds(card)),
        "measured_bytes": sum(memory["peak"] or 0 for memory in held) if on_gpu else None,
        "reserved_bytes": sum(memory["reserved"] or 0 for memory in held) if on_gpu else None,
        "predicted_bytes": sum(memory.peak for memory in plan.estimate.devices.values()),
        "predicted_host_bytes": plan.estimate.host,
        "work": work._asdict(),
        "useful_tflops": statistics.median(step.tflops or 0.0 for step in settled_steps),
        "measures": plan.measures.to_dict(),
        "checkpointing_policy": plan.policy,
        "unchecked_blocks": plan.job.train.unchecked_blocks,
        "losses": [step.loss for step in steps],
        "published": [asdict(one) for one in row.published],
        "ok": all(math.isfinite(step.loss) for step in steps),
    }


def _profile(made: Path, where: Where, name: str) -> Figures:
    """Copies the requested profile of a run to the results; returns file names and the kernels of a step."""
    found: Figures = {}
    if where.out is None or not made.is_dir():
        return found
    if where.trace and (traces := sorted(made.glob("*.json.gz"))):
        for table in made.glob("*.txt"):
            _kept(table, where.out, f"traces/{name}.txt")
        with gzip.open(traces[0]) as file:
            kernels = _KERNEL.findall(file.read())
        found["trace"] = _kept(traces[0], where.out, f"traces/{name}.json.gz")
        found["measured_kernels"] = len(kernels) or None
    if where.snapshot and (memory := sorted(made.glob("*.pickle"))):
        found["snapshot"] = _kept(memory[0], where.out, f"snapshots/{name}.pickle")
    return found


def _kept(file: Path, out: Path, name: str) -> str:
    """Copies a file to `name` below `out`; returns the name."""
    atomic_write_bytes(out / name, file.read_bytes(), out)
    return name


def _slug(name: str) -> str:
    return "-".join("".join(sign if sign.isalnum() or sign == "." else " " for sign in name).split())
