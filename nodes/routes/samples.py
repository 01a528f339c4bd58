"""Preview clips of a run, by the ids of its sample index (rule S4): no client ever names a file."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from ...wan_core.errors import WanTrainerError
from ...wan_core.files import confine, read_json, safe_name
from .refusal import Refused

__all__ = ["CLIP_TYPES", "Sample", "find_sample", "list_samples", "read_index"]

CLIP_TYPES = {".mp4": "video/mp4", ".webm": "video/webm", ".png": "image/png", ".webp": "image/webp"}
"""what the route sends, and as what; a file of another kind is no sample"""
_PROMPT = re.compile(r"_p(\d{1,4})$")


@dataclass(frozen=True)
class Sample:
    """One preview clip of training."""

    id: str
    step: int
    file: str
    """relative to the run: samples/<name>"""

    def to_dict(self, run_id: str) -> dict[str, Any]:
        """As routes and the page know it."""
        found = _PROMPT.search(self.id)
        prompt = f", prompt {int(found[1]) + 1}" if found else ""
        before = " (before training)" if self.step == 0 else ""
        return {
            "id": self.id,
            "step": self.step,
            "label": f"step {self.step}{before}{prompt}",
            "url": f"/wan_trainer/runs/{quote(run_id)}/samples/{quote(self.id)}",
        }


def read_index(directory: Path) -> list[dict[str, Any]]:
    """Entries of samples/index.json that have the right shape; previews of training and of ValidateVideo alike."""
    try:
        entries = read_json(confine(directory, "samples/index.json", "sample index"))
    except (WanTrainerError, OSError):
        return []
    return [e for e in entries if _is_entry(e)] if isinstance(entries, list) else []


def list_samples(directory: Path) -> list[Sample]:
    """Previews of training whose file is there, in order of step and prompt."""
    found = {e["id"]: Sample(e["id"], e["step"], e["file"]) for e in read_index(directory) if e["file"].count("/") == 1}
    ordered = sorted(found.values(), key=lambda s: (s.step, s.id))
    return [sample for sample in ordered if _file_of(directory, sample) is not None]


def find_sample(directory: Path, sample_id: str) -> tuple[Path, str]:
    """(real file, media type) of a sample; Refused(404) when the index has none of that id."""
    for sample in list_samples(directory):
        file = _file_of(directory, sample) if sample.id == sample_id else None
        if file is not None:
            return file, CLIP_TYPES[file.suffix]
    raise Refused(404, "There is no such sample.")


def _file_of(directory: Path, sample: Sample) -> Path | None:
    try:
        safe_name(sample.file.rpartition("/")[2], "sample")
        path = confine(directory / "samples", sample.file.rpartition("/")[2], "sample")
    except (WanTrainerError, ValueError):
        return None
    return path if path.suffix in CLIP_TYPES and path.is_file() else None


def _is_entry(entry: Any) -> bool:
    if not isinstance(entry, dict) or set(entry) != {"id", "step", "file"}:
        return False
    texts = isinstance(entry["id"], str) and isinstance(entry["file"], str) and isinstance(entry["step"], int)
    return texts and bool(re.fullmatch(r"[A-Za-z0-9._-]{1,100}", entry["id"])) and entry["file"].startswith("samples/")
