"""Block swap: streams frozen weights from host memory through two buffers of the device, one block ahead.

Frozen weights do not change, so they are never copied back. Adapters, gradients and optimizer state stay on the device.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import PlacementError
from ..model import scope
from .copies import Copies, memory_to_copy
from .shared import Shared

_ALIGNED = 256
"""alignment of a tensor in bytes, as in torch's CUDA memory"""
_BUFFERS = 2
"""number of buffers: one for the block that runs, one for the next"""


@dataclass(frozen=True)
class _Frozen:
    """One frozen parameter or buffer of a block, by its module and its offset in the block's memory.

    A load replaces the tensor of the module and does not overwrite it, so older references stay valid.
    """

    module: nn.Module
    name: str
    start: int
    bytes: int
    dtype: torch.dtype
    shape: torch.Size
    is_weight: bool

    def within(self, memory: Tensor, begin: int = 0) -> Tensor:
        """Returns the tensor as a view of memory (size,) uint8 that has the block's bytes from `begin` on."""
        value = self._bytes_in(memory, begin).view(self.dtype).view(self.shape)
        return nn.Parameter(value, requires_grad=False) if self.is_weight else value

    def lies_in(self, memory: Tensor, begin: int) -> bool:
        """Returns whether this memory has the same bytes as the module's tensor."""
        here = getattr(self.module, self.name).detach().to("cpu").contiguous().reshape(-1).view(torch.uint8)
        return torch.equal(self._bytes_in(memory, begin), here)

    def _bytes_in(self, memory: Tensor, begin: int) -> Tensor:
        return memory[self.start - begin : self.start - begin + self.bytes]


