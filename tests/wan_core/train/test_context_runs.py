"""Runs on clips with context streams (Bernini-R): what reaches the model, the previews, the files, and what is said."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.support.sessions import train_here
from tests.support.tiny_run import PLAN, TINY, TINY_I2V, make_run, short
from tests.wan_core.train.test_conditioned import QUICK, final_state, seen_batches
from wan_core.cache import LatentCache, context_note
from wan_core.errors import CacheError
from wan_core.events import DecodeWanted
from wan_core.job.open import open_run
from wan_core.plan.report import report_run
from wan_core.session.previews import preview_inputs

pytestmark = pytest.mark.lasts(0.5)

CONTEXT = ((2, 4, 4), (1, 2, 6))


def test_every_batch_brings_the_streams_of_its_clips_and_their_tokens_are_counted(tmp_path: Path) -> None:
    run = make_run(tmp_path, train=short(steps=2, batch_size=2), context=CONTEXT)
    cache = LatentCache(run.roots.first("cache"))
    items = cache.read_set(run.config.data.fingerprint).items
    by_latent = {cache.read_latent(item.latent_key).float().sum().item(): item for item in items}
    for batch in seen_batches(run):
        assert batch.conditioning is not None
        assert [tuple(stream.shape[2:]) for stream in batch.conditioning.context] == list(CONTEXT)
        assert batch.context_tokens == 2 * 4 + 3
        for place, latent in enumerate(batch.latent):
            stored = cache.read_condition(by_latent[latent.sum().item()].condition_key)
            for number, stream in enumerate(batch.conditioning.context, 1):
                assert torch.equal(stream[place], stored[f"context.{number}"].float())


def test_a_stopped_run_goes_on_bit_for_bit_and_makes_a_plain_lora(tmp_path: Path) -> None:
    straight = make_run(tmp_path / "a", train=short(steps=2, gradient_checkpointing=False), context=CONTEXT)
    train_here(straight)
    stopped = make_run(tmp_path / "b", train=short(steps=2), context=CONTEXT)
    train_here(stopped, max_steps=1)
    train_here(stopped)
    one, other = final_state(straight), final_state(stopped)
    assert all(torch.equal(one[name], other[name]) for name in one)
    plain = make_run(tmp_path / "c", train=short(steps=2))
    train_here(plain)
    here, there = (load_file(next((run.directory / "saves").rglob("*lora*.safetensors"))) for run in (stopped, plain))
    assert here.keys() == there.keys()
    assert any(not torch.equal(here[name], there[name]) for name in here), "the streams are read"


def test_previews_have_the_context_of_the_clip_held_out(tmp_path: Path) -> None:
    train = short(steps=2, preview_every_n_steps=2)
    run = make_run(tmp_path, train=train, preview=QUICK, context=CONTEXT, held_out=1)
    opened = open_run(run.directory, run.roots)
    inputs = preview_inputs(opened)
    assert inputs is not None
    (held,) = opened.cache_set.held_out
    stored = opened.cache.read_condition(held.condition_key)
    (clip,) = inputs.clips
    assert clip.conditioning is not None
    assert all(torch.equal(s[0], stored[f"context.{n}"].float()) for n, s in enumerate(clip.conditioning.context, 1))
    assert torch.equal(clip.text[: len(opened.cache.read_text(held.text_key))], opened.cache.read_text(held.text_key))
    assert [event.step for event in train_here(run) if isinstance(event, DecodeWanted)] == [0, 2]


def test_the_plan_the_set_and_the_run_say_that_it_is_trained_as_bernini(tmp_path: Path) -> None:
    run, plain = make_run(tmp_path / "a", context=CONTEXT), make_run(tmp_path / "b")
    sets = [LatentCache(one.roots.first("cache")).read_set(one.config.data.fingerprint) for one in (run, plain)]
    assert context_note(sets[0]).startswith("Trained as Bernini-R: each clip has 2 context streams")
    assert context_note(sets[1]) == ""
    said, nothing = (report_run(one.directory, one.roots)["notes"] for one in (run, plain))
    assert "The clips have context streams, 11 of 19 tokens: the model is trained as Bernini-R." in said
    assert not any("Bernini" in note for note in nothing)


def test_another_model_refuses_the_set(tmp_path: Path) -> None:
    run = make_run(tmp_path, shape=TINY_I2V, context=CONTEXT)
    with pytest.raises(CacheError, match=r'conditioning is "context", but .* I2V.* needs "first"'):
        open_run(run.directory, run.roots).check(with_start=True)
    open_run((fine := make_run(tmp_path / "b", shape=TINY, context=CONTEXT)).directory, fine.roots).check(
        with_start=True
    )
    assert fine.config.model == PLAN
