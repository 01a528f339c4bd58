"""What a run records about itself beside the loss: time of its stages, memory of its devices, arithmetic per second."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.support.cards import gpu, put_in
from tests.support.metrics_file import read_metrics
from tests.support.sessions import train_here
from tests.support.tiny_run import ONE_LOOK, TINY, TinyRun, make_run
from wan_core.abilities import Abilities
from wan_core.cache import LatentCache
from wan_core.control import SignalControl
from wan_core.events import Event
from wan_core.job.config import read_status
from wan_core.load import ModelPlan
from wan_core.placement import PlacementConfig
from wan_core.sampler import SampleConfig
from wan_core.train import FlopCount, NoisedBatch, TrainConfig, true_velocity
from wan_core.train.meters import DeviceMeters, _added_up

MIB = 1 << 20


def small_run(root: Path, **changes: Any) -> TinyRun:
    train = {"steps": 4, "save_every_n_steps": 2, "preview_every_n_steps": 4, "learning_rate": 1e-3, **ONE_LOOK}
    return make_run(root, train=TrainConfig(**{**train, **changes}), preview=SampleConfig(steps=1))  # type: ignore[arg-type]


def trained(run: TinyRun, **options: Any) -> list[dict[str, Any]]:
    """The metrics after a session."""
    train_here(run, **options)
    return read_metrics(run.directory / "metrics.jsonl")


def stages(records: list[dict[str, Any]]) -> list[tuple[str, int]]:
    return [(r["stage"], r["step"]) for r in records if r["event"] == "stage_ended"]


def test_every_stage_says_how_long_it_took_and_a_resumed_run_adds_its_own(tmp_path: Path) -> None:
    run = small_run(tmp_path)
    began = time.monotonic()
    first = trained(run, max_steps=2, before={"cache": 12.5, "start": 2.5})
    wall = time.monotonic() - began
    assert stages(first) == [
        *(("cache", 0), ("start", 0), ("load", 0), ("evaluate", 0), ("sample", 0)),
        *(("save", 2), ("evaluate", 2)),
    ]
    ended = [r for r in first if r["event"] == "stage_ended"]
    held = [r["memory"].get("cpu", {}) for r in ended]
    assert held[:2] == [{}, {}], "nothing is loaded yet"
    assert all(50 * MIB < h["now"] <= h["peak"] for h in held[2:])
    assert [r["seconds"] for r in ended[:2]] == [12.5, 2.5]
    assert 0 < sum(r["seconds"] for r in ended[2:]) < wall
    both = trained(run)
    assert Counter(name for name, _ in stages(both)) == {
        "cache": 1,
        "start": 1,
        "load": 2,
        "evaluate": 3,
        "sample": 2,
        "save": 2,
    }
    assert ("load", 2) in stages(both)


def test_the_time_of_a_stage_is_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock that only evaluating moves on."""
    clock = [1000.0]

    def target(batch: NoisedBatch) -> torch.Tensor:
        clock[0] += 0.0 if torch.is_grad_enabled() else 3.0
        return true_velocity(batch)

    run = small_run(tmp_path, preview_every_n_steps=0, steps=2, eval_timesteps=(300.0, 700.0))
    monkeypatch.setattr(
        "wan_core.session.event_sinks.time", SimpleNamespace(monotonic=lambda: clock[0], sleep=time.sleep)
    )
    monkeypatch.setattr("wan_core.train.objective.true_velocity", target)
    records = [r for r in trained(run) if r["event"] == "stage_ended"]
    seconds = {(r["stage"], r["step"]): r["seconds"] for r in records}
    assert seconds == {("load", 0): 0.0, ("evaluate", 0): 6.0, ("save", 2): 0.0, ("evaluate", 2): 6.0}


def test_a_stage_that_was_stopped_is_recorded_up_to_there(tmp_path: Path) -> None:
    run = small_run(tmp_path)
    control = SignalControl()
    control.stop_reason = lambda: "stopped by the user"  # type: ignore[method-assign]
    assert stages(trained(run, control=control)) == [("load", 0)]


@pytest.mark.parametrize("stage", ["evaluate", pytest.param("sample", marks=pytest.mark.soak)])
def test_a_stop_after_the_last_step_ends_as_done(tmp_path: Path, stage: str) -> None:
    run = small_run(tmp_path)
    control, reason = SignalControl(), [""]
    control.stop_reason = lambda: reason[0]  # type: ignore[method-assign]

    def emit(event: Event) -> None:
        saved = getattr(event, "name", "") == "saved" and event.step == 4  # type: ignore[attr-defined]
        if saved and stage == "evaluate":
            reason[0] = "Stop and keep was pressed"
        if event.name == "evaluated" and event.step == 4 and stage == "sample":  # type: ignore[attr-defined]
            reason[0] = "Stop and keep was pressed"

    records = trained(run, control=control, emit=emit)
    status = read_status(run.directory)
    assert (status.state, status.step, status.reason) == ("done", 4, "")
    assert stages(records)[-1] == (stage, 4)


def test_a_step_says_what_the_process_holds_and_how_much_it_computes(tmp_path: Path) -> None:
    run = small_run(tmp_path, preview_every_n_steps=0, gradient_accumulation_steps=2)
    steps = [r for r in trained(run) if r["event"] == "step"]
    (device,) = {name for step in steps for name in step["memory"]}
    assert device == "cpu"
    for step in steps:
        memory = step["memory"]["cpu"]
        assert memory["predicted"] is None, "what is predicted is not what the host process holds"
        assert 50 * MIB < memory["now"] <= memory["peak"]
    cache = LatentCache(run.roots.first("cache"))
    clips = len(cache.read_set(run.config.data.fingerprint).items)
    assert [step["epoch"] for step in steps] == pytest.approx([2 * n / clips for n in (1, 2, 3, 4)], abs=1e-4)
    count = FlopCount(tiny_model(run))
    of_step = 2 * count.of(torch.Size((1, 16, 2, 4, 4)), time_rows=1, image_rows=0, text_rows=16).useful
    assert [step["tflops"] * step["seconds"] for step in steps] == pytest.approx([of_step / 1e12] * 4)


