"""A run under torchrun: its number of processes replaces run.json's, on one machine or several."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import ConfigError, PlacementError, WanTrainerError
from .settings import change_run

if TYPE_CHECKING:
    from ..files import Roots
    from ..placement import PlacementConfig
    from ..train import Group


def ranks_here(placement: PlacementConfig) -> int:
    """Returns the number of processes of a run on this machine.

    PlacementError where a run over several machines has more of them than this one has GPUs.
    """
    names = placement.device_names()
    if placement.ranks > len(names) and names != ("cpu",):
        raise PlacementError(
            f"This run is trained by {placement.ranks} processes, and this machine has {len(names)} GPUs for it. Start "
            "it with torchrun on all its machines (docs/use/headless.md), or go on here with --set "
            "model.placement.copies=N, N as many as the GPUs here."
        )
    return placement.ranks


def settle_ranks(directory: Path, roots: Roots, asked: Sequence[str], group: Group) -> None:
    """Adapts a run to torchrun's processes and applies `--set`; called on every rank.

    The first rank of each machine writes, since machines may have own folders, and one refusal stops all. ConfigError
    where saved steps would belong to another job.
    """
    refusal = ""
    if group.local_rank == 0:
        try:
            change_run(directory, roots, asked, placement=_placement(directory, group.world))
        except WanTrainerError as error:
            refusal = str(error)
    if refusals := [found for found in group.gather(refusal) if found]:
        raise ConfigError(refusals[0])


def _placement(directory: Path, world: int) -> PlacementConfig | None:
    """Returns the placement for so many ranks; None where run.json has it already."""
    from ..job import read_run

    known = read_run(directory).model.placement
    if known.ranks == world:
        return None
    if known.mode.startswith("split"):
        what = known.mode.removeprefix("split ")
        raise ConfigError(
            f"The {what} of {directory.name} are split over GPUs, which one process does. Start it without torchrun, "
            'or make each GPU hold a copy: --set "model.placement.mode=copy per GPU".'
        )
    devices = known.devices if known.mode == "copy per GPU" else "all"
    return replace(known, mode="copy per GPU", devices=devices, copies=world, chosen="")
