"""Speed of loading batches from the cache against training steps of the tiny model; and of opening a large cache.

    OMP_NUM_THREADS=1 python benchmarks/loader.py --rounds 5
    OMP_NUM_THREADS=1 python benchmarks/loader.py --open 10000

The two sides alternate in short rounds in one process and are compared in CPU seconds of the thread that trains, so a
busy machine slows both alike. "cold" reads every entry from the file again (the system's cache stays warm), "warm" has
them in memory. Writes one result file to benchmarks/results/.
"""

from __future__ import annotations

import argparse
import copy
import hashlib
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

from random_run import write_random_weights
from result_files import RESULTS, hardware, write_result

from wan_core.cache import Batches, BatchReader, CacheItem, CacheSet, LatentCache, stack_texts
from wan_core.control import SignalControl
from wan_core.files import Roots
from wan_core.load import ModelPlan, materialize
from wan_core.lora import LoraConfig
from wan_core.measure import SHAPES
from wan_core.train import TrainConfig, Trainer

CLIPS, ROWS = 32, 64
STEPS, LOADS = 6, 60
ENTRIES = {"latent": torch.zeros(16, 1, 2, 2), "text": torch.zeros(1, 4096)}


def key(kind: str, number: int) -> str:
    return hashlib.sha256(f"{kind}/{number}".encode()).hexdigest()


def make_set(items: tuple[CacheItem, ...]) -> CacheSet:
    return CacheSet(
        items=items, empty_text_key=key("text", 0), negative_text_key=key("text", 0), latent_space="wan2.1", fps=16.0,
        vae_identity="random", text_identity="random",
    )  # fmt: skip


