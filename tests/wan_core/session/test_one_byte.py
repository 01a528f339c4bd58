"""One wrong byte in any file of a run or its cache: the same LoRA in the end, or a refusal whose advice works."""

from __future__ import annotations

import random
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.sessions import train_here
from tests.support.tiny_run import TINY, TinyRun, make_run
from wan_core.control import SignalControl
from wan_core.errors import WanTrainerError
from wan_core.events import CheckpointSaved
from wan_core.export import publish_file
from wan_core.job.choose import choose_run, prepare_run
from wan_core.job.config import read_status
from wan_core.metrics import read_loss_curve, read_measured, read_tail
from wan_core.session.train_job import run_job
from wan_core.train import SaveStore, TrainConfig

pytestmark = pytest.mark.lasts(3)

STEPS = 3
SETTINGS = TrainConfig(
    steps=STEPS, save_every_n_steps=1, preview_every_n_steps=0, learning_rate=1e-3, eval_items=0, save_dtype="fp32"
)


class World:
    """A run stopped after two of three steps, beside its cache; restored before every change."""

    def __init__(self, root: Path) -> None:
        self.run = make_run(root / "now", shape=replace(TINY, num_layers=1), train=SETTINGS)
        train_here(self.run, max_steps=2)
        (self.run.directory / "log.txt").write_text("a line of the log\n")
        (self.run.directory / "workflow.json").write_text('{"nodes": [{"type": "TrainLoRA"}]}\n')
        self._whole, self._now = root / "whole", root / "now" / "runs"
        shutil.copytree(self._now, self._whole)
        self.expected = self.train()
        self.restore()
        self.files = sorted(path for path in self._now.rglob("*") if path.is_file() and path.stat().st_size)

    def restore(self) -> None:
        shutil.rmtree(self._now)
        shutil.copytree(self._whole, self._now)

    def train(self) -> dict[str, torch.Tensor]:
        """What a queue does: find the run, go on with it, publish; the final weights and optimizer."""
        run: TinyRun = self.run
        decision = choose_run(self._now, run.config)
        directory = decision.directory
        if decision.action != "done":
            prepare_run(decision, run.config)
            run_job(directory, run.roots, emit=self._published(directory), control=SignalControl())
        saved = SaveStore(directory).latest(run.config.job_id)
        assert saved is not None
        assert saved.step == STEPS
        assert read_status(directory).state == "done"
        read_tail(directory / "metrics.jsonl"), read_loss_curve(directory / "metrics.jsonl")
        read_measured(directory / "metrics.jsonl")
        return saved.read_state()

    def _published(self, directory: Path) -> Any:
        def on_event(event: Any) -> None:
            if isinstance(event, CheckpointSaved):
                saved = SaveStore(directory).read(event.step)
                assert saved is not None, "what was announced as saved verifies"
                publish_file(saved.lora_file, self._now / "tiny.safetensors", saved.job_id)

        return on_event

    def encode_again(self, file: Path) -> None:
        """What CacheLatents does with an entry that is damaged, or a set that cannot be read."""
        if "_cache" not in file.parts:
            file.unlink()
            return
        shutil.copyfile(self._whole / file.relative_to(self._now), file)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(tmp_path_factory.mktemp("world"))


def kind_of(file: Path) -> str:
    folder = next((name for name in ("latents", "texts", "sets", "saves") if name in file.parts), "run")
    return f"{folder}: {re.sub(r'[0-9a-f]{20,}', '*', file.name)}"


@pytest.mark.parametrize("changes", [11, pytest.param(1000, marks=pytest.mark.soak)])
def test_no_wrong_byte_changes_the_result_in_silence_or_ends_in_a_dead_end(world: World, changes: int) -> None:
    """Refusals are counted by file, of which there are eleven kinds: only what training reads and nothing can replace
    may refuse."""
    chance = random.Random(changes)
    by_kind: dict[str, list[Path]] = {}
    for file in world.files:
        by_kind.setdefault(kind_of(file), []).append(file)
    assert changes >= len(by_kind), "a kind of file is never changed"
    refused: dict[str, int] = {}
    for number in range(changes):
        kind = sorted(by_kind)[number % len(by_kind)]
        file = chance.choice(by_kind[kind])
        world.restore()
        data = bytearray(file.read_bytes())
        place, value = chance.randrange(len(data)), chance.randrange(1, 256)
        data[place] ^= value
        file.write_bytes(data)
        what = f"change {number}: {file.name} byte {place} ^ {value}"
        try:
            found = world.train()
        except WanTrainerError:
            refused[kind] = refused.get(kind, 0) + 1
            world.encode_again(file)
            found = world.train()  # the fix works
        assert found.keys() == world.expected.keys(), what
        assert all(torch.equal(found[name], world.expected[name]) for name in found), what
    print(f"{changes} changes of {len(by_kind)} kinds of file, refused: {refused}")  # noqa: T201
    assert all(kind.startswith(("latents", "texts", "sets")) for kind in refused), refused
