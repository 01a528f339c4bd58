"""A run under torchrun: torchrun's number of processes replaces that of run.json, on one machine or several."""

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
    """Returns the number of processes of a run; PlacementError if this machine has fewer GPUs than that."""
    names = placement.device_names()
    if placement.ranks > len(names) and names != ("cpu",):
        raise PlacementError(
            f"This run is trained by {placement.ranks} processes, and this machine has {len(names)} GPUs for it. Start "
            "it with torchrun on all its machines (docs/use/headless.md), or resume here with --set "
            "model.placement.copies=N, N as many as the GPUs here."
        )
    return placement.ranks


def settle_ranks(directory: Path, roots: Roots, asked: Sequence[str], group: Group) -> None:
    """Adapts a run to torchrun's processes and applies `--set`; called on every rank.

    The first rank of each machine writes run.json, because machines may have separate folders. A refusal on one rank
    ends all ranks. Raises ConfigError if saved steps would belong to another job, or if the ranks' plans distribute the
    run differently.
    """
    from ..job import read_run

    refusal = ""
    if group.local_rank == 0:
        try:
            change_run(directory, roots, asked, placement=_placement(directory, group.world))
        except WanTrainerError as error:
            refusal = str(error)
    if refusals := [found for found in group.gather(refusal) if found]:
        raise ConfigError(refusals[0])
    # `auto` plans for the cards of one machine; ranks with different plans would wait for each other without end.
    here = read_run(directory).model.placement
    meshes = group.gather((here.ranks, here.shards, here.context_parallel))
    if other := next((rank for rank, mesh in enumerate(meshes) if mesh != meshes[0]), 0):
        raise ConfigError(
            "Ranks 0 and {rank} would divide this run differently (processes, shards, context_parallel: {first} and "
            "{other}), because their machines differ in GPUs or in run.json. Set model.placement.shards and "
            "model.placement.context_parallel to numbers.",
            rank=other,
            first=", ".join(map(str, meshes[0])),
            other=", ".join(map(str, meshes[other])),
        )


def _placement(directory: Path, world: int) -> PlacementConfig | None:
    """Returns the placement for `world` ranks; None if the placement in run.json fits."""
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
