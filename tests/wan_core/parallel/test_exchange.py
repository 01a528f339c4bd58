"""The exchange of parcels: who gets what, what stays alive for how long, and how an error ends it."""

from __future__ import annotations

import gc
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor

from wan_core.parallel import exchange
from wan_core.parallel.exchange import Ended, Exchange

CPU = torch.device("cpu")


class Slow:
    """Peers whose copies end when somebody waits for them on the sender's side."""

    def __init__(self, waited: list[Any]) -> None:
        self.waited = waited

    def mark(self) -> Any:
        return "ready"

    def fetch(self, source: Tensor, ready: Any) -> tuple[Tensor, Any]:
        assert ready == "ready"
        return source.clone(), object()

    def wait(self, event: Any) -> None:
        self.waited.append(event)


def test_every_copy_gets_its_parcel_of_every_other_one_in_order() -> None:
    between = Exchange([CPU] * 4)

    def work(me: int) -> list[list[int]]:
        found = []
        for number in range(3):
            parcels = [torch.tensor([number, me, other]) for other in range(4)]
            found.append([parcel.tolist() for parcel in between.swap(me, "test", parcels).parcels])
        assert found == [[[number, sender, me] for sender in range(4)] for number in range(3)]
        return found

    with ThreadPoolExecutor(4) as threads:
        assert len(list(threads.map(work, range(4)))) == 4


def test_what_was_sent_stays_until_its_device_waits_for_the_copies_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[list[Any]] = [[], []]
    each = iter(waited)
    monkeypatch.setattr(exchange, "peers_of", lambda _device: Slow(next(each)))
    between = Exchange([CPU, CPU])
    sent: list[Any] = []

    def round_of(me: int) -> None:
        mine = torch.zeros(3)
        sent.append(weakref.ref(mine))
        between.swap(me, "test", [torch.zeros(1), mine][:: 1 if me == 0 else -1]).wait()

    with ThreadPoolExecutor(2) as threads:
        for number in range(1, 5):
            list(threads.map(round_of, range(2)))
            gc.collect()
            gone = max(0, number - 3)
            assert [one() is not None for one in sent] == [False] * (2 * gone) + [True] * (2 * number - 2 * gone)
            # Each waits for its own copy of every round, and for the other's copy of what it frees.
            assert [len(events) for events in waited] == [number + gone] * 2
    between.restart()
    assert [one() for one in sent] == [None] * 8
    assert [len(events) for events in waited] == [5 + 6, 5 + 6], "of the last three rounds each waits for every copy"


def test_an_end_wakes_those_that_wait_and_stops_those_that_come() -> None:
    between = Exchange([CPU] * 3)
    with ThreadPoolExecutor(2) as threads:
        waiting = [threads.submit(between.swap, me, "test", [torch.zeros(1)] * 3) for me in range(2)]
        between.end()
        for one in waiting:
            with pytest.raises(Ended):
                one.result(timeout=10)
    with pytest.raises(Ended):
        between.swap(2, "test", [torch.zeros(1)] * 3)


def test_copies_that_differ_in_their_order_are_an_error() -> None:
    between = Exchange([CPU] * 2)
    with ThreadPoolExecutor(2) as threads:
        both = [threads.submit(between.swap, me, f"{me}", [torch.zeros(1)] * 2) for me in range(2)]
        for one in both:
            with pytest.raises(AssertionError, match="in one order"):
                one.result(timeout=10)
