"""Ranks that hold the base together (FSDP2): the losses and saves of one rank, evaluated and previewed as well."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.forked import ForkServer
from tests.support.tiny_run import PLAN, TINY, TinyRun, make_pair_run, make_run, random_weights, steady
from tests.wan_core.session.test_previews_with_partner import partner_of
from tests.wan_core.session.test_world_sizes import on, train
from tests.wan_core.train.test_prior import marked
from tests.wan_core.train.test_target_passes import slid
from wan_core.cli.settings import change_run
from wan_core.errors import ConfigError, OutOfMemory, PlacementError, RankLost
from wan_core.footprint import job_shape
from wan_core.job.checks import check_shards
from wan_core.job.open import open_run
from wan_core.job.partner import pair_of_previews
from wan_core.load import ModelPlan
from wan_core.lora import LoraConfig
from wan_core.model import POLICIES
from wan_core.parallel import ShardedBlocks, Sharding
from wan_core.placement import (
    BlockOffload,
    MemoryMeasures,
    Placement,
    PlacementConfig,
    StepShape,
    estimate_memory,
)
from wan_core.precision import QuantizeConfig
from wan_core.train import Group, SaveStore

pytestmark = [
    pytest.mark.skipif(sys.platform == "win32", reason="FSDP2 over gloo is tested on Linux"),
    pytest.mark.skipif(
        not hasattr(torch.cpu.Stream, "record_event"),
        reason=f"torch {torch.__version__} has no torch.cpu.Stream.record_event, without which FSDP2 needs a GPU",
    ),
]
STEP = StepShape(batch_size=1, latent_frames=2, latent_height=4, latent_width=4)
SETTINGS = steady(steps=3, save_every_n_steps=1, gradient_accumulation_steps=4, eval_items=1, eval_timesteps=(500.0,))


def sharded(ranks: int, shards: int, **plan: Any) -> ModelPlan:
    return replace(PLAN, placement=replace(on(ranks), shards=shards), **plan)


HELD = """
import os, pathlib
import wan_core.session.loading as loading
from wan_core.parallel import ShardedBlocks

read, start = loading.read_weights, ShardedBlocks._start

def measured(*given, **named):
    model = read(*given, **named)
    frozen = [p for p in model.blocks.parameters() if not p.requires_grad]
    held = sum((p.to_local() if hasattr(p, "to_local") else p).nbytes for p in frozen)
    pathlib.Path({folder!r}, "held" + os.environ["RANK"]).write_text(f"{{held}} {{sum(p.nbytes for p in frozen)}}")
    return model

def counted(self, block):
    start(self, block)
    complete = sum(
        not hasattr(next(p for p in unit.parameters() if not p.requires_grad), "to_local") or name in self._coming
        for name, unit in self._units.items()
    )
    assert complete <= 2, complete

