"""The workload of a plan: model, settings, and the largest sizes of clips and previews."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from .. import __version__
from ..cache import CacheSet
from ..checkpoint import WanVariant
from ..export import file_bytes, lora_metadata
from ..files import Roots
from ..footprint import job_shape
from ..job.open import OpenRun
from ..job.preview_lint import preview_remarks
from ..load import ModelPlan, WanFile, base_words, bytes_beside, inspect_model
from ..lora import FrozenLora, LoraConfig, parts_in_file
from ..model import model_without_values
from ..placement import JobShape, MemoryEstimate, MemoryMeasures, Placement, StepShape, estimate_memory
from ..sampler import SampleConfig
from ..train import ROLL_STEPS, TrainConfig, held_bytes, largest_preview_shape, largest_step, pictured
from .measured_ratios import MeasuredRatios, card_name, corrected, measured_ratios_of


@dataclass(frozen=True, kw_only=True)
class Workload:
    """The facts of a training that its memory and time depend on."""

    model: ModelPlan
    roots: Roots
    file: WanFile
    lora: LoraConfig
    train: TrainConfig
    step: StepShape
    """the largest micro-batch"""
    prior_share: float = 0.0
    """share of clips with prior preservation, whose target takes a further forward pass of the base model"""
    class_share: float = 0.0
    """share of clips with a class word, which take a further micro-batch"""
    slider_share: float = 0.0
    """share of sliders, which take three predictions of the base model, and sampling steps from noise"""
    longer_share: float = 0.0
    """share of the steps of a pair that its longer expert trains; 0: one model is trained"""
    preview: StepShape | None = None
    """the largest preview; None without previews"""
    beside_preview: int = 0
    """bytes of LoRAs that are loaded only for previews"""
    preview_remarks: tuple[str, ...] = ()
    """notes on prompts and sizes of the previews"""
    preview_gives_way: bool = False
    """whether the preview is shortened to the frames that fit with the measures of training"""
    placement: Placement | None = None
    """instead of the model's own, for assumed cards or for one of several processes"""
    others: tuple[torch.device, ...] = ()
    """with `placement`: further cards of split tokens, each with a copy of the model"""
    sharers: int = 1
    """number of processes that share offloaded weights in host memory"""
    chunk_tokens: int | None = None
    """tokens of a chunk, fixed from the first saved step of a run on; None: the planner chooses"""
    measured_ratios: MeasuredRatios = MeasuredRatios()
    """ratios of earlier runs on this machine; none for assumed cards"""

    @property
    def scheme(self) -> str:
        """The quantization of the base weights while training; none: not quantized."""
        return self.model.quantize.scheme if self.model.quantize is not None else self.file.quantization

    @property
    def micro_batches(self) -> int:
        """Forward and backward passes of a step."""
        return math.ceil(self.train.gradient_accumulation_steps * (1 + self.class_share))

    @property
    def target_share(self) -> float:
        """Forward passes without gradients per micro-batch, for targets."""
        guided = (1 - self.prior_share) * (self.train.guidance_target != 1)
        clips = (self.prior_share + guided + self.class_share) / (1 + self.class_share)
        return (1 - self.slider_share) * clips + self.slider_share * (3 + ROLL_STEPS / 2)

    def lora_bytes(self) -> int:
        """Returns the bytes of the LoRA file, without an embedded workflow."""
        variant = self.file.variant
        parts = parts_in_file(model_without_values(variant.shape), self.lora)
        said = lora_metadata(
            run_name="my_lora",
            job_id="0" * 32,
            step=self.train.steps,
            lora=self.lora,
            settings=self.train.to_dict(),
            variant=variant,
            data_fingerprint="0" * 64,
            base_digest="0" * 64,
            base=base_words(self.model, self.file),
            trigger_words=(),
            pack_version=__version__,
            frozen=self.model.loras,
        )
        return file_bytes(parts, self.train.save_dtype, said)

    def ratio(self, device: str, phase: str) -> float | None:
        """Returns measured divided by predicted of a phase in earlier runs of this kind; None without such runs."""
        if not self.measured_ratios.ratios:
            return None
        return self.measured_ratios.of(card_name(device), self.file.variant.name, self.scheme, phase)

    def estimate(self, shape: JobShape, measures: MemoryMeasures) -> MemoryEstimate:
        """Returns the memory under `measures`, corrected by earlier runs. `shape`: that of this job."""
        found = estimate_memory(
            shape, self.step, measures=measures, preview=self.preview, beside_preview=self.beside_preview
        )
        return corrected(found, self.ratio) if self.measured_ratios.ratios else found

    def shape(self) -> JobShape:
        """Returns the shape of the job for predictions. Raises the refusals of a model that cannot be trained."""
        on_device, on_host = held_bytes(self.train)
        return job_shape(
            self.model,
            self.roots,
            self.lora,
            recomputing=self.train.recomputing,
            found=self.file,
            placement=self.placement,
            others=self.others,
            optimizer_bytes=on_device,
            optimizer_host_bytes=on_host,
            routes=self.train.routes,
            sharers=self.sharers,
            micro_batches=self.micro_batches,
        )


