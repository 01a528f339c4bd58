"""A window of steps is profiled on request, and what is learnt stays the same."""

from __future__ import annotations

import gzip
import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.support.sessions import of, train_here
from tests.support.tiny_run import TINY, TinyRun, make_run
from wan_core.control import SignalControl
from wan_core.events import Event, Note
from wan_core.lora import LoraConfig, inject_lora
from wan_core.model import WanTransformer, scope
from wan_core.session.profiling import StepProfiler
from wan_core.train import TrainConfig


class Asking(SignalControl):
    """Is asked for a profile once, after a step."""

    asked = True

    def take(self, command: str) -> bool:
        given, self.asked = command == "profile" and self.asked, self.asked and command != "profile"
        return given


def trained(run: TinyRun, control: SignalControl, steps: int = 0, **options: int) -> list[str]:
    heard = of(train_here(run, control, max_steps=steps, **options), Note)
    return [note.text for note in heard if "profile" in note.text]


def lora_of(run: TinyRun) -> bytes:
    return (run.directory / "saves" / "step-000006" / "lora.safetensors").read_bytes()


@pytest.mark.soak
def test_steps_are_profiled_when_asked_and_learn_the_same(tmp_path: Path) -> None:
    settings = TrainConfig(
        steps=6, save_every_n_steps=6, preview_every_n_steps=0, eval_items=0, gradient_checkpointing=False
    )
    shape = replace(TINY, num_layers=1)  # torch reads each operator of a profile for a millisecond
    names = ("plain", "button", "option")
    configs = (settings, settings, replace(settings, profile_steps=5, profile_skip_steps=2))
    plain, by_button, by_option = (
        make_run(tmp_path / name, shape=shape, train=config) for name, config in zip(names, configs, strict=True)
    )
    assert trained(plain, SignalControl(signals=False)) == []
    (said,) = trained(by_button, Asking(signals=False))
    assert said.startswith("3 steps profiled: profile/steps-000002-000004.json.gz in ")
    assert lora_of(by_button) == lora_of(plain)

    (said,) = trained(by_option, SignalControl(signals=False), 4)
    assert said.startswith("2 steps profiled: profile/steps-000003-000004.json.gz in "), "the session ended before"
    assert "memory snapshot needs a GPU" in said
    trace = json.loads(gzip.decompress((by_option.directory / "profile" / "steps-000003-000004.json.gz").read_bytes()))
    names = [event.get("name") for event in trace["traceEvents"]]
    assert names.count("wan: backward") == names.count("wan: optimizer") == 2
    assert "aten::addmm" in names


def test_a_trace_names_the_phases_of_each_block() -> None:
    torch.manual_seed(0)
    model = WanTransformer(TINY).requires_grad_(False)
    model.checkpoint_blocks = True
    inject_lora(model, LoraConfig(rank=2), seed=0)
    latent, text = torch.randn(1, 16, 1, 4, 4), torch.randn(1, 512, 4096)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        model(latent, torch.tensor([500.0]), text).square().mean().backward()
    counts = {event.key: event.count for event in profile.key_averages() if event.key.startswith("wan: ")}
    layers = TINY.num_layers
    for name in ("embed", "head", *(f"blocks.{n} {way}" for n in range(layers) for way in ("forward", "backward"))):
        assert counts[f"wan: {name}"] == 1, name
    for name in ("stage 1", "stage 2", "recompute stage 1", "recompute stage 2", "backward of stage 1"):
        assert counts[f"wan: {name}"] == layers, name
    assert scope("blocks.0", "forward") is scope("head"), "without a profiler nothing is made"


def test_a_window_begins_behind_the_skipped_steps_and_a_failed_trace_is_a_note(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[Event] = []
    profiler = StepProfiler(tmp_path, heard.append, steps=1, skipped=2)
    monkeypatch.setattr(torch.profiler.profile, "export_chrome_trace", lambda *_: 1 / 0)
    begun = []
    for step in range(5):
        begun += [step] if profiler.due else []
        profiler.begin(step)
        profiler.after(step + 1)
    assert begun == [2]
    (note,) = heard
    assert isinstance(note, Note)
    assert (note.level, note.text) == (
        "warning",
        "The profile of step 3 could not be written: division by zero. Free disk space, and profile again.",
    )
    StepProfiler(tmp_path, heard.append, steps=1, skipped=9).end(5)
    assert str(heard[-1]).count("before profile_skip_steps were over") == 1


def test_behind_the_trace_the_memory_of_a_step_is_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the two functions of torch.cuda stood in for: on a card they run in tests/gpu."""
    called: list[object] = []
    heard: list[Event] = []
    profiler = StepProfiler(tmp_path, heard.append, steps=1, skipped=0)
    profiler.begin(6)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda.memory, "_record_memory_history", lambda **how: called.append(how))
    monkeypatch.setattr(torch.cuda.memory, "_dump_snapshot", lambda path: Path(path).write_bytes(b"memory"))
    profiler.after(7)
    assert called == [{"max_entries": 100_000}]
    profiler.after(8)
    assert called[1:] == [{"enabled": None}]
    assert (tmp_path / "profile" / "memory-000008.pickle").read_bytes() == b"memory"
    assert [str(event).count("memory-000008.pickle") for event in heard] == [0, 1]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs one CUDA GPU; this machine has none")
def test_a_card_is_traced_and_its_memory_recorded(tmp_path: Path) -> None:
    heard: list[Event] = []
    profiler = StepProfiler(tmp_path, heard.append, steps=1, skipped=0)
    for step in range(2):
        profiler.begin(step)
        torch.zeros(1 << 20, device="cuda").add_(1).sum().item()
        profiler.after(step + 1)
    assert [event.level for event in heard if isinstance(event, Note)] == ["info", "info"]
    trace = gzip.decompress((tmp_path / "profile" / "steps-000001-000001.json.gz").read_bytes())
    assert b'"cat": "kernel"' in trace
    assert (tmp_path / "profile" / "memory-000002.pickle").stat().st_size > 1000


@pytest.mark.skipif(os.name == "nt", reason="links need a right on Windows")
def test_a_profile_is_written_through_no_link(tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "profile").symlink_to(tmp_path / "outside")
    heard: list[Event] = []
    profiler = StepProfiler(tmp_path / "run", heard.append, steps=1, skipped=0)
    profiler.begin(0)
    profiler.after(1)
    (said,) = [event.text for event in heard if isinstance(event, Note)]
    assert "run/profile is a link or a file. Move it away" in said
    assert list((tmp_path / "outside").iterdir()) == []
