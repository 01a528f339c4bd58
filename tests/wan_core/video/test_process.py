"""The child: replaced when it hangs or dies, gone when the parent is."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from tests.support.pyavs import INSTALLED
from wan_core.errors import DatasetError, Stopped, WanTrainerError
from wan_core.video import VideoProcess

posix = pytest.mark.skipif(os.name != "posix", reason="needs POSIX signals")


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    stat = Path(f"/proc/{pid}/stat")
    return not (stat.exists() and stat.read_text().rpartition(")")[2].split()[0] == "Z")


def wait_until(condition, seconds: float = 10) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.05)
    return False


@posix
def test_no_child_is_left_after_close(make_clip):
    with VideoProcess() as video:
        video.probe(make_clip("a.mp4"))
        pid = video.pid
        assert pid is not None
        assert is_running(pid)
    assert video.pid is None
    assert not is_running(pid)


@posix
def test_a_request_that_takes_too_long_costs_one_clip(make_clip):
    path = make_clip("slow.mp4")
    with VideoProcess(timeouts_s={"probe": 1.0}) as video:
        video.probe(path)
        stuck = video.pid
        os.kill(stuck, signal.SIGSTOP)
        with pytest.raises(DatasetError, match=r"slow\.mp4 took more than 1 s"):
            video.probe(path)
        assert not is_running(stuck)
        assert video.probe(path).num_frames == 20
        assert video.pid != stuck


@posix
def test_a_crash_costs_one_clip(make_clip):
    path = make_clip("a.mp4")
    with VideoProcess() as video:
        video.probe(path)
        os.kill(video.pid, signal.SIGSEGV)
        with pytest.raises(DatasetError, match=r"a\.mp4 crashed the video reader"):
            video.probe(path)
        assert video.probe(path).num_frames == 20


@posix
def test_stop_is_obeyed_while_waiting(make_clip):
    path = make_clip("a.mp4")
    stop = threading.Event()
    with VideoProcess(stop.is_set) as video:
        video.probe(path)
        pid = video.pid
        os.kill(pid, signal.SIGSTOP)
        threading.Timer(0.2, stop.set).start()
        start = time.monotonic()
        with pytest.raises(Stopped):
            video.probe(path)
        assert time.monotonic() - start < 5, "half of what a probe may take"
        assert not is_running(pid)


@pytest.mark.lasts(1)
@posix
@pytest.mark.parametrize("busy", [False, True])
def test_the_child_dies_with_its_parent(make_clip, tmp_path, busy):
    path = make_clip("a.mp4", num_frames=200 if busy else 5, width=320, height=240)
    script = textwrap.dedent(
        f"""
        import sys, time
        sys.path.insert(0, {str(Path(__file__).parents[3])!r})
        from pathlib import Path
        from wan_core.video import VideoProcess
        video = VideoProcess()
        video.probe(Path({str(path)!r}))
        print(video.pid, flush=True)
        while {busy}:
            video.read(Path({str(path)!r}), fps=16, num_frames=197, width=320, height=240)
        time.sleep(60)
        """
    )
    parent = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    if busy:
        time.sleep(0.3)
    parent.kill()
    parent.wait()
    parent.stdout.close()
    assert wait_until(lambda: not is_running(pid))


@pytest.mark.lasts(0.5)
def test_children_in_a_row_leave_no_threads(make_clip):
    path = make_clip("a.mp4")
    before = threading.active_count()
    for _ in range(2):
        with VideoProcess() as video:
            video.probe(path)
    assert threading.active_count() == before


def test_the_child_never_loads_torch(make_clip):
    code = (
        "import sys; sys.argv = ['launch', 'video']; "
        "import wan_core.video.child, wan_core.video.clips, wan_core.video.stills, "
        "wan_core.video.writer; assert 'torch' not in sys.modules"
    )
    root = Path(__file__).parents[3]
    subprocess.run([sys.executable, "-c", code], check=True, cwd=root)


def test_a_write_that_cannot_succeed_names_the_file(tmp_path, child_on):
    video = child_on(INSTALLED)
    target = tmp_path / "folder.mp4"
    target.mkdir()
    with pytest.raises(WanTrainerError, match=r"folder\.mp4"):
        video.write(target, np.zeros((2, 16, 16, 3), np.uint8), 16)
    with pytest.raises(WanTrainerError, match=r"x\.mp4"):
        video.write(tmp_path / "missing" / "x.mp4", np.zeros((2, 16, 16, 3), np.uint8), 16)


@pytest.mark.lasts(1)
@pytest.mark.soak
def test_hundreds_of_probes_take_about_a_second(make_clip):
    path = make_clip("a.mp4", num_frames=50)
    with VideoProcess() as video:
        video.probe(path)
        start = time.monotonic()
        for _ in range(300):
            video.probe(path)
        assert time.monotonic() - start < 5
