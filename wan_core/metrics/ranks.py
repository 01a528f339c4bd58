"""The state of each rank's devices, in a file per rank: ranks/rank-0007.json, written every two seconds. With these
files, a server that only sees the run's folder shows the devices of all machines. Runs on one device have none."""

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
"""interval of the files, equal to the page's interval of reading a run"""
_SILENT_S = 20.0
"""a rank is silent once its file is this many seconds older than the newest one"""
_LARGEST = 1 << 20
_MOST_DEVICES = 64
"""largest number of devices of a rank, because the file may be foreign, and the page draws each device"""


class RankFile:
    """Writes the state of this rank's devices until it is closed, in a thread, also while a rank waits for others."""

    def __init__(self, directory: Path, rank: int, read: Callable[[], list[dict[str, Any]]]) -> None:
        """`read` returns the state of each device as JSON data; a thread calls it."""
        self._path, self._directory = directory / FOLDER / f"rank-{rank:04d}.json", directory
        self._about = {"version": 1, "rank": rank, "host": socket.gethostname()}
        self._read, self._ended = read, threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True, name="devices of this rank")
        self._thread.start()

    def close(self) -> None:
        """Writes the state once more and ends the thread. May be called twice."""
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        while True:
            last = self._ended.is_set()
            with contextlib.suppress(OSError, WanTrainerError):  # for example a full disk
                atomic_write_json(self._path, {**self._about, "devices": self._read()}, self._directory)
            if last:
                return
            self._ended.wait(_EVERY_S)


def forget_ranks(directory: Path, world: int) -> None:
    """Remove the files of ranks from number `world` on, which an earlier session with more ranks has written."""
    for path in _files(directory):
        if int(path.stem[-4:]) >= world:
            remove_file(path, directory)


def read_ranks(directory: Path) -> list[dict[str, Any]]:
    """Returns the state of each device of all ranks as JSON data, with `rank`, `host` and `silent`.

    `silent`: seconds between a silent rank's file and the newest file, which does not depend on this machine's clock;
    None for other ranks. Damaged files are skipped.
    """
    found: list[tuple[float, dict[str, Any]]] = []
    for path in _files(directory):
        with contextlib.suppress(OSError, WanTrainerError):
            about = read_json(confine(directory, f"{FOLDER}/{path.name}", "state of a rank"), limit_bytes=_LARGEST)
            if isinstance(about, dict) and isinstance(about.get("devices"), list):
                found.append((file_mark(path)[1] / 1e9, about))
    newest = max((written for written, _ in found), default=0.0)
    return [
        {**device, "rank": about.get("rank"), "host": about.get("host"), "silent": silent}
        for written, about in found
        for silent in [round(newest - written) if newest - written > _SILENT_S else None]
        for device in about["devices"][:_MOST_DEVICES]
        if isinstance(device, dict)
    ]


def _files(directory: Path) -> list[Path]:
    try:
        return sorted(path for path in (directory / FOLDER).iterdir() if RANK_FILE.fullmatch(path.name))
    except OSError:
        return []
