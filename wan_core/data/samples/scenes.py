"""Scene cuts of a clip, found once per file: finding them decodes all of it."""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path

from ...files import file_identity
from ...video import ClipInfo, VideoProcess
from .config import DatasetConfig

__all__ = ["scene_cuts"]

_REMEMBERED = 10_000
_found: OrderedDict[tuple[object, ...], tuple[float, ...]] = OrderedDict()
"""by file identity and threshold; a dataset is scanned anew whenever one of its captions changes"""


def scene_cuts(path: Path, info: ClipInfo, config: DatasetConfig, video: VideoProcess) -> tuple[float, ...]:
    """When each scene but the first begins, in seconds from the first frame; none for a still."""
    if info.kind == "still":
        return ()
    key = (*file_identity(path), config.scene_threshold)
    if key not in _found:
        found = video.cuts(path, threshold=config.scene_threshold, duration_s=info.duration_s)
        _found[key] = tuple(found)
        if len(_found) > _REMEMBERED:
            _found.popitem(last=False)
    return _found[key]
