"""Readers that convert values of SimpleTuner."""

from __future__ import annotations

import json
import math
import re
from typing import Any

from ..errors import ConfigError
from ..model import read_routes
from ..words import filled
from .foreign_job import ForeignJob
from .keys import CHANGED, Changed, Without
from .learning import adapter, arguments_of
from .learning import optimizer as known_optimizer
from .models import said_kind

_ATTENTIONS = {
    **dict.fromkeys(("flash-attn", "flash-attn-2-hub"), "flash_attn"),
    **dict.fromkeys(("flash-attn-3", "flash-attn-3-hub", "flash-attn-3-varlen"), "flash_attn_3"),
    "diffusers": "sdpa",
    "xformers": "xformers",
    "cudnn": "sdpa_cudnn",
}


def family(value: str, job: ForeignJob) -> None:
    if value != "wan":
        raise ConfigError(f"{job.source} trains the family {value[:40]!r}. Only wan is trained here.")


def flavour(value: str, job: ForeignJob) -> Any:
    said_kind(value, job)
    kind = job.kind
    if kind is None:
        return Without("the file does not say which Wan model it is; choose it in Load Wan Model")
    low = value.endswith("low") and kind.low_noise_file
    file = kind.low_noise_file if low else kind.file
    return Changed(file, "the file that ComfyUI has it in; this expert alone is trained" if kind.low_noise_file else
                   "the file that ComfyUI has it in")  # fmt: skip


def lora_type(value: str, job: ForeignJob) -> Any:
    """Sets the adapter kind. LyCORIS states its kind in a separate file, which `settle` reads."""
    if value != "lycoris":
        return adapter(value, job)
    job.put("lycoris.file", str(job.said("lycoris_config") or "lycoris_config.json"))
    return None


def modules(value: Any, _job: ForeignJob) -> Any:
    """Converts diffusers' names of linears to original ones."""
    names = value if isinstance(value, list) else [part.strip() for part in str(value).strip("[]").split(",")]
    known = {"to_q": "q", "to_k": "k", "to_v": "v", "to_out.0": "o", "to_out": "o", "ffn.net.0.proj": "ffn.0",
             "ffn.net.2": "ffn.2", "add_k_proj": "k_img", "add_v_proj": "v_img"}  # fmt: skip
    ours = [known.get(str(name).strip("\"' "), str(name).strip("\"' ")) for name in names]
    return Changed("\n".join(rf"blocks\..*\.{re.escape(name)}" for name in ours), "by the names of the original model")


_INITS = {"gaussian": "gaussian", "pissa": "PiSSA", "olora": "OLoRA"}


def init(value: str, job: ForeignJob) -> Any:
    """Reads the initial values of a LoRA; other adapter kinds have only one choice."""
    if value.lower() in ("default", "true", ""):
        return None
    of_pairs = str(job.said("lora_type") or "standard") == "standard" and not job.said("use_dora")
    if not of_pairs:
        return Without("only LoRA and rsLoRA have other initial values")
    return _INITS.get(value.lower()) or Without("the LoRA is initialised to no effect")


def timesteps(value: Any, _job: ForeignJob) -> Any:
    """Reads noise levels up to 1 or up to 1000, as a list or separated by commas."""
    listed = value if isinstance(value, list) else str(value).strip("[]() ").split(",")
    numbers = [float(one) for one in listed if str(one).strip()]
    if not numbers:
        return None
    times = 1000 if max(numbers) <= 1 else 1
    return ", ".join(f"{number * times:g}" for number in numbers)


def lowest_rate(value: float, job: ForeignJob) -> Any:
    """Converts the final rate of a schedule to a share of the learning rate."""
    rate, schedule = job.of("learning_rate"), job.of("lr_scheduler")
    if not (schedule.startswith("cosine") or schedule == "polynomial") or not 0 <= value <= rate:
        return Without("schedules that fall read it, as a share of the learning rate")
    return Changed(
        round(value / rate, 6),
        filled("{value} as a share of the learning rate of {rate}", value=f"{value:g}", rate=f"{rate:g}"),
    )


def clipping(value: float, job: ForeignJob) -> Any:
    if job.said("grad_clip_method") == "norm":
        return value
    job.put("max_grad_value", value)
    return 0.0


