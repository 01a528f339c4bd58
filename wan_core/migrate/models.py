"""Recognises the Wan model in a name, and its files in ComfyUI; LoRAs merged into it become frozen LoRAs."""

from __future__ import annotations

import re
from itertools import zip_longest
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

from ..checkpoint import expert_said
from ..errors import ConfigError
from .foreign_job import LOADER, UNKNOWN_MODEL, ForeignJob, Kind
from .keys import Changed, Without

_VAE_22 = "wan2.2_vae.safetensors"
KINDS = {
    kind.name: kind
    for kind in (
        Kind("T2V-1.3B", "wan2.1_t2v_1.3B_fp16.safetensors"),
        Kind("T2V-14B", "wan2.1_t2v_14B_fp16.safetensors"),
        Kind("I2V-14B-480P", "wan2.1_i2v_480p_14B_fp16.safetensors", reads_clip=True),
        Kind("I2V-14B-720P", "wan2.1_i2v_720p_14B_fp16.safetensors", reads_clip=True),
        Kind("FLF2V-14B", "wan2.1_flf2v_720p_14B_fp16.safetensors", reads_clip=True),
        Kind("VACE-1.3B", "wan2.1_vace_1.3B_fp16.safetensors"),
        Kind("VACE-14B", "wan2.1_vace_14B_fp16.safetensors"),
        Kind("Fun-Control-1.3B", "wan2.1_fun_control_1.3B_bf16.safetensors", reads_clip=True),
        Kind("Fun-Control-14B", "wan2.1_fun_control_14B_bf16.safetensors", reads_clip=True),
        Kind("Fun-Camera-1.3B", "wan2.1_fun_camera_v1.1_1.3B_bf16.safetensors", reads_clip=True),
        Kind("Fun-Camera-14B", "wan2.1_fun_camera_v1.1_14B_bf16.safetensors", reads_clip=True),
        Kind("SCAIL2-14B", "wan2.1_14B_SCAIL_2_fp16.safetensors", reads_clip=True),
        Kind("Animate-14B", "wan2.2_animate_14B_bf16.safetensors", reads_clip=True),
        Kind(
            "Bernini-R",
            "wan2.2_bernini_r_high_noise_fp8_scaled.safetensors",
            "wan2.2_bernini_r_low_noise_fp8_scaled.safetensors",
        ),
        Kind("T2V-A14B", "wan2.2_t2v_high_noise_14B_fp16.safetensors", "wan2.2_t2v_low_noise_14B_fp16.safetensors"),
        Kind("I2V-A14B", "wan2.2_i2v_high_noise_14B_fp16.safetensors", "wan2.2_i2v_low_noise_14B_fp16.safetensors"),
        Kind("TI2V-5B", "wan2.2_ti2v_5B_fp16.safetensors", vae=_VAE_22),
    )
}
_RULES = (
    (r"bernini.*1\.3b|1\.3b.*bernini", ""),
    (r"bernini", "Bernini-R"),
    (r"scail.?2", "SCAIL2-14B"),
    (r"scail", ""),
    (r"animate", "Animate-14B"),
    (r"(2[._]2|a14b).*(fun|vace|camera)|(fun|vace|camera).*(2[._]2|a14b)", ""),
    (r"camera.*1\.3b|1\.3b.*camera", "Fun-Camera-1.3B"),
    (r"camera", "Fun-Camera-14B"),
    (r"ti2v|(^|[^\d.])5b", "TI2V-5B"),
    (r"i2v.*(a14b|2[._]2)|(a14b|2[._]2|wan22).*i2v", "I2V-A14B"),
    (r"a14b|2[._]2.*14b|14b.*2[._]2|wan22.*14b", "T2V-A14B"),
    (r"(-fc$|fun.?control).*1\.3b|1\.3b.*(-fc$|fun.?control)", "Fun-Control-1.3B"),
    (r"-fc$|fun.?control", "Fun-Control-14B"),
    (r"vace.*1\.3b", "VACE-1.3B"),
    (r"vace", "VACE-14B"),
    (r"flf2v", "FLF2V-14B"),
    (r"i2v.*720|720.*i2v|wan21_i2v:14b$", "I2V-14B-720P"),
    (r"i2v", "I2V-14B-480P"),
    (r"1\.3b|(^|[_:])1b", "T2V-1.3B"),
    (r"14b|wan", "T2V-14B"),
)
"""(pattern, kind of model): the first match applies; "" is a model whose file name in ComfyUI is unknown"""
_WEAK = ("I2V-14B-480P", "T2V-14B")
"""names with little information: a task may be more specific"""
_NAMELESS = re.compile(
    r"(high|low)_noise_model|transformer(_2)?|diffusion_pytorch_model.*|(pytorch_)?model(-\d+-of-\d+)?\.safetensors"
)
"""path parts of every model"""
_UNTRAINED = re.compile(r"s2v|infinitetalk|humo(?![a-z])|wan.?dancer|animate.?2(?!\d)")
_TAKES_REPOSITORIES = ("ai-toolkit", "SimpleTuner")
_OWNERS = frozenset(["wan-ai", "comfy-org", "alibaba-pai", "ai-toolkit", "kijai", "quantstack", "city96", "ostris"])
"""owners of the published weights, lower case"""
_FOLDERS = frozenset(
    ("model", "models", "ckpt", "ckpts", "checkpoint", "checkpoints", "weights", "pretrained", "data", ".")
)


