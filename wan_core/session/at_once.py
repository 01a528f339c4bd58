"""Both experts of a pair at the same time: a thread each, on a device of its own, step by step together."""

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
def named_of(expert: Expert) -> Iterator[None]:
    """Inside, a step that is not finite is said to be of `expert`, one of a pair."""
    try:
        yield
    except NotFinite as error:
        raise NotFinite(f"{expert_setting(expert.name)} noise expert, counted in its own steps: {error}") from error


def trained_at_once(experts: Sequence[Expert], until: Sequence[int], is_due: Callable[[], bool]) -> bool:
    """Trains each expert up to its own step of `until`, as many for each; returns whether they left earlier.

    `is_due()` is called once after each step of all of them; they leave where it returns True. Raises the first error
    of an expert, Stopped only where there is no other; the others end after the step that they are in.
    """
    due = False

    def look() -> None:
        nonlocal due
        due = is_due()

    meeting = threading.Barrier(len(experts), look)

    def train(expert: Expert, last: int) -> BaseException | None:
        def after(step: int) -> bool:
            meeting.wait()
            return due or step >= last

        try:
            with current(expert.trainer.device), named_of(expert):
                expert.trainer.run(last, after)
        except threading.BrokenBarrierError:  # by the error of another one
            return None
        except BaseException as error:
            meeting.abort()
            return error
        return None

    # Each step sets torch's precision, which is of the process, and sets it back: here it stays.
    precision = float32_products(experts[0].model.numerics.float32_products)
    with precision, ThreadPoolExecutor(len(experts), "wan experts") as pool:
        errors = [error for error in pool.map(train, experts, until) if error is not None]
    if errors:
        raise min(errors, key=lambda error: isinstance(error, Stopped))
    return due
