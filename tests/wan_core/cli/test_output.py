"""The log that a run of `train` keeps."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from wan_core.cli.output import kept_log
from wan_core.events import Event, Note

SAID = Note(text="a step was left out")


def test_it_keeps_what_people_read_and_the_error_that_ended_it(tmp_path: Path) -> None:
    passed_on: list[Event] = []

    def run() -> None:
        with kept_log(tmp_path, passed_on.append) as tell:
            tell(SAID)
            raise RuntimeError("no room")

    with pytest.raises(RuntimeError, match="no room"):
        run()
    assert passed_on == [SAID]
    first, last = (tmp_path / "log.txt").read_text(encoding="utf-8").splitlines()
    assert first.endswith("INFO wan_trainer: a step was left out")
    assert last.endswith("ERROR wan_trainer: no room")


@pytest.mark.skipif(os.name == "nt", reason="Windows makes links for administrators alone")
def test_it_writes_through_no_link_into_another_file(tmp_path: Path) -> None:
    """A run's folder may come from a stranger; the run trains all the same."""
    other = tmp_path / "other"
    other.write_text("mine\n")
    (tmp_path / "log.txt").symlink_to(other)
    passed_on: list[Event] = []
    with kept_log(tmp_path, passed_on.append) as tell:
        tell(SAID)
    assert other.read_text() == "mine\n"
    assert passed_on == [SAID]
