"""The child process that opens media files; answers requests until stdin is closed."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import traceback
from pathlib import Path
from typing import Any

from .. import children
from ..children import Answer, Operation
from ..errors import DependencyError, WanTrainerError
from .messages import Framing
from .sources import STILL_SUFFIXES, outdated, refuse

_MEMORY_BYTES = 4 << 30
"""limit of the address space (Linux): enough for 8K frames, too little for a decompression bomb"""


def serve() -> int:
    """Entry of `launch.py video`."""
    return children.serve(lambda: functools.partial(_answer, _operations()), _MEMORY_BYTES)


def _operations() -> dict[str, Operation]:
    """Imports the decoders; ImportError for a missing package, DependencyError for an old one."""
    # No level of av.logging is set: decoder threads that log would wait for the GIL, and the child would hang (in 7 of
    # 60 clips with PyAV 18.1). By default FFmpeg is silent.
    av = importlib.import_module("av")  # imported at the start, so that a missing package is reported
    if problem := outdated(av.__version__):
        raise DependencyError(problem)
    import numpy as np

    from . import clips, stills, writer
    from .animations import animation_of
    from .grid_picture import Place

    def probe(header: dict[str, Any], payload: bytearray) -> Answer:
        path = Path(header["path"])
        if moves := animation_of(path):
            return dataclasses.asdict(clips.probe_animation(moves)), b""
        still = path.suffix.lower() in STILL_SUFFIXES
        return dataclasses.asdict((stills.probe_still if still else clips.probe_clip)(path)), b""

    def read(header: dict[str, Any], payload: bytearray) -> Answer:
        path, width, height = Path(header["path"]), header["width"], header["height"]
        framing = Framing(**header["framing"])
        if path.suffix.lower() in STILL_SUFFIXES and animation_of(path) is None:
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

    def scenes(header: dict[str, Any], payload: bytearray) -> Answer:
        from .scenes import find_cuts

        return {"cuts_s": find_cuts(Path(header["path"]), header["threshold"])}, b""

    def measure(header: dict[str, Any], payload: bytearray) -> Answer:
        from .measuring import measure_footage

        return {"shots": [shot.to_dict() for shot in measure_footage(Path(header["path"]), header["cuts_s"])]}, b""

    def write(header: dict[str, Any], payload: bytearray) -> Answer:
        path, frames = Path(header["path"]), np.frombuffer(payload, np.uint8).reshape(header["shape"])
        below = Path(header["below"]) if header["below"] else None
        if header["lossless"]:
            writer.write_lossless(path, below, frames, header["fps"])
        else:
            writer.write_frames(path, below, iter(frames), frames.shape[1:3], header["fps"], header["metadata"])
        return {}, b""

    def grid(header: dict[str, Any], payload: bytearray) -> Answer:
        canvas = np.frombuffer(payload, np.uint8).reshape(header["shape"])
        clips = [(Path(file), Place(*place)) for file, place in header["clips"]]
        path, fps, num_frames = Path(header["path"]), header["fps"], header["num_frames"]
        below = Path(header["below"]) if header["below"] else None
        writer.write_grid(path, below, canvas, clips, fps, num_frames, header["metadata"])
        return {}, b""

    return {"probe": probe, "read": read, "scenes": scenes, "measure": measure, "write": write, "grid": grid}


def _answer(operations: dict[str, Operation], header: dict[str, Any], payload: bytearray) -> Answer:
    """Returns the answer to a request. An error with a file is an answer too."""
    try:
        return operations[header["do"]](header, payload)
    except WanTrainerError as error:
        refusal = error
    except MemoryError:
        why = f"needs more than {_MEMORY_BYTES >> 30} GiB of memory"
        refusal = refuse(header["path"], why, "Take fewer frames or a smaller size")
    except Exception as error:  # decoders can raise anything
        traceback.print_exc()
        why = f"cannot be processed ({type(error).__name__}: {str(error)[:200]})"
        fix = ("Save it again as PNG",) if Path(header["path"]).suffix.lower() in STILL_SUFFIXES else ()
        refusal = refuse(header["path"], why, *fix)
    kind = "dependency" if isinstance(refusal, DependencyError) else "refused"
    return {"error": kind, "message": str(refusal)}, b""
