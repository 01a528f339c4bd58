"""Ranks that train one clip together (context parallel): the losses and saves of one rank, at any world size."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.forked import ForkServer
from tests.support.tiny_run import (
    PLAN,
    TINY,
    TINY_CAMERA,
    TINY_I2V_21,
    TINY_TI2V,
    TINY_VACE,
    TinyRun,
    make_pair_run,
    make_run,
    steady,
)
from tests.wan_core.session.test_sharded_ranks import losses, saved
from tests.wan_core.session.test_world_sizes import on, train
from tests.wan_core.train.test_prior import marked
from tests.wan_core.train.test_target_passes import slid
from wan_core.cache import LatentCache
from wan_core.cli.settings import change_run
from wan_core.errors import ConfigError, PlacementError
from wan_core.files import atomic_write_json
from wan_core.job import read_run
from wan_core.job.checks import check_context
from wan_core.load import ModelPlan, inspect_model
from wan_core.lora import LoraConfig
from wan_core.model import POLICIES, WanShape
from wan_core.placement import PlacementConfig
from wan_core.precision import QuantizeConfig
from wan_core.sampler import SampleConfig

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="ranks are forked")
SHAPE = replace(TINY, dim=256, num_heads=2, num_layers=2)
SETTINGS = steady(steps=4, save_every_n_steps=1, gradient_accumulation_steps=2, eval_items=1, eval_timesteps=(500.0,))
PAIR_OF_RANKS = ("mode=copy per GPU", "devices=cpu", "copies=2", "context_parallel=2")
PARTS = """
import os, pathlib
import wan_core.parallel.ranks as ranks

share = ranks.parts_of

def noted(*given):
    parts = share(*given)
    sizes = " ".join(str(len(part.numbers)) for part in parts)
    kind = "parts" if torch.is_grad_enabled() else "watched"
    pathlib.Path({folder!r}, kind + os.environ["RANK"]).write_text(sizes)
    return parts

