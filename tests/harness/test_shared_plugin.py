"""Files whose scripts are forked from an imported ComfyUI stay in one process; others go where there is room. Two
processes import the files from both ends."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest
from environment import ROOT

ASKS = """
@pytest.fixture(scope="session")
def comfy_script():
    return None
"""
TESTS = """
# mark.comfy: a file of this layer
import json, os, pathlib, pytest, time

def note(where):
    with open(pathlib.Path(__file__).with_name(where), "a") as out:
        out.write(json.dumps([pathlib.Path(__file__).stem, os.environ.get("PYTEST_XDIST_WORKER", "")]) + "\\n")

note("imported.txt")

@pytest.mark.parametrize("number", range(3))
def test_notes_its_process(number{asks}):
    time.sleep(0.05)  # so that no process runs everything before the other begins
    note("ran.txt")
"""


@pytest.mark.soak
@pytest.mark.lasts(1.5)
def test_files_that_share_a_comfyui_run_in_one_process_and_each_file_in_one(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text("import pytest\n" + ASKS, encoding="utf-8")
    for number in range(8):
        asks = ", comfy_script" if number % 2 else ""
        (tmp_path / f"test_{number}.py").write_text(TESTS.format(asks=asks), encoding="utf-8")
    outer = ("PYTEST_", "WAN_TRAINER_COUNTS")
    env = {name: value for name, value in os.environ.items() if not name.startswith(outer)}
    env["PYTHONPATH"] = str(ROOT / "scripts")
    flags = [
        "-m",
        "comfy or not comfy",
        "-p",
        "order_plugin",
        "-p",
        "shared_plugin",
        "-p",
        "no:cacheprovider",
        "--no-loadscope-reorder",
        "-n",
        "2",
        "-q",
        ".",
    ]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *flags], cwd=tmp_path, env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    processes: dict[str, set[str]] = defaultdict(set)
    lines = noted(tmp_path / "ran.txt")
    for name, process in lines:
        processes[name].add(process)
    assert len(lines) == 8 * 3
    assert all(len(found) == 1 for found in processes.values()), "a file was torn apart"
    sharing = set[str]().union(*(processes[f"test_{number}"] for number in (1, 3, 5, 7)))
    assert len(sharing) == 1
    assert len(set[str]().union(*processes.values())) == 2, "nothing was left for the second process"
    imported: dict[str, list[str]] = defaultdict(list)
    for name, process in noted(tmp_path / "imported.txt"):
        imported[process].append(name)
    files = [f"test_{number}" for number in range(8)]
    assert imported == {"gw0": files, "gw1": files[::-1]}, "each compiles one half"


def noted(file: Path) -> list[list[str]]:
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
