"""Targets with predictions without gradients: guidance for distilled bases, and the class word of a trigger word."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.sessions import train_here
from tests.support.tiny_run import PLAN, TinyRun, make_run, short
from tests.wan_core.train.test_masked import with_set
from tests.wan_core.train.test_prior import asked_for, batch_of, filled, marked, model_of, state_of
from wan_core.cache import Batches, LatentCache
from wan_core.events import Evaluated, StepDone
from wan_core.flow import draw_noise, seeded_generator, simple_sigmas
from wan_core.job.open import open_experts
from wan_core.load import materialize
from wan_core.lora import LoraConfig, inject_lora
from wan_core.placement import PlacementConfig
from wan_core.precision import QuantizeConfig
from wan_core.train import Group, TrainConfig, true_velocity
from wan_core.train.draws import Draws
from wan_core.train.objective import Objective, Target, TargetPass


def test_the_guidance_target_lies_beyond_the_true_velocity_from_the_empty_prompt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, empty = model_of(), torch.randn(2, 16, 4096, generator=torch.Generator().manual_seed(8))
    inject_lora(model, LoraConfig(rank=4), seed=0)
    filled(model)
    target = Target((TargetPass((-2.0, -2.0), empty, adapted=True),), (3.0, 3.0))
    batch = replace(batch_of(0.0, 0.0), target=target)
    seen = asked_for(monkeypatch)
    found = Objective(model, TrainConfig()).trained(batch)
    (_, aim) = seen[0]
    without = model(batch.noised, batch.timestep, empty).detach()
    torch.testing.assert_close(aim, without + 3 * (true_velocity(batch) - without), atol=1e-5, rtol=1e-5)
    assert found.prior is None
    assert not aim.requires_grad


def test_a_run_with_guidance_and_prior_clips_resumes_bitwise(tmp_path: Path) -> None:
    config = short(steps=3, eval_items=0, batch_size=2, save_every_n_steps=1, guidance_target=3.0)
    once, parts, plain = (
        marked(make_run(tmp_path / name, train=train), 0, 2)
        for name, train in (("a", config), ("b", config), ("c", replace(config, guidance_target=1.0)))
    )
    steps = [event for event in train_here(once) if isinstance(event, StepDone)]
    for count in (1, 0):
        train_here(parts, max_steps=count)
    others = [event for event in train_here(plain) if isinstance(event, StepDone)]
    assert state_of(once) == state_of(parts)
    assert sum(one.loss != other.loss for one, other in zip(steps, others, strict=True)) >= 2


def classed(run: TinyRun, *places: int, weight: float = 2.0) -> TinyRun:
    """The run on the same clips, of which those in `places` have a class word; its caption is the last clip's."""
    cache = LatentCache(run.roots.first("cache"))
    found = cache.read_set(run.config.data.fingerprint)
    last = found.items[-1].text_key
    items = tuple(
        replace(item, class_weight=weight, class_key=last) if place in places else item
        for place, item in enumerate(found.items)
    )
    return with_set(run, cache.write_set(replace(found, items=items)))


def test_clips_of_a_class_are_trained_twice_on_the_same_noise(tmp_path: Path) -> None:
    run = classed(
        make_run(tmp_path, train=short(steps=1, batch_size=3, caption_dropout=1.0, discrete_flow_shift=3.0)), 0, 2
    )
    (opened,) = open_experts(run.directory, run.roots)
    assert opened.cache_set.class_share == pytest.approx(2 / 3)
    batches = Batches(opened.cache_set, opened.cache, seed=0, batch_size=3)
    levels = {"sigma_range": (0.0, 1.0), "first_frame_share": 0.0}
    draws = Draws(batches, torch.zeros(1, 4096), run.config.train, Group(), **levels)  # type: ignore[arg-type]
    concept, of_class, following = (draws.at(number) for number in range(3))
    assert torch.equal(concept.noise, of_class.noise)
    assert torch.equal(concept.sigma, of_class.sigma)
    assert not torch.equal(concept.noise, following.noise)
    assert not concept.batch.texts.any(), "captions are dropped, and those of the class are not"
    rows = [row for row, item in enumerate(batches.items_at(0)) if item.class_weight]
    assert of_class.batch.class_texts is of_class.batch.texts
    assert of_class.target.prior_rows == tuple(rows)
    assert sorted(of_class.target.weights) == [0.0, 2.0, 2.0]
    assert not concept.target.passes


