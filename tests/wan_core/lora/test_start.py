"""What is refused when a run starts from a LoRA file, in one sentence each; and what is said when it starts anyway."""

from __future__ import annotations

import json
import logging
import random
import re
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from tests.support.lora_formats import ALPHA, MODULES, RANK, golden_model, pairs, write_format, write_lycoris
from wan_core.errors import WanTrainerError
from wan_core.lora import LoraConfig, LoraWeights, describe_lora, inject_lora, read_lora, start_from
from wan_core.model import WanTransformer

Tensors = dict[str, Tensor]
FIRST = "diffusion_model.blocks.0.ffn.0"
ATTENTION_ONLY = (r"blocks\.\d+\.(self_attn|cross_attn)\.(q|k|v|o)",)


def fresh(config: LoraConfig) -> WanTransformer:
    model, _ = golden_model()
    inject_lora(model, config, seed=0)
    return model


def generic() -> Tensors:
    """The plain LoRA under `diffusion_model.` names."""
    tensors: Tensors = {}
    for module, down, up in pairs():
        tensors[f"diffusion_model.{module}.lora_A.weight"] = down
        tensors[f"diffusion_model.{module}.lora_B.weight"] = up
        tensors[f"diffusion_model.{module}.alpha"] = torch.tensor(ALPHA)
    return tensors


def refusal(path: Path, config: LoraConfig | None = None) -> str:
    """The one sentence, after which the model is as it was."""
    config = config or LoraConfig(rank=RANK)
    model = fresh(config)
    before = LoraWeights.of(model).tensors
    with pytest.raises(WanTrainerError) as said:
        start_from(model, read_lora(path), config)
    after = LoraWeights.of(model).tensors
    assert all(torch.equal(after[name], before[name]) for name in before)
    assert path.name in str(said.value)
    return str(said.value)


def drop(*keys: str) -> Callable[[Tensors], None]:
    return lambda tensors: [tensors.pop(key) for key in keys] and None


def put(key: str, value: Tensor) -> Callable[[Tensors], None]:
    return lambda tensors: tensors.update({key: value})


