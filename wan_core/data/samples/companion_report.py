"""What a scan says about control and mask files: how many are there, what lacks one, what looks like one unused."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from ..sources import COMPANION_FOLDERS, COMPANION_KINDS
from .companion import wanted_companions
from .sample import Sample, ScanResult

__all__ = ["companion_lines"]

_HURTS = (
    "Masked loss is known to make Wan LoRAs worse more often than better (what lies outside is left to drift): compare "
    "with a run without it."
)


def companion_lines(result: ScanResult) -> list[str]:
    """Lines for the report; none for a dataset that has no such files."""
    wanted, samples = wanted_companions(result.config), _one_per_file(result.samples)
    lines: list[str] = []
    if "control" in wanted:
        lines.append(f"control videos: {len(samples)} of {len(samples)}")
    if "mask" in wanted:
        bare = [sample.name for sample in samples if sample.mask is None]
        kind = "loss masks" if result.config.masks_loss else "masks"
        whole = "trained whole" if result.config.masks_loss else "painted whole"
        line = f"{kind}: {len(samples) - len(bare)} of {len(samples)}"
        lines.append(line + (f"; {whole}: {_names(bare)}" if bare else ""))
    if result.config.masks_loss:
        lines.append(_HURTS)
    return lines + _unused_lines(samples)


def _unused_lines(samples: list[Sample]) -> list[str]:
    """Names, or folders, that say control or mask of another file, where such files are not used."""
    stems = {(sample.path.parent, sample.path.stem) for sample in samples}
    found = [sample.name for sample in samples if _goes_with(sample.path) in stems]
    if not found:
        return []
    return [f"trained like every other file although the name says control or mask: {_names(found)}"]


def _goes_with(path: Path) -> tuple[Path, str]:
    """Folder and stem of the file that clip_mask.mp4 or mask/clip.mp4 belongs to by its name."""
    if path.parent.name in COMPANION_FOLDERS:
        return path.parent.parent, path.stem
    base, _, kind = path.stem.rpartition("_")
    return path.parent, base if kind in COMPANION_KINDS else ""


def _one_per_file(samples: Iterable[Sample]) -> list[Sample]:
    return list({sample.path: sample for sample in samples}.values())


def _names(names: list[str], limit: int = 8) -> str:
    rest = len(names) - limit
    return ", ".join(names[:limit]) + (f" and {rest} more" if rest > 0 else "")
