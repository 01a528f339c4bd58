"""A small model whose tokens two or more ranks share out; run as a script, the first rank prints one JSON line.

    python tests/support/context_ranks.py STORE WORLD_SIZE KIND ...

The ranks are forked once everything is imported. POSIX only. Each KIND is `variant/routes/policy/dtype` of
tests/wan_core/parallel/test_tokens.py, a policy of - for none. Per kind and exchange: how far answer and summed
gradients are from those of one model, and the bytes that all ranks sent around attention over those that `sent_bytes`
says, in both passes together.
"""

from __future__ import annotations

import json
import os
import sys
from contextlib import nullcontext
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.wan_core.parallel.test_tokens import (
    FLOAT64,
    HALF,
    KINDS,
    SIZE,
    furthest,
    inputs,
    model_of,
    passages,
    trained,
)
from wan_core.model import POLICIES, Numerics, WanTransformer, tokens_by_layer
from wan_core.parallel import ClipRanks, RankTokens, sent_bytes
from wan_core.parallel.ranks import ALL_TO_ALL, RING, RankExchange

FLOAT32 = Numerics(compute=torch.float32)
sent = {"attention": 0}
start = RankExchange._start


def counted(self, out, into):  # type: ignore[no-untyped-def]
    # What is gathered behind the head has no heads.
    sent["attention"] += sum(one.nbytes for _, one in out if one.ndim == 4)
    return start(self, out, into)


def predicted(exchange: str, kind: str, routes: tuple, again: bool, ranks: int, value_bytes: int) -> int:
    """The bytes of the two micro-batches that `trained` runs, over all ranks."""
    shape = KINDS[kind]
    clips, frames, height, width = SIZE
    tokens = tokens_by_layer(routes, shape.num_layers, height * width // 4, frames + bool(shape.reference_channels))
    layers = [clips * ranks * one for one in (*tokens, *(tokens[layer] for layer in shape.vace_layers))]
    return 2 * sum(sent_bytes(exchange, ranks, layers, again * sum(layers), shape.dim, value_bytes))


def tried(what: str, exchange: str, clip: ClipRanks) -> tuple[float, float]:
    kind, routed, policy, dtype = what.split("/")
    numerics = FLOAT64 if dtype == "float64" else FLOAT32
    routes = (HALF,) if routed == "routed" else ()

    def model() -> WanTransformer:
        made = model_of(KINDS[kind], numerics)
        made.checkpoint_blocks, made.checkpoint_policy = policy != "-", POLICIES["full" if policy == "-" else policy]
        return made

    given, through = inputs(KINDS[kind], numerics.compute), passages(KINDS[kind], *routes)
    expected = trained(model(), given, through)
    parts = model()
    parts.team = RankTokens(parts, clip, exchange)
    sent["attention"] = 0
    answer, *gradients = trained(parts, given, through)
    total = torch.tensor(sent["attention"])
    for one in (total, *gradients):
        dist.all_reduce(one)
    found: list[Tensor] = [answer, *gradients]
    count = len(clip.ranks)
    bytes_of_all = predicted(exchange, kind, routes, policy != "-", count, numerics.compute.itemsize)
    return furthest(found, expected), int(total) / bytes_of_all


def main(store: str, world_size: int, rank: int, kinds: list[str]) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=Path(store).as_uri(), world_size=world_size, rank=rank)
    clip = ClipRanks(dist.group.WORLD, range(world_size), rank, nullcontext)
    RankExchange._start = counted  # type: ignore[method-assign]
    report = {kind: {exchange: tried(kind, exchange, clip) for exchange in (ALL_TO_ALL, RING)} for kind in kinds}
    dist.barrier()
    dist.destroy_process_group()
    if rank == 0:
        sys.stdout.write(json.dumps(report) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    ranks = []
    for rank in range(int(sys.argv[2])):
        if (child := os.fork()) == 0:
            main(sys.argv[1], int(sys.argv[2]), rank, sys.argv[3:])
            os._exit(0)
        ranks.append(child)
    if any([os.waitpid(child, 0)[1] for child in ranks]):
        sys.exit("A rank ended with an error.")
