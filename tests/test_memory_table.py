"""The pages say what the planner says today, and the notes of the graphs what the pages say."""

from __future__ import annotations

from pathlib import Path

import make_memory_table
import memory_figures
import pytest


@pytest.mark.soak
@pytest.mark.lasts(4)
def test_all_cells_of_the_check_are_those_of_the_planner() -> None:
    assert make_memory_table.wrong() == []


@pytest.mark.lasts(3)
def test_a_few_cells_are_those_of_the_planner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(make_memory_table, "SPOT_CHECKS", make_memory_table.SPOT_CHECKS[1:])
    assert make_memory_table.wrong() == []
    page = make_memory_table.PAGE.read_text(encoding="utf-8")
    monkeypatch.setattr(make_memory_table, "PAGE", tmp_path / "memory.md")
    row = next(line for line in page.splitlines() if line.startswith("| Wan 2.2 A14B expert, fp8 | 33 |"))
    *cells, ram, hours, _ = row.split(" | ")[:-1] + row.rpartition(" | ")[2].split(" |")
    cells[3] = "7.5a"
    other = " | ".join([*cells, "777", "88.8 |"])
    (tmp_path / "memory.md").write_text(page.replace(row, other, 1), encoding="utf-8")
    where = "docs/use/memory.md: Wan 2.2 A14B expert, fp8, 33 frames"
    assert make_memory_table.wrong() == [
        f"{where}, 16 GB: 7.5a, planned 14.9a* 30",
        f"{where}, RAM: 777, planned {ram}",
        f"{where}, hours: 88.8, planned {hours}",
    ]


def test_a_note_says_what_fits_which_card_and_which_measures_it_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "memory.md").write_text(
        "<!-- table -->\n| model | frames | 12 GB | 16 GB |\n| --- | --- | --- | --- |\n"
        "| X | 33 | 10.8* 26 | 14.7a* |\n| X | 81 | - | 15.9 |\n<!-- end -->\n",
        encoding="utf-8",
    )
    monkeypatch.setattr(memory_figures, "PAGE", tmp_path / "memory.md")
    said = memory_figures.note("X", 33, 81, cards=(12, 16)).splitlines()
    assert "in brackets" in said[0]
    assert said[2:4] == ["- 12 GB card: 33 frames 10.8 (26)", "- 16 GB card: 33 frames 14.7, 81 frames 15.9"]
    assert said[5].startswith("More frames may need less: ")
    assert memory_figures.note("X", 81, cards=(12,)).endswith("- 12 GB card: does not fit")
