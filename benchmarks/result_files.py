"""The two files of a measurement: its figures as JSON, and a page to read beside them, named after machine and date."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).resolve().parent / "results"


def hardware() -> str:
    """Returns the name of the first GPU, or the number of cores, as it stands in a result."""
    import torch  # in here: runs.py measures processes that must not load it

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
