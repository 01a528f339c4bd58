"""The memory of cards that work at once is the predicted one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support import stand_in_card
from tests.support.forked import RunScript

SCRIPT = Path(__file__).parents[2] / "support" / "at_once_on_cards.py"


@pytest.mark.lasts(2)
@pytest.mark.parametrize(
    "names", [("at once",), pytest.param(("in turn", "offloaded", "offloaded, in turn"), marks=pytest.mark.soak)]
)
def test_the_predicted_peak_of_each_card_is_within_a_tenth(
    run_script: RunScript, tmp_path: Path, names: tuple[str, ...]
) -> None:
    if lacking := stand_in_card.missing():
        pytest.skip(lacking)
    done = run_script(SCRIPT, str(tmp_path), *names)
    assert done.returncode == 0, done.stderr[-2000:]
    for name, found in json.loads(done.stdout).items():
        for measured, predicted in zip(found["measured"], found["predicted"], strict=True):
            assert measured == pytest.approx(predicted, rel=0.1), name