class _OffloadedBlock:
    """The frozen tensors of one block, consecutive in host memory.

    A block that runs while it is offloaded reads host memory: an error on a GPU, never a wrong number.
    """

    def __init__(self, name: str, block: nn.Module, copies: Copies, shared: Shared | None) -> None:
        """Moves the frozen tensors of `block` to host memory; those of linears to `shared` memory, unless None.

        All others are owned by this process, because LoRAs of previews change them in place (lora/frozen.py).
        """
        self._block = block
        self._frozen: list[_Frozen] = []
        self._in_host: list[Tensor] = []
        self.size = 0
        self.pieces: list[tuple[int, Tensor]] = []
        """offset of each piece in the memory of the block, and the piece (n,) uint8"""
        linears = [module for module in block.modules() if isinstance(module, nn.Linear) and shared is not None]
        of_linears = {part for linear in linears for part in linear.modules()}
        for together in (True, False):
            begin, mine = self.size, self._placed(part for part in block.modules() if (part in of_linears) == together)
            if not mine:
                continue
            size, memory = self.size - begin, None
            if shared is not None and together:
                memory = shared.piece(name, size, partial(_write, mine, begin), partial(_holds, mine, begin))
                memory = None if memory is None else shared.locked(memory, copies.lock)
            if memory is None:
                memory = memory_to_copy(copies, size)
                _write(mine, begin, memory)
            self.pieces.append((begin, memory))
            self._frozen += mine
            self._in_host += [frozen.within(memory, begin) for frozen in mine]
        assert self._frozen, "an offloaded block must be frozen"
        self.unload()

    def _placed(self, modules: Iterable[nn.Module]) -> list[_Frozen]:
        """Returns the frozen tensors of some modules, with offsets after the earlier ones."""
        found: list[_Frozen] = []
        for module in modules:
            for name, value in [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]:
                if not value.requires_grad and value.nbytes:
                    is_weight = isinstance(value, nn.Parameter)
                    found.append(_Frozen(module, name, self.size, value.nbytes, value.dtype, value.shape, is_weight))
                    self.size += -(-value.nbytes // _ALIGNED) * _ALIGNED
        return found

    @property
    def trains(self) -> bool:
        """Whether the block has trained parameters."""
        return any(p.requires_grad for p in self._block.parameters())

    def use(self, memory: Tensor) -> None:
        """Set the block's tensors to views of `memory`, a device copy."""
        self._set([frozen.within(memory) for frozen in self._frozen])

    def unload(self) -> None:
        """Point the block's tensors to their copies in host memory."""
        self._set(self._in_host)

    def _set(self, values: list[Tensor]) -> None:
        for frozen, value in zip(self._frozen, values, strict=True):
            setattr(frozen.module, frozen.name, value)


def _write(frozen: Iterable[_Frozen], begin: int, memory: Tensor) -> None:
    for one in frozen:
        one.within(memory, begin).copy_(getattr(one.module, one.name))


def _holds(frozen: Iterable[_Frozen], begin: int, memory: Tensor) -> bool:
    return all(one.lies_in(memory, begin) for one in frozen)


@dataclass(eq=False)
class _Buffer:
    memory: Tensor
    block: str = ""
    """name of the block whose weights it has, or receives"""
    copies: Sequence[Any] = ()


class Ring:
    """The offloaded blocks of one device, and the two buffers that they are loaded into."""

    def __init__(
        self, device: torch.device, copies: Copies, order: Sequence[str], shared: Shared | None = None
    ) -> None:
        """`order`: the names of the offloaded blocks, in the order in which a forward pass runs them.

        `shared`: memory shared with other processes; None: memory of this process.
        """
        self._device, self._copies, self._order, self._shared = device, copies, list(order), shared
        self._offloaded: dict[str, _OffloadedBlock] = {}
        self._buffers: list[_Buffer] = []

    def __del__(self) -> None:
        # `release` is called first, because prefetches of the last pass may still write into the buffers.
        self.release()

    def offload_block(self, name: str, block: nn.Module) -> None:
        """Move the frozen tensors of a block of `order` to host memory, unless they are there."""
        if name in self._offloaded:
            return
        with torch.inference_mode(False), torch.no_grad():
            self._offloaded[name] = _OffloadedBlock(name, block, self._copies, self._shared)

    def take_over(self, other: Ring) -> None:
        """Takes the offloaded blocks of `other`, which is no longer used, with their host memory."""
        assert other._offloaded.keys() <= {*self._order}, "offloaded blocks stay offloaded"
        self._offloaded |= other._offloaded

    @contextmanager
    def run(self, name: str, *, again: bool, returns: bool) -> Iterator[None]:
        """Inside, the weights of block `name` are on the device; at the end, the next blocks are prefetched.

        `again`: in a backward pass. `returns`: in a forward pass with a backward pass to follow.
        """
        block = self._offloaded.get(name)
        if block is None:
            yield
            return
        if torch.is_grad_enabled() and not again and block.trains:
            raise PlacementError(
                f"The weights of {name} are offloaded to host memory, but the block keeps its activations, whose "
                "backward pass needs the weights. Turn "
                "gradient_checkpointing on with unchecked_blocks 0, or set blocks_to_swap to 0."
            )
        with torch.inference_mode(False), torch.no_grad():
            buffer = self._loaded(name, keep=[name])
            self._wait(buffer)
            block.use(buffer.memory)
        try:
            yield
        finally:
            with torch.inference_mode(False), torch.no_grad():
                block.unload()
        with torch.inference_mode(False), torch.no_grad():
            ahead = self._ahead(name, again=again, returns=returns)
            for following in ahead:
                self._loaded(following, keep=ahead)

    def _ahead(self, name: str, *, again: bool, returns: bool) -> list[str]:
        """Returns the next blocks to run, one for each buffer; after the last block, those of the next pass."""
        number, count = self._order.index(name), len(self._order)
        forward, backward = range(count), range(count - 1, -1, -1)
        if again:
            path = [*backward[count - number :], *forward]
        else:
            path = [*forward[number + 1 :], *(backward if returns else forward)]
        return [self._order[index] for index in dict.fromkeys(path)][:_BUFFERS]

    def _loaded(self, name: str, keep: list[str]) -> _Buffer:
        """Returns the buffer of a block, and begins to load it if needed; buffers of `keep` are not overwritten."""
        if not self._buffers:
            size = max(block.size for block in self._offloaded.values())
            number = min(_BUFFERS, len(self._order))
            self._buffers = [_Buffer(torch.empty(size, dtype=torch.uint8, device=self._device)) for _ in range(number)]
        for buffer in self._buffers:
            if buffer.block == name:
                return buffer
        buffer = next(buffer for buffer in self._buffers if buffer.block not in keep)
        block, buffer.block = self._offloaded[name], ""
        with scope("load", name):
            buffer.copies = [
                self._copies.start(piece, buffer.memory[begin : begin + piece.numel()]) for begin, piece in block.pieces
            ]
        buffer.block = name
        return buffer

    def _wait(self, buffer: _Buffer) -> None:
        for copy in buffer.copies:
            self._copies.wait(copy)

    def release(self) -> None:
        """Free the buffers; the next block allocates new ones."""
        for buffer in self._buffers:
            if buffer.block:
                self._wait(buffer)
        self._buffers = []
