"""The child process that alone opens media files. Serves one request after the other until stdin
closes.

Messages travel over stdin and a private copy of fd 1; fd 1 itself then points to stderr, so that
nothing a library prints can break the protocol. A thread watches stdin: when the parent dies, this
process ends at once, even while a decoder is stuck.
"""

from __future__ import annotations

import dataclasses
import importlib
import os
import queue
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

from ..errors import DependencyError, WanTrainerError
from ..pipes import waiter
from .messages import Framing, receive, send
from .pyav import outdated
from .sources import STILL_SUFFIXES, refuse

__all__ = ["serve"]

_MEMORY_BYTES = 4 << 30
"""Address space of this process (POSIX); enough for 8K frames, too little for a bomb."""

Reply = tuple[dict[str, Any], Any]


def serve() -> int:
    """Entry of `launch.py video`."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl+C is the parent's to handle
    replies = _private_stdout()
    _limit_memory()
    try:
        operations = _operations()
    except (ImportError, DependencyError) as error:
        send(replies, {"error": "dependency", "message": str(error), "complete": isinstance(error, DependencyError)})
        return 1
    send(replies, {})
    requests: queue.Queue[tuple[dict[str, Any], bytearray]] = queue.Queue()
    threading.Thread(target=_listen, args=(requests,), daemon=True).start()
    while True:
        header, payload = requests.get()
        send(replies, *_answer(operations, header, payload))


def _listen(requests: queue.Queue[tuple[dict[str, Any], bytearray]]) -> None:
    stdin = os.fdopen(os.dup(0), "rb", buffering=0)  # nothing read ahead: what stands in the pipe is all there is
    wait = waiter(stdin.fileno())
    wait()
    while (message := receive(stdin)) is not None:
        requests.put(message)
        wait()
    os._exit(0)


def _private_stdout() -> BinaryIO:
    descriptor = os.dup(1)
    os.dup2(2, 1)
    if sys.platform == "win32":
        import msvcrt

        msvcrt.setmode(descriptor, os.O_BINARY)
    return os.fdopen(descriptor, "wb")


def _limit_memory() -> None:
    """A file that wants more fails with MemoryError here instead of filling the machine."""
    if sys.platform == "linux":
        import resource

        hard = resource.getrlimit(resource.RLIMIT_AS)[1]
        limit = _MEMORY_BYTES if hard == resource.RLIM_INFINITY else min(hard, _MEMORY_BYTES)
        resource.setrlimit(resource.RLIMIT_AS, (limit, hard))


Operation = Callable[[dict[str, Any], bytearray], Reply]


def _operations() -> dict[str, Operation]:
    """Imports what decoding needs; ImportError names the package that is missing, DependencyError the one that is too
    old.
    """
    # av.logging stays untouched: with a level set, decoder threads that log wait for the GIL and
    # the child hangs (seen in 7 of 60 clips with PyAV 18.1); by default FFmpeg is silent.
    av = importlib.import_module("av")  # used by `clips` and `writer` only when they run
    if problem := outdated(av.__version__):
        raise DependencyError(problem)
    import numpy as np

    from . import clips, grid_writer, stills, writer
    from .grid_picture import Place

    def probe(header: dict[str, Any], payload: bytearray) -> Reply:
        path = Path(header["path"])
        still = path.suffix.lower() in STILL_SUFFIXES
        return dataclasses.asdict((stills.probe_still if still else clips.probe_clip)(path)), b""

    def read(header: dict[str, Any], payload: bytearray) -> Reply:
        path, width, height = Path(header["path"]), header["width"], header["height"]
        framing = Framing(**header["framing"])
        if path.suffix.lower() in STILL_SUFFIXES:
            return {"times": [0.0]}, stills.read_still(path, width=width, height=height, framing=framing)
        frames, times = clips.read_clip(
            path,
            fps=header["fps"],
            num_frames=header["num_frames"],
            width=width,
            height=height,
            start_s=header["start_s"],
            framing=framing,
            held=header["held"],
        )
        return {"times": times}, frames

    def scenes(header: dict[str, Any], payload: bytearray) -> Reply:
        from .scenes import find_cuts

        return {"cuts_s": find_cuts(Path(header["path"]), header["threshold"])}, b""

    def write(header: dict[str, Any], payload: bytearray) -> Reply:
        path, frames = Path(header["path"]), np.frombuffer(payload, np.uint8).reshape(header["shape"])
        if header["lossless"]:
            writer.write_lossless(path, _below(header), frames, header["fps"])
        else:
            writer.write_clip(path, _below(header), frames, header["fps"], header["metadata"])
        return {}, b""

    def grid(header: dict[str, Any], payload: bytearray) -> Reply:
        canvas = np.frombuffer(payload, np.uint8).reshape(header["shape"])
        clips = [(Path(file), Place(*place)) for file, place in header["clips"]]
        path, fps, num_frames = Path(header["path"]), header["fps"], header["num_frames"]
        grid_writer.write_grid(path, _below(header), canvas, clips, fps, num_frames, header["metadata"])
        return {}, b""

    return {"probe": probe, "read": read, "scenes": scenes, "write": write, "grid": grid}


def _below(header: dict[str, Any]) -> Path | None:
    """The folder of ours from which on no link is followed to what is written."""
    return Path(header["below"]) if header["below"] else None


def _answer(operations: dict[str, Operation], header: dict[str, Any], payload: bytearray) -> Reply:
    """The reply to one request; whatever goes wrong with one file is told, and the next request is
    served.
    """
    try:
        return operations[header["do"]](header, payload)
    except DependencyError as error:
        return {"error": "dependency", "message": str(error)}, b""
    except WanTrainerError as error:
        return {"error": "refused", "message": str(error)}, b""
    except MemoryError:
        why = f"needs more than {_MEMORY_BYTES >> 30} GiB of memory"
        return {
            "error": "refused",
            "message": str(refuse(header["path"], why, "Take fewer frames or a smaller size")),
        }, b""
    except Exception as error:  # the boundary of the process: the parent names the file
        traceback.print_exc()
        why = f"cannot be processed ({type(error).__name__}: {str(error)[:200]})"
        return {"error": "refused", "message": str(refuse(header["path"], why))}, b""
