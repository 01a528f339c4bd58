"""A world of one rank: the code of ranks trains real steps over torch.distributed, by NCCL on a GPU and gloo on a CPU.

One card can hold one rank of NCCL, so nothing here is shared out. With `to itself` the rank stands in two places of a
ring: each tensor goes through NCCL and comes back to it, and the step must be that of a plain copy.
"""

from __future__ import annotations

import math
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from measure import SHAPES, Figures, write_base
from torch import Tensor

from wan_core.cache import Batches, LatentCache, SyntheticConfig, pad_text, synthetic_set
from wan_core.control import SignalControl
from wan_core.events import Event, StepDone
from wan_core.files import Roots
from wan_core.load import ModelPlan, inspect_model, materialize
from wan_core.lora import LoraConfig
from wan_core.model import WAN21_LATENTS, WanShape, WanTransformer, condition_named
from wan_core.parallel import ClipRanks, RankTokens, Sharding
from wan_core.parallel.ranks import ALL_TO_ALL, RING, RankExchange
from wan_core.train import Group, TrainConfig, Trainer

from .case import Bench

STEPS = 3
_COUNTED = ("all_reduce", "all_gather_object", "all_gather_into_tensor", "batch_isend_irecv", "broadcast_object_list")
_PATIENCE = timedelta(seconds=30)
_NEAR = 1e-3
"""of losses and norms in bfloat16, where a rank of context_parallel sums in another order; relative"""


@dataclass
class _Place:
    """A base without values and random clips in a folder."""

    plan: ModelPlan
    roots: Roots
    fingerprint: str

    def model(self, sharding: Sharding | None = None) -> WanTransformer:
        return materialize(self.plan, self.roots, LoraConfig(rank=8), seed=1, sharding=sharding)

    def trainer(self, model: WanTransformer, group: Group, emit: Callable[[Event], None]) -> Trainer:
        cache = LatentCache(self.roots.first("cache"))
        found = cache.read_set(self.fingerprint)
        config = TrainConfig(steps=STEPS, learning_rate=1e-3, discrete_flow_shift=3.0, eval_items=0, seed=1)
        text = pad_text(cache.read_text(found.empty_text_key))
        control = SignalControl(signals=False)
        return Trainer(
            model, Batches(found, cache, seed=1, batch_size=1), text, config, emit=emit, control=control, group=group
        )


def one_rank(bench: Bench) -> Figures:
    """Returns losses of a run without ranks and of each way of ranks, the collectives called, and how far they are."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    with tempfile.TemporaryDirectory(dir=bench.work) as folder:
        place = _made(Path(folder), SHAPES["tiny" if bench.tiny else "1.3B-4"], 64 if bench.tiny else 256)
        plain = _trained(place.trainer, place.model(), Group())
        with _joined(Path(folder)) as group:
            group._nccl_between(bench.device)
            ways = {name: _figures(plain, *_counted(way, place, group, bench)) for name, way in WAYS.items()}
            itself = {exchange: _to_itself(exchange, place, group, bench) for exchange in (ALL_TO_ALL, RING)}
            gathered = _gathered(group, bench)
            backend = dist.get_backend(group._over_nccl or group._in_step)
    nccl = ".".join(map(str, torch.cuda.nccl.version())) if backend == "nccl" else ""
    ok = all(way["furthest"] <= _NEAR for way in ways.values()) and gathered["equal"]
    ok &= all(one.get("furthest", 0.0) <= _NEAR for one in itself.values())
    return {"backend": backend, "nccl": nccl, "losses": plain, "ways": ways, "to_itself": itself} | {
        "gathered": gathered,
        "ok": ok and backend == ("nccl" if bench.cuda else "gloo"),
    }


def _made(folder: Path, shape: WanShape, pixels: int) -> _Place:
    base = write_base(folder / "base", shape)
    roots = Roots({"diffusion_models": (str(folder),), "cache": (str(folder / "cache"),)})
    clips = SyntheticConfig(count=2, width=pixels, height=pixels, num_frames=9)
    space = WAN21_LATENTS
    drawn = synthetic_set(clips, space=space, size_multiple=2 * space.spatial_stride, kind=condition_named("none"))
    plan = ModelPlan(base_file=f"diffusion_models:{base.name}")
    inspect_model(plan, roots)
    return _Place(plan, roots, LatentCache(folder / "cache").write_set(drawn))


def _trained(make: Callable[..., Trainer], model: WanTransformer, group: Group) -> list[float]:
    """Returns loss and gradient norm of each step."""
    heard: list[float] = []

    def emit(event: Event) -> None:
        if isinstance(event, StepDone):
            heard.extend((event.loss, event.grad_norm))

    # Fused functions are compiled for seconds, and no rank is needed to try them.
    with mock.patch("wan_core.train.trainer.fused_on_cards", return_value=[]):
        trainer = make(model, group, emit)
    trainer.run(STEPS, lambda _step: None)
    return heard


@contextmanager
def _joined(folder: Path) -> Iterator[Group]:
    store = dist.FileStore(str(folder / "store"), 1)
    dist.init_process_group("gloo", timeout=_PATIENCE, store=store, rank=0, world_size=1)
    try:
        yield Group(0, 1, dist.new_group(backend="gloo", timeout=_PATIENCE))
    finally:
        dist.destroy_process_group()


def _ddp(place: _Place, group: Group, bench: Bench) -> WanTransformer:
    return place.model()


def _fsdp(place: _Place, group: Group, bench: Bench) -> WanTransformer:
    """torch's FSDP2 gathers nothing in a world of one; `_gathered` calls what it gathers with."""
    mesh = group.shard_mesh(1, bench.device)
    return place.model(Sharding(mesh, group.share, True, group.naming_lost))


