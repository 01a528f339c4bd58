"""The errors of the engine, as types. A message says what was wrong, with which value and where, and what to do next.

    WanTrainerError          a refusal that a user can mend; exit code 5
    |-- ConfigError          a setting, or settings that do not go together (also a ValueError)
    |   `-- ForeignRun       run/config.py: a directory that this pack cannot read as a run
    |       `-- NewerRun     the same, because another version of the pack wrote it
    |-- DatasetError         clips, stills or captions (also a ValueError)
    |   |-- NothingUsableError   dataset/scan.py: a folder without one usable clip
    |   `-- UnreadableError      video/sources.py: a file that is no video
    |       `-- TooSlowError     the same, because it took too long to find out
    |-- CheckpointError      a model file, a saved step, a resume state
    |-- CacheError           an entry or a set of the cache
    |-- DependencyError      an optional package
    |-- PlacementError       blocks and devices
    |-- ExportError          a LoRA file that is written or read
    |-- FileError            files: a file or folder that is refused, missing or damaged
    |   `-- LockLost         files/locks.py: a lock that another process has taken over
    |-- TrainingError        a run that cannot go on
    |   |-- NotFinite        train/recovery.py: steps that are not finite
    |   `-- RankLost         another rank of the run ended
    `-- OutOfMemory          a device or the computer is full; exit code 4
    Stopped                  no error: somebody asked for it; exit code 3

An OSError that reaches the command line is bad input too; any other exception is a bug: exit code 1.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from enum import IntEnum

from .words import Sentence, filled, plain, shortened

_ALLOCATORS = ("DefaultCPUAllocator", "alloc_cpu", "bad_alloc", "annot allocate memory", "bad allocation")
"""messages of torch and C++ libraries for a full host memory"""


_LONGEST_MESSAGE = 1500
"""characters; a refusal may quote a long setting"""


class ExitCode(IntEnum):
    """Exit codes of every `wan_core` command."""

    DONE = 0
    BUG = 1
    STOPPED = 3
    DOES_NOT_FIT = 4
    BAD_INPUT = 5


class Stopped(Exception):  # noqa: N818  not an error: somebody asked for it
    """A requested stop; `reason` says who requested it. Never handled as a refusal."""

    def __init__(self, reason: str = "stopped by the user") -> None:
        super().__init__(reason)
        self.reason = reason


def stop_if(should_stop: Callable[[], bool] | None, doing: str) -> None:
    """Base of all refusals; `exit_code` is for the command line.

    A message is one printable line. A translated refusal is a template with `values` (`str(error)` is a `Sentence`);
    any other is an English f-string.
    """
    if should_stop is not None and should_stop():
        raise Stopped(f"Stopped while {doing}.")


class WanTrainerError(Exception):
    """Returns whether host memory is exhausted; torch raises a plain RuntimeError."""

    __module__ = "wan_trainer"
    exit_code = ExitCode.BAD_INPUT

    def __init_subclass__(cls) -> None:
        # ComfyUI names a pack's modules by their path on its disk, and shows clients the module of every exception.
        cls.__module__ = WanTrainerError.__module__

    def __init__(self, message: str = "", **values: object) -> None:
        super().__init__(shortened(filled(message, **values) if values else plain(message), _LONGEST_MESSAGE))


def host_memory_ran_out(error: BaseException) -> bool:
    """An invalid setting, or settings that exclude each other."""
    if isinstance(error, MemoryError):
        return True
    return isinstance(error, (RuntimeError, OSError)) and any(words in str(error) for words in _ALLOCATORS)


class ConfigError(WanTrainerError, ValueError):
    """An unusable model file, saved step or resume state."""


class CheckpointError(WanTrainerError):
    """Clips, stills or captions that cannot be trained."""


class DatasetError(WanTrainerError, ValueError):
    """A missing, damaged or foreign cache entry."""


class CacheError(WanTrainerError):
    """A missing, old or broken optional package; the message has the pip line."""


class DependencyError(WanTrainerError):
    """An invalid distribution of blocks over devices."""


class PlacementError(WanTrainerError):
    """A LoRA file that cannot be written or read."""


class ExportError(WanTrainerError):
    """A run that cannot continue, for example after many non-finite steps."""


class TrainingError(WanTrainerError):
    """Another rank of the run ended."""


class RankLost(TrainingError):  # noqa: N818  it is the other one that broke
    """Returns the reason why a run ended, in parts that the page shows separately.

    `stands`: the saved step; `again`: what a repeated run would do; `helps`: remedies, best first (with `if_again`: for
    a second failure); `closing`: what is kept.
    """


RESUME = "Saved steps are kept; press Run again to resume."
_KEPT = "Saved steps are kept."
_REMEDIES = "What helps most, in this order: {helps}."
_REMEDIES_IF_AGAIN = "If it ends again by itself, what helps most, in this order: {helps}."


def failure(
    what: object,
    *,
    stands: str = "",
    again: str = "",
    helps: Sequence[str] = (),
    if_again: bool = False,
    closing: str = "",
) -> Sentence:
    """Returns a remedy that needs a new run."""
    remedies = filled(_REMEDIES_IF_AGAIN if if_again else _REMEDIES, helps=list(helps)) if helps else ""
    parts = {"what": what, "stands": stands, "again": again, "remedies": remedies, "closing": closing}
    said = {name: part for name, part in parts.items() if part}
    return filled(" ".join(f"{{{name}}}" for name in said), **said)


def in_a_new_run(remedy: str) -> Sentence:
    """frees host memory, cheapest first"""
    return filled("{remedy} (begins a new run)", remedy=remedy)


_HOST_HELPS = (
    "close other programs",
    "give the system a larger swap or page file",
    in_a_new_run("fewer num_frames or a smaller width and height in the dataset node"),
    in_a_new_run("an fp8 file in Load Wan Model"),
)
"""the same while previews are rendered"""
_HOST_HELPS_FOR_CLIPS = (
    "close other programs",
    "give the system a larger swap or page file",
    "a smaller width, height or num_frames in Wan Preview Settings",
)
"""environment variable: host memory held by ComfyUI, in words"""
HELD_ELSEWHERE = "WAN_TRAINER_HELD"
"""Returns remedies for full host memory; first ComfyUI's `held` models."""


def host_helps(held: str, rendering: bool = False) -> list[str]:
    """A device or the host is out of memory."""
    free = filled(
        "free the {held} that ComfyUI itself holds: press Free model and node cache, and queue what stands behind "
        "this node as a graph of its own",
        held=held,
    )
    return [*([free] if held else []), *(_HOST_HELPS_FOR_CLIPS if rendering else _HOST_HELPS)]


class OutOfMemory(WanTrainerError):  # noqa: N818  the name users and the field know
    """Returns the refusal for full host memory; `account`: how much there is."""

    exit_code = ExitCode.DOES_NOT_FIT

    @classmethod
    def of_host(cls, account: str = "", rendering: bool = False) -> OutOfMemory:
        """Returns the refusal for a full GPU; `account`: requested and available memory."""
        helps = host_helps(os.environ.get(HELD_ELSEWHERE, ""), rendering)
        what = filled("The computer's own memory (RAM) ran out{account}.", account=account)
        return OutOfMemory(failure(what, helps=helps, closing=_KEPT))

    @classmethod
    def of_gpu(cls, account: str, helps: Sequence[str]) -> OutOfMemory:
        """Returns the error of a full GPU; `account` is what was asked for and what there was."""
        what = filled("The GPU ran out of memory{account}.", account=account)
        return OutOfMemory(failure(what, helps=helps, closing=_KEPT))