ranks.parts_of = noted
"""
"""code before the command: notes how the tokens of a clip are shared out, trained and evaluated"""


def over(ranks: int, parts: int, exchange: str = "auto", shards: int = 1, **plan: Any) -> ModelPlan:
    placement = replace(on(ranks), shards=shards, context_parallel=parts, context_exchange=exchange)
    return replace(PLAN, placement=placement, **plan)


def made(
    folder: Path, plan: ModelPlan = PLAN, shape: WanShape = SHAPE, size: Any = (2, 4, 4), **changes: Any
) -> TinyRun:
    lora = changes.pop("lora", LoraConfig(rank=4))
    return make_run(folder, shape=shape, plan=plan, lora=lora, train=replace(SETTINGS, **changes), size=size)


def evaluated(run: TinyRun) -> list[float]:
    lines = map(json.loads, (run.directory / "metrics.jsonl").read_text().splitlines())
    return [line["eval_loss"] for line in lines if line["event"] == "evaluated"]


def same_format(one: TinyRun, other: TinyRun) -> None:
    """The newest saves have the same tensors, in files of one size."""
    (files, state), (others, other_state) = saved(one), saved(other)
    assert len(files) == len(others)
    assert {name: value.shape for name, value in state.items()} == {n: value.shape for n, value in other_state.items()}


@pytest.mark.lasts(5)
def test_two_ranks_that_share_each_clip_train_the_losses_of_one_and_go_on_with_one(
    server: ForkServer, tmp_path: Path
) -> None:
    alone, run = made(tmp_path / "alone", steps=3), made(tmp_path / "two", over(2, 2), steps=3)
    expected = train(server, alone, 1, 3)
    found = train(server, run, 2, 1, PARTS.format(folder=str(tmp_path)))
    for kind in ("parts", "watched"):
        assert [(tmp_path / f"{kind}{rank}").read_text() for rank in (0, 1)] == ["4 4", "4 4"]
    change_run(run.directory, run.roots, ["model.placement.context_exchange=ring"])
    found += train(server, run, 2, 1)
    change_run(run.directory, run.roots, ["model.placement.copies=1"])
    found += train(server, run, 1, 1)
    assert losses(found) == pytest.approx(losses(expected), rel=1e-5)
    assert evaluated(run)[-3:] == pytest.approx(evaluated(alone)[-3:], rel=1e-5)
    for what in ("clips", "tokens", "epoch"):
        assert [step[what] for step in found] == [step[what] for step in expected]
    same_format(run, alone)
    assert read_run(run.directory).job_id == run.config.job_id == alone.config.job_id


@pytest.mark.soak
@pytest.mark.lasts(20)
@pytest.mark.parametrize(
    ("ranks", "parts", "exchange", "shards", "plan", "changes"),
    [
        *((2, 2, "all-to-all", 1, {}, {"checkpointing_policy": policy}) for policy in POLICIES),
        *((2, 2, "ring", 1, {}, {"checkpointing_policy": policy}) for policy in POLICIES),
        (2, 2, "ring", 1, {}, {"gradient_checkpointing": False}),
        *((2, 2, exchange, 1, {}, {"compile": True}) for exchange in ("all-to-all", "ring")),
        (2, 2, "auto", 1, {"quantize": QuantizeConfig(scheme="int8")}, {"blocks_to_swap": 1, "memory": "manual"}),
        (2, 2, "ring", 1, {"quantize": QuantizeConfig(scheme="fp8_e4m3fn")}, {"tread_routes": "0.5: 1..1"}),
        (2, 2, "ring", 2, {}, {}),
        (4, 4, "ring", 1, {}, {}),
        (4, 2, "all-to-all", 1, {}, {}),
        (4, 2, "ring", 4, {}, {}),
        (4, 2, "all-to-all", 2, {}, {}),
        (4, 4, "auto", 4, {}, {}),
    ],
)
def test_ranks_that_share_clips_train_the_losses_of_one(
    server: ForkServer,
    tmp_path: Path,
    ranks: int,
    parts: int,
    exchange: str,
    shards: int,
    plan: dict[str, Any],
    changes: dict[str, Any],
) -> None:
    """4 ranks in 2 parts are two batches at once (data parallel), with shards FSDP too."""
    alone = made(tmp_path / "alone", replace(PLAN, **plan), steps=3, **changes)
    expected = losses(train(server, alone, 1, 3))
    settings = {**changes, "gradient_accumulation_steps": 2 * parts // ranks}
    run = made(tmp_path / "together", over(ranks, parts, exchange, shards, **plan), steps=3, **settings)
    assert losses(train(server, run, ranks, 3)) == pytest.approx(expected, rel=1e-5)
    assert len(evaluated(run)) >= 3
    assert evaluated(run) == pytest.approx(evaluated(alone), rel=1e-5)
    same_format(run, alone)


@pytest.mark.soak
@pytest.mark.lasts(20)
@pytest.mark.parametrize("exchange", ["all-to-all", "ring"])
@pytest.mark.parametrize("variant", [TINY_I2V_21, TINY_VACE, TINY_CAMERA, TINY_TI2V], ids=("I2V", "VACE", "Fun", "5B"))
def test_every_variant_trains_in_parts(server: ForkServer, tmp_path: Path, variant: WanShape, exchange: str) -> None:
    """Three latent frames of 15 tokens, which two ranks cannot halve."""
    shape, size = replace(variant, dim=256, num_heads=2), (3, 6, 10)
    expected = losses(train(server, made(tmp_path / "alone", shape=shape, size=size, steps=2), 1, 2))
    run = made(tmp_path / "together", over(2, 2, exchange), shape, size, steps=2)
    found = losses(train(server, run, 2, 2, PARTS.format(folder=str(tmp_path))))
    assert found == pytest.approx(expected, rel=1e-5)
    assert (tmp_path / "parts1").read_text() == "21 24"


@pytest.mark.soak
@pytest.mark.lasts(20)
@pytest.mark.parametrize("exchange", ["all-to-all", "ring"])
@pytest.mark.parametrize("what", ["prior", "slider", "DoRA"])
def test_ranks_that_share_clips_train_more(server: ForkServer, tmp_path: Path, what: str, exchange: str) -> None:
    lora = LoraConfig(rank=4, kind="DoRA" if what == "DoRA" else "LoRA")
    alone = made(tmp_path / "alone", steps=2, lora=lora)
    run = made(tmp_path / "together", over(2, 2, exchange), steps=2, lora=lora)
    if what == "prior":
        alone, run = marked(alone, 0), marked(run, 0)
    if what == "slider":
        alone, run = slid(alone), slid(run)
    expected = losses(train(server, alone, 1, 2))
    assert losses(train(server, run, 2, 2)) == pytest.approx(expected, rel=1e-5)
    same_format(run, alone)


@pytest.mark.soak
@pytest.mark.lasts(20)
def test_ranks_that_share_clips_train_both_experts(server: ForkServer, tmp_path: Path) -> None:
    alone, run = (
        make_pair_run(tmp_path / name, steps=4, save_every_n_steps=1, eval_items=1, gradient_accumulation_steps=2)
        for name in ("alone", "together")
    )
    expected = losses(train(server, alone, 1, 4))
    change_run(run.directory, run.roots, [f"model.placement.{name}" for name in PAIR_OF_RANKS])
    assert losses(train(server, run, 2, 4)) == pytest.approx(expected, rel=1e-5)
    assert evaluated(run) == pytest.approx(evaluated(alone), rel=1e-5)
    same_format(run, alone)


@pytest.mark.soak
@pytest.mark.lasts(20)
def test_a_run_goes_on_in_parts_or_without_at_any_world_size(server: ForkServer, tmp_path: Path) -> None:
    alone = made(tmp_path / "alone", steps=5, gradient_accumulation_steps=12)
    run = made(tmp_path / "moves", over(4, 2), steps=5, gradient_accumulation_steps=6)
    expected, found = losses(train(server, alone, 1, 5)), losses(train(server, run, 4, 1))
    for ranks, parts in ((3, 1), (2, 2), (1, 2), (4, 4)):
        wanted = [f"model.placement.copies={ranks}", f"model.placement.context_parallel={parts}"]
        change_run(run.directory, run.roots, wanted)
        found += losses(train(server, run, ranks, 1))
    assert found == pytest.approx(expected, rel=1e-5)
    same_format(run, alone)


SLOW_PREVIEWS = """
import datetime, os, time
import wan_core.train.group as group
from wan_core.train.preview import Previewer