loading.read_weights, ShardedBlocks._start = measured, counted
"""
"""code before the command: notes what a rank holds of the blocks, and that two of them are complete at most"""


def losses(events: list[dict[str, Any]]) -> list[float]:
    return [event["loss"] for event in events]


def saved(run: TinyRun) -> tuple[bytes, dict[str, torch.Tensor]]:
    found = SaveStore(run.directory).latest()
    assert found is not None
    return found.lora_file.read_bytes(), found.read_state()


def compare(server: ForkServer, root: Path, ranks: int, shards: int, plan: dict[str, Any], **changes: Any) -> None:
    """Sharded or not, these ranks train the same bytes; and the losses of one rank."""
    lora, prior = changes.pop("lora", LoraConfig(rank=4, dropout=0.1)), changes.pop("prior", ())
    slider = changes.pop("slider", False)
    settings = replace(SETTINGS, gradient_accumulation_steps=4 // ranks, **changes)
    apart, together = (
        make_run(root / str(parts), train=settings, lora=lora, plan=sharded(ranks, parts, **plan))
        for parts in (1, shards)
    )
    if prior:
        apart, together = marked(apart, *prior), marked(together, *prior)
    if slider:
        apart, together = slid(apart), slid(together)
    found = losses(train(server, together, ranks, 3))
    assert found == losses(train(server, apart, ranks, 3))
    assert saved(together)[0] == saved(apart)[0]
    one, other = saved(together)[1], saved(apart)[1]
    assert one.keys() == other.keys()
    assert all(torch.equal(value, other[name]) for name, value in one.items())


@pytest.mark.lasts(5)
def test_two_ranks_that_hold_the_base_together_train_the_losses_of_one_and_go_on_with_one(
    server: ForkServer, tmp_path: Path
) -> None:
    half = replace(SETTINGS, gradient_accumulation_steps=2)
    shape = replace(TINY, num_layers=3)
    alone = make_run(tmp_path / "alone", train=SETTINGS, shape=shape)
    run = make_run(tmp_path / "two", train=half, plan=sharded(2, 2), shape=shape)
    expected = losses(train(server, alone, 1, 3))
    found = losses(train(server, run, 2, 2, HELD.format(folder=str(tmp_path))))
    held = [[int(number) for number in (tmp_path / f"held{rank}").read_text().split()] for rank in (0, 1)]
    assert sum(part for part, _ in held) == held[0][1] > 0
    assert all(part < 0.505 * complete for part, complete in held)
    change_run(run.directory, run.roots, ["model.placement.copies=1"])
    found += losses(train(server, run, 1, 1))
    assert found == pytest.approx(expected, rel=1e-5)


@pytest.mark.soak
@pytest.mark.lasts(10)
@pytest.mark.parametrize(
    ("ranks", "shards", "plan", "changes"),
    [
        *((2, 2, {}, {"checkpointing_policy": policy}) for policy in POLICIES),
        (2, 2, {"quantize": QuantizeConfig(scheme="fp8_e4m3fn")}, {}),
        (2, 2, {"quantize": QuantizeConfig(scheme="int8")}, {}),
        (2, 2, {"base_precision": "bf16"}, {}),
        (4, 2, {}, {}),
        (4, 4, {}, {}),
        (2, 2, {}, {"lora": LoraConfig(rank=4, init="PiSSA")}),
        (2, 2, {"quantize": QuantizeConfig(scheme="int8")}, {"lora": LoraConfig(rank=4, init="OLoRA")}),
        (2, 2, {}, {"prior": (0, 2)}),
        (2, 2, {}, {"slider": True, "eval_items": 0}),
        (2, 2, {"quantize": QuantizeConfig(scheme="Q4_0")}, {"slider": True, "eval_items": 0}),
    ],
)
def test_sharded_ranks_train_the_same_bytes_as_ranks_that_hold_all(
    server: ForkServer, tmp_path: Path, ranks: int, shards: int, plan: dict[str, Any], changes: dict[str, Any]
) -> None:
    """4 ranks with 2 shards are two copies of two parts (HSDP)."""
    compare(server, tmp_path, ranks, shards, plan, **changes)


class _Unit:
    """A block that cannot be gathered."""

    def __init__(self, error: RuntimeError) -> None:
        self.error = error

    def unshard(self, *, async_op: bool) -> None:
        raise self.error


@pytest.mark.parametrize(
    ("raised", "error", "match"),
    [
        (
            torch.OutOfMemoryError("CUDA out of memory."),
            OutOfMemory,
            r"which one rank cannot retry alone",
        ),
        (
            RuntimeError("Connection closed by peer"),
            RankLost,
            r"^Another rank of this run has ended",
        ),
    ],
)
def test_a_block_that_cannot_be_gathered_ends_the_run(raised: RuntimeError, error: type[Exception], match: str) -> None:
    """Tried again by one rank, as an evaluation that runs out of memory is, it would get parts of another block."""
    inner = BlockOffload(Placement((torch.device("cpu"),)), ["blocks.0"], MemoryMeasures())
    blocks = ShardedBlocks(inner, ["blocks.0"], Sharding(None, lambda name: name, True, Group().naming_lost))
    blocks._units["blocks.0"] = _Unit(raised)
    with pytest.raises(error, match=match), blocks.weights("blocks.0", again=False):
        pass


def test_clips_of_a_sharded_run_do_not_go_through_the_pair(tmp_path: Path) -> None:
    """Its partner would take the place of the trained expert, which only all ranks together can load again."""
    run = make_pair_run(tmp_path, expert="high", partner=partner_of("high"), preview_every_n_steps=1)
    opened = replace(open_run(run.directory, run.roots), config=replace(run.config, model=sharded(2, 2)))
    said: list[str] = []
    assert pair_of_previews(opened, said.append) == ()
    assert [one.partition(":")[0] for one in said] == [
        "Previews cannot use both experts, so the trained expert makes them alone"
    ]


def test_a_plan_counts_a_part_of_each_block_and_two_complete_ones(tmp_path: Path) -> None:
    run = make_run(tmp_path, shape=replace(TINY, num_layers=8))
    weights = [
        estimate_memory(job_shape(sharded(4, shards), run.roots, run.config.lora), STEP).devices["cpu"].weights
        for shards in (1, 4)
    ]
    block = sum(value.nbytes for name, value in random_weights(TINY).items() if name.startswith("blocks.0."))
    assert weights[0] - weights[1] == pytest.approx((8 - 8 / 4 - 2) * block, rel=1e-3)


def test_what_a_sharded_base_cannot_have_is_refused_with_the_settings_that_it_can(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    check_shards(run.config)
    swapped = replace(run.config, train=replace(run.config.train, blocks_to_swap=1))
    with pytest.raises(ConfigError, match=r"^The base is sharded .* Set blocks_to_swap to -1; or shards to 1\.$"):
        check_shards(swapped)
    dora = replace(run.config, lora=LoraConfig(rank=4, kind="DoRA"))
    with pytest.raises(ConfigError, match=r"Set adapter to LoRA; or"):
        check_shards(dora)
    placement = PlacementConfig(mode="copy per GPU", devices="cpu", copies=4, shards=9)
    assert placement.sharders == 4
    with pytest.raises(PlacementError, match=r"^4 processes are not a multiple of shards 3, .* divides 4, or to 4\.$"):
        assert replace(placement, shards=3).sharders
