"""Headers of every Wan kind, written by ComfyUI's own model classes, for tests/wan_core/checkpoint/test_headers.py.

    PYTHON tests/tiny/wan_headers.py --comfyui TREE

TREE: a ComfyUI of 0.33 or newer; PYTHON runs it. No weight is made: models are built on the meta device, of one block
and published widths. Each kind has the name of ComfyUI's class that `model_detection` chooses for its header, its
metadata, and its shapes without those of plain T2V.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parents[2]
SIZES = {
    1536: {"dim": 1536, "ffn_dim": 8960, "num_heads": 12},
    3072: {"dim": 3072, "ffn_dim": 14336, "num_heads": 24},
    5120: {"dim": 5120, "ffn_dim": 13824, "num_heads": 40},
}
LATER_BLOCKS = re.compile(r"(blocks|layers|injector\w*)\.[1-9]\d*\.")
KINDS: dict[str, tuple[str, int, dict[str, Any], dict[str, Any]]] = {
    "t2v 1.3B": ("WanModel", 1536, {"model_type": "t2v"}, {}),
    "t2v 14B": ("WanModel", 5120, {"model_type": "t2v"}, {}),
    "t2v 5B": ("WanModel", 3072, {"model_type": "t2v", "in_dim": 48, "out_dim": 48}, {}),
    "i2v 2.1": ("WanModel", 5120, {"model_type": "i2v", "in_dim": 36}, {}),
    "i2v 2.2": ("WanModel", 5120, {"model_type": "t2v", "in_dim": 36}, {}),
    "flf2v": ("WanModel", 5120, {"model_type": "i2v", "in_dim": 36, "flf_pos_embed_token_number": 514}, {}),
    "fun control 2.1": ("WanModel", 1536, {"model_type": "i2v", "in_dim": 48}, {}),
    "fun control 2.1 V1.1": ("WanModel", 5120, {"model_type": "i2v", "in_dim": 48, "in_dim_ref_conv": 16}, {}),
    "fun control 2.2": ("WanModel", 5120, {"model_type": "t2v", "in_dim": 52, "in_dim_ref_conv": 16}, {}),
    "vace 1.3B": ("VaceWanModel", 1536, {"vace_in_dim": 96, "vace_layers": 1}, {}),
    "vace 14B": ("VaceWanModel", 5120, {"vace_in_dim": 96, "vace_layers": 1}, {}),
    "camera": ("CameraWanModel", 1536, {"model_type": "camera", "in_dim": 32}, {}),
    "camera 2.2": ("CameraWanModel", 5120, {"model_type": "camera_2.2", "in_dim": 36}, {}),
    "s2v": ("WanModel_S2V", 5120, {"num_layers": 40}, {}),
    "humo": ("HumoWanModel", 5120, {"in_dim": 36}, {}),
    "humo 1.7B": ("HumoWanModel", 1536, {}, {}),
    "animate": ("model_animate.AnimateWanModel", 5120, {"in_dim": 36, "num_layers": 40}, {}),
    "animate2": ("model_animate2.WanAnimate2Model", 5120, {"in_dim": 36}, {"model_type": "animate2"}),
    "dancer": ("model_wandancer.WanDancerModel", 5120, {"in_dim": 36, "in_dim_ref_conv": 16, "num_layers": 40}, {}),
    "scail": ("SCAILWanModel", 5120, {}, {}),
    "scail2": ("SCAIL2WanModel", 5120, {}, {}),
    "causal ar": ("ar_model.CausalWanModel", 1536, {}, {"causal_ar": True}),
    "flow rvs": ("WanModel", 1536, {"model_type": "t2v"}, {"model_type": "flow_rvs"}),
}
"""name -> class below comfy.ldm.wan (of model.py without another file), width, arguments, `transformer` of metadata"""
PATCHES = ("multitalk", "uni3c")
"""files of other nodes that hold no diffusion model"""
Shapes = dict[str, list[int]]


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--comfyui", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=ROOT / "tests" / "fixtures" / "wan_headers.json")
    asked = parser.parse_args(arguments)
    sys.path.insert(0, str(asked.comfyui.resolve()))
    sys.argv = [sys.argv[0], "--cpu", "--disable-all-custom-nodes"]
    import comfy.options

    comfy.options.enable_args_parsing()
    import comfyui_version  # pyright: ignore

    kinds: dict[str, Any] = {}
    base: dict[int, Shapes] = {}
    for name, (path, dim, settings, said) in KINDS.items():
        shapes, metadata = header_of(path, dim, settings), {"config": json.dumps({"transformer": said})} if said else {}
        plain = base.setdefault(dim, shapes)  # the first kind of a width is plain T2V
        own = {key: shape for key, shape in shapes.items() if plain.get(key) != shape or plain is shapes}
        kinds[name] = {
            "comfyui": chosen_by_comfyui(shapes, metadata),
            "dim": dim,
            "metadata": metadata,
            "shapes": own,
            "without": sorted(plain.keys() - shapes.keys()),
        }
        print(f"{name}: {kinds[name]['comfyui']}, {len(own)} tensors of its own")
    patches = {name: patch_of(name) for name in PATCHES}
    found = {"comfyui": comfyui_version.__version__, "kinds": kinds, "patches": patches}
    asked.out.write_text(json.dumps(found, separators=(",", ":"), sort_keys=True) + "\n", encoding="utf-8")
    return 0


def header_of(path: str, dim: int, settings: dict[str, Any]) -> Shapes:
    import importlib

    import comfy.ops

    file, _, name = path.rpartition(".")
    module = importlib.import_module(f"comfy.ldm.wan.{file or 'model'}")
    sizes = {"num_layers": 1, "in_dim": 16, "out_dim": 16, "text_dim": 4096, "freq_dim": 256, **SIZES[dim], **settings}
    how = {"device": "meta", "dtype": torch.bfloat16, "operations": comfy.ops.disable_weight_init}
    return shapes_of(getattr(module, name)(**sizes, **how))


def shapes_of(model: torch.nn.Module) -> Shapes:
    return {key: list(value.shape) for key, value in model.state_dict().items() if not LATER_BLOCKS.search(key)}


def chosen_by_comfyui(shapes: Shapes, metadata: dict[str, str]) -> str:
    """Returns the class of comfy.supported_models that ComfyUI takes for a file with this header."""
    import comfy.model_detection

    weights = {key: torch.empty(shape, device="meta") for key, shape in shapes.items()}
    config = comfy.model_detection.detect_unet_config(weights, "", metadata)
    return type(comfy.model_detection.model_config_from_unet_config(config, weights)).__name__


def patch_of(name: str) -> Shapes:
    import comfy.ops

    how = {"device": "meta", "dtype": torch.bfloat16, "operations": comfy.ops.disable_weight_init}
    if name == "uni3c":
        from comfy.ldm.wan.uni3c import WanUni3CControlnet

        return shapes_of(WanUni3CControlnet(**how))
    from comfy.ldm.wan.model_multitalk import MultiTalkAudioProjModel, WanMultiTalkAttentionBlock

    parts = {
        "audio_proj": MultiTalkAudioProjModel(**how),
        "blocks": torch.nn.ModuleList([WanMultiTalkAttentionBlock(**how)]),
    }
    return shapes_of(torch.nn.ModuleDict(parts))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
