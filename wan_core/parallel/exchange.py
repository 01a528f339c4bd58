"""The all-to-all of threads that run one copy of a model each: every copy gets a parcel from every other one.

The host waits until all copies have posted, never for a device: a copy of bytes waits by events for what it reads, and
the device waits by events for what arrives.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ..model.heads import Arriving
from ..placement.copies import Peers, peers_of

_KEPT = 3
"""rounds: a copy that is on its way while the next two tensors are made may not be waited for before that"""


class Ended(Exception):  # noqa: N818  an event, not an error: another copy has one
    """Another copy has raised an error, so this one ends too."""


@dataclass(eq=False)
class _Posted:
    """The parcels of one copy in a round."""

    what: str
    parcels: Sequence[Tensor]
    """by receiver"""
    ready: Any
    """the event behind which the parcels have their values"""
    taken: list[Any] = field(default_factory=list)
    """the events behind which receivers have copied their parcels"""


class Exchange:
    """Between copies of a model on `devices`; copy number i calls `swap(i, ...)` from any one thread at a time."""

    def __init__(self, devices: Sequence[torch.device]) -> None:
        self._peers: list[Peers] = [peers_of(device) for device in devices]
        self._condition = threading.Condition()
        self._sent: list[deque[_Posted]] = [deque() for _ in devices]
        self.restart()

    def restart(self) -> None:
        """Ends a pass, after an error too: counts from 0 again, frees what was sent. No copy may be in `swap`."""
        # A copy that an error has kept from arriving must not be written into memory that is in use again.
        events = [event for sent in self._sent for posted in sent for event in posted.taken]
        for me, sent in enumerate(self._sent):
            self._wait(me, events)
            sent.clear()
        self._ended = False
        self._rounds = [0] * len(self._peers)
        self._posted: dict[int, dict[int, _Posted]] = {}

    def end(self) -> None:
        """Lets every copy that waits in `swap`, or comes to it, raise Ended."""
        with self._condition:
            self._ended = True
            self._condition.notify_all()

    def swap(self, me: int, what: str, parcels: Sequence[Tensor]) -> Arriving:
        """Posts the parcel for every copy, and begins to copy what every copy has for this one.

        `what`: the same in all copies. What it sent stays alive for _KEPT rounds, and until its device has waited for
        every receiver's copy.
        """
        own = _Posted(what, parcels, self._peers[me].mark())
        posted = self._meet(me, own)
        self._sent[me].append(own)
        if len(self._sent[me]) > _KEPT:
            self._settle(me)
        assert {one.what for one in posted.values()} == {what}, "copies of a model exchange in one order"
        found, events = list(parcels), []
        # From the next copy on, so that not all of them read from the first one at once.
        for sender in [*range(me + 1, len(self._peers)), *range(me)]:
            found[sender], event = self._peers[me].fetch(posted[sender].parcels[me], posted[sender].ready)
            posted[sender].taken.append(event)
            events.append(event)
        return Arriving(found, partial(self._wait, me, events))

    def _wait(self, me: int, events: Sequence[Any]) -> None:
        for event in events:
            self._peers[me].wait(event)

    def _meet(self, me: int, own: _Posted) -> dict[int, _Posted]:
        with self._condition:
            if self._ended:
                raise Ended
            number = self._rounds[me]
            self._rounds[me] += 1
            posted = self._posted.setdefault(number, {})
            posted[me] = own
            if len(posted) == len(self._peers):
                del self._posted[number]
                self._condition.notify_all()
            self._condition.wait_for(lambda: len(posted) == len(self._peers) or self._ended)
            if len(posted) < len(self._peers):
                raise Ended
            return posted  # an error meanwhile ends the next round: others copy from this one already

    def _settle(self, me: int) -> None:
        """Lets the device of a copy wait until what it sent first is copied, and frees that.

        Only where all receivers have come back from that round.
        """
        self._wait(me, self._sent[me].popleft().taken)
