"""A folder for a model hub: the LoRA files, clips of the saved step, and a model card."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ..checkpoint import read_header

_REPOSITORIES = (
    *("2.1 T2V-1.3B", "2.1 T2V-14B", "2.1 I2V-14B-480P", "2.1 I2V-14B-720P"),
    *("2.2 T2V-A14B", "2.2 I2V-A14B", "2.2 TI2V-5B"),
)
"""models whose repository on the hub is Wan-AI/Wan<name>"""
_ROWS = {
    "base precision": "wan_trainer.base_precision",
    "base quantization": "wan_trainer.base_quantization",
    "kind": "ss_network_module",
    "rank": "ss_network_dim",
    "alpha": "ss_network_alpha",
    "step": "ss_steps",
    "learning rate": "ss_learning_rate",
    "optimizer": "ss_optimizer",
    "schedule": "ss_lr_scheduler",
    "timestep sampling": "ss_timestep_sampling",
    "training shift": "ss_discrete_flow_shift",
    "seed": "ss_seed",
}
"""row of the card -> key of the LoRA's metadata"""


def hub_folder(run: Path, step: int, loras: Mapping[str, Path]) -> dict[str, bytes]:
    """Returns the files by name: README.md, the LoRA of each expert, and `samples/` of the `step` of the `run`.

    The card has only facts from the metadata of the files, which contains no path, caption or secret.
    """
    clips = sorted((run / "samples").glob(f"step-{step:06d}_p*.mp4"))
    title = read_header(next(iter(loras.values()))).metadata.get("modelspec.title", "lora")
    files = {f"{title}_{expert}.safetensors" if expert else f"{title}.safetensors": at for expert, at in loras.items()}
    shown = {f"samples/{clip.name}": clip for clip in clips}
    card = _card({name: read_header(at).metadata for name, at in files.items()}, list(shown))
    return {name: at.read_bytes() for name, at in (files | shown).items()} | {"README.md": card.encode()}


def _card(known: Mapping[str, Mapping[str, str]], clips: list[str]) -> str:
    """Returns the text of README.md, the model card. `known`: metadata by file name."""
    first = next(iter(known.values()))
    title, trigger = first.get("modelspec.title", "lora"), first.get("modelspec.trigger_phrase", "")
    variant = first.get("wan_trainer.variant", "")
    repository = next((name for name in _REPOSITORIES if variant.startswith(name)), "")
    base = [f"base_model: Wan-AI/Wan{repository.replace(' ', '-')}"] if repository else []
    task = "image-to-video" if "I2V" in variant.replace("TI2V", "") else "text-to-video"
    rows = [(row, [one.get(key, "") for one in known.values()]) for row, key in _ROWS.items()]
    lines = [
        *("---", *base, "library_name: diffusers", f"pipeline_tag: {task}", "tags: [lora, wan, comfyui]"),
        *("---", "", f"# {title}", "", f"A LoRA for Wan {variant}, trained with ComfyUI-WanTrainer."),
        *(["", f"Trigger words: `{trigger}`"] if trigger else []),
        *("", "| setting | " + " | ".join(known) + " |", "| --- |" + " --- |" * len(known)),
        *(f"| {row} | " + " | ".join(values) + " |" for row, values in rows if any(values)),
        *(f'\n<video controls src="{clip}"></video>' for clip in clips),
    ]
    return "\n".join(lines) + "\n"
