"""Readers that convert values of ai-toolkit."""

from __future__ import annotations

import re
from typing import Any, cast

from ..errors import ConfigError
from ..lora import LoraConfig
from ..words import filled
from .foreign_job import UNKNOWN_MODEL, ForeignJob
from .keys import CHANGED, NOT_STATED, Changed, Without, shown
from .learning import optimizer as known_optimizer
from .learning import quantized
from .models import kind_of, model_file

_TIMESTEPS = {
    "sigmoid": ("sigmoid", 0.0, ""),
    "linear": ("uniform", 1.0, "evenly, without a shift"),
    "weighted": ("uniform", 1.0, "evenly, and the middle counts most: loss_weighting bell"),
    "shift": ("uniform", 3.0, "evenly, then shifted by 3"),
    "flux_shift": ("flux_shift", 0.0, ""),
    "lumina2_shift": ("flux_shift", 0.0, "the nearest of the shifts by size"),
    "lognorm_blend": ("sigmoid", 0.0, "a blend has no counterpart"),
}


def min_snr(value: float, _job: ForeignJob) -> Any:
    return Changed("min_snr", "its analogue for flow matching, with gamma 5") if value > 0 else None


def arch(value: str, job: ForeignJob) -> None:
    if not value.startswith("wan"):
        raise ConfigError(f"{job.source} trains {value[:40]!r}. Only Wan models are trained here.")
    job.kind = kind_of(value)


def path(value: str, job: ForeignJob) -> Any:
    """Sets the model: by the repository name for 1.3B or 14B and 480P or 720P, by `arch` for other models."""
    stated, job.kind, job.expert = job.kind, None, "both"
    made = model_file(value, job)
    if stated is not None and (job.kind is None or stated.low_noise_file or stated.vae != job.kind.vae):
        job.kind = stated
        made = Changed(stated.file, "the file that ComfyUI has it in")
    return made


def experts(value: Any, job: ForeignJob) -> None:
    kind = job.kind
    if not isinstance(value, dict) or kind is None or not kind.low_noise_file:
        return
    given = cast("dict[str, Any]", value)
    if job.of("LoadWanModel.diffusion_model") == UNKNOWN_MODEL:
        job.put("LoadWanModel.low_noise_model", UNKNOWN_MODEL)
        return
    high, low = bool(given.get("train_high_noise", True)), bool(given.get("train_low_noise", True))
    if high and low:
        job.put("LoadWanModel.low_noise_model", kind.low_noise_file)
    if not given:
        said = filled(NOT_STATED, key="experts", value="both", trainer="ai-toolkit")
        job.now.take("{said} -> {made}", said=said, made=f"low_noise_model {kind.low_noise_file}")
    elif high and low:
        said = "model_kwargs train_high_noise and train_low_noise"
        job.now.take(CHANGED, said=said, made="low_noise_model", why="both experts")
    else:
        job.put("LoadWanModel.diffusion_model", kind.file if high else kind.low_noise_file)
        job.now.take("{key} alone -> that expert's file", key=f"model_kwargs train_{'high' if high else 'low'}_noise")


def rate(value: float, job: ForeignJob) -> Any:
    """Returns the learning rate; None if the optimizer's table has it, from which `optimizer` reads it."""
    train: dict[str, Any] = job.ledger.get("train", dict, {})
    table: Any = train.get("optimizer")
    inside = "lr" not in train and isinstance(table, dict) and "lr" in table
    return None if inside else value


def turns(value: int, job: ForeignJob) -> Any:
    if "low_noise_model" not in job.values["LoadWanModel"]:
        return Without("one model is trained")
    job.put("expert_order", "alternating")
    return Changed(value, "with expert_order alternating; high first needs no model swaps") if value else None


def quantize(value: bool, job: ForeignJob) -> Any:
    if not value:
        return None
    model: dict[str, Any] = job.ledger.get("model", dict, {})
    return quantized(str(model.get("qtype", "qfloat8")).partition("|")[0], job)


def targets(value: Any, job: ForeignJob) -> Any:
    if not isinstance(value, dict):
        return None
    given = cast("dict[str, Any]", value)
    for name in sorted(given, reverse=True):  # reversed, so that only_if_contains comes first
        said: Any = given[name]
        if name not in ("only_if_contains", "ignore_if_contains"):
            job.hint("network_kwargs {name} {value} has no counterpart: see lora_targets", name=name, value=shown(said))
            continue
        parts = [_original(str(part)) for part in (cast("list[Any]", said) if isinstance(said, list) else [said])]
        if not said or not parts:
            continue
        if name == "only_if_contains":
            lines = [f".*{part}.*" for part in parts]
        else:
            before = str(job.of("lora_targets")).splitlines() or LoraConfig.targets
            lines = [f"(?!.*(?:{'|'.join(parts)})){line}" for line in before]
        job.put("lora_targets", "\n".join(lines))
        key = f"network_kwargs {name} {shown(said)}"
        job.now.change("{key} -> lora_targets, by the original names", key=key)
    return None


_NAMES = (
    ("attn1", "self_attn"),
    ("attn2", "cross_attn"),
    (r"(?:\\\.)?to_(q|k|v)(?!\w)", r"\\.\1\\b"),
    (r"(?:\\\.)?to_out(?:\\\.0)?(?!\w)", r"\\.o\\b"),
    (r"(?:\\\.)?add_(k|v)_proj", r"\\.\1_img"),
    (r"ffn\\\.net\\\.0\\\.proj", r"ffn\\.0"),
    (r"ffn\\\.net\\\.2", r"ffn\\.2"),
)
"""(pattern of diffusers' names of linears, pattern of original names)"""


