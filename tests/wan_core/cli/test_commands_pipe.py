"""Reading commands never stands in the way of loading libraries, which on Windows waits for a pending read of stdin."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.tiny_run import ONE_LOOK, TinyRun, make_run
from tests.wan_core.cli.test_start import UNNEEDED
from wan_core.job.config import read_status
from wan_core.load import ModelPlan
from wan_core.precision import QuantizeConfig
from wan_core.train import TrainConfig

pytestmark = pytest.mark.lasts(1)

ROOT = Path(__file__).parents[3]

# Windows serialises what is done to one pipe: a library whose start-up asks what stdin is waits until a read that is
# pending there ends. Here each such load is noted and fails the test, so that the order can be seen on any system.
STAND_IN = """
import importlib.machinery, json, runpy, sys, threading

load = importlib.machinery.ExtensionFileLoader.create_module

def create_module(self, spec):
    if any(thread.name == "commands" for thread in threading.enumerate()):
        sys.stderr.write(f"HANGS {spec.name}\\n")
    return load(self, spec)

importlib.machinery.ExtensionFileLoader.create_module = create_module
unneeded = json.loads(sys.argv.pop(1))
sys.argv.pop(0)
try:
    runpy.run_path(sys.argv[0], run_name="__main__")
finally:
    sys.stderr.write("".join(f"IMPORTED {name}\\n" for name in unneeded if name in sys.modules))
"""


def controlled(run: TinyRun, log: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """A real worker beside the stand-in, steered through a pipe that stays open and silent but for answers.

    In an isolated Python in another folder, as that of ComfyUI's portable build.
    """
    verb, *more = words
    python = [sys.executable, "-I", "-X", "utf8", "-c", STAND_IN, json.dumps(UNNEEDED)]
    command = [*python, str(ROOT / "wan_core" / "launch.py"), verb, str(run.directory)]
    with (
        log.open("w") as stderr,
        subprocess.Popen(
            [*command, "--roots", str(run.roots_file), "--controlled", *more],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            cwd="/",
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        ) as worker,
    ):
        assert worker.stdin is not None
        assert worker.stdout is not None
        for line in worker.stdout:
            event = json.loads(line)
            if event["event"] == "decode_wanted":
                answer = {"command": "decoded", "sample_id": event["sample_id"], "error": "no VAE in this test"}
                worker.stdin.write(json.dumps(answer) + "\n")
                worker.stdin.flush()
    return subprocess.CompletedProcess(command, worker.returncode, "", log.read_text())


@pytest.mark.slow
@pytest.mark.lasts(5)
@pytest.mark.parametrize(
    "verbs", [("train",), pytest.param(("train", "audit", "sample"), marks=pytest.mark.soak)], ids=" ".join
)
def test_commands_load_every_library_before_a_read_is_pending(tmp_path: Path, verbs: tuple[str, ...]) -> None:
    """Train is the one whose run needs most; the order of the others is read below, and run as soak."""
    plan = ModelPlan(base_file="diffusion_models:wan_tiny_t2v.safetensors", quantize=QuantizeConfig(scheme="int8"))
    settings = TrainConfig(steps=2, save_every_n_steps=1, preview_every_n_steps=0, learning_rate=1e-3, **ONE_LOOK)
    run = make_run(tmp_path, plan=plan, train=settings)
    job = run.directory / "validate" / "job.json"
    job.parent.mkdir()
    job.write_text(json.dumps({"preview": {"width": 32, "height": 32, "num_frames": 5, "steps": 1, "cfg": 1.0}}))
    more = {"audit": ("--timesteps", "1"), "sample": ("--job", str(job))}
    for verb in verbs:
        done = controlled(run, tmp_path / f"{verb}.txt", verb, *more.get(verb, ()))
        hung = [line for line in done.stderr.splitlines() if line.startswith("HANGS")]
        assert hung == [], f"{verb} would wait at {hung[0]} and {len(hung) - 1} more"
        assert done.returncode == 0, done.stderr[-3000:]
        assert verb != "train" or "IMPORTED" not in done.stderr, "what takes seconds and is not needed"
    assert read_status(run.directory).state == "done"


def test_every_command_has_imported_its_rooms_before_it_asks_who_controls_it() -> None:
    tree = ast.parse((ROOT / "wan_core" / "cli" / "runs.py").read_text(encoding="utf-8"))
    asking: list[str] = []
    for function in (node for node in tree.body if isinstance(node, ast.FunctionDef)):
        inside = list(ast.walk(function))
        asked = [n.lineno for n in inside if isinstance(n, ast.Call) and ast.unparse(n.func) == "_control"]
        if asked:
            asking.append(function.name)
            imported = [n.lineno for n in inside if isinstance(n, (ast.Import, ast.ImportFrom))]
            assert max(imported) < min(asked), function.name
    assert asking == ["_train", "_sample", "_audit"]