def _context(place: _Place, group: Group, bench: Bench) -> WanTransformer:
    model = place.model()
    model.team = RankTokens(model, group.clip_ranks(bench.device), ALL_TO_ALL)
    return model


WAYS = {"copy per GPU": _ddp, "shards": _fsdp, "context_parallel": _context}


def _counted(
    way: Callable[..., WanTransformer], place: _Place, group: Group, bench: Bench
) -> tuple[list[float], Counter[str]]:
    """Returns what `_trained` does, and how often each function of torch.distributed was called."""
    calls = Counter[str]()

    def counting(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any, **named: Any) -> Any:
            calls[name] += 1
            return function(*given, **named)

        return call

    model = way(place, group, bench)
    with mock.patch.multiple(dist, **{name: counting(name, getattr(dist, name)) for name in _COUNTED}):
        return _trained(place.trainer, model, group), calls


def _figures(plain: Sequence[float], found: Sequence[float], calls: Counter[str]) -> Figures:
    return {"losses": list(found), "furthest": _furthest(found, plain), "calls": dict(calls)}


def _furthest(found: Sequence[float], expected: Sequence[float]) -> float:
    assert len(found) == len(expected) == 2 * STEPS
    if not all(map(math.isfinite, found)):
        return math.inf
    return max(abs(one - other) / abs(other) for one, other in zip(found, expected, strict=True))


def _to_itself(exchange: str, place: _Place, group: Group, bench: Bench) -> Figures:
    """Returns how far steps whose tokens go from this rank to itself are from those where they are copied."""
    twice = ClipRanks(group._groups["tokens"][0], (0, 0), 0, nullcontext)

    def steps() -> list[float]:
        model = place.model()
        model.team = RankTokens(model, twice, exchange)
        return _trained(place.trainer, model, group)

    with mock.patch.object(RankExchange, "_start", _copied):
        expected = steps()
    if not bench.cuda:
        return {"losses": expected, "said": "gloo sends nothing from a rank to itself"}
    began = time.monotonic()
    found = steps()
    return {"losses": found, "furthest": _furthest(found, expected), "seconds": time.monotonic() - began}


def _copied(
    _self: RankExchange, out: Sequence[tuple[int, Tensor]], into: Sequence[tuple[int, Tensor]]
) -> Callable[[], None]:
    for (_, source), (_, target) in zip(out, into, strict=True):
        target.copy_(source)
    return lambda: None


def _gathered(group: Group, bench: Bench) -> Figures:
    """Gathers the weights of a block of the 14B model, as FSDP2 does, and averages its adapters."""
    size = 2**10 if bench.tiny else 351_000_000
    part = torch.randn(size, device=bench.device).to(torch.bfloat16)
    complete = torch.empty_like(part)
    began = time.monotonic()
    gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor  # its newer name
    gather(complete, part, group=group._over_nccl or group._in_step)
    gradient = part[:1024].float()
    mean = gradient.clone()
    group.average([mean])
    equal = torch.equal(complete, part) and torch.equal(mean, gradient)
    return {"bytes": part.nbytes, "equal": equal, "seconds": time.monotonic() - began}
