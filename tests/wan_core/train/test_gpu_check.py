"""benchmarks/gpu_check.py runs on a CPU with tiny shapes, and keeps what it has."""

from __future__ import annotations

import importlib.util
import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.forked import RunScript

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"
PARTS = ["rates", "gradients", "memory", "peers", "streams"]
"""speed and switches are the jobs of memory under other settings"""
FOR_A_GPU = ("rates", "streams")
no_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="says what a machine without a GPU gets")

pytestmark = pytest.mark.lasts(12)


def check(run_script: RunScript, tmp_path: Path, *words: str) -> tuple[int, dict[str, Any], str]:
    """Exit code, data and page of one run with tiny shapes."""
    out = tmp_path / "out"
    done = run_script(
        BENCHMARKS / "gpu_check.py", "--tiny", "--work", str(tmp_path / "work"), "--out", str(out), *words
    )
    assert done.returncode in (0, 1), done.stderr[-2000:]
    (data,) = out.glob("gpu_check_*_tiny.json")
    return done.returncode, json.loads(data.read_text()), data.with_suffix(".md").read_text()


@pytest.mark.soak
@no_gpu
@pytest.mark.parametrize(
    "parts",
    [[part for part in PARTS if part != "peers"], pytest.param(PARTS, marks=pytest.mark.soak)],
    ids=["ours", "with peers"],
)
def test_the_first_measurement_of_every_part_runs_or_says_what_it_needs(
    run_script: RunScript, tmp_path: Path, parts: list[str]
) -> None:
    """That a step of ours is one of diffusers and PEFT is proved in test_plain_loop.py each time."""
    code, data, page = check(run_script, tmp_path, "--first", "1", "--only", ",".join(parts))
    found = {result["part"]: result for result in data["results"]}
    assert list(found) == parts
    assert len(data["results"]) == len(parts)
    said = dict.fromkeys(FOR_A_GPU, ("needs", "needs one CUDA GPU"))
    if importlib.util.find_spec("diffusers") is None:
        said["peers"] = ("needs", "needs the package diffusers")
    for part, result in found.items():
        assert (result["status"], result["said"]) == said.get(part, ("done", "")), result
    assert code == 0
    assert found["gradients"]["figures"]["card_off"] == 0  # a CPU against itself
    job = found["memory"]["figures"]
    assert job["measured_bytes"] is None
    assert job["predicted_bytes"] > 0
    assert len(job["seconds"]) == 3
    if "peers" in parts and "peers" not in said:
        peers = found["peers"]["figures"]
        assert peers["ours_loss"] == pytest.approx(peers["theirs_loss"], rel=5e-3)
        assert peers["ours_gradient_norm"] == pytest.approx(peers["theirs_gradient_norm"], rel=5e-3)
    assert "The figures mean nothing." in page
    assert re.findall(r"^## (\w+)$", page, re.MULTILINE) == parts


@pytest.mark.soak
@no_gpu
def test_a_part_that_raises_is_recorded_the_others_run_and_an_earlier_run_stays(
    run_script: RunScript, tmp_path: Path
) -> None:
    damaged = tmp_path / "work" / "gradients_tiny.safetensors"
    damaged.parent.mkdir()
    damaged.write_bytes(b"no gradients")
    code, data, page = check(run_script, tmp_path, "--only", "memory,gradients", "--first", "1")
    first, second = data["results"]
    assert (code, first["part"], first["status"]) == (1, "gradients", "error")
    assert "HeaderTooLarge" in first["said"] or "header" in first["said"].lower()
    assert first["said"] in page
    assert (second["part"], second["status"]) == ("memory", "done")

    damaged.unlink()
    code, data, _ = check(run_script, tmp_path, "--only", "gradients", "--first", "1")
    assert (code, [result["status"] for result in data["results"]]) == (0, ["done", "done"])
    code, data, _ = check(run_script, tmp_path, "--only", "gradients", "--first", "2", "--minutes", "0")
    assert (code, [result["status"] for result in data["results"]]) == (0, ["done", "done", "left out"])


ENDS = """
import os, signal, sys, time
sys.path.insert(0, sys.argv[1])
from pathlib import Path
import gpu_check
from card.case import Bench, Case
def sleep(bench): time.sleep(600)
def die(bench): os.kill(os.getpid(), signal.SIGKILL)
def wrong(bench): return {"off": 2.0, "ok": False}
for measure in (sleep, die, wrong):
    result = gpu_check.in_child("fork", Case("part", "name", measure, needs_gpu=False), Bench(Path()), 2)
    print(result.status, "|", result.said, "|", dict(result.figures))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.soak
def test_a_measurement_that_hangs_dies_or_is_wrong_is_an_error(run_script: RunScript, tmp_path: Path) -> None:
    script = tmp_path / "ends.py"
    script.write_text(ENDS)
    done = run_script(script, str(BENCHMARKS))
    assert done.stdout.splitlines()[-3:] == [
        "error | ended after 2 s | {}",
        "error | its process ended with -9 | {}",
        "error | a figure is wrong | {'off': 2.0, 'ok': False}",
    ], done.stderr[-2000:]


@pytest.mark.soak
@no_gpu
def test_every_measurement_runs_or_says_what_it_needs(run_script: RunScript, tmp_path: Path) -> None:
    code, data, _ = check(run_script, tmp_path)
    assert code == 0
    assert len(data["results"]) > 50
    for result in data["results"]:
        lacking = result["status"] == "needs"
        assert lacking == result["said"].startswith("needs "), result
        assert lacking or result["status"] == "done", result
