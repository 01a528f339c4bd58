"""Tells which Wan model a name means, and in which files ComfyUI has it."""

from __future__ import annotations

import re
from pathlib import PurePosixPath, PureWindowsPath

from ..errors import ConfigError
from .job import LOADER, Job, Kind
from .keys import Changed, Without

__all__ = ["KINDS", "base_name", "model_file", "said_kind", "text_encoder", "vae_file"]

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
        Kind("T2V-A14B", "wan2.2_t2v_high_noise_14B_fp16.safetensors", "wan2.2_t2v_low_noise_14B_fp16.safetensors"),
        Kind("I2V-A14B", "wan2.2_i2v_high_noise_14B_fp16.safetensors", "wan2.2_i2v_low_noise_14B_fp16.safetensors"),
        Kind("TI2V-5B", "wan2.2_ti2v_5B_fp16.safetensors", vae=_VAE_22),
    )
}
_RULES = (
    (r"s2v|animate|infinitetalk", ""),
    (r"ti2v|(^|[^\d.])5b", "TI2V-5B"),
    (r"i2v.*(a14b|2[._]2)|(a14b|2[._]2).*i2v", "I2V-A14B"),
    (r"a14b|2[._]2.*14b|14b.*2[._]2|wan22_14b", "T2V-A14B"),
    (r"(-fc$|fun.?control).*1\.3b|1\.3b.*(-fc$|fun.?control)", "Fun-Control-1.3B"),
    (r"-fc$|fun.?control", "Fun-Control-14B"),
    (r"vace.*1\.3b", "VACE-1.3B"),
    (r"vace", "VACE-14B"),
    (r"flf2v", "FLF2V-14B"),
    (r"i2v.*720|720.*i2v", "I2V-14B-720P"),
    (r"i2v", "I2V-14B-480P"),
    (r"1\.3b|(^|_)1b", "T2V-1.3B"),
    (r"14b|wan", "T2V-14B"),
)
"""first match counts"""
_SOUND = re.compile(r"(?:s2v|animate|infinitetalk)")


def kind_of(said: str) -> Kind | None:
    """Returns the model that a task, repository, folder or file name means; None where it tells nothing.

    Raises ConfigError for the Wan models that are not trained here.
    """
    words = said.lower().replace("\\", "/").rstrip("/")
    words = "/".join(words.split("/")[-2:])
    if _SOUND.search(words):
        raise ConfigError(f"{said[:80]} is a model that is driven by sound or by a pose. It is not trained here.")
    name = next((name for pattern, name in _RULES if re.search(pattern, words)), "")
    return KINDS.get(name)


def said_kind(value: str, job: Job) -> None:
    """Keep what a key says of the model; the files follow from it in `settle`."""
    job.kind = kind_of(value) or job.kind


def base_name(path: str) -> str:
    """The last part of a path of either system."""
    return PureWindowsPath(path).name if "\\" in path else PurePosixPath(path).name


def model_file(value: str, job: Job, at: str = f"{LOADER}.diffusion_model") -> str | Changed | Without:
    """A model by its file; by the files ComfyUI has where it is a folder or a repository."""
    found = kind_of(value)
    if found is not None and job.kind is None:
        job.kind = found
    name = base_name(value)
    if name.lower().endswith((".safetensors", ".gguf")) and not name.lower().startswith("diffusion_pytorch_model"):
        return name
    kind = job.kind or found
    if kind is None:
        return Without("which Wan model it is does not show; choose it in Load Wan Model")
    low = bool(kind.low_noise_file) and re.search(r"low_?noise|-low", value.lower()) is not None
    low = low or at.endswith("low_noise_model")
    return Changed(kind.low_noise_file if low else kind.file, "the file that ComfyUI has it in")


def vae_file(value: str, job: Job) -> str | Changed:
    """The VAE, by the file ComfyUI has; a .safetensors file keeps its name."""
    name = base_name(value)
    if name.lower().endswith(".safetensors") and not name.lower().startswith("diffusion_pytorch_model"):
        return name
    kind = job.kind or KINDS["T2V-1.3B"]
    return Changed(kind.vae, "the file that ComfyUI has it in")


def text_encoder(value: str, _job: Job) -> str | Changed:
    """The text encoder, by the file ComfyUI has; only its own files have names that CLIPLoader reads."""
    name = base_name(value)
    if name.startswith("umt5_xxl") and name.endswith(".safetensors"):
        return name
    return Changed("umt5_xxl_fp16.safetensors", "the file that ComfyUI reads")
