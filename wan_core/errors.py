"""The errors of the engine. A message says what is wrong, with value and place, and what to do next.

    WanTrainerError: exit code 5
    |-- ConfigError (also a ValueError)     ForeignRun > NewerRun in job/config.py
    |-- DatasetError (also a ValueError)    NothingUsableError in dataset/scan.py,
    |                                       UnreadableError > TooSlowError in video/sources.py
    |-- CheckpointError, CacheError, DependencyError, PlacementError, ExportError
    |-- FileError in files/reading.py
    |-- TrainingError                       RankLost, NotFinite in train/recovery.py
    `-- OutOfMemory: exit code 4
    Stopped: exit code 3, no refusal

An OSError that reaches the command line is bad input too; any other exception is a bug: exit code 1.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from enum import IntEnum

from .words import Sentence, filled, plain, shortened

_ALLOCATORS = ("DefaultCPUAllocator", "alloc_cpu", "bad_alloc", "annot allocate memory", "bad allocation")
"""parts of out-of-memory messages of torch and C++ libraries for host memory"""


_LONGEST_MESSAGE = 1500
"""largest number of characters of a message, which may quote a long setting"""


class ExitCode(IntEnum):
    """Exit codes of every `wan_core` command."""

    DONE = 0
    BUG = 1
    STOPPED = 3
    DOES_NOT_FIT = 4
    BAD_INPUT = 5


class Stopped(Exception):  # noqa: N818  not an error: it was requested
    """A requested stop, with its reason. Never handled as a refusal."""

    def __init__(self, reason: str = "stopped by the user") -> None:
        super().__init__(reason)
        self.reason = reason


def stop_if(should_stop: Callable[[], bool] | None, doing: str) -> None:
    """Raises Stopped if a stop was requested; `doing` completes "Stopped while"."""
    if should_stop is not None and should_stop():
        raise Stopped(f"Stopped while {doing}.")


class WanTrainerError(Exception):
    """Base of all refusals; the command line ends with `exit_code`.

    A message is one printable line. A translated refusal is a template with `values`, and its `str(error)` is a
    `Sentence`. All other refusals are English f-strings.
    """

    __module__ = "wan_trainer"
    exit_code = ExitCode.BAD_INPUT

    def __init_subclass__(cls) -> None:
        # ComfyUI shows clients the module of an exception; a pack's module name contains its path on the server.
        cls.__module__ = WanTrainerError.__module__

    def __init__(self, message: str = "", **values: object) -> None:
        super().__init__(shortened(filled(message, **values) if values else plain(message), _LONGEST_MESSAGE))


def host_memory_ran_out(error: BaseException) -> bool:
    """Returns whether an error means full host memory; torch raises a plain RuntimeError."""
    if isinstance(error, MemoryError):
        return True
    return isinstance(error, (RuntimeError, OSError)) and any(words in str(error) for words in _ALLOCATORS)


class ConfigError(WanTrainerError, ValueError):
    """An invalid setting, or settings that exclude each other."""


class CheckpointError(WanTrainerError):
    """An unusable model file, saved step or resume state."""


class DatasetError(WanTrainerError, ValueError):
    """Clips, stills or captions that cannot be trained on."""


class CacheError(WanTrainerError):
    """A missing, damaged or foreign cache entry."""


class DependencyError(WanTrainerError):
    """A missing, old or broken optional package; the message has the pip line."""


class PlacementError(WanTrainerError):
    """An invalid distribution of blocks over devices."""


class ExportError(WanTrainerError):
    """A LoRA file that cannot be written or read."""


class TrainingError(WanTrainerError):
    """A run that cannot continue, for example after many non-finite steps."""


class RankLost(TrainingError):  # noqa: N818  the other rank failed
    """Another rank of the run ended."""


RESUME = "Saved steps are kept; press Run again to resume."
_KEPT = "Saved steps are kept."
_REMEDIES = "What helps most, in this order: {helps}."
_REMEDIES_IF_AGAIN = "If it stops again, what helps most, in this order: {helps}."


def failure(
    what: object,
    *,
    stands: str = "",
    again: str = "",
    helps: Sequence[str] = (),
    if_again: bool = False,
    closing: str = "",
) -> Sentence:
    """Returns the reason of a failed run, in parts that the page shows separately.

    `what`: the failure; `stands`: the saved step; `again`: the effect of running again; `helps`: remedies, best first;
    `if_again`: the remedies are for a second failure; `closing`: the files that are kept.
    """
    remedies = filled(_REMEDIES_IF_AGAIN if if_again else _REMEDIES, helps=list(helps)) if helps else ""
    parts = {"what": what, "stands": stands, "again": again, "remedies": remedies, "closing": closing}
    said = {name: part for name, part in parts.items() if part}
    return filled(" ".join(f"{{{name}}}" for name in said), **said)


def in_a_new_run(remedy: str) -> Sentence:
    """Returns a remedy that needs a new run."""
    return filled("{remedy} (begins a new run)", remedy=remedy)


_HOST_HELPS = (
    "close other programs",
    "give the system a larger swap or page file",
    in_a_new_run("fewer num_frames or a smaller width and height in the dataset node"),
    in_a_new_run("an fp8 file in Load Wan Model"),
)
"""remedies for full host memory, cheapest first"""
_HOST_HELPS_FOR_CLIPS = (
    "close other programs",
    "give the system a larger swap or page file",
    "a smaller width, height or num_frames in Wan Preview Settings",
)
"""remedies for full host memory while previews are rendered"""
HELD_ELSEWHERE = "WAN_TRAINER_HELD"
"""environment variable: host memory held by ComfyUI, in words"""


def host_helps(held: str, rendering: bool = False) -> list[str]:
    """Returns remedies for full host memory. `held`: memory of ComfyUI's models in words, which is freed first."""
    free = filled(
        "free the {held} that ComfyUI itself holds: press Free model and node cache, and queue the nodes after this "
        "one as a separate graph",
        held=held,
    )
    return [*([free] if held else []), *(_HOST_HELPS_FOR_CLIPS if rendering else _HOST_HELPS)]


class OutOfMemory(WanTrainerError):  # noqa: N818  the usual name
    """A device or the host is out of memory."""

    exit_code = ExitCode.DOES_NOT_FIT

    @classmethod
    def of_host(cls, account: str = "", rendering: bool = False) -> OutOfMemory:
        """Returns the refusal for full host memory; `account`: available memory in words."""
        helps = host_helps(os.environ.get(HELD_ELSEWHERE, ""), rendering)
        what = filled("The computer's memory (RAM) ran out{account}.", account=account)
        return OutOfMemory(failure(what, helps=helps, closing=_KEPT))

    @classmethod
    def of_gpu(cls, account: str, helps: Sequence[str]) -> OutOfMemory:
        """Returns the refusal for a full GPU; `account`: requested and available memory in words."""
        what = filled("The GPU ran out of memory{account}.", account=account)
        return OutOfMemory(failure(what, helps=helps, closing=_KEPT))
