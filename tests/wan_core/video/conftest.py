"""The child every test of frames and colours talks to, on each PyAV that must read them exactly."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from tests.support.pyavs import INSTALLED, NEWEST, OLDEST, video_on
from wan_core.video import VideoProcess


@pytest.fixture(scope="session")
def child_on() -> Iterator[Callable[[str], VideoProcess]]:
    """Gives the running child on a PyAV, one for all tests."""
    with ExitStack() as running:
        yield functools.cache(lambda version: running.enter_context(video_on(version)))


@pytest.fixture(scope="module", params=[pytest.param(INSTALLED, marks=pytest.mark.soak), OLDEST, NEWEST])
def video(request: pytest.FixtureRequest, child_on: Callable[[str], VideoProcess]) -> VideoProcess:
    """A running child; the same tests pass on the oldest, the installed and the newest PyAV. The tests of other rooms
    read clips with the installed one."""
    return child_on(request.param)


@pytest.fixture(scope="session")
def real_clips(repo):
    """The three clips of scripts/test.py."""
    folder = repo / ".cache" / "clips"
    found = sorted(folder.glob("*.mp4"))
    if not found:
        pytest.skip("no clips: python3 scripts/test.py fetches three")
    return found
