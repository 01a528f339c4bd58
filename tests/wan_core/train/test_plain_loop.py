"""Our loop beside a plain one of diffusers, PEFT and PyTorch: the same data and noise, and the same loss every step."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from tests.support.forked import RunScript
from tests.support.sessions import of, train_here
from tests.support.tiny_run import TINY, make_run, random_weights
from wan_core.events import StepDone
from wan_core.load import materialize
from wan_core.lora import LoraWeights
from wan_core.model import TEXT_LENGTH
from wan_core.packages import version_of
from wan_core.train import NoisedBatch, TrainConfig, true_velocity

pytestmark = pytest.mark.lasts(12)

PEER = Path(__file__).parents[2] / "tiny" / "peer_train.py"
ADAM = {"betas": [0.9, 0.999], "eps": 1e-8}
PLAIN = {
    "adamw": ("torch.optim.AdamW", 1e-3, ADAM),
    "adafactor": ("torch.optim.Adafactor", 1e-3, {}),
    "lion": ("pytorch_optimizer.Lion", 1e-4, {}),
    "prodigy": ("pytorch_optimizer.Prodigy", 1.0, ADAM),
    "huber": ("torch.optim.AdamW", 1e-3, ADAM),
}
LONG = 100
OTHERWISE: dict[str, dict[str, Any]] = {
    "huber": {
        "optimizer": "adamw",
        "loss_type": "huber",
        "huber_delta": 0.5,
        "min_timestep": 200.0,
        "max_timestep": 700.0,
    }
}
"""what the run of that name is told besides"""


@pytest.mark.parametrize("steps", [4, pytest.param(LONG, marks=[pytest.mark.soak, pytest.mark.lasts(200)])])
def test_every_loss_is_that_of_a_plain_loop(peer_script: RunScript, tmp_path: Path, steps: int) -> None:
    """Over a hundred steps with texts of 512 rows. The gradient of a row that pads a text is a sum of some 500 equal
    numbers, which each program rounds in its way, and Prodigy makes 3e-4 of that between two orders of summation of
    ours alone."""
    if not version_of("pytorch-optimizer"):
        pytest.skip("pytorch-optimizer is not installed")
    job: dict[str, Tensor] = {f"w.{name}": value for name, value in random_weights(TINY).items()}
    ours: dict[str, list[float]] = {}
    for name, (_, rate, _) in PLAIN.items():
        seen: list[NoisedBatch] = []
        ours[name] = losses_of_a_run(tmp_path / name, name, rate, steps, seen, job)
        for number, batch in enumerate(seen):
            parts = {"latent": batch.latent, "noise": batch.noise, "sigma": batch.sigma}
            parts["text"] = batch.text
            job |= {f"{name}.{number}.{part}": value for part, value in parts.items()}
        assert all(200 <= 1000 * float(batch.sigma.min()) <= 700 for batch in seen) is (name == "huber")
    settings = {
        name: {
            "optimizer": path,
            "arguments": {"lr": rate, "weight_decay": 0.01, **more},
            "steps": steps,
            "accumulate": 2,
            "rank": 4,
            "huber_delta": OTHERWISE.get(name, {}).get("huber_delta", 0),
        }
        for name, (path, rate, more) in PLAIN.items()
    }
    told = {"shape": json.dumps(asdict(TINY)), "settings": json.dumps(settings), "text_rows": str(TEXT_LENGTH)}
    save_file({name: value.contiguous() for name, value in job.items()}, tmp_path / "job.safetensors", told)
    done = peer_script(PEER, str(tmp_path / "job.safetensors"), str(tmp_path / "out.json"))
    assert done.returncode == 0, done.stderr[-3000:]
    theirs = json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))
    assert theirs.keys() == ours.keys()
    for name, losses in ours.items():
        assert len(losses) == steps
        furthest = max(abs(a - b) for a, b in zip(losses, theirs[name], strict=True))
        assert furthest < 1e-4, f"{name}: {furthest}"
    ends = torch.tensor([losses[-1] for losses in ours.values()])
    assert len(ends.unique()) == len(PLAIN), "each optimizer went its own way"


def losses_of_a_run(
    root: Path, name: str, rate: float, steps: int, seen: list[NoisedBatch], job: dict[str, Tensor]
) -> list[float]:
    """Trains the tiny model; `seen` gets every micro-batch, and `job` the adapters it began with."""
    train = TrainConfig(
        steps=steps,
        learning_rate=rate,
        gradient_accumulation_steps=2,
        preview_every_n_steps=0,
        **{"save_every_n_steps": 1000, "eval_items": 0, **OTHERWISE.get(name, {"optimizer": name})},
    )
    run = make_run(root, train=train, text_rows=TEXT_LENGTH if steps == LONG else 0)
    model = materialize(run.config.model, run.roots, run.config.lora, seed=train.seed)
    job |= {f"lora.{key}": value for key, value in LoraWeights.of(model).tensors.items()}

    def target(batch: NoisedBatch) -> Tensor:
        seen.append(batch)
        return true_velocity(batch)

    return [event.loss for event in of(train_here(run, target=target), StepDone)]
