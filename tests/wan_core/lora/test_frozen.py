"""LoRAs that act and are not trained: as ComfyUI applies them, beside the base weights, and gone without a trace."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from tests.support.lora_formats import FORMATS, MODULES, expected, golden_model, write_format, write_lycoris
from wan_core.errors import CheckpointError
from wan_core.lora import (
    FrozenLora,
    LoraConfig,
    LoraSource,
    act_on,
    adapter_parameters,
    check_frozen,
    holds_both_experts,
    inject_lora,
    read_frozen,
    read_lora,
)
from wan_core.lora.frozen import Undo
from wan_core.model import WanTransformer
from wan_core.precision import QuantizeConfig, quantize_block

CPU = torch.device("cpu")


def act(model: nn.Module, source: LoraSource, strength: float = 1.0) -> list[Undo]:
    check_frozen(source, model, 4)
    return act_on(model, source, strength, dtype=torch.float32, device_of=lambda _: CPU)


def output(model: WanTransformer, inputs: list[Tensor]) -> Tensor:
    with torch.no_grad():
        return model(*inputs)


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[] if number % 6 == 0 else pytest.mark.soak) for number, name in enumerate(FORMATS)],
)
def test_each_layout_acts_as_comfyui_applies_it(name: str, tmp_path: Path) -> None:
    model, inputs = golden_model()
    act(model, read_lora(write_format(name, tmp_path / "lora.safetensors")))
    assert (output(model, inputs) - expected("")).abs().max() < 3e-5


@pytest.mark.parametrize("kind", ["lokr", "loha"])
def test_lokr_and_loha_act_as_comfyui_applies_them(kind: str, tmp_path: Path) -> None:
    model, inputs = golden_model()
    act(model, read_lora(write_lycoris(kind, "diffusion_model.", tmp_path / "lora.safetensors")))
    assert (output(model, inputs) - expected(f"_{kind}")).abs().max() < 3e-5


def distilled(path: Path) -> Path:
    """A LoRA as those that were taken out of distilled models: pairs, biases, norms, and linears outside the blocks."""
    generator = torch.Generator().manual_seed(3)
    model, _ = golden_model()
    tensors: dict[str, Tensor] = {}
    for name, value in model.named_parameters():
        module, _, leaf = name.rpartition(".")
        change = 0.05 * torch.randn(value.shape, generator=generator)
        if leaf == "bias":
            tensors[f"diffusion_model.{module}.diff_b"] = change
        elif leaf == "modulation":
            tensors[f"diffusion_model.{name}.diff"] = change
        elif value.ndim == 1:
            tensors[f"diffusion_model.{module}.diff"] = change
        else:
            down = torch.randn(3, *value.shape[1:], generator=generator) / value[0].numel() ** 0.5
            up = 0.1 * torch.randn(value.shape[0], 3, *[1] * (value.ndim - 2), generator=generator)
            tensors[f"diffusion_model.{module}.lora_down.weight"] = down
            tensors[f"diffusion_model.{module}.lora_up.weight"] = up
            tensors[f"diffusion_model.{module}.alpha"] = torch.tensor(6.0)
    save_file(tensors, path)
    return path


def merged(path: Path, strength: float) -> WanTransformer:
    """The golden model with the change of every weight added to it."""
    from safetensors.torch import load_file

    model, _ = golden_model()
    tensors = load_file(path)
    for name, value in model.named_parameters():
        module, _, leaf = name.rpartition(".")
        key = f"diffusion_model.{name if leaf == 'modulation' else module}"
        if leaf == "bias":
            value.data += strength * tensors[f"{key}.diff_b"]
        elif f"{key}.diff" in tensors:
            value.data += strength * tensors[f"{key}.diff"]
        else:
            pair = tensors[f"{key}.lora_up.weight"].flatten(1) @ tensors[f"{key}.lora_down.weight"].flatten(1)
            value.data += strength * 2.0 * pair.view(value.shape)
    return model


def test_biases_norms_and_what_lies_outside_the_blocks_change_too_and_all_of_it_ends(tmp_path: Path) -> None:
    path = distilled(tmp_path / "lora.safetensors")
    model, inputs = golden_model()
    base, weights = output(model, inputs), {name: value.clone() for name, value in model.state_dict().items()}
    undo = [*act(model, read_lora(path), 0.5), *act(model, read_lora(path), 0.25)]
    assert (output(model, inputs) - output(merged(path, 0.75), inputs)).abs().max() < 2e-5
    assert (output(model, inputs) - base).abs().max() > 0.05
    for name, value in model.state_dict().items():
        if ".".join(name.split(".")[:-1]) in MODULES:
            assert torch.equal(value, weights[name]), "a linear of a block keeps its weight and bias"
    for one in reversed(undo):
        one()
    assert model.state_dict().keys() == weights.keys()
    assert all(torch.equal(value, weights[name]) for name, value in model.state_dict().items())
    assert torch.equal(output(model, inputs), base)
    assert not any("forward" in module.__dict__ or "unread" in module.__dict__ for module in model.modules())


@pytest.mark.parametrize("recompute", [False, True])
def test_what_is_trained_over_it_learns_as_over_a_merged_base(recompute: bool, tmp_path: Path) -> None:
    path = distilled(tmp_path / "lora.safetensors")
    ours, inputs = golden_model()
    act(ours, read_lora(path))
    gradients = []
    for model in (ours, merged(path, 1.0)):
        inject_lora(model, LoraConfig(rank=4), seed=5)
        for number, value in enumerate(adapter_parameters(model).values()):
            value.data += 0.02 * torch.randn(value.shape, generator=torch.Generator().manual_seed(number))
        model.checkpoint_blocks = recompute
        model(*inputs).square().mean().backward()
        assert [name for name, value in model.named_parameters() if value.requires_grad] == [
            name for name, value in model.named_parameters() if ".lora_" in name
        ]
        gradients.append({name: value.grad for name, value in adapter_parameters(model).items()})
    scale = max(value.abs().max() for value in gradients[1].values())
    for name, value in gradients[1].items():
        assert (gradients[0][name] - value).abs().max() < 1e-5 * scale, name


def test_a_packed_base_stays_as_it_is(tmp_path: Path) -> None:
    model, inputs = golden_model()
    for number, block in enumerate(model.blocks):
        quantize_block(block, f"blocks.{number}", QuantizeConfig(scheme="int8"))
    base = output(model, inputs)
    packed = {name: value.clone() for name, value in model.named_parameters() if value.dtype == torch.int8}
    assert packed
    act(model, read_lora(write_format("c: lora_unet_", tmp_path / "lora.safetensors")))
    plain, _ = golden_model()
    moved = output(model, inputs) - base
    wanted = expected("") - output(plain, inputs)
    assert (moved - wanted).abs().max() < 0.05 * wanted.abs().max()
    assert all(torch.equal(value, packed[name]) for name, value in model.named_parameters() if name in packed)


def test_a_file_for_another_model_is_refused_before_a_weight_is_read(tmp_path: Path) -> None:
    model, _ = golden_model()
    write_format("c: lora_unet_", tmp_path / "lora.safetensors")
    with torch.device("meta"):
        other = WanTransformer(model.shape.__class__(**{**model.shape.to_dict(), "dim": 256, "ffn_dim": 64}))
    with pytest.raises(CheckpointError, match=r"lora\.safetensors was trained for a model of another size: blocks\.0"):
        check_frozen(read_lora(tmp_path / "lora.safetensors"), other, 2)
    save_file({"diffusion_model.blocks.7.ffn.0.diff": torch.zeros(2, 2)}, tmp_path / "far.safetensors")
    with pytest.raises(CheckpointError, match=r"far\.safetensors does not match any part of this model"):
        check_frozen(read_lora(tmp_path / "far.safetensors"), model, 2)
    tensors = {
        f"diffusion_model.blocks.0.ffn.0.{part}": torch.ones(4, 4) for part in ("lora_A.weight", "lora_B.weight")
    }
    save_file(tensors | {"diffusion_model.blocks.0.ffn.0.dora_scale": torch.ones(4, 1)}, tmp_path / "dora.safetensors")
    with pytest.raises(CheckpointError, match=r"is a DoRA, .*, which needs changed base weights"):
        check_frozen(read_lora(tmp_path / "dora.safetensors"), model, 2)


# ---- files that fit in part, and files of both experts ------------------------------------------

FFN = "diffusion_model.blocks.0.ffn.0"


def with_strangers(path: Path) -> Path:
    """The plain LoRA and what people's files hold besides: a text encoder, a modulation, parts of other channels."""
    tensors = load_file(write_format("a: diffusion_model, lora_A, alpha", path))
    save_file(
        {
            **tensors,
            "lora_te1_text_model_encoder_layers_0_mlp_fc1.lora_down.weight": torch.ones(4, 8),
            "text_encoder.layer.q.lora_A.weight": torch.ones(4, 8),
            "diffusion_model.blocks.0.diff_m": torch.ones(1, 6, 128),
            "diffusion_model.patch_embedding.lora_A.weight": torch.ones(4, 20 * 4),
            "diffusion_model.patch_embedding.lora_B.weight": torch.ones(128, 4),
            "diffusion_model.blocks.1.norm3.diff": torch.ones(7),
            "diffusion_model.blocks.9.ffn.0.diff_b": torch.ones(7),
        },
        path,
    )
    return path


