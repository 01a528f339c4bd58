"""Bases for the learning bench that would take days on a CPU: `python benchmarks/learning/gpu_bases.py KIND`, on a GPU.

deep  a text-to-video model with the layers of the 1.3B (30) at a small width: does the bench rank recipes as before?
edit  the demo model, trained on until it reads a source video and a reference image as Bernini-R does (edits.py)

    python benchmarks/learning/gpu_bases.py deep --texts TEXTS --out deep.safetensors --seconds 240

Training stops after --seconds; the rate follows the time. TEXTS: features of the 96 captions, the empty one and
"moving", as `--write-texts TREE` writes them with ComfyUI's text encoder.
"""

from __future__ import annotations

import argparse
import multiprocessing
import random
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / name) for name in ("", "benchmarks", "scripts", "tests", "tests/tiny")]

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from shapeworld.draw import Scene
from shapeworld.edits import CAPTION, DEMO_SHAPE, VAE_DIM, still_of
from shapeworld.learning import models_folder
from shapeworld.scenes import CAPTIONS, all_words, captioned_scene, wide_scene
from shapeworld.training import transformer as wan
from shapeworld.training.clips import as_video
from shapeworld.training.texts import encode_texts
from shapeworld.wan_vae import TrainableVae
from torch import Tensor

from wan_core.flow import add_noise, shift_sigma, velocity_loss, velocity_target
from wan_core.model import Conditioning
from wan_core.model.transformer import WanTransformer

DEEP = wan.TransformerJob(width=128, ffn_dim=256, layers=30, steps=0, batch=96, seed=41)
EMPTY = len(CAPTIONS)
SHIFT, WARMUP = 3.0, 100
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
"""the CPU only shows that it runs"""

Batch = tuple[Tensor, Tensor, tuple[Tensor, ...]]
"""clean latents, the numbers of their captions, context streams"""


def main(arguments: list[str]) -> int:
    asked = options().parse_args(arguments)
    if asked.write_texts:
        rows = encode_texts(asked.write_texts, [*CAPTIONS, "", CAPTION])
        save_file({f"{number:03d}": value.bfloat16() for number, value in enumerate(rows)}, asked.texts)
        return 0
    torch.backends.cuda.matmul.allow_tf32 = True
    texts = wan.compact_texts([value.float() for _, value in sorted(load_file(asked.texts).items())])
    texts = wan.CompactText(texts.rows.to(DEVICE), texts.bias.to(DEVICE))
    draw = Draw(asked.processes)
    if asked.kind == "deep":
        model, batches = wan.new_transformer(DEEP), [deep_data(draw, asked.clips)]
    else:
        model, batches = demo_model(asked.start), edit_data(draw, asked.clips)
    wan.read_compact(model)
    model.to(DEVICE)
    trained = train(model, batches, texts, asked.batch, asked.rate, asked.seconds)
    weights = {name: value.detach().bfloat16().cpu().contiguous() for name, value in trained.state_dict().items()}
    save_file(weights, asked.out)
    return 0


def options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=("deep", "edit"))
    parser.add_argument("--texts", type=Path, default=ROOT / "demo_output" / "base_texts.safetensors")
    parser.add_argument("--write-texts", type=Path, metavar="TREE", help="write TEXTS, train nothing")
    parser.add_argument("--out", type=Path, default=ROOT / "demo_output" / "base.safetensors")
    parser.add_argument("--start", type=Path, default=models_folder() / "wan_demo_t2v.safetensors", help="for edit")
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
        self._vae = TrainableVae(VAE_DIM)
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


