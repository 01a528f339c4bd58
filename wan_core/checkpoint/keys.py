"""Names of weights: prefixes in files, and the map between diffusers' names and the original Wan names.

The engine uses original names (`blocks.0.self_attn.q.weight`); reading a file translates its names.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

PREFIXES = (
    "model.diffusion_model.",
    "diffusion_model.",
    "model.model.",
    "base_model.model.",
    "generator.model.",
    "generator.",
    "transformer.",
    "pipe.dit.",
    "module.",
    "net.",
    "dit.",
    "model.",
)
"""prefixes of weight names in full checkpoints, ComfyUI's modules, PEFT, DDP, DiffSynth, distillation and community
files, longest first"""

_WRAPPED = re.compile(
    r"^((?:base_model\.|diffusion_model\.|generator\.|transformer(?:_2)?\.|module\.|model\.|pipe\.|net\.|dit\.)*)(.+)$"
)
_OF_TORCH = re.compile(r"(^|\.)(?:(?:_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module)\.)+")
"""name parts that torch.compile, FSDP and checkpointing insert"""
_MARKS = ("head.modulation", "condition_embedder.time_proj.weight", "patch_embedding.weight")
_DIFFUSERS_MARK = "condition_embedder.time_proj.weight"
MARK_OF_SCALES = "scaled_fp8"
"""a tensor that marks a quantized file; some writers give it no prefix"""

# Replaces complete components in one pass, because norm2 becomes norm3 and norm3 becomes norm2.
_TOP = {
    "condition_embedder.text_embedder.linear_1": "text_embedding.0",
    "condition_embedder.text_embedder.linear_2": "text_embedding.2",
    "condition_embedder.time_embedder.linear_1": "time_embedding.0",
    "condition_embedder.time_embedder.linear_2": "time_embedding.2",
    "condition_embedder.time_proj": "time_projection.1",
    "condition_embedder.image_embedder.norm1": "img_emb.proj.0",
    "condition_embedder.image_embedder.ff.net.0.proj": "img_emb.proj.1",
    "condition_embedder.image_embedder.ff.net.2": "img_emb.proj.3",
    "condition_embedder.image_embedder.norm2": "img_emb.proj.4",
    "condition_embedder.image_embedder.pos_embed": "img_emb.emb_pos",
    "proj_out": "head.head",
    "scale_shift_table": "head.modulation",
}
_IN_BLOCK = {
    "attn1.to_out.0": "self_attn.o",
    "attn2.to_out.0": "cross_attn.o",
    "attn2.add_k_proj": "cross_attn.k_img",
    "attn2.add_v_proj": "cross_attn.v_img",
    "attn2.norm_added_k": "cross_attn.norm_k_img",
    "norm2": "norm3",
    "ffn.net.0.proj": "ffn.0",
    "ffn.net.2": "ffn.2",
    "scale_shift_table": "modulation",
    "proj_in": "before_proj",
    "proj_out": "after_proj",
}
for _number, _attention in (("attn1", "self_attn"), ("attn2", "cross_attn")):
    for _part in ("q", "k", "v"):
        _IN_BLOCK[f"{_number}.to_{_part}"] = f"{_attention}.{_part}"
    for _part in ("norm_q", "norm_k"):
        _IN_BLOCK[f"{_number}.{_part}"] = f"{_attention}.{_part}"

_BLOCK_OF_DIFFUSERS = {ours: theirs for theirs, ours in _IN_BLOCK.items()}
_TOP_OF_DIFFUSERS = {ours: theirs for theirs, ours in _TOP.items()}

_FACED, _SOUNDING = range(0, 500, 5), (0, 4, 8, 12, 16, 20, 24, 27, 30, 33, 36, 39)
"""blocks that attention to the face (Animate) or to the sound (S2V) follows"""
_PARTS = (
    ("face_adapter.fuser_blocks.", "", "face", _FACED),
    ("audio_injector.injector_adain_layers.", ".linear", "sound.adain", _SOUNDING),
    ("audio_injector.injector.", "", "sound", _SOUNDING),
)
"""official name before and after a number, name in a block, block of each number. The engine has such an attention in
its block: `blocks.5.face.linear2` for `face_adapter.fuser_blocks.1.linear2`"""
_OUTSIDE = [
    (re.compile(rf"{re.escape(before)}(\d{{1,2}}){re.escape(after)}(\..+)?", re.DOTALL), inside, layers)
    for before, after, inside, layers in _PARTS
]
_INSIDE = re.compile(r"blocks\.(\d{1,3})\.(face|sound\.adain|sound)(\..+)?", re.DOTALL)

_LEAVES = (
    "weight|bias|scale_weight|scale_input|weight_scale|weight_scale_2|input_scale|comfy_quant"
    "|weight_s_rel|weight_s_channel|weight_codebook"
)
_BLOCK = re.compile(rf"^((?:vace_)?blocks\.\d+)\.(.+?)(\.(?:{_LEAVES}))?\Z", re.DOTALL)
_LEAF = re.compile(rf"^(.*?)(\.(?:{_LEAVES}))?\Z", re.DOTALL)


def to_original(name: str) -> str:
    """Returns the engine's name for a diffusers or original name; returns unknown names unchanged."""
    if (part := _in_block(name)) != name:
        return part
    if match := _BLOCK.match(name):
        block, inner, leaf = match.groups()
        return f"{block}.{_IN_BLOCK.get(inner, inner)}{leaf or ''}"
    match = _LEAF.match(name)
    assert match
    return f"{_TOP.get(match[1], match[1])}{match[2] or ''}"


