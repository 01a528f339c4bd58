"""What a scan says about control and mask files: how many are there, what lacks one, what looks like one unused."""

from __future__ import annotations

from collections.abc import Iterable

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
    """Names that say control or mask of another file of the same folder, where such files are not used."""
    stems = {(sample.path.parent, sample.path.stem) for sample in samples}
    found = [sample.name for sample in samples if (sample.path.parent, _base(sample.path.stem)) in stems]
    if not found:
        return []
    return [f"trained like every other file although the name says control or mask: {_names(found)}"]


def _base(stem: str) -> str:
    base, _, kind = stem.rpartition("_")
    return base if kind in ("control", "mask") else ""


def _one_per_file(samples: Iterable[Sample]) -> list[Sample]:
    return list({sample.path: sample for sample in samples}.values())


def _names(names: list[str], limit: int = 8) -> str:
    rest = len(names) - limit
    return ", ".join(names[:limit]) + (f" and {rest} more" if rest > 0 else "")
