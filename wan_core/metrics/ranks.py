"""The state of each rank's devices, in a file of its own: ranks/rank-0007.json, written every two seconds.

So a server that sees only the run's folder shows the devices of every machine. Runs on one device have no such file.
"""

from __future__ import annotations

import contextlib
import re
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..errors import WanTrainerError
from ..files import atomic_write_json, confine, file_mark, read_json, remove_file

FOLDER, RANK_FILE = "ranks", re.compile(r"rank-(\d{4})\.json")
_EVERY_S = 2.0
"""as often as the page reads a run"""
_SILENT_S = 20.0
"""behind the newest file of the run, after which a rank counts as silent"""
_LARGEST = 1 << 20
_MOST_DEVICES = 64
"""of a rank; more in a file were not written by this pack, and a page would draw each of them"""


class RankFile:
    """Writes the state of this rank's devices until it is closed, in a thread, also while a rank waits for others."""

    def __init__(self, directory: Path, rank: int, read: Callable[[], list[dict[str, Any]]]) -> None:
        """`read` returns the state of each device as JSON data; it is called from another thread."""
        self._path, self._directory = directory / FOLDER / f"rank-{rank:04d}.json", directory
        self._about = {"version": 1, "rank": rank, "host": socket.gethostname()}
        self._read, self._ended = read, threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True, name="devices of this rank")
        self._thread.start()

    def close(self) -> None:
        """Write a last time and end the thread; safe to call twice."""
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        while True:
            last = self._ended.is_set()
            with contextlib.suppress(OSError, WanTrainerError):  # a full disk: the next one may be written
                atomic_write_json(self._path, {**self._about, "devices": self._read()}, self._directory)
            if last:
                return
            self._ended.wait(_EVERY_S)


def forget_ranks(directory: Path, world: int) -> None:
    """Remove the files of ranks from `world` on, which an earlier session of more ranks has left."""
    for path in _files(directory):
        if int(path.stem[-4:]) >= world:
            remove_file(path, directory)


def read_ranks(directory: Path) -> list[dict[str, Any]]:
    """Returns the state of each device of all ranks as JSON data: that of its file, with `rank`, `host` and `silent`,
    the seconds since a silent rank was heard, else None. Damaged files are skipped.

    A rank's age is that of its file behind the newest one: clocks of other machines do not count.
    """
    found: list[tuple[float, dict[str, Any]]] = []
    for path in _files(directory):
        with contextlib.suppress(OSError, WanTrainerError):
            about = read_json(confine(directory, f"{FOLDER}/{path.name}", "state of a rank"), limit_bytes=_LARGEST)
            if isinstance(about, dict) and isinstance(about.get("devices"), list):
                found.append((file_mark(path)[1] / 1e9, about))
    newest = max((written for written, _ in found), default=0.0)
    return [
        {**device, "rank": about.get("rank"), "host": about.get("host"), "silent": _silent(newest - written)}
        for written, about in found
        for device in about["devices"][:_MOST_DEVICES]
        if isinstance(device, dict)
    ]


def _silent(seconds: float) -> int | None:
    return round(seconds) if seconds > _SILENT_S else None


def _files(directory: Path) -> list[Path]:
    """Returns the files of all ranks, in their order."""
    try:
        return sorted(path for path in (directory / FOLDER).iterdir() if RANK_FILE.fullmatch(path.name))
    except OSError:
        return []
