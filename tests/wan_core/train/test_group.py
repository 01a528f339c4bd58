"""Ranks in torchrun's store: those of one attempt meet."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import torch

from wan_core.train.group import attempt_of


def test_the_ranks_of_each_attempt_agree_on_a_name_of_its_own_in_a_store_that_keeps_the_ones_before() -> None:
    """Also after an attempt of which one rank ended before it met the others."""
    store = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, timeout=timedelta(seconds=20))

    def named(rank: int) -> str:
        own = torch.distributed.TCPStore("127.0.0.1", store.port, is_master=False, timeout=timedelta(seconds=20))
        return attempt_of(own, rank, 3)

    names: list[str] = []
    for attempt in range(3):
        store.set("came 1", f"ended {attempt}")
        with ThreadPoolExecutor(3) as ranks:
            found = set(ranks.map(named, (0, 2, 1)))
        assert len(found) == 1
        names += found
    assert len(set(names)) == 3
