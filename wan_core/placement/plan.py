"""The placement of a model: the device of every block and module."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import torch
from torch import nn

from ..abilities import abilities_of
from ..accelerator import is_gpu
from ..errors import PlacementError
from ..model import block_of
from ..model.heads import shares as sizes_in
from ..words import counted
from .config import EXPERT_PER_GPU, INTERLEAVED, PlacementConfig, block_numbers

BESIDE_BLOCKS_GIB = 4
"""GiB of each card that do not depend on its number of blocks: one for driver and fragmentation, three for a running
block of a 14B model at 49 frames (docs/use/memory.md)"""


@dataclass(frozen=True)
class Placement:
    """Device of every block; the head is on the last device, everything else on the first.

    A pass therefore ends on the device of its last block, where its backward pass starts.
    """

    block_devices: tuple[torch.device, ...]

    @property
    def first(self) -> torch.device:
        return self.block_devices[0]

    @property
    def last(self) -> torch.device:
        return self.block_devices[-1]

    @property
    def devices(self) -> tuple[torch.device, ...]:
        """Distinct devices in order of use."""
        return tuple(dict.fromkeys(self.block_devices))

    def device_of(self, name: str) -> torch.device:
        """Returns the device of the weight or module `name` (original Wan name)."""
        if name.partition(".")[0] == "head":
            return self.last
        found = block_of(name)
        # VACE's second stream is on the first device; only its hints are copied to other devices.
        return self.block_devices[found.number] if found is not None and found.stream == "blocks" else self.first

    def check(self, model: nn.Module, *, offloads: Callable[[str], bool] = lambda _: False) -> None:
        """Raises PlacementError for a parameter or buffer that is not on its planned device.

        `offloads(name)`: whether a frozen tensor is planned in host memory.
        """
        for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
            planned = self.device_of(name)
            if offloads(name) and not tensor.requires_grad:
                planned = torch.device("cpu")
            if tensor.device != planned:
                raise PlacementError(
                    f"{name} is on {tensor.device}, but {planned} was planned. This is a bug; please report it."
                )


def resolve_placement(config: PlacementConfig, num_blocks: int, rank: int = 0) -> Placement:
    """Returns the placement of `num_blocks` blocks for process `rank` of this machine, or for model `rank` of a process
    with several."""
    names = config.device_names()
    devices = [_device(n) for n in names]
    twice = next((device for device in devices if devices.count(device) > 1 and device.type != "cpu"), None)
    if config.mode == "split tokens" and twice is not None:
        raise PlacementError(
            f"devices names {twice} twice, and split tokens needs another GPU for each part. Name each once."
        )
    check_token_shares(config, len(devices))
    if config.mode in ("copy per GPU", "split tokens", EXPERT_PER_GPU):
        return Placement((devices[rank % len(devices)],) * num_blocks)
    if config.mode == "one device" or len(devices) == 1:
        return Placement((devices[0],) * num_blocks)
    sizes = list[float]()
    if config.split_at in ("auto", INTERLEAVED) and all(map(is_gpu, devices)):
        sizes = [abilities_of(device).memory / 2**30 for device in devices]
    return split_blocks(devices, num_blocks, config.split_at, sizes)


def check_token_shares(config: PlacementConfig, devices: int) -> None:
    """Raises PlacementError if `token_shares` of split tokens are for another number of devices."""
    if config.mode == "split tokens" and config.shares and len(config.shares) != devices:
        raise PlacementError(
            f'token_shares "{config.token_shares}" has {counted(len(config.shares), "number")} for '
            f"{counted(devices, 'device')}. Give each a number, or set model.placement.token_shares to auto."
        )


def devices_of(config: PlacementConfig, num_blocks: int, rank: int = 0) -> tuple[torch.device, ...]:
    """Returns the devices of all models of process `rank` of this machine."""
    placements = [resolve_placement(config, num_blocks, max(rank, number)) for number in range(config.models)]
    return tuple(dict.fromkeys(device for placement in placements for device in placement.devices))


def split_blocks(
    devices: list[torch.device], num_blocks: int, split_at: str, gibibytes: Sequence[float] = ()
) -> Placement:
    """Returns consecutive runs of blocks over `devices`.

    "midpoint": the same number of blocks on every device; with a remainder, the first devices, which also embed, have
    one block fewer. "auto": the same, but for cards of different `gibibytes` in proportion to the memory beside
    BESIDE_BLOCKS_GIB. "interleaved": as many blocks as auto, in two runs for each device. A list of numbers gives the
    first block of each run after the first; the devices take these runs in turn.
    """
    # Rounded to GiB, because two cards of one kind differ by some MiB.
    shares = [max(round(size) - BESIDE_BLOCKS_GIB, 1) for size in gibibytes] or [1] * len(devices)
    if split_at in ("auto", "midpoint"):
        edges = _edges(num_blocks, shares)
    elif split_at == INTERLEAVED:
        counts = [b - a for a, b in pairwise(_edges(num_blocks, shares))]
        halves = [*(count // 2 for count in counts), *(count - count // 2 for count in counts)]
        edges = [*accumulate(halves, initial=0)]
    else:
        edges = [0, *block_numbers(split_at), num_blocks]
    runs = len(edges) - 1
    if runs % len(devices) or any(b <= a for a, b in pairwise(edges)):
        raise PlacementError(
            f'split_at "{split_at}" does not divide {num_blocks} blocks over {len(devices)} devices. '
            f"Give {len(devices) - 1} ascending number(s) between 1 and {num_blocks - 1}, or midpoint."
        )
    in_turn = devices * (runs // len(devices))
    return Placement(tuple(d for d, (a, b) in zip(in_turn, pairwise(edges), strict=True) for _ in range(a, b)))


def _edges(num_blocks: int, shares: Sequence[int]) -> list[int]:
    """Returns the first block of each device, and the number of blocks; each device has at least one, if possible."""
    return [*accumulate(sizes_in(num_blocks, shares, least=1), initial=0)]


def _device(name: str) -> torch.device:
    device = torch.device(name)
    # Tensors on "cuda" report "cuda:0", so a device other than the CPU gets its index.
    return torch.device("cpu") if device.type == "cpu" else torch.device(device.type, device.index or 0)
