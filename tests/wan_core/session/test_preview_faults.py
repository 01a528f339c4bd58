"""A preview that fails anywhere costs its clip and nothing else: what is learnt is the same, bit for bit."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tests.support.sessions import newest_files, train_here, warnings
from tests.support.tiny_run import TinyRun, make_pair_run, make_run
from wan_core.control import SignalControl
from wan_core.errors import OutOfMemory
from wan_core.events import Event, Note, StepDone
from wan_core.job.config import read_status
from wan_core.sampler import SampleConfig
from wan_core.train import Previewer, SaveStore, TrainConfig
from wan_core.train.optimizer_state import AdapterOptimizer

pytestmark = pytest.mark.lasts(3)

PREVIEW = SampleConfig(sampling="custom", steps=2, cfg=5.0, shift=5.0)
SETTINGS = {"save_every_n_steps": 1000, "eval_items": 0, "learning_rate": 1e-3, "caption_dropout": 0.3}


class FailingAt(TorchDispatchMode):
    """Raises at operator number `at`; 0: nowhere. Counts them."""

    def __init__(self, at: int, error: type[Exception]) -> None:
        super().__init__()
        self.at, self.error, self.met = at, error, 0

    def __torch_dispatch__(self, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.met += 1
        if self.met == self.at:
            raise self.error("CUDA out of memory. Tried to allocate 2.00 GiB.")
        return operator(*args, **(kwargs or {}))


@contextmanager
def failing_previews(monkeypatch: pytest.MonkeyPatch, points: list[int]) -> Iterator[list[FailingAt]]:
    """Inside, preview number i fails at operator `points[i]`, by turns for want of memory and by another error."""
    render, met = Previewer._render_one, []

    def run(self: Previewer, *args: Any, **named: Any) -> None:
        error = torch.OutOfMemoryError if len(met) % 2 else RuntimeError
        met.append(FailingAt(points[len(met)] if len(met) < len(points) else 0, error))
        with met[-1]:
            render(self, *args, **named)

    with monkeypatch.context() as patch:
        patch.setattr(Previewer, "_render_one", run)
        yield met


def made(root: Path, pair: bool, steps: int, previews: bool) -> TinyRun:
    settings = {**SETTINGS, "steps": steps, "preview_every_n_steps": 1 if previews else 0}
    if pair:
        order = {"expert_order": "alternating", "expert_turn_steps": 1}
        return make_pair_run(root, preview=PREVIEW, **settings, **order)
    return make_run(root, train=TrainConfig(**settings), preview=PREVIEW)  # type: ignore[arg-type]


def trained(run: TinyRun) -> tuple[list[Event], dict[str, bytes]]:
    return train_here(run), newest_files(run)


@pytest.mark.parametrize("every", [pytest.param(3, marks=pytest.mark.soak), None], ids=["every third", "four"])
@pytest.mark.parametrize("pair", [pytest.param(False, marks=pytest.mark.soak), True], ids=["one model", "a pair"])
def test_an_error_at_any_operator_of_a_preview_changes_nothing_that_is_learnt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pair: bool, every: int | None
) -> None:
    with failing_previews(monkeypatch, []) as whole:
        trained(made(tmp_path / "counted", pair, 2, previews=True))
    operators = min(one.met for one in whole)
    assert operators > 500, "the preview was not watched"
    points = list(range(1, operators, every or operators // 3))
    steps = len(points)
    _, undisturbed = trained(made(tmp_path / "without previews", pair, steps, previews=False))
    with failing_previews(monkeypatch, points) as met:
        heard, learnt = trained(made(tmp_path / "failing", pair, steps, previews=True))
    assert len(met) == steps + 1, "one before the first step, and one after each"
    # Of a pair some operators follow: the expert that was away comes back.
    assert all(one.met == point or (pair and one.met > point) for one, point in zip(met, points, strict=False))
    skipped = [event for event in heard if isinstance(event, Note) and event.text.startswith("Preview at step")]
    assert len(skipped) == steps
    assert learnt == undisturbed


def test_an_expert_that_does_not_come_back_from_a_preview_is_saved_before_the_run_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory for its moments is gone: the steps it made stand in a saved step, from which the run goes on."""
    steps = 3
    _, undisturbed = trained(made(tmp_path / "without previews", True, steps, previews=False))
    run = made(tmp_path / "full", True, steps, previews=True)
    loaded, begun = AdapterOptimizer.load, []

    def full(self: AdapterOptimizer, state: Any) -> None:
        if not begun and any(name.startswith("optimizer.") for name in state):  # the one that has trained
            begun.append(self)
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        loaded(self, state)

    with monkeypatch.context() as patch:
        patch.setattr(AdapterOptimizer, "load", full)
        with pytest.raises(
            OutOfMemory, match=r"was offloaded for a preview and does not fit on the GPU again.*2\.00 GiB"
        ):
            trained(run)
    (saved,) = (step for step in [SaveStore(run.directory).latest()] if step)
    assert saved.step == read_status(run.directory).step > 0
    heard, learnt = trained(run)
    assert min(event.step for event in heard if isinstance(event, StepDone)) == saved.step + 1, "no step was lost"
    assert learnt == undisturbed


class Decoded(SignalControl):
    """Says that a clip lies where its latent does."""

    def wait_decoded(self, sample_id: str, timeout_s: float) -> dict[str, object] | None:
        return {"file": f"samples/{sample_id}.mp4"}


def test_a_clip_whose_index_is_held_open_is_listed_with_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on Windows by a virus scanner; a try of ten is refused."""
    run, real, refused = made(tmp_path, False, 2, True), os.replace, list[str]()

    def replace(source: Any, target: Any, **more: Any) -> None:
        if os.path.basename(target) == "index.json" and (run.directory / "samples" / "index.json").exists():
            refused.append(source)
            if len(refused) <= 10:
                raise PermissionError(13, "Permission denied", source)
        real(source, target, **more)

    monkeypatch.setattr(os, "replace", replace)
    monkeypatch.setattr("time.sleep", lambda _seconds: None)
    heard = train_here(run, Decoded(signals=False))
    assert len(refused) == 11
    assert not warnings(heard)
    index = json.loads((run.directory / "samples" / "index.json").read_text())
    assert [(entry["id"], entry["step"]) for entry in index] == [(f"step-{n:06d}_p0", n) for n in range(3)]
