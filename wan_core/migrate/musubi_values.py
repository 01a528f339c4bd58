"""Readers that convert values of musubi-tuner."""

from __future__ import annotations

from typing import Any

from ..lora import LoraConfig
from ..words import filled
from .foreign_job import ForeignJob
from .keys import Changed, Without
from .learning import adapter, arguments_of, run_name
from .learning import optimizer as known_optimizer
from .models import model_file

_SAMPLINGS = {
    **{name: (name, "") for name in ("uniform", "sigmoid", "shift", "flux_shift", "qwen_shift", "logsnr")},
    "flux2_shift": ("flux_shift", "the nearest of the shifts by size"),
    "krea2_shift": ("qwen_shift", "the nearest of the shifts by size"),
    "ideogram4_shift": ("flux_shift", "the nearest of the shifts by size"),
    "qinglong_flux": ("flux_shift", "a mixture has no counterpart"),
    "qinglong_qwen": ("qwen_shift", "a mixture has no counterpart"),
}
_SIGMA = {"logit_normal": "shift", "mode": "mode"}
"""weighting_scheme -> our timestep_sampling, for musubi's timestep_sampling sigma"""


def sampling(value: str, job: ForeignJob) -> Any:
    if value != "sigma":
        ours, why = _SAMPLINGS.get(value, ("shift", "it is unknown here"))
        if value == "uniform" and "discrete_flow_shift" not in job.ledger:
            job.put("discrete_flow_shift", 1.0)
        return Changed(ours, why) if why else ours
    scheme = str(job.said("weighting_scheme") or "none")
    ours = _SIGMA.get(scheme, "uniform")
    if ours == "shift":
        job.put("sigmoid_scale", float(job.said("logit_std") or 1.0))
    return Changed(ours, filled("the same distribution as weighting_scheme {name}", name=scheme))


def shift(value: float, job: ForeignJob) -> Any:
    """Returns the shift; 1 for uniform, which musubi draws without a shift."""
    if job.said("timestep_sampling") == "uniform" and value != 1:
        return Changed(1.0, "musubi draws uniform without a shift")
    return value


def weighting(value: str, job: ForeignJob) -> Any:
    if value in ("sigma_sqrt", "cosmap", "none"):
        return value
    if value in _SIGMA and job.said("timestep_sampling") in (None, "sigma"):
        job.ledger.take("{said}: {why}", said=f"weighting_scheme {value}", why="the distribution of timestep_sampling")
        return None
    return Without("musubi reads it only where timestep_sampling is sigma")


def noise_range(value: float, job: ForeignJob) -> Any:
    if not job.said("preserve_distribution_shape"):
        job.put("timestep_range", "rescaled")
    return value


_OF_LORA = {"rank_dropout": "rank_dropout", "module_dropout": "module_dropout", "factor": "lokr_factor"}


def network_args(value: Any, job: ForeignJob) -> None:
    lycoris = str(job.said("network_module") or "").startswith("lycoris")
    for name, said in arguments_of(value).items():
        if lycoris and (name == "algo" or (name == "dora_wd" and job.of("adapter") == "DoRA")):
            job.ledger.take(f"network_args {name} -> adapter {job.of('WanTrainSettings.adapter')}")
        elif name == "loraplus_lr_ratio":
            job.put("loraplus_lr_ratio", float(said))
            job.ledger.take(f"network_args {name} -> loraplus_lr_ratio {said}")
        elif name in _OF_LORA:
            job.put(_OF_LORA[name], int(said) if name == "factor" else float(said))
            job.ledger.take(f"network_args {name} -> {_OF_LORA[name]} {said}")
        elif name in ("include_patterns", "exclude_patterns"):
            if said not in ([], (), "", None):
                _patterns(name, said, job)
            else:
                job.ledger.take(f"network_args {name} -> {name} []")
        else:
            job.ledger.drop("network_args", filled("{value} has no counterpart", value=name))


def _patterns(name: str, said: Any, job: ForeignJob) -> None:
    listed = [str(one) for one in (said if isinstance(said, list | tuple) else [said])]
    lines = str(job.of("lora_targets")).splitlines() or list(LoraConfig.targets)
    if name == "include_patterns":
        lines += [rf"(?:{pattern}).*" for pattern in listed]
    else:
        out = "|".join(f"(?:{pattern})" for pattern in listed)
        lines = [f"(?!{out}){line}" for line in lines]
    job.put("lora_targets", "\n".join(lines))
    said = f"network_args {name} {', '.join(listed):.60}"
    job.ledger.change("{key} -> lora_targets, which names the layers to train", key=said)


def fp8(value: bool, job: ForeignJob) -> Any:
    if not value or job.said("fp8_scaled"):
        return None
    return Changed("fp8_e4m3fn", "a scale for each row, so it is closer to the file")


def fp8_scaled(value: bool, _job: ForeignJob) -> Any:
    return Changed("fp8_e4m3fn_block128", "a scale for every 128 values; musubi has one for 64") if value else None


def steps(value: int, job: ForeignJob) -> Any:
    leads = "max_train_epochs" in job.ledger or "max_train_epochs" in job.unset
    return Without("max_train_epochs takes precedence") if leads else value


def epochs(value: int, job: ForeignJob) -> None:
    job.epochs = ("max_train_epochs", value)


def keep(value: int, job: ForeignJob) -> Any:
    """Converts save_last_n_steps, a distance from the newest saved step, to a number of saved steps."""
    every = job.values.get("TrainLoRA", {}).get("save_every_n_steps", 0)
    if every < 1:
        return Without("it is saved with save_every_n_steps")
    return Changed(value // every + 1, filled("the newest, and those of {n} steps before it", n=value))


def network(value: str, job: ForeignJob) -> Any:
    """Returns the adapter kind; for LyCORIS, `algo` in network_args names it."""
    if not value.startswith("lycoris"):
        return adapter(value, job)
    said = arguments_of(job.said("network_args") or [])
    algo = str(said.get("algo", "lora"))
    of_pairs = algo in ("lora", "locon") and said.get("dora_wd")
    return adapter("dora" if of_pairs else algo, job)


def optimizer(value: str, job: ForeignJob) -> Any:
    return known_optimizer(value or "AdamW", arguments_of(job.said("optimizer_args") or []), job)


def warmup(value: float, job: ForeignJob) -> None:
    name = "lr_warmup_share" if 0 < value < 1 else "lr_warmup_steps"
    job.put(name, value if name.endswith("share") else int(value))
    job.ledger.take(f"lr_warmup_steps {value:g} -> {name}")


def decay(value: float, job: ForeignJob) -> Any:
    if job.said("lr_scheduler") != "warmup_stable_decay" or not value:
        return Without("only warmup_stable_decay reads it")
    steps = job.of("steps")
    share = value if value < 1 else min(1.0, value / steps)
    return Changed(round(share, 4), "as a share of the run")


def dit(value: str, job: ForeignJob) -> Any:
    """Returns the file of --dit, which is the low-noise expert if there is a high-noise one."""
    return model_file(value, job, "low" if job.expert == "both" else "")


def high(value: str, job: ForeignJob) -> Any:
    return model_file(value, job, "high")


def prompts(value: str, job: ForeignJob) -> None:
    job.put("prompts.file", value)


def whole_name(value: str, _job: ForeignJob) -> Any:
    name = run_name(value)
    return name if name == value else Changed(name, "a folder of that name can be anywhere")