@pytest.mark.parametrize(
    "changes", [{"blocks_to_swap": 2, "memory": "manual"}, pytest.param({"quantize": True}, marks=pytest.mark.soak)]
)
def test_a_class_word_adds_its_error_to_the_loss_and_resumes_bitwise(tmp_path: Path, changes: dict[str, Any]) -> None:
    train = short(steps=2, eval_items=0, save_every_n_steps=1, batch_size=3)
    plan = replace(PLAN, quantize=QuantizeConfig(scheme="int8")) if changes.pop("quantize", False) else PLAN
    once, parts, plain = (
        make_run(tmp_path / name, train=replace(train, **changes), plan=plan) for name in ("once", "parts", "plain")
    )
    once, parts = classed(once, 0, 1, 2), classed(parts, 0, 1, 2)
    steps = [event for event in train_here(once) if isinstance(event, StepDone)]
    for count in (1, 0):
        train_here(parts, max_steps=count)
    first = next(event for event in train_here(plain) if isinstance(event, StepDone))
    assert state_of(once) == state_of(parts)
    assert steps[0].prior_loss == pytest.approx(0.0, abs=1e-9)
    assert steps[0].loss == pytest.approx(first.loss), "before the first update the adapters change nothing"
    assert (steps[0].tokens, first.tokens) == (2 * first.tokens, first.tokens)
    assert all(step.prior_loss and step.prior_loss > 0 for step in steps[1:])


def slid(run: TinyRun, *, alike: bool = False) -> TinyRun:
    """The run with two sliders in place of its clips; their prompts are the clips' captions, `alike` twice one."""
    cache = LatentCache(run.roots.first("cache"))
    found = cache.read_set(run.config.data.fingerprint)
    keys = tuple(item.text_key for item in found.items)
    items = (replace(item, slider=2.0, slider_keys=(keys[1], keys[1 if alike else 2])) for item in found.items[:2])
    return with_set(run, cache.write_set(replace(found, items=tuple(items))))


def test_a_slider_is_trained_from_noise_towards_the_difference_of_its_prompts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = short(steps=2, eval_items=2, batch_size=2, save_every_n_steps=1, timestep_list=(400.0,), seed=3)
    once, parts = (slid(make_run(tmp_path / name, train=config)) for name in ("once", "parts"))
    (opened,) = open_experts(once.directory, once.roots)
    batch = Batches(opened.cache_set, opened.cache, seed=3, batch_size=2).at(0)
    noise = draw_noise(batch.latents.shape, seeded_generator(3, "noise", 0))
    base = materialize(once.config.model, once.roots, None)

    def velocity(latent: torch.Tensor, sigma: float, text: torch.Tensor) -> torch.Tensor:
        return base(latent, torch.full((2,), 1000 * sigma), text).detach()

    latent, shift = noise, opened.settings.discrete_flow_shift
    for here, there in pairwise(simple_sigmas(8, shift).tolist()):
        if here > 0.4:
            latent = latent + (max(there, 0.4) - here) * velocity(latent, here, batch.texts)
    towards, away = (velocity(latent, 0.4, text) for text in batch.slider_texts)
    expected = velocity(latent, 0.4, batch.texts) + 2 * (towards - away)

    seen = asked_for(monkeypatch)
    events = train_here(once)
    torch.testing.assert_close(seen[0][1], expected, atol=2e-3, rtol=2e-3)
    assert not [event for event in events if isinstance(event, Evaluated)], "there is no clip to evaluate"
    for count in (1, 0):
        train_here(parts, max_steps=count)
    assert state_of(once) == state_of(parts)


SPLIT = PlacementConfig(mode="split blocks", devices="cpu,cpu", split_at="1")


@pytest.mark.parametrize(
    ("train", "plan"),
    [
        pytest.param({"blocks_to_swap": 2, "memory": "manual"}, {}, marks=pytest.mark.soak, id="swapped"),
        pytest.param({}, {"placement": SPLIT}, id="split"),
    ],
)
def test_where_the_blocks_are_changes_nothing_in_a_slider(
    tmp_path: Path, train: dict[str, Any], plan: dict[str, Any]
) -> None:
    settings = short(steps=2, eval_items=0, gradient_accumulation_steps=2)
    here = slid(make_run(tmp_path / "here", train=settings))
    elsewhere = slid(make_run(tmp_path / "else", train=replace(settings, **train), plan=replace(PLAN, **plan)))
    found, expected = ([e.loss for e in train_here(run) if isinstance(e, StepDone)] for run in (elsewhere, here))
    assert found == expected
    assert expected[1] > 0


@pytest.mark.parametrize("scheme", [pytest.param("int8", marks=pytest.mark.soak), "Q4_0"])
def test_a_slider_on_a_quantized_base_aims_at_predictions_of_that_base(tmp_path: Path, scheme: str) -> None:
    """At the start the adapters change nothing: without a difference of prompts there is nothing to learn."""
    plan = replace(PLAN, quantize=QuantizeConfig(scheme=scheme))
    run = slid(make_run(tmp_path, train=short(steps=2, eval_items=0), plan=plan), alike=True)
    steps = [event.loss for event in train_here(run) if isinstance(event, StepDone)]
    assert steps == pytest.approx([0, 0], abs=1e-7), "rounding"
