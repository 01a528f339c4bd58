"""Split tokens on stand-in cards: late copies between them, no missing wait, and none too many."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.support import stand_in_card
from tests.support.forked import RunScript
from tests.wan_core.placement.test_on_a_card import NOT_FINITE, ONE_WAIT, SCRIPT

RUNS = ("split tokens, everything",)
LONG = ("split tokens", "split tokens, attention kept")
PLANTED = {"split tokens, everything + no wait for the other": ("read before it arrived", NOT_FINITE)}
LONG_PLANTED = {
    "split tokens + nothing is held": ("freed while it was copied", ""),
    "split tokens + nothing is ready": ("began before what was computed", NOT_FINITE),
}


@pytest.fixture(scope="module")
def found(run_script: RunScript, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., dict[str, Any]]:
    """Runs by name; those of one call are run once."""
    if lacking := stand_in_card.missing():
        pytest.skip(lacking)
    stand_in_card.library()

    @functools.cache
    def of(*names: str) -> dict[str, Any]:
        done = run_script(SCRIPT, str(tmp_path_factory.mktemp("cards")), *names)
        assert done.returncode == 0, done.stderr[-2000:]
        return json.loads(done.stdout)

    return of


@pytest.mark.lasts(3)
@pytest.mark.parametrize("name", [*RUNS, *(pytest.param(name, marks=pytest.mark.soak) for name in LONG)])
def test_a_run_on_two_cards_is_that_of_two_parts_on_the_cpu(found: Callable[..., dict[str, Any]], name: str) -> None:
    run = found(*(LONG if name in LONG else (*RUNS, *PLANTED)))[name]
    assert (run["said"], run["differ"], run["faults"]) == ("", [], {})
    assert run["tensors"] == 3 * 10 * (3 + 2 + 2 * 2) + 61
    assert run["of_a_step"] == ONE_WAIT, "as on one card"
    # Of three layers on two cards, in two steps and a rehearsal of one micro-batch: queries, keys, values and what is
    # attended to, forward, again where the layer is recomputed, and back.
    layers = {"split tokens, attention kept": 3 + 2 + 3}.get(name, 9)
    micro_batches = 5 if name == "split tokens" else 3
    ways = 1 if name == "split tokens, everything" else 2  # one of its cards has no head
    # The second of two routes: tokens, cosines and sines there, tokens back, and on the way back the gradients of both.
    routes = 6 if name == "split tokens, attention kept" else 0
    copies = ways * (4 * layers + routes) * micro_batches
    assert run["copies"]["copy between cards: wan_core/placement/copies.py:fetch"] == copies


@pytest.mark.parametrize("name", [*PLANTED, *(pytest.param(name, marks=pytest.mark.soak) for name in LONG_PLANTED)])
def test_a_missing_wait_is_found(found: Callable[..., dict[str, Any]], name: str) -> None:
    fault, said = (PLANTED | LONG_PLANTED)[name]
    run = found(*(LONG_PLANTED if name in LONG_PLANTED else (*RUNS, *PLANTED)))[name]
    assert run["said"].startswith(said)
    assert any(one.startswith(fault) for one in run["faults"])
