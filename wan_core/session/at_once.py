"""Trains both experts of a pair at the same time: one thread and one device for each, in lockstep."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from ..accelerator import current
from ..errors import Stopped
from ..precision import float32_products
from ..train import NotFinite, expert_setting
from .expert import Expert


@contextmanager
def naming_expert(expert: Expert) -> Iterator[None]:
    """Inside, NotFinite errors name `expert` of the pair."""
    try:
        yield
    except NotFinite as error:
        raise NotFinite(f"{expert_setting(expert.name)} noise expert, counted in its own steps: {error}") from error


def train_at_once(experts: Sequence[Expert], until: Sequence[int], is_due: Callable[[], bool]) -> bool:
    """Trains each expert up to its step in `until`, the same number of steps; returns whether `is_due` ended it.

    `is_due()` is called once after each step of all experts; training ends if it returns True. An error of one
    expert ends the others after their current step, and is raised; Stopped is raised only without another error.
    """
    due = False

    def check_due() -> None:
        nonlocal due
        due = is_due()

    barrier = threading.Barrier(len(experts), check_due)

    def train(expert: Expert, last: int) -> BaseException | None:
        def after(step: int) -> bool:
            barrier.wait()
            return due or step >= last

        try:
            with current(expert.trainer.device), naming_expert(expert):
                expert.trainer.run(last, after)
        except threading.BrokenBarrierError:  # another expert failed
            return None
        except BaseException as error:
            barrier.abort()
            return error
        return None

    # Each step sets and restores torch's float32 precision, a global of the process. It is set here once, so that no
    # thread changes it.
    precision = float32_products(experts[0].model.numerics.float32_products)
    with precision, ThreadPoolExecutor(len(experts), "wan experts") as pool:
        errors = [error for error in pool.map(train, experts, until) if error is not None]
    if errors:
        raise min(errors, key=lambda error: isinstance(error, Stopped))
    return due
