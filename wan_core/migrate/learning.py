"""Tables that several trainers share: optimizers and their arguments, schedules, adapters, dtypes."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ..files import with_safe_letters
from ..packages import named_optimizer
from ..words import filled
from .foreign_job import ForeignJob
from .keys import Changed, Without, shown
from .models import base_name

_FLOAT32 = "the LoRA's weights are float32 here, so nothing is lost between steps"
_TORCHAO_FLOAT32 = "torchao's; the LoRA's weights are float32 here, so nothing is lost between steps"
_TORCHAO = "torchao's, with 8-bit moments too"
_OPTIMI = {"betas": (0.9, 0.99), "eps": 1e-6, "weight_decay": 0.0}
_OPTIMIZERS: dict[str, tuple[str, str, dict[str, Any]]] = {
    **dict.fromkeys(("adamw", "torchadamw", "offload", "bnbadamw"), ("adamw", "", {})),
    **dict.fromkeys(
        ("adam", "torchadam"),
        ("adamw", "its weight decay acts on the weights, not on the gradient", {"weight_decay": 0.0}),
    ),
    **dict.fromkeys(("adamwoptimi", "optimiadamw"), ("adamw", _FLOAT32, _OPTIMI)),
    "adamwbf16": ("adamw", _FLOAT32, {"eps": 1e-6}),
    "bnbadamwpaged": ("adamw", "its moments stay on the GPU: those of a LoRA are small", {}),
    **dict.fromkeys(("adamw8", "adamw8bit"), ("adamw8bit", _TORCHAO, {})),
    "adam8bit": ("adamw8bit", _TORCHAO, {"weight_decay": 0.0}),
    "bnbadamw8bit": ("bnb_adamw8bit", "", {}),
    **dict.fromkeys(("bnbadamw8bitpaged", "bnbpagedadamw8bit", "pagedadamw8bit"), ("bnb_paged_adamw8bit", "", {})),
    "adamw8bitkahan": ("adamw8bit", _TORCHAO_FLOAT32, {}),
    "aoadamw8bit": ("adamw8bit", "", {}),
    "aoadamw4bit": ("adamw4bit", "", {}),
    **dict.fromkeys(("aoadamfp8", "aoadamwfp8"), ("adamwfp8", "", {})),
    "adafactor": ("adafactor", "PyTorch's, with the learning rate as set", {}),
    "torchadafactor": ("adafactor", "", {}),
    **dict.fromkeys(("lion", "bnblion"), ("lion", "", {"weight_decay": 0.0})),
    "optimilion": ("lion", _FLOAT32, {"betas": (0.9, 0.99), "weight_decay": 0.0}),
    **dict.fromkeys(
        ("lion8bit", "bnblion8bitpaged"),
        ("lion", "its one moment is not 8-bit: that of a LoRA is small", {"weight_decay": 0.0}),
    ),
    "bnblion8bit": ("bnb_lion8bit", "", {"weight_decay": 0.0}),
    "prodigy": ("prodigy", "", {"weight_decay": 0.0}),
    "prodigyopt.prodigy": ("prodigy", "pytorch-optimizer's", {"weight_decay": 0.0}),
    "prodigy8bit": ("prodigy", "its moments are not 8-bit: those of a LoRA are small", {"weight_decay": 0.0}),
    "adamwschedulefree": ("schedule_free", "", {"weight_decay": 0.0}),
    "schedulefree.adamwschedulefree": ("schedule_free", "pytorch-optimizer's", {"weight_decay": 0.0}),
    "muon": ("muon", "", {}),
    "came": ("came", "", {"weight_decay": 0.0}),
}
"""a trainer's name in lower case without dashes and underscores -> (our name, difference, the trainer's defaults)"""
_CLASSES = {
    **dict.fromkeys(("stableadamw", "optimistableadamw"), "pytorch_optimizer.StableAdamW"),
    **dict.fromkeys(("adan", "optimiadan"), "pytorch_optimizer.Adan"),
    **dict.fromkeys(("ranger", "optimiranger"), "pytorch_optimizer.Ranger"),
    **dict.fromkeys(("radam", "torchradam", "optimiradam"), "torch.optim.RAdam"),
    **dict.fromkeys(("sgd", "torchsgd", "optimisgd"), "torch.optim.SGD"),
    **dict.fromkeys(("adagrad", "torchadagrad", "bnbadagrad"), "torch.optim.Adagrad"),
    **dict.fromkeys(("ademamix8bit", "bnbademamix", "bnbademamix8bit"), "pytorch_optimizer.AdEMAMix"),
    "soap": "pytorch_optimizer.SOAP",
}
_RECIPES = {"adafactor": "pytorch_optimizer.AdaFactor"}
"""our name -> the class for arguments without scale_parameter and relative_step"""
_NONE = ("automagic", "genericoptim", "dadapt")
_BETAS = (
    *("adamw", "adamw8bit", "adamw4bit", "adamwfp8", "prodigy", "schedule_free"),
    *("bnb_adamw8bit", "bnb_paged_adamw8bit"),
)
"""optimizers of `train/optimizers.py` with betas, listed here because that file imports torch"""


def _same(*names: str) -> dict[str, str]:
    return {name: name for name in names}


_TAKEN: dict[str, dict[str, str]] = {
    "adamw": _same("amsgrad"),
    "adafactor": {"decay_rate": "beta2_decay", "clip_threshold": "d"},
    "muon": _same("momentum", "nesterov", "ns_steps"),
    "lion": _same("betas"),
    "bnb_lion8bit": _same("betas"),
    "prodigy": {
        **_same("beta3", "d0", "d_coef", "growth_rate", "safeguard_warmup"),
        "decouple": "weight_decouple",
        "use_bias_correction": "bias_correction",
    },
    "schedule_free": _same("warmup_steps", "r", "weight_lr_power"),
    "came": _same("betas", "clip_threshold"),
}
"""optimizer -> (argument in another trainer -> equivalent argument of our class)"""
_TABLES = ("optimizer_args", "optimizer_params", "optimizer_config")
"""keys that contain optimizer arguments"""
_DROPPED = {"stabilize", "kahan_sum", "decouple_lr", "foreach", "fused", "gradient_release", "max_lr", "lr", "type"}


def optimizer(name: str, arguments: Mapping[str, Any], job: ForeignJob, *, library: str = "") -> Any:
    """Sets the arguments of the optimizer that a trainer calls `name`; returns our name, perhaps as `Changed`.

    `library`: package that has optimizers missing from the table.
    """
    word = name.lower().replace("-", "").replace("_", "").replace("sdnq", "")
    word = word.replace("torch.optim.", "torch").replace("bitsandbytes.optim.", "bnb")
    ours, why, own = _OPTIMIZERS.get(word, ("", "", {}))
    if word == "offload":
        job.put("offload_optimizer", True)
        job.now.take(f"type {name} -> offload_optimizer")
    kind = _CLASSES.get(word) or (name if "." in name else f"{library}.{name}" if library else "")
    if not ours and word.startswith(_NONE):
        ours, why = "adamw", "it has no counterpart here"
    elif not ours and any(named_optimizer(kind)):
        ours, why = "custom", filled("the class {name}, which needs its package", name=kind)
        job.put("optimizer_class", kind)
    elif not ours:
        ours, why = "adamw", "it is unknown here"
    given = dict(arguments)
    if ours == "adafactor" and all(given.get(name) is False for name in ("scale_parameter", "relative_step")):
        kind = _RECIPES[ours]
        ours, why, own = "custom", filled("the class {name}, which needs its package", name=kind), {}
        job.put("optimizer_class", kind)
        given = _of_adafactor(given)
    _arguments({**own, **given}, ours, set(given), job)
    if ours == "prodigy" and job.of("learning_rate") < 0.1:
        said = "learning_rate {rate} -> 1: Prodigy finds the rate itself, and this is a factor of it"
        job.mend(said, rate=f"{job.of('learning_rate'):g}")
        job.put("learning_rate", 1.0)
    return Changed(ours, why) if why else ours


def _of_adafactor(given: Mapping[str, Any]) -> dict[str, Any]:
    """Converts the arguments of transformers' Adafactor to pytorch-optimizer's."""
    made = {name: value for name, value in given.items() if name not in ("beta1", "eps")}
    if isinstance(eps := given.get("eps"), list | tuple) and len(eps) == 2:
        made |= {"eps1": eps[0], "eps2": eps[1]}
    return {**made, "betas": (given.get("beta1"), 0.999)}


def _arguments(given: Mapping[str, Any], ours: str, stated: set[str], job: ForeignJob) -> None:
    rest: list[str] = []
    taken: list[str] = []
    table = next((key for key in _TABLES if key in job.now), "")
    for name, value in given.items():
        if name == "weight_decay":
            job.put("weight_decay", float(value))
        elif name == "betas" and ours in _BETAS:
            job.put("adam_beta1", float(value[0]))
            job.put("adam_beta2", float(value[1]))
        elif name == "eps" and ours in _BETAS and not isinstance(value, list | tuple):
            job.put("adam_epsilon", float(value))
        elif name in _DROPPED:
            if name in stated - {"lr", "type"} and name in job.ledger:
                job.ledger.drop(name)
        elif name in stated:
            value = tuple(value) if isinstance(value, list) else value
            takes = name if ours == "custom" else _TAKEN.get(ours, {}).get(name)
            if takes is None or (isinstance(value, str) and ours != "custom"):
                rest.append(f"{name}={value}")
                job.now.drop(table or name, filled("{value} has no counterpart", value=name))
                continue
            taken.append(f"{takes}={value}")
            job.now.take(f"{table} {name} -> optimizer_args {taken[-1]}" if table else f"{name} -> {taken[-1]}")
    if taken:
        job.put("optimizer_args", ", ".join(taken))
    if rest:
        job.hint(
            "optimizer {name} does not get {arguments}, because its arguments may have other names here. See "
            "optimizer_args of Wan Train Settings",
            name=ours,
            arguments=", ".join(rest)[:200],
        )


def arguments_of(listed: Any) -> dict[str, Any]:
    """Returns the key=value pairs of a comma-separated text or a list of texts; values are Python literals or text."""
    parts: Iterable[Any] = listed if isinstance(listed, list) else _split(str(listed))
    found: dict[str, Any] = {}
    for part in parts:
        name, _, value = str(part).partition("=")
        try:
            found[name.strip()] = ast.literal_eval(value.strip())
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            found[name.strip()] = {"true": True, "false": False}.get(value.strip().lower(), value.strip())
    return found


def _split(text: str) -> list[str]:
    """Splits at commas or blanks; a part without = belongs to the one before (betas=0.9,0.999)."""
    pieces: list[str] = []
    for piece in text.replace(",", " ").split():
        if "=" in piece or not pieces:
            pieces.append(piece)
        else:
            pieces[-1] += f",{piece}"
    return pieces


_SCHEDULES = {
    **{name: (name, "") for name in ("constant", "linear", "cosine", "cosine_with_restarts", "polynomial", "rex")},
    "constant_with_warmup": ("constant", ""),
    "warmup_stable_decay": ("wsd", "it falls steeply at first"),
    "cosine_with_min_lr": ("cosine", "lr_scheduler_min_lr_ratio sets the final value"),
    "sine": ("cosine", "a sine has no counterpart"),
    "adafactor": ("constant", "Adafactor's own schedule has no counterpart"),
}


def scheduler(value: str, _job: ForeignJob) -> Any:
    """Returns the schedule; constant for a schedule without counterpart."""
    name = value.lower()
    if name not in _SCHEDULES:
        return Changed("constant", filled("{value} has no counterpart", value=shown(value)))
    ours, why = _SCHEDULES[name]
    return Changed(ours, why) if why else ours


_ADAPTERS = {
    **dict.fromkeys(("lora", "lora_wan", "standard", "locon"), "LoRA"),
    **{name.lower(): name for name in ("DoRA", "LoKr", "LoHa", "OFT")},
}


def adapter(value: str, _job: ForeignJob) -> Any:
    """Returns the adapter kind; LoRA for an unknown one."""
    name = value.rpartition(".")[2]
    ours = _ADAPTERS.get(name.lower())
    if ours is None:
        return Changed("LoRA", filled("{value} is not a type of adapter here", value=shown(name)))
    return Changed(ours, "with only the linear layers of the blocks") if name == "locon" else ours


def copies(value: int, _job: ForeignJob) -> Any:
    """Converts the processes of a launcher to a copy of the model per GPU."""
    if value < 2:
        return None
    return Changed("copy per GPU", filled("{n} copies; set devices where there are more GPUs", n=value))


def only_for(schedule: str) -> Callable[[Any, ForeignJob], Any]:
    """Returns a `read` function for a value that only one schedule uses."""

    def read(value: Any, job: ForeignJob) -> Any:
        there = job.of("lr_scheduler") == schedule
        return value if there else Without(filled("only {schedule} reads it", schedule=schedule))

    return read


def save_dtype(value: str, _job: ForeignJob) -> Any:
    """Returns the dtype of the LoRA file."""
    short = value.lower().replace("bfloat16", "bf16").replace("float16", "fp16").replace("float32", "fp32")
    ours = {"float": "fp32", "fp32": "fp32", "fp16": "fp16", "bf16": "bf16", "no": "fp32"}.get(short)
    return ours or Changed("bf16", filled("{value} is not a format of LoRA files here", value=shown(value)))


def quantized(value: str, job: ForeignJob) -> Any:
    """Returns the scheme of Fp8 / Int8 Quantize for a base precision; None for a float dtype."""
    word = value.lower().replace("_", "").replace("-", "")
    if word in ("nochange", "none", "bfloat16", "bf16", "float16", "fp16", "float32", "fp32", "false", ""):
        return None
    if "int8" in word or word == "convrot8":
        return Changed("int8", "a scale for each row")
    if "fp8" in word or "float8" in word:
        return Changed("fp8_e4m3fn", "a scale for each row, so it is closer to the file")
    job.hint(
        "{value}: 4-bit and smaller bases are trained here from GGUF files (Q4_K, Q5_K, Q6_K); choose "
        "one in Load Wan Model, and remove Fp8 / Int8 Quantize",
        value=shown(value),
    )
    return Changed("int8", filled("{value} is not supported here", value=shown(value)))


def rank_of(value: int, job: ForeignJob) -> Any:
    """Returns the rank, at most 1024; in LyCORIS, a higher rank stands for complete matrices."""
    if value <= 1024 or job.of("adapter") not in ("LoKr", "LoHa"):
        return value
    job.huge_rank = value
    return Changed(1024, "the largest value here")


def alpha_of(value: float, job: ForeignJob) -> Any:
    """Returns alpha. For ranks above 1024, a LoKr of complete matrices has scale 1, and other adapters keep their
    scale."""
    if not job.huge_rank:
        return value
    whole = job.of("adapter") == "LoKr"
    return Changed(0.0 if whole else value * 1024 / job.huge_rank, "the LoRA has the same scale as with the rank there")


def at_least_0(value: int, _job: ForeignJob) -> int:
    return max(0, value)


def last_folder(value: str, _job: ForeignJob) -> Changed:
    """Returns the run's name by its folder."""
    return Changed(run_name(base_name(value.rstrip("/\\"))), "runs are in output/wan_trainer")


def run_name(value: str) -> str:
    """Returns a name that is a valid folder on every system."""
    return with_safe_letters(value) or "imported"
