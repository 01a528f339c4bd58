"""Which blocks rest in host memory."""

from __future__ import annotations

from itertools import pairwise

import pytest

from wan_core.placement.measures import MemoryMeasures, running_order, swapped_blocks


def test_swapped_blocks_are_spread_evenly() -> None:
    order = running_order(40)
    assert swapped_blocks(order, 0) == ()
    assert swapped_blocks(order, 4) == ("blocks.9", "blocks.19", "blocks.29", "blocks.39")
    assert swapped_blocks(order, 40) == swapped_blocks(order, 99) == tuple(order)
    for count in range(1, 41):
        found = [order.index(name) for name in swapped_blocks(order, count)]
        apart = {later - sooner for sooner, later in pairwise(found)}
        assert len(found) == count
        assert len(apart) <= 2
        assert max(apart, default=1) - min(apart, default=1) <= 1
        assert found[-1] == 39
        assert count == 40 or found[0] > 0


def test_a_second_stream_runs_behind_the_blocks_it_belongs_to() -> None:
    assert running_order(3, (0, 2)) == ["blocks.0", "vace_blocks.0", "blocks.1", "blocks.2", "vace_blocks.1"]


@pytest.mark.parametrize("blocks", [1, 2, 30, 40, 48])
def test_stronger_measures_let_rest_what_rests_already(blocks: int) -> None:
    order = [f"blocks.{number}" for number in range(blocks)]
    measures: MemoryMeasures | None = MemoryMeasures()
    seen: list[frozenset[str]] = []
    once: list[bool] = []
    while measures is not None:
        once.append(measures.dequantize_once)
        seen.append(frozenset(swapped_blocks(order, measures.blocks_to_swap)))
        measures = measures.stronger(blocks)
    assert all(before <= after for before, after in pairwise(seen))
    assert seen[-1] == frozenset(order)
    assert once == [True] * (len(once) - 1) + [False], "what costs time alone is given up last"
    assert len(seen) <= 7
