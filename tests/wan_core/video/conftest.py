"""The child every test of frames and colours talks to, on each PyAV that must read them exactly."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.pyavs import INSTALLED, NEWEST, OLDEST, video_on
from wan_core.video import VideoProcess


@pytest.fixture(scope="module", params=[pytest.param(INSTALLED, marks=pytest.mark.soak), OLDEST, NEWEST])
def video(request: pytest.FixtureRequest) -> Iterator[VideoProcess]:
    """A running child; the same tests pass on the oldest, the installed and the newest PyAV. The tests of other rooms
    read clips with the installed one."""
    with video_on(request.param) as process:
        yield process


@pytest.fixture(scope="session")
def real_clips(repo):
    """The three clips of scripts/test.py."""
    folder = repo / ".cache" / "clips"
    found = sorted(folder.glob("*.mp4"))
    if not found:
        pytest.skip("no clips: python3 scripts/test.py fetches three")
    return found