def deep_data(draw: Draw, seeds: int) -> Batch:
    words = all_words()
    pairs = [(number, seed) for seed in range(seeds) for number in range(len(words))]
    scenes = [captioned_scene(words[number], seed, 9) for number, seed in pairs]
    rng = random.Random(7000)
    wide = [wide_scene(rng, 9) for _ in range(len(scenes) // 3)]
    said = torch.tensor([number for number, _ in pairs] + [EMPTY] * len(wide))
    return draw([*scenes, *wide]), said.to(DEVICE), ()


def edit_data(draw: Draw, seeds: int) -> list[Batch]:
    """Two tasks: a source in the colour of the reference, and what a caption says in the outline of the reference.

    Any caption goes with the first, and the outline that the second names is never the reference's: so the model reads
    both from the pictures.
    """
    rng, words, count = random.Random("edits of the base"), all_words(), 96 * seeds
    sources = [wide_scene(rng) for _ in range(count)]
    coloured = [still_of(wide_scene(rng), rng) for _ in range(count)]
    recoloured = [replace(source, colour=other.colour) for source, other in zip(sources, coloured, strict=True)]
    anything = [rng.choice((EMPTY, EMPTY + 1, rng.randrange(len(words)))) for _ in range(count)]
    said = [rng.randrange(len(words)) for _ in range(count)]
    called = [captioned_scene(words[number], 50_000 + place) for place, number in enumerate(said)]
    outlined = [still_of(wide_scene(rng), rng) for _ in called]
    wanted = [
        replace(scene, outline=other.outline, turn=other.turn) for scene, other in zip(called, outlined, strict=True)
    ]
    return [
        (draw(recoloured), torch.tensor(anything).to(DEVICE), (draw(sources), draw(coloured))),
        (draw(wanted), torch.tensor(said).to(DEVICE), (draw(outlined),)),
    ]


def demo_model(file: Path) -> WanTransformer:
    model = WanTransformer(DEMO_SHAPE)
    weights = load_file(file)
    model.load_state_dict({name: value.float() for name, value in weights.items()})
    return model


def train(
    model: WanTransformer, tasks: Sequence[Batch], texts: wan.CompactText, batch: int, rate: float, seconds: float
) -> WanTransformer:
    """Returns the mean of the last weights. One step of each task in turn, as CUDA graphs where that works."""
    averaged = WanTransformer(model.shape).to(DEVICE).requires_grad_(False)
    averaged.load_state_dict(model.state_dict())
    lr = torch.tensor(0.0, device=DEVICE)
    on_gpu = DEVICE.type == "cuda"
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=lr, betas=(0.9, 0.98), weight_decay=0.0, fused=True, capturable=on_gpu
    )
    loss_kept = [torch.zeros((), device=DEVICE) for _ in tasks]

    def step(number: int) -> None:
        clean_all, words, context_all = tasks[number]
        chosen = torch.randint(len(clean_all), (batch,), device=DEVICE)
        clean, context = clean_all[chosen], tuple(stream[chosen] for stream in context_all)
        empty = torch.rand(batch, device=DEVICE) < DEEP.caption_dropout
        text = texts[torch.where(empty, EMPTY, words[chosen])]
        sigma = shift_sigma(torch.rand(batch, device=DEVICE), SHIFT)
        noise = torch.randn_like(clean)
        for block in model.blocks:
            block.cross_attn.bias = text.bias
        given = Conditioning(context=context) if context else None
        guess = model(add_noise(clean, noise, sigma), 1000 * sigma, text.rows, given)
        loss = velocity_loss(guess, velocity_target(clean, noise))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
        loss_kept[number].lerp_(loss.detach(), 0.02)

    steps = [captured(lambda number=number: step(number)) for number in range(len(tasks))]
    kept, now = list(averaged.parameters()), list(model.parameters())
    began, done = time.monotonic(), 0
    while (share := (time.monotonic() - began) / seconds) < 1:
        lr.fill_(rate * min(1.0, (done + 1) / WARMUP, (1 - share) / 0.6))
        for one in steps:
            one()
        done += 1
        with torch.no_grad():
            if done % 10 == 0:
                torch._foreach_lerp_(kept, now, 1 / min(done // 10, 20))
        if on_gpu and done % 50 == 0:
            torch.cuda.synchronize()  # the rate follows the time of the GPU
        if done % 500 == 0:
            losses = ", ".join(f"{float(one):.4f}" for one in loss_kept)
            print(f"step {done}, {time.monotonic() - began:.0f} s: {losses}", flush=True)
    print(f"{done} steps of {batch} clips a task in {seconds:.0f} s", flush=True)
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
