"""Prior preservation: clips whose target is what the base model predicts, so that what it knows stays."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.support.adapters import KINDS, filled
from tests.support.forked import ForkServer
from tests.support.sessions import train_here
from tests.support.tiny_run import (
    PLAN,
    TINY,
    TINY_TI2V,
    TinyRun,
    make_pair_run,
    make_run,
    random_weights,
    short,
    train_on_two,
)
from tests.wan_core.train.test_masked import with_set
from wan_core.cache import Batches, LatentCache
from wan_core.errors import ConfigError
from wan_core.events import StepDone
from wan_core.flow import velocity_loss
from wan_core.job.open import open_experts
from wan_core.lora import FrozenLora, LoraConfig, adapter_parameters, inject_lora
from wan_core.model import WanShape, WanTransformer, draw_passages, placed_routes, read_routes
from wan_core.precision import PrecisionPolicy
from wan_core.train import NoisedBatch, SaveStore, TrainConfig, true_velocity
from wan_core.train.objective import Objective, Target, TargetPass

pytestmark = pytest.mark.lasts(1)

SIZE = (3, 2, 4, 4)  # clips, latent frames, height, width


def model_of(shape: WanShape = TINY) -> WanTransformer:
    model = WanTransformer(shape, PrecisionPolicy().numerics(torch.float32))
    model.load_state_dict(random_weights(shape))
    return model.requires_grad_(False)


def batch_of(*prior: float, channels: int = 16, **parts: object) -> NoisedBatch:
    generator = torch.Generator().manual_seed(3)
    clips, size = len(prior), SIZE[1:]
    latent, noise = (torch.randn(clips, channels, *size, generator=generator) for _ in range(2))
    noised = 0.5 * latent + 0.5 * noise
    text = torch.randn(clips, 16, 4096, generator=generator)
    rows = tuple(place for place, weight in enumerate(prior) if weight)
    passes = (TargetPass(tuple(float(weight > 0) for weight in prior)),)
    true = tuple(float(not weight) for weight in prior)
    target = Target(passes, true, tuple(weight or 1.0 for weight in prior), rows)
    return NoisedBatch(latent, noise, noised, torch.full((clips,), 0.5), text, target=target, **parts)  # type: ignore


def asked_for(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Tensor, Tensor]]:
    """Returns what the loss is made of from now on: predictions and targets."""
    seen: list[tuple[Tensor, Tensor]] = []

    def spy(prediction: Tensor, target: Tensor, *rest: object, **named: object) -> Tensor:
        seen.append((prediction.detach(), target))
        return velocity_loss(prediction, target, *rest, **named)  # type: ignore[arg-type]

    monkeypatch.setattr("wan_core.train.objective.velocity_loss", spy)
    return seen


def marked(run: TinyRun, *places: int, weight: float = 1.0) -> TinyRun:
    """The run on the same clips, of which those in `places` keep what the model knows."""
    cache = LatentCache(run.roots.first("cache"))
    found = cache.read_set(run.config.data.fingerprint)
    items = tuple(replace(item, prior=weight * (place in places)) for place, item in enumerate(found.items))
    return with_set(run, cache.write_set(replace(found, items=items)))


def state_of(run: TinyRun) -> dict[str, bytes]:
    saved = SaveStore(run.directory).latest()
    assert saved is not None
    return {file.name: file.read_bytes() for file in saved.folder.iterdir() if file.suffix == ".safetensors"}


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(
            k, marks=[] if k in ("LoRA", "DoRA, norms and biases", "LoKr", "LoHa", "PiSSA", "OFT") else pytest.mark.soak
        )
        for k in KINDS
    ],
)
def test_the_target_is_what_the_model_without_adapters_predicts(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    base, model, batch = model_of(), model_of(), batch_of(1.0, 1.0)
    inject_lora(model, KINDS[kind], seed=0)
    filled(model)
    seen = asked_for(monkeypatch)
    found = Objective(model, TrainConfig()).trained(batch)
    (predicted, target), _ = seen
    assert torch.equal(target, base(batch.noised, batch.timestep, batch.text))
    assert not torch.equal(target, predicted)
    assert found.prior_clips == 2
    assert torch.equal(found.loss.detach(), (predicted - target).square().mean())
    assert found.prior is not None
    assert torch.equal(found.prior, found.loss.detach())
    assert torch.equal(model(batch.noised, batch.timestep, batch.text), predicted), "the adapters act again"


def test_where_the_adapters_change_nothing_there_is_nothing_to_learn() -> None:
    routes = read_routes("0.5: 0..-1")
    passages = draw_passages(
        placed_routes(routes, TINY.num_layers), SIZE[1], SIZE[2] * SIZE[3] // 4, [torch.Generator()]
    )
    model = model_of()
    inject_lora(model, LoraConfig(rank=4), seed=0)
    for checkpointing in (False, True):
        model.checkpoint_blocks = checkpointing
        found = Objective(model, TrainConfig()).trained(batch_of(1.0, 1.0, passages=passages))
        found.loss.backward()
        assert not found.loss.detach().any()
        assert all(not value.grad.any() for value in adapter_parameters(model).values() if value.grad is not None)
    assert all(value.grad is not None for value in adapter_parameters(model).values())


def test_other_clips_of_a_batch_keep_their_own_target_and_weights_count(monkeypatch: pytest.MonkeyPatch) -> None:
    base, model = model_of(TINY_TI2V), model_of(TINY_TI2V)
    inject_lora(model, LoraConfig(rank=4), seed=0)
    filled(model)
    mask = torch.rand(3, 1, *SIZE[1:], generator=torch.Generator().manual_seed(5))
    given = torch.tensor([False, True, True])
    batch = batch_of(2.5, 0.0, 2.5, channels=48, given=given, loss_mask=mask)
    seen = asked_for(monkeypatch)
    found = Objective(model, TrainConfig()).trained(batch)
    predicted, target = seen[0]
    everything = base(batch.noised, batch.timestep, batch.text)
    assert torch.equal(target[1], true_velocity(batch)[1])
    torch.testing.assert_close(target[[0, 2]], everything[[0, 2]], atol=1e-5, rtol=1e-5)
    assert batch.trained is not None
    weights = batch.trained.expand_as(target)
    errors = (predicted - target).square() * weights
    by_hand = (2.5 * errors[0] + errors[1] + 2.5 * errors[2]).sum() / weights.sum()
    torch.testing.assert_close(found.loss.detach(), by_hand)
    torch.testing.assert_close(found.prior, errors[[0, 2]].sum() / weights[[0, 2]].sum())


def test_without_a_weight_marked_clips_are_trained_like_any_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ordinary = short(steps=2, eval_items=0)
    plain = make_run(tmp_path / "plain", train=ordinary)
    off = marked(make_run(tmp_path / "off", train=ordinary), 0, 2, weight=0.0)
    monkeypatch.setattr("wan_core.train.objective.without_adapters", None)  # the base model is not asked
    for run in (plain, off):
        train_here(run)
    assert state_of(plain) == state_of(off)
    assert off.config.data == plain.config.data, "sets of before keep their names"


def test_a_run_says_how_far_it_strayed_and_learns_something_else(tmp_path: Path) -> None:
    config = short(steps=2, eval_items=1, batch_size=3, gradient_accumulation_steps=2)
    run, plain = marked(make_run(tmp_path / "a", train=config), 1), make_run(tmp_path / "b", train=config)
    events, others = train_here(run), train_here(plain)
    steps = [event for event in events if isinstance(event, StepDone)]
    assert steps[0].prior_loss == pytest.approx(0.0, abs=1e-9)
    assert all(step.prior_loss and 0 < step.prior_loss < step.loss for step in steps[1:])
    assert all(event.prior_loss is None for event in others if isinstance(event, StepDone))
    lines = [json.loads(line) for line in (run.directory / "metrics.jsonl").read_text().splitlines()]
    assert [line["prior_loss"] for line in lines if line["event"] == "step"] == [step.prior_loss for step in steps]
    assert state_of(run) != state_of(plain)


def test_what_is_learnt_is_evaluated_and_a_set_of_prior_clips_alone_is_refused(tmp_path: Path) -> None:
    run = marked(make_run(tmp_path, train=short(steps=4)), 0, 1)
    (opened,) = open_experts(run.directory, run.roots)
    assert opened.cache_set.prior_share == pytest.approx(2 / 3)
    opened.check(with_start=True)
    batches = Batches(opened.cache_set, opened.cache, seed=0, batch_size=1)
    assert [item.prior for item in batches.evaluation_items(3)] == [0.0]
    everything = marked(run, 0, 1, 2)
    with pytest.raises(ConfigError, match=r"All 3 clips .* so nothing new would be trained"):
        open_experts(everything.directory, everything.roots)[0].check(with_start=True)


HARD = {
    "steps": 4,
    "save_every_n_steps": 2,
    "gradient_accumulation_steps": 2,
    "batch_size": 2,
    "caption_dropout": 0.3,
    "ema_decay": 0.9,
    "tread_routes": "0.5: 0..-1",
    "eval_items": 0,
    "expert_order": "alternating",
    "expert_turn_steps": 1,
}


@pytest.mark.soak
def test_a_pair_with_everything_on_goes_on_bitwise(tmp_path: Path) -> None:
    lora = LoraConfig(kind="DoRA", rank=2, dropout=0.2)
    once, parts = (marked(make_pair_run(tmp_path / name, lora=lora, **HARD), 0, 2) for name in ("once", "parts"))
    train_here(once)
    for steps in (1, 0):
        train_here(parts, max_steps=steps)
    assert state_of(once) == state_of(parts)


@pytest.mark.soak
@pytest.mark.filterwarnings("ignore:The .grad attribute")  # where blocks are compiled torch looks at it
@pytest.mark.parametrize("changes", [{"compile": True}, {"optimizer": "prodigy"}, {"gradient_checkpointing": False}])
def test_a_run_over_a_frozen_lora_goes_on_bitwise_with(tmp_path: Path, changes: dict[str, object]) -> None:
    from tests.wan_core.session.test_frozen_loras import write_lora

    runs = []
    for name in ("once", "parts"):
        write_lora(tmp_path / name / "under.safetensors", 1)
        plan = replace(PLAN, loras=(FrozenLora(file="loras:under.safetensors"),))
        made = short(steps=6, save_every_n_steps=1, eval_items=0, **changes)
        runs.append(marked(make_run(tmp_path / name, train=made, plan=plan), 0, 2))
    first = next(event for event in train_here(runs[0]) if isinstance(event, StepDone))
    assert first.prior_loss in (0, None), "the frozen LoRA belongs to the base"
    for steps in (1, 3, 0):
        train_here(runs[1], max_steps=steps)
    assert state_of(runs[0]) == state_of(runs[1])


@pytest.mark.soak
def test_two_ranks_say_the_mean_of_both_and_go_on_bitwise(server: ForkServer, tmp_path: Path) -> None:
    def on_two(root: Path, *pieces: int) -> TinyRun:
        return train_on_two(server, marked(make_pair_run(root, **HARD), 0, 2), *pieces)

    once, parts = on_two(tmp_path / "once", 0), on_two(tmp_path / "parts", 2, 0)
    assert state_of(once) == state_of(parts)
    told = [json.loads(line) for line in (once.directory / "metrics.jsonl").read_text().splitlines()]
    assert any(line["prior_loss"] for line in told if line["event"] == "step")
