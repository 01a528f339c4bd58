"""The LoRA file: its keys, its bytes, its way back in."""

from __future__ import annotations

import dataclasses
import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from tests.support.sessions import train_here
from tests.support.tiny_run import PLAN, make_roots, make_run
from wan_core.errors import CheckpointError, ConfigError, ExportError
from wan_core.export import LoraFile
from wan_core.files import Roots
from wan_core.load import materialize
from wan_core.lora import LoraConfig, LoraWeights, adapter_parameters, exported, inject_lora, set_strength
from wan_core.model import WanShape, WanTransformer
from wan_core.session.saving import export_lora
from wan_core.train import SaveStore, TrainConfig

pytestmark = pytest.mark.lasts(0.6)


@pytest.fixture(scope="module")
def roots(tmp_path_factory: pytest.TempPathFactory) -> Roots:
    return make_roots(tmp_path_factory.mktemp("lora"))[0]


def build(roots: Roots, config: LoraConfig, seed: int = 1) -> WanTransformer:
    return materialize(PLAN, roots, config, seed=seed)


def fill(model: WanTransformer, size: float = 0.1) -> None:
    generator = torch.Generator().manual_seed(6)
    for name, parameter in adapter_parameters(model).items():
        if name.endswith("lora_B.weight"):
            parameter.data = size * torch.randn(parameter.shape, generator=generator)


def output(model: WanTransformer) -> torch.Tensor:
    generator = torch.Generator().manual_seed(2)
    latent, text = torch.randn(1, 16, 2, 4, 6, generator=generator), torch.zeros(1, 512, 4096)
    text[:, :9] = torch.randn(1, 9, 4096, generator=generator)
    with torch.no_grad():
        return model.train(False)(latent, torch.tensor([700.0]), text)


def file_of(model: WanTransformer, dtype: str = "fp32") -> LoraFile:
    return LoraFile(parts=exported(model), dtype=dtype, metadata={"b": "2", "a": "1"})


# ---- adapters -----------------------------------------------------------------------------------


def test_a_fresh_lora_changes_nothing_and_strength_scales_it(roots: Roots) -> None:
    config = LoraConfig(rank=4, alpha=8.0)
    base = output(materialize(PLAN, roots, None))
    model = build(roots, config)
    assert torch.equal(output(model), base)
    fill(model)
    full = output(model)
    assert not torch.equal(full, base)
    set_strength(model, 0.0)
    torch.testing.assert_close(output(model), base, rtol=0, atol=0)
    set_strength(model, 1.0)
    assert torch.equal(output(model), full)


def test_the_start_depends_on_seed_and_name_alone(roots: Roots) -> None:
    wide = adapter_parameters(build(roots, LoraConfig(rank=4)))
    narrow = adapter_parameters(build(roots, LoraConfig(rank=4, targets=(r"blocks\.1\.ffn\.0",))))
    other = adapter_parameters(build(roots, LoraConfig(rank=4), seed=2))
    name = "blocks.1.ffn.0.lora_A.weight"
    assert set(narrow) == {name, name.replace("lora_A", "lora_B")}
    assert torch.equal(narrow[name], wide[name])
    assert not torch.equal(other[name], wide[name])
    assert not torch.equal(wide[name], wide[name.replace("blocks.1", "blocks.0")])
    bound = 1 / math.sqrt(wide[name].shape[1])
    assert 0.9 * bound < float(wide[name].detach().abs().max()) <= bound


def test_targets_match_whole_names_and_none_is_refused(roots: Roots) -> None:
    with pytest.raises(ConfigError, match=r"No linear of the model matches the LoRA targets \['ffn'\]\. Example"):
        build(roots, LoraConfig(targets=("ffn",)))


def test_targets_that_also_match_what_is_no_linear_adapt_the_linears() -> None:
    """blocks.0.ffn.1 is a GELU, which PEFT does not wrap."""
    with torch.device("meta"):
        model = WanTransformer(WanShape(dim=56, ffn_dim=64, num_heads=2, num_layers=2, text_dim=32))
    assert inject_lora(model, LoraConfig(targets=(r"blocks\.1\.ffn.*",)), seed=0) == [
        "blocks.1.ffn.0",
        "blocks.1.ffn.2",
    ]


