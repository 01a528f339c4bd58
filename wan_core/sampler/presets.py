"""Settings of sampling that belong together: what ComfyUI's own templates and the official code generate with."""

from __future__ import annotations

from dataclasses import dataclass

from .guidance import Guidance


@dataclass(frozen=True)
class SamplingPreset:
    """Settings that belong together: steps, guidance, shift and the sampler they were chosen for."""

    steps: int
    guidance_scale: float
    shift: float
    sampler_name: str = "euler"
    scheduler: str = "simple"
    guidance: Guidance = Guidance()
    low_noise_guidance: float | None = None
    """the scale of the low noise expert of a pair; None: the same"""


FEW_STEPS = "4-step LoRA"
"""makes sense only with a LoRA that was distilled for so few steps: without it clips end in noise"""
PRESETS = {
    "ComfyUI template": SamplingPreset(20, 6.0, 8.0),
    # Wan2.1 README for T2V-1.3B; the other models' configs say shift 5, guidance 5.
    "official": SamplingPreset(50, 5.0, 5.0),
    FEW_STEPS: SamplingPreset(4, 1.0, 5.0),
}

# Read from the files of comfyui-workflow-templates-json 0.1.123, without the few-step LoRAs some of them switch on.
_ONE = {
    "t2v": SamplingPreset(30, 6.0, 8.0, "uni_pc"),
    "i2v": SamplingPreset(20, 6.0, 8.0, "uni_pc"),
    "flf2v": SamplingPreset(20, 3.0, 8.0, "uni_pc"),
    "vace": SamplingPreset(20, 6.0, 8.0, "uni_pc"),
    "control": SamplingPreset(20, 6.0, 5.0, "uni_pc"),
    "camera": SamplingPreset(20, 6.0, 8.0, "uni_pc"),
    "ti2v": SamplingPreset(20, 5.0, 8.0, "uni_pc"),
}
_PAIR = {
    "t2v": SamplingPreset(20, 3.5, 5.0),
    "i2v": SamplingPreset(20, 3.5, 5.0),
    "vace": SamplingPreset(20, 3.5, 5.0),  # there is no template of this pair: as its text-to-video model
    "control": SamplingPreset(20, 3.5, 8.0),
    "camera": SamplingPreset(20, 3.5, 8.0),
}

_ONE_FILE = {
    "t2v": "text_to_video_wan",
    "i2v": "image_to_video_wan",
    "flf2v": "wan2.1_flf2v_720_f16",
    "vace": "video_wan_vace_flf2v",
    "control": "wan2.1_fun_control",
    "camera": "video_wan2.1_fun_camera_v1.1_14B",
    "ti2v": "video_wan2_2_5B_ti2v",
}
_PAIR_FILE = {
    "t2v": "video_wan2_2_14B_t2v",
    "i2v": "video_wan2_2_14B_i2v",
    "control": "video_wan2_2_14B_fun_control",
    "camera": "video_wan2_2_14B_fun_camera",
}
# Width, height and frames of the same files.
_ONE_SIZE = {
    "t2v": (832, 480, 33),
    "i2v": (512, 512, 33),
    "flf2v": (720, 1280, 33),
    "vace": (512, 512, 45),
    "control": (960, 544, 77),
    "camera": (832, 480, 81),
    "ti2v": (1280, 704, 121),
}
_PAIR_SIZE = {"camera": (832, 480, 81)}


def template_size(task: str, *, pair: bool) -> tuple[int, int, int]:
    """Returns width, height and frames that ComfyUI's template of a model generates; arguments as of `template_of`."""
    return _PAIR_SIZE.get(task, (640, 640, 81)) if pair else _ONE_SIZE.get(task, _ONE_SIZE["t2v"])


def template_of(task: str, *, pair: bool) -> SamplingPreset:
    """Returns what ComfyUI's template of a model samples with; `task` as in WanVariant, `pair` for Wan 2.2 A14B."""
    return (_PAIR if pair else _ONE).get(task, PRESETS["ComfyUI template"])


def template_called(variant: str) -> str:
    """Returns the name of ComfyUI's template of a model, by the name of its variant; "" where there is none of it."""
    words = variant.lower().replace(" ", "-").split("-")
    pair = words[-1] == "noise"
    if "fun" in words and "5b" in words:  # has templates of its own, which these figures are not of
        return ""
    tasks = ("camera", "control", "flf2v", "vace", "ti2v", "t2v", "i2v")
    task = next((task for task in tasks if task in words), "i2v" if "inp" in words else "")
    return (_PAIR_FILE if pair else _ONE_FILE).get(task, "")
