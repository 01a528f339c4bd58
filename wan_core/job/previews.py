"""Previews: their default size, and the stand-in run for clips of an untrained model."""

from __future__ import annotations

from dataclasses import replace

from ..cache import CacheSet, LatentCache
from ..checkpoint import WanVariant
from ..errors import ConfigError
from ..families import FIRST_LATENT
from ..files import Roots
from ..load import ModelPlan, inspect_model, inspect_pair
from ..sampler import AS_TEMPLATE, SampleConfig
from ..train import TrainConfig
from .config import DataConfig, RunConfig


def is_free_of_clips(variant: WanVariant, *, pictured: bool, starts_from_clip: bool = False) -> bool:
    """Returns whether previews of `variant` can have another size than the first training clip.

    `pictured`: a start picture is given. `starts_from_clip`: a TI2V-5B is trained on image-to-video only.
    """
    if variant.family.starts_from == FIRST_LATENT:
        return pictured or not starts_from_clip
    return pictured if variant.family.starts_from else not variant.conditioning.tensors


def sized_as_template(config: SampleConfig, variant: WanVariant) -> SampleConfig:
    """Returns the settings with the size of ComfyUI's template if `preview_size` requests that."""
    if config.preview_size != AS_TEMPLATE:
        return config
    width, height, frames = variant.template.size
    return replace(
        config,
        width=config.width or width,
        height=config.height or height,
        num_frames=config.num_frames or frames,
    )


def untrained_run(
    plan: ModelPlan, preview: SampleConfig, cache: LatentCache, roots: Roots, *, vae_identity: str
) -> RunConfig:
    """Returns the config of an untrained run: the model, and a set without clips, which it writes. Reads headers only.

    Raises CheckpointError for files that are no model or no pair, ConfigError for one expert of a pair.
    """
    pair = bool(plan.low_noise_file)
    variant = (inspect_pair(plan, roots)[0] if pair else inspect_model(plan, roots)).variant
    if variant.boundary is not None and not pair:
        raise ConfigError(
            f"{plan.base_file.rpartition(':')[2]} is one expert of a pair, and rendering needs both. Choose both "
            "files in Load Wan Model, as diffusion_model and low_noise_model."
        )
    bare = CacheSet(
        items=(),
        empty_text_key="",
        negative_text_key=preview.default_negative_key,
        latent_space=variant.latents.name,
        fps=variant.fps,
        vae_identity=vae_identity,
        text_identity="",
        conditioning=variant.conditioning.name,
    )
    return RunConfig(
        run_name="without_run",
        model=plan,
        data=DataConfig(fingerprint=cache.write_set(bare)),
        train=TrainConfig(expert="both" if pair else "auto"),
    ).with_digests(roots)


def preview_without_run(preview: SampleConfig | None, variant: WanVariant) -> SampleConfig:
    """Returns `preview` with the size of ComfyUI's template of `variant` if it has none.

    Raises ConfigError without a prompt, and for a model that needs a condition of dataset clips.
    """
    if preview is None or not preview.prompt_keys:
        raise ConfigError(
            "Without a run there is no caption to render. Connect Wan Preview Settings with a prompt to validation."
        )
    if not is_free_of_clips(variant, pictured=bool(preview.start_image or preview.end_image)):
        if variant.family.starts_from:
            raise ConfigError(
                f"Clips of {variant.name} start from a picture, and without a run there is no training clip to take it "
                "from. Connect start_image of Wan Preview Settings."
            )
        raise ConfigError(
            f"{variant.name} needs inputs besides text and pictures, which only a run has. Connect a run that "
            "trained it."
        )
    return sized_as_template(replace(preview, preview_size=AS_TEMPLATE), variant)
