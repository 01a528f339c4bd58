"""What goes wrong in a forked worker: steps that are not finite, and a disk that is full for a while."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import torch


def bad_at_times(batch: object) -> torch.Tensor:
    """A target that is not finite for two draws in five, the same ones whenever a step is tried again."""
    from wan_core.train import true_velocity

    bad = int(float(batch.sigma[0]) * 1e6) % 5 < 2  # type: ignore[attr-defined]
    return true_velocity(batch) * (float("nan") if bad else 1.0)  # type: ignore[arg-type]


def install(full_for: int) -> None:
    """In the child only: the streaks, and no room for the first `full_for` writes of a save."""
    import wan_core.session.saving as saving
    import wan_core.train.objective as objective
    import wan_core.train.saves as saves

    objective.true_velocity = bad_at_times
    saving._RETRY_SAVE_S = 0.01  # type: ignore[misc]
    real, left = saves._write, [full_for]

    def write(path: Path, data: bytes, run: Path) -> str:
        if left[0]:
            left[0] -= 1
            path.write_bytes(data[: len(data) // 3])  # torn, as a full disk leaves it
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(path, data, run)

    saves._write = write
