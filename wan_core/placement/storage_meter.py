"""Counts the live bytes of tensors and their peak, while code runs on meta tensors."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from ..model import PlainMode

_SUMS_IN_FLOAT32 = (torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default,)
"""operators whose CUDA kernels accumulate the gradient of the queries in a temporary float32 tensor (`dq_accum` in
torch's flash_api.cpp); the CPU kernels, which a trace runs, do not"""


_PRODUCTS = (torch.ops.aten.mm.default, torch.ops.aten.addmm.default)


def _run(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    return func(*args, **kwargs)


class StorageMeter(PlainMode):
    """Counts the live bytes of storages made inside, except the `known` ones; `peak` is the highest count."""

    def __init__(
        self,
        known: Iterable[Tensor],
        packed: Mapping[Tensor, tuple[int, int]] | None = None,
        run: Callable[[Any, tuple[Any, ...], Mapping[str, Any]], Any] = _run,
    ) -> None:
        """`packed`: weights that are dequantized for each use, with temporary bytes during and before the product; see
        `Unpacking.of`. `run(func, args, kwargs)` runs an operator.
        """
        super().__init__()
        self._run = run
        self._packed = {tensor.untyped_storage(): sizes for tensor, sizes in (packed or {}).items()}
        self.live = self.peak = 0
        self._seen: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        for tensor in known:
            self._seen[tensor.untyped_storage()] = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        before = self.live
        result = self._run(func, args, kwargs or {})
        for leaf in (result,) if isinstance(result, Tensor) else tree_leaves(result):
            if isinstance(leaf, Tensor):
                self._count(leaf.untyped_storage())
        if self._packed and func in _PRODUCTS:
            for leaf in tree_leaves(args):
                if isinstance(leaf, Tensor) and (sizes := self._packed.get(leaf.untyped_storage())):
                    self.peak = max(self.peak, self.live + sizes[0], before + sizes[1])
        if func in _SUMS_IN_FLOAT32:
            self.peak = max(self.peak, self.live + 4 * args[1].numel())
        return result

    @contextmanager
    def holding(self, size: int) -> Iterator[None]:
        """Inside, `size` more bytes are live."""
        self.live += size
        self.peak = max(self.peak, self.live)
        yield
        self.live -= size

    def _count(self, storage: torch.UntypedStorage) -> None:
        if storage in self._seen:
            return
        size = -(-storage.nbytes() // 512) * 512
        self._seen[storage] = size
        self.live += size
        self.peak = max(self.peak, self.live)
        weakref.finalize(storage, self._release, size)

    def _release(self, size: int) -> None:
        self.live -= size
