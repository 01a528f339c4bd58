"""Memory that runs out in the middle of a run: the same weights in the end, or one sentence and every saved step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.support.sessions import same, state, train_here
from tests.support.tiny_run import make_run
from wan_core.errors import OutOfMemory
from wan_core.events import Evaluated, Event, Note
from wan_core.model import WanShape, WanTransformer
from wan_core.model.block import WanBlock
from wan_core.model.checkpointing import Checkpointing, _Pass
from wan_core.parallel import ClipRanks, RankTokens
from wan_core.train import TrainConfig, Trainer, objective, trainer
from wan_core.train.optimizer_bytes import check_room
from wan_core.train.optimizer_state import AdapterOptimizer
from wan_core.train.recovery import Relief

pytestmark = pytest.mark.lasts(0.3)

SETTINGS = TrainConfig(
    steps=4,
    save_every_n_steps=2,
    preview_every_n_steps=0,
    gradient_accumulation_steps=2,
    learning_rate=1e-3,
    eval_items=1,
    save_dtype="fp32",
    checkpointing_policy="attn_output",
    unchecked_blocks=1,
)
FULL = "CUDA out of memory. Tried to allocate 2.00 GiB.\nmore lines"
BESIDE_TORCH = "CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported at some other API call."
"""what torch says where the driver refuses it memory that its allocator does not hand out; what libraries say is in
tests/wan_core/session/test_full_memory.py"""


_UNDISTURBED: dict[str, Tensor] = {}


@pytest.fixture
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Tensor]:
    """The last state of a run nothing happened to; trained once."""
    if not _UNDISTURBED:
        run = make_run(tmp_path_factory.mktemp("undisturbed"), train=SETTINGS)
        train_here(run)
        _UNDISTURBED.update(state(run, 4))
    return _UNDISTURBED


def failing(function: Callable[..., Any], first: int, times: int, full: Callable[[], Exception]) -> Callable[..., Any]:
    """`function`, out of memory at its calls `first` to `first + times - 1`."""
    calls = 0

    def run(*args: Any, **named: Any) -> Any:
        nonlocal calls
        calls += 1
        if first <= calls < first + times:
            raise full()
        return function(*args, **named)

    return run


# Two blocks, two micro-steps a step, one evaluation of four timesteps before the first step.
PLACES: dict[str, tuple[object, str, int]] = {
    "first block of the first step": (WanBlock, "forward", 9),
    "second block of a later micro-step": (WanBlock, "forward", 12),
    "first pass of a checkpointed block": (Checkpointing, "__call__", 13),
    "backward of a block": (_Pass, "backward", 1),
    "backward of a later block": (_Pass, "backward", 4),
    "the loss": (objective, "velocity_loss", 6),
    "before the first update": (trainer, "check_room", 1),
    "before a later update": (trainer, "check_room", 3),
    "evaluation of the base": (WanBlock, "forward", 3),
    "evaluation after a save": (objective, "velocity_loss", 11),
}


@contextmanager
def out_of_memory(
    place: str, times: int, full: Callable[[], Exception] = lambda: torch.OutOfMemoryError(FULL)
) -> Iterator[None]:
    owner, name, first = PLACES[place]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, name, failing(getattr(owner, name), first, times, full))
        yield


TWICE = ("first block of the first step", "evaluation after a save")
"""where CI tries what is out of memory twice, which gives something up"""
ONCE = ("before a later update",)
"""where CI tries what is out of memory once"""
ENDS = ("before a later update",)
"""where CI tries also what is out of memory for ever: after the first save"""


def _long(in_ci: bool) -> list[pytest.MarkDecorator]:
    return [] if in_ci else [pytest.mark.soak]


@pytest.mark.parametrize(
    ("place", "times"),
    [
        pytest.param(place, times, marks=_long(place in (TWICE if times == 2 else ONCE)))
        for place in PLACES
        for times in (1, 2)
    ],
)
def test_a_run_that_runs_out_of_memory_goes_on_as_if_it_had_not(
    tmp_path: Path, undisturbed: dict[str, Tensor], place: str, times: int
) -> None:
    run = make_run(tmp_path, train=SETTINGS)
    with out_of_memory(place, times):
        events = train_here(run)
    assert same(state(run, 4), undisturbed)
    warnings = [event.text for event in events if isinstance(event, Note) and event.level == "warning"]
    evaluations = [event.step for event in events if isinstance(event, Evaluated)]
    if times == 1:
        assert warnings == []
        assert evaluations == [0, 2, 4]
    elif place.startswith("evaluation"):
        assert [text.split(" was skipped")[0] for text in warnings] == [
            f"The evaluation after step {0 if 'base' in place else 2}"
        ]
    else:
        assert len(warnings) == 1
        assert "The GPU ran out of memory in step" in warnings[0]
        assert "every block is recomputed in the backward pass" in warnings[0]
        assert warnings[0].endswith("(CUDA out of memory. Tried to allocate 2.00 GiB.)")


def test_a_gpu_that_is_full_beside_torchs_own_allocator_is_full_too(
    tmp_path: Path, undisturbed: dict[str, Tensor]
) -> None:
    """It ends in a plain RuntimeError, or an AcceleratorError, which is one."""
    run = make_run(tmp_path, train=SETTINGS)
    with out_of_memory("backward of a block", 2, lambda: RuntimeError(BESIDE_TORCH)):
        events = train_here(run)
    assert same(state(run, 4), undisturbed)
    (warning,) = (event.text for event in events if isinstance(event, Note) and event.level == "warning")
    assert warning.endswith(f"({BESIDE_TORCH.splitlines()[0]})")


@pytest.mark.soak
def test_so_it_is_in_an_evaluation(tmp_path: Path, undisturbed: dict[str, Tensor]) -> None:
    run = make_run(tmp_path, train=SETTINGS)
    with out_of_memory("evaluation of the base", 2, lambda: RuntimeError(BESIDE_TORCH)):
        events = train_here(run)
    assert [event.step for event in events if isinstance(event, Evaluated)] == [2, 4]
    assert same(state(run, 4), undisturbed)


def test_what_else_breaks_is_not_tried_again(tmp_path: Path) -> None:
    run = make_run(tmp_path, train=SETTINGS)
    illegal = "CUDA error: an illegal memory access was encountered"
    with (
        out_of_memory("backward of a block", 1, lambda: RuntimeError(illegal)),
        pytest.raises(RuntimeError, match=illegal),
    ):
        train_here(run)


@pytest.mark.parametrize(
    "place", ["backward of a later block", pytest.param("before a later update", marks=_long(False))]
)
def test_each_attempt_gives_up_more_until_blocks_rest_in_host_memory(
    tmp_path: Path, undisturbed: dict[str, Tensor], place: str
) -> None:
    run = make_run(tmp_path, train=SETTINGS)
    with out_of_memory(place, 6):
        events = train_here(run)
    warnings = [event.text for event in events if isinstance(event, Note) and event.level == "warning"]
    said = [text.split("from now on ")[1].split(" (CUDA")[0] for text in warnings]
    assert said == [
        "every block is recomputed in the backward pass; a step takes up to a third longer.",
        "gradient checkpointing keeps nothing but the input of a block; a step takes up to a fifth longer.",
        "the block inputs that gradient checkpointing keeps are offloaded to CPU RAM.",
        "the frozen weights of 1 block are offloaded to CPU RAM and loaded when they are needed (block swap).",
        "the frozen weights of 2 blocks are offloaded to CPU RAM and loaded when they are needed (block swap).",
    ]
    assert same(state(run, 4), undisturbed)


@pytest.mark.parametrize(
    "place",
    [pytest.param(one, marks=_long(one in ENDS)) for one in PLACES if not one.startswith("evaluation")],
)
def test_where_nothing_is_left_to_give_up_it_ends_in_one_sentence_and_can_be_resumed(
    tmp_path: Path, undisturbed: dict[str, Tensor], place: str
) -> None:
    run = make_run(tmp_path, train=SETTINGS)
    with out_of_memory(place, 10**6), pytest.raises(OutOfMemory, match="What helps most") as ended:
        train_here(run)
    assert "\n" not in str(ended.value)
    train_here(run)
    assert same(state(run, 4), undisturbed)


def test_the_largest_clips_are_rehearsed_before_anything_else(
    tmp_path: Path, undisturbed: dict[str, Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[str, int]] = []
    monkeypatch.setattr(Trainer, "on_gpu", True)
    real = objective.velocity_loss

    def spy(prediction: Tensor, *rest: Any, **named: Any) -> Tensor:
        seen.append(("with" if torch.is_grad_enabled() else "without", prediction.numel()))
        return real(prediction, *rest, **named)

    monkeypatch.setattr(objective, "velocity_loss", spy)
    run = make_run(tmp_path, train=SETTINGS)
    train_here(run)
    assert seen[0] == ("with", max(size for _, size in seen))
    assert seen[1][0] == "without"
    assert same(state(run, 4), undisturbed)


def test_an_attempt_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tensors of a failed attempt are gone before the next one begins."""
    import gc
    import weakref

    kept: list[weakref.ref[Tensor]] = []
    real = objective.velocity_loss

    def work(*given: Any, **named: Any) -> Tensor:
        assert not any(ref() is not None for ref in kept)
        big = real(*given, **named)
        kept.append(weakref.ref(big))
        if len(kept) < 2:
            raise torch.OutOfMemoryError(FULL)
        return big

    monkeypatch.setattr(objective, "velocity_loss", work)
    run = make_run(tmp_path, train=replace(SETTINGS, eval_items=0, gradient_accumulation_steps=1, steps=1))
    gc.disable()
    try:
        train_here(run)
    finally:
        gc.enable()
    assert len(kept) == 2


