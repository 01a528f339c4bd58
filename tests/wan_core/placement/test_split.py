"""A split model: blocks by number, every block bridged, nothing left behind, on the real 14B shape without a GPU."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support import stand_in_card
from tests.support.cards import gpu, put_in
from tests.support.forked import RunScript
from wan_core.errors import ConfigError, PlacementError
from wan_core.placement import PlacementConfig, resolve_placement
from wan_core.placement.plan import split_blocks

SCRIPT = Path(__file__).parents[2] / "support" / "split_14b.py"
TWO = [torch.device("cuda", 0), torch.device("cuda", 1)]

# Of four blocks the first of the second device and the last.
FORGOTTEN = ("2", "3")


@pytest.fixture(scope="module", params=[4, pytest.param(40, marks=pytest.mark.soak)])
def step_of_14b(request: pytest.FixtureRequest, run_script: RunScript) -> dict[str, Any]:
    """One step of so many blocks on two simulated devices.

    Before it come two forward passes of four blocks with one bridge left out each.
    """
    if lacking := stand_in_card.missing():
        pytest.skip(lacking)
    done = run_script(SCRIPT, str(request.param), *FORGOTTEN)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout) | {"blocks": request.param}


@pytest.mark.slow
@pytest.mark.lasts(2)
def test_a_14b_step_runs_on_two_devices_with_checkpointing_in_under_3_gib(step_of_14b: dict[str, Any]) -> None:
    assert step_of_14b["adapters"] == 2 * 10 * step_of_14b["blocks"]
    assert step_of_14b["gradients_at_home"]
    assert step_of_14b["routed_at_home"], "tokens that pass by from a layer of one device to one of the other"
    assert step_of_14b["norm_of_all_gradients_on"] == "cuda:0", "clipped by the norm over both devices"
    assert step_of_14b["on_second_device"] == step_of_14b["adapters"] // 2
    assert step_of_14b["peak_rss_bytes"] < 3 * 2**30


@pytest.mark.slow
@pytest.mark.lasts(2)
@pytest.mark.parametrize("forgotten", FORGOTTEN)
def test_leaving_out_one_bridge_is_an_error(step_of_14b: dict[str, Any], forgotten: str) -> None:
    assert "found at least two devices, cuda:1 and cuda:0" in step_of_14b["errors"][forgotten]
    assert step_of_14b["with_every_bridge"] == [1, 16, 1, 60, 104], "with all of them the same pass is none"


def test_midpoint_gives_each_device_half_of_the_blocks() -> None:
    placement = split_blocks(TWO, 40, "midpoint")
    assert placement.block_devices == (TWO[0],) * 20 + (TWO[1],) * 20
    assert placement.device_of("blocks.19.ffn.0.weight") == TWO[0]
    assert placement.device_of("blocks.20.ffn.0.weight") == TWO[1]
    assert placement.device_of("time_embedding.0.weight") == TWO[0]
    assert placement.device_of("head.head.weight") == TWO[1], "where a pass ends"


@pytest.mark.parametrize(
    ("gibibytes", "blocks"),
    [
        ((23.99, 24.0), [20, 20]),  # cards of one kind differ by some MiB
        ((24, 12), [28, 12]),  # (24 - 4) : (12 - 4)
        ((12, 24), [11, 29]),
        ((16, 24, 12), [12, 20, 8]),
        ((32, 2), [38, 2]),
        ((2, 96), [1, 39]),  # each has one at least
    ],
)
def test_auto_gives_a_larger_card_more_blocks(gibibytes: tuple[float, ...], blocks: list[int]) -> None:
    cards = [torch.device("cuda", index) for index in range(len(gibibytes))]
    placement = split_blocks(cards, 40, "auto", gibibytes)
    assert [placement.block_devices.count(card) for card in cards] == blocks


def test_auto_asks_the_cards_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    put_in(monkeypatch, gpu("large", (8, 6), 24), gpu("small", (8, 6), 12))
    for split_at, blocks in (("auto", 28), ("midpoint", 20), ("30", 30)):
        placement = resolve_placement(PlacementConfig(mode="split blocks", devices="all", split_at=split_at), 40)
        assert placement.block_devices.count(torch.device("cuda", 0)) == blocks


def test_numbers_name_the_first_block_of_each_later_device() -> None:
    placement = split_blocks([*TWO, torch.device("cuda", 2)], 30, "12,20")
    assert [placement.block_devices.count(d) for d in placement.devices] == [12, 8, 10]


@pytest.mark.parametrize("split_at", ["0", "40", "10,20", "30,10"])
def test_numbers_that_leave_a_device_empty_are_refused_with_the_range(split_at: str) -> None:
    with pytest.raises(PlacementError, match="between 1 and 39"):
        split_blocks(TWO, 40, split_at)


def test_words_that_are_no_numbers_are_refused() -> None:
    with pytest.raises(ConfigError, match="not auto, midpoint or block numbers"):
        PlacementConfig(mode="split blocks", split_at="half")


def test_a_device_that_does_not_exist_is_named() -> None:
    with pytest.raises(PlacementError, match=r'"cuda:9" does not exist here'):
        PlacementConfig(mode="split blocks", devices="cuda:9").device_names()
