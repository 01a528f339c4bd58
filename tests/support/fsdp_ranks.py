"""A block under FSDP2 mixed precision on several ranks; run as a script, each rank prints one JSON line.

    python tests/support/fsdp_ranks.py STORE WORLD_SIZE

The ranks are forked once everything is imported. POSIX only.

Per combination of FSDP casting inputs and ambient autocast: gradients with and without recompute, and the dtypes that
the linears saw. And what torch's checkpoint says around a block as Wan publishes it.
"""

from __future__ import annotations

import json
import os
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.utils.checkpoint import CheckpointError, checkpoint

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.support.blocks import MIXED, block_inputs, linear_dtypes, new_block
from wan_core.model.checkpointing import Checkpointing


def step(*, cast_inputs: bool, autocast: bool, recompute: bool) -> tuple[dict[str, torch.Tensor], Any, bool]:
    """Gradients of this rank's shards, dtypes of the linears, and whether the weights are sharded at all."""
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, cast_forward_inputs=cast_inputs)
    # FSDP wants one dtype per group: float32 weights, gathered as bfloat16.
    block = fully_shard(new_block(MIXED).float(), mp_policy=policy)
    inputs = block_inputs(MIXED)
    ambient = torch.autocast("cpu", dtype=torch.bfloat16) if autocast else nullcontext()
    dtypes = linear_dtypes(block)
    with ambient:
        output = block(*inputs, recompute=Checkpointing(recomputes=recompute))
    output.float().square().mean().backward()
    local = {n: p.grad.to_local() for n, p in block.named_parameters() if isinstance(p.grad, DTensor)}
    assert inputs[0] is not None
    assert inputs[0].grad is not None
    return local | {"tokens": inputs[0].grad}, dtypes, len(local) == len(list(block.parameters()))


class Published(nn.Module):
    """As Wan's published block: linears follow ambient autocast, and a region without it keeps the dtype that comes."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.linear = nn.Linear(8, 8)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = self.linear(tokens)
        with torch.autocast("cpu", enabled=False):
            return hidden.sin()


def published() -> str:
    """What torch's checkpoint says around such a block, sharded, where the recompute is not under autocast."""
    block = fully_shard(Published())
    tokens = torch.randn(4, 8, requires_grad=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output = checkpoint(
            block, tokens, use_reentrant=False, context_fn=lambda: (nullcontext(), torch.autocast("cpu", enabled=False))
        )
    try:
        output.float().square().mean().backward()
    except CheckpointError as error:
        return str(error)
    return ""


def main(store: str, world_size: int, rank: int) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=Path(store).as_uri(), world_size=world_size, rank=rank)
    torch.distributed.device_mesh.init_device_mesh("cpu", (world_size,))
    reports: dict[str, Any] = {}
    for cast_inputs in (False, True):
        for autocast in (False, True):
            plain, once, sharded = step(cast_inputs=cast_inputs, autocast=autocast, recompute=False)
            again, twice, _ = step(cast_inputs=cast_inputs, autocast=autocast, recompute=True)
            reports[f"cast_inputs={cast_inputs} autocast={autocast}"] = {
                "sharded": sharded,
                "same_gradients": plain.keys() == again.keys()
                and all(torch.equal(gradient, again[name]) for name, gradient in plain.items()),
                "same_dtypes": twice == once + once,
                "linears": len(twice),
                "linears_without_recompute": len(once),
            }
    reports = {"ours": reports, "published": published()}
    dist.barrier()
    dist.destroy_process_group()
    sys.stdout.write(json.dumps(reports) + "\n")  # print would write the end of the line apart, after another rank's
    sys.stdout.flush()


if __name__ == "__main__":
    ranks = []
    for rank in range(int(sys.argv[2])):
        if (child := os.fork()) == 0:
            main(sys.argv[1], int(sys.argv[2]), rank)
            os._exit(0)
        ranks.append(child)
    if any([os.waitpid(child, 0)[1] for child in ranks]):
        sys.exit("A rank ended with an error.")
