"""ComfyUI gives its GPUs back to the worker: those it uses, whatever became of a preview."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from comfy_server import ComfyServer
from graphs import training_graph

pytestmark = pytest.mark.comfy

CARDS = [torch.device("cuda", index) for index in range(3)]


@pytest.fixture
def engine(pack_nodes: dict[str, Any]) -> Any:
    return sys.modules[f"{pack_nodes['TrainLoRA'].__module__.rpartition('.')[0]}.engine.session"]


def test_only_cards_that_hold_a_model_of_comfyui_are_asked_for_memory(
    engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Asking a card makes a CUDA context on it, for as long as the server lives."""
    from comfy import model_management as mm

    asked: list[torch.device] = []
    held = [SimpleNamespace(device=device) for device in (CARDS[1], torch.device("cpu"), CARDS[1])]
    monkeypatch.setattr(mm, "current_loaded_models", held)
    monkeypatch.setattr(mm, "unload_all_models", lambda: None)
    monkeypatch.setattr(mm, "free_memory", lambda _bytes, device, **_: asked.append(device))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(CARDS))
    engine.free_comfyui_memory()
    assert asked == [CARDS[1]]


def own_memory(pid: int) -> int:
    """The bytes that a process has in RAM beside pages of files."""
    lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace").splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("RssAnon:"))


@pytest.mark.skipif(sys.platform != "linux", reason="read from /proc")
@pytest.mark.lasts(5)
def test_the_text_encoder_leaves_the_memory_of_the_server_for_a_training(comfy: ComfyServer) -> None:
    graph, mib = training_graph("ram", steps=1, save_every_n_steps=1), 384
    graph["clip"]["inputs"]["ballast_mib"] = mib
    before = own_memory(comfy.pid)
    comfy.run(graph)
    assert own_memory(comfy.pid) - before < (mib << 20) // 2


class Codec:
    """A VAE that fits, or runs out of memory while it decodes."""

    def __init__(self, *, fits: bool = True) -> None:
        self._fits = fits

    def fits(self, _latent: torch.Tensor) -> bool:
        return self._fits

    def decode(self, _latent: torch.Tensor) -> torch.Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 5 GiB.")


@pytest.mark.parametrize(("fits", "freed"), [(True, ["with the error let go"]), (False, [])])
def test_a_decode_that_failed_gives_the_gpu_back_too(
    engine: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, fits: bool, freed: list[str]
) -> None:
    from safetensors.torch import save_file

    told: list[str] = []

    def free() -> None:
        told.append("with the error let go" if sys.exc_info()[0] is None else "while the error holds its tensors")

    monkeypatch.setattr(engine, "free_comfyui_memory", free)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    save_file({"latent": torch.zeros(16, 1, 4, 4)}, tmp_path / "clip.latent")
    decoder = engine.PreviewDecoder(Codec(fits=fits), tmp_path, 16.0)
    event = engine.DecodeWanted(sample_id="clip", latent_file="clip.latent", step=3)
    answer = engine._answer(event, decoder, SimpleNamespace(show=None), engine.CancelButton())
    assert told == freed
    assert ("5 GiB" in str(answer.get("error"))) is fits
