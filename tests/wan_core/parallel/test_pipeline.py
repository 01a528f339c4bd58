"""Cards of a split model that work at once: the gradients of plain accumulation to the last bit, and clean ends.

Two names of the CPU stand for two cards; tests/wan_core/placement/test_on_a_card.py has the same on stand-in cards.
"""

from __future__ import annotations

import threading
import traceback
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.support.sessions import Steered, trainer_on
from tests.support.tiny_run import (
    PLAN,
    TINY,
    TINY_CAMERA,
    TINY_CONTROL,
    TINY_FLF2V,
    TINY_HUMO,
    TINY_I2V,
    TINY_S2V,
    TINY_SCAIL2,
    TINY_TI2V,
    make_roots,
    steady,
)
from wan_core.cache import LatentCache
from wan_core.errors import Stopped
from wan_core.load import materialize
from wan_core.lora import LoraConfig, linear_adapter
from wan_core.model import WanShape, WanTransformer
from wan_core.parallel import pipeline
from wan_core.parallel.schedule import Schedule, in_turn, pipelined
from wan_core.parallel.timeline import StageCost, replay
from wan_core.placement import DeviceCarrier, Placement
from wan_core.precision import QuantizeConfig
from wan_core.train import Trainer

pytestmark = pytest.mark.lasts(0.5)

ONE, TWO = torch.device("cpu"), torch.device("cpu", 0)
SPLIT, INTERLEAVED = (ONE, ONE, TWO, TWO), (ONE, TWO, ONE, TWO)
FOUR = replace(TINY, num_layers=4)
MICRO_BATCHES = 3


def trainer_of(
    folder: Path,
    shape: WanShape = FOUR,
    blocks: tuple[torch.device, ...] = (),
    *,
    lora: LoraConfig | None = None,
    scheme: str = "",
    prior: float = 0.0,
    **options: Any,
) -> Trainer:
    """A trainer of three micro-batches a step; `blocks`: the card of each block, all on one without."""
    roots, fingerprint = make_roots(folder, shape)
    plan = replace(PLAN, quantize=QuantizeConfig(scheme=scheme)) if scheme else PLAN
    model = materialize(plan, roots, lora or LoraConfig(rank=4), seed=0)
    generator = torch.Generator().manual_seed(1)
    for name, parameter in model.named_parameters():
        if name.endswith("lora_B.weight"):  # zero at the start, which would leave A without a gradient
            parameter.data = 0.1 * torch.randn(parameter.shape, generator=generator)
    if blocks:
        model.carrier = DeviceCarrier(Placement(blocks))
    cache = LatentCache(roots.first("cache"))
    clips = cache.read_set(fingerprint)
    clips = replace(clips, items=(replace(clips.items[0], prior=prior), *clips.items[1:]))
    given = {name: options.pop(name) for name in ("control", "first_frame_share") if name in options}
    train = steady(gradient_accumulation_steps=MICRO_BATCHES, **options)
    return trainer_on(model, cache, clips, train, **given)


def step_of(trainer: Trainer, step: int = 1) -> dict[str, Tensor]:
    """Gradients, loss and mean timestep of a step, and its prior loss."""
    loss, timestep = trainer._accumulated(step)
    found = {name: p.grad.clone() for name, p in trainer.parameters.items() if p.grad is not None}
    assert len(found) == len(trainer.parameters)
    trainer._forget_gradients()
    prior = trainer._report.prior_errors
    return found | {"loss": loss, "timestep": torch.tensor(timestep), "prior": torch.stack([loss, *prior])}


def assert_same(found: dict[str, Tensor], wanted: dict[str, Tensor]) -> None:
    assert found.keys() == wanted.keys()
    assert [name for name in wanted if not torch.equal(found[name], wanted[name])] == []


VACE = replace(FOUR, vace_layers=(0, 2))
CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "image to video": {"shape": replace(TINY_I2V, num_layers=4)},
    "first and last frame": {"shape": replace(TINY_FLF2V, num_layers=4)},
    "a timestep per frame": {"shape": replace(TINY_TI2V, num_layers=4), "first_frame_share": 0.5},
    "VACE": {"shape": VACE},
    "VACE with TREAD": {"shape": VACE, "tread_routes": "0.5: 1..2"},
    "Fun Control": {"shape": replace(TINY_CONTROL, num_layers=4)},
    "Fun Camera": {"shape": replace(TINY_CAMERA, num_layers=4)},
    "SCAIL-2": {"shape": replace(TINY_SCAIL2, num_layers=4)},
    "HuMo": {"shape": replace(TINY_HUMO, num_layers=4)},
    "S2V": {"shape": replace(TINY_S2V, num_layers=4, sound_layers=(0, 3))},
    "TREAD over the border": {"tread_routes": "0.5: 1..2"},
    "dropout": {"lora": LoraConfig(rank=4, dropout=0.3)},
    "dropout, nothing recomputed": {"lora": LoraConfig(rank=4, dropout=0.3), "gradient_checkpointing": False},
    "nothing recomputed": {"gradient_checkpointing": False},
    "attention kept": {"checkpointing_policy": "attn_output"},
    "products kept": {"checkpointing_policy": "matmul_without_batch"},
    "an unchecked block": {"unchecked_blocks": 1},
    "8 bits": {"scheme": "int8"},
    "prior preservation": {"prior": 0.5},
    "prior preservation, batches of two": {"prior": 0.5, "batch_size": 2},
    "loss scaling": {"loss_scaling": "dynamic"},
}


