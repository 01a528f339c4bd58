"""The parent side of the video process: starts it on demand, sends requests, and replaces it after a crash.

A request that takes too long or crashes the child fails for one file. The child ends at `close`, or with this process.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import queue
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..children import Child
from ..errors import DependencyError, Stopped
from ..files import FileError
from ..footage import Measures
from ..packages import pip_line
from .grid_picture import GridPicture
from .messages import CENTRED, ClipInfo, Framing
from .sources import TooSlowError, UnreadableError, refuse

_TIMEOUTS_S = {"probe": 10.0, "read": 60.0, "scenes": 10.0, "measure": 10.0, "write": 300.0, "grid": 1800.0}
_START_S = 120.0
_POLL_S = 0.1

_memory = functools.partial(np.empty, dtype=np.uint8)  # not zeroed, which would take 0.1 s for 200 MB
Answer = tuple[dict[str, Any], NDArray[np.uint8]]


class VideoProcess:
    """Probes, reads and writes media files in a child process. A context manager; not thread-safe."""

    def __init__(
        self,
        should_stop: Callable[[], bool] | None = None,
        *,
        timeouts_s: Mapping[str, float] | None = None,
    ) -> None:
        """`timeouts_s` overrides _TIMEOUTS_S."""
        self._should_stop = should_stop
        self._timeouts_s = {**_TIMEOUTS_S, **(timeouts_s or {})}
        self._child: Child | None = None

    def __enter__(self) -> VideoProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def another(self) -> VideoProcess:
        """Returns another process with the same stop function and timeouts."""
        return VideoProcess(self._should_stop, timeouts_s=self._timeouts_s)

    @property
    def pid(self) -> int | None:
        """Process id of a running child."""
        return self._child.pid if self._child is not None else None

    def close(self) -> None:
        """End the child; a later request starts another."""
        if self._child is not None:
            self._child.end()
            self._child = None

    def probe(self, path: Path) -> ClipInfo:
        """Returns the facts of a clip or still; DatasetError if it cannot be used."""
        return ClipInfo(**self._ask("probe", path, {})[0])

    def read(
        self,
        path: Path,
        *,
        fps: float,
        num_frames: int,
        width: int,
        height: int,
        start_s: float = 0.0,
        times: list[float] | None = None,
        framing: Framing = CENTRED,
        held: int = 0,
    ) -> NDArray[np.uint8]:
        """Returns (F, H, W, 3) RGB: frame k is the frame that a player shows at `start_s + k / fps`, cropped by
        `framing`.

        `times` receives the time of each source frame, in seconds from the first. Up to `held` missing frames at the
        end repeat the last one.
        """
        request = {
            "fps": fps,
            "num_frames": num_frames,
            "width": width,
            "height": height,
            "start_s": start_s,
            "framing": dataclasses.asdict(framing),
            "held": held,
        }
        header, payload = self._ask("read", path, request)
        if times is not None:
            times[:] = header["times"]
        return payload.reshape(-1, height, width, 3)

    def cuts(self, path: Path, *, threshold: float, duration_s: float) -> list[float]:
        """Returns the start of every scene after the first, in seconds, ascending.

        Decodes the complete clip, which may take four times its duration.
        """
        seconds = max(self._timeouts_s["scenes"], 4 * duration_s)
        header, _ = self._ask("scenes", path, {"threshold": threshold}, seconds=seconds)
        return header["cuts_s"]

    def measure(self, path: Path, *, duration_s: float, cuts_s: Sequence[float] = ()) -> list[Measures]:
        """Returns the measures of each shot of a clip: of the stretches between `cuts_s`, ascending, in seconds.

        Decodes the complete clip, which may take four times its duration.
        """
        seconds = max(self._timeouts_s["measure"], 4 * duration_s)
        header, _ = self._ask("measure", path, {"cuts_s": list(cuts_s)}, seconds=seconds)
        return [Measures.from_dict(shot) for shot in header["shots"]]

    def write(
        self,
        path: Path,
        frames: NDArray[np.uint8],
        fps: float,
        *,
        lossless: bool = False,
        metadata: Mapping[str, str] | None = None,
        below: Path | None = None,
    ) -> None:
        """Write (F, H, W, 3) RGB as an H.264 mp4, or FFV1 if `lossless`; `below` as in `atomic_write`.

        `metadata` is stored in H.264 files only.
        """
        frames = np.ascontiguousarray(frames, np.uint8)
        request = {"shape": list(frames.shape), "fps": fps, "lossless": lossless, "metadata": dict(metadata or {})}
        self._ask("write", path, {**request, "below": _absolute(below)}, frames)

    def write_grid(
        self,
        path: Path,
        picture: GridPicture,
        clips: Sequence[Sequence[Path]],
        fps: float,
        num_frames: int,
        metadata: Mapping[str, str] | None = None,
        below: Path | None = None,
    ) -> None:
        """Write a grid of clips as one mp4 or webm; an ended clip keeps its last frame."""
        places = [place for row in picture.places for place in row]
        files = [os.path.abspath(file) for row in clips for file in row]
        request = {
            "shape": list(picture.canvas.shape),
            "clips": [[file, dataclasses.astuple(place)] for file, place in zip(files, places, strict=True)],
            "fps": fps,
            "num_frames": num_frames,
            "metadata": dict(metadata or {}),
            "below": _absolute(below),
        }
        self._ask("grid", path, request, np.ascontiguousarray(picture.canvas))

    def _ask(self, do: str, path: Path, request: dict[str, Any], payload: Any = b"", seconds: float = 0.0) -> Answer:
        child = self._running()
        child.ask({"do": do, "path": os.path.abspath(path), **request}, payload)
        answer = self._wait(child, path, seconds or self._timeouts_s[do])
        if answer is None:
            code = child.end()
            self._child = None
            raise refuse(path, f"crashed the video reader (exit code {code}{child.last_words()})")
        if "error" in answer[0]:
            # A failed write is a problem of the output file, not of a clip.
            kind = DependencyError if answer[0]["error"] == "dependency" else UnreadableError
            raise (FileError if do in ("write", "grid") else kind)(answer[0]["message"])
        return answer

    def _running(self) -> Child:
        if self._child is None:
            self._child = Child("video", _memory)
            ready = self._wait(self._child, Path("launch.py"), _START_S)
            if ready is not None and ready[0].get("complete"):
                self.close()
                raise DependencyError(ready[0]["message"])
            if ready is None or "error" in ready[0]:
                words = ready[0]["message"] if ready else "it ended at once" + self._child.last_words()
                self.close()
                raise DependencyError(
                    f"The video reader cannot start: {words}. Install what is missing: "
                    f"{pip_line('av>=17.1', 'pillow', 'numpy')}"
                )
        return self._child

    def _wait(self, child: Child, path: Path, seconds: float) -> Answer | None:
        deadline = time.monotonic() + seconds
        while True:
            try:
                return child.answers.get(timeout=min(_POLL_S, seconds))
            except queue.Empty:
                if self._should_stop is not None and self._should_stop():
                    self.close()
                    raise Stopped("Stopped while reading media files.") from None
                if time.monotonic() > deadline:
                    self.close()
                    raise TooSlowError(str(refuse(path, f"took more than {seconds:g} s to read"))) from None


def _absolute(folder: Path | None) -> str:
    return "" if folder is None else os.path.abspath(folder)
