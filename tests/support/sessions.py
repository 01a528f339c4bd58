"""Tiny runs trained and rendered in this process. Nothing decodes clips: their latents stay where they were written."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from tests.support.tiny_run import PLAN, TinyRun, make_roots, make_run
from wan_core.cache import Batches, CacheSet, LatentCache, pad_text
from wan_core.control import Control, SignalControl
from wan_core.events import Evaluated, Event, Note
from wan_core.files import atomic_write_json
from wan_core.job import SampleJob
from wan_core.load import materialize
from wan_core.lora import LoraConfig
from wan_core.model import WanTransformer
from wan_core.sampler import SampleConfig
from wan_core.session import sample_job
from wan_core.session.train_job import run_job
from wan_core.train import NoisedBatch, SaveStore, TrainConfig, Trainer, true_velocity

Kind = TypeVar("Kind", bound=Event)


def train_here(
    run: TinyRun,
    control: Control | None = None,
    target: Callable[[NoisedBatch], Tensor] | None = None,
    emit: Callable[[Event], None] | None = None,
    **options: Any,
) -> list[Event]:
    """The events of a session of `run`, none if `emit` takes them; `options` are those of `run_job`.

    `target`: what the model is to predict for a batch, if not the true velocity.
    """
    heard: list[Event] = []
    control = control or SignalControl(signals=False)
    with pytest.MonkeyPatch.context() as patch:
        if target is not None:
            patch.setattr("wan_core.train.objective.true_velocity", target)
        run_job(run.directory, run.roots, emit=emit or heard.append, control=control, **options)
    return heard


class Steered:
    """A control that gives commands at steps, and stops or answers when told."""

    def __init__(self) -> None:
        self.commands: Counter[str] = Counter()
        self.asked = 0
        self.stop_at_question = 0
        self.reason = ""
        self.answers: dict[str, dict[str, Any] | None] = {}

    def stop_reason(self) -> str:
        self.asked += 1
        if self.stop_at_question and self.asked >= self.stop_at_question:
            self.reason = "stopped by the user"
        return self.reason

    def take(self, command: str) -> bool:
        given = self.commands[command] > 0
        self.commands[command] = 0
        return given

    def wait_decoded(self, sample_id: str, timeout_s: float) -> dict[str, Any] | None:
        return self.answers.get(sample_id)


def trainer_on(
    model: WanTransformer,
    cache: LatentCache,
    cache_set: CacheSet,
    config: TrainConfig,
    emit: Callable[[Event], None] = lambda _event: None,
    control: Control | None = None,
    kind: type[Trainer] = Trainer,
    **options: Any,
) -> Trainer:
    """A trainer without a run folder; `options` are those of `Trainer`."""
    return kind(
        model,
        Batches(cache_set, cache, seed=config.seed, batch_size=config.batch_size),
        pad_text(cache.read_text(cache_set.empty_text_key)),
        config,
        emit=emit,
        control=control or SignalControl(signals=False),
        **options,
    )


def make_trainer(root: Path, config: TrainConfig, lora: LoraConfig | None = None, **options: Any) -> Trainer:
    """A trainer on the tiny model and three clips below `root`; `options` are those of `trainer_on`."""
    roots, fingerprint = make_roots(root)
    cache = LatentCache(roots.first("cache"))
    model = materialize(PLAN, roots, lora or LoraConfig(rank=4), seed=config.seed)
    return trainer_on(model, cache, cache.read_set(fingerprint), config, **options)


class Straight:
    """The last state of runs nothing happened to, each trained once."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._found = folder, dict[str, dict[str, Tensor]]()

    def __call__(self, config: TrainConfig, **options: Any) -> dict[str, Tensor]:
        key = repr((config, options))
        if key not in self._found:
            run = make_run(self._folder / str(len(self._found)), train=config, **options)
            assert bool(of(train_here(run), Evaluated)) == bool(config.eval_items)
            self._found[key] = state(run, config.steps)
        return self._found[key]


class NanFrom:
    """A target that is not finite at the given micro-batches (1 = the first)."""

    def __init__(self, *numbers: int) -> None:
        self.numbers, self.calls = numbers, 0

    def __call__(self, batch: NoisedBatch) -> Tensor:
        self.calls += 1
        target = true_velocity(batch)
        return target * math.nan if self.calls in self.numbers else target


def of(heard: list[Event], kind: type[Kind]) -> list[Kind]:
    """The events of a kind."""
    return [event for event in heard if isinstance(event, kind)]


def warnings(heard: list[Event]) -> list[str]:
    return [note.text for note in of(heard, Note) if note.level == "warning"]


def state(run: TinyRun, step: int) -> dict[str, Tensor]:
    """What a saved step holds to resume from."""
    return load_file(run.directory / "saves" / f"step-{step:06d}" / "state.safetensors")


def same(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> bool:
    """The same tensors under the same names, bit for bit: 0.0 and -0.0 differ, and a NaN equals itself."""
    return one.keys() == other.keys() and all(
        one[name].dtype == other[name].dtype
        and one[name].shape == other[name].shape
        and torch.equal(one[name].reshape(-1).view(torch.uint8), other[name].reshape(-1).view(torch.uint8))
        for name in one
    )


def newest_files(run: TinyRun) -> dict[str, bytes]:
    """What the newest saved step of a run holds that counts: LoRAs and state."""
    saved = SaveStore(run.directory).latest()
    assert saved is not None
    return {file.name: file.read_bytes() for file in saved.folder.glob("*.safetensors")}


def latents(run: TinyRun) -> dict[str, bytes]:
    """The previews of a run."""
    return {file.stem: file.read_bytes() for file in (run.directory / "samples").glob("*.latent")}


def rendered(run: TinyRun, folder: str) -> dict[str, bytes]:
    """Latents of clips that are sampled as the run's previews: of the base, and of its last step at two strengths."""
    job = run.directory / "samples" / folder / "job.json"
    job.parent.mkdir(parents=True)
    asked = SampleJob(strengths=(0.0, 1.0), preview=run.config.preview or SampleConfig())
    atomic_write_json(job, asked.to_dict())
    said: list[Event] = []
    sample_job(run.directory, job, run.roots, emit=said.append, control=SignalControl(signals=False))
    assert warnings(said) == [], "a clip was skipped"
    return {file.stem: file.read_bytes() for file in job.parent.glob("*.latent")}
