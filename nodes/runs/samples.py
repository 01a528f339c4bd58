"""Clips of a run (previews, and renderings of ValidateVideo) by the ids of its sample index, never by a client's path
(rule S4)."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from ...wan_core.errors import WanTrainerError
from ...wan_core.files import confine, read_json

Parts = tuple[str, ...]
"""parts of a path below the folder of a run, without empty parts, "." and ".." """
_CLIP_TYPES = {".mp4": "video/mp4", ".webm": "video/webm", ".png": "image/png", ".webp": "image/webp"}
"""suffix -> media type of the files that the route sends"""
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,159}")
_FILE = re.compile(r"samples/(validate-[0-9a-f]{12}/)?[A-Za-z0-9][A-Za-z0-9._-]{0,159}")
_NAMED = r"_p(?P<prompt>\d{1,4})(?:_(?P<name>[A-Za-z0-9-]{1,40}))?"
_PREVIEW = re.compile(r"step-(?P<step>\d{6,12})" + _NAMED, re.ASCII)
_RENDERED = re.compile(
    r"(?:baseline|step-(?P<step>\d{6,12})_s(?P<strength>-?\d{1,3}(?:\.\d{1,17})?(?:e-\d{1,3})?))"
    r"(?:_d(?P<seed>\d{1,20}))?" + _NAMED,
    re.ASCII,
)
"""names of clips that `wan_core sample` writes"""
_LONGEST = 2000
"""most characters of a prompt in a response"""


@dataclass(frozen=True)
class Sample:
    """One clip: a preview of training, or a clip of a rendering of ValidateVideo."""

    id: str
    """unique in the run; for a rendering, made of its folder and the clip"""
    step: int
    """optimizer steps; 0: before training, or the base model of a rendering"""
    file: str
    """relative to the run: samples/<name>, or samples/<rendering>/<name>"""
    prompt: int
    """index of the prompt, from 0"""
    strength: float | None = None
    """strength of the LoRA; None for previews and base models"""
    name: str = ""
    """name of the prompt in a library, as in the file name"""
    text: str = ""
    """the prompt; empty if the index has none"""
    seed: int | None = None
    """seed of the noise, in a rendering of several seeds"""

    @property
    def rendering(self) -> str:
        """Folder of the rendering; "" for previews of training."""
        return self.parts[1] if len(self.parts) == 3 else ""

    @property
    def media_type(self) -> str:
        """Media type; "" for a file that is never sent."""
        return _CLIP_TYPES.get(os.path.splitext(self.file)[1], "")

    @property
    def parts(self) -> Parts:
        return tuple(self.file.split("/"))

    @property
    def label(self) -> str:
        """Description of the clip for the user."""
        of = f"step {self.step}" + (" (before training)" if self.step == 0 else "")
        if self.rendering:
            of = "base model" if self.strength is None else f"step {self.step}, strength {self.strength:g}"
            of = f"validation: {of}"
        seed = "" if self.seed is None else f", seed {self.seed}"
        return f"{of}, prompt {self.prompt + 1}" + (f" ({self.name})" if self.name else "") + seed

    def to_dict(self, run_id: str) -> dict[str, Any]:
        """Returns SAMPLE of the routes."""
        return {
            "id": self.id,
            "step": self.step,
            "label": self.label,
            "prompt": self.prompt,
            "name": self.name,
            "text": self.text,
            "strength": self.strength,
            "rendering": self.rendering,
            "seed": None if self.seed is None else str(self.seed),
            "url": f"/wan_trainer/runs/{quote(run_id)}/samples/{quote(self.id)}",
        }


def read_index(directory: Path) -> list[dict[str, Any]]:
    """Returns the valid entries of samples/index.json; [] for a missing or damaged file."""
    try:
        entries = read_json(confine(directory, "samples/index.json", "sample index"))
    except (WanTrainerError, OSError):
        return []
    return [e for e in entries if _is_entry(e)] if isinstance(entries, list) else []


def list_samples(directory: Path) -> list[Sample]:
    """Returns the clips whose file exists: previews in order of step and prompt, then clips of each rendering."""
    found = {sample.id: sample for sample in _named(directory) if (directory / sample.file).is_file()}
    return sorted(found.values(), key=lambda s: (s.rendering, s.step, s.prompt, s.seed or 0, s.strength or 0.0, s.id))


def newest_preview(directory: Path) -> str | None:
    """Returns the id of the newest preview of the first prompt, by the index alone; None without one."""
    previews = [sample for sample in _named(directory) if not sample.rendering]
    return max(previews, key=lambda sample: (sample.step, -sample.prompt)).id if previews else None


def _named(directory: Path) -> list[Sample]:
    """Returns the clips of the index that may be sent."""
    named = map(_sample_of, read_index(directory))
    return [sample for sample in named if sample is not None and sample.media_type]


def _sample_of(entry: dict[str, Any]) -> Sample | None:
    """Returns the clip of an index entry; None if id, file and step disagree."""
    _, *folder, name = entry["file"].split("/")
    clip = (_RENDERED if folder else _PREVIEW).fullmatch(entry["id"])
    if clip is None or int(clip["step"] or 0) != entry["step"] or os.path.splitext(name)[0] != entry["id"]:
        return None
    strength, seed = clip.groupdict().get("strength"), clip.groupdict().get("seed")
    return Sample(
        id="_".join([*folder, entry["id"]]),
        step=entry["step"],
        file=entry["file"],
        prompt=int(clip["prompt"]),
        strength=None if strength is None else float(strength),
        name=clip["name"] or "",
        text=entry.get("prompt", "")[:_LONGEST],
        seed=None if seed is None else int(seed),
    )


def find_sample(directory: Path, sample_id: str) -> Sample | None:
    return next((sample for sample in list_samples(directory) if sample.id == sample_id), None)


def _is_entry(entry: Any) -> bool:
    # A run folder may come from elsewhere, and `file` becomes a path: everything is checked before use.
    if not isinstance(entry, dict) or set(entry) - {"prompt"} != {"id", "step", "file"}:
        return False
    if not isinstance(entry.get("prompt", ""), str):
        return False
    texts = isinstance(entry["id"], str) and isinstance(entry["file"], str) and isinstance(entry["step"], int)
    return texts and bool(_ID.fullmatch(entry["id"]) and _FILE.fullmatch(entry["file"])) and ".." not in entry["file"]
