"""A run under torchrun: as many processes as it started, on one machine or on several, whatever run.json said."""

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
    """Returns how many processes train a run on this machine alone.

    PlacementError where a run of several machines has more of them than this one has GPUs.
    """
    names = placement.device_names()
    if placement.ranks > len(names) and names != ("cpu",):
        raise PlacementError(
            f"This run is trained by {placement.ranks} processes, and this machine has {len(names)} GPUs for it. Start "
            "it with torchrun on all its machines (docs/headless.md)."
        )
    return placement.ranks


def settle_ranks(directory: Path, roots: Roots, asked: Sequence[str], group: Group) -> None:
    """Make a run fit the processes that torchrun started, and change what `--set` asks for; called on every rank.

    Each machine may have the folder of its own, so its first rank writes, and what one refuses all refuse. Raises
    ConfigError where saved steps would be of another job.
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
    """Returns where so many ranks train a run; None where its run.json says just that."""
    from ..job import read_run

    known = read_run(directory).model.placement
    if known.ranks == world:
        return None
    if known.mode == "split blocks":
        raise ConfigError(
            f"The blocks of {directory.name} are split over GPUs, which one process does. Start it without torchrun, "
            'or make each GPU hold a copy: --set "model.placement.mode=copy per GPU".'
        )
    devices = known.devices if known.mode == "copy per GPU" else "all"
    return replace(known, mode="copy per GPU", devices=devices, copies=world)