def loss(value: str, job: ForeignJob) -> Any:
    if value in ("huber", "smooth_l1"):
        job.put("huber_delta", float(job.said("huber_c") or 0.1))
        return "pseudo_huber" if value == "huber" else Changed("huber", "the same setting under its other name")
    return {"l2": "mse", "l1": "l1"}.get(value) or Changed("mse", filled("{value} has no counterpart", value=value))


def ema(value: bool, job: ForeignJob) -> Any:
    if not value:
        return None
    every = int(job.said("ema_update_interval") or 1)
    decay = float(job.said("ema_decay") or 0.995)
    if every == 1:
        return Changed(decay, "the averaged weights are saved, evaluated and previewed")
    each = round(decay ** (1 / every), 6)
    return Changed(
        each, filled("{decay} every {n} steps is {each} every step", decay=f"{decay:g}", n=every, each=f"{each:g}")
    )


def offloads(value: str, _job: ForeignJob) -> Any:
    return value.lower() not in ("none", "false", "") or None


def optimizer(value: str, job: ForeignJob) -> Any:
    given = arguments_of(job.said("optimizer_config") or "")
    for key, name in (("adam_weight_decay", "weight_decay"), ("adam_epsilon", "eps")):
        if key in job.ledger:
            given.setdefault(name, float(job.said(key)))
    first = job.said("optimizer_beta1") or job.said("adam_beta1")
    second = job.said("optimizer_beta2") or job.said("adam_beta2")
    if first and second:
        given.setdefault("betas", (float(first), float(second)))
    return known_optimizer(value, given, job)


def size(value: str, job: ForeignJob) -> None:
    """Reads WIDTHxHEIGHT or a side length; the first of several, separated by commas."""
    first = value.split(",")[0].strip().lower()
    sides = [part for part in first.split("x") if part]
    if len(sides) not in (1, 2) or not all(re.fullmatch(r"\d+(\.\d+)?", side) for side in sides):
        raise ConfigError(f"{job.source}: validation_resolution is {value[:40]!r}; it must be such as 832x480.")
    numbers = [float(side) for side in sides]
    if len(numbers) == 1 and numbers[0] < 10:  # megapixels
        numbers = [1000 * math.sqrt(numbers[0])]
    width, height = (round(side) for side in (numbers * 2)[:2])
    job.put("preview.width", width)
    job.put("preview.height", height)
    if "," in value:
        made = f"{width}x{height}"
        job.ledger.change(CHANGED, said=f"validation_resolution {value}", made=made, why="one size for all clips")
    else:
        job.ledger.take(f"validation_resolution {value} -> width {width}, height {height}")


def prompt(value: str, job: ForeignJob) -> Any:
    return Changed(value.replace("\n", " "), "in one line") if "\n" in value else value


def library(value: Any, job: ForeignJob) -> Any:
    if value in (False, "false", None, "None", ""):
        return None
    if value in (True, "true"):
        return Without("SimpleTuner's own prompts are not included; write yours")
    job.put("prompts.file", str(value))
    return None


def skipped(value: Any, job: ForeignJob) -> Any:
    listed = value if isinstance(value, list) else [value]
    job.put("preview.skip_layer_guidance", "extra pass")
    return ", ".join(str(one) for one in listed)


def epochs(value: int, job: ForeignJob) -> None:
    if value:
        job.epochs = ("num_train_epochs", value)


def steps(value: int, job: ForeignJob) -> Any:
    if not value:
        return None
    job.epochs = None
    return value


def attention(value: str, _job: ForeignJob) -> Any:
    if value.startswith("sage"):
        return Changed("sdpa", "SageAttention has no backward pass")
    ours = _ATTENTIONS.get(value, "sdpa")
    return ours if ours == value else Changed(ours, "the same, by its name here" if value in _ATTENTIONS else
                                              "it is unknown here")  # fmt: skip


def routes(value: Any, _job: ForeignJob) -> str:
    """Returns the text of TREAD's routes for our widget."""
    found = read_routes(value if isinstance(value, str) else json.dumps(value))
    return "; ".join(f"{one.selection_ratio:g}: {one.start_layer_idx}..{one.end_layer_idx}" for one in found)