PLAIN_ATTENTION = "Set base_precision to bf16, or install a torch built for this GPU."


@pytest.mark.parametrize(
    ("kernel", "device", "warned"),
    [("math", "cuda:0", 1), pytest.param("math", "cpu", 0, marks=pytest.mark.soak), ("", "cuda:0", 0)],
)
def test_which_attention_runs_is_logged_and_the_plain_one_on_a_gpu_is_said(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    kernel: str,
    device: str,
    warned: int,
) -> None:
    monkeypatch.setattr("wan_core.job.remarks.attention_kernels", lambda *_: {device: kernel})
    ampere = Abilities(name="NVIDIA RTX A5000", capability=(8, 6))
    monkeypatch.setattr("wan_core.job.remarks.abilities_of", lambda _device: ampere)
    events: list[Event] = []
    with caplog.at_level("INFO"):
        trained(small_run(tmp_path, steps=1, preview_every_n_steps=0, eval_items=0), emit=events.append)
    assert f"attention on {device}, 8 tokens: {kernel or 'chosen by torch'}" in caplog.text
    said = [getattr(event, "text", "") for event in events if event.name == "note"]
    plain = [text for text in said if "no fast attention" in text]
    assert [text.partition("slower. ")[2] for text in plain] == [PLAIN_ATTENTION] * warned


def tiny_model(run: TinyRun) -> Any:
    from wan_core.load import materialize

    return materialize(run.config.model, run.roots, run.config.lora)


class Cards:
    """What torch says of two cards; a step, a preview and a reset change it as there."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = {"cuda:0": 5, "cuda:1": 7}
        self.peak = dict(self.now)
        monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: self.now[str(device)])
        monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: self.peak[str(device)])
        monkeypatch.setattr(torch.cuda, "max_memory_reserved", lambda device: self.peak[str(device)] + 1)
        monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", self._reset)
        put_in(monkeypatch, *[gpu("small", (8, 6), 100 / 2**30)] * 2)

    def use(self, *most: int) -> None:
        for name, value in zip(self.peak, most, strict=True):
            self.peak[name] = max(self.peak[name], value)

    def _reset(self, device: torch.device) -> None:
        self.peak[str(device)] = self.now[str(device)]


def test_each_device_of_a_split_model_has_its_own_numbers_and_each_phase_its_own_peak(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cards = Cards(monkeypatch)
    meters = DeviceMeters([torch.device("cuda", index) for index in (0, 0, 1, 1, 0)], {"cuda:0": 60})

    def peaks(reading: dict[str, dict[str, int | None]]) -> list[int | None]:
        return [reading[name]["peak"] for name in ("cuda:0", "cuda:1")]

    cards.use(90, 80)
    assert peaks(meters.end_phase()) == [90, 80], "loading"
    cards.use(50, 70)
    assert meters.read() == {
        "cuda:0": {"now": 5, "peak": 50, "reserved": 51, "predicted": 60, "total": 100},
        "cuda:1": {"now": 7, "peak": 70, "reserved": 71, "predicted": None, "total": 100},
    }
    meters.end_phase()
    cards.use(99, 20)
    assert peaks(meters.end_phase()) == [99, 20], "a preview"
    cards.use(40, 75)
    assert peaks(meters.read()) == [50, 75], "of the steps before and after it"


def test_copies_on_two_devices_stand_side_by_side_and_on_one_device_add_up() -> None:
    def reading(device: str, now: int | None, predicted: int | None = None) -> dict[str, dict[str, int | None]]:
        return {device: {"now": now, "peak": now, "predicted": predicted, "total": 20}}

    assert _added_up([reading("cuda:0", 3, 9), reading("cuda:1", 4, 9)]) == {
        **reading("cuda:0", 3, 9),
        **reading("cuda:1", 4, 9),
    }
    assert _added_up([reading("cpu", 3), reading("cpu", 4)]) == reading("cpu", 7)
    assert _added_up([reading("cpu", None), reading("cpu", None)]) == reading("cpu", None)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs one CUDA GPU; this machine has none")
def test_on_a_gpu_it_is_what_torch_has_allocated_beside_the_prediction(tmp_path: Path) -> None:
    torch.cuda.empty_cache()
    run = make_run(tmp_path, shape=TINY, train=TrainConfig(steps=3, preview_every_n_steps=0, eval_items=0))
    steps = [r for r in trained(run) if r["event"] == "step"]
    memory = steps[-1]["memory"]["cuda:0"]
    assert 0 < memory["now"] <= memory["peak"] <= memory["reserved"]
    assert memory["predicted"] > 0
    assert all(step["tflops"] > 0 for step in steps)


@pytest.mark.multi_gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA GPUs")
def test_each_gpu_of_a_split_model_has_its_own_numbers_and_prediction(tmp_path: Path) -> None:
    plan = ModelPlan(
        base_file="diffusion_models:wan_tiny_t2v.safetensors",
        placement=PlacementConfig(mode="split blocks", devices="0,1"),
    )
    run = make_run(tmp_path, plan=plan, train=TrainConfig(steps=2, preview_every_n_steps=0, eval_items=0))
    memory = [r for r in trained(run) if r["event"] == "step"][-1]["memory"]
    assert list(memory) == ["cuda:0", "cuda:1"]
    for values in memory.values():
        assert 0 < values["now"] <= values["peak"]
        assert values["predicted"] > 0