def make_cache(folder: Path, width: int, height: int, frames: int) -> tuple[LatentCache, CacheSet]:
    """Writes random latents of that size, and texts of 64 tokens."""
    cache, generator = LatentCache(folder), torch.Generator().manual_seed(0)
    items = tuple(
        CacheItem(
            latent_key=key("latent", n), text_key=key("text", n), num_frames=frames, height=height, width=width
        )
        for n in range(CLIPS)
    )  # fmt: skip
    for item in items:
        shape = (16, (frames - 1) // 4 + 1, height // 8, width // 8)
        cache.write_latent(item.latent_key, torch.randn(shape, generator=generator))
        cache.write_text(item.text_key, torch.randn(ROWS, 4096, generator=generator))
    return cache, make_set(items)


def cpu_s(work: Callable[[], object]) -> tuple[float, float]:
    """(CPU seconds of the process, wall seconds) of `work`."""
    cpu, wall = time.process_time(), time.monotonic()
    work()
    return time.process_time() - cpu, time.monotonic() - wall


def measure(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    width, height, frames = (int(n) for n in options.size.split("x"))
    cache, cache_set = make_cache(folder / "cache", width, height, frames)
    write_random_weights(folder / "base.safetensors", SHAPES["tiny"])
    plan = ModelPlan(base_file="diffusion_models:base.safetensors")
    model = materialize(plan, Roots({"diffusion_models": (str(folder),)}), LoraConfig(rank=16), seed=0)
    config = TrainConfig(steps=1_000_000, discrete_flow_shift=3.0, prefetch_batches=0, gradient_checkpointing=False)
    sides = {name: Batches(cache_set, cache, seed=0, batch_size=1, memory_bytes=size) for name, size in
             (("cold", 0), ("warm", 4 << 30))}  # fmt: skip
    trainer = Trainer(
        model, sides["warm"], stack_texts([cache.read_text(cache_set.empty_text_key)])[0], config,
        emit=lambda _event: None, control=SignalControl(),
    )  # fmt: skip
    # The batch is in memory, so that only the step is timed.
    ready = [trainer._draws.at(step) for step in range(CLIPS)]
    trainer._reader.at = lambda step: ready[step % CLIPS]  # type: ignore[method-assign]
    at = 0
    rows: list[dict[str, float]] = []
    trainer.run(2, lambda _step: None)
    for _ in range(options.rounds):
        row: dict[str, float] = {}
        cpu, _wall = cpu_s(lambda: trainer.run(trainer.step + STEPS, lambda _step: None))
        row["step"] = cpu / STEPS
        for name, batches in sides.items():
            first = at
            cpu, _wall = cpu_s(lambda b=batches, f=first: [b.at(step) for step in range(f, f + LOADS)])
            row[name] = cpu / LOADS
        at += LOADS
        rows.append(row)
    waits = waiting(trainer, sides["cold"], options.rounds)
    return {
        "hardware": hardware(), "torch": torch.__version__, "size": options.size, "rounds": rows,
        "step_ms": 1000 * statistics.median(r["step"] for r in rows),
        **{f"{name}_ms": 1000 * statistics.median(r[name] for r in rows) for name in sides},
        **{f"{name}_ratio": statistics.median(r["step"] / r[name] for r in rows) for name in sides},
        "waited_share": waits,
    }  # fmt: skip


def waiting(trainer: Trainer, cold: Batches, rounds: int) -> float:
    """Returns the share of training's wall time spent waiting for batches that are read ahead from files."""
    draws = copy.copy(trainer._draws)
    draws._batches = cold
    reader = BatchReader(draws, ahead=2)
    reader.start()
    waited = 0.0

    def at(step: int) -> Any:
        nonlocal waited
        began = time.monotonic()
        batch = reader.at(step)
        waited += time.monotonic() - began
        return batch

    trainer._reader.at = at  # type: ignore[method-assign]
    trainer.run(trainer.step + 2, lambda _step: None)
    waited = 0.0
    _cpu, wall = cpu_s(lambda: trainer.run(trainer.step + STEPS * rounds, lambda _step: None))
    reader.stop()
    return waited / wall


def measure_opening(count: int, folder: Path, rounds: int) -> dict[str, Any]:
    """Returns CPU seconds to the first batch of a cache of `count` clips with different captions."""
    cache = LatentCache(folder)
    write_entries(cache, count)
    items = tuple(
        CacheItem(
            latent_key=key("latent", n), text_key=key("text", n), num_frames=1, height=16, width=16,
            name=f"clip_{n:06d}.mp4", caption=f"clip number {n}: a cat walks over a table in the evening sun " * 3,
        )
        for n in range(count)
    )  # fmt: skip
    fingerprint = cache.write_set(make_set(items))
    del items
    rows: list[dict[str, float]] = []
    for _ in range(rounds):
        row: dict[str, float] = {}
        found: dict[str, Any] = {}
        opened = LatentCache(folder)
        row["has"] = cpu_s(lambda o=opened: [o.has(kind, key(kind, n)) for kind in ENTRIES for n in range(count)])[0]
        row["set"] = cpu_s(lambda o=opened, f=found: f.update(set=o.read_set(fingerprint)))[0]
        row["order"] = cpu_s(lambda o=opened, f=found: f.update(b=Batches(f["set"], o, seed=0, batch_size=1)))[0]
        row["first batch"] = cpu_s(lambda f=found: f["b"].at(0))[0]
        row["all"] = sum(row.values())
        rows.append(row)
    middle = {name: statistics.median(row[name] for row in rows) for name in rows[0]}
    size = (folder / "sets" / f"{fingerprint}.json").stat().st_size
    return {"hardware": hardware(), "clips": count, "rounds": rows, "seconds": middle, "set_bytes": size}


def write_entries(cache: LatentCache, count: int) -> None:
    """Writes tiny entries without fsync."""
    from wan_core.cache.entry import pack_entry

    for kind, value in ENTRIES.items():
        for n in range(count):
            path = cache.entry_path(kind, key(kind, n))
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(pack_entry({kind: value}, key=key(kind, n)))


def report(result: dict[str, Any], opening: dict[str, Any] | None) -> str:
    lines = [
        "# Batches from the cache", "",
        f"{result['hardware']}, one thread, torch {result['torch']}; the tiny model of train_step.py, clips of "
        f"{result['size']}, texts of {ROWS} tokens, batch 1, {len(result['rounds'])} rounds, medians of CPU ms; "
        "the last column is the median of the paired ratios.", "",
        "| what | CPU ms | batches per CPU second | a step takes so many batches |", "| --- | --- | --- | --- |",
        f"| one training step | {result['step_ms']:.1f} | | |",
    ]  # fmt: skip
    for name, words in (("cold", "a batch read from files and checked"), ("warm", "a batch from memory")):
        ms = result[f"{name}_ms"]
        lines.append(f"| {words} | {ms:.2f} | {1000 / ms:,.0f} | {result[f'{name}_ratio']:.1f} |")
    lines += [
        "",
        f"Read ahead from files, training waited {100 * result['waited_share']:.1f}% of its time for a batch.",
    ]
    if opening:
        lines += ["", f"## Opening {opening['clips']:,} clips", "", "| part | CPU seconds |", "| --- | --- |"]
        lines += [f"| {name} | {seconds:.2f} |" for name, seconds in opening["seconds"].items()]
        lines += ["", f"The set's file takes {opening['set_bytes'] / 1e6:.0f} MB."]
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--size", default="256x256x17", help="width x height x frames")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--open", type=int, default=10_000, help="clips of the large cache; 0 = leave it out")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "a").mkdir()
        result = measure(options, Path(folder) / "a")
        opening = measure_opening(options.open, Path(folder) / "b", options.rounds) if options.open else None
    write_result("loader", {"loader": result, "opening": opening}, report(result, opening), out=options.out)
    return 0


if __name__ == "__main__":
    assert os.environ.get("OMP_NUM_THREADS") == "1", "set OMP_NUM_THREADS=1"
    sys.exit(main())
