"""A base for the learning bench that would take days on a CPU: `python benchmarks/learning/gpu_bases.py`, on a GPU.

It is a text-to-video model with the layers of the 1.3B (30) at a small width: does the bench rank recipes as before?

    python benchmarks/learning/gpu_bases.py --texts TEXTS --out deep.safetensors --seconds 240

Training stops after --seconds; the rate follows the time. TEXTS: features of the 96 captions and the empty one, as
`--write-texts TREE` writes them with ComfyUI's text encoder.
"""

from __future__ import annotations

import argparse
import multiprocessing
import random
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / name) for name in ("", "benchmarks", "scripts", "tests", "tests/tiny")]

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from shapeworld.draw import Scene
from shapeworld.learning import models_folder
from shapeworld.scenes import CAPTIONS, all_words, captioned_scene, wide_scene
from shapeworld.training import transformer as wan
from shapeworld.training.clips import as_video
from shapeworld.training.texts import encode_texts
from shapeworld.wan_vae import TrainableVae
from torch import Tensor

from wan_core.flow import add_noise, shift_sigma, velocity_loss, velocity_target
from wan_core.model.transformer import WanTransformer

DEEP = wan.TransformerJob(width=128, ffn_dim=256, layers=30, steps=0, batch=96, seed=41)
EMPTY = len(CAPTIONS)
SHIFT, WARMUP = 3.0, 100
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
"""the CPU only shows that it runs"""


def main(arguments: list[str]) -> int:
    asked = options().parse_args(arguments)
    if asked.write_texts:
        rows = encode_texts(asked.write_texts, [*CAPTIONS, ""])
        save_file({f"{number:03d}": value.bfloat16() for number, value in enumerate(rows)}, asked.texts)
        return 0
    torch.backends.cuda.matmul.allow_tf32 = True
    texts = wan.compact_texts([value.float() for _, value in sorted(load_file(asked.texts).items())])
    texts = wan.CompactText(texts.rows.to(DEVICE), texts.bias.to(DEVICE))
    model, data = wan.new_transformer(DEEP), drawn_data(Draw(asked.processes), asked.clips)
    wan.read_compact(model)
    model.to(DEVICE)
    trained = train(model, *data, texts, asked.batch, asked.rate, asked.seconds)
    weights = {name: value.detach().bfloat16().cpu().contiguous() for name, value in trained.state_dict().items()}
    save_file(weights, asked.out)
    return 0


def options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--texts", type=Path, default=ROOT / "demo_output" / "base_texts.safetensors")
    parser.add_argument("--write-texts", type=Path, metavar="TREE", help="write TEXTS, train nothing")
    parser.add_argument("--out", type=Path, default=ROOT / "demo_output" / "base.safetensors")
    parser.add_argument("--clips", type=int, default=48, help="for each of the 96 captions")
    parser.add_argument("--batch", type=int, default=96)
    parser.add_argument("--rate", type=float, default=1e-3)
    parser.add_argument("--seconds", type=float, default=240)
    parser.add_argument("--processes", type=int, default=8, help="that draw clips")
    return parser


class Draw:
    """Draws scenes in several processes and encodes them on the GPU."""

    def __init__(self, processes: int) -> None:
        self._processes = processes
        self._vae = TrainableVae(16)
        weights = load_file(models_folder() / "wan_demo_vae.safetensors")
        self._vae.load_state_dict({name: value.float() for name, value in weights.items()})
        self._vae.requires_grad_(False)

    @torch.no_grad()
    def __call__(self, scenes: Sequence[Scene]) -> Tensor:
        """Latents (N, 16, F, 8, 8) float32 on the GPU."""
        parts = [scenes[first : first + 64] for first in range(0, len(scenes), 64)]
        with multiprocessing.get_context("spawn").Pool(self._processes) as pool:
            clips = pool.map(as_bytes, parts, chunksize=1)
        self._vae.to(DEVICE)
        encoded = [self._vae.encode(torch.from_numpy(some).to(DEVICE).float() / 127.5 - 1) for some in clips]
        return torch.cat(encoded).float()


def as_bytes(scenes: Sequence[Scene]) -> np.ndarray:
    """(N, 3, T, 64, 64) uint8, an array: tensors would go through shared memory."""
    torch.set_num_threads(1)
    return ((as_video(scenes) + 1) * 127.5).round().byte().numpy()


def drawn_data(draw: Draw, seeds: int) -> tuple[Tensor, Tensor]:
    """Returns latents and the numbers of their captions: every caption `seeds` times, then a quarter wide scenes."""
    words = all_words()
    pairs = [(number, seed) for seed in range(seeds) for number in range(len(words))]
    scenes = [captioned_scene(words[number], seed, 9) for number, seed in pairs]
    rng = random.Random(7000)
    wide = [wide_scene(rng, 9) for _ in range(len(scenes) // 3)]
    said = torch.tensor([number for number, _ in pairs] + [EMPTY] * len(wide))
    return draw([*scenes, *wide]), said.to(DEVICE)


def train(
    model: WanTransformer,
    latents: Tensor,
    words: Tensor,
    texts: wan.CompactText,
    batch: int,
    rate: float,
    seconds: float,
) -> WanTransformer:
    """Returns the mean of the last weights. The step is a CUDA graph where that works."""
    averaged = WanTransformer(model.shape).to(DEVICE).requires_grad_(False)
    averaged.load_state_dict(model.state_dict())
    lr = torch.tensor(0.0, device=DEVICE)
    on_gpu = DEVICE.type == "cuda"
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=lr, betas=(0.9, 0.98), weight_decay=0.0, fused=True, capturable=on_gpu
    )
    loss_kept = torch.zeros((), device=DEVICE)

    def step() -> None:
        chosen = torch.randint(len(latents), (batch,), device=DEVICE)
        clean = latents[chosen]
        empty = torch.rand(batch, device=DEVICE) < DEEP.caption_dropout
        text = texts[torch.where(empty, EMPTY, words[chosen])]
        sigma = shift_sigma(torch.rand(batch, device=DEVICE), SHIFT)
        noise = torch.randn_like(clean)
        guess = wan.predict(model, add_noise(clean, noise, sigma), sigma, text)
        loss = velocity_loss(guess, velocity_target(clean, noise))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
        loss_kept.lerp_(loss.detach(), 0.02)

    fast_step = captured(step)
    kept, now = list(averaged.parameters()), list(model.parameters())
    began, done = time.monotonic(), 0
    while (share := (time.monotonic() - began) / seconds) < 1:
        lr.fill_(rate * min(1.0, (done + 1) / WARMUP, (1 - share) / 0.6))
        fast_step()
        done += 1
        with torch.no_grad():
            if done % 10 == 0:
                torch._foreach_lerp_(kept, now, 1 / min(done // 10, 20))
        if on_gpu and done % 50 == 0:
            torch.cuda.synchronize()  # the rate follows the time of the GPU
        if done % 500 == 0:
            print(f"step {done}, {time.monotonic() - began:.0f} s: {float(loss_kept):.4f}", flush=True)
    print(f"{done} steps of {batch} clips in {seconds:.0f} s", flush=True)
    return averaged


def captured(step: Callable[[], None]) -> Callable[[], None]:
    """The step as a CUDA graph; the step itself, with the reason printed, where it cannot be captured."""
    if DEVICE.type == "cpu":
        return step
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            step()
    except RuntimeError as problem:
        print(f"not captured: {problem}", flush=True)
        return step
    return graph.replay


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
