"""Chooses the DeviceMesh of many ranks: data parallel x FSDP x context parallel.

A pure function of bytes, speeds and counts; nothing is measured, and no process group is needed.

    pass = max(computing + exchange of tokens, gathering of weights, copies to or from host memory)
    step = passes * (forward + backward) + average of the adapters' gradients

Neighbouring ranks split the tokens of a clip (context parallel). Several such groups hold one copy of the blocks
together (FSDP2 over both dimensions), and this repeats (data parallel). Frozen weights have no gradients, so a block is
gathered twice a micro-batch, and only the gradients of adapters are averaged, over all ranks. Assumptions: gathering
overlaps with computing, the exchange and the average do not; a group of several machines has the speed between them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from ..accelerator import planned_gpu
from ..errors import WanTrainerError
from ..parallel import check_clip
from ..placement import FreeMemory, JobShape, MemoryEstimate, Placement, PlacementConfig, free_memory_of_cards
from .cards import Card, card_of_size
from .choices import fewest_measures
from .modes import AS_QUICK, in_seconds
from .split_time import COPIES
from .step_time import LINK, exchanged_bytes, work_of_passes
from .workload import Workload

_GIB = 1 << 30
_A_MACHINE = 8
"""assumed ranks of one machine"""
_LARGE = 80
_LINKED, _PCIE = (300e9, 50e9), (LINK, 1.25e9)
"""bytes/s of a rank inside a machine and between machines: NVLink and 400 Gbit/s; through the host and 10 Gbit/s"""


@dataclass(frozen=True)
class World:
    """Ranks with equal cards, and the speed of their links."""

    ranks: int
    a_machine: int
    """ranks of one machine"""
    inside: float
    """bytes/s that a rank sends to other ranks of its machine, while it receives as much"""
    between: float
    """bytes/s that a rank sends to ranks of other machines: a card's share of the network"""

    def rate(self, ranks: int) -> float:
        """Returns the bytes/s of a rank in a group of this many neighbouring ranks."""
        return self.inside if ranks <= self.a_machine and self.a_machine % ranks == 0 else self.between


@dataclass(frozen=True)
class Mesh:
    """Sizes of a DeviceMesh (data, fsdp, context); each rank belongs to one group of each dimension."""

    data: int
    fsdp: int
    context: int

    @property
    def batches(self) -> int:
        """Number of micro-batches that the ranks train at the same time."""
        return self.data * self.fsdp

    @property
    def holders(self) -> int:
        """Ranks that hold one copy of the blocks together."""
        return self.fsdp * self.context if self.fsdp > 1 else 1

    def settings(self) -> dict[str, Any]:
        """Returns the mesh as settings of `model.placement`."""
        ranks = self.batches * self.context
        return {
            "mode": "copy per GPU",
            "copies": ranks,
            "shards": self.holders,
            "context_parallel": self.context,
        }

    def __str__(self) -> str:
        sizes = {"data": self.data, "fsdp": self.fsdp, "cp": self.context}
        return " x ".join(f"{name} {size}" for name, size in sizes.items() if size > 1) or "one rank"


@dataclass(frozen=True)
class MeshPlan:
    """An optimizer step on a mesh, with the bytes that one rank sends."""

    mesh: Mesh
    passes: int
    """micro-batches of a rank in a step"""
    estimate: MemoryEstimate
    seconds: float
    gathered: int = 0
    exchanged: int = 0
    averaged: int = 0
    why_not: str = ""

    @property
    def sent(self) -> int:
        return self.gathered + self.exchanged + self.averaged

    @property
    def peak(self) -> int:
        """Peak bytes of a card."""
        return next(iter(self.estimate.devices.values())).peak


def choose_mesh(job: Workload, card: Card, free: int, world: World, clips: int) -> list[MeshPlan]:
    """Returns a plan of every mesh that divides `clips` of an optimizer step evenly, the best one first.

    The best is the fastest that fits; of meshes about as fast, that with the least context parallel, then the least
    FSDP. Where none fits, it is the mesh with the least memory. `free`: bytes of each card. Raises WanTrainerError if
    no mesh divides this number of clips.
    """
    plans = [plan for mesh in _meshes(job, world, clips) if (plan := mesh_plan(job, card, free, world, clips, mesh))]
    if not plans:
        raise WanTrainerError(
            f"{clips} clips per step cannot be divided evenly among {world.ranks} ranks. Set another batch_size or "
            "gradient_accumulation_steps."
        )
    fits = [plan for plan in plans if not plan.why_not]
    if not fits:
        return sorted(plans, key=lambda plan: plan.peak)
    quickest = min(plan.seconds for plan in fits)
    best = min(
        (plan for plan in fits if plan.seconds <= (1 + AS_QUICK) * quickest),
        key=lambda plan: (plan.mesh.context, plan.mesh.fsdp),
    )
    others = (plan for plan in plans if plan is not best)
    return [best, *sorted(others, key=lambda plan: (bool(plan.why_not), plan.seconds))]