def test_an_update_is_probed_on_gpus_only() -> None:
    weights = {"a": torch.nn.Parameter(torch.zeros(1 << 40, device="meta"))}
    check_room(AdapterOptimizer(weights, SETTINGS))  # a meta tensor of 16 TiB costs nothing
    check_room(AdapterOptimizer({"a": torch.nn.Parameter(torch.zeros(2))}, SETTINGS))


def test_larger_chunks_are_given_up_first_and_ranks_of_one_clip_give_up_nothing() -> None:
    with torch.device("meta"):
        model = WanTransformer(WanShape(dim=16, ffn_dim=32, num_heads=2, num_layers=2))
    model.run_in_chunks(0)
    said: list[Event] = []
    full = torch.OutOfMemoryError(FULL)
    Relief(model, said.append, alone=False).make_room(3, full, stronger=True)
    assert model.chunk_tokens == 0, "ranks keep one size"
    model.team = RankTokens(model, ClipRanks(None, range(2), 0, nullcontext), "ring")
    for stronger in (False, True):  # the other ranks of the clip wait in the middle of their pass
        with pytest.raises(torch.OutOfMemoryError):
            Relief(model, said.append, alone=False).make_room(3, full, stronger=stronger)
    model.team = None
    model.checkpoint_blocks = True
    Relief(model, said.append).make_room(3, full, stronger=True)
    assert [block.chunk_tokens for block in model.blocks] == [4096, 4096]
    assert isinstance(said[-1], Note)
    assert "4096 tokens together" in said[-1].text
