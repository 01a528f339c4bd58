"""Ranks in torchrun's store: rendezvous of the ranks of one attempt, and heartbeats between machines.

The other ranks notice a dead process at once, because its sockets close. A lost network closes no socket; without
heartbeats the other ranks would wait hours for a timeout.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch

_EVERY_S = 3.0
_LOST_S = 40.0
"""seconds without a heartbeat after which a rank counts as lost"""
_LEFT = float("inf")
"""stands for the time of the last heartbeat of a rank that left the group, which never counts as lost"""
_GOODBYE_S = 2.0
"""timeout of the last message to the store"""
_TICK_S = 1.0
_POLL_S = 0.02
_LAST_S = 10.0
"""seconds in which this rank may end with its own error, before the process is ended"""


def attempt_of(store: Any, rank: int, world: int) -> str:
    """Returns a name of this attempt of torchrun: the same on all ranks, a new one after a restart; a collective.

    The store outlives a restart, with the entries of ended ranks, and torchrun's agents may count restarts differently.
    """
    name, others = uuid.uuid4().hex, range(1, world)
    if rank:
        store.set(f"came {rank}", name)
        name = store.get(f"attempt of {name}").decode()
        store.set(f"{name} {rank}", "")
        return name
    while not all(store.check([f"{name} {other}"]) for other in others):
        for other in others:  # Until a restarted rank has written its name, the store holds the name of the ended rank.
            if store.check([f"came {other}"]):
                store.set(f"attempt of {store.get(f'came {other}').decode()}", name)
        time.sleep(_POLL_S)
    return name


def watch_ranks(rank: int, others: Sequence[int], abort: Callable[[], None]) -> Callable[[], None]:
    """Starts this rank's heartbeats, and a watch on other ranks' heartbeats; returns a function that ends both.

    `others`: one rank of each other machine, which watches this one too.
    If a rank is lost, it calls `abort`, which should make a waiting collective raise; then it ends the process.
    """
    ended = threading.Event()
    heard = dict.fromkeys(others, 0.0)
    beats = threading.Thread(target=_beat, args=(rank, heard, ended), daemon=True, name="heartbeats")
    watch = threading.Thread(target=_watch, args=(heard, abort, ended), daemon=True, name="watch on ranks")
    beats.start()
    watch.start()

    def leave() -> None:
        ended.set()
        beats.join(_GOODBYE_S)

    return leave


def _beat(rank: int, heard: dict[int, float], ended: threading.Event) -> None:
    """Counts this rank's beats in torchrun's store, and stores in `heard` when the other ranks' counts changed."""
    # A connection of its own: a call that waits for a lost network would block the rank's own connection.
    place = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    store = torch.distributed.TCPStore(*place, is_master=False, timeout=timedelta(seconds=_LOST_S))
    known, beats = dict.fromkeys(heard, 0), 0
    while not ended.is_set():
        beats += 1
        with contextlib.suppress(RuntimeError):  # the store is gone: no rank is heard, so `_watch` ends the process
            store.set(f"beats {rank}", str(beats))
            for other in heard:
                begun = store.check([f"beats {other}"])
                if begun and (count := int(store.get(f"beats {other}"))) != known[other]:
                    known[other], heard[other] = count, _LEFT if count < 0 else time.monotonic()
        ended.wait(_EVERY_S)
    with contextlib.suppress(RuntimeError):
        store.set(f"beats {rank}", "-1")


def _watch(heard: dict[int, float], abort: Callable[[], None], ended: threading.Event) -> None:
    """Ends this process when another rank's heartbeats stop."""
    silent, before = dict.fromkeys(heard, 0), dict(heard)
    while not ended.wait(_TICK_S):
        # Counts ticks of this thread: after this process itself was suspended, other ranks must not count as lost.
        silent = {other: 0 if heard[other] != before[other] else silent[other] + 1 for other in heard}
        before = dict(heard)
        lost = [other for other, seconds in silent.items() if seconds > _LOST_S and heard[other] != _LEFT]
        if lost:
            who = " and ".join(f"rank {other}" for other in lost)
            print(f"No sign of {who} for {_LOST_S:.0f} s: its machine or the network is lost.", file=sys.stderr)  # noqa: T201
            abort()
            if not ended.wait(_LAST_S):
                os._exit(1)  # saved steps stay intact
