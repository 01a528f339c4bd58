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
from collections.abc import Sequence
from enum import IntEnum

from .words import Sentence, filled, plain, shortened

_ALLOCATORS = ("DefaultCPUAllocator", "alloc_cpu", "bad_alloc", "annot allocate memory", "bad allocation")
"""how torch and the C++ libraries below it say that the computer's own memory is full"""


_LONGEST_MESSAGE = 1500
"""some quote a setting whole, and a setting can be a book"""


class ExitCode(IntEnum):
    """Exit codes of every `wan_core` command."""

    DONE = 0
    BUG = 1
    STOPPED = 3
    DOES_NOT_FIT = 4
    BAD_INPUT = 5


class Stopped(Exception):  # noqa: N818  not an error: somebody asked for it
    """Work was given up because a stop was asked for; `reason` says by whom. Never caught as bad input."""

    def __init__(self, reason: str = "stopped by the user") -> None:
        super().__init__(reason)
        self.reason = reason


class WanTrainerError(Exception):
    """Base of all refusals; `exit_code` is what the command line returns for it.

    A message is one line that can be printed anywhere, whatever it quotes. A refusal that is translated is a template
    with `values`, and `str(error)` is their `Sentence`; any other is an f-string in English.
    """

    __module__ = "wan_trainer"
    exit_code = ExitCode.BAD_INPUT

    def __init_subclass__(cls) -> None:
        # ComfyUI names a pack's modules by their path on its disk, and shows clients the module of every exception.
        cls.__module__ = WanTrainerError.__module__

    def __init__(self, message: str = "", **values: object) -> None:
        super().__init__(shortened(filled(message, **values) if values else plain(message), _LONGEST_MESSAGE))


def host_memory_ran_out(error: BaseException) -> bool:
    """Returns whether it says that the computer's own memory (RAM) is full; torch says so by a plain RuntimeError."""
    if isinstance(error, MemoryError):
        return True
    return isinstance(error, (RuntimeError, OSError)) and any(words in str(error) for words in _ALLOCATORS)


class ConfigError(WanTrainerError, ValueError):
    """A setting, or a combination of settings, that cannot work."""


class CheckpointError(WanTrainerError):
    """A model file, a saved step or a resume state that cannot be used."""


class DatasetError(WanTrainerError, ValueError):
    """Clips, stills or captions that cannot be trained on."""


class CacheError(WanTrainerError):
    """A cache entry that is missing, damaged or belongs to something else."""


class DependencyError(WanTrainerError):
    """An optional package is missing, too old or broken; the message carries the pip line."""


class PlacementError(WanTrainerError):
    """Blocks and devices that do not go together."""


class ExportError(WanTrainerError):
    """A LoRA file that could not be written or read."""


class TrainingError(WanTrainerError):
    """The run cannot go on: for example too many non-finite steps in a row."""


class RankLost(TrainingError):  # noqa: N818  it is the other one that broke
    """Another rank of the run ended, so this one cannot go on either."""


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
    """Returns why a run ended, in parts which the page shows each in its own place.

    `stands`: which saved step is good; `again`: what the same run would do; `helps`: remedies, the most helpful first,
    needed only the second time with `if_again`; `closing`: what is kept.
    """
    remedies = filled(_REMEDIES_IF_AGAIN if if_again else _REMEDIES, helps=list(helps)) if helps else ""
    parts = {"what": what, "stands": stands, "again": again, "remedies": remedies, "closing": closing}
    said = {name: part for name, part in parts.items() if part}
    return filled(" ".join(f"{{{name}}}" for name in said), **said)


def in_a_new_run(remedy: str) -> Sentence:
    """Returns a remedy for which saved steps are of no use."""
    return filled("{remedy} (begins a new run)", remedy=remedy)


_HOST_HELPS = (
    "close other programs",
    "give the system a larger swap or page file",
    in_a_new_run("fewer num_frames or a smaller width and height in the dataset node"),
    in_a_new_run("an fp8 file in Load Wan Model"),
)
"""what frees the computer's own memory: first what costs nothing"""
_HOST_HELPS_FOR_CLIPS = (
    "close other programs",
    "give the system a larger swap or page file",
    "a smaller width, height or num_frames in Wan Preview Settings",
)
"""the same where clips of a run are made and nothing is trained"""
HELD_ELSEWHERE = "WAN_TRAINER_HELD"
"""environment variable: what ComfyUI, which started this process, holds of the computer's memory, in words"""


def host_helps(held: str, rendering: bool = False) -> list[str]:
    """Returns what frees the computer's own memory; first the `held` models of ComfyUI."""
    free = filled(
        "free the {held} that ComfyUI itself holds: press Free model and node cache, and queue what stands behind "
        "this node as a graph of its own",
        held=held,
    )
    return [*([free] if held else []), *(_HOST_HELPS_FOR_CLIPS if rendering else _HOST_HELPS)]


class OutOfMemory(WanTrainerError):  # noqa: N818  the name users and the field know
    """The job does not fit on its devices."""

    exit_code = ExitCode.DOES_NOT_FIT

    @classmethod
    def of_host(cls, account: str = "", rendering: bool = False) -> OutOfMemory:
        """Returns the error to raise where `host_memory_ran_out` says so; `account` is how much there is of it."""
        helps = host_helps(os.environ.get(HELD_ELSEWHERE, ""), rendering)
        what = filled("The computer's own memory (RAM) ran out{account}.", account=account)
        return OutOfMemory(failure(what, helps=helps, closing=_KEPT))

    @classmethod
    def of_gpu(cls, account: str, helps: Sequence[str]) -> OutOfMemory:
        """Returns the error of a full GPU; `account` is what was asked for and what there was."""
        what = filled("The GPU ran out of memory{account}.", account=account)
        return OutOfMemory(failure(what, helps=helps, closing=_KEPT))
