"""Preview clips of a run, by the ids of its sample index (rule S4): no client ever names a file."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from ...wan_core.errors import WanTrainerError
from ...wan_core.files import confine, read_json
from .inside import Parts
from .refusal import Refused

__all__ = ["CLIP_TYPES", "NO_SAMPLE", "Sample", "find_sample", "list_samples", "read_index"]

CLIP_TYPES = {".mp4": "video/mp4", ".webm": "video/webm", ".png": "image/png", ".webp": "image/webp"}
"""what the route sends, and as what; a file of another kind is no sample"""
NO_SAMPLE = "There is no such sample."
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_FILE = re.compile(r"samples/(validate-[0-9a-f]{12}/)?[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_PROMPT = re.compile(r"_p(\d{1,4})$")


@dataclass(frozen=True)
class Sample:
    """One preview clip of training."""

    id: str
    step: int
    file: str
    """relative to the run: samples/<name>"""

    @property
    def media_type(self) -> str:
        """Empty for a file that is not sent."""
        return CLIP_TYPES.get(os.path.splitext(self.file)[1], "")

    @property
    def parts(self) -> Parts:
        """`file`, name by name."""
        return tuple(self.file.split("/"))

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
    return [sample for sample in ordered if sample.media_type and (directory / sample.file).is_file()]


def find_sample(directory: Path, sample_id: str) -> Sample:
    """The sample of that id; Refused(404) when the index has none."""
    for sample in list_samples(directory):
        if sample.id == sample_id:
            return sample
    raise Refused(404, NO_SAMPLE)


def _is_entry(entry: Any) -> bool:
    if not isinstance(entry, dict) or set(entry) != {"id", "step", "file"}:
        return False
    texts = isinstance(entry["id"], str) and isinstance(entry["file"], str) and isinstance(entry["step"], int)
    return texts and bool(_ID.fullmatch(entry["id"]) and _FILE.fullmatch(entry["file"])) and ".." not in entry["file"]