def world_report(job: Workload, gibibytes: float, ranks: int, clips: int) -> dict[str, object]:
    """Returns the mesh of a job on assumed cards as JSON data: settings, a line on the choice, and assumed links.

    `clips`: number in an optimizer step. Cards of 80 GB and more are assumed to have NVLink and a network card each.
    """
    card, (free,) = card_of_size(gibibytes), free_memory_of_cards([gibibytes]).devices.values()
    world = _world(card, ranks, _A_MACHINE)
    plans = choose_mesh(job, card, free, world, clips)
    return {
        "line": mesh_line(plans, card, world),
        "settings": plans[0].mesh.settings(),
        "links_gb_per_s": {"inside": world.inside / 1e9, "between": world.between / 1e9},
    }


def with_mesh(job: Workload, card: Card, free: int, a_machine: int) -> Workload:
    """Returns a job with the best mesh for the same number of clips per step, and the reason in `placement.chosen`.

    `free`: bytes of each card; `a_machine`: ranks of one machine. Raises what `choose_mesh` does.
    """
    requested, train = job.model.placement, job.train
    world = _world(card, requested.ranks, a_machine)
    clips = requested.ranks * job.step.batch_size * train.gradient_accumulation_steps
    on_card = Placement((planned_gpu(0),) * job.file.variant.shape.num_layers)
    plans = choose_mesh(replace(job, placement=on_card), card, free, world, clips)
    mesh = plans[0].mesh
    chosen = mesh_line(plans, card, world)
    placement = replace(requested, shards=mesh.holders, context_parallel=mesh.context, chosen=chosen)
    train = replace(train, gradient_accumulation_steps=plans[0].passes)
    return replace(job, train=train, model=job.model.with_placement(placement))


def _world(card: Card, ranks: int, a_machine: int) -> World:
    return World(ranks, min(ranks, a_machine), *(_LINKED if card.gibibytes >= _LARGE else _PCIE))


def mesh_line(plans: list[MeshPlan], card: Card, world: World) -> str:
    """Returns the best and the next three meshes in one line: "8 x 24 GB: fsdp 4 x cp 2, 9.1 s a step; ..."."""
    said = [f"{plan.mesh} {plan.why_not or in_seconds(plan.seconds)}" for plan in plans[1:4]]
    best = plans[0]
    verdict = f"{best.mesh}, {in_seconds(best.seconds)} a step"
    if best.why_not:
        verdict = f"no mesh fits; {best.mesh} {best.why_not}"
    return f"{world.ranks} x {card.gibibytes} GB: {'; '.join([verdict, *said])}."


def mesh_plan(job: Workload, card: Card, free: int, world: World, clips: int, mesh: Mesh) -> MeshPlan | None:
    """Returns the plan on one mesh; None if the job cannot have it, for example several token routes with context
    parallel.

    Context parallel uses all-to-all if the number of heads divides evenly, else a ring.
    """
    model = job.model.with_placement(PlacementConfig(devices="cpu", **mesh.settings()))  # no GPU of this machine
    train = replace(job.train, gradient_accumulation_steps=1)
    if mesh.holders > 1:  # the weights of a block are gathered from other ranks
        train = replace(train, blocks_to_swap=0)
    job = replace(job, train=train, model=model)
    room = FreeMemory(devices={str(planned_gpu(0)): free})
    try:
        shape = job.shape()
        if mesh.context > 1:
            check_clip(job.step.in_frame, mesh.context, shape.routes)
        estimate = fewest_measures(job, shape, room)
    except WanTrainerError:
        return None
    passes = clips // (mesh.batches * job.step.batch_size)
    seconds, gathered, exchanged = _micro_batch(job, shape, estimate, card, world, mesh)
    averaged = int(8 * sum(shape.adapter_values.values()) * (world.ranks - 1) / world.ranks)
    lacks = room.lacks(estimate)
    return MeshPlan(
        mesh,
        passes,
        estimate,
        passes * seconds + averaged / world.rate(world.ranks),
        passes * gathered,
        passes * exchanged,
        averaged,
        f"does not fit ({lacks[0][1] / _GIB:.1f} of {free / _GIB:.1f} GiB)" if lacks else "",
    )


def _micro_batch(
    job: Workload, shape: JobShape, estimate: MemoryEstimate, card: Card, world: World, mesh: Mesh
) -> tuple[float, int, int]:
    """Returns the seconds of a micro-batch, and the bytes of weights and of tokens that a rank sends."""
    forward, backward = (work.seconds(card) for work in work_of_passes(shape, job.step, estimate))
    of_tokens = exchanged_bytes(shape, job.step)
    there, back = (sent / world.rate(mesh.context) for sent in of_tokens)
    # In a ring all-gather, a rank sends every part but one to the next rank.
    blocks = sum(size for _, block, size, _ in shape.base_weights if block)
    of_weights = blocks * (mesh.holders - 1) // mesh.holders
    gathering = of_weights / world.rate(mesh.holders)
    weights, kept = sum(estimate.streamed.values()) / COPIES, estimate.inputs / COPIES
    seconds = max(forward + there, gathering, weights, kept) + max(backward + back, gathering, weights + kept)
    return seconds, 2 * of_weights, sum(of_tokens)


def _meshes(job: Workload, world: World, clips: int) -> Iterator[Mesh]:
    for context in _divisors(world.ranks):
        for fsdp in _divisors(world.ranks // context):
            mesh = Mesh(world.ranks // context // fsdp, fsdp, context)
            if clips % (mesh.batches * job.step.batch_size) == 0:
                yield mesh


def _divisors(number: int) -> list[int]:
    return [one for one in range(1, number + 1) if number % one == 0]
