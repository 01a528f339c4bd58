"""The results as a page to read: what failed first, then a table for each part."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from measure import DONE, ERROR, LEFT_OUT, NEEDS

from .case import Result

Row = Mapping[str, Any]


def _gib(value: Any) -> str:
    return "-" if value is None else f"{value / 2**30:.2f}"


def _number(form: str) -> Callable[[Any], str]:
    return lambda value: "-" if value is None else format(value, form)


def _error(figures: Row) -> float | None:
    """Returns predicted over measured peak."""
    measured = figures.get("measured_bytes")
    return None if not measured else figures["predicted_bytes"] / measured


_JOB: dict[str, Callable[[Row], str]] = {
    "tokens": lambda f: f"{f['tokens']:,}",
    "s/it": lambda f: f"{f['median_s']:.3f}",
    "predicted s": lambda f: _number(".2f")(f["predicted_s"]),
    "HFU TFLOP/s": lambda f: _number(".0f")(f.get("hfu_tflops")),
    "HFU": lambda f: _number(".1%")(f.get("hfu")),
    "MFU": lambda f: _number(".1%")(f.get("mfu")),
    "predicted GiB": lambda f: _gib(f["predicted_bytes"]),
    "measured GiB": lambda f: _gib(f["measured_bytes"]),
    "predicted / measured": lambda f: _number(".3f")(_error(f)),
    "reserved GiB": lambda f: _gib(f["reserved_bytes"]),
}
_COLUMNS: dict[str, dict[str, Callable[[Row], str]]] = {
    "published": {
        **_JOB,
        "theirs s/it": lambda f: _number(".3f")(f.get("their_s")),
        "theirs GiB": lambda f: _number(".2f")(f.get("their_gib")),
        "on": lambda f: f.get("their_card", "-"),
        "how": lambda f: f.get("their_way", "-"),
    },
    "memory": _JOB,
    "speed": _JOB,
    "switches": _JOB,
    "peers": {
        "ours s": lambda f: f"{f['ours_s']:.4f}",
        "theirs s": lambda f: f"{f['theirs_s']:.4f}",
        "ours / theirs": lambda f: f"{f['ours_to_it']:.3f}",
        "our step GiB": lambda f: _gib(f["ours_step_bytes"]),
        "their step GiB": lambda f: _gib(f["theirs_step_bytes"]),
        "losses": lambda f: f"{f['ours_loss']:.5f}, {f['theirs_loss']:.5f}",
        "gradient norms": lambda f: f"{f['ours_gradient_norm']:.5f}, {f['theirs_gradient_norm']:.5f}",
    },
}
"""Parts without columns of their own show every figure in one cell."""


def short(result: Result) -> str:
    """Returns one line for the console."""
    return result.said or _cell(result.figures)[:160]


def _cell(figures: Row) -> str:
    shown = (
        (name, _plain(value)) for name, value in figures.items() if name != "ok" and not isinstance(value, list | dict)
    )
    return ", ".join(f"{name} {value}" for name, value in shown)


def _plain(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.3g}"
    return "-" if value is None else str(value)


def page(said: Mapping[str, Any]) -> str:
    """Returns the page of what `gpu_check.py` writes as data."""
    machine, results = said["machine"], said["results"]
    counts = ", ".join(
        f"{sum(r['status'] == status for r in results)} {status}" for status in (DONE, ERROR, NEEDS, LEFT_OUT)
    )
    facts = ", ".join(f"{name} {value}" for name, value in machine.items() if not isinstance(value, dict))
    packages = ", ".join(f"{name} {number or 'none'}" for name, number in machine["packages"].items())
    lines = [f"# GPU check: {machine['name']}", "", f"{facts}, {packages}.", "", f"{counts}.", ""]
    if machine["tiny"]:
        lines += ["Tiny shapes: this shows that everything runs. The figures mean nothing.", ""]
    lines += ["What each figure means: [METHOD.md](../card/METHOD.md).", ""]
    for part in dict.fromkeys(r["part"] for r in results):
        lines += [f"## {part}", "", *_table(part, [r for r in results if r["part"] == part]), ""]
    return "\n".join(lines)


def _table(part: str, results: list[Row]) -> list[str]:
    columns = _COLUMNS.get(part, {"figures": _cell})
    baseline = results[0]["figures"].get("median_s") if part == "switches" else None
    names = [*columns, *(["s/it to the first"] if baseline else [])]
    lines = [f"| case | status | {' | '.join(names)} |", "|" + " --- |" * (len(names) + 2)]
    for result in results:
        figures = result["figures"]
        if figures:
            cells = [show(figures) for show in columns.values()]
            cells += [f"{figures['median_s'] / baseline:.3f}"] if baseline else []
        else:
            cells = [str(result["said"]).replace("|", "/").replace("\n", " ")] + [""] * (len(names) - 1)
        lines.append(f"| {' | '.join([result['name'], result['status'], *cells])} |")
    return lines
