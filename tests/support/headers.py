"""Headers of real models without the files: the pinned templates, and published models derived from them."""

from __future__ import annotations

import functools
import json
import math
import re
from pathlib import Path

from wan_core.checkpoint import CheckpointHeader
from wan_core.checkpoint.header import TensorInfo

TEMPLATES = {
    name: variant
    for name, variant in json.loads(
        (Path(__file__).parents[1] / "fixtures" / "wan_variant_keys.json").read_text(encoding="utf-8")
    ).items()
    if not name.startswith("_")
}
Shapes = dict[str, tuple[int, ...]]

# Original -> diffusers, one line per row of the published conversion table (whole dotted components).
_TO_DIFFUSERS = (
    (r"^text_embedding\.0\b", "condition_embedder.text_embedder.linear_1"),
    (r"^text_embedding\.2\b", "condition_embedder.text_embedder.linear_2"),
    (r"^time_embedding\.0\b", "condition_embedder.time_embedder.linear_1"),
    (r"^time_embedding\.2\b", "condition_embedder.time_embedder.linear_2"),
    (r"^time_projection\.1\b", "condition_embedder.time_proj"),
    (r"^img_emb\.proj\.0\b", "condition_embedder.image_embedder.norm1"),
    (r"^img_emb\.proj\.1\b", "condition_embedder.image_embedder.ff.net.0.proj"),
    (r"^img_emb\.proj\.3\b", "condition_embedder.image_embedder.ff.net.2"),
    (r"^img_emb\.proj\.4\b", "condition_embedder.image_embedder.norm2"),
    (r"^img_emb\.emb_pos$", "condition_embedder.image_embedder.pos_embed"),
    (r"^head\.head\b", "proj_out"),
    (r"^head\.modulation$", "scale_shift_table"),
    (r"\.self_attn\.([qkv])\.", r".attn1.to_\1."),
    (r"\.self_attn\.o\.", ".attn1.to_out.0."),
    (r"\.self_attn\.(norm_[qk])\.", r".attn1.\1."),
    (r"\.cross_attn\.([qkv])\.", r".attn2.to_\1."),
    (r"\.cross_attn\.o\.", ".attn2.to_out.0."),
    (r"\.cross_attn\.(norm_[qk])\.", r".attn2.\1."),
    (r"\.cross_attn\.([kv])_img\.", r".attn2.add_\1_proj."),
    (r"\.cross_attn\.norm_k_img\.", ".attn2.norm_added_k."),
    (r"(blocks\.\d+)\.norm3\.", r"\1.norm2."),
    (r"(blocks\.\d+)\.ffn\.0\.", r"\1.ffn.net.0.proj."),
    (r"(blocks\.\d+)\.ffn\.2\.", r"\1.ffn.net.2."),
    (r"(blocks\.\d+)\.modulation$", r"\1.scale_shift_table"),
    (r"(vace_blocks\.\d+)\.before_proj\.", r"\1.proj_in."),
    (r"(vace_blocks\.\d+)\.after_proj\.", r"\1.proj_out."),
)


def shapes_of(template: str) -> Shapes:
    """Every tensor of a pinned template, by original name."""
    found: Shapes = {}
    for key, info in TEMPLATES[template]["keys"].items():
        for index in range(info["count"]) if "{i}" in key else [0]:
            found[key.replace("{i}", str(index))] = tuple(info["shape"])
    return found


def derived(template: str, in_channels: int, *, clip: bool = False, reference: int = 0, camera: int = 0) -> Shapes:
    """A model published without a template: another input width, and the parts named."""
    found = shapes_of(template)
    dim = found["patch_embedding.weight"][0]
    found["patch_embedding.weight"] = (dim, in_channels, 1, 2, 2)
    if clip:
        wide = {n: s for n, s in shapes_of("wan2.1-i2v-14B-480p-or-720p").items() if n.startswith("img_emb.")}
        found |= {name: tuple(dim if size == 5120 else size for size in shape) for name, shape in wide.items()}
        for block in [n.split(".")[1] for n in found if re.fullmatch(r"blocks\.\d+\.modulation", n)]:
            attention = f"blocks.{block}.cross_attn"
            for part in ("k_img", "v_img"):
                found |= {f"{attention}.{part}.weight": (dim, dim), f"{attention}.{part}.bias": (dim,)}
            found[f"{attention}.norm_k_img.weight"] = (dim,)
    if reference:
        found |= {"ref_conv.weight": (dim, reference, 2, 2), "ref_conv.bias": (dim,)}
    if camera:
        found |= {"control_adapter.conv.weight": (dim, camera * 64, 2, 2), "control_adapter.conv.bias": (dim,)}
        for part in ("conv1", "conv2"):
            found[f"control_adapter.residual_blocks.0.{part}.weight"] = (dim, dim, 3, 3)
            found[f"control_adapter.residual_blocks.0.{part}.bias"] = (dim,)
    return found


