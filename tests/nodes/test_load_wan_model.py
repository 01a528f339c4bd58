"""Load Wan Model (Training): what it lists, what it says about a model, and how a pair becomes one run."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from comfy_server import ComfyServer
from safetensors.torch import save_file
from world import tiny_graph

from tests.support.cards import AMPERE, GTX_1660, T4, put_in
from tests.support.containers import cast, weights, write_folder, write_gguf, write_scaled_fp8
from tests.support.tiny_run import TINY_VACE, random_weights

pytestmark = pytest.mark.comfy


@pytest.fixture
def models(pack_nodes: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty models/diffusion_models that the nodes of this process look into."""
    import folder_paths

    entry = ([str(tmp_path)], folder_paths.supported_pt_extensions)
    monkeypatch.setitem(folder_paths.folder_names_and_paths, "diffusion_models", entry)
    folder_paths.filename_list_cache.pop("diffusion_models", None)
    yield tmp_path
    folder_paths.filename_list_cache.pop("diffusion_models", None)


def load(pack_nodes: dict[str, Any], **inputs: Any) -> tuple[Any, str]:
    handle, info = pack_nodes["LoadWanModel"].execute(device="cpu", **inputs).result
    return handle, info


def listed(pack_nodes: dict[str, Any]) -> list[str]:
    return pack_nodes["LoadWanModel"].GET_NODE_INFO_V1()["input"]["optional"]["diffusion_model"][1]["options"]


def test_a_distilled_base_is_named_with_what_fits_it(pack_nodes: dict[str, Any], models: Path) -> None:
    whole = cast(weights(), torch.bfloat16)
    save_file(whole, models / "Wan2.1_T2V_lightx2v_cfg_step_distill.safetensors")
    save_file(whole, models / "mine.safetensors", metadata={"modelspec.title": "FastWan T2V"})
    save_file(whole, models / "plain_16steps.safetensors")
    said = {name: load(pack_nodes, diffusion_model=name)[1] for name in listed(pack_nodes)}
    marks = {name: re.findall(r'few steps \("(.+?)"', info) for name, info in said.items()}
    assert marks == {
        "Wan2.1_T2V_lightx2v_cfg_step_distill.safetensors": ["lightx2v"],
        "mine.safetensors": ["fastwan"],
        "plain_16steps.safetensors": [],
    }


def test_files_folders_and_ggufs_are_listed_once_each(pack_nodes: dict[str, Any], models: Path) -> None:
    whole = cast(weights(), torch.bfloat16)
    save_file(whole, models / "single.safetensors")
    (models / "quantized.gguf").write_bytes(b"GGUF")
    write_folder(models / "sharded", whole, shards=2)
    write_folder(models / "pipeline" / "transformer", whole)
    write_folder(models / "pair" / "transformer", whole, shards=2)
    write_folder(models / "pair" / "transformer_2", whole, shards=2)
    write_folder(models / "official" / "high_noise_model", whole, shards=2)
    assert listed(pack_nodes) == [
        str(Path("official/high_noise_model")),
        "pair",
        str(Path("pair/transformer_2")),
        "pipeline",
        "quantized.gguf",
        "sharded",
        "single.safetensors",
    ]
    for name in ("pair", "pipeline", "sharded", "single.safetensors"):
        assert load(pack_nodes, diffusion_model=name)[0].variant.family.task == "t2v"


def test_the_info_names_the_guess_what_else_it_could_be_and_how_it_is_stored(
    pack_nodes: dict[str, Any], models: Path
) -> None:
    write_scaled_fp8(models / "wan_high_noise.safetensors", weights())
    handle, info = load(pack_nodes, diffusion_model="wan_high_noise.safetensors")
    assert "Wan 2.2 T2V-256 wide high noise" in info
    assert "stored as BF16, F8_E4M3 (scaled_fp8)" in info
    assert "computes in bfloat16" in info
    assert handle.quantization == "scaled_fp8"


