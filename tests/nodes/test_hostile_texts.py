"""Whatever text is typed into a node: the queue lives on, one sentence says what is wrong, and the log stays a log."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from executor import Executor, Outcome
from hostile_paths import HOSTILE_PATHS
from route_server import our_module, write_run
from safetensors.torch import save_file

from tests.support.containers import cast, weights

pytestmark = pytest.mark.comfy

MODEL = "wan.safetensors"
TYPED = {"STRING", "COMBO"}
SURROGATES = ["\ud83d", "a cut emoji \ud83d", "\udc80.safetensors", "1, \ud83d", "[\ud83d-a]", "(?P<\udfff>x)"]
FORGED = [
    "x\n[INFO] FORGED", "x\r[INFO] FORGED", "\x1b[2J", "\x1b]0;FORGED\x07", "\x9b31m", "a\x85FORGED", "\u2028FORGED",
    "\u202egpj.exe", "\u2066x", "\x00", "\x7f", "[z\n-a]", "(?P<\x1b>x)", "1,\x1b[2J", "input:\n", "blocks\x08",
]  # fmt: skip
BROKEN = [*SURROGATES, *FORGED]
UNSEEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


@pytest.fixture
def base(pack_nodes: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folders of a ComfyUI with one tiny model and a dataset."""
    import folder_paths

    base = tmp_path / "base"
    places = ("input", "output", "temp", "user")
    for name in (*places, "models/diffusion_models", "models/loras", "input/clips", "input/shards"):
        (base / name).mkdir(parents=True)
    for name in places:
        monkeypatch.setattr(folder_paths, f"{name}_directory", str(base / name))
    kinds = ("diffusion_models", "loras", "vae", "text_encoders")
    for kind in kinds:
        entry = ([str(base / "models" / kind)], folder_paths.supported_pt_extensions)
        monkeypatch.setitem(folder_paths.folder_names_and_paths, kind, entry)
        folder_paths.filename_list_cache.pop(kind, None)
    save_file(cast(weights(), torch.bfloat16), base / "models" / "diffusion_models" / MODEL)
    (base / "input" / "list.csv").write_text("path,caption\nclips/none.mp4,nothing\n", encoding="utf-8")
    yield base
    for kind in kinds:
        folder_paths.filename_list_cache.pop(kind, None)


@pytest.fixture
def queue(pack_nodes: dict[str, Any], base: Path, monkeypatch: pytest.MonkeyPatch) -> Executor:
    """What is on the wires trains nothing and encodes nothing."""
    queue = Executor(pack_nodes, monkeypatch.setitem)
    monkeypatch.setattr(our_module(pack_nodes, "bridge.progress"), "_server", lambda: queue.server)

    def far_enough(*_: Any) -> Any:
        raise our_module(pack_nodes, "engine.session").TrainingError("far enough")

    def far_enough_after(**_: Any) -> Any:
        return far_enough()

    validate = our_module(pack_nodes, "validate_video")
    monkeypatch.setattr(our_module(pack_nodes, "train_lora"), "QueuedTraining", far_enough)
    monkeypatch.setattr(our_module(pack_nodes, "wan_preview_settings"), "encoder_identity", far_enough)
    monkeypatch.setattr(our_module(pack_nodes, "cache_latents"), "encoder_identity", lambda *_: "0" * 64)
    for name in ("trained_variant", "encoder_identity", "ComfyVae", "encode_start_images"):
        monkeypatch.setattr(validate, name, lambda *_: SimpleNamespace(latents=None))
    monkeypatch.setattr(our_module(pack_nodes, "bridge.folders").LatentCache, "read_set", lambda *_: None)
    monkeypatch.setattr(validate, "SampleJob", far_enough_after)
    model = pack_nodes["LoadWanModel"].execute(device="cpu", diffusion_model=MODEL).result[0]
    run = our_module(pack_nodes, "bridge.types").RunHandle(write_run(base / "output" / "wan_trainer"), 4, 16.0)
    cache = SimpleNamespace(fingerprint="0" * 64, cache_set=SimpleNamespace(items=[1]), prompt_id="", report=None)
    queue.wires |= {
        "model": model,
        "run": run,
        "cache": cache,
        "none": None,
        "dataset": SimpleNamespace(
            require_captions=lambda: None,
            kind=SimpleNamespace(vision=False),
            parts=(
                SimpleNamespace(
                    config=SimpleNamespace(size_multiple=16, caption_extension=".txt"), samples=(), rejected=()
                ),
            ),
        ),
        "images": torch.zeros(5, 48, 48, 3),
    }
    return queue


WIRES = {
    "WanPrecisionPolicy": ("model",),
    "Fp8Quantize": ("model",),
    "SplitAcrossGPUs": ("model",),
    "WanVideoDataset": ("model",),
    "WanDatasetFromFile": ("model",),
    "WanDatasetFromImages": ("model", "images"),
    "WanSliderPrompts": ("model",),
    "WanClipFrames": ("dataset",),
    "WanSaveCaptions": ("dataset",),
    "WanSyntheticDataset": ("model",),
    "CacheLatents": ("dataset",),
    "TrainLoRA": ("model", "cache"),
    "ValidateVideo": ("run",),
    "ApplyWanLoRA": ("run",),
}
USUAL: dict[str, dict[str, Any]] = {
    "LoadWanModel": {"device": "cpu", "diffusion_model": MODEL},
    "WanVideoDataset": {"folder": "clips"},
    "WanDatasetFromFile": {"file": "list.csv"},
    "WanDatasetFromImages": {"num_frames": 5, "width": 48, "height": 48, "captions": "a"},
    "WanPreviewSettings": {"clip": ("wire", "none")},
    "ValidateVideo": {"vae": ("wire", "none")},
    "ApplyWanLoRA": {"model": ("wire", "none")},
    "CacheLatents": {"vae": ("wire", "none"), "clip": ("wire", "none")},
}


