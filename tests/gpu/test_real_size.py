"""Real sizes on a real GPU: five steps of 1.3B, the loss finite, memory as predicted."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

BENCH = Path(__file__).parents[2] / "benchmarks" / "train_step.py"

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs one CUDA GPU; this machine has none"),
]


def bench(tmp_path: Path, *words: str) -> str:
    done = subprocess.run(
        [sys.executable, str(BENCH), "--work", str(tmp_path), "--out", str(tmp_path / "out"), *words],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def gibibytes(text: str, which: str) -> float:
    """The peak memory of a step on the first GPU, measured or predicted."""
    found = re.search(rf"\| peak memory of a step, {which} \| cuda:0 ([\d.]+) GiB", text)
    assert found, text
    return float(found[1])


def test_five_steps_of_1_3b_at_832x480x49_take_the_predicted_memory(tmp_path: Path) -> None:
    text = bench(tmp_path, "--shape", "1.3B")
    measured, predicted = gibibytes(text, "measured"), gibibytes(text, "predicted")
    assert abs(predicted - measured) <= max(0.05 * measured, 1.0)
    assert "nan" not in text


def test_fp8_weights_take_less_memory_than_bf16(tmp_path: Path) -> None:
    words = ("--shape", "1.3B", "--size", "480x480x17")
    plain = gibibytes(bench(tmp_path, *words), "measured")
    small = gibibytes(bench(tmp_path, *words, "--quantize", "fp8_e4m3fn"), "measured")
    assert small < plain


@pytest.mark.multi_gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA GPUs")
def test_a_split_over_two_gpus_gives_the_losses_of_one(tmp_path: Path) -> None:
    one = bench(tmp_path, "--shape", "1.3B", "--size", "480x480x17", "--steps", "2")
    two = bench(tmp_path, "--shape", "1.3B", "--size", "480x480x17", "--steps", "2", "--split")
    assert re.search(r"\| losses \| (.+) \|", one)[1] == re.search(r"\| losses \| (.+) \|", two)[1]  # type: ignore[index]
