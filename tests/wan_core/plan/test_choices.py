"""The cheapest measures with which a job fits, and the room there is for it."""

from __future__ import annotations

import pytest
import torch

from wan_core.errors import ConfigError
from wan_core.placement import FreeMemory, MemoryEstimate, MemoryMeasures, free_memory_here, free_memory_of_cards
from wan_core.placement.cards import CARD_LIMIT, HOST_LIMIT
from wan_core.placement.memory import DeviceMemory
from wan_core.plan.choices import OpenMeasures

GIB = 1 << 30


def predicted(measures: MemoryMeasures) -> MemoryEstimate:
    """40 blocks of a third of a GiB; inputs of 8 GiB, of which two fortieths remain; 5 GiB that nothing moves."""
    swapped = measures.blocks_to_swap
    weights = 40 / 3 - max(0, swapped - 2) / 3
    inputs = 8 * (1 / 20 if measures.offload_inputs else 1)
    host = (swapped / 3 + (8 if measures.offload_inputs else 0)) * GIB
    device = DeviceMemory(
        weights=int(weights * GIB),
        adapters=0,
        kept=int(inputs * GIB),
        phases={"step": int((weights + inputs + 5) * GIB)},
    )
    return MemoryEstimate(measures=measures, devices={"cuda:0": device}, pinned=int(host), host=int(host))


@pytest.mark.parametrize(
    ("free", "offloads", "swaps"),
    [
        (27.0, False, 0),  # 13.3 + 8 + 5 = 26.4
        (26.0, True, 0),  # 13.3 + 0.4 + 5 = 18.8
        (18.8, True, 0),
        (18.7, True, 3),  # a third of a GiB for each, but two buffers remain
        (12.0, True, 23),
        (6.1, True, 40),  # 0.7 + 0.4 + 5
    ],
)
def test_the_cheapest_measures_that_fit_are_taken(free: float, offloads: bool, swaps: int) -> None:
    room = FreeMemory(devices={"cuda:0": int(free * GIB)})
    found = OpenMeasures(most_blocks=40).cheapest(predicted, room)
    assert (found.measures.offload_inputs, found.measures.blocks_to_swap) == (offloads, swaps)
    assert not room.lacks(found)


def test_where_nothing_fits_the_strongest_measures_are_told() -> None:
    room = FreeMemory(devices={"cuda:0": 6 * GIB})
    found = OpenMeasures(most_blocks=40).cheapest(predicted, room)
    assert found.measures == MemoryMeasures(offload_inputs=True, blocks_to_swap=40)
    assert [(place, free) for place, _, free in room.lacks(found)] == [("cuda:0", 6 * GIB)]


def test_what_is_asked_for_is_taken_as_it_is() -> None:
    room = FreeMemory(devices={"cuda:0": 12 * GIB})
    for offload in (False, True):
        found = OpenMeasures(offload, 5, 40).cheapest(predicted, room)
        assert found.measures == MemoryMeasures(offload_inputs=offload, blocks_to_swap=5)
    assert OpenMeasures(offload=False, most_blocks=40).cheapest(predicted, room).measures.blocks_to_swap == 40
    assert OpenMeasures().cheapest(predicted, room).measures.blocks_to_swap == 0


def test_host_memory_has_an_end_too() -> None:
    room = FreeMemory(devices={"cuda:0": 12 * GIB}, host=10 * GIB)
    found = OpenMeasures(most_blocks=40).cheapest(predicted, room)
    assert ("host memory", found.host, 10 * GIB) in room.lacks(found)


def test_a_card_may_be_planned_smaller_than_it_is(monkeypatch: pytest.MonkeyPatch) -> None:

    cpu = torch.device("cpu")
    monkeypatch.delenv(CARD_LIMIT, raising=False)
    assert free_memory_here([cpu], ask_driver=True) == FreeMemory(devices={})
    reserve = 16 * GIB - free_memory_of_cards([16, 24]).devices["cuda:0"]
    assert reserve in (1 * GIB, 1.5 * GIB)
    assert free_memory_of_cards([16, 24]).devices["cuda:1"] == 24 * GIB - reserve
    monkeypatch.setenv(CARD_LIMIT, "16")
    assert free_memory_here([cpu], ask_driver=True).devices == {"cpu": 16 * GIB - reserve}
    monkeypatch.setenv(HOST_LIMIT, "64")
    assert free_memory_here([cpu], ask_driver=True).host == 64 * GIB
    for wrong in ("much", "0", "-3", "nan"):
        monkeypatch.setenv(CARD_LIMIT, wrong)
        with pytest.raises(ConfigError, match=CARD_LIMIT):
            free_memory_here([cpu], ask_driver=True)