def usual(kind: str) -> dict[str, Any]:
    return {**USUAL.get(kind, {}), **{name: ("wire", name) for name in WIRES.get(kind, ())}}


def typed_inputs(pack_nodes: dict[str, Any]) -> list[tuple[str, str]]:
    """(node, input) of everything that takes a text, a name of a file or one of a list."""
    found = []
    for kind, node in pack_nodes.items():
        inputs = node.GET_NODE_INFO_V1()["input"]
        both = {**inputs.get("required", {}), **inputs.get("optional", {})}
        found += [(kind, name) for name, spec in both.items() if spec[0] in TYPED]
    return found


def assert_lives(outcome: Outcome, where: str) -> None:
    """What was said and printed is text of one line each, without anything that is not seen as itself."""
    for said in outcome.said:
        assert not UNSEEN.search(said), f"{where}: {said!a}"
        assert "\n" not in said.strip(), f"{where}: {said!a}"
        assert len(said) < 2000, f"{where}: {len(said)} characters"
    assert not UNSEEN.search(outcome.printed), f"{where}: {outcome.printed[-2000:]!a}"
    assert not re.search("^(\\[INFO\\] )?FORGED", outcome.printed, re.MULTILINE), f"{where}: {outcome.printed[-900:]!a}"


def test_no_text_ends_the_queue_or_forges_the_log(queue: Executor, pack_nodes: dict[str, Any]) -> None:
    """Each input takes a sixth of the texts, its neighbours in the list the others."""
    inputs = typed_inputs(pack_nodes)
    for number, (kind, name) in enumerate(inputs):
        for text in BROKEN[number % 6 :: 6]:
            outcome = queue.run(kind, {**usual(kind), name: text})
            assert_lives(outcome, f"{kind}.{name} {text!a}")
            if text in SURROGATES:
                assert not outcome.done, f"{kind}.{name} took {text!a}"
    assert len(inputs) > 55


@pytest.mark.soak
def test_no_text_of_the_long_list_either(queue: Executor, pack_nodes: dict[str, Any]) -> None:
    for kind, name in typed_inputs(pack_nodes):
        for text in [*BROKEN, *HOSTILE_PATHS]:
            outcome = queue.run(kind, {**usual(kind), name: text})
            assert_lives(outcome, f"{kind}.{name} {text!a}")
            if text in SURROGATES:
                assert not outcome.done, f"{kind}.{name} took {text!a}"


def test_a_value_where_an_output_belongs_is_refused_by_a_sentence(queue: Executor, pack_nodes: dict[str, Any]) -> None:
    sockets = 0
    for kind, node in pack_nodes.items():
        inputs = {"optional": {}, "required": {}, **node.GET_NODE_INFO_V1()["input"]}
        given = {name: ("wire", "none") for name in inputs["required"]} | usual(kind)
        for name, spec in (inputs["required"] | inputs["optional"]).items():
            if spec[0] in {*TYPED, "INT", "FLOAT", "BOOLEAN"}:
                continue
            sockets += 1
            for value in ("\x1b[2J", 7):
                outcome = queue.run(kind, {**given, name: value})
                assert_lives(outcome, f"{kind}.{name} {value!r}")
                assert [said for said in outcome.said if f"{name} takes the output of a node, not {value!r}" in said]
    assert sockets >= 30


@pytest.mark.parametrize("value", [7, None, {"a": 1}])
def test_a_kernel_that_is_no_text_is_refused_by_a_sentence(
    queue: Executor, pack_nodes: dict[str, Any], value: Any
) -> None:
    given = {**usual("LoadWanModel"), "attention": value}
    outcome = queue.run("LoadWanModel", given)
    if outcome.refused:  # a ComfyUI (0.10 on) that checks choices itself says so in its own words
        (error,) = outcome.refused["node_errors"]["1"]["errors"]
        assert (error["type"], error["extra_info"]["input_name"]) == ("value_not_in_list", "attention")
    else:
        assert [said for said in outcome.said if str(value) in said], outcome.said
        assert not any("has no attribute" in said for said in outcome.said)
    with pytest.raises(our_module(pack_nodes, "engine.session").WanTrainerError, match=re.escape(str(value))):
        pack_nodes["LoadWanModel"].execute(**given)


def test_everything_that_is_missing_is_said_when_the_graph_is_queued(queue: Executor, base: Path) -> None:
    """A model that is not there was found only on the next try, after folder, VAE and CLIP were."""
    outcome = queue.run("LoadWanModel", {"diffusion_model": "wan2.1_t2v_1.3B_bf16.safetensors"})
    (error,) = outcome.refused["node_errors"]["1"]["errors"]
    assert (
        'diffusion_model "wan2.1_t2v_1.3B_bf16.safetensors" is not a choice: models/diffusion_models has'
        in error["details"]
    )
    (base / "models" / "diffusion_models" / MODEL).unlink()
    outcome = queue.run("LoadWanModel", {"diffusion_model": ""})
    (error,) = outcome.refused["node_errors"]["1"]["errors"]
    assert "models/diffusion_models holds no model. Put a Wan model there" in error["details"]
