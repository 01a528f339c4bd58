"""Small real media files, made on the fly."""

from __future__ import annotations

import importlib
import importlib.util
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from tests.support.forked import DIFFUSERS, ForkServer, RunCommand, RunScript
from tests.support.libraries import Library, forget, plant
from wan_core import packages
from wan_core.video import VideoProcess

MakeClip = Callable[..., Path]
_CLIPS: dict[str, bytes] = {}
"""files of grey frames by what was asked for: tests ask for the same few again and again"""
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def video() -> Iterator[VideoProcess]:
    """A running video child, one for all tests."""
    with VideoProcess() as process:
        yield process


@pytest.fixture
def make_clip(tmp_path) -> MakeClip:
    """Writes a clip whose frame k has the grey level `levels[k]` (default 8 * k) and returns its path."""

    def make(
        name: str,
        *,
        num_frames: int = 20,
        fps: float = 16,
        width: int = 64,
        height: int = 48,
        times_ms: Sequence[int] | None = None,
        codec: str = "libx264",
        pix_fmt: str = "yuv420p",
        frames: Sequence[np.ndarray] | None = None,
        rotation: int = 0,
        options: dict[str, str] | None = None,
        container_options: dict[str, str] | None = None,
        pixel_ratio: str = "",
    ) -> Path:
        import av

        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        asked = (path.suffix, num_frames, fps, width, height, times_ms, codec, pix_fmt, rotation, options)
        known = "" if frames else repr((*asked, container_options, pixel_ratio))
        if known in _CLIPS:
            path.write_bytes(_CLIPS[known])
            return path
        count = len(times_ms) if times_ms is not None else num_frames
        pictures = frames or [np.full((height, width, 3), 8 * k % 256, np.uint8) for k in range(count)]
        # Matroska draws a number for every file, and crops are drawn from its bytes: without it they stay the same.
        same_bytes = {"fflags": "+bitexact", **(container_options or {})}
        with av.open(str(path), "w", options=same_bytes) as container:
            stream = container.add_stream(codec, rate=Fraction(fps).limit_denominator(1001))
            stream.height, stream.width = pictures[0].shape[:2]
            stream.pix_fmt = pix_fmt
            stream.options = options or {}
            if times_ms is not None:
                stream.codec_context.time_base = Fraction(1, 1000)
            if pixel_ratio:
                stream.codec_context.sample_aspect_ratio = Fraction(*map(int, pixel_ratio.split(":")))
            if rotation:
                stream.set_display_rotation(rotation)
            for number, picture in enumerate(pictures):
                frame = av.VideoFrame.from_ndarray(picture, format="rgb24").reformat(format=pix_fmt)
                if times_ms is not None:
                    frame.pts, frame.time_base = times_ms[number], Fraction(1, 1000)
                container.mux(stream.encode(frame))
            container.mux(stream.encode())
        if known:
            _CLIPS[known] = path.read_bytes()
        return path

    return make


@pytest.fixture(autouse=True)
def own_signal_handlers() -> Iterator[None]:
    """What a worker's control installs goes with the test."""
    names = ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1")
    before = {number: signal.getsignal(number) for name in names if (number := getattr(signal, name, None))}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture(autouse=True)
def one_thread() -> None:
    """Tiny tensors gain nothing from threads, and bitwise tests need a fixed number of them."""
    import torch

    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def server() -> Iterator[ForkServer]:
    """What forks workers, their imports done."""
    if not hasattr(os, "fork"):
        pytest.skip("needs fork, which Windows does not have")
    server = ForkServer()
    yield server
    server.close()


@pytest.fixture(scope="session")
def run_script(request: pytest.FixtureRequest) -> RunScript:
    """Runs a script with its words in a process of its own, in which torch is imported already where that can be."""
    if hasattr(os, "fork"):
        return request.getfixturevalue("server").run

    return lambda script, *words: _process(str(script), *words)


@pytest.fixture(scope="session")
def comfy_script(comfyui_tree: Path) -> Iterator[RunScript]:
    """Runs a script of tests/tiny with its words in a process of its own, in which ComfyUI is imported already where
    that can be."""
    if not hasattr(os, "fork"):
        yield lambda script, *words: _process(str(script), *words)
        return
    server = ForkServer(str(comfyui_tree))
    yield server.run
    server.close()


@pytest.fixture(scope="session")
def peer_script() -> Iterator[RunScript]:
    """Runs a script of tests/tiny with its words in a process of its own, in which diffusers and PEFT are imported
    already where that can be."""
    if importlib.util.find_spec("diffusers") is None:
        pytest.skip("no diffusers: pip install diffusers, or run python3 scripts/test.py, which does")
    if not hasattr(os, "fork"):
        yield lambda script, *words: _process(str(script), *words)
        return
    server = ForkServer(DIFFUSERS)
    yield server.run
    server.close()


@pytest.fixture(scope="session")
def wan_core_command(request: pytest.FixtureRequest) -> RunCommand:
    """Runs `python -m wan_core` with its words, likewise."""
    if hasattr(os, "fork"):
        return request.getfixturevalue("server").command
    return lambda *words: _process("-m", "wan_core", *words)


def _process(*words: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    line = [sys.executable, *words]
    return subprocess.run(line, capture_output=True, text=True, check=False, env=environment, cwd=ROOT)


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Library]:
    """Plants a package where pip would have installed it, in place of one that is there."""
    folder = tmp_path / "lib" / "site-packages"
    own = packages._library_folders()
    monkeypatch.setattr(packages, "_library_folders", lambda: {*own, os.path.realpath(folder)})
    yield from _planting(folder, monkeypatch)


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Library]:
    """Plants a package in a folder that Python looks into first, as it does into that of a ComfyUI."""
    yield from _planting(tmp_path / "ComfyUI", monkeypatch)


def _planting(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Library]:
    before: dict[str, object] = {}
    planted: list[str] = []

    def make(name: str, text: str) -> Path:
        top = name.partition(".")[0]
        planted.append(top)
        before.update(forget(top))
        importlib.invalidate_caches()
        return plant(folder, name, text)

    folder.mkdir(parents=True, exist_ok=True)
    monkeypatch.syspath_prepend(folder)
    yield make
    for top in planted:
        forget(top)
    sys.modules.update(before)  # type: ignore[arg-type]
