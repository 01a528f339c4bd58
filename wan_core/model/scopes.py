"""Named ranges of a step, for torch.profiler: `wan: forward`, `wan: blocks.7 backward`, `wan: load blocks.7`."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

from torch.autograd import profiler
from torch.profiler import record_function

_NOT_PROFILED: AbstractContextManager[Any] = nullcontext()


def scope(*words: str) -> AbstractContextManager[Any]:
    """Inside, operators are listed in a profiler's trace under `wan: ` and the words.

    Without a profiler it costs 0.2 microseconds; `record_function` alone costs 4.4.
    """
    running = profiler._is_profiler_enabled  # pyright: ignore[reportPrivateUsage]
    return record_function(f"wan: {' '.join(words)}") if running else _NOT_PROFILED
