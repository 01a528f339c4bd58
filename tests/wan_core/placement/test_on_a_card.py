"""Tiny runs on stand-in cards (tests/support/stand_in_card): the CPU's numbers to the last bit, and no missing wait."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support import stand_in_card
from tests.support.forked import RunScript

SCRIPT = Path(__file__).parents[2] / "support" / "trained_on_cards.py"
IN_CI = ("two cards, fp8, everything", "nothing locked", "two cards at once, fp8, swapped")
LONG = (
    "plain",
    "attention offloaded",
    "optimizer offloaded",
    "fp8",
    "int8",
    "int8, all swapped",
    "fp8, swapped and offloaded",
    "inputs offloaded",
    "two blocks swapped",
    "attention kept",
    "products offloaded",
    "unchecked blocks",
    "nothing checked",
    "fp8, dequantized by chunk",
    "two micro-batches",
    "two cards",
    "two cards at once",
    "context, two cards at once, int8, swapped",
)
ONE_WAIT = {"copy to the host: wan_core/train/optimizer_state.py:read": 1}
"""the gradient norm and the loss, and with them what an offloaded optimizer steps"""
PAGEABLE = {"copy to the host: wan_core/placement/copies.py:start_all"}
"""what waits where the system page-locks nothing"""
BEGUN = "copy not waited for: wan_core/placement/copies.py:start_all"
COPIES_OF_WEIGHTS = 2 * 40 * 2 * (2 + 1)
"""in two steps, of 40 linears two matrices each: with their gradients to the host, and back"""
BETWEEN_CARDS = {
    "copy between cards: wan_core/parallel/handover.py:fetch",
    "copy between cards: wan_core/train/trainer.py:_clipped",
}
"""what a stage hands on, and the parts of the gradient norm"""
NOT_FINITE = "TrainingError: 1 steps in a row gave no usable"
PLANTED = {
    "two blocks swapped + no wait": ("read before it arrived", NOT_FINITE),
    "inputs offloaded + no wait before leaving": ("freed while it was copied", NOT_FINITE),
    "two cards at once + no mark": ("began before what was computed", NOT_FINITE),
    "two cards + no bridge": ("", "RuntimeError: Expected all tensors to be on the same device"),
    "a full card": ("", "OutOfMemory: The GPU ran out of memory"),
}
"""a fault, and how the run ends"""
LONG_PLANTED = {
    "inputs offloaded + no order": ("began before what was computed", NOT_FINITE),
    "two cards at once + let go": ("freed while it was copied", NOT_FINITE),
}


@pytest.fixture(scope="module")
def trained(run_script: RunScript, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Runs by name, as tests/support/trained_on_cards.py reports them."""
    if lacking := stand_in_card.missing():
        pytest.skip(lacking)
    stand_in_card.library()
    known: dict[str, Any] = {}

    def of(*names: str) -> dict[str, Any]:
        if names[0] not in known:
            done = run_script(SCRIPT, str(tmp_path_factory.mktemp("cards")), *names)
            assert done.returncode == 0, done.stderr[-2000:]
            known.update(json.loads(done.stdout))
        return known

    return of


def assert_as_on_the_cpu(found: dict[str, Any]) -> None:
    assert found["said"] == "", "a tensor on the wrong device would be said here"
    assert found["differ"] == []
    assert found["tensors"] == 4 * 10 * (3 + 2 + 2 * 2) + 81, "LoRA with its alphas, what trains, two moments; steps"
    assert found["faults"] == {}
    assert {where: n for where, n in found["of_a_step"].items() if where not in PAGEABLE} == ONE_WAIT


@pytest.mark.lasts(1)
@pytest.mark.parametrize("name", IN_CI)
def test_a_run_on_cards_is_the_run_on_the_cpu_to_the_last_bit(trained: Any, name: str) -> None:
    found = trained(*IN_CI, *PLANTED)[name]
    assert_as_on_the_cpu(found)
    assert (found["of_a_step"].keys() >= PAGEABLE) == (name == "nothing locked")
    assert found["copies"][BEGUN] > 0
    between = {place for place in found["copies"] if place.startswith("copy between cards")}
    if "at once" in name:
        assert between == BETWEEN_CARDS, "elsewhere a copy between cards would let one wait for the other"


@pytest.mark.soak
@pytest.mark.parametrize("name", LONG)
def test_so_is_one_of_every_setting_of_memory(trained: Any, name: str) -> None:
    found = trained(*LONG)[name]
    assert_as_on_the_cpu(found)
    if name == "optimizer offloaded":
        assert found["copies"][BEGUN] == COPIES_OF_WEIGHTS


@pytest.mark.lasts(1)
@pytest.mark.parametrize("name", [*PLANTED, *(pytest.param(name, marks=pytest.mark.soak) for name in LONG_PLANTED)])
def test_a_missing_wait_or_bridge_is_found(trained: Any, name: str) -> None:
    found = trained(*(LONG_PLANTED if name in LONG_PLANTED else (*IN_CI, *PLANTED)))[name]
    fault, said = (PLANTED | LONG_PLANTED)[name]
    assert found["said"].startswith(said)
    assert any(one.startswith(fault) for one in found["faults"]) if fault else not found["faults"]
