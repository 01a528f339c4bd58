"""Result files of benchmarks: figures as JSON and a page, named after machine and date. CPU seconds of a process."""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

RESULTS = Path(__file__).resolve().parent / "results"


def hardware() -> str:
    """Returns the name of the first GPU, or the number of cores, for a result."""
    import torch  # here, because start.py measures processes that must not import it

    if torch.cuda.is_available():
        return torch.cuda.get_device_name(0).replace("NVIDIA ", "")
    return f"CPU {os.cpu_count()} cores"


def write_result(theme: str, figures: Any, page: str, *, machine: str = "", out: Path = RESULTS) -> None:
    """Writes <theme>_<machine>_<yyyy-mm>.json and .md, and prints the page; `machine` empty: this one's `hardware`."""
    stem = f"{theme}_{(machine or hardware()).replace(' ', '-')}_{time.strftime('%Y-%m')}"
    out.mkdir(parents=True, exist_ok=True)
    (out / f"{stem}.json").write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    (out / f"{stem}.md").write_text(page, encoding="utf-8")
    print(page)


def write_page(theme: str, page: Callable[[Path], str]) -> None:
    """Writes what no machine measured, <theme>_<yyyy-mm>.md, and prints it; `page` is given a temporary folder."""
    with tempfile.TemporaryDirectory() as folder:
        text = page(Path(folder))
    (RESULTS / f"{theme}_{time.strftime('%Y-%m')}.md").write_text(text, encoding="utf-8")
    print(text)


def used(process: psutil.Process) -> float:
    """Returns the CPU seconds of a process and its children, ended ones included."""
    total = sum(process.cpu_times()[:4])
    for child in process.children(recursive=True):
        try:
            total += sum(child.cpu_times()[:4])
        except psutil.Error:
            continue
    return total
