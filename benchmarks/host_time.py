"""The time that the host takes for a block of a training step: Python, torch's dispatcher, autograd.

    python benchmarks/host_time.py [--root FOLDER] [--chunk 32] [--plain] [--steps 20] [--profile tottime]

Eight narrow blocks on one CPU thread, where arithmetic is nearly nothing, with all that a GPU's step has: LoRAs as one
node, every block checkpointed, and fused functions (compiled for the CPU). Milliseconds of the thread, for a block and
step, the least of several steps. `--root` measures another checkout of this project; compare in turns, on a machine
that does nothing else. 160 tokens: chunks of 32 are five, as 1.3B at 480x480x81 has with 4,096.
"""

from __future__ import annotations

import argparse
import contextlib
import cProfile
import pstats
import sys
import time
from pathlib import Path

BLOCKS, TOKENS = 8, (5, 8, 16)


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--root", type=Path, default=Path(__file__).resolve().parents[1])
    asked.add_argument("--chunk", type=int, default=32, help="tokens of a chunk, of 160; 0: all")
    asked.add_argument("--plain", action="store_true", help="without fused functions")
    asked.add_argument("--steps", type=int, default=20)
    asked.add_argument(
        "--profile", default="", metavar="ORDER", help="print a profile of one step: tottime, cumulative"
    )
    options = asked.parse_args()
    sys.path.insert(0, str(options.root))

    import torch

    from wan_core.load import import_libraries

    torch.set_num_threads(1)
    import_libraries()
    from tests.support.fused import all_of, used_on
    from wan_core.lora import LoraConfig, inject_lora, one_pass
    from wan_core.model import WanShape, WanTransformer
    from wan_core.precision import PrecisionPolicy

    one_pass._SEPARATE = frozenset()  # as on a GPU
    shape = WanShape(dim=64, ffn_dim=128, num_heads=2, num_layers=BLOCKS)
    model = WanTransformer(shape, PrecisionPolicy().numerics(torch.bfloat16)).to(torch.bfloat16)
    for p in model.parameters():
        p.requires_grad_(False)
        p.data.normal_(0, 0.02)
    model.read_texts(512)
    inject_lora(model, LoraConfig(rank=4), seed=0)
    model.checkpoint_blocks = True
    model.train()
    model.run_in_chunks(options.chunk)
    draw = torch.Generator().manual_seed(0)
    clip, target = (torch.randn(1, 16, *TOKENS, generator=draw) for _ in range(2))
    text = torch.randn(1, 20, 4096, generator=draw).to(torch.bfloat16)

    def step() -> None:
        found = model(clip, torch.tensor([700.0]), text)
        torch.nn.functional.mse_loss(found.float(), target).backward()
        for p in model.parameters():
            p.grad = None

    cpu = torch.device("cpu")
    with contextlib.nullcontext() if options.plain else used_on(cpu, all_of(model)):
        for _ in range(3):
            step()
        taken: list[float] = []
        for _ in range(options.steps):
            began = time.thread_time()
            step()
            taken.append((time.thread_time() - began) / BLOCKS * 1e3)
        what = f"{'plain' if options.plain else 'fused'}, chunks of {options.chunk or 'all'} tokens"
        print(f"{what}: {min(taken):.1f} ms a block and step (median {sorted(taken)[len(taken) // 2]:.1f})")
        if options.profile:
            with cProfile.Profile() as profile:
                step()
            pstats.Stats(profile).sort_stats(options.profile).print_stats(60)


if __name__ == "__main__":
    main()
