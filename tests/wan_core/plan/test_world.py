"""A plan of 32 ranks: the chosen mesh, and the bytes that one of these ranks sends, over fake process groups."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch.distributed.device_mesh import init_device_mesh
from torch.utils._python_dispatch import TorchDispatchMode

from tests.support.tiny_run import TINY, random_weights
from wan_core.errors import WanTrainerError
from wan_core.files import Roots
from wan_core.load import ModelPlan, inspect_model
from wan_core.lora import LoraConfig, inject_lora
from wan_core.model import WanTransformer
from wan_core.parallel import ClipRanks, RankTokens, ShardedBlocks, Sharding
from wan_core.placement import BlockOffload, MemoryMeasures, Placement, PlacementConfig, StepShape
from wan_core.placement.measures import running_order
from wan_core.plan import Workload
from wan_core.plan.cards import Card, card_named
from wan_core.plan.world import Mesh, World, choose_mesh, mesh_line, mesh_plan, with_mesh
from wan_core.train import TrainConfig

SHAPE = replace(TINY, dim=512, ffn_dim=1024, num_heads=4)
WORLD = World(ranks=32, a_machine=8, inside=300e9, between=50e9)
LARGE = StepShape(batch_size=1, latent_frames=21, latent_height=90, latent_width=160)
SMALL = StepShape(batch_size=1, latent_frames=2, latent_height=8, latent_width=8)
LORA = LoraConfig(rank=4)
TRAIN = TrainConfig(checkpointing_policy="full", memory="manual")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Workload:
    folder = tmp_path_factory.mktemp("models")
    save_file(random_weights(SHAPE), folder / "tiny.safetensors")
    plan = ModelPlan(base_file="diffusion_models:tiny.safetensors", base_precision="fp32")
    roots = Roots({"diffusion_models": (str(folder),)})
    return Workload(
        model=plan,
        roots=roots,
        file=inspect_model(plan, roots),
        lora=LORA,
        train=TRAIN,
        step=LARGE,
        placement=Placement((torch.device("cuda", 0),) * SHAPE.num_layers),
    )


def h100() -> Card:
    card = card_named("NVIDIA H100")
    assert card is not None
    return card


@pytest.fixture
def ranks() -> Iterator[None]:
    """Rank 0 of 32, whose collectives go nowhere."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    torch.distributed.init_process_group("fake", rank=0, world_size=32, store=FakeStore())
    yield
    torch.distributed.destroy_process_group()