def test_image_keys_and_values_are_adapted_where_the_model_has_them_and_vace_layers_when_asked() -> None:
    size = {"dim": 56, "ffn_dim": 64, "num_heads": 2, "num_layers": 2, "text_dim": 32}
    with torch.device("meta"):
        i2v, vace = WanTransformer(WanShape(**size, image_dim=20)), WanTransformer(WanShape(**size, vace_layers=(1,)))
    found = inject_lora(i2v, LoraConfig(), seed=0)
    assert len(found) == 24
    assert {name for name in found if name.endswith("_img")} == {
        f"blocks.{block}.cross_attn.{part}" for block in range(2) for part in ("k_img", "v_img")
    }
    asked = LoraConfig(targets=(r"(vace_)?blocks\.\d+\.ffn\.(0|2)", r"vace_blocks\.\d+\.(before|after)_proj"))
    assert {name for name in inject_lora(vace, asked, seed=0) if name.startswith("vace")} == {
        f"vace_blocks.0.{name}" for name in ("ffn.0", "ffn.2", "before_proj", "after_proj")
    }


# ---- the file -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dtype", "stored"), [("bf16", torch.bfloat16), ("fp16", torch.float16), ("fp32", torch.float32)]
)
def test_a_file_holds_a_b_and_alpha_of_every_linear_in_the_chosen_dtype(
    tmp_path: Path, roots: Roots, dtype: str, stored: torch.dtype
) -> None:
    config = LoraConfig(rank=4, alpha=2.0)
    path = tmp_path / "lora.safetensors"
    path.write_bytes(file_of(build(roots, config), dtype).to_bytes())
    tensors = load_file(path)
    modules = [
        f"diffusion_model.blocks.{block}.{name}"
        for block in range(2)
        for name in [*(f"{a}.{p}" for a in ("self_attn", "cross_attn") for p in "qkvo"), "ffn.0", "ffn.2"]
    ]
    assert set(tensors) == {m + s for m in modules for s in (".lora_A.weight", ".lora_B.weight", ".alpha")}
    assert {t.dtype for k, t in tensors.items() if not k.endswith(".alpha")} == {stored}
    alphas = [t for k, t in tensors.items() if k.endswith(".alpha")]
    assert {(float(a), a.dtype, a.ndim) for a in alphas} == {(2.0, torch.float32, 0)}
    assert tensors["diffusion_model.blocks.0.ffn.2.lora_A.weight"].shape == (4, 256)
    assert tensors["diffusion_model.blocks.0.ffn.2.lora_B.weight"].shape == (128, 4)


def test_the_same_weights_make_the_same_bytes(roots: Roots) -> None:
    config = LoraConfig(rank=4)
    model = build(roots, config)
    first = file_of(model)
    shuffled = dataclasses.replace(first, metadata=dict(reversed(first.metadata.items())))
    assert len({first.to_bytes(), first.to_bytes(), shuffled.to_bytes()}) == 1


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_value_that_is_not_finite_is_never_written(roots: Roots, value: float) -> None:
    config = LoraConfig(rank=4)
    model = build(roots, config)
    adapter_parameters(model)["blocks.1.ffn.0.lora_B.weight"].data[3, 2] = value
    with pytest.raises(ExportError, match=r"blocks\.1\.ffn\.0\.lora_B\.weight is not finite as bf16; the file was not"):
        file_of(model, "bf16").to_bytes()


def test_a_value_too_large_for_half_precision_is_refused_there_only(roots: Roots) -> None:
    config = LoraConfig(rank=4)
    model = build(roots, config)
    adapter_parameters(model)["blocks.1.ffn.0.lora_B.weight"].data[3, 2] = 1e5
    with pytest.raises(ExportError, match="is not finite as fp16"):
        file_of(model, "fp16").to_bytes()
    file_of(model, "bf16").to_bytes()


def test_a_trained_file_says_what_it_is_under_the_names_other_tools_read(tmp_path: Path) -> None:
    train = TrainConfig(steps=2, save_every_n_steps=2, preview_every_n_steps=0, eval_items=0, learning_rate=1e-3)
    run = make_run(tmp_path, train=train, lora=LoraConfig(rank=4, alpha=2.0))
    train_here(run)
    target = tmp_path / "published.safetensors"
    assert export_lora(run.directory, None, target)[0].step == 2
    with safe_open(target, "pt") as file:
        metadata = file.metadata()
    expected = {
        "format": "pt",
        "modelspec.architecture": "wan2.1/lora",
        "modelspec.title": "tiny",
        "modelspec.timestep_range": "0,1000",
        "ss_network_dim": "4",
        "ss_network_alpha": "2.0",
        "ss_steps": "2",
        "ss_learning_rate": "0.001",
        "ss_seed": "0",
        "wan_trainer.job_id": run.config.job_id,
        "wan_trainer.base_digest": run.config.base_digest,
        "wan_trainer.base_precision": "fp32",
        "wan_trainer.base_quantization": "none",
        "wan_trainer.base_stored": "F32",
        "wan_trainer.data_fingerprint": run.config.data.fingerprint,
    }
    assert expected.items() <= metadata.items()
    assert "modelspec.trigger_phrase" not in metadata
    assert json.loads(metadata["ss_network_args"])["targets"] == list(run.config.lora.targets)
    files = export_lora(run.directory, None, tmp_path / "hub", layout="hub")[1]
    assert [file.name for file in files] == ["tiny.safetensors", "README.md"]
    with pytest.raises(CheckpointError, match=r"^Run .* has no intact saved step 7\. Choose one of: 2\.$"):
        export_lora(run.directory, 7, target)
    (run.directory / "saves" / "step-000002" / "lora.safetensors").write_bytes(b"damaged")
    for step in (None, 2):
        with pytest.raises(CheckpointError, match=r"no intact saved step.*\. Train it first, at least to"):
            export_lora(run.directory, step, target)


