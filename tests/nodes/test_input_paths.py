"""No string typed into a node is a path out of ComfyUI's folders: every text and file input, every hostile string."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hostile_paths import HOSTILE_PATHS
from route_server import CANARY, our_module, write_run
from safetensors.torch import save_file

from tests.support.containers import cast, weights

pytestmark = pytest.mark.comfy

MODEL = "wan.safetensors"
PLACES = ("input", "output", "temp", "user")
TYPED = {"STRING", "COMBO"}
# What a process reads for itself: its own code and libraries.
LIBRARIES = tuple(
    {str(Path(place).resolve()) for place in (sys.prefix, sys.base_prefix, *filter(None, sys.path), "/usr", "/lib")}
)
# How much memory there is, and how much of it a container has: the block map of SplitAcrossGPUs says so. And where a
# child that matches an expression says what nobody reads.
MACHINE = ("/proc/meminfo", "/proc/self/cgroup", "/sys/fs/cgroup", os.devnull)
TOUCHES = {
    *("open", "os.listdir", "os.scandir", "os.mkdir", "os.remove", "os.rmdir", "os.rename", "os.link", "os.symlink"),
    *("os.truncate", "os.chmod", "os.utime", "shutil.rmtree", "shutil.copyfile", "shutil.move", "subprocess.Popen"),
}

watching: Callable[[str], None] | None = None


def _hear(event: str, values: tuple[Any, ...]) -> None:
    if watching is not None and event in TOUCHES:
        for value in values[: 2 if event in ("os.rename", "os.link", "os.symlink") else 1]:
            if isinstance(value, str | bytes | os.PathLike):
                watching(os.fsdecode(value))


@pytest.fixture(scope="module")
def ear() -> None:
    """An audit hook stays for good, so there is one, which is deaf between tests."""
    sys.addaudithook(_hear)


@pytest.fixture
def base(pack_nodes: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folders of a ComfyUI with one tiny model and a dataset, and canaries around them."""
    import folder_paths

    base = tmp_path / "base"
    for name in (*PLACES, "models/diffusion_models", "models/loras", "input/clips", "input/shards"):
        (base / name).mkdir(parents=True)
    for place in (tmp_path, base, tmp_path / "wan_trainer", tmp_path / "cat"):
        place.mkdir(exist_ok=True)
        (place / "canary.txt").write_bytes(CANARY)
        (place / "canary.mp4").write_bytes(CANARY)
    for name in PLACES:
        monkeypatch.setattr(folder_paths, f"{name}_directory", str(base / name))
    for kind in ("diffusion_models", "loras", "vae", "text_encoders"):
        entry = ([str(base / "models" / kind)], folder_paths.supported_pt_extensions)
        monkeypatch.setitem(folder_paths.folder_names_and_paths, kind, entry)
        folder_paths.filename_list_cache.pop(kind, None)
    save_file(cast(weights(), torch.bfloat16), base / "models" / "diffusion_models" / MODEL)
    (base / "input" / "list.csv").write_text("path,caption\nclips/none.mp4,nothing\n", encoding="utf-8")
    yield base
    for kind in ("diffusion_models", "loras", "vae", "text_encoders"):
        folder_paths.filename_list_cache.pop(kind, None)


@contextlib.contextmanager
def touched(base: Path) -> Iterator[set[str]]:
    """Paths outside `base` that this process opened, listed or changed."""
    global watching
    found: set[str] = set()
    inside = (str(base.resolve()), *LIBRARIES, *map(os.path.realpath, MACHINE))

    def hear(path: str) -> None:
        with contextlib.suppress(ValueError):
            real = os.path.realpath(path)
            if not real.startswith(tuple(f"{place}{os.sep}" for place in inside)) and real not in inside:
                found.add(path)

    watching = hear
    try:
        yield found
    finally:
        watching = None


