"""Ranks in torchrun's store: those of one attempt meet; one without a heartbeat is lost, one that has left is not."""

from __future__ import annotations

import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
import torch

from wan_core.train import heartbeat


@pytest.mark.parametrize(("last", "lost"), [("5", True), ("-1", False)])
def test_a_rank_that_falls_silent_is_lost_and_one_that_left_is_not(
    last: str, lost: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    store = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, timeout=timedelta(seconds=5))
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", str(store.port))
    for name, seconds in {"_EVERY_S": 0.02, "_LOST_S": 3, "_TICK_S": 0.02, "_LAST_S": 5.0}.items():
        monkeypatch.setattr(heartbeat, name, seconds)
    monkeypatch.setattr(os, "_exit", lambda code: pytest.fail(f"ended with {code}"))
    store.set("beats 1", last)
    aborted = threading.Event()
    leave = heartbeat.watch_ranks(0, [1], aborted.set)
    assert aborted.wait(5.0 if lost else 0.3) is lost
    leave()
    assert store.get("beats 0") == b"-1"
    time.sleep(0.03)
    assert ("No sign of rank 1" in capsys.readouterr().err) is lost


def test_the_ranks_of_each_attempt_agree_on_a_name_of_its_own_in_a_store_that_keeps_the_ones_before() -> None:
    """Also after an attempt of which one rank ended before it met the others."""
    store = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, timeout=timedelta(seconds=20))

    def named(rank: int) -> str:
        own = torch.distributed.TCPStore("127.0.0.1", store.port, is_master=False, timeout=timedelta(seconds=20))
        return heartbeat.attempt_of(own, rank, 3)

    names: list[str] = []
    for attempt in range(3):
        store.set("came 1", f"ended {attempt}")
        with ThreadPoolExecutor(3) as ranks:
            found = set(ranks.map(named, (0, 2, 1)))
        assert len(found) == 1
        names += found
    assert len(set(names)) == 3