# ---- the way back in ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source_alpha", "alpha"),
    [
        *((0.0, 0.0), (2.0, 16.0)),
        *(pytest.param(*one, marks=pytest.mark.soak) for one in ((0.0, 1.0), (0.0, 16.0), (2.0, 0.0), (2.0, 1.0))),
    ],
)
def test_a_run_that_starts_from_a_file_starts_as_the_same_function(
    tmp_path: Path, source_alpha: float, alpha: float
) -> None:
    roots, _ = make_roots(tmp_path)
    source = LoraConfig(rank=4, alpha=source_alpha)
    model = build(roots, source)
    fill(model)
    (tmp_path / "first.safetensors").write_bytes(file_of(model).to_bytes())
    again = build(roots, LoraConfig(rank=4, alpha=alpha, start_from="loras:first.safetensors"), seed=9)
    # Folding alpha into B rounds once in float32.
    torch.testing.assert_close(output(again), output(model), rtol=0, atol=2e-5)


def test_a_higher_rank_is_refused_with_the_way_out_before_any_base_weight_is_read(tmp_path: Path) -> None:
    roots, _ = make_roots(tmp_path)
    config = LoraConfig(rank=8)
    path = tmp_path / "eight.safetensors"
    path.write_bytes(file_of(build(roots, config)).to_bytes())
    smaller, read = LoraConfig(rank=4, start_from="loras:eight.safetensors"), []
    sentence = r"^eight\.safetensors has rank 8 and this run rank 4\. Set rank to 8, or start from none\.$"
    with pytest.raises(ConfigError, match=sentence):
        materialize(PLAN, roots, smaller, on_tensor=lambda done, _total: read.append(done))
    assert read == []


def test_weights_of_another_shape_are_refused_and_nothing_is_half_loaded(tmp_path: Path) -> None:
    roots, _ = make_roots(tmp_path)
    model = build(roots, LoraConfig(rank=4))
    before = LoraWeights.of(model).tensors
    mixed = dict(before) | {"blocks.1.ffn.2.lora_B.weight": torch.zeros(128, 8)}
    with pytest.raises(CheckpointError):
        LoraWeights({name: value + 1 for name, value in mixed.items()}).load_into(model, "mixed")
    after = LoraWeights.of(model).tensors
    assert all(torch.equal(after[name], before[name]) for name in before)


def test_both_loras_of_a_pair_are_exported_each_to_a_file(tmp_path: Path) -> None:
    train = TrainConfig(steps=2, save_every_n_steps=2, preview_every_n_steps=0, eval_items=0)
    run = make_run(tmp_path, train=train)
    train_here(run)
    store = SaveStore(run.directory)
    saved = store.latest()
    assert saved is not None
    pair = replace(saved, has_low_noise=True)
    (saved.folder / "lora_low_noise.safetensors").write_bytes(saved.lora_file.read_bytes())
    names = {"w.safetensors": "w_low_noise.safetensors", "w_high_noise_1.safetensors": "w_low_noise_1.safetensors"}
    for first, second in names.items():
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(SaveStore, "latest", lambda _self: pair)
            _, files = export_lora(run.directory, None, tmp_path / first)
        assert [file.name for file in files] == [first, second]
        assert all(file.read_bytes() == saved.lora_file.read_bytes() for file in files)
    pair = replace(pair, progress={"expert_steps": [1, 1]})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SaveStore, "latest", lambda _self: pair)
        _, files = export_lora(run.directory, None, tmp_path / "w", layout="peft")
    found = [file.relative_to(tmp_path / "w").as_posix() for file in files]
    names = ("adapter_config.json", "adapter_model.safetensors")
    assert found == [f"{expert}/{name}" for expert in ("high_noise", "low_noise") for name in names]
    assert all(file.is_file() for file in files)