def kind_of(said: str) -> Kind | None:
    """Returns the model named by a task, repository, folder or file; None for no match.

    ConfigError for Wan models that cannot be trained here.
    """
    parts = said.lower().replace("\\", "/").rstrip("/").split("/")
    while len(parts) > 1 and _NAMELESS.fullmatch(parts[-1]):
        del parts[-1]
    words = "/".join(parts[-2:])
    if _UNTRAINED.search(words):
        raise ConfigError(
            f"{said[:80]} is a model that is driven by sound, or Animate-2. Jobs for it are not imported."
        )
    name = next((name for pattern, name in _RULES if re.search(pattern, words)), "")
    return KINDS.get(name)


def said_kind(value: str, job: ForeignJob) -> None:
    """Records the model a key names; `settle` chooses its files."""
    job.kind = kind_of(value) or job.kind


def base_name(path: str) -> str:
    """Returns the last part of a path of either system."""
    return PureWindowsPath(path).name if "\\" in path else PurePosixPath(path).name


def lora_file(value: str, _job: ForeignJob) -> str:
    """Returns the file name of a LoRA, which is in ComfyUI's loras folder."""
    name = base_name(value).removesuffix(".safetensors")
    return f"{name}.safetensors" if name else ""


def expert_shown(path: str, lowest: float = 0.0, highest: float = 1000.0) -> str:
    """Returns high or low by a file, folder or variable name, else by the noise levels; "" for neither.

    The experts' boundary is 875 or 900 of 1000.
    """
    parts = PurePosixPath(path.replace("\\", "/"))
    said = expert_said(Path(parts)) if parts.name != "transformer" else None
    if said is not None:
        return said.partition("_")[0]
    if highest <= 900 and lowest < 850:
        return "low"
    return "high" if lowest >= 850 else ""


def level_of(value: Any, usual: float) -> float:
    """Parses a noise level, possibly missing or text."""
    try:
        return float(value)
    except (TypeError, ValueError):
        return usual


def model_file(value: str, job: ForeignJob, expert: str = "") -> str | Changed | Without | None:
    """Sets a model file; a folder or repository becomes ComfyUI's files.

    `expert`: the key's expert, where the name says none.
    """
    at = f"{LOADER}.diffusion_model"
    found = kind_of(value)
    if found is not None and (job.kind is None or found.name not in _WEAK):
        job.kind = found
    name = base_name(value)
    if _is_file(name):
        return name
    kind = job.kind
    if kind is None:
        return Without("the file does not say which Wan model it is; choose it in Load Wan Model")
    if job.trainer in _TAKES_REPOSITORIES and _of_others(value):
        job.put(at, UNKNOWN_MODEL)
        said = "{file} holds other weights than the original: choose their file in Load Wan Model"
        job.hint(said, file=f"{value:.80}")
        return None
    expert = expert_shown(value) or expert or job.expert
    if kind.low_noise_file and not expert:
        job.now.change("{key} -> skipped: the file does not say which expert is trained", key=f"{value:.80}")
        job.put(at, UNKNOWN_MODEL)
        return None
    return Changed(kind.low_noise_file if expert == "low" else kind.file, "the file that ComfyUI has it in")


