"""The all-to-all between threads that run one copy of a model each.

The host waits until all copies have posted their tensors, but never for a device: copies between devices are ordered by
events.
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
"""rounds for which sent tensors are kept, because receivers may still copy them while the next two rounds begin"""


class Ended(Exception):  # noqa: N818  an event, not an error: another copy has one
    """Another copy has raised an error, so this one ends too."""


@dataclass(eq=False)
class _Posted:
    """The parcels of one copy in a round."""

    what: str
    parcels: Sequence[Tensor]
    """a tensor for each receiver"""
    ready: Any
    """event after which the parcels have their values"""
    taken: list[Any] = field(default_factory=list)
    """events after which receivers have copied their parcels"""


class Exchange:
    """All-to-all between copies of a model on `devices`; copy i calls `swap(i, ...)`, from one thread at a time."""

    def __init__(self, devices: Sequence[torch.device]) -> None:
        self._peers: list[Peers] = [peers_of(device) for device in devices]
        self._condition = threading.Condition()
        self._sent: list[deque[_Posted]] = [deque() for _ in devices]
        self.restart()

    def restart(self) -> None:
        """End a pass, also after an error: free sent tensors, and count rounds from 0. No copy may be in `swap`."""
        # Copies in flight after an error must end before their memory is reused.
        events = [event for sent in self._sent for posted in sent for event in posted.taken]
        for me, sent in enumerate(self._sent):
            self._wait(me, events)
            sent.clear()
        self._ended = False
        self._rounds = [0] * len(self._peers)
        self._posted: dict[int, dict[int, _Posted]] = {}

    def end(self) -> None:
        """Make current and later calls of `swap` raise Ended."""
        with self._condition:
            self._ended = True
            self._condition.notify_all()

    def swap(self, me: int, what: str, parcels: Sequence[Tensor]) -> Arriving:
        """Posts a parcel for every copy, and begins to copy the parcels of all copies for `me`.

        `what`: name of the exchange, the same in all copies. Sent parcels stay alive for _KEPT rounds, and until the
        device has waited for every receiver's copy. Raises Ended if another copy has failed.
        """
        own = _Posted(what, parcels, self._peers[me].mark())
        posted = self._post(me, own)
        self._sent[me].append(own)
        if len(self._sent[me]) > _KEPT:
            self._free_oldest(me)
        assert {one.what for one in posted.values()} == {what}, "copies of a model exchange in one order"
        found, events = list(parcels), []
        # The loop starts at the next copy, so that not all receivers read from the first copy at the same time.
        for sender in [*range(me + 1, len(self._peers)), *range(me)]:
            found[sender], event = self._peers[me].fetch(posted[sender].parcels[me], posted[sender].ready)
            posted[sender].taken.append(event)
            events.append(event)
        return Arriving(found, partial(self._wait, me, events))

    def _wait(self, me: int, events: Sequence[Any]) -> None:
        for event in events:
            self._peers[me].wait(event)

    def _post(self, me: int, own: _Posted) -> dict[int, _Posted]:
        """Returns the parcels of all copies in this round, once all have posted theirs."""
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
            # Other copies may already read the parcels of this round, so an error ends only the next round.
            return posted

    def _free_oldest(self, me: int) -> None:
        """Free the oldest sent parcels; the device first waits for their copies, which all receivers have begun."""
        self._wait(me, self._sent[me].popleft().taken)