DAMAGE = {
    "half a pair": (drop(f"{FIRST}.lora_A.weight"), "holds only up for blocks.0.ffn.0: incomplete"),
    "alpha alone": (drop(f"{FIRST}.lora_A.weight", f"{FIRST}.lora_B.weight"), "holds only alpha for blocks.0.ffn.0"),
    "two halves of a LoKr": (put(f"{FIRST}.lokr_w1", torch.ones(2, 2)), "blocks.0.ffn.0: incomplete"),
    "LoKr with one factor": (
        put("diffusion_model.blocks.1.ffn.3.lokr_w1", torch.ones(2, 2)),
        "holds only lokr_w1 for blocks.1.ffn.3: incomplete",
    ),
    "alpha of three": (put(f"{FIRST}.alpha", torch.zeros(3)), "ffn.0.alpha is not one number"),
    "alpha NaN": (put(f"{FIRST}.alpha", torch.tensor(torch.nan)), "ffn.0.alpha is not finite"),
    "alpha overflows": (
        lambda t: t.update({f"{FIRST}.alpha": torch.tensor(3e38), f"{FIRST}.lora_B.weight": torch.full((64, 4), 1e3)}),
        "the alpha of blocks.0.ffn.0 makes it overflow",
    ),
    "weight NaN": (put(f"{FIRST}.lora_B.weight", torch.full((64, RANK), torch.nan)), "lora_B.weight is not finite"),
    "flat weight": (put(f"{FIRST}.lora_B.weight", torch.zeros(64)), "has shape (64,); a matrix was expected"),
    "no columns": (put(f"{FIRST}.lora_B.weight", torch.zeros(64, 0)), "has shape (64, 0); a matrix was expected"),
    "a convolution": (put(f"{FIRST}.lora_B.weight", torch.zeros(64, 4, 1, 1)), "a matrix was expected"),
    "yes and no": (put(f"{FIRST}.lora_B.weight", torch.zeros(64, 4).bool()), "is stored as BOOL"),
    "whole numbers": (put(f"{FIRST}.lora_B.weight", torch.zeros(64, 4).long()), "is stored as I64"),
    "two ranks in one pair": (put(f"{FIRST}.lora_B.weight", torch.zeros(64, 5)), "parts of blocks.0.ffn.0 do not fit"),
    "another width": (
        put(f"{FIRST}.lora_B.weight", torch.zeros(66, 4)),
        "trained for a model of another size: blocks.0.ffn.0 is 66 x 56 there and 64 x 56 here",
    ),
    "far too wide": (put(f"{FIRST}.lora_B.weight", torch.zeros(1 << 18, 4)), "parts of blocks.0.ffn.0 do not fit"),
    "a block too many": (
        lambda t: t.update({k.replace("blocks.0.", "blocks.9."): t[k].clone() for k in list(t) if k.startswith(FIRST)}),
        "adapts blocks.9.ffn.0, which this model does not have: it was trained for another Wan model",
    ),
    "DoRA": (put(f"{FIRST}.dora_scale", torch.ones(64, 1)), "is a DoRA, whose magnitudes belong to the base weights"),
    "DoRA of PEFT": (put(f"{FIRST}.lora_magnitude_vector", torch.ones(64)), "is a DoRA"),
    "a bias": (put(f"{FIRST}.diff_b", torch.ones(64)), "with full weights or biases besides the pairs"),
    "a whole norm": (put("diffusion_model.blocks.0.norm3.diff", torch.ones(56)), "(blocks.0.norm3); a plain LoRA"),
    "mixed programs": (put("lora_unet_blocks_1_ffn_2.lora_down.weight", torch.ones(4, 64)), "has two tensors for"),
    "another program beside": (put("lora_unet_head_head.lora_down.weight", torch.ones(4, 56)), "mixes keys of several"),
    "both experts": (
        lambda t: t.update({f"transformer_2.{MODULES[m]}.lora_A.weight": d for m, d, _ in pairs()}),
        "Use a file with one LoRA in it",
    ),
    "one module in two families": (
        put("diffusion_model.blocks.0.attn1.to_q.lora_A.weight", torch.ones(4, 56)),
        'two tensors for blocks.0.self_attn.q: "diffusion_model.blocks.0.attn1.to_q.lora_A.weight" and',
    ),
    "climbing names": (put("diffusion_model.../../x.lora_A.weight", torch.ones(4, 4)), "is not the key of a Wan LoRA"),
    "a text encoder": (put("lora_te_text_model_fc1.lora_down.weight", torch.ones(4, 4)), "adapts a text encoder too"),
    "something else": (put("diffusion_model.blocks.0.ffn.0.weight", torch.ones(4, 4)), "is not the key of a Wan LoRA"),
}  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_file_that_cannot_start_a_run_is_refused_in_one_sentence(tmp_path: Path, damage: str) -> None:
    change, sentence = DAMAGE[damage]
    tensors = generic()
    change(tensors)
    save_file(tensors, tmp_path / "odd.safetensors")
    assert sentence in refusal(tmp_path / "odd.safetensors")


@pytest.mark.parametrize(
    "key",
    ["lora_unet_double_blocks_0_img_attn_proj.lora_down.weight", "single_blocks.0.linear1.lora_A.weight", "weight"],
)
def test_a_file_for_another_model_is_refused(tmp_path: Path, key: str) -> None:
    save_file({key: torch.ones(4, 4)}, tmp_path / "flux.safetensors")
    assert re.search(r"not the key of a Wan LoRA|holds no LoRA for a Wan", refusal(tmp_path / "flux.safetensors"))


def test_modules_that_the_run_does_not_adapt_are_refused_with_the_lines_to_set(tmp_path: Path) -> None:
    path = write_format("c: lora_unet_", tmp_path / "all.safetensors")
    said = refusal(path, LoraConfig(rank=RANK, targets=ATTENTION_ONLY))
    assert "also adapts 4 linear layers that this run does not (for example blocks.0.ffn.0)" in said
    lines = said.split("Set lora_targets to these lines: ")[1].split("  ")
    assert lines == [*ATTENTION_ONLY, r"blocks\.\d+\.ffn\.0", r"blocks\.\d+\.ffn\.2"]
    config = LoraConfig(rank=RANK, targets=tuple(lines))
    assert start_from(fresh(config), read_lora(path), config) == 0


