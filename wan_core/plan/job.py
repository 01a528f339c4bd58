"""A job, as far as memory depends on it: what is trained on what, and what that takes under given measures."""

from __future__ import annotations

from dataclasses import dataclass

from .. import __version__
from ..checkpoint import WanVariant
from ..export import file_bytes, lora_metadata
from ..files import Roots
from ..footprint import job_shape
from ..load import ModelPlan, WanFile, base_words
from ..lora import LoraConfig, parts_in_file
from ..model import model_without_values
from ..placement import JobShape, MemoryEstimate, MemoryMeasures, Placement, StepShape, estimate_memory
from ..train import TrainConfig, held_bytes
from .own_runs import OwnRuns, card_name, corrected


@dataclass(frozen=True, kw_only=True)
class Job:
    """A training as far as memory depends on it: what is trained on what."""

    model: ModelPlan
    roots: Roots
    file: WanFile
    lora: LoraConfig
    train: TrainConfig
    step: StepShape
    """the largest micro-batch"""
    prior_share: float = 0.0
    """the share of its clips whose target the base model makes, in a forward pass more"""
    preview: StepShape | None = None
    """the largest preview; None where there are none"""
    beside_preview: int = 0
    """bytes of LoRAs that act while it is rendered, and then only"""
    preview_gives_way: bool = False
    """whether it has as many frames as fit beside training (preview_size.py), and not more"""
    placement: Placement | None = None
    """instead of the model's own, for cards that this machine need not have"""
    sharers: int = 1
    """how many processes of the machine have the weights together that rest in its memory"""
    own_runs: OwnRuns = OwnRuns()
    """what earlier runs on this machine took; none for cards that it need not have"""

    @property
    def scheme(self) -> str:
        """How the base weights are stored while it trains, in a word."""
        return self.model.quantize.scheme if self.model.quantize is not None else self.file.quantization

    def lora_bytes(self) -> int:
        """Returns the size of the LoRA file it makes, without the graph that ComfyUI may put into it."""
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
        """Returns what runs of this kind took of a phase over what was predicted; None where none ran here."""
        if not self.own_runs.ratios:
            return None
        return self.own_runs.of(card_name(device), self.file.variant.name, self.scheme, phase)

    def estimate(self, shape: JobShape, measures: MemoryMeasures) -> MemoryEstimate:
        """Returns what it takes under `measures`, as the runs on this machine say; `shape` is its own."""
        found = estimate_memory(
            shape, self.step, measures=measures, preview=self.preview, beside_preview=self.beside_preview
        )
        return corrected(found, self.ratio) if self.own_runs.ratios else found

    def shape(self) -> JobShape:
        """Returns what the prediction needs to know. Raises what a model that cannot be trained so is refused with."""
        on_device, on_host = held_bytes(self.train)
        return job_shape(
            self.model,
            self.roots,
            self.lora,
            recomputing=self.train.recomputing,
            found=self.file,
            placement=self.placement,
            optimizer_bytes=on_device,
            optimizer_host_bytes=on_host,
            routes=self.train.routes,
            sharers=self.sharers,
        )


def size_words(variant: WanVariant, step: StepShape) -> str:
    """Returns the size of a micro-batch in pixels, for example 832x480x33."""
    space = variant.latents
    width, height = (side * space.spatial_stride for side in (step.latent_width, step.latent_height))
    return f"{width}x{height}x{(step.latent_frames - 1) * space.temporal_stride + 1}"