IN_CI = (
    "first and last frame",
    "a timestep per frame",
    "prior preservation, batches of two",
)
"""with one border between the cards; CI tries two more with several below"""


@pytest.mark.parametrize(
    "case", [case if case in IN_CI else pytest.param(case, marks=pytest.mark.soak) for case in CASES]
)
def test_gradients_are_those_of_plain_accumulation_to_the_last_bit(tmp_path: Path, case: str) -> None:
    options = CASES[case]
    wanted = trainer_of(tmp_path / "plain", **options)
    found = trainer_of(tmp_path / "split", blocks=SPLIT, **options)
    assert (found._at_once.schedule(MICRO_BATCHES), wanted._at_once.schedule(MICRO_BATCHES)) == (
        pipelined((0, 1), MICRO_BATCHES),
        None,
    )
    assert_same(step_of(found), step_of(wanted))


@pytest.mark.parametrize("case", ["dropout", "VACE with TREAD"])
def test_so_are_those_of_interleaved_blocks(tmp_path: Path, case: str) -> None:
    found = trainer_of(tmp_path / "split", blocks=INTERLEAVED, **CASES[case])
    assert_same(step_of(found), step_of(trainer_of(tmp_path / "plain", **CASES[case])))


def test_each_card_drops_ranks_by_the_seed_of_its_own_generator(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on GPUs, where the CPU's generator, which all threads share, has the seed of the last micro-batch."""
    dropping: dict[str, Any] = {"lora": LoraConfig(rank=4, rank_dropout=0.5), "gradient_checkpointing": False}
    wanted = step_of(trainer_of(tmp_path / "plain", **dropping))
    own = threading.local()  # a card has one thread

    def generator() -> torch.Generator:
        return getattr(own, "generator", torch.default_generator)

    def set_state(_device: torch.device, state: Tensor) -> None:
        own.generator = torch.Generator()
        own.generator.set_state(state)

    monkeypatch.setattr(pipeline, "is_gpu", lambda _device: True)
    monkeypatch.setattr(pipeline, "random_state", lambda _device: generator().get_state())
    monkeypatch.setattr(pipeline, "set_random_state", set_state)
    monkeypatch.setattr(linear_adapter, "seed_of", lambda _device: generator().initial_seed())
    assert_same(step_of(trainer_of(tmp_path / "split", blocks=SPLIT, **dropping)), wanted)


def test_what_the_cards_did_is_recorded_and_replayed(tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path, blocks=SPLIT)
    step_of(trainer)
    issued, homes = trainer._at_once.pipeline.issued, (0, 1)
    recorded = Schedule(tuple(tuple(work for work in issued if homes[work.stage] == card) for card in homes))
    assert recorded == pipelined(homes, MICRO_BATCHES)
    cost = [StageCost(4, 13, 415_000_000)] * 2
    before = replay(in_turn(homes, MICRO_BATCHES), cost).seconds
    assert before / replay(recorded, cost).seconds == pytest.approx(1.5, abs=0.01)


def cards_at_work() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("wan-card")]


def plant(model: WanTransformer, block: int, call: int, error: Exception) -> None:
    """Lets a block fail when it runs for the `call`-th time, forward."""
    calls = 0

    def fails(*_: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == call:
            raise error

    model.blocks[block].register_forward_pre_hook(fails)


@pytest.mark.parametrize(("block", "call"), [(0, 3), pytest.param(3, 1, marks=pytest.mark.soak)])
def test_an_error_in_any_thread_is_raised_with_its_own_traceback(tmp_path: Path, block: int, call: int) -> None:
    trainer = trainer_of(tmp_path / "split", blocks=SPLIT)
    plant(trainer.model, block, call, ValueError("planted"))
    with pytest.raises(ValueError, match="planted") as error:
        trainer._accumulated(1)
    assert "fails" in [frame.name for frame in traceback.extract_tb(error.value.__traceback__)]
    assert cards_at_work() == []
    trainer._forget_gradients()
    assert_same(step_of(trainer), step_of(trainer_of(tmp_path / "plain")))


def test_out_of_memory_on_one_card_is_relieved_and_tried_again(tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path / "split", blocks=SPLIT, steps=1, max_grad_norm=0.0)
    plant(trainer.model, 3, 2, torch.OutOfMemoryError("CUDA out of memory."))
    norm, loss, _ = trainer._computed(1)
    plain = trainer_of(tmp_path / "plain", steps=1, max_grad_norm=0.0)
    assert (norm, loss) == plain._computed(1)[:2]
    assert all(torch.equal(p.grad, plain.parameters[name].grad) for name, p in trainer.parameters.items())  # type: ignore[arg-type]


@pytest.mark.parametrize("question", [*(pytest.param(n, marks=pytest.mark.soak) for n in (2, 9)), 5])
def test_cancel_in_the_middle_of_a_step_ends_all_threads(tmp_path: Path, question: int) -> None:
    control = Steered()
    trainer = trainer_of(tmp_path, blocks=SPLIT, control=control)
    control.stop_at_question = question
    with pytest.raises(Stopped, match="stopped by the user"):
        trainer.run(1, lambda _step: None)
    assert cards_at_work() == []
    assert trainer.step == 0
    assert all(p.grad is None for p in trainer.parameters.values())


def test_one_micro_batch_goes_as_before(tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path, blocks=SPLIT)
    assert trainer._at_once.schedule(1) is None