def test_linears_outside_the_blocks_are_refused(tmp_path: Path) -> None:
    tensors = generic()
    sizes = golden_model()[0].text_embedding[2].weight.shape
    tensors["diffusion_model.text_embedding.2.lora_A.weight"] = torch.ones(RANK, sizes[1])
    tensors["diffusion_model.text_embedding.2.lora_B.weight"] = torch.ones(sizes[0], RANK)
    save_file(tensors, tmp_path / "wide.safetensors")
    assert "Linear layers outside the blocks (text_embedding.2) cannot be adapted here" in refusal(
        tmp_path / "wide.safetensors"
    )


def test_modules_that_the_file_lacks_start_as_in_a_new_lora_and_the_log_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """SimpleTuner adapts attention only; such a file starts a run that also adapts the feed-forward."""
    save_file({key: value for key, value in generic().items() if "ffn" not in key}, tmp_path / "attention.safetensors")
    config = LoraConfig(rank=RANK)
    model = fresh(config)
    before = LoraWeights.of(model).tensors
    with caplog.at_level(logging.WARNING):
        assert start_from(model, read_lora(tmp_path / "attention.safetensors"), config) == 0
    assert "has nothing for 4 of the 20 linear layers of this run (for example blocks.0.ffn.0)" in caplog.text
    after = LoraWeights.of(model).tensors
    changed = {name for name in before if not torch.equal(after[name], before[name])}
    assert changed == {name for name in before if "ffn" not in name}


