"""The bench that tests of encoding work on."""

from __future__ import annotations

import pytest

from tests.support.bench import Bench


@pytest.fixture
def bench(tmp_path, make_clip, video):
    """Three different clips with captions."""
    for number, name in enumerate("abc"):
        make_clip(f"clips/{name}.mp4", num_frames=12 + number)
        (tmp_path / "clips" / f"{name}.txt").write_text(f"caption {name}")
    return Bench(tmp_path / "clips", tmp_path / "cache", video)