def model_unless_set(value: str, job: ForeignJob) -> str | Changed | Without | None:
    """Sets the model by its repository or folder, if another key did not name its file."""
    job.kind = job.kind or kind_of(value)
    return None if job.values.get(LOADER, {}).get("diffusion_model") else model_file(value, job)


def _is_file(name: str) -> bool:
    """Returns whether a name is one model file, not a shard or a generic name."""
    name = name.lower()
    in_parts = name.startswith("diffusion_pytorch_model") or re.search(r"-\d{5}-of-\d{5}\.safetensors$", name)
    return name.endswith((".safetensors", ".gguf")) and not in_parts


def _of_others(value: str) -> bool:
    """Returns whether a repository belongs to none of the owners of the published weights."""
    owner, slash, name = value.partition("/")
    is_repository = bool(slash and name and owner) and re.fullmatch(r"[\w.-]+/[\w.-]+", value) is not None
    return is_repository and owner.lower() not in _OWNERS | _FOLDERS


def vae_file(value: str, job: ForeignJob) -> str | Changed:
    """Returns the name of ComfyUI's VAE file; a .safetensors file keeps its name."""
    name = base_name(value)
    if name.lower().endswith(".safetensors") and not name.lower().startswith("diffusion_pytorch_model"):
        return name
    kind = job.kind or KINDS["T2V-1.3B"]
    return Changed(kind.vae, "the file that ComfyUI has it in")


def text_encoder(value: str, _job: ForeignJob) -> str | Changed:
    """Returns the name of ComfyUI's text encoder file: CLIPLoader reads only these names."""
    name = base_name(value)
    if name.startswith("umt5_xxl") and name.endswith(".safetensors"):
        return name
    return Changed("umt5_xxl_fp16.safetensors", "the file that ComfyUI reads")


_MOST_LORAS = 8


def _add_lora(file: Any, strength: Any, job: ForeignJob, in_previews: float = 1.0) -> None:
    """Adds a frozen LoRA; a repository becomes a hint. `in_previews`: strength in previews as a multiple of
    `strength`."""
    key, name, times = job.reading[0], base_name(str(file)), 1.0 if strength is None else float(strength)
    if not name.lower().endswith(".safetensors"):
        job.now.change("{key} -> skipped: it names no file", key=f"{key} {str(file)[:80]}")
        job.hint("put the file of {file} into models/loras, and add it with Add Frozen LoRA", file=str(file)[:80])
    elif len(job.frozen) == _MOST_LORAS:
        job.now.change("{key} -> skipped: {n} LoRAs are imported", key=f"{key} {name}", n=_MOST_LORAS)
    else:
        job.frozen.append((name, times))
        if in_previews != 1:
            job.in_previews[name] = in_previews
        acts = "{key} -> Add Frozen LoRA, strength {strength}: it is applied, and not trained"
        job.now.take(acts, key=f"{key} {name}", strength=f"{times:g}")


def merged(value: Any, job: ForeignJob) -> None:
    """Adds musubi-tuner's merged LoRAs: a list of files, with a list of strengths."""
    strengths = job.said("base_weights_multiplier")
    for file, strength in zip_longest(_listed(value), _listed(strengths)):
        if file is not None:
            _add_lora(file, strength, job)


def fused(value: Any, job: ForeignJob) -> None:
    """Adds diffusion-pipe's fused LoRAs: tables with a path and a weight."""
    for entry in _listed(value):
        _add_lora(entry["path"], entry.get("weight"), job)


def assistant(value: str, job: ForeignJob) -> None:
    """Adds SimpleTuner's training adapter, unless it is disabled."""
    if str(job.said("disable_assistant_lora") or "").lower() != "true":
        strength, previews = job.said("assistant_lora_strength"), job.said("assistant_lora_inference_strength")
        share = float(previews or 0.0) / (1.0 if strength is None else float(strength) or 1.0)
        _add_lora(value, strength, job, share)


def frozen(value: str, job: ForeignJob) -> None:
    """Adds the LoRA of a path."""
    _add_lora(value, None, job)


def training_adapter(value: str, job: ForeignJob) -> None:
    """Adds the LoRA of a path, which has no effect in previews."""
    _add_lora(value, None, job, 0.0)


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [] if value is None else [value]
