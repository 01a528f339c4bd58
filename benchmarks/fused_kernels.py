"""Asks torch's compiler how many kernels a GPU runs for each fused function, without a GPU and without triton.

    python benchmarks/fused_kernels.py

A function is compiled for a card that is only described (compute capability 8.9): the compiler lowers it and decides
what it fuses, and is stopped before it writes code. The bytes are its own count of what these kernels read and write.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import torch
from torch import Tensor

from wan_core.kernels.fusing import compiled


class CountedError(Exception):
    """Ends a compilation once it is known what runs."""


def kernels_of(body: Callable[..., Any], *inputs: Any) -> tuple[int, int]:
    """Returns how many kernels a card runs for `body(*inputs)`, and the bytes they move; products and copies that the
    compiler leaves to torch count as one each. Inputs may lie anywhere; only their shapes and dtypes are read.
    """
    from torch._subclasses.fake_tensor import FakeTensorMode

    found: list[tuple[int, int]] = []
    with _described_card(found), FakeTensorMode(), torch.no_grad():
        there = [
            torch.empty_strided(one.shape, one.stride(), dtype=one.dtype, device="cuda")
            if isinstance(one, Tensor)
            else repr(one)
            if isinstance(one, float)
            else one
            for one in inputs
        ]
        try:
            compiled(body)(*there)
        except Exception:  # the compiler wraps what ends it
            if not found:
                raise
    ((kernels, moved),) = found
    return kernels, moved


@contextmanager
def _described_card(found: list[tuple[int, int]]) -> Iterator[None]:
    """Inside, what is compiled for CUDA is lowered and fused for a card that need not exist, and then counted."""
    import torch._dynamo
    import torch._inductor.compile_fx as compile_fx
    from torch._inductor import config, scheduler
    from torch._inductor.codegen.cuda_combined_scheduling import CUDACombinedScheduling
    from torch._inductor.fx_passes import joint_graph, post_grad
    from torch._inductor.runtime.hints import DeviceProperties
    from torch._subclasses.fake_tensor import FakeTensor
    from torch._subclasses.functional_tensor import FunctionalTensor

    card = DeviceProperties(
        type="cuda",
        index=0,
        multi_processor_count=128,
        cc=89,
        major=8,
        regs_per_multiprocessor=65536,
        max_threads_per_multi_processor=1536,
        max_threads_per_block=1024,
        warp_size=32,
    )

    def count(nodes: list[Any]) -> list[Any]:
        run = [node for node in nodes if not isinstance(node, scheduler.NopKernelSchedulerNode)]
        found.append((len(run), sum(node.get_read_write_buffers_sizes() for node in run)))
        raise CountedError

    def part_of(tensor: Tensor, parts: Any) -> Tensor:
        """Does what an index of slices does, which torch itself runs under a guard of a device that is not there."""
        for axis, part in enumerate(parts if isinstance(parts, tuple) else (parts,)):
            if isinstance(part, slice):
                tensor = torch.ops.aten.slice(tensor, axis, part.start, part.stop, 1)
            else:
                tensor = torch.ops.aten.unsqueeze(torch.ops.aten.select(tensor, axis, part), axis)
        return tensor

    def nothing(*_args: Any, **_named: Any) -> None:
        return None

    with ExitStack() as stack:
        stack.enter_context(
            config.patch(
                fx_graph_cache=False,
                pattern_matcher=False,
                joint_graph_constant_folding=False,
                _post_fusion_custom_pass=count,
                fallback_random=True,
            )
        )
        for owner, name, instead in (
            (FakeTensor, "__getitem__", part_of),
            (FunctionalTensor, "__getitem__", part_of),
            (joint_graph, "lazy_init", nothing),
            (post_grad, "lazy_init", nothing),
            (compile_fx, "_check_triton_bf16_support", nothing),
            (DeviceProperties, "create", classmethod(lambda cls, device: card)),
            (scheduler.Scheduler, "create_backend", lambda self, device: CUDACombinedScheduling(self)),
        ):
            stack.enter_context(patch.object(owner, name, instead))
        torch._dynamo.reset()
        yield
        torch._dynamo.reset()


def main() -> int:
    from wan_core.model import WanShape, WanTransformer
    from wan_core.precision import PrecisionPolicy
    from wan_core.precision.first_run import trials

    shape = WanShape(dim=5120, ffn_dim=64, num_heads=40, num_layers=1, text_dim=64)
    with torch.device("meta"):
        model = WanTransformer(shape, PrecisionPolicy().numerics(torch.bfloat16))
    print("| function | kernels | bytes moved / bytes of inputs and results |")
    print("| --- | --- | --- |")
    for trial in trials(model, torch.device("cpu"), runs=True):
        inputs = trial.inputs()
        results = trial.function.body(*inputs)
        tensors = (*inputs, *(results if isinstance(results, tuple) else (results,)))
        least = sum(one.numel() * one.element_size() for one in tensors if isinstance(one, Tensor))
        kernels, moved = kernels_of(trial.function.body, *inputs)
        print(f"| {trial.function.name} | {kernels} | {moved / least:.3f} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