def workload_of_run(run: OpenRun, placement: Placement | None = None) -> Workload:
    """Returns the job of a run. `placement`: that of one of several processes."""
    config = run.config
    job = workload_on_clips(
        config.model, run.roots, config.lora, config.train, run.cache_set, preview=config.preview, file=run.file
    )
    return replace(job, placement=placement)


def workload_on_clips(
    model: ModelPlan,
    roots: Roots,
    lora: LoraConfig,
    train: TrainConfig,
    clips: CacheSet,
    *,
    preview: SampleConfig | None = None,
    file: WanFile | None = None,
) -> Workload:
    """Returns the job of training `model` on `clips`, which need not be encoded yet; `file` if it was inspected."""
    file = file or inspect_model(model, roots)
    previewed, beside, remarks = None, 0, list[str]()
    if train.preview_every_n_steps:
        beside = beside_preview(model, roots, file, train.expert_name, (preview or SampleConfig()).loras)
        _, frames, height, width = largest_preview_shape(clips, preview or SampleConfig())
        remarks = preview_remarks(file.variant, clips, preview or SampleConfig())
        previewed = StepShape(
            batch_size=1,
            latent_frames=frames,
            latent_height=height,
            latent_width=width,
            context=pictured(clips).context,
        )
    return Workload(
        model=model,
        roots=roots,
        file=file,
        lora=lora,
        train=train,
        step=largest_step(clips, train.batch_size),
        prior_share=clips.prior_share,
        class_share=clips.class_share,
        slider_share=clips.slider_share,
        preview=previewed,
        beside_preview=beside,
        preview_remarks=tuple(remarks),
        measured_ratios=measured_ratios_of(roots),
    )


def beside_preview(model: ModelPlan, roots: Roots, file: WanFile, expert: str, loras: Sequence[FrozenLora]) -> int:
    """Returns the bytes of `loras`, and of frozen LoRAs at another strength, in previews of a run that trains one model
    (or `expert` of a pair).

    Raises ConfigError or CheckpointError for a LoRA of another model.
    """
    changed = [lora for lora in model.loras if lora.preview_strength != 1]
    here = [lora.on_model(expert, pair=False) for lora in (*loras, *changed)]
    return sum(bytes_beside(model, roots, file.variant, file.compute_dtype, here).values())


def size_words(variant: WanVariant, step: StepShape) -> str:
    """Returns the size of a micro-batch in pixels, for example 832x480x33."""
    space = variant.latents
    width, height = (side * space.spatial_stride for side in (step.latent_width, step.latent_height))
    return f"{width}x{height}x{variant.num_frames(step.latent_frames)}"