def _original(part: str) -> str:
    """Returns a pattern for the original names, from a part of diffusers' names."""
    pattern = re.escape(part.replace("transformer.", ""))
    for theirs, ours in _NAMES:
        pattern = re.sub(theirs, ours, pattern)
    return pattern


def full_rank(value: bool, job: ForeignJob) -> Any:
    """Reads the flag for a complete second matrix, for which the rank has no effect."""
    if not value:
        return None
    if job.of("adapter") != "LoKr":
        return Without(filled("only {schedule} reads it", schedule="LoKr"))
    job.put("alpha", 0.0)
    return Changed(1024, "the largest value here")


def optimizer(value: Any, job: ForeignJob) -> Any:
    """Reads the name of an optimizer, or a table with its type, rate and arguments."""
    train: dict[str, Any] = job.ledger.get("train", dict, {})
    given = cast("dict[str, Any]", train.get("optimizer_params") or {})
    if isinstance(value, dict):
        inside = cast("dict[str, Any]", value)
        params = inside.get("params") or inside.get("optimizer_params")
        more = cast("dict[str, Any]", params) if isinstance(params, dict) else {}
        named = {"type", "name", "lr", "params", "optimizer_params"}
        given = {**{key: said for key, said in inside.items() if key not in named}, **more, **given}
        if "lr" in inside and "lr" not in train:
            job.put("learning_rate", float(inside["lr"]))
            job.now.take(f"optimizer lr {shown(inside['lr'])} -> learning_rate {float(inside['lr']):g}")
        value = inside.get("type") or inside.get("name") or "adamw"
    if not isinstance(value, str):
        raise ConfigError(f"{job.source}: optimizer is {shown(value)!r}; it must be text, or a table with its type.")
    given = {name: number(said) for name, said in given.items()}
    made = known_optimizer(value, given, job)
    if "eps" not in given and str(job.of("optimizer")).startswith(("adamw", "prodigy")):
        made = made.value if isinstance(made, Changed) else made
        job.put("adam_epsilon", 1e-6)
        return Changed(made, "with adam_epsilon 1e-06, ai-toolkit's own")
    return made


def number(value: Any) -> Any:
    """Returns a number for text such as 1e-4, which YAML does not parse as a number."""
    try:
        return float(value) if isinstance(value, str) else value
    except ValueError:
        return value


def ema(value: Any, job: ForeignJob) -> Any:
    given = cast("dict[str, Any]", value) if isinstance(value, dict) else {}
    if not given.get("use_ema"):
        return None
    return Changed(float(given.get("ema_decay", 0.999)), "the averaged weights are saved, evaluated and previewed")


def timestep_type(value: str, job: ForeignJob) -> Any:
    ours, shift, why = _TIMESTEPS.get(value, ("sigmoid", 0.0, "it is unknown here"))
    if shift:
        job.put("discrete_flow_shift", shift)
    if value == "weighted":
        job.put("loss_weighting", "bell")
    return Changed(ours, why) if why else ours


def loss(value: str, _job: ForeignJob) -> Any:
    ours = {"mse": "mse", "mae": "l1", "pseudo_huber": "pseudo_huber"}.get(value)
    return ours or Changed("mse", filled("{value} has no counterpart", value=value))


def bias(value: str, _job: ForeignJob) -> Any:
    return None if value == "balanced" else Without("discrete_flow_shift favours high or low noise")


def prompts(value: Any, job: ForeignJob) -> Any:
    """Reads a list of prompts, or of tables with a prompt and its settings."""
    lines = [_line(one) for one in cast("list[Any]", value if isinstance(value, list) else [value])]
    trigger = str(job.said("trigger_word") or "")
    if trigger and any("[trigger]" in line for line in lines):
        job.put("preview.trigger_word", trigger)
    lines = lines if trigger else [line.replace("[trigger]", "").strip() for line in lines]
    return "\n".join(line for line in lines if line)


_SUFFIXES = {"width": "w", "height": "h", "num_frames": "f", "sample_steps": "s", "guidance_scale": "l", "seed": "d",
             "neg": "n"}  # fmt: skip


def _line(entry: Any) -> str:
    if not isinstance(entry, dict):
        return " ".join(str(entry).split())
    own = cast("dict[str, Any]", entry)
    rest = [f"--{short} {own[name]}" for name, short in _SUFFIXES.items() if own.get(name) not in (None, "", False)]
    return " ".join([" ".join(str(own.get("prompt", "")).split()), *rest])


def negative(value: Any, job: ForeignJob) -> Any:
    if not value:
        job.now.take("{key}: empty -> Wan's own negative prompt", key="neg")
        return None
    return str(value)


def guidance(value: bool, job: ForeignJob) -> float | None:
    """Returns the scale of the guidance target if contrastive guidance is on, else None."""
    target: Any = job.now.get("guidance_loss_target", object, 3.0)
    return float(number(target) or 3.0) if value else None


def slider(value: Any, job: ForeignJob) -> None:
    """Reads a slider's pairs of prompts, which replace the clips."""
    targets: Any = value.get("targets") if isinstance(value, dict) else None
    lines = [cast("dict[str, Any]", one) for one in targets or () if isinstance(one, dict)]
    if not lines:
        job.now.drop("slider", "it names no targets")
        return
    for widget, name in (("prompts", "target_class"), ("positive", "positive"), ("negative", "negative")):
        texts = [" ".join(str(one.get(name) or "").split()) for one in lines]
        job.put(f"WanSliderPrompts.{widget}", "\n".join(texts))
    job.now.take("slider -> Wan Slider Prompts: {n} pairs of prompts, in place of clips", n=len(lines))
