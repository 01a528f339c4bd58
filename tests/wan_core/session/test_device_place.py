"""The place of one of two models that take turns on the devices."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import pytest

from wan_core.session import device_place
from wan_core.session.device_place import DevicePlace


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What happened to weights, in order; the way home fails for a model named `stuck`."""
    seen: list[str] = []

    @contextmanager
    def away(model: str, *, trained: bool) -> Iterator[None]:
        assert trained
        seen.append(f"{model} away")
        yield
        if model == "stuck":
            raise MemoryError(model)
        seen.append(f"{model} home")

    monkeypatch.setattr(device_place, "weights_out_of_the_way", away)
    return seen


def place(name: str, reads: list[str]) -> tuple[DevicePlace[Any], Any]:
    def read() -> str:
        reads.append(name)
        return name

    return DevicePlace[Any](lambda held: cast("Any", held)), read


def test_a_model_that_rested_comes_home_and_is_not_read_again(host: list[str]) -> None:
    reads: list[str] = []
    at, read = place("model", reads)
    assert at.come(read) == "model"
    at.leave(stays=True)
    assert at.come(read) == "model"
    assert (host, reads) == (["model away", "model home"], ["model"])
    at.leave(stays=False)
    assert at.held is None
    assert at.come(read) == "model"
    assert reads == ["model"] * 2


def test_a_model_that_cannot_come_home_is_given_up_and_read_again(host: list[str]) -> None:
    reads: list[str] = []
    at, read = place("stuck", reads)
    at.come(read)
    at.leave(stays=True)
    with pytest.raises(MemoryError):
        at.come(read)
    assert at.held is None
    assert at.come(read) == "stuck"
    assert (host, reads) == (["stuck away"], ["stuck"] * 2)