def test_a_lokr_at_a_smaller_rank_starts_from_the_best_form_and_the_log_says_what_is_lost(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = write_lycoris("lokr", "lora_unet_", tmp_path / "lokr.safetensors")
    config, source = LoraConfig(rank=24), read_lora(path)
    model = fresh(config)
    with caplog.at_level(logging.WARNING):
        left_out = start_from(model, source, config)
    lost = total = 0.0
    weights = LoraWeights.of(model).tensors
    for module in source.modules:
        delta = source.change(module).delta()
        best = torch.linalg.svdvals(delta)[24:].norm()
        left = (delta - weights[f"{module}.lora_B.weight"] @ weights[f"{module}.lora_A.weight"]).norm()
        assert float(left) == pytest.approx(float(best), rel=1e-3)  # Eckart-Young: nothing of rank 24 is nearer
        lost, total = lost + float(left) ** 2, total + float(delta.norm()) ** 2
    assert 0.05 < left_out < 0.5
    assert left_out == pytest.approx((lost / total) ** 0.5, rel=1e-3)
    assert f"best form of rank 24, which leaves {100 * left_out:.2g} % of its change out" in caplog.text


def test_a_rank_that_would_lose_most_of_a_lokr_is_refused(tmp_path: Path) -> None:
    path = write_lycoris("lokr", "diffusion_model.", tmp_path / "lokr.safetensors")
    assert re.search(
        r"is a LoKr: rank 1 would leave \d\d % of its change out\. Set a higher", refusal(path, LoraConfig(rank=1))
    )


@pytest.mark.parametrize("decomposed", [("lokr_w1",), ("lokr_w2",), ("lokr_w1", "lokr_w2")])
def test_a_lokr_of_decomposed_factors_is_scaled_by_alpha_over_their_size(
    tmp_path: Path, decomposed: tuple[str, ...]
) -> None:
    """As ComfyUI and LyCORIS read it; two whole factors ignore alpha (the fixture shows that)."""
    generator = torch.Generator().manual_seed(3)
    tensors, product = {f"{FIRST}.alpha": torch.tensor(6.0)}, {}
    for name, (tall, wide) in {"lokr_w1": (4, 7), "lokr_w2": (16, 8)}.items():
        left, right = torch.randn(tall, 3, generator=generator), torch.randn(3, wide, generator=generator)
        product[name] = left @ right
        if name in decomposed:
            tensors |= {f"{FIRST}.{name}_a": left, f"{FIRST}.{name}_b": right}
        else:
            tensors[f"{FIRST}.{name}"] = product[name]
    save_file(tensors, tmp_path / "lokr.safetensors")
    adapter = read_lora(tmp_path / "lokr.safetensors").change("blocks.0.ffn.0")
    wanted = 6 / 3 * torch.kron(product["lokr_w1"], product["lokr_w2"])
    torch.testing.assert_close(adapter.delta(), wanted)
    found = adapter.factors(9)
    torch.testing.assert_close(found.up @ found.down, wanted, rtol=0, atol=1e-4)


@pytest.mark.parametrize("kind", ["lokr", "loha"])
def test_an_untrained_lycoris_file_starts_like_a_new_lora(tmp_path: Path, kind: str) -> None:
    path = write_lycoris(kind, "lora_unet_", tmp_path / "zero.safetensors")
    zeros = {key: value if key.endswith("alpha") else torch.zeros_like(value) for key, value in load_file(path).items()}
    save_file(zeros, path)
    config = LoraConfig(rank=RANK)
    model = fresh(config)
    before = LoraWeights.of(model).tensors
    assert start_from(model, read_lora(path), config) == 0
    after = LoraWeights.of(model).tensors
    assert all(torch.equal(after[name], before[name]) for name in before)


def test_a_file_that_cannot_start_a_run_is_still_described_with_the_reason(tmp_path: Path) -> None:
    save_file(generic() | {f"{FIRST}.dora_scale": torch.ones(64, 1)}, tmp_path / "dora.safetensors")
    said = describe_lora(read_lora(tmp_path / "dora.safetensors"))
    assert said["can_start_a_run"] is False
    assert "is a DoRA" in str(said["problem"])
    assert (said["modules"], said["key_format"]) == (20, "diffusion_model.<module>.lora_A.weight")


def test_hostile_headers_end_in_a_sentence_or_in_a_lora(tmp_path: Path) -> None:
    """300 files with bytes of the header or values changed: nothing but our own errors, never a changed model."""
    path, chance = tmp_path / "good.safetensors", random.Random(11)
    save_file({key: value for key, value in generic().items() if "blocks.0.ffn" in key}, path)
    data = path.read_bytes()
    length = struct.unpack("<Q", data[:8])[0]
    config = LoraConfig(rank=RANK, targets=(r"blocks\.0\.ffn\.(0|2)",))
    model = fresh(config)
    refusals: list[str] = []
    for _ in range(300):
        header = bytearray(data[8 : 8 + length])
        for _ in range(chance.randint(1, 4)):
            header[chance.randrange(length)] = chance.choice(b'0123456789.:"{}[],_abAB\\/ \xff')
        path.write_bytes(data[:8] + bytes(header) + data[8 + length :])
        try:
            source = read_lora(path)
            describe_lora(source)
            start_from(model, source, config)
        except WanTrainerError as said:
            refusals.append(str(said))
    assert 200 < len(refusals) <= 300
    assert all(path.name in said and len(said) < 600 for said in refusals)


@pytest.mark.parametrize(
    ("sides", "said"),
    [
        ([1 << 20, 1 << 16], "Download the file again"),
        ([1 << 40, 1 << 20], "damaged safetensors header. Download it"),
    ],
)
def test_a_header_that_claims_more_than_the_file_holds_reads_nothing(
    tmp_path: Path, sides: list[int], said: str
) -> None:
    huge = {
        "diffusion_model.blocks.0.ffn.0.lora_A.weight": {
            "dtype": "F32",
            "shape": sides,
            "data_offsets": [0, 8],
        }
    }
    text = json.dumps(huge).encode()
    path = tmp_path / "huge.safetensors"
    path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(8))
    assert said in refusal(path)


def test_a_small_lokr_that_unfolds_to_a_huge_matrix_is_refused_before_it_unfolds(tmp_path: Path) -> None:
    tensors = {f"{FIRST}.lokr_w1": torch.ones(1 << 12, 1 << 12), f"{FIRST}.lokr_w2": torch.ones(1 << 12, 1 << 12)}
    save_file(tensors, tmp_path / "bomb.safetensors")
    assert "do not fit together" in refusal(tmp_path / "bomb.safetensors")
