"""The core nodes of the graphs in the form of tests/nodes/schemas.json, and the download of their files.

tests/workflows checks every graph with a running server, so a change of a core node fails there.
"""

from __future__ import annotations

from typing import Any

HUB = "https://huggingface.co/Comfy-Org/Wan_2.1_ComfyUI_repackaged/resolve/main/split_files"
_QWEN_VL = "https://huggingface.co/Comfy-Org/Qwen3-VL/resolve/main"
_BERNINI = "https://huggingface.co/Comfy-Org/Bernini-R/resolve/main"
HUB_22 = "https://huggingface.co/Comfy-Org/Wan_2.2_ComfyUI_Repackaged/resolve/main/split_files"

SINCE = {"TextGenerate": "0.33.0"}
"""core nodes that are newer than the oldest supported ComfyUI -> the first supported version with them"""
SOCKET_ONLY = {"MODEL", "VAE", "CLIP", "CLIP_VISION", "IMAGE", "LATENT", "CONDITIONING", "VIDEO", "AUDIO"}
CONTROL = "control_after_generate"
"""a widget that the page adds after a core seed; no input of the node"""
FOLDERS = {
    "diffusion_model": "diffusion_models",
    "low_noise_model": "diffusion_models",
    "unet_name": "diffusion_models",
    "vae_name": "vae",
    "clip_name": "text_encoders",
}
"""widget of a model file -> its models folder"""


def _node(display_name: str, inputs: dict[str, tuple[str, Any] | str], **outputs: str) -> dict[str, Any]:
    """Returns a node's schema from its inputs in order: a type, or a type and a default."""
    entries = [(name, (spec, None) if isinstance(spec, str) else spec) for name, spec in inputs.items()]
    return {
        "display_name": display_name,
        "inputs": [{"name": name, "type": kind, "default": value} for name, (kind, value) in entries],
        "outputs": [{"name": name, "type": kind} for name, kind in outputs.items()],
    }


CORE: dict[str, Any] = {
    "VAELoader": _node("Load VAE", {"vae_name": ("COMBO", "")}, VAE="VAE"),
    "CLIPLoader": _node(
        "Load CLIP",
        {"clip_name": ("COMBO", ""), "type": ("COMBO", "wan"), "device": ("COMBO", "default")},
        CLIP="CLIP",
    ),
    "CLIPVisionLoader": _node("Load CLIP Vision", {"clip_name": ("COMBO", "")}, CLIP_VISION="CLIP_VISION"),
    "TextGenerate": _node(
        "Generate Text",
        {
            "clip": "CLIP",
            "prompt": ("STRING", ""),
            "image": "IMAGE",
            "max_length": ("INT", 512),
            "sampling_mode": ("COMBO", "off"),
            "thinking": ("BOOLEAN", False),
            "use_default_template": ("BOOLEAN", True),
        },
        generated_text="STRING",
    ),
    "LoadImage": _node("Load Image", {"image": ("COMBO", "example.png")}, IMAGE="IMAGE", MASK="MASK"),
    "UNETLoader": _node(
        "Load Diffusion Model", {"unet_name": ("COMBO", ""), "weight_dtype": ("COMBO", "default")}, MODEL="MODEL"
    ),
    "CLIPTextEncode": _node(
        "CLIP Text Encode (Prompt)", {"clip": "CLIP", "text": ("STRING", "")}, CONDITIONING="CONDITIONING"
    ),
    "EmptyHunyuanLatentVideo": _node(
        "Empty HunyuanVideo 1.0 Latent",
        {"width": ("INT", 848), "height": ("INT", 480), "length": ("INT", 25), "batch_size": ("INT", 1)},
        LATENT="LATENT",
    ),
    "ModelSamplingSD3": _node("ModelSamplingSD3", {"model": "MODEL", "shift": ("FLOAT", 3.0)}, MODEL="MODEL"),
    "KSamplerAdvanced": _node(
        "KSampler (Advanced)",
        {
            "model": "MODEL",
            "positive": "CONDITIONING",
            "negative": "CONDITIONING",
            "latent_image": "LATENT",
            "add_noise": ("COMBO", "enable"),
            "noise_seed": ("INT", 0),
            CONTROL: ("COMBO", "fixed"),
            "steps": ("INT", 20),
            "cfg": ("FLOAT", 8.0),
            "sampler_name": ("COMBO", "euler"),
            "scheduler": ("COMBO", "simple"),
            "start_at_step": ("INT", 0),
            "end_at_step": ("INT", 10000),
            "return_with_leftover_noise": ("COMBO", "disable"),
        },
        LATENT="LATENT",
    ),
    "VAEDecode": _node("VAE Decode", {"samples": "LATENT", "vae": "VAE"}, IMAGE="IMAGE"),
    "CreateVideo": _node("Create Video", {"images": "IMAGE", "audio": "AUDIO", "fps": ("FLOAT", 30.0)}, VIDEO="VIDEO"),
    "SaveVideo": _node(
        "Save Video",
        {
            "video": "VIDEO",
            "filename_prefix": ("STRING", "video/ComfyUI"),
            "format": ("COMBO", "auto"),
            "codec": ("COMBO", "auto"),
        },
    ),
}


def folder_of(kind: str, widget: str) -> str:
    """Returns the models folder of a widget of a node's class."""
    return "clip_vision" if kind == "CLIPVisionLoader" else FOLDERS[widget]


def url_of(file_name: str, folder: str) -> str:
    """Returns the download address of a model file."""
    if "bernini" in file_name:
        return f"{_BERNINI}/{folder}/{file_name}"
    if file_name.startswith("qwen3vl"):
        return f"{_QWEN_VL}/{folder}/{file_name}"
    return f"{HUB_22 if file_name.startswith('wan2.2') else HUB}/{folder}/{file_name}"
