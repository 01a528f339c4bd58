"""The scans whose captions the page may edit and whose clips it may play, by an id that this server made up.

The page names a scan and the number of a clip; which files those are is known here alone, from the scan itself.
"""

from __future__ import annotations

import secrets
import threading
from collections import OrderedDict

from ...wan_core.dataset import CaptionEdits, Dataset, scanned_files
from . import folders

_MOST = 64
_MOST_FILES = 400_000


class Scans:
    """The newest scans of this server; older ones are forgotten, and a new server knows none."""

    def __init__(self) -> None:
        self._known: OrderedDict[str, CaptionEdits] = OrderedDict()
        self._turn = threading.Lock()

    def add(self, dataset: Dataset) -> str:
        """Returns the id under which the files of a dataset are found from now on."""
        scan = secrets.token_hex(16)
        edits = CaptionEdits(scanned_files(dataset), folders.allowed_places, (folders.cache().root / "unpacked",))
        with self._turn:
            self._known[scan] = edits
            while len(self._known) > 1 and (
                len(self._known) > _MOST or sum(map(len, self._known.values())) > _MOST_FILES
            ):
                self._known.popitem(last=False)
        return scan

    def get(self, scan: str) -> CaptionEdits | None:
        """Returns the files of a scan, None for one that is not known (any more)."""
        with self._turn:
            return self._known.get(scan)


SCANS = Scans()
"""those of this ComfyUI"""
