"""The canvas tests of one frontend stay in one process: there, its server and its browser are started once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from environment import OTHER_FRONTEND, ROOT
from frontend_plugin import frontend_of

TESTS = f"""
import json, os, pathlib, pytest

@pytest.fixture(scope="session", params=["shipped", "{OTHER_FRONTEND}"])
def frontend(request):
    return request.param

@pytest.fixture(scope="module", params=["litegraph", "vue"])
def page(request):
    return request.param

def note(frontend):
    with open(pathlib.Path(__file__).with_name("ran.txt"), "a") as out:
        out.write(json.dumps([frontend, os.environ["PYTEST_XDIST_WORKER"]]) + "\\n")

@pytest.mark.parametrize("file", ["a", "b", "c"])
def test_both(page, frontend, file):
    note(frontend)

def test_plain(frontend):
    note(frontend)
"""


@pytest.mark.soak
def test_every_frontend_runs_in_one_process_and_each_has_its_own(tmp_path: Path) -> None:
    for name in ("test_first.py", "test_second.py"):
        (tmp_path / name).write_text(TESTS, encoding="utf-8")
    outer = ("PYTEST_", "WAN_TRAINER_COUNTS")
    env = {name: value for name, value in os.environ.items() if not name.startswith(outer)}
    env["PYTHONPATH"] = str(ROOT / "scripts")
    command = [sys.executable, "-m", "pytest", "-p", "frontend_plugin", "-p", "no:cacheprovider", "-n", "2", "-q"]
    done = subprocess.run([*command, "."], cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    ran = [json.loads(line) for line in (tmp_path / "ran.txt").read_text(encoding="utf-8").splitlines()]
    assert len(ran) == 2 * 2 * (2 * 3 + 1)
    assert {frontend for frontend, _ in ran} == {"shipped", OTHER_FRONTEND}
    pairs = {(frontend, process) for frontend, process in ran}
    assert len(pairs) == len({process for _, process in pairs}) == 2


def test_the_frontend_is_among_the_parameters_of_a_name() -> None:
    assert frontend_of("tests/browser/test_x.py::test_y[1.58.1-vue-first]") == "1.58.1"
    assert frontend_of("tests/browser/test_x.py::test_y[shipped]") == "shipped"
    assert frontend_of("tests/browser/test_x.py::test_y[False-shipped]") == "shipped"
    assert frontend_of("tests/browser/test_x.py::test_y") == "tests/browser/test_x.py::test_y"
