"""Train a LoRA on a tiny Wan model with diffusers, PEFT and a plain PyTorch loop, none of it ours.

    python tests/tiny/peer_train.py JOB.safetensors OUT.json

JOB holds the base as `w.<original weight name>`, the adapters' start as `lora.<original name>` and each micro-batch as
`<run>.<number>.{latent,noise,sigma,text}`; in its metadata the shape, the settings of each run, and how many rows a
text has, the last one standing for all that are missing. OUT gets the loss of every step by run.

A process of its own: the imports disturb, and are slow.
"""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, inject_adapter_in_model
from safetensors import safe_open
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).parent))
from peer_forward import diffusers, original_name, weights_for


def adapted(job: dict[str, Tensor], shape: dict[str, Any], rank: int) -> tuple[nn.Module, list[nn.Parameter]]:
    """The model of diffusers with PEFT's adapters, which begin as the job says."""
    build, _, _ = diffusers()
    model = build(shape)
    model.load_state_dict(weights_for(model, job, original_name), strict=True)
    model.requires_grad_(False)
    targets = r"blocks\.\d+\.(attn[12]\.(to_q|to_k|to_v|to_out\.0)|ffn\.net\.(0\.proj|2))"
    inject_adapter_in_model(LoraConfig(r=rank, lora_alpha=rank, target_modules=targets), model)
    trained = []
    for name, parameter in model.named_parameters():
        if ".lora_" in name:
            module, side = name.split(".lora_")
            ours = f"lora.{original_name(module + '.weight').removesuffix('.weight')}.lora_{side[0]}.weight"
            parameter.data.copy_(job.pop(ours))
            trained.append(parameter)
    assert not [name for name in job if name.startswith("lora.")]
    return model.train(), trained


def train(
    run: str, job: dict[str, Tensor], shape: dict[str, Any], settings: dict[str, Any], text_rows: int
) -> list[float]:
    from diffusers.optimization import get_scheduler

    model, trained = adapted(dict(job), shape, settings["rank"])
    module, _, name = settings["optimizer"].rpartition(".")
    optimizer = getattr(importlib.import_module(module), name)(trained, **settings["arguments"])
    steps, micro = settings["steps"], settings["accumulate"]
    schedule = get_scheduler("cosine", optimizer, num_warmup_steps=0, num_training_steps=steps)
    losses = []
    for step in range(steps):
        total = 0.0
        for number in range(step * micro, (step + 1) * micro):
            x, noise, sigma, text = (job[f"{run}.{number}.{part}"] for part in ("latent", "noise", "sigma", "text"))
            text = torch.cat([text, text[:, -1:].expand(-1, text_rows - text.shape[1], -1)], dim=1)
            level = sigma[:, None, None, None, None]
            answer = model((1 - level) * x + level * noise, 1000 * sigma, text, return_dict=False)[0]
            if delta := settings["huber_delta"]:
                loss = nn.functional.huber_loss(answer, noise - x, delta=delta)
            else:
                loss = nn.functional.mse_loss(answer, noise - x)
            (loss / micro).backward()
            total += loss.item() / micro
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        losses.append(total)
    return losses


def main(job_file: str, out: str) -> None:
    torch.set_num_threads(1)
    with safe_open(job_file, "pt") as file:
        told = file.metadata()
        job = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    shape, every = json.loads(told["shape"]), json.loads(told["settings"])
    text_rows = int(told["text_rows"])
    losses = {name: train(name, job, shape, settings, text_rows) for name, settings in every.items()}
    Path(out).write_text(json.dumps(losses), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