def ready(pack_nodes: dict[str, Any], monkeypatch: pytest.MonkeyPatch, base: Path) -> dict[str, dict[str, Any]]:
    """What each node is given beside the string: nothing that would start a process or train."""
    trainer = our_module(pack_nodes, "train_lora")

    def no_job(_hidden: Any, _model: Any, _cache: Any, decision: Any) -> Any:
        assert decision.directory.resolve().is_relative_to(base)
        raise our_module(pack_nodes, "engine.session").TrainingError("far enough")

    monkeypatch.setattr(trainer, "QueuedTraining", no_job)
    # A refusal would import ComfyUI's server, with what that reads for itself, where no other test has.
    page = SimpleNamespace(send_sync=lambda *_: None)
    monkeypatch.setattr(our_module(pack_nodes, "bridge.progress"), "_server", lambda: page)
    model = pack_nodes["LoadWanModel"].execute(device="cpu", diffusion_model=MODEL).result[0]
    run = our_module(pack_nodes, "bridge.types").RunHandle(write_run(base / "output" / "wan_trainer"), 4, 16.0)
    monkeypatch.setattr(our_module(pack_nodes, "validate_video"), "encoder_identity", lambda *_: "0" * 64)
    clips = SimpleNamespace(items=[SimpleNamespace(context=())], kind=SimpleNamespace(in_context=False))
    cache = SimpleNamespace(fingerprint="0" * 64, cache_set=clips, prompt_id="", report=None)
    return {
        "LoadWanModel": {"device": "cpu", "diffusion_model": MODEL},
        "WanPrecisionPolicy": {"model": model},
        "Fp8Quantize": {"model": model},
        "SplitAcrossGPUs": {"model": model},
        "AddFrozenLora": {"model": model},
        "WanLoraFile": {},
        "WanVideoDataset": {"model": model, "folder": "clips"},
        "WanDatasetSettings": {},
        "WanDatasetFromFile": {"model": model, "file": "list.csv"},
        "WanSyntheticDataset": {"model": model},
        "WanTrainSettings": {},
        "WanSweepSettings": {},
        "TrainLoRA": {"model": model, "cache": cache},
        "PlanMemory": {"model": model, "cache": cache},
        "ValidateVideo": {"run": run, "vae": None},
        "ApplyWanLoRA": {"run": run, "model": None},
    }


# Their strings are captions and prompts that go to an encoder, which these tests do not load.
NO_PATHS = {"WanDatasetFromImages", "WanPreviewSettings", "WanClipFrames", "WanSaveCaptions", "WanSliderPrompts"}
NO_STRINGS = {"CacheLatents", "WanCacheFromLatents", "PrecisionAudit"}


def typed_inputs(node: Any) -> list[str]:
    """Inputs of a node that take a text, a name of a file or one of a list."""
    inputs = node.GET_NODE_INFO_V1()["input"]
    both = {**inputs.get("required", {}), **inputs.get("optional", {})}
    return [name for name, spec in both.items() if spec[0] in TYPED]


@pytest.mark.parametrize("share", [3, pytest.param(1, marks=pytest.mark.soak)])
def test_no_string_of_a_node_leads_out_of_comfyuis_folders(
    pack_nodes: dict[str, Any], base: Path, monkeypatch: pytest.MonkeyPatch, ear: None, share: int
) -> None:
    """Each input is given one of `share` of the hostile paths, the next input the next ones."""
    given = ready(pack_nodes, monkeypatch, base)
    assert {*given, *NO_PATHS, *NO_STRINGS} == set(pack_nodes), "a new node: say what it is given here"
    ours = our_module(pack_nodes, "engine.session").WanTrainerError
    graph = SimpleNamespace(get_node=lambda _node: {"inputs": {}})
    hidden = SimpleNamespace(unique_id="1", prompt={}, dynprompt=graph, extra_pnginfo=None)
    tried, inputs = 0, 0
    for kind, usual in given.items():
        node = type(kind, (pack_nodes[kind],), {"hidden": hidden})
        for name in typed_inputs(pack_nodes[kind]):
            inputs += 1
            with touched(base) as outside:
                for text in HOSTILE_PATHS[inputs % share :: share]:
                    tried += 1
                    with contextlib.suppress(ours):
                        node.execute(**{**usual, name: text})
            assert not outside, f"{kind}.{name} reached {sorted(outside)[:5]}"
    assert inputs > 40
    assert tried > inputs * (len(HOSTILE_PATHS) // share) - 1
    for canary in base.parent.rglob("canary.*"):
        assert canary.read_bytes() == CANARY


def test_a_path_that_does_lead_out_is_heard(base: Path, ear: None) -> None:
    with touched(base) as outside, contextlib.suppress(OSError):
        (base.parent / "canary.txt").read_bytes()
        os.listdir("/etc")
    assert outside == {str(base.parent / "canary.txt"), "/etc"}
