"""Decodes the next clips while one is encoded, and writes finished entries in the background.

Prefetching changes neither order nor content of the entries; memory use is limited.
"""

from __future__ import annotations

import operator
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
"""largest number of reads that are queued or running while a clip is encoded"""
AHEAD_BYTES = 2 << 30
"""largest total size of prefetched pixels; a single read may exceed it. Two clips of 81 frames of 1280x720 take 1.7
GiB"""
_WORTH_S = 0.3
"""wait of the encoder from which a second reader process starts; about the time that its start takes"""

Read = tuple[Sample, Companion | None]
"""a sample, or a companion cut like it"""


class ReadAhead:
    """Decodes `reads` in order. A context manager; not thread-safe. One child process reads; a second one starts if the
    encoder has to wait and a core is free."""

    def __init__(
        self,
        video: VideoProcess,
        fps: float,
        reads: Sequence[Read],
        require_unchanged: Callable[[Sample | Companion], None] = lambda _file: None,
    ) -> None:
        """`require_unchanged` checks each file after reading."""
        self._fps, self._reads, self._require_unchanged = fps, reads, require_unchanged
        self._requested = self._started = 0
        """number of reads requested or skipped, and number started"""
        self._waiting: deque[tuple[int, Future[Tensor]]] = deque()
        """started reads: the number of bytes, and the pixels (F, H, W, 3)"""
        self._video = video
        self._videos: queue.SimpleQueue[VideoProcess] = queue.SimpleQueue()
        self._videos.put(video)
        self._more_videos: list[VideoProcess] = []
        self._threads = ThreadPoolExecutor(AHEAD, thread_name_prefix="wan-read")
        self._last: tuple[Sample, Tensor] | None = None

    def __enter__(self) -> ReadAhead:
        self._start_reads()
        return self

    def __exit__(self, *_: object) -> None:
        """Cancel queued reads and wait for running ones."""
        self._threads.shutdown(cancel_futures=True)
        for video in self._more_videos:
            video.close()

    def pixels(self, sample: Sample, companion: Companion | None = None) -> Tensor:
        """Returns (F, H, W, 3) float32 in [0, 1] of a sample (the last one is kept), or of a companion cut like it.

        Raises UnreadableError for a damaged file, DatasetError for a changed one, Stopped.
        """
        if companion is not None:
            return self._taken((sample, companion))
        if self._last is None or self._last[0] is not sample:
            self._last = None  # frees the memory of this clip before the next one is read
            self._last = sample, self._taken((sample, None))
        return self._last[1]

    def _taken(self, read: Read) -> Tensor:
        future = self._future_of(read)
        if future is None:
            return self._decode(*read)
        self._start_reads()
        start = time.monotonic()
        try:
            return future.result()
        finally:
            if time.monotonic() - start > _WORTH_S:
                self._add_reader()

    def _future_of(self, read: Read) -> Future[Tensor] | None:
        """Returns the prefetched read, and drops the reads before it; None if it is not in `reads`."""
        # Reads are compared by identity, because two equal samples of one file are separate reads.
        coming = range(self._requested, len(self._reads))
        place = next((n for n in coming if all(map(operator.is_, self._reads[n], read))), None)
        if place is None:
            return None
        while self._requested < place and self._waiting:
            self._waiting.popleft()[1].cancel()
            self._requested += 1
        if not self._waiting:
            self._started = place
            self._start()
        self._requested = place + 1
        return self._waiting.popleft()[1]

    def _start_reads(self) -> None:
        """Start the next reads, up to the limits."""
        while self._started < len(self._reads) and len(self._waiting) < AHEAD:
            taken = sum(size for size, _ in self._waiting)
            if taken and taken + bytes_of(self._reads[self._started][0]) > AHEAD_BYTES:
                return
            self._start()

    def _start(self) -> None:
        read = self._reads[self._started]
        self._waiting.append((bytes_of(read[0]), self._threads.submit(self._decode, *read)))
        self._started += 1

    def _decode(self, sample: Sample, companion: Companion | None) -> Tensor:
        file = sample if companion is None else companion
        video = self._videos.get()
        try:
            frames = read_sample(video, sample, self._fps, companion)
        finally:
            self._videos.put(video)
            self._require_unchanged(file)
        return floats(frames)

    def _add_reader(self) -> None:
        if 1 + len(self._more_videos) < min(AHEAD, usable_cores()):
            self._more_videos.append(self._video.another())
            self._videos.put(self._more_videos[-1])


class WriteBehind:
    """Writes one entry while the next is encoded. A context manager; call `settle` at the end.

    The next call raises the error of a failed write. Leaving the context waits for the running write.
    """

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="wan-write")
        self._under_way: Future[None] | None = None

    def __enter__(self) -> WriteBehind:
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.shutdown()

    def put(self, write: Callable[[], None]) -> None:
        """Starts `write` once the previous write has ended."""
        self.settle()
        self._under_way = self._thread.submit(write)

    def settle(self) -> None:
        """Wait for the running write, and raise its error."""
        before, self._under_way = self._under_way, None
        if before is not None:
            before.result()


def floats(frames: NDArray[np.uint8]) -> Tensor:
    """Returns uint8 frames (F, H, W, 3) as float32 in [0, 1]."""
    # NumPy allocates large pages, torch does not: 0.13 s instead of 0.38 s for 81 frames of 1280x720.
    pixels = torch.from_numpy(np.empty(frames.shape, np.float32))  # pyright: ignore[reportUnknownMemberType]
    return pixels.copy_(torch.from_numpy(frames)).div_(255)  # pyright: ignore[reportUnknownMemberType]


def bytes_of(sample: Sample) -> int:
    """Returns the bytes of a sample's pixels in float32."""
    bucket = sample.bucket
    return 4 * 3 * bucket.num_frames * bucket.height * bucket.width


def usable_cores() -> int:
    """Returns the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