class Sent(TorchDispatchMode):
    """The bytes that this rank sends in rings of `ranks`, by the name of the collective."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes, self.ranks = Counter[str](), 1

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.name()
        if name == "c10d::_allgather_base_":
            self.bytes["gathered"] += args[1].nbytes * (self.ranks - 1)
        elif name == "c10d::send":
            self.bytes["exchanged"] += sum(one.nbytes for one in args[0])
        elif name == "c10d::allreduce_":
            self.bytes["averaged"] += 2 * sum(one.nbytes for one in args[0]) * 31 // 32
        return func(*args, **(kwargs or {}))


@pytest.mark.lasts(2)
def test_the_mesh_of_a_plan_builds_and_a_step_sends_the_bytes_that_were_planned(tiny: Workload, ranks: None) -> None:
    small = replace(tiny, step=SMALL)
    plan = mesh_plan(small, h100(), 79 << 30, WORLD, 16, Mesh(data=4, fsdp=4, context=2))
    assert plan is not None
    sizes = (plan.mesh.data, plan.mesh.fsdp, plan.mesh.context)
    mesh = init_device_mesh("cpu", sizes, mesh_dim_names=("data", "fsdp", "context"))
    holders = mesh["fsdp", "context"]._flatten("holders")
    groups = [torch.distributed.get_process_group_ranks(mesh.get_group(name)) for name in ("data", "context")]
    assert groups == [[0, 8, 16, 24], [0, 1]], "neighbours share a clip; copies of the base are a machine apart"
    assert torch.distributed.get_process_group_ranks(holders.get_group()) == [*range(8)]
    assert plan.mesh.settings() == {"mode": "copy per GPU", "copies": 32, "shards": 8, "context_parallel": 2}
    placement = PlacementConfig(**plan.mesh.settings())
    assert (placement.ranks, placement.sharders, placement.parts, placement.batches) == (32, 8, 2, 16)

    order = running_order(SHAPE.num_layers)
    inner = BlockOffload(Placement((torch.device("cpu"),) * SHAPE.num_layers), order, MemoryMeasures())
    sharded = ShardedBlocks(inner, order, Sharding(holders, share=lambda value: value, leads=True))
    model = WanTransformer(SHAPE)
    model.load_state_dict(random_weights(SHAPE))
    model.requires_grad_(False)
    for number, block in enumerate(model.blocks):
        sharded.offload_block(f"blocks.{number}", block)
    inject_lora(model, LORA, seed=0)
    model.checkpoint_blocks, model.offload = True, sharded
    clip = ClipRanks(mesh.get_group("context"), [0, 1], 0, nullcontext)
    model.team = RankTokens(model, clip, "all-to-all")
    sent = Sent()
    sent.ranks = plan.mesh.holders
    with sent, sharded.together():
        model(torch.zeros(1, 16, 2, 8, 8), torch.ones(1), torch.zeros(1, 4, 4096)).sum().backward()
        gradients = [one.grad for one in model.parameters() if one.grad is not None]
        torch.distributed.all_reduce(torch.cat([one.reshape(-1) for one in gradients]))
    # FSDP pads the modulation, one row, to a row for each rank.
    padding = 2 * SHAPE.num_layers * 6 * SHAPE.dim * 4 * (plan.mesh.holders - 1) * 7 // 8
    assert plan.passes == 1
    assert sent.bytes["gathered"] - padding == pytest.approx(plan.gathered, rel=0.001)
    assert sent.bytes["averaged"] == plan.averaged
    # By hand: queries, keys, values and outputs, with their gradients, and again; half of own 16 tokens' heads leave.
    assert plan.exchanged == 3 * 4 * 16 * SHAPE.dim * 4 // 2 * SHAPE.num_layers
    answer = 16 * 64 * 4
    assert sent.bytes["exchanged"] == plan.exchanged + answer, "around attention, and the answer of own tokens once"


@pytest.mark.lasts(1)
@pytest.mark.soak
def test_a_quarter_of_a_clip_for_each_rank_is_context_parallel_of_four(tiny: Workload) -> None:
    plans = choose_mesh(tiny, h100(), 79 << 30, WORLD, clips=8)
    assert str(plans[0].mesh) == "data 8 x cp 4"
    assert mesh_line(plans, h100(), WORLD).startswith("32 x 80 GB: data 8 x cp 4, ")
    assert {plan.mesh.batches for plan in plans if plan.passes == 1} == {8}
    assert str(choose_mesh(tiny, h100(), 79 << 30, WORLD, clips=32)[0].mesh) == "data 32", "one clip each sends least"
    small = min(plan.peak for plan in plans)
    tight = choose_mesh(tiny, h100(), small, WORLD, clips=8)
    assert (tight[0].why_not, tight[0].peak) == ("", small)
    assert mesh_line(choose_mesh(tiny, h100(), 1, WORLD, 8), h100(), WORLD).startswith("32 x 80 GB: no mesh fits; ")
    with pytest.raises(WanTrainerError, match=r"3 clips per step cannot be divided evenly among 32 ranks\."):
        choose_mesh(replace(tiny, step=SMALL), h100(), 79 << 30, WORLD, clips=3)


@pytest.mark.lasts(1)
def test_a_job_on_ranks_gets_the_mesh_for_its_clips_and_a_ring_where_heads_do_not_divide(tiny: Workload) -> None:
    """The exchange decides: 3 ranks of one clip, with 4 heads."""
    three = PlacementConfig(mode="copy per GPU", devices="cpu", copies=3, context_parallel=0)
    train = replace(TRAIN, gradient_accumulation_steps=2)
    found = with_mesh(replace(tiny, model=tiny.model.with_placement(three), train=train), h100(), 79 << 30, 8)
    assert (found.model.placement.context_parallel, found.train.gradient_accumulation_steps) == (1, 2)
    assert found.model.placement.chosen.startswith("3 x 80 GB: data 3, ")
    plans = choose_mesh(tiny, h100(), 79 << 30, replace(WORLD, ranks=3), clips=1)
    assert str(plans[0].mesh) == "cp 3"
    # By hand: keys and values in float32 to both others; forward, again, backward, and then their gradients.
    assert plans[0].exchanged == 4 * 2 * 2 * 4 * LARGE.tokens // 3 * SHAPE.dim * SHAPE.num_layers
