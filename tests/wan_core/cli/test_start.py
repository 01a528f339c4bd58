"""What a worker imports until it trains: what its run needs, and nothing that takes seconds for nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.tiny_run import make_run
from wan_core.job.config import read_status
from wan_core.lora import LoraConfig
from wan_core.train import TrainConfig

ROOT = Path(__file__).parents[3]
UNNEEDED = ("peft", "transformers", "accelerate", "torchao", "diffusers", "torch._dynamo", "torch._inductor", "sympy")
"""together 3 of the 5 CPU seconds that a start once took"""
TRAIN = """
import json, runpy, sys
unneeded = json.loads(sys.argv.pop(1))
sys.argv.pop(0)
try:
    runpy.run_path(sys.argv[0], run_name="__main__")
except SystemExit as end:
    print(json.dumps([end.code, [name for name in unneeded if name in sys.modules]]), file=sys.stderr)
"""


@pytest.mark.soak
@pytest.mark.slow
@pytest.mark.lasts(4)
@pytest.mark.parametrize(
    ("lora", "train"),
    [
        (LoraConfig(rank=4), TrainConfig(steps=2, save_every_n_steps=1, preview_every_n_steps=0, eval_items=1)),
        pytest.param(
            LoraConfig(kind="LoKr", rank=4, rank_dropout=0.5),
            TrainConfig(
                steps=2,
                save_every_n_steps=1,
                preview_every_n_steps=0,
                eval_items=1,
                optimizer="adafactor",
                checkpointing_policy="matmul_without_batch",
            ),
        ),
    ],
    ids=["the usual run", "another kind, optimizer and policy"],
)
def test_a_run_imports_neither_peft_nor_torchs_compiler(tmp_path: Path, lora: LoraConfig, train: TrainConfig) -> None:
    """By launch.py, in an isolated Python in another folder with no stdin, as a worker may be started."""
    run = make_run(tmp_path, lora=lora, train=train)
    words = [str(ROOT / "wan_core" / "launch.py"), "train", str(run.directory), "--roots", str(run.roots_file)]
    done = subprocess.run(
        [sys.executable, "-I", "-X", "utf8", "-c", TRAIN, json.dumps(UNNEEDED), *words],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        cwd="/",
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    assert json.loads(done.stderr.splitlines()[-1]) == [0, []], done.stderr[-2000:]
    assert (read_status(run.directory).state, read_status(run.directory).step) == ("done", 2)
