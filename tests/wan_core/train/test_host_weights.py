"""An optimizer in host memory trains as the one on the device does, to the last bit where both are the CPU."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from tests.support.sessions import make_trainer, of, same, train_here
from tests.support.tiny_run import make_pair_run, make_run
from tests.wan_core.train.test_optimizers import IN_CI, SMALL, need, saved, settings
from wan_core.events import Event, Note
from wan_core.lora import LoraConfig
from wan_core.placement.copies import Copies, remark_once
from wan_core.train import TrainConfig, held_bytes, state_bytes
from wan_core.train.optimizer_state import AdapterOptimizer
from wan_core.train.weight_copies import HostWeights

pytestmark = [
    pytest.mark.lasts(1),
    pytest.mark.filterwarnings("ignore:Paged optimizers are not supported on CPU"),
]
Weights = dict[str, nn.Parameter]


def new_weights(device: str = "cpu") -> Weights:
    draw = torch.Generator().manual_seed(0)
    shapes = {"x.lora_A.weight": (16, 300), "x.lora_B.weight": (301, 16)}
    return {name: nn.Parameter(torch.randn(shape, generator=draw).to(device)) for name, shape in shapes.items()}


def stepped(optimizer: AdapterOptimizer, weights: Weights, start: int, stop: int) -> None:
    for step in range(start, stop):
        draw = torch.Generator().manual_seed(1 + step)
        for weight in weights.values():
            weight.grad = torch.randn(weight.shape, generator=draw).to(weight.device)
        optimizer.read(torch.zeros(1, device=next(iter(weights.values())).device))
        optimizer.step(1e-3)


def values(weights: Weights) -> dict[str, Tensor]:
    return {name: weight.detach().clone() for name, weight in weights.items()}


@pytest.mark.parametrize("name", IN_CI)
def test_each_optimizer_steps_in_host_memory_as_beside_the_model_and_either_takes_up_the_other(name: str) -> None:
    need(name)
    ema = {} if name == "schedule_free" else {"ema_decay": 0.9}
    beside = settings(name, loraplus_lr_ratio=1.0 if name == "prodigy" else 4.0, **ema)
    host = replace(beside, offload_optimizer=True)
    weights = [new_weights() for _ in range(4)]

    def limit(own: Weights) -> None:  # as `scale_weight_norms` does between two steps
        with torch.no_grad():
            own["x.lora_A.weight"].mul_(0.75)

    def made(own: Weights, config: object) -> AdapterOptimizer:
        return AdapterOptimizer(own, config, then=lambda: limit(own))  # type: ignore[arg-type]

    straight, away = made(weights[0], beside), made(weights[1], host)
    for optimizer, own in ((straight, weights[0]), (away, weights[1])):
        stepped(optimizer, own, 0, 2)
    for own, config, other in ((weights[2], host, straight), (weights[3], beside, away)):
        for parameter, value in zip(own.values(), weights[0].values(), strict=True):
            parameter.data.copy_(value.detach())
        resumed = made(own, config)
        resumed.load(other.state())
        stepped(resumed, own, 2, 4)
    away_state = copy.deepcopy(away.state())
    away.forget()  # as an expert of a pair does that waits
    away.load(away_state)
    for optimizer, own in ((straight, weights[0]), (away, weights[1])):
        stepped(optimizer, own, 2, 4)
    assert all(same(values(own), values(weights[0])) for own in weights[1:])
    assert same(away.state(), straight.state())
    assert not {id(p) for g in away.inner.param_groups for p in g["params"]} & {id(p) for p in weights[1].values()}


def test_what_is_judged_is_the_same_wherever_the_optimizer_is() -> None:
    need("schedule_free")
    found = []
    for offload in (False, True):
        weights = new_weights()
        optimizer = AdapterOptimizer(weights, settings("schedule_free", offload_optimizer=offload))
        stepped(optimizer, weights, 0, 3)
        trained = values(weights)
        with optimizer.evaluated_weights():
            found.append(values(weights))
            assert not same(found[-1], trained)
        assert same(values(weights), trained)
        stepped(optimizer, weights, 3, 4)
        found.append(values(weights))
    assert same(found[0], found[2])
    assert same(found[1], found[3])


def test_a_step_that_breaks_leaves_the_weights_as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    weights = new_weights()
    optimizer = AdapterOptimizer(weights, settings("adamw", offload_optimizer=True))
    stepped(optimizer, weights, 0, 1)
    before = values(weights)

    def break_half_way() -> None:
        optimizer.inner.param_groups[0]["params"][0].data.zero_()
        raise MemoryError

    monkeypatch.setattr(optimizer.inner, "step", break_half_way)
    with pytest.raises(MemoryError):
        stepped(optimizer, weights, 1, 2)
    assert same(values(weights), before)


def test_a_weight_without_a_gradient_stays_without_one() -> None:
    weights = new_weights()
    host = HostWeights(weights)
    weights["x.lora_A.weight"].grad = torch.ones(16, 300)
    host.take(torch.device("cpu"))
    assert torch.equal(host.copies["x.lora_A.weight"].grad, torch.ones(16, 300))  # type: ignore[arg-type]
    assert host.copies["x.lora_B.weight"].grad is None
    assert all(copy.data_ptr() % 64 == 0 for copy in host.copies.values())


def test_a_run_goes_on_with_its_optimizer_elsewhere(tmp_path: Path) -> None:
    config, lora = settings("adamw", ema_decay=0.9, steps=3), LoraConfig(rank=4, max_norm=0.05)
    straight, stopped = (make_run(tmp_path / name, shape=SMALL, train=config, lora=lora) for name in "ab")
    train_here(straight)
    train_here(stopped, max_steps=2)
    moved = replace(stopped.config, train=replace(config, offload_optimizer=True))
    assert moved.identity() == stopped.config.identity(), "the same job"
    (stopped.directory / "run.json").write_text(json.dumps(moved.to_dict()), encoding="utf-8")
    train_here(stopped)
    assert same(saved(stopped, "state"), saved(straight, "state"))
    assert same(saved(stopped, "lora"), saved(straight, "lora"))


@pytest.mark.soak
@pytest.mark.parametrize("order", ["high first", "alternating"])
def test_experts_that_change_places_and_stop_learn_the_same(tmp_path: Path, order: str) -> None:
    kept = []
    for name, offload in (("a", False), ("b", True)):
        run = make_pair_run(
            tmp_path / name, offload_optimizer=offload, expert_order=order, expert_turn_steps=1, eval_items=0
        )
        for most in (3, 2, 0) if offload else (0,):
            train_here(run, max_steps=most)
        kept.append(load_file(run.directory / "saves" / "step-000006" / "state.safetensors"))
    assert same(*kept)


def test_what_it_holds_is_counted_where_it_lies() -> None:
    usual = settings("adamw", ema_decay=0.9)
    assert held_bytes(usual) == (12.0, 0.0)
    away = replace(usual, offload_optimizer=True)
    assert held_bytes(away) == (4.0, 16.0), "the mean stays; two moments, a weight and a gradient are in host memory"
    assert state_bytes(away) == state_bytes(usual)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs one CUDA GPU; this machine has none")
def test_on_a_gpu_it_steps_on_the_cpu_from_locked_memory() -> None:
    ours, plain = new_weights("cuda"), new_weights()
    away = AdapterOptimizer(ours, settings("adamw", offload_optimizer=True))
    stepped(away, ours, 0, 3)
    stepped(AdapterOptimizer(plain, settings("adamw")), plain, 0, 3)
    assert all(torch.equal(ours[name].cpu(), plain[name]) for name in plain)
    held = [value for state in away.inner.state.values() for value in state.values()]
    assert {value.device.type for value in held} == {"cpu"}
    assert all(group["params"][0].is_pinned() for group in away.inner.param_groups)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs one CUDA GPU; this machine has none")
def test_on_a_gpu_the_host_waits_for_neither_way() -> None:
    weights, device = new_weights("cuda"), torch.device("cuda", 0)
    host = HostWeights(weights)
    host.take(device)  # page-locks
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for weight in weights.values():
            weight.grad = 2 * weight.detach()
        host.take(device)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert torch.zeros(1, device=device).tolist() == [0.0], "the one wait"
    for name, weight in weights.items():
        assert torch.equal(host.copies[name], weight.cpu())
        assert torch.equal(host.copies[name].grad, 2 * weight.cpu())  # type: ignore[arg-type]
        host.copies[name].data.mul_(3)
    torch.cuda.set_sync_debug_mode("error")
    try:
        host.give_back()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert all(torch.equal(host.copies[name], weight.cpu()) for name, weight in weights.items())


def test_host_memory_that_is_short_is_said_once_in_each_run_that_finds_it_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(_device: torch.device) -> Copies:
        copies = Copies()
        remark_once(copies.remarks, "locking", "The system refuses more.")
        return copies

    monkeypatch.setattr("wan_core.train.weight_copies.copies_of", refused)
    for offload, said in ((True, 1), (False, 0), (True, 1)):
        events: list[Event] = []
        config = TrainConfig(steps=2, discrete_flow_shift=3.0, offload_optimizer=offload)
        make_trainer(tmp_path, config, emit=events.append).run(2, lambda _step: False)
        assert [note.text for note in of(events, Note)].count("The system refuses more.") == said
