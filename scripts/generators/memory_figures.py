"""Reads the table of docs/use/memory.md, written by make_memory_table.py, for the README and the notes of the graphs.

Standard library only.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "use" / "memory.md"
TABLE = re.compile(r"(?<=<!-- table -->\n).*?(?=<!-- end -->)", re.DOTALL)
_CELL = re.compile(r"(?P<gib>\d+\.\d)(?P<marks>[ar*]*)(?: (?P<swapped>\d+))?")


_WHY_FEWER = "More frames may need less: free memory makes a run faster, and longer clips are offloaded."


class Cell(NamedTuple):
    """The memory of a job on a card."""

    gib: str
    swapped: str
    """blocks swapped to host memory; "" for none"""

    def __str__(self) -> str:
        return f"{self.gib} ({self.swapped})" if self.swapped else self.gib


def _rows() -> list[dict[str, str]]:
    """Returns the rows of the page's table by column."""
    found = TABLE.search(PAGE.read_text(encoding="utf-8"))
    assert found, "docs/use/memory.md has no table"
    head, _rule, *rows = ([cell.strip() for cell in line.strip("|").split("|")] for line in found[0].splitlines())
    return [dict(zip(head, row, strict=True)) for row in rows]


def figures() -> dict[str, dict[int, dict[int, Cell | None]]]:
    """Returns model -> frames -> GB of a card -> cell; None where it does not fit."""
    out: dict[str, dict[int, dict[int, Cell | None]]] = {}
    for row in _rows():
        cells = {int(head.split()[0]): _cell(text) for head, text in row.items() if head.endswith(" GB")}
        out.setdefault(row["model"], {})[int(row["frames"])] = cells
    return out


def _cell(text: str) -> Cell | None:
    found = _CELL.fullmatch(text)
    return Cell(found["gib"], found["swapped"] or "") if found else None


def note(model: str, *frames: int, size: str = "832x480", cards: tuple[int, ...] = (12, 16, 24)) -> str:
    """Returns the paragraph of a note on the memory of clips of so many frames on each card."""
    known = figures()[model]
    lines = []
    for card in cards:
        fits = [(count, known[count][card]) for count in frames]
        said = ", ".join(f"{_frames(count)} {cell}" for count, cell in fits if cell is not None)
        lines.append(f"- {card} GB card: {said or 'does not fit'}")
    away = any("(" in line for line in lines)
    brackets = "; in brackets the blocks offloaded to CPU RAM" if away else ""
    said = f"**Memory** (GiB at the peak of training, predicted; {size}, rank 32{brackets}):\n\n" + "\n".join(lines)
    return f"{said}\n\n{_WHY_FEWER}" if len(frames) > 1 else said


def _frames(count: int) -> str:
    return "pictures" if count == 1 else f"{count} frames"


_MEASURED = {
    "14B 832x480x33 fp8, as planned": ("Wan 2.2 A14B expert, fp8", 33),
    "14B 832x480x49 fp8, as planned": ("Wan 2.2 A14B expert, fp8", 49),
}
"""rows of `benchmarks/measure` that are rows of the table, at the same rank: the expert has the shape of that 14B"""
_SIZE_OFF = 0.1
"""by how much the memory of a card, in GiB, may differ from its GB"""


def measured_cells() -> dict[tuple[str, int, int], str]:
    """Returns (model, frames, GB of the card) -> measured GiB, from results of `benchmarks/measure` that were sent."""
    found: dict[tuple[str, int, int], str] = {}
    for file in sorted((ROOT / "benchmarks" / "results").glob("measured_*.json")):
        said = json.loads(file.read_text(encoding="utf-8"))
        gib = said["machine"].get("total_bytes", 0) / 2**30
        card = next((card for card in README_CARDS if abs(gib - card) <= _SIZE_OFF * card), None)
        if card is None or said["machine"]["tiny"]:
            continue
        for row in said["rows"]:
            if row["status"] == "done" and row["name"] in _MEASURED:
                found[(*_MEASURED[row["name"]], card)] = f"{row['figures']['measured_bytes'] / 2**30:.1f}"
    return found


README_CARDS = (12, 16, 24, 48)
README_ROWS = (
    ("Wan 2.1 T2V-1.3B", "Wan 2.1 T2V-1.3B", 81),
    ("14B, or one A14B expert, fp8", "Wan 2.2 A14B expert, fp8", 33),
    ("", "Wan 2.2 A14B expert, fp8", 49),
    ("", "Wan 2.2 A14B expert, fp8", 81),
    ("the same in bf16", "Wan 2.2 A14B expert, bf16", 49),
)
"""name in the README, row of the table, frames"""


def readme_table() -> str:
    """Returns the table of the README, a part of the page's."""
    known, measured = figures(), measured_cells()
    beside = {(row["model"], row["frames"]): f"{row['RAM']} | {row['hours']}" for row in _rows()}
    lines = [
        "| model | frames | " + " | ".join(f"{card} GB" for card in README_CARDS) + " | RAM | hours |",
        "| --- | --- |" + " --- |" * (len(README_CARDS) + 2),
    ]
    for name, model, frames in README_ROWS:
        cells = " | ".join(
            str(known[model][frames][card] or "-")
            + (f", m {measured[model, frames, card]}" if (model, frames, card) in measured else "")
            for card in README_CARDS
        )
        lines.append(f"| {name + ' ' if name else ''}| {frames} | {cells} | {beside[model, str(frames)]} |")
    return "\n".join(lines) + "\n"
