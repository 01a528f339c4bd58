"""`train` on a real file system that is full at its start, at a save and at its end."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.support.small_disk import small_disk
from tests.support.tiny_run import ONE_LOOK, TinyRun, make_run
from wan_core.files import is_partial
from wan_core.job.config import read_status
from wan_core.train import SaveStore, TrainConfig

pytestmark = [pytest.mark.soak, pytest.mark.lasts(60)]
ROOT = Path(__file__).parents[3]
TRAIN = TrainConfig(steps=4, save_every_n_steps=2, preview_every_n_steps=0, **ONE_LOOK)  # type: ignore[arg-type]


def trained(run: TinyRun, directory: Path) -> subprocess.Popen[str]:
    words = [sys.executable, "-m", "wan_core", "train", directory, "--roots", run.roots_file]
    return subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def moved(run: TinyRun, folder: Path) -> Path:
    return shutil.copytree(run.directory, folder / "tiny")


@pytest.mark.parametrize("leave", [0, 4 << 10, 16 << 10, 64 << 10, 256 << 10])
def test_a_run_that_finds_no_room_says_so_and_goes_on_when_there_is_some(tmp_path: Path, leave: int) -> None:
    run = make_run(tmp_path / "model", train=TRAIN)
    with small_disk(tmp_path / "disk", "4m") as disk:
        directory = moved(run, disk.folder)
        disk.fill(leave)
        worker, lines = trained(run, directory), list[str]()
        room = threading.Timer(8, disk.make_room)
        assert worker.stdout is not None
        with worker.stdout as output:
            for line in output:
                if "cannot be saved" in line and not any("cannot be saved" in before for before in lines):
                    room.start()
                lines.append(line)
        code, said = worker.wait(), "".join(lines)
        print(f"{leave} bytes left: code {code}, {'waited' if 'cannot be saved' in said else 'no wait'}")  # noqa: T201
        assert said.count("Traceback") == said.count("Exception in thread"), "those of TensorBoard's own thread"
        assert not any(is_partial(name) for _, _, names in os.walk(directory) for name in names)
        if code == 5:
            assert "The disk of run tiny is full (No space left on device)" in said
            assert SaveStore(directory).steps() == []
            disk.make_room()
            again = trained(run, directory)
            assert again.communicate()[0] is not None
            code = again.returncode
        assert code == 0, said[-2000:]
        assert read_status(directory).state == "done"
        assert all(SaveStore(directory).read(step) for step in (2, 4))