def _in_block(name: str) -> str:
    """Returns the engine's name for an original one; the two differ in attention to the face and to the sound."""
    for pattern, inside, layers in _OUTSIDE:
        if (match := pattern.fullmatch(name)) and int(match[1]) < len(layers):
            return f"blocks.{layers[int(match[1])]}.{inside}{match[2] or ''}"
    return name


def to_file(module: str) -> str:
    """Returns the original name of a module or weight of the engine; the inverse of `to_original`."""
    match = _INSIDE.fullmatch(module)
    for before, after, inside, layers in _PARTS:
        if match and match[2] == inside and int(match[1]) in layers:
            return f"{before}{layers.index(int(match[1]))}{after}{match[3] or ''}"
    return module


def unwrapped(name: str) -> str:
    """Returns a name without the parts that torch.compile, FSDP and checkpointing insert."""
    return _OF_TORCH.sub(r"\1", name)


def to_diffusers(module: str) -> str:
    """Returns diffusers' module name: `blocks.0.attn1.to_q` for `blocks.0.self_attn.q`."""
    if match := _BLOCK.match(module):
        block, inner, _ = match.groups()
        return f"{block}.{_BLOCK_OF_DIFFUSERS.get(inner, inner)}"
    return _TOP_OF_DIFFUSERS.get(module, module)


def canonical_names(names: Iterable[str]) -> dict[str, str]:
    """Returns name in the file -> original Wan name of each tensor, without prefix.

    Tensors without the prefix (VAE and text encoder of a full checkpoint) are omitted. If there is no Wan model, the
    most frequent prefix is removed, so that the refusal can say what the file is.
    """
    plain = {name: unwrapped(name) for name in names}
    inside, found = list(plain.values()), models_under(plain)
    frequent = (p for p in PREFIXES if sum(name.startswith(p) for name in inside) > len(inside) // 2)
    prefix = found[0] if found else next(frequent, "")
    stripped = {
        name: inner.removeprefix(prefix)
        for name, inner in plain.items()
        if inner.startswith(prefix) or inner == MARK_OF_SCALES
    }
    if _DIFFUSERS_MARK in stripped.values():
        return {name: to_original(inner) for name, inner in stripped.items()}
    return {name: _in_block(inner) for name, inner in stripped.items()}


def models_under(names: Iterable[str]) -> list[str]:
    """Returns the prefixes of all Wan models in a file, in file order."""
    plain = [unwrapped(name) for name in names]
    for mark in _MARKS:
        ends = (match for name in plain if name.endswith(mark) and (match := _WRAPPED.match(name)) and match[2] == mark)
        if found := dict.fromkeys(match[1] for match in ends):
            return list(found)
    return []
