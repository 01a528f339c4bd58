"""The settings of a placement: which devices of a machine, and how they share a job."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any

import torch

from ..accelerator import gpu_name, gpu_names, is_gpu
from ..config import Config, setting
from ..errors import ConfigError, PlacementError

MODES = ("one device", "split blocks", "copy per GPU", "split tokens", "auto", "expert per GPU")
"""ways in which devices share a job

split blocks: one process, consecutive blocks on each device. copy per GPU: a process and a full model for each device,
gradients averaged over gloo, which Windows has too. split tokens: one process, a full model on each device, a part of
the tokens of every clip on each (`parallel.SplitTokens`). auto: the mode that a new run chooses (plan/modes.py); split
blocks until then. expert per GPU: one process, each expert of a pair on a device of its own, both trained at the same
time (`session/at_once.py`).
"""
EXPERT_PER_GPU = MODES[-1]

INTERLEAVED = "interleaved"
_SHARE = re.compile("[1-9][0-9]{0,3}")


@dataclass(frozen=True, kw_only=True)
class PlacementConfig(Config):
    """The placement requested by SplitAcrossGPUs and LoadWanModel; the job resolves device names when it runs."""

    mode: str = setting(
        "one device",
        "How the GPUs share the work. split blocks: a part of the model on each GPU. copy per GPU: a full model on "
        "each GPU, gradients averaged. split tokens: a full model and a part of each clip on each GPU. expert per GPU: "
        "both experts of Wan 2.2 A14B at the same time. auto: the mode that is predicted to be fastest for this "
        "training and fits. Choose a mode yourself to compare it with auto.",
        choices=MODES,
        refusal='Split mode "{value}" is unknown.{nearest}',
    )
    devices: str = setting(
        "default",
        'Devices to use: all, or a list such as "cuda:0,cuda:1". The first also holds the embeddings, the last the '
        "head. Change it when a GPU is needed for other work.",
    )
    """default: the first GPU, or the CPU without one; "0,1" means "cuda:0,cuda:1" """
    split_at: str = setting(
        "auto",
        "For split blocks: auto, interleaved (two runs of blocks each), or the number of the first block of each later "
        'GPU, such as "20" or "14,28". Change it when one GPU runs out of memory.',
    )
    """also midpoint; auto gives a larger card more blocks; with more numbers than cards, each card has several runs"""
    copies: int = setting(
        0, "For copy per GPU: processes over all machines that torchrun starts. 0 = one per device.", low=0, high=4096
    )
    """set by `train` under torchrun (cli/torchrun.py); no widget"""
    shards: int = setting(
        1,
        "For copy per GPU: processes that hold one copy of the base together (FSDP), each a part of every block. 1 = "
        "each holds all.",
        within=(1, 4096),
    )
    """no widget; a number above that of the processes means all of them"""
    context_parallel: int = setting(
        1,
        "For copy per GPU: processes that train one clip together, each a part of its tokens. 1 = each trains clips of "
        "its own, 0 = as is quickest, chosen once.",
        within=(0, 4096),
    )
    """no widget; a number above that of the processes means all of them; training replaces 0 in run.json"""
    context_exchange: str = setting(
        "auto",
        "How these processes attend to each other's tokens. auto: all-to-all where the heads divide, else ring.",
        choices=("auto", "all-to-all", "ring"),
    )
    """no widget; all-to-all: each process gets all tokens of some heads; ring: keys and values go from rank to rank"""
    token_shares: str = setting(
        "auto",
        'For split tokens: the proportions in which the GPUs share the tokens and heads, such as "74,26". auto: by '
        "predicted speed and memory, chosen once; equal for GPUs of one kind.",
    )
    """no widget; auto in a trained run means equal shares"""
    chosen: str = ""
    """reason why `auto` chose the mode of this run, with the predicted times of all modes"""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.split_at not in ("auto", "midpoint", INTERLEAVED):
            block_numbers(self.split_at)
        _ = self.shares

    @property
    def shares(self) -> tuple[int, ...]:
        """The proportions of `token_shares`; () for auto. Raises ConfigError for other text."""
        if self.token_shares == "auto":
            return ()
        parts = [part.strip() for part in self.token_shares.split(",")]
        if not all(_SHARE.fullmatch(part) for part in parts):
            raise ConfigError(
                f'token_shares "{self.token_shares[:60]}" is not auto or a number for each GPU, 1 to 9999, such as '
                '"74,26".'
            )
        return tuple(map(int, parts))

    def identity(self) -> dict[str, Any]:
        """Returns the number of copies, which multiplies the batch. The devices of blocks do not change results, and
        the devices of tokens change only the rounding of sums."""
        listed = self.devices.count(",") + 1 if "," in self.devices else self.devices
        known = (self.copies or listed) if self.mode == "copy per GPU" else 1
        if known == 1 or self.context_parallel <= 1:
            return {"copies": known}
        if isinstance(known, int):
            return {"copies": known // min(known, self.context_parallel)}
        return {"copies": f"{known} / {self.context_parallel}"}

    def device_names(self) -> tuple[str, ...]:
        """Returns the devices of this machine that the job may use, at least one. Raises PlacementError for a device
        that does not exist."""
        gpus = gpu_names()
        if self.devices == "default":
            return gpus[:1] or ("cpu",)
        if self.devices == "all":
            return gpus or ("cpu",)
        listed = [n.strip() for n in self.devices.split(",") if n.strip()]
        names = tuple(gpu_name(n) if n.isdecimal() else n for n in listed)
        for name in names:
            if not _is_device(name):
                raise PlacementError(
                    f'devices has "{name}", which is not a device. Write "all", or a list such as "0,1".'
                )
            if is_gpu(name) and name not in gpus:
                have = ", ".join(gpus) or "none; only cpu"
                raise PlacementError(f'Device "{name}" does not exist here (GPUs: {have}). Change devices.')
        if not names:
            raise PlacementError('devices is empty. Write "all", or a list such as "cuda:0,cuda:1".')
        return names

    @property
    def ranks(self) -> int:
        """The number of processes that train together, over all machines."""
        return self.copies or len(self.device_names()) if self.mode == "copy per GPU" else 1

    @property
    def parts(self) -> int:
        """The number of processes that train one clip together. Raises PlacementError if it does not divide
        `ranks`."""
        return self._part_of_ranks("context_parallel", "would lack the other tokens of their clip", "1")

    @property
    def batches(self) -> int:
        """The number of batches that all processes train at once."""
        return self.ranks // self.parts

    @property
    def models(self) -> int:
        """The number of full models in this process: one for each device that computes a part of the tokens."""
        return len(self.device_names()) if self.mode == "split tokens" else 1

    def of_expert(self, number: int) -> PlacementConfig:
        """Returns the placement of an expert of a pair, 0 high noise: with `expert per GPU` a device of its own."""
        if self.mode != EXPERT_PER_GPU:
            return self
        names = self.device_names()
        return replace(self, mode=MODES[0], devices=names[number % len(names)])

    def without_parts(self) -> PlacementConfig:
        """Returns the placement of a model that is not trained: for split tokens the first device alone, else this."""
        if self.mode != "split tokens":
            return self
        return replace(self, mode="one device", devices=self.device_names()[0])

    @property
    def sharders(self) -> int:
        """The number of processes that hold one copy of the base together. Raises PlacementError if it does not
        divide `ranks`."""
        return self._part_of_ranks("shards", "would hold no complete copy", str(self.ranks))

    def _part_of_ranks(self, setting: str, fault: str, other: str) -> int:
        ranks = self.ranks
        found = max(1, min(getattr(self, setting), ranks))
        if ranks % found:
            raise PlacementError(
                f"{ranks} processes are not a multiple of {setting} {found}, so some {fault}. Set "
                f"model.placement.{setting} to a number that divides {ranks}, or to {other}."
            )
        return found


def block_numbers(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError as error:
        raise ConfigError(f'split_at "{text}" is not auto, midpoint or block numbers such as "20".') from error


def _is_device(name: str) -> bool:
    try:
        torch.device(name)
    except RuntimeError:
        return False
    return True
