"""The door of every child process: nothing that lies where it works, or in ComfyUI's folder, is taken for a library."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.libraries import marking, plant

ROOT = Path(__file__).resolve().parents[2]
LAUNCH = ROOT / "wan_core" / "launch.py"
SHADOWS = ("peft", "torchao", "av", "bitsandbytes", "triton", "pytorch_optimizer", "numpy", "torch", "yaml")


@pytest.fixture
def door(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("PYTHONSAFEPATH", "")  # the door sets it; as it was again behind the test
    spec = importlib.util.spec_from_file_location("wan_core_door", LAUNCH)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_working_directory_and_comfyui_leave_the_import_path(
    door: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    comfyui, run, own = (tmp_path / name for name in ("ComfyUI", "run", "own"))
    for folder in (comfyui, run, own):
        folder.mkdir()
    (comfyui / "folder_paths.py").touch()
    (tmp_path / "link").symlink_to(comfyui)
    kept = [str(own), *(p for p in sys.path if "packages" in p)]
    monkeypatch.chdir(run)
    monkeypatch.setattr(sys, "argv", ["launch.py", "video"])
    monkeypatch.setattr(sys, "path", ["", ".", str(run), str(comfyui), str(tmp_path / "link"), "../ComfyUI", *kept])
    monkeypatch.setattr("wan_core.video.child.serve", lambda: 7)
    assert door.main() == 7
    assert sys.path == [str(ROOT), *kept]


def test_a_python_that_somebody_stands_in_keeps_its_own_folders(door: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The package of Windows lists the folder of Python itself, and its libraries lie in there."""
    monkeypatch.chdir(sys.prefix)
    assert not door._is_untrusted(sys.prefix)
    site_packages = next(p for p in sys.path if p.endswith("site-packages"))
    monkeypatch.chdir(site_packages)
    assert not door._is_untrusted("")


@pytest.mark.lasts(2)
def test_what_lies_in_the_working_directory_shadows_no_library(tmp_path: Path) -> None:
    """A PYTHONPATH that ends in a separator means that folder to Python, and comes before its own."""
    marker = tmp_path / "ran"
    for name in SHADOWS:
        plant(tmp_path, name, marking(marker, "raise SystemExit(3)"))
    done = subprocess.run(
        [sys.executable, "-X", "utf8", str(LAUNCH), "inspect", "no_such_model.safetensors"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": os.pathsep},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 5, done.stderr[-2000:]
    assert not marker.exists()


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python 3.10 always looks there first")
def test_a_python_that_a_library_starts_takes_nothing_from_there_either(
    door: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch.compile does, for a look at the processor: `python -c`, in the folder of the run."""
    marker = tmp_path / "ran"
    plant(tmp_path, "ctypes", marking(marker))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["launch.py", "video"])
    look = [sys.executable, "-c", "from ctypes import cdll"]
    monkeypatch.setattr("wan_core.video.child.serve", lambda: subprocess.run(look, check=False).returncode)
    assert door.main() == 0
    assert not marker.exists()


def test_a_process_ends_with_its_command_while_a_tracker_hangs() -> None:
    script = f"""
import atexit, runpy, sys, threading, time
sys.path.insert(0, {str(ROOT)!r})
import wan_core.__main__
def main(_words):
    threading.Thread(target=time.sleep, args=(60,), daemon=True, name="tracker x").start()
    atexit.register(time.sleep, 60)  # as libraries of trackers do
    return 3
wan_core.__main__.main = main
runpy.run_path({str(LAUNCH)!r}, run_name="__main__")
"""
    assert subprocess.run([sys.executable, "-c", script, "train"], timeout=30, check=False).returncode == 3
