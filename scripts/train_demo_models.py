"""Train the shipped tiny models from scratch."""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
import time
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.nn import functional

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from shapeworld.draw import render  # noqa: E402
from shapeworld.scenes import all_words, any_scene, captioned_scene  # noqa: E402
from shapeworld.wan_vae import TrainableVae  # noqa: E402

VAE_DIM = 16


def clips_at_random(rng: random.Random, count: int, frames: int, size: int) -> Tensor:
    """(count, 3, frames, size, size) in [-1, 1]"""
    clips = torch.stack([render(any_scene(rng, frames, size), size) for _ in range(count)])
    return (clips / 127.5 - 1).permute(0, 4, 1, 2, 3).contiguous()


def psnr(model: TrainableVae, clips: Tensor) -> float:
    with torch.no_grad():
        seen = torch.cat([model.decode(model.encode(one[None])).clamp(-1, 1) for one in clips])
    errors = ((seen - clips) / 2).square().flatten(1).mean(1)
    return float((-10 * errors.log10()).mean())


def captioned_clips(count: int, seed: int, frames: int = 9) -> Tensor:
    rng = random.Random(seed)
    clips = [render(captioned_scene(rng.choice(all_words()), rng.randrange(10**9), frames)) for _ in range(count)]
    return (torch.stack(clips) / 127.5 - 1).permute(0, 4, 1, 2, 3).contiguous()


def moments(latent: Tensor) -> Tensor:
    """How far each latent channel is from mean 0, std 1."""
    flat = latent.transpose(0, 1).flatten(1)
    return flat.mean(1).square().mean() + (flat.std(1) - 1).square().mean()


class ConvMuon(torch.optim.Optimizer):
    """Muon for convolutions: momentum, flattened to (out, in * kernel), replaced by the nearest orthogonal matrix.

    torch.optim.Muon takes matrices only. Step size as there with match_rms_adamw. On this VAE 250 steps of it were
    worth more than 1,250 of AdamW.
    """

    def __init__(self, params: list[torch.nn.Parameter], lr: float, momentum: float = 0.9) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum})

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for weight in group["params"]:
                state = self.state.setdefault(weight, {"mean": torch.zeros_like(weight)})
                state["mean"].lerp_(weight.grad, 1 - group["momentum"])
                update = weight.grad.lerp(state["mean"], group["momentum"]).flatten(1)
                tall = update.shape[0] > update.shape[1]
                update = update.T if tall else update
                update = update / (update.norm() + 1e-7)
                for _ in range(5):  # Newton-Schulz with the usual quintic
                    gram = update @ update.T
                    update = 3.4445 * update + (2.0315 * gram @ gram - 4.775 * gram) @ update
                update = update.T if tall else update
                weight.add_(update.reshape(weight.shape), alpha=-group["lr"] * 0.2 * max(update.shape) ** 0.5)


@torch.no_grad()
def start_as_a_copy(model: TrainableVae) -> None:
    """Initial weights: residual branches nearly silent, and every change of size first of all hands its input on."""
    for name, value in model.named_parameters():
        if name.endswith("bias"):
            value.zero_()
        elif value.ndim >= 4 and "gamma" not in name:
            value.normal_(0, value[0].numel() ** -0.5)
            if name.endswith(("residual.6.weight", "proj.weight")):
                value.mul_(0.1)
            if "resample" in name or "time_conv" in name or "shortcut" in name:
                value.mul_(0.3)
                halves = value.chunk(2) if "time_conv" in name and "decoder" in name else (value,)
                for half in halves:
                    centre = [size // 2 for size in half.shape[2:]]
                    if half.ndim == 5 and half.shape[2] == 3:
                        centre[0] = 2
                    for channel in range(min(half.shape[:2])):
                        half[(channel, channel, *centre)] += 1


def train_vae(out: Path, asked: argparse.Namespace) -> None:
    torch.manual_seed(1)
    rng = random.Random(1)
    model = TrainableVae(VAE_DIM)
    start_as_a_copy(model)
    convs = [p for p in model.parameters() if p.ndim >= 4 and p.shape[1] > 1]
    known = {id(p) for p in convs}
    rest = [p for p in model.parameters() if id(p) not in known]
    optimizers = [ConvMuon(convs, asked.lr), torch.optim.AdamW(rest, lr=asked.lr, betas=(0.9, 0.95), weight_decay=0.0)]
    held_out = captioned_clips(16, seed=999)
    began, losses = time.monotonic(), []
    small, full = asked.small_steps, asked.full_steps
    for step in range(small + full):
        crop = step < small
        rate = asked.lr * min(1, (step + 1) / 50) * (0.5 + 0.5 * math.cos(math.pi * step / (small + full))) + 1e-5
        clips = clips_at_random(rng, 5, 9, 32) if crop else clips_at_random(rng, 3, 9, 64)
        with torch.autocast("cpu", torch.bfloat16):
            latent = model.encode(clips)
            seen = model.decode(latent.float() + asked.noise * torch.randn(latent.shape))
        error = seen.float() - clips
        loss = error.abs().mean() + error.square().mean() + 0.02 * moments(latent.float())
        model.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = rate
            optimizer.step()
        losses.append(float(loss.detach()))
        if step % 250 == 249 or step == small + full - 1:
            line = {
                "step": step + 1,
                "loss": sum(losses[-250:]) / 250,
                "psnr": psnr(model, held_out),
                "std": float(latent.detach().float().std()),
                "seconds": round(time.monotonic() - began),
            }
            print(json.dumps(line), flush=True)
            with (out / "vae.jsonl").open("a") as lines:
                lines.write(json.dumps(line) + "\n")
            save_file({k: v.contiguous() for k, v in model.state_dict().items()}, out / "vae_fp32.safetensors")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--small-steps", type=int, default=5500)
    parser.add_argument("--full-steps", type=int, default=900)
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--noise", type=float, default=0.1)
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(2)
    train_vae(asked.out, asked)
