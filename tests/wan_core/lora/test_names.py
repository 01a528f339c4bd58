"""Keys of LoRA files: every linear of every published Wan is found under every name."""

from __future__ import annotations

import json
import re
from itertools import product
from pathlib import Path

import pytest

from wan_core.checkpoint import to_file, to_original
from wan_core.lora.names import parse_key

TABLE = json.loads((Path(__file__).parents[2] / "fixtures" / "wan_variant_keys.json").read_text(encoding="utf-8"))
PARTS = ("blocks", "vace_blocks", "text_embedding", "time_embedding", "time_projection", "head", "img_emb")
LINEARS = sorted(
    {
        name.removesuffix(".weight").replace("{i}", "13")
        for variant in ("wan2.1-t2v-14B", "wan2.1-i2v-14B-480p-or-720p", "wan2.1-vace-14B", "wan2.2-ti2v-5B")
        for name, entry in TABLE[variant]["keys"].items()
        if name.endswith(".weight") and len(entry["shape"]) == 2 and name.split(".")[0] in PARTS
    }
)


def test_the_list_of_linears_is_whole() -> None:
    inner = {name.split(".13.")[1] for name in LINEARS if ".13." in name}
    assert {"self_attn.q", "cross_attn.k_img", "cross_attn.v_img", "ffn.2", "before_proj", "after_proj"} <= inner
    assert len(LINEARS) == 12 + 12 + 5 + 1 + 2  # blocks; VACE blocks without image K/V, with two projections; the rest


@pytest.mark.parametrize("prefix", ["diffusion_model.", "transformer.", "base_model.model.", "", "pipe.vace."])
def test_a_dotted_name_is_found(prefix: str) -> None:
    for name, (half, part) in product(LINEARS, (("A", "down"), ("B", "up"))):
        found = parse_key(f"{prefix}{name}.lora_{half}.default.weight")
        assert found is not None, name
        assert (found.wrapping, found.module, found.part) == (prefix, name, part)


@pytest.mark.parametrize("prefix", ["lora_unet_", "lora_unet__", "lora_transformer_", "lycoris_"])
def test_a_name_whose_dots_are_underscores_is_found(prefix: str) -> None:
    for name in LINEARS:
        found = parse_key(f"{prefix}{name.replace('.', '_')}.alpha")
        assert found is not None, name
        assert (found.wrapping, found.module, found.part) == (prefix, name, "alpha")


@pytest.mark.parametrize(
    "name",
    [
        *(f"blocks.7.attn{n}.to_{part}" for n in (1, 2) for part in ("q", "k", "v", "out.0")),
        *("blocks.7.attn2.add_k_proj", "blocks.7.attn2.add_v_proj", "blocks.7.ffn.net.0.proj", "blocks.7.ffn.net.2"),
        *("vace_blocks.2.attn1.to_q", "vace_blocks.2.proj_in", "vace_blocks.2.proj_out", "proj_out"),
        *("condition_embedder.text_embedder.linear_2", "condition_embedder.time_proj"),
        "condition_embedder.image_embedder.ff.net.0.proj",
    ],
)
def test_a_diffusers_name_is_found_dotted_and_flat(name: str) -> None:
    original = to_original(name)
    assert original != name
    for key in (f"transformer.{name}.lora_A.weight", f"lycoris_{name.replace('.', '_')}.lora_down.weight"):
        found = parse_key(key)
        assert found is not None
        assert (found.module, found.part) == (original, "down")


@pytest.mark.parametrize(
    "key",
    [
        "blocks.0.ffn.0.weight",
        "lora_unet_blocks_0_ffn_7.alpha",
        "lora_unet_single_blocks_0_linear1.alpha",
        "lora_te1_text_model_encoder_layers_0_mlp_fc1.alpha",
        "diffusion_model.blocks.0..ffn.alpha",
        "diffusion_model.../etc/passwd.alpha",
        "diffusion_model.blocks.0.ffn.0.lora_C.weight",
        "diffusion_model.blocks.0.ffn.0.alpha\n",
        "diffusion_model.blöcke.0.ffn.0.alpha",
        ".alpha",
        "",
    ],
)
def test_other_keys_are_none_of_ours(key: str) -> None:
    assert parse_key(key) is None


@pytest.mark.parametrize(
    ("name", "module"),
    [
        ("face_adapter.fuser_blocks.1.linear2", "blocks.5.face.linear2"),
        ("audio_injector.injector.7.o", "blocks.27.sound.o"),
        ("audio_injector.injector_adain_layers.11.linear", "blocks.39.sound.adain"),
    ],
)
def test_attention_to_a_face_or_to_sound_is_a_part_of_its_block_and_is_written_under_its_own_name(
    name: str, module: str
) -> None:
    found = parse_key(f"diffusion_model.{name}.lora_A.weight")
    assert found is not None
    assert (found.module, found.part) == (module, "down")
    assert to_file(f"{found.module}.lora_A.weight") == f"{name}.lora_A.weight"
    assert to_file("blocks.5.ffn.2.lora_A.weight") == "blocks.5.ffn.2.lora_A.weight"


def test_a_key_as_long_as_a_header_may_hold_is_judged_at_once() -> None:
    for hostile in ("a." * 50_000 + ".alpha", "lora_unet_" + "_" * 100_000, "_orig_mod." * 10_000 + "x"):
        assert parse_key(hostile) is None
    assert re.fullmatch(r"[a.]+", parse_key("a." * 50_000 + "a.alpha").module)  # type: ignore[union-attr]