def test_an_fp32_file_is_computed_in_bf16_on_a_gpu_and_the_info_says_so(
    pack_nodes: dict[str, Any], models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_file(weights(), models / "wan.safetensors")
    put_in(monkeypatch, AMPERE)
    handle, info = pack_nodes["LoadWanModel"].execute(diffusion_model="wan.safetensors").result
    assert (handle.plan.base_precision, handle.compute_dtype) == ("bf16", torch.bfloat16)
    assert "computes in bfloat16" in info
    assert "The file is fp32 and is computed in bf16" in info
    assert "set base_precision to fp32" in info
    assert handle.base_precision == "as in file", "by which a run that began on another card is found"
    asked, info = pack_nodes["LoadWanModel"].execute(diffusion_model="wan.safetensors", base_precision="fp32").result
    assert (asked.plan.base_precision, asked.compute_dtype) == ("fp32", torch.float32)
    assert "is computed in bf16" not in info


@pytest.mark.parametrize(("card", "compute"), [(T4, torch.float16), (GTX_1660, torch.float32)])
def test_on_a_card_without_bf16_the_model_computes_in_what_it_has_and_the_info_says_so(
    pack_nodes: dict[str, Any], models: Path, monkeypatch: pytest.MonkeyPatch, card: Any, compute: torch.dtype
) -> None:
    save_file(cast(weights(), torch.float16), models / "wan.safetensors")
    put_in(monkeypatch, card)
    node = pack_nodes["LoadWanModel"]
    handle, info = node.execute(diffusion_model="wan.safetensors").result
    assert (handle.compute_dtype, handle.plan.base_precision) == (compute, "as in file")
    assert f"{card.name} (compute capability 7.5) has no native bf16, so new runs compute in" in info
    handle, info = node.execute(diffusion_model="wan.safetensors", base_precision="bf16").result
    assert handle.compute_dtype == torch.bfloat16, "it was asked for"
    assert "torch emulates it slowly" in info
    monkeypatch.setattr(torch.cuda, "get_arch_list", lambda: ["sm_80", "sm_90"])
    with pytest.raises(
        Exception, match=r"has no code for .* it was built for sm_80, sm_90\. Install a torch built for"
    ):
        node.execute(diffusion_model="wan.safetensors")


@pytest.mark.soak  # the node, the choice and a run of it are seen apart in CI
def test_a_graph_queued_where_there_is_no_bf16_trains_in_fp16(
    own_comfy: Callable[..., ComfyServer], repo: Path
) -> None:
    comfy = own_comfy(env={"WAN_TRAINER_CARD_CAPABILITY": "7.5"})
    graph = json.loads((repo / "workflows" / "api" / "08_smoke_test.json").read_text(encoding="utf-8"))
    queued = tiny_graph(graph, TrainLoRA={"steps": 2, "save_every_n_steps": 2, "preview_every_n_steps": 2})
    comfy.run(queued)
    (folder,) = (file.parent for file in (comfy.base / "output" / "wan_trainer").glob("*/run.json"))
    run, status = (json.loads((folder / name).read_text(encoding="utf-8")) for name in ("run.json", "status.json"))
    assert (run["model"]["base_precision"], run["model"]["compute"]) == ("as in file", "fp16")
    assert (run["train"]["loss_scaling"], status["state"], status["step"]) == ("dynamic", "done", 2)
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    assert all(math.isfinite(line["loss"]) for line in lines if line.get("event") == "step_done")


def test_the_info_says_what_the_weights_take_once_loaded(pack_nodes: dict[str, Any], models: Path) -> None:
    save_file(cast(weights(), torch.bfloat16), models / "wan.safetensors")
    values = sum(value.numel() for value in weights().values())
    plain = load(pack_nodes, diffusion_model="wan.safetensors")[1]
    said = re.search(r"weights take (\S+) GiB once loaded", plain)
    assert said is not None
    assert 2 * values < float(said[1]) * 2**30 < 2.2 * values, "bfloat16, norms and modulation in float32"
    write_gguf(models / "wan.gguf", weights(), "Q4_0")
    packed = load(pack_nodes, diffusion_model="wan.gguf")[1]
    said = re.search(r"weights take (\S+) GiB once loaded", packed)
    assert said is not None
    file = f"{(models / 'wan.gguf').stat().st_size / 2**30:.3g}"
    assert float(said[1]) <= 1.1 * float(file), "as small as the file"
    info = load(pack_nodes, diffusion_model="wan.gguf", base_precision="bf16")[1]
    said = re.search(rf"Q4_0 is dequantized: weights take (\S+) GiB once loaded, the file has {file} GiB", info)
    assert said is not None
    assert 2 * values < float(said[1]) * 2**30 < 3 * values, (
        "that file keeps a few linears outside the blocks in float32"
    )


def test_a_pair_is_told_with_both_files_and_swapped_ones_are_refused(pack_nodes: dict[str, Any], models: Path) -> None:
    for name in ("high_noise", "low_noise"):
        save_file(cast(weights(), torch.bfloat16), models / f"{name}.safetensors")
    handle, info = load(pack_nodes, diffusion_model="high_noise.safetensors", low_noise_model="low_noise.safetensors")
    assert "high noise" in info
    assert "low noise" in info
    assert "high noise and low noise" in repr(handle)
    with pytest.raises(Exception, match="swapped"):
        load(pack_nodes, diffusion_model="low_noise.safetensors", low_noise_model="high_noise.safetensors")
    with pytest.raises(Exception, match="are both high_noise"):
        load(pack_nodes, diffusion_model="high_noise.safetensors", low_noise_model="high_noise.safetensors")


def test_the_card_is_told_the_shift_that_0_stands_for(pack_nodes: dict[str, Any], models: Path) -> None:
    told: dict[str, tuple[float, str | None]] = {}
    for name in ("wan", "high_noise", "low_noise"):
        save_file(cast(weights(), torch.bfloat16), models / f"{name}.safetensors")
        output = pack_nodes["LoadWanModel"].execute(device="cpu", diffusion_model=f"{name}.safetensors")
        (facts,) = output.ui["wan_model"]
        told[name] = facts["training_shift"], facts["expert"]
    assert told == {"wan": (3.0, None), "high_noise": (12.0, "high_noise"), "low_noise": (12.0, "low_noise")}


def test_the_graph_runs_again_when_a_shard_changes(pack_nodes: dict[str, Any], models: Path) -> None:
    node, folder = pack_nodes["LoadWanModel"], write_folder(models / "sharded", weights(), shards=2)
    before = node.fingerprint_inputs(diffusion_model="sharded")
    part = folder / "diffusion_pytorch_model-00001-of-00002.safetensors"
    part.write_bytes(part.read_bytes() + b" ")
    assert node.fingerprint_inputs(diffusion_model="sharded") != before
    assert str(models) not in str(before)


def test_fp8_quantize_leaves_an_fp8_file_as_it_is_unless_another_precision_is_asked_for(
    pack_nodes: dict[str, Any], models: Path
) -> None:
    write_scaled_fp8(models / "wan.safetensors", weights())
    quantize = pack_nodes["Fp8Quantize"]
    stored, _ = load(pack_nodes, diffusion_model="wan.safetensors")
    passed = quantize.execute(stored, scheme="int8")
    assert passed.result[0] is stored
    assert "does not change it" in passed.ui["text"][0]
    wide, _ = load(pack_nodes, diffusion_model="wan.safetensors", base_precision="bf16")
    assert quantize.execute(wide, scheme="int8").result[0].plan.quantize.scheme == "int8"


def test_both_streams_of_vace_are_quantized(pack_nodes: dict[str, Any], models: Path) -> None:
    save_file(random_weights(TINY_VACE), models / "vace.safetensors")
    save_file(random_weights(), models / "wan.safetensors")
    quantize = pack_nodes["Fp8Quantize"]
    handle = quantize.execute(load(pack_nodes, diffusion_model="vace.safetensors")[0]).result[0]
    assert handle.plan.quantize.vace_blocks
    handle = quantize.execute(load(pack_nodes, diffusion_model="wan.safetensors")[0]).result[0]
    assert not handle.plan.quantize.vace_blocks


def test_the_attention_kernel_is_the_one_named_or_refused_with_the_reason(
    pack_nodes: dict[str, Any], models: Path
) -> None:
    save_file(cast(weights(), torch.bfloat16), models / "single.safetensors")
    handle, _ = load(pack_nodes, diffusion_model="single.safetensors", attention="sdpa_math")
    assert handle.plan.attention == "sdpa_math"
    with pytest.raises(ValueError, match="no backward pass"):
        load(pack_nodes, diffusion_model="single.safetensors", attention="sageattn")
    with pytest.raises(ValueError, match=r'attention "sdpa_maths" is unknown\. Did you mean'):
        load(pack_nodes, diffusion_model="single.safetensors", attention="sdpa_maths")


def test_a_missing_file_is_answered_with_the_nearest_of_the_same_model(
    pack_nodes: dict[str, Any], models: Path
) -> None:
    for name in ("wan2.1_i2v_14B_bf16", "wan2.2_t2v_14B_bf16", "wan2.1_t2v_1.3B_bf16"):
        (models / f"{name}.safetensors").touch()
    for asked, nearest in (
        ("wan2.1_t2v_1.3B_fp16", True),
        ("Wan2_1_t2v_1_3B_bf16", True),
        ("wan2.1_t2v_14B_bf16", False),
    ):
        with pytest.raises(ValueError, match="is not a choice") as refused:
            load(pack_nodes, diffusion_model=f"{asked}.safetensors")
        assert ('Did you mean "wan2.1_t2v_1.3B_bf16.safetensors"?' in str(refused.value)) is nearest
        assert ("Did you mean" in str(refused.value)) is nearest


def test_a_misspelt_scheme_is_answered_with_the_nearest(pack_nodes: dict[str, Any], models: Path) -> None:
    save_file(cast(weights(), torch.bfloat16), models / "single.safetensors")
    handle, _ = load(pack_nodes, diffusion_model="single.safetensors")
    with pytest.raises(ValueError, match="int8"):
        pack_nodes["Fp8Quantize"].execute(handle, scheme="int88")
