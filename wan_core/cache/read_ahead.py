"""Clips are decoded while the one before is encoded, and entries are written while the next one is.

The encoder never waits for a disk that keeps up with it, and what waits in memory is bounded. Nothing here decides what
is read or written, or in which order: with and without it the same entries come out.
"""

from __future__ import annotations

import os
import queue
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..dataset import Companion, Sample, read_sample
from ..video import VideoProcess

AHEAD = 2
"""reads that wait or are under way, beside the clip that is encoded"""
AHEAD_BYTES = 2 << 30
"""of pixels that they may take together; one of them always may. Two clips of 81 frames 1280x720 take 1.7 GiB"""
_WORTH_S = 0.3
"""An encoder that waits longer than this gets another reader, which takes about as long to start."""

Read = tuple[Sample, Companion | None]
"""a sample, or a file that goes with it and is cut like it"""


class ReadAhead:
    """Decodes what `reads` will ask for, in that order. Use as a context manager, from one thread.

    One child process reads; where the encoder waits for it and the machine has cores, a second one does too.
    """

    def __init__(
        self,
        video: VideoProcess,
        fps: float,
        reads: Sequence[Read],
        require_unchanged: Callable[[Sample | Companion], None] = lambda _file: None,
    ) -> None:
        """`require_unchanged` is asked after each read whether the file is still the one that was scanned."""
        self._fps, self._reads, self._require_unchanged = fps, reads, require_unchanged
        self._asked = self._begun = 0
        """how many of the reads were asked for (or passed over), and how many were begun"""
        self._waiting: deque[tuple[int, Future[Tensor]]] = deque()
        """reads begun and not asked for: how many bytes of pixels, and the pixels (F, H, W, 3) to come"""
        self._video = video
        self._videos: queue.SimpleQueue[VideoProcess] = queue.SimpleQueue()
        self._videos.put(video)
        self._helpers: list[VideoProcess] = []
        self._threads = ThreadPoolExecutor(AHEAD, thread_name_prefix="wan-read")
        self._last: tuple[Sample, Tensor] | None = None

    def __enter__(self) -> ReadAhead:
        self._begin()
        return self

    def __exit__(self, *_: object) -> None:
        """Waits for the reads under way; where somebody stops the whole, they end within a moment."""
        self._threads.shutdown(cancel_futures=True)
        for video in self._helpers:
            video.close()

    def pixels(self, sample: Sample, companion: Companion | None = None) -> Tensor:
        """(F, H, W, 3) float32 in [0, 1] of a sample, or of a file that goes with it, cut alike.

        Raises what reading it raised: UnreadableError for a file that cannot be read, DatasetError for one that
        changed, Stopped. The pixels of the last sample are kept, those of other files are not.
        """
        if companion is not None:
            return self._taken((sample, companion))
        if self._last is None or self._last[0] is not sample:
            self._last = None  # before the next pixels take their place in memory
            self._last = sample, self._taken((sample, None))
        return self._last[1]

    def _taken(self, read: Read) -> Tensor:
        future = self._passed_to(read)
        if future is None:
            return self._decode(*read)
        self._begin()
        began = time.monotonic()
        try:
            return future.result()
        finally:
            if time.monotonic() - began > _WORTH_S:
                self._help()

    def _passed_to(self, read: Read) -> Future[Tensor] | None:
        """Takes a read from those that wait, and passes over those that came before it; None when it never comes."""
        place = next((n for n in range(self._asked, len(self._reads)) if _same(self._reads[n], read)), None)
        if place is None:
            return None
        while self._asked < place and self._waiting:
            self._waiting.popleft()[1].cancel()
            self._asked += 1
        if not self._waiting:
            self._begun = place
            self._start()
        self._asked = place + 1
        return self._waiting.popleft()[1]

    def _begin(self) -> None:
        """Start as many of the coming reads as may wait."""
        while self._begun < len(self._reads) and len(self._waiting) < AHEAD:
            taken = sum(size for size, _ in self._waiting)
            if taken and taken + bytes_of(self._reads[self._begun][0]) > AHEAD_BYTES:
                return
            self._start()

    def _start(self) -> None:
        read = self._reads[self._begun]
        self._waiting.append((bytes_of(read[0]), self._threads.submit(self._decode, *read)))
        self._begun += 1

    def _decode(self, sample: Sample, companion: Companion | None) -> Tensor:
        file = sample if companion is None else companion
        video = self._videos.get()
        try:
            frames = read_sample(video, sample, self._fps, file.path)
        finally:
            self._videos.put(video)
            self._require_unchanged(file)
        return floats(frames)

    def _help(self) -> None:
        if 1 + len(self._helpers) < min(AHEAD, usable_cores()):
            self._helpers.append(self._video.another())
            self._videos.put(self._helpers[-1])


class WriteBehind:
    """Writes one thing while the next one is made. Use as a context manager; `settle` before saying that all is done.

    A failed write is raised by the call that follows it, `settle` at the latest. Leaving waits for the write under way,
    whatever else went wrong, so that what was made is kept.
    """

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="wan-write")
        self._under_way: Future[None] | None = None

    def __enter__(self) -> WriteBehind:
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.shutdown()

    def put(self, write: Callable[[], None]) -> None:
        """Begin `write` once the one before has ended."""
        self.settle()
        self._under_way = self._thread.submit(write)

    def settle(self) -> None:
        """Wait for the write under way, and raise what it raised."""
        before, self._under_way = self._under_way, None
        if before is not None:
            before.result()


def floats(frames: NDArray[np.uint8]) -> Tensor:
    """(F, H, W, 3) of 0 to 255 -> float32 in [0, 1].

    NumPy asks the system for large pages, torch does not: a clip of 81 frames 1280x720 takes 0.13 instead of 0.38 s.
    """
    pixels = torch.from_numpy(np.empty(frames.shape, np.float32))  # pyright: ignore[reportUnknownMemberType]
    return pixels.copy_(torch.from_numpy(frames)).div_(255)  # pyright: ignore[reportUnknownMemberType]


def bytes_of(sample: Sample) -> int:
    """Returns how much memory the pixels of a sample take, as float32."""
    bucket = sample.bucket
    return 4 * 3 * bucket.num_frames * bucket.height * bucket.width


def usable_cores() -> int:
    """Returns how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _same(one: Read, other: Read) -> bool:
    return one[0] is other[0] and one[1] is other[1]
