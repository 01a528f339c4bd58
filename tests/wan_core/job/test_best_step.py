"""Which saved step a real training suggests: of a trained tiny model, on drawn clips it has not seen before."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from shapeworld.concept import concept_scene, load_concept
from shapeworld.training.clips import as_video
from shapeworld.wan_vae import TrainableVae

from tests.support.sessions import train_here, trainer_on
from tests.support.tiny_run import TinyRun, make_run
from wan_core.cache import CacheItem, LatentCache
from wan_core.cache.known_entries import KnownEntries
from wan_core.cache.shows_nothing import shows_nothing
from wan_core.events import CheckpointSaved, Evaluated, Event, Suggested, to_line
from wan_core.job import suggested_step
from wan_core.job.choose import choose_run, prepare_run
from wan_core.job.outcome import suggestion_of
from wan_core.load import ModelPlan, materialize
from wan_core.lora import LoraConfig
from wan_core.train import SaveStore, TrainConfig

DEMO = Path(__file__).resolve().parents[2] / "assets" / "demo"
CONCEPT = Path(__file__).resolve().parents[2] / "shapeworld" / "concepts" / "hopping_bar.json"
MODEL = ModelPlan(base_file="diffusion_models:wan_demo_t2v.safetensors")


def latents_of_concept(count: int) -> torch.Tensor:
    """Drawn clips of one concept as the demo VAE encodes them: (count, 16, 3, 8, 8)."""
    concept = load_concept(CONCEPT)
    return encoded(as_video([concept_scene(concept, 100 + number) for number in range(count)])[:, :, :9])


def encoded(clips: torch.Tensor) -> torch.Tensor:
    """Clips (count, 3, 9, 64, 64) in [-1, 1] as the demo VAE encodes them."""
    weights = load_file(DEMO / "wan_demo_vae.safetensors")
    vae = TrainableVae(weights["encoder.conv1.weight"].shape[0])
    vae.load_state_dict({name: tensor.float() for name, tensor in weights.items()})
    with torch.no_grad():
        return vae.encode(clips)


def write_clips(run: TinyRun, latents: torch.Tensor) -> list[CacheItem]:
    """Puts latents into the cache of a run under one caption; returns them as items of a set."""
    cache = LatentCache(run.roots.first("cache"))
    whole = cache.read_set(run.config.data.fingerprint)
    text = f"{6000:064x}"
    cache.write_text(text, 0.05 * torch.randn(6, 4096, generator=torch.Generator().manual_seed(3)))
    items = []
    for number, latent in enumerate(latents):
        key = f"{5000 + number:064x}"
        cache.write_latent(key, latent)
        item = replace(whole.items[0], latent_key=key, text_key=text, name=f"{number}.mp4", height=64, width=64)
        items.append(item)
    return items


def trained(root: Path, latents: torch.Tensor, clips: int, held_out: int, **settings) -> tuple[TinyRun, list[Event]]:
    """Trains on the first `clips` of the latents; the next `held_out` are evaluated."""
    run = make_run(root, clips=1, size=(3, 8, 8))
    shutil.copy(DEMO / "wan_demo_t2v.safetensors", root / "models")
    items = write_clips(run, latents)
    cache = LatentCache(run.roots.first("cache"))
    whole = cache.read_set(run.config.data.fingerprint)
    kept = replace(whole, items=tuple(items[:clips]), held_out=tuple(items[clips : clips + held_out]))
    usual = {"preview_every_n_steps": 0, "lr_scheduler": "constant", "gradient_checkpointing": False}
    config = replace(
        run.config,
        run_name="judged",
        model=MODEL,
        lora=LoraConfig(rank=8),
        train=TrainConfig(**{**usual, "eval_items": held_out, **settings}),
        data=replace(run.config.data, fingerprint=cache.write_set(kept), num_items=clips),
    ).with_digests(run.roots)
    decision = choose_run(root / "runs", config)
    run = TinyRun(decision.directory, run.roots, prepare_run(decision, config), run.roots_file)
    return run, train_here(run)


def judged(run: TinyRun, latents: torch.Tensor, first: int, steps: Sequence[int]) -> list[float]:
    """The loss of saved steps on the clips from `first` on, which were neither trained nor evaluated."""
    cache = LatentCache(run.roots.first("cache"))
    items = write_clips(run, latents)[first:]
    kept = replace(cache.read_set(run.config.data.fingerprint), items=tuple(items), held_out=())
    model = materialize(MODEL, run.roots, run.config.lora, seed=0)
    trainer = trainer_on(model, cache, kept, replace(run.config.train, eval_items=len(items)))
    losses = []
    for step in steps:
        saved = SaveStore(run.directory).read(step)
        assert saved is not None
        trainer.load_state(saved.read_state(), saved.progress)
        found = trainer.evaluate()
        assert found is not None
        losses.append(float(found.eval_loss or 0.0))
    return losses


@pytest.mark.soak
def test_a_run_that_learns_two_clips_by_heart_does_not_suggest_its_last_step(tmp_path: Path):
    """And clips that neither trained nor chose the step agree with it."""
    latents = latents_of_concept(9)
    judging = {"eval_timesteps": (250.0, 750.0)}
    run, heard = trained(tmp_path, latents, 2, 4, steps=48, save_every_n_steps=8, learning_rate=1.5e-3, **judging)
    told = [event for event in heard if isinstance(event, Suggested)]
    assert [event.step for event in told] == [8, 16, 24, 32, 40, 48]
    best = told[-1].best
    assert best is not None, told[-1].why
    assert best < 48
    assert told[-1].why.startswith(f"Step {best} is suggested: ")
    assert suggested_step(run.directory) == best
    at_best, at_last = judged(run, latents, 6, [best, 48])
    assert at_best < 0.985 * at_last  # 0.962 was measured
    (run.directory / "saves" / f"step-{best:06d}" / "state.safetensors").write_bytes(b"")
    assert suggested_step(run.directory) is None, "a damaged step is not offered"


@pytest.mark.soak
def test_a_long_run_on_two_clips_is_marked_as_over_fitting(tmp_path: Path):
    latents = latents_of_concept(12)
    run, heard = trained(tmp_path, latents, 2, 6, steps=480, save_every_n_steps=30, learning_rate=1e-3)
    told = [event for event in heard if isinstance(event, Suggested)][-1]
    assert told.best is not None, told.why
    assert told.overfits_from is not None
    assert max(told.best, told.overfits_from) <= 240
    at_best, at_last = judged(run, latents, 8, [told.best, 480])
    assert at_best < 0.9 * at_last


@pytest.mark.soak
def test_a_run_on_noise_suggests_no_step_to_who_wants_clips(tmp_path: Path):
    """Trained on pure noise, judged on clips: what it learns is of no use for them."""
    latents = torch.cat(
        [torch.randn(4, 16, 3, 8, 8, generator=torch.Generator().manual_seed(1)), latents_of_concept(4)]
    )
    _, heard = trained(tmp_path, latents, 4, 4, steps=240, save_every_n_steps=20, learning_rate=1e-3)
    told = [event for event in heard if isinstance(event, Suggested)][-1]
    assert told.best is None
    assert told.why.startswith("No step is suggested: the held-out loss went from 0.")


@pytest.mark.soak
def test_a_run_on_noise_with_noise_held_out_suggests_no_step_and_says_why(tmp_path: Path):
    """The held-out loss falls far, for noise is learnt too; the pixels told it when they were encoded."""
    pixels = torch.rand(8, 9, 64, 64, 3, generator=torch.Generator().manual_seed(1))
    keys = [f"{5000 + number:064x}" for number, clip in enumerate(pixels) if shows_nothing(clip)]
    assert len(keys) == 8
    known = KnownEntries(make_run(tmp_path, clips=1, size=(3, 8, 8)).roots.first("cache"))
    for key in keys:
        known.note_shows_nothing(key)
    known.save()
    latents = encoded(pixels.permute(0, 4, 1, 2, 3) * 2 - 1)
    run, heard = trained(tmp_path, latents, 4, 4, steps=120, save_every_n_steps=20, learning_rate=1e-3)
    losses = [event.eval_loss or 0.0 for event in heard if isinstance(event, Evaluated)]
    assert min(losses) < 0.6 * losses[0], "without the pixels it would get a star"
    assert suggestion_of(run.directory).step is not None
    told = [event for event in heard if isinstance(event, Suggested)]
    assert [event.best for event in told] == [None] * len(told)
    assert told[-1].why.startswith("No step is suggested: 8 of 8 clips show only noise or one colour, such as 0.mp4, ")
    assert suggested_step(run.directory) is None


def test_the_newest_saves_and_the_best_one_stay(tmp_path: Path):
    """Losses are made up at the end: the lowest one is that of step 2."""
    usual = {"save_every_n_steps": 1, "preview_every_n_steps": 0, "eval_items": 0}
    run = make_run(tmp_path, train=TrainConfig(steps=5, **usual))
    evaluations = [Evaluated(step=step, eval_loss=abs(step - 2), held_out=True) for step in range(5)]
    (run.directory / "metrics.jsonl").write_text("".join(map(to_line, evaluations)))
    train_here(run, max_steps=4)
    store = SaveStore(run.directory)
    assert store.steps() == [1, 2, 3, 4], "without the setting all stay"
    kept = replace(run.config, train=replace(run.config.train, keep_last_saves=2))
    assert kept.job_id == run.config.job_id, "it is no other job"
    (run.directory / "run.json").write_text(json.dumps(kept.to_dict()))
    train_here(run)
    assert store.steps() == [2, 4, 5]
    assert all(store.read(step) is not None for step in store.steps())
    assert sorted(path.name for path in store.folder.iterdir()) == ["step-000002", "step-000004", "step-000005"]


def test_a_kill_while_saves_are_removed_leaves_whole_ones_or_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    train = TrainConfig(steps=3, save_every_n_steps=1, preview_every_n_steps=0, eval_items=0)
    run = make_run(tmp_path, train=train)
    train_here(run)
    store = SaveStore(run.directory)
    store.suspect(3)

    def killed(_store: SaveStore, _folder: Path) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(SaveStore, "_remove_staged", killed)
        with pytest.raises(KeyboardInterrupt):
            store.prune(1, ())
    assert store.steps() == [2, 3], "2 is the newest good one, and 3 is nobody's to remove"
    assert all(store.read(step) is not None for step in store.steps())
    store.clean()
    assert sorted(path.name for path in store.folder.iterdir()) == ["step-000002", "step-000003"]
    assert store.prune(1, ()) == []


def test_evaluations_come_as_often_as_asked_and_say_whose_clips_they_are_of(tmp_path: Path):
    train = TrainConfig(steps=5, save_every_n_steps=4, preview_every_n_steps=0, eval_every_n_steps=2)
    run = make_run(tmp_path, train=train)
    heard = train_here(run)
    evaluations = [event for event in heard if isinstance(event, Evaluated)]
    assert [event.step for event in evaluations] == [0, 2, 4, 5]
    assert all(len(event.per_clip) == 3 and event.held_out is False for event in evaluations)
    assert evaluations[0].eval_loss == pytest.approx(sum(evaluations[0].per_clip) / 3)
    saved = [event for event in heard if isinstance(event, CheckpointSaved)]
    assert [set(event.updates) for event in saved] == [{"blocks.0", "blocks.1"}] * 2
    assert all(0 < norm < 10 for event in saved for norm in event.updates.values())
    assert [(event.modules, event.passed_over) for event in saved] == [(2 * 10, 0)] * 2
    told = [event for event in heard if isinstance(event, Suggested)]
    assert [(event.step, event.best) for event in told] == [(2, None), (4, None), (5, None)]
    assert "measured on training clips" in told[-1].why
