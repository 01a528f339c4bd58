"""Models that take turns on the devices: offloaded to host memory in between, or read again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest

from wan_core.session import devices
from wan_core.session.devices import Devices, Placed


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What happened to weights, in order; the way back fails for a model named `stuck`. A model takes 10 GiB."""
    seen: list[str] = []

    @contextmanager
    def away(model: str, *, trained: bool) -> Iterator[None]:
        assert trained
        seen.append(f"{model} away")
        yield
        if model == "stuck":
            raise MemoryError(model)
        seen.append(f"{model} home")

    monkeypatch.setattr(devices, "offloaded_model", away)
    monkeypatch.setattr(devices, "bytes_to_offload", lambda _model: 10 << 30)
    monkeypatch.setattr(devices, "weights_once_loaded", lambda _plan, _file: 10 << 30)
    return seen


def placed(name: str, seen: list[str], host: int | None = None, device: str = "cuda:0") -> Placed:
    def read() -> Any:
        seen.append(f"{name} read")
        return name

    model = SimpleNamespace(placement=SimpleNamespace(device_names=lambda: (device,)))
    run = SimpleNamespace(
        config=SimpleNamespace(model=model, train=SimpleNamespace(expert_name=name)), file=None, apart=False
    )
    return Placed(cast("Any", run), read, host)


def test_an_offloaded_model_comes_back_and_is_not_read_again(host: list[str]) -> None:
    one = placed("model", host)
    one.enter()
    one.leave(offload=True)
    assert not one.on_device
    one.enter()
    assert host == ["model read", "model away", "model home"]
    one.leave(offload=False)
    assert one.loaded is None
    one.enter()
    assert host[3:] == ["model read"]


def test_a_model_that_cannot_come_back_is_dropped_and_read_again(host: list[str]) -> None:
    one = placed("stuck", host)
    one.enter()
    one.leave(offload=True)
    with pytest.raises(MemoryError):
        one.enter()
    assert (one.loaded, one.on_device) == (None, False)
    one.enter()
    assert host == ["stuck read", "stuck away", "stuck read"]


@pytest.mark.parametrize(
    ("free", "processes", "planned", "device", "stays"),
    [
        (30, 1, None, "cuda:0", True),  # 10 of each, and the reserve
        (19, 1, None, "cuda:0", False),
        (19, 1, 2 << 30, "cuda:0", True),  # the plan reads the coming one block by block
        (19, 1, 2 << 30, "cpu", False),
        (30, 2, None, "cuda:0", False),
    ],
)
def test_one_model_is_on_the_devices_and_host_memory_decides_where_the_other_goes(
    free: int,
    processes: int,
    planned: int | None,
    device: str,
    stays: bool,
    host: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(devices, "host_bytes", lambda: free << 30)
    first, second = placed("first", host), placed("second", host, planned, device)
    here = Devices(processes)
    here.load(first)
    here.load(second)
    here.load(second)
    assert (here.on_device, here.model, first.on_device) == (second, "second", False)
    assert host == ["first read", *(["first away"] if stays else []), "second read"]
    assert (first.loaded is not None) == stays
