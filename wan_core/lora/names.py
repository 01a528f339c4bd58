"""LoRA keys of every trainer, parsed into prefix, Wan module and part; source.py opens the files.

Module names become original ones (`blocks.0.self_attn.q`). Sources: the savers of musubi-tuner, diffusion-pipe,
diffusers, DiffSynth-Studio, LyCORIS and OneTrainer.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from ..checkpoint import to_original, unwrapped
from ..families import BLOCK_LISTS


class LoraKey(NamedTuple):
    """One parsed key of a LoRA file."""

    wrapping: str
    """prefix: "diffusion_model.", "lora_unet_", "" ..."""
    module: str
    """original Wan name"""
    part: str
    """down, up, alpha, or the trainer's own word (lokr_w1, hada_w1_a, dora_scale, diff ...)"""
    spelling: str
    """suffix: ".lora_A.weight" ..."""


_HALF = {"A": "down", "B": "up", "down": "down", "up": "up"}
_SPELLINGS = re.compile(
    r"^(?P<stem>.+?)(?P<spelling>"
    r"\.lora_(?P<peft>[AB])(?:\.(?!weight$|bias$)\w+)?(?:\.weight)?"  # .default is PEFT's name of the adapter
    r"|\.lora_(?P<kohya>down|up)\.weight"
    r"|[._]lora\.(?P<early>down|up)\.weight|\.lora_linear_layer\.(?P<linear>down|up)\.weight"
    r"|\.(?P<own>alpha|lokr_(?:w[12](?:_[ab])?|t2)|hada_(?:w[12]_[ab]|t[12])|dora_scale|diff|diff_b|set_weight"
    r"|w_norm|b_norm|reshape_weight|oft_blocks|oft_diag|[ab][12]\.weight"
    r"|lora_(?:mid\.weight|B(?:\.\w+)?\.bias|magnitude_vector(?:\.\w+)*))"
    r")\Z",
    re.ASCII,
)
_DOTTED = re.compile(
    r"^(?P<wrapping>(?:base_model\.model\.|model\.|diffusion_model\.|transformer(?:_2)?\.|pipe\.(?:dit|vace)2?\.)*)"
    r"(?P<module>(?!lora_|lycoris_)[a-z]\w*(?:\.\w+)*)\Z",
    re.ASCII,
)
_FLAT = re.compile(r"^(?P<wrapping>lora_unet_{1,2}|lora_transformer_|lycoris_)(?P<module>[a-z]\w*)\Z", re.ASCII)
_FLAT_BLOCK = re.compile(rf"^({'|'.join(BLOCK_LISTS)})_(\d+)_(\w+)\Z", re.ASCII)


# Underscores replace dots in names that have underscores too (k_img, ffn.0), so names are looked up in this list.
_IN_BLOCK = (
    *(f"{attention}.{part}" for attention in ("self_attn", "cross_attn") for part in "qkvo"),
    *(f"{attention}.{part}" for attention in ("attn1", "attn2") for part in ("to_q", "to_k", "to_v", "to_out.0")),
    *("cross_attn.k_img", "cross_attn.v_img", "attn2.add_k_proj", "attn2.add_v_proj"),
    *("ffn.0", "ffn.2", "ffn.net.0.proj", "ffn.net.2", "before_proj", "after_proj", "proj_in", "proj_out"),
)
_OUTSIDE = (
    *("patch_embedding", "text_embedding.0", "text_embedding.2", "time_embedding.0", "time_embedding.2"),
    *("time_projection.1", "head.head", "proj_out", "img_emb.proj.1", "img_emb.proj.3"),
    *(f"condition_embedder.{part}_embedder.linear_{n}" for part in ("text", "time") for n in (1, 2)),
    *("condition_embedder.time_proj", "condition_embedder.image_embedder.ff.net.0.proj"),
    "condition_embedder.image_embedder.ff.net.2",
)
_UNFLATTENED = {name.replace(".", "_"): name for name in (*_IN_BLOCK, *_OUTSIDE)}


def parse_key(key: str) -> LoraKey | None:
    """Returns the parsed key; None for another format, or a flattened name that no Wan model has."""
    found = _SPELLINGS.match(unwrapped(key))
    if found is None:
        return None
    half = found["peft"] or found["kohya"] or found["early"] or found["linear"]
    part = _HALF[half] if half else found["own"]
    named = _FLAT.match(found["stem"]) or _DOTTED.match(found["stem"])
    if named is None:
        return None
    module = named["module"]
    if named.re is _FLAT:
        block = _FLAT_BLOCK.match(module)
        inside = _UNFLATTENED.get(block[3] if block else module)
        if inside is None:
            return None
        module = f"{block[1]}.{block[2]}.{inside}" if block else inside
    return LoraKey(named["wrapping"], to_original(module), part, found["spelling"])