group._STEP_TIMEOUT = datetime.timedelta(seconds=20)
render = Previewer._render_one

def slowly(*given, **named):
    time.sleep(25)
    return render(*given, **named)

Previewer._render_one = slowly
"""


@pytest.mark.soak
@pytest.mark.lasts(70)
@pytest.mark.parametrize(("parts", "shards"), [(1, 1), (2, 1), (1, 2), (2, 2)])
def test_others_wait_for_previews_longer_than_for_a_step(
    server: ForkServer, tmp_path: Path, parts: int, shards: int
) -> None:
    run = made(tmp_path, over(2, parts, "ring", shards), steps=1, preview_every_n_steps=1)
    config = replace(run.config, preview=SampleConfig(steps=2, width=32, height=32))
    atomic_write_json(run.directory / "run.json", config.to_dict())
    assert len(train(server, run, 2, 1, SLOW_PREVIEWS)) == 1
    said = (run.directory.parent / f"{run.directory.name}-2-0.jsonl").read_text()
    assert said.count('"event": "decode_wanted"') == 2, "steps 0 and 1"
    assert said.count('"text": "The first process renders previews alone') == (parts > 1)


def test_what_ranks_of_one_clip_cannot_have_is_refused_with_what_to_set(tmp_path: Path) -> None:
    run = made(tmp_path, over(4, 2))
    clips = LatentCache(run.roots.first("cache")).read_set(run.config.data.fingerprint)

    def checked(lora: LoraConfig | None = None, plan: ModelPlan = run.config.model, **train: Any) -> str:
        config = replace(run.config, model=plan, lora=lora or run.config.lora, train=replace(run.config.train, **train))
        return check_context(config, clips, inspect_model(plan, run.roots), torch.device("cpu"))

    assert (checked(), checked(plan=over(2, 2, "ring")), checked(plan=over(4, 4))) == ("all-to-all", "ring", "ring")
    for refused, given in (
        (r"heads of this model. Set model.placement.context_exchange to ring\.$", {"plan": over(4, 4, "all-to-all")}),
        (r"^A latent frame of the clips has 4 tokens, too few for 5 processes\.", {"plan": over(5, 5)}),
        (r"Set dropout to 0; rank_dropout", {"lora": LoraConfig(rank=4, dropout=0.1)}),
        (r"^tread_routes has 2 routes, and context_parallel takes one\.", {"tread_routes": "0.5: 0..0; 0.5: 1..1"}),
        (r"so that 1 of them are too few for 2 processes", {"tread_routes": "0.25: 1..1"}),
        (
            r"^attention sdpa_math does not return the log-sum-exp, which a ring",
            {"plan": over(2, 2, "ring", attention="sdpa_math")},
        ),
    ):
        with pytest.raises(ConfigError, match=refused):
            checked(**given)
    three = PlacementConfig(mode="copy per GPU", devices="cpu", copies=3, context_parallel=2)
    with pytest.raises(PlacementError, match=r"^3 processes are not a multiple of context_parallel 2, .*, or to 1\.$"):
        assert three.batches


def test_ranks_that_share_clips_are_no_larger_batch() -> None:
    """Who runs a token changes rounding alone, so it is no part of a job."""
    four = PlacementConfig(mode="copy per GPU", devices="cpu", copies=4)
    for parts, batches in ((1, 4), (2, 2), (4, 1), (8, 1)):
        placement = replace(four, context_parallel=parts)
        assert (placement.batches, placement.identity()) == (batches, {"copies": batches})
    assert replace(four, mode="one device", context_parallel=2).identity() == {"copies": 1}
    assert replace(four, devices="all", copies=0, context_parallel=2).identity() == {"copies": "all / 2"}
