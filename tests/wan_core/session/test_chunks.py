"""A run keeps the tokens of a chunk that it began with, so that a resumed one is the same to the last bit."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.support.tiny_run import TinyRun, make_run
from wan_core.control import SignalControl
from wan_core.model import WanTransformer
from wan_core.plan import here
from wan_core.session.train_job import run_job
from wan_core.train import SaveStore, TrainConfig

_SETTINGS = TrainConfig(steps=2, save_every_n_steps=1, preview_every_n_steps=0, eval_items=0, learning_rate=1e-2)


def train(run: TinyRun, steps: int = 0) -> None:
    run_job(run.directory, run.roots, emit=lambda _: None, control=SignalControl(), max_steps=steps)


def saved(run: TinyRun, step: int) -> dict[str, torch.Tensor]:
    found = SaveStore(run.directory).read(step)
    assert found is not None
    return found.read_state()


@pytest.mark.lasts(3)
def test_a_resumed_run_keeps_its_chunks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    run_in_chunks = WanTransformer.run_in_chunks

    def noted(model: WanTransformer, tokens: int) -> None:
        sizes.append(tokens)
        run_in_chunks(model, tokens)

    monkeypatch.setattr(WanTransformer, "run_in_chunks", noted)
    runs = {
        name: make_run(tmp_path / name, train=_SETTINGS, clips=2, size=(2, 16, 16))
        for name in ("old", "short", "resumed")
    }
    train(runs["old"])
    found = SaveStore(runs["old"].directory).read(2)
    assert found is not None
    assert found.progress == {"step": 2}, "as runs of before are saved"
    with monkeypatch.context() as planned:
        planned.setattr(here, "CHUNK_TOKENS", 24)  # as a plan chooses it
        train(runs["short"])
        train(runs["resumed"], 1)
    sizes.clear()
    train(runs["resumed"])
    assert set(sizes) == {24}
    found = SaveStore(runs["resumed"].directory).read(2)
    assert found is not None
    assert found.progress == {"step": 2, "chunk_tokens": 24}
    states = {name: saved(run, 2) for name, run in runs.items()}
    assert all(torch.equal(value, states["short"][name]) for name, value in states["resumed"].items())
    assert any(not torch.equal(value, states["old"][name]) for name, value in states["short"].items())
