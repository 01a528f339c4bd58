"""The results of a measurement as a table for a terminal, and as Markdown for an issue."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .apart import DONE

_HEAD = (
    "row",
    "tokens",
    "s/step",
    "predicted s",
    "GiB",
    "predicted GiB",
    "RAM GiB",
    "TB moved",
    "kernels",
    "TFLOP/s",
    "published",
)
_FIGURES = {"seconds": "{:.3f} s", "gib": "{:.2f} GiB"}
"""figures of a published row -> their format"""
_TINY = "Tiny shapes: this shows that everything runs. The figures mean nothing."

Said = Mapping[str, Any]
"""the JSON data of `Measurement`"""


def table(said: Said) -> str:
    """Returns the measured rows in columns, and a line for each row that was not measured."""
    cells = [_HEAD, *_cells(said)]
    widths = [max(len(line[place]) for line in cells) for place in range(len(_HEAD))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in cells]
    return "\n".join([*lines, "", *_others(said), *_ends(said)])


def markdown(said: Said) -> str:
    """Returns the results as Markdown, for an issue."""
    head = [f"| {' | '.join(_HEAD)} |", f"|{' --- |' * len(_HEAD)}"]
    rows = [f"| {' | '.join(cells)} |" for cells in _cells(said)]
    others = [f"- {line}" for line in _others(said)]
    return "\n".join(
        [
            f"# Measured: {said['machine']['name']}",
            "",
            _machine(said["machine"]),
            "",
            *([*head, *rows, ""] if rows else []),
            *([*others, ""] if others else []),
            *_ends(said),
            "",
            "GiB: peak of device memory; RAM: host memory that the plan takes. TB and kernels are counted, not",
            "measured, unless `traced` stands with them; TFLOP/s are useful ones, nothing computed twice. Published",
            "figures are those of other programs on the card that is named.",
            "",
        ]
    )


def line(row: Mapping[str, Any]) -> str:
    """Returns the result of a row as one line."""
    figures = row["figures"]
    if row["status"] != DONE:
        return f"{row['status']}: {row['said']}"
    predicted = "" if figures["predicted_s"] is None else f" (predicted {figures['predicted_s']:.2f})"
    gib = "" if figures["measured_bytes"] is None else f", {_gib(figures['measured_bytes'])} GiB"
    return f"{figures['median_s']:.3f} s a step{predicted}{gib}"


def _cells(said: Said) -> list[tuple[str, ...]]:
    return [_row(row["name"], row["figures"]) for row in said["rows"] if row["status"] == DONE]


def _row(name: str, figures: Mapping[str, Any]) -> tuple[str, ...]:
    work = figures["work"]
    kernels = f"{work['kernels']:,.0f}"
    if traced := figures.get("measured_kernels"):
        kernels += f", traced {traced:,}"
    return (
        name.replace(", as planned", f", as planned ({_measures(figures)})"),
        f"{figures['tokens']:,}",
        _number(figures["median_s"], ".3f"),
        _number(figures["predicted_s"], ".2f"),
        _gib(figures["measured_bytes"]),
        _gib(figures["predicted_bytes"]),
        _gib(figures["predicted_host_bytes"]),
        f"{work['moved'] / 1e12:.2f}",
        kernels,
        f"{figures['useful_tflops']:.0f}",
        "; ".join(_published(one) for one in figures["published"]) or "-",
    )


def _measures(figures: Mapping[str, Any]) -> str:
    measures = figures["measures"]
    taken = [figures["checkpointing_policy"]]
    taken += ["inputs in RAM"] if measures["offload_inputs"] else []
    for count, what in ((measures["blocks_to_swap"], "swapped"), (figures["unchecked_blocks"], "unchecked")):
        taken += [f"{count} {what}"] if count else []
    return ", ".join(taken)


def _published(one: Mapping[str, Any]) -> str:
    figures = [form.format(one[name]) for name, form in _FIGURES.items() if one[name] is not None]
    return f"{', '.join(figures)} on {one['card']} ({one['way']})"


def _others(said: Said) -> list[str]:
    return [f"{row['name']}: {line(row)}" for row in said["rows"] if row["status"] != DONE]


def _ends(said: Said) -> list[str]:
    return [_TINY] if said["machine"]["tiny"] else []


def _machine(machine: Mapping[str, Any]) -> str:
    names = {"torch": "torch", "python": "Python", "cuda_version": "CUDA", "wan_core": "wan_core"}
    parts = [f"{words} {machine[name]}" for name, words in names.items() if machine.get(name)]
    packages = [f"{name} {number}" for name, number in machine["packages"].items() if number]
    memory = [
        f"{_gib(machine.get(name))} GiB {words}"
        for name, words in (("free_bytes", "of device memory free"), ("host_free_bytes", "of RAM free"))
        if machine.get(name)
    ]
    return f"{', '.join([str(machine['system']), *parts, *packages, *memory])}."


def _gib(value: float | None) -> str:
    return "-" if value is None else f"{value / 2**30:.2f}"


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def names_of(rows: Sequence[Any]) -> str:
    """Returns a line per row: its number, its name and published figures."""
    lines = []
    for number, row in enumerate(rows, 1):
        theirs = "; ".join(f"{one.seconds:.3f} s on {one.card}" for one in row.published if one.seconds is not None)
        lines.append(f"{number:>2}  {row.name}{f'  [{theirs}]' if theirs else ''}")
    return "\n".join(lines)