@pytest.mark.parametrize(
    ("added", "says"),
    [
        ({"lora_te_fc1.lora_down.weight": torch.ones(4, 4)}, "adapts a text encoder too .1 keys, .* lora_te_fc1"),
        ({"text_encoder.a.q.lora_A.weight": torch.ones(4, 4)}, "a text encoder too .1 keys, .* text_encoder.a.q"),
        ({"text_encoder_2.a.q.lora_A.weight": torch.ones(4, 4)}, "adapts a text encoder too .1 keys"),
        ({"text_encoders.umt5xxl.a.q.lora_B.weight": torch.ones(4, 4)}, "adapts a text encoder too .1 keys"),
        ({"diffusion_model.blocks.0.diff_m": torch.ones(4)}, "blocks.0.diff_m. is not the key of a Wan LoRA"),
        (
            {f"{FFN}.lora_A.weight": torch.ones(4, 4, dtype=torch.int8)},
            "ffn.0.lora_A.weight is stored as I8",
        ),
        (
            {
                "diffusion_model.patch_embedding.lora_A.weight": torch.ones(4, 144),
                "diffusion_model.patch_embedding.lora_B.weight": torch.ones(56, 4),
            },
            "patch_embedding is .56, 144. there and .56, 16, 1, 2, 2. here.*set only_what_fits",
        ),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_named(added: dict[str, Tensor], says: str, tmp_path: Path) -> None:
    model, _ = golden_model()
    file = write_format("a: diffusion_model, lora_A, alpha", tmp_path / "lora.safetensors")
    save_file({**load_file(file), **added}, file)
    with pytest.raises(CheckpointError, match=says):
        check_frozen(read_lora(file), model, 4)


def test_what_fits_is_used_when_that_is_asked_for(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model, inputs = golden_model()
    file = with_strangers(tmp_path / "lora.safetensors")
    with caplog.at_level("WARNING"):
        act(model, read_frozen(file, FrozenLora(only_what_fits=True), model, None))
    assert (output(model, inputs) - expected("")).abs().max() < 3e-5
    (said,) = caplog.messages
    assert "lora.safetensors: 6 of its 26 parts do not fit this model and are left out (" in said
    for name in (
        "lora_te1_text_model",
        "text_encoder.layer.q",
        "blocks.0.diff_m",
        "patch_embedding",
        "blocks.1.norm3",
        "blocks.9.ffn.0",
    ):
        assert name in said
    alone = tmp_path / "alone.safetensors"
    save_file({"diffusion_model.blocks.0.ffn.0.diff": torch.ones(2, 2)}, alone)
    with pytest.raises(CheckpointError, match="even with only_what_fits: it was trained for a model of ano"):
        read_frozen(alone, FrozenLora(only_what_fits=True), model, None)
    save_file({f"{FFN}.dora_scale": torch.ones(4, 1), f"{FFN}.lora_A.weight": torch.ones(4, 4)}, alone)
    with pytest.raises(CheckpointError, match="even with only_what_fits: it is a DoRA"):
        read_frozen(alone, FrozenLora(only_what_fits=True), model, None)


@pytest.mark.parametrize("prefixes", [("transformer.", "transformer_2."), ("pipe.dit.", "pipe.dit2.")])
def test_of_a_file_with_both_experts_each_takes_its_own_half(prefixes: tuple[str, str], tmp_path: Path) -> None:
    high = load_file(write_format("e: transformer, original names", tmp_path / "high.safetensors"))
    high = {name.replace("transformer.", prefixes[0]): value for name, value in high.items()}
    low = {name.replace(prefixes[0], prefixes[1]): torch.zeros_like(value) for name, value in high.items()}
    file = tmp_path / "both.safetensors"
    save_file({**high, **low}, file)
    assert holds_both_experts(file)
    assert not holds_both_experts(tmp_path / "high.safetensors")
    model, inputs = golden_model()
    plain = output(model, inputs)
    for expert, wanted in (("high_noise", expected("")), ("low_noise", plain)):
        undo = act(model, read_frozen(file, FrozenLora(), model, expert))
        assert (output(model, inputs) - wanted).abs().max() < 3e-5
        for one in reversed(undo):
            one()
    assert (expected("") - plain).abs().max() > 0.1
    with pytest.raises(CheckpointError, match=r"holds the LoRAs of both experts of a Wan 2\.2 pair"):
        read_lora(file)