def scail(*, masks: bool) -> Shapes:
    """SCAIL, or SCAIL-2 with `masks`."""
    found = derived("wan2.1-t2v-14B", 20, clip=True)
    for part, channels in (("pose", 20), *([("mask", 28)] if masks else [])):
        found |= {f"patch_embedding_{part}.weight": (5120, channels, 1, 2, 2), f"patch_embedding_{part}.bias": (5120,)}
    return found


def dancer() -> Shapes:
    """Wan-Dancer by the parts it is known by."""
    found = derived("wan2.1-t2v-14B", 36, clip=True, reference=16)
    return found | {"music_projection.weight": (5120, 4800), "img_emb_refimage.proj.0.bias": (1280,)}


def humo() -> Shapes:
    """HuMo-17B: its projection of sound, and attention to it in every block."""
    found, width = derived("wan2.1-t2v-14B", 36), 1536
    for layer, shape in (("glob_1", (512, 8 * 5 * 1280)), ("glob_2", (512, 512)), ("glob_3", (16 * width, 512))):
        found |= {f"audio_proj.audio_proj_{layer}.layer.weight": shape}
        found |= {f"audio_proj.audio_proj_{layer}.layer.bias": shape[:1]}
    found |= {f"audio_proj.audio_proj_glob_norm.layer.{part}": (width,) for part in ("weight", "bias")}
    for block in range(40):
        place = f"blocks.{block}.audio_cross_attn_wrapper"
        found |= {f"{place}.norm1_audio.{part}": (5120,) for part in ("weight", "bias")}
        for name, size in (("q", 5120), ("k", width), ("v", width), ("o", 5120)):
            found |= {f"{place}.audio_cross_attn.{name}.weight": (5120, size)}
            found |= {f"{place}.audio_cross_attn.{name}.bias": (5120,)}
        found |= {f"{place}.audio_cross_attn.norm_{name}.weight": (5120,) for name in "qk"}
    return found


def header(shapes: Shapes, file_name: str | Path, prefix: str = "", *, diffusers: bool = False) -> CheckpointHeader:
    """As a bf16 file of that name would have it."""
    names = {name: to_diffusers(name) if diffusers else name for name in shapes}
    tensors = {prefix + names[name]: TensorInfo("BF16", shape, 0) for name, shape in shapes.items()}
    return CheckpointHeader(Path(file_name), tensors, {}, 0)


@functools.cache
def to_diffusers(name: str) -> str:
    for pattern, replacement in _TO_DIFFUSERS:
        name, found = re.subn(pattern, replacement, name)
        if found:
            break
    return name


def write_empty_model(file: Path, template: str, dtype: str = "BF16") -> Path:
    """A safetensors file of a pinned template with its real header and size, whose values take no room on the disk.

    `dtype` "scaled fp8": the linears of blocks in 8 bits with a scale each, as ComfyUI's repackaged files have them.
    """
    tensors: dict[str, tuple[str, tuple[int, ...]]] = {}
    for name, shape in shapes_of(template).items():
        tensors[name] = ("BF16" if dtype == "scaled fp8" else dtype, shape)
        if dtype == "scaled fp8" and re.fullmatch(r"blocks\.\d+\..*\.weight", name) and len(shape) == 2:
            tensors[name] = ("F8_E4M3", shape)
            tensors[name.removesuffix("weight") + "scale_weight"] = ("F32", ())
    told, end = {}, 0
    for name, (kind, shape) in tensors.items():
        start, end = end, end + math.prod(shape) * {"F8_E4M3": 1, "BF16": 2, "F32": 4}[kind]
        told[name] = {"dtype": kind, "shape": list(shape), "data_offsets": [start, end]}
    text = json.dumps(told).encode()
    with file.open("wb") as out:
        out.write(len(text).to_bytes(8, "little") + text)
        out.truncate(8 + len(text) + end)
    return file
