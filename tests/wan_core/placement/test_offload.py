"""Inputs and weights that leave between the passes: the same bits, one block ahead, and nothing is lost or kept."""

from __future__ import annotations

import functools
import gc
import weakref
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.support.blocks import SHAPE
from tests.support.containers import write_gguf, write_int8, write_mxfp8, write_nvfp4
from tests.support.late_copies import LateCopies
from tests.support.tiny_run import make_roots, random_weights
from wan_core.errors import PlacementError
from wan_core.load import ModelPlan, materialize
from wan_core.lora import LoraConfig, adapter_parameters, inject_lora
from wan_core.model import POLICIES, Conditioning, Numerics, Policy, WanShape, WanTransformer
from wan_core.placement import kept
from wan_core.placement.measures import MemoryMeasures, running_order
from wan_core.placement.model_offload import offloaded_model
from wan_core.placement.offload import BlockOffload
from wan_core.placement.plan import Placement
from wan_core.precision import PrecisionPolicy, QuantizeConfig, quantize_block

pytestmark = pytest.mark.lasts(0.3)

CPU = torch.device("cpu")
LAYERS = 5
DEEP = replace(SHAPE, num_layers=LAYERS)
SIX_FRAMES, TWO_FRAMES = (6, 4, 6), (2, 4, 6)
INPUT = 6 * 2 * 3 * SHAPE.dim * 4
"""bytes of one kept input at `SIX_FRAMES`"""
CHUNK = 5 << 10
SMALL, LARGE = -(-LAYERS * INPUT // 3 // CHUNK), -(-LAYERS * INPUT // CHUNK)
"""chunks of host memory that the kept inputs of a pass take at `TWO_FRAMES` and at `SIX_FRAMES`"""
# No repeat of a group: such a pattern is tried in a process of its own, for every model here.
ATTENTION, FFN = r"blocks\.\d+\.(self_attn|cross_attn)\.(q|k|v|o)", r"blocks\.\d+\.ffn\.(0|2)"
TARGETS = (ATTENTION, FFN, f"vace_{ATTENTION}", f"vace_{FFN}")
VARIANTS: dict[str, dict[str, Any]] = {"t2v": {}, "vace": {"vace_layers": (0, 2)}, "i2v": {"image_dim": 20}}


@dataclass
class Job:
    """A tiny model with adapters, and what it did."""

    model: WanTransformer
    copies: LateCopies
    offload: BlockOffload | None

    @property
    def chunks(self) -> int:
        """How many there are in host memory for what is kept."""
        return sum(memory.numel() == CHUNK for memory in self.copies.host)

    def step(self, size: tuple[int, int, int] = SIX_FRAMES, *, seed: int = 0) -> dict[str, Tensor]:
        """Output and gradients of one forward and backward pass."""
        output = self.forward(size, seed=seed)
        output.square().mean().backward()
        found = {name: p.grad for name, p in adapter_parameters(self.model).items() if p.grad is not None}
        for parameter in adapter_parameters(self.model).values():
            parameter.grad = None
        return found | {"output": output.detach()}

    def forward(self, size: tuple[int, int, int] = SIX_FRAMES, *, seed: int = 0) -> Tensor:
        generator, shape = torch.Generator().manual_seed(seed), self.model.shape
        latent = torch.randn(1, 16, *size, generator=generator)
        text = torch.randn(1, 512, 8, generator=generator)
        vace = torch.randn(1, 96, *size, generator=generator) if shape.vace_layers else None
        images = torch.randn(1, 3, 20, generator=generator) if shape.image_dim else None
        given = Conditioning(vace=vace, image_tokens=images) if vace is not None or images is not None else None
        return self.model(latent, torch.tensor([500.0]), text, given)


def job(
    measures: MemoryMeasures | None,
    shape: WanShape = DEEP,
    *,
    numerics: Numerics | None = None,
    scheme: str = "",
    kept: int | None = None,
    locked: int | None = None,
    lora: LoraConfig | None = None,
) -> Job:
    """The same model each time, with `measures` applied to it; None: nothing leaves, and nothing is run again."""
    torch.manual_seed(0)
    model, copies = WanTransformer(shape, numerics or Numerics()), LateCopies(locked)
    for p in model.parameters():
        nn.init.normal_(p, std=0.2)
    model.requires_grad_(False)
    offload, names = None, running_order(LAYERS, shape.vace_layers)
    if measures is not None:
        offload = BlockOffload(
            Placement((CPU,) * LAYERS), names, measures, copies=lambda _: copies, most_host_bytes=kept
        )
    for name in names:
        block = model.get_submodule(name)
        setattr(block, "chunk_tokens", 18)  # noqa: B010
        if scheme:
            quantize_block(block, name, QuantizeConfig(scheme=scheme, vace_blocks=True))
        if offload is not None:
            offload.offload_block(name, block)
    inject_lora(model, lora or LoraConfig(rank=2, targets=TARGETS), seed=1)
    for number, adapter in enumerate(adapter_parameters(model).values()):
        adapter.data = torch.randn(adapter.shape, generator=torch.Generator().manual_seed(number))
    model.checkpoint_blocks = offload is not None
    if offload is not None:
        model.offload = offload
    return Job(model, copies, offload)


plain_job = functools.cache(functools.partial(job, None))
"""made once for each of its arguments: a step leaves it as it was"""


@functools.cache
def plain_step(seed: int = 0, **how: Any) -> dict[str, Tensor]:
    """Output and gradients of a model of which nothing leaves."""
    return plain_job(**how).step(seed=seed)


def assert_same_bits(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name, value in found.items():
        assert torch.equal(value, expected[name]), name


MEASURES = {
    "inputs": MemoryMeasures(offload_inputs=True),
    "one": MemoryMeasures(blocks_to_swap=1),
    "three": MemoryMeasures(blocks_to_swap=3),
    "all": MemoryMeasures(offload_inputs=True, blocks_to_swap=99),
}


@pytest.mark.parametrize(
    ("measures", "variant"),
    [
        pytest.param(m, v, marks=[] if (m == "all" and v != "t2v") or (m, v) == ("three", "t2v") else pytest.mark.soak)
        for m in MEASURES
        for v in VARIANTS
    ],
)
def test_no_bit_changes_in_training_nor_in_a_preview_between(measures: str, variant: str) -> None:
    shape = replace(DEEP, **VARIANTS[variant])
    moved = job(MEASURES[measures], shape)
    for seed in range(2):
        expected = plain_step(seed, shape=shape)
        assert_same_bits(moved.step(seed=seed), expected)
        with torch.no_grad():
            assert torch.equal(moved.forward(seed=seed), expected["output"])
    assert moved.copies.begun


@pytest.mark.parametrize("scheme", [pytest.param("", marks=pytest.mark.soak), "int8"])
def test_trained_norms_and_biases_stay_where_the_block_runs(scheme: str) -> None:
    lora = LoraConfig(rank=2, targets=TARGETS, also_train="norms and biases")
    moved = job(MEASURES["all"], lora=lora, scheme=scheme)
    for seed in range(2):
        assert_same_bits(moved.step(seed=seed), plain_step(seed, lora=lora, scheme=scheme))
    assert moved.copies.begun


@pytest.mark.parametrize(
    ("policy", "scheme"),
    [
        pytest.param("reference", "int8", marks=pytest.mark.soak),
        *(pytest.param("balanced", scheme, marks=pytest.mark.soak) for scheme in ("fp8_e4m3fn", "int8")),
        ("fast", "int8"),
    ],
)
def test_packed_weights_travel_packed_under_every_policy(policy: str, scheme: str) -> None:
    numerics = PrecisionPolicy(preset=policy).numerics(torch.bfloat16)
    moved = job(MEASURES["all"], numerics=numerics, scheme=scheme)
    for seed in range(2):
        assert_same_bits(moved.step(seed=seed), plain_step(seed, numerics=numerics, scheme=scheme))


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks of host memory into which a kept input does not fit: it lies across two or three."""
    monkeypatch.setattr(kept, "CHUNK_BYTES", CHUNK)


def test_every_copy_has_the_time_of_a_block() -> None:
    """Between its begin and the first wait for it a block computes: in both directions, over the turn, to a preview."""
    moved = job(MEASURES["all"])
    count_blocks(moved)
    moved.step()
    first = len(moved.copies.begun)
    moved.step()
    with torch.no_grad():
        moved.forward()
        moved.forward()
    late = [copy for copy in moved.copies.begun[first:] if copy.waited_at == copy.begun_at]
    assert not late
    assert len(moved.copies.begun) - first > 3 * LAYERS


def test_weights_come_to_the_device_three_times_a_step_less_what_is_still_there() -> None:
    moved = job(MemoryMeasures(blocks_to_swap=99))
    moved.step()
    begun = len(moved.copies.begun)
    moved.step()
    # Forward all five, of which two are there from before; backward all five, of which two are still there.
    assert len(moved.copies.begun) - begun == 2 * (LAYERS - 2)
    assert all(moved.copies.at_home(copy.source) for copy in moved.copies.begun), "never back to the host"


def test_a_block_that_rests_lies_in_host_memory_and_its_adapters_do_not() -> None:
    moved = job(MemoryMeasures(blocks_to_swap=2))
    for name, parameter in moved.model.named_parameters():
        rests = name.startswith(("blocks.2.", "blocks.4.")) and not parameter.requires_grad
        assert moved.copies.at_home(parameter) == rests, name


def test_making_room_gives_back_the_buffers_of_the_ring_too() -> None:
    moved = job(MEASURES["all"])
    moved.step()
    arrived = [copy.target for copy in moved.copies.begun if moved.copies.at_home(copy.source)]
    memory = [weakref.ref(target.untyped_storage()) for target in arrived]
    del arrived
    moved.copies.begun.clear()
    assert len({id(found) for held in memory if (found := held()) is not None}) == 2
    with offloaded_model(moved.model):
        assert not [held for held in memory if held() is not None]
    assert_same_bits(moved.step(), plain_step())


def test_the_host_memory_of_one_step_serves_all_others() -> None:
    moved = job(MEASURES["inputs"])
    for size, chunks in ((TWO_FRAMES, SMALL), (SIX_FRAMES, LARGE), (TWO_FRAMES, LARGE), (SIX_FRAMES, LARGE)):
        moved.step(size)
        assert moved.chunks == chunks
    with torch.no_grad():
        moved.forward((9, 4, 6))
    assert moved.chunks == LARGE, "a pass that nobody walks back keeps nothing"


@pytest.mark.parametrize("trained", [pytest.param(False, marks=pytest.mark.soak), True])
def test_a_model_that_rests_for_long_gives_back_the_host_memory_of_kept_inputs(trained: bool) -> None:
    """Another one trains meanwhile and keeps its own; for a preview it is held, since locking it takes seconds."""
    found = job(MemoryMeasures(offload_inputs=True, blocks_to_swap=2))
    assert_same_bits(found.step(), plain_step())
    handed_out = [weakref.ref(memory) for memory in found.copies.host if memory.numel() == CHUNK]
    found.copies.host = [memory for memory in found.copies.host if memory.numel() != CHUNK]
    found.copies.begun.clear()
    with offloaded_model(found.model, trained=trained):
        gc.collect()
        assert sum(ref() is not None for ref in handed_out) == (0 if trained else LARGE)
    if trained:
        assert_same_bits(found.step(), plain_step())
        assert found.chunks == LARGE


def test_stronger_measures_take_over_what_rests_already() -> None:
    """They come where memory is short, so nothing lies in host memory twice, also not for the time of a change."""
    found = job(MemoryMeasures(offload_inputs=True, blocks_to_swap=1))
    assert_same_bits(found.step(), plain_step())
    while found.offload is not None and (offload := found.offload.stronger(found.model)) is not None:
        found.offload = found.model.offload = offload
        assert_same_bits(found.step(), plain_step())
    assert found.model.offload.measures.blocks_to_swap == LAYERS
    assert found.chunks == LARGE
    weights = [memory.numel() for memory in found.copies.host if memory.numel() != CHUNK]
    assert len(weights) == LAYERS
    assert not any(p.requires_grad for p in found.model.parameters() if found.copies.at_home(p))
    frozen = [p for p in found.model.blocks.parameters() if not p.requires_grad]
    assert all(found.copies.at_home(p) for p in frozen)


def test_a_pass_without_a_backward_pass_leaves_nothing_behind() -> None:
    moved = job(MEASURES["all"])
    for _ in range(3):
        moved.forward()
    assert_same_bits(moved.step(), plain_step())
    assert moved.chunks == LARGE


@pytest.mark.parametrize("breaks_off", [False, True])
def test_what_is_on_its_way_is_waited_for_before_its_memory_goes(breaks_off: bool) -> None:
    """Of a model that is dropped: the blocks of a pass that does not come, or what a pass that broke off kept."""
    moved = job(MEASURES["all"])
    moved.step()
    with torch.set_grad_enabled(breaks_off):
        moved.forward()
    copies = moved.copies.begun
    assert [copy for copy in copies if copy.waited_at < 0]
    del moved.model, moved.offload
    gc.collect()
    assert not [copy for copy in copies if copy.waited_at < 0]


def test_two_passes_before_the_first_backward_pass_are_told_apart() -> None:
    plain, moved = job(MemoryMeasures()), job(MEASURES["all"])
    found = []
    for one in (plain, moved):
        outputs = [one.forward(seed=seed).square().mean() for seed in range(2)]
        outputs[0].backward()
        outputs[1].backward()
        found.append({name: p.grad for name, p in adapter_parameters(one.model).items() if p.grad is not None})
    assert_same_bits(*found)


POLICIES_AWAY = {
    "matmuls": POLICIES["offload_matmul_without_batch"],
    "attention": Policy(offloaded=frozenset({"attn_output", "xq_out", "xk_out"})),
    "some": Policy(saved=frozenset({"attn_output"}), offloaded=frozenset({"ffn_activation", "cross_attn"})),
}


@pytest.mark.parametrize(
    "policy", [p if p == "some" else pytest.param(p, marks=pytest.mark.soak) for p in POLICIES_AWAY]
)
def test_what_a_policy_offloads_comes_back_with_its_bits(policy: str) -> None:
    moved = job(MEASURES["all"])
    moved.model.checkpoint_policy = POLICIES_AWAY[policy]
    for seed in range(2):
        assert_same_bits(moved.step(seed=seed), plain_step(seed))
    assert len(moved.copies.begun) > 2 * copies_of_two_steps()


@functools.cache
def copies_of_two_steps() -> int:
    """Of inputs and weights alone."""
    bare = job(MEASURES["all"])
    for seed in range(2):
        bare.step(seed=seed)
    return len(bare.copies.begun)


def test_a_block_that_keeps_its_activations_cannot_rest() -> None:
    moved = job(MemoryMeasures(blocks_to_swap=99))
    moved.model.unchecked_blocks = 2
    with pytest.raises(PlacementError, match=r"blocks\.3 are offloaded to host memory.*unchecked_blocks 0"):
        moved.step()
    with torch.no_grad():
        moved.forward()


def test_a_pass_that_breaks_off_leaves_every_block_at_rest_and_the_next_one_right() -> None:
    moved, expected = job(MEASURES["all"]), plain_step()
    for broken in ("blocks.2.ffn.0", "blocks.2.self_attn.o"):
        for kind in ("register_forward_hook", "register_full_backward_pre_hook"):
            handle = getattr(moved.model.get_submodule(broken), kind)(fail)
            with pytest.raises(RuntimeError, match="in the middle"):
                moved.step()
            handle.remove()
            for adapter in adapter_parameters(moved.model).values():
                adapter.grad = None
            assert all(moved.copies.at_home(p) for p in moved.model.blocks.parameters() if not p.requires_grad)
            assert_same_bits(moved.step(), expected)
    assert moved.chunks == LARGE


def fail(*_: Any) -> None:
    raise RuntimeError("in the middle")


@pytest.mark.parametrize(
    ("bound", "away", "ours"),
    [
        *((0, 0, False), (3 * CHUNK + 1, 3, True), (3 * CHUNK + 1, 3, False)),
        pytest.param(0, 0, True, marks=pytest.mark.soak),
        *(pytest.param(99 * CHUNK, LARGE, ours, marks=pytest.mark.soak) for ours in (True, False)),
    ],
)
def test_inputs_beyond_the_bound_stay_on_the_device(bound: int, away: int, ours: bool) -> None:
    """A bound of ours, or the system's own, which shows only when memory is asked for."""
    moved = job(MEASURES["inputs"], kept=bound) if ours else job(MEASURES["inputs"], locked=bound)
    for seed in range(2):
        assert_same_bits(moved.step(seed=seed), plain_step(seed))
    assert moved.chunks == away


def test_weights_travel_from_other_memory_where_the_system_locks_no_more() -> None:
    moved = job(MemoryMeasures(blocks_to_swap=99), locked=0)
    assert_same_bits(moved.step(), plain_step())


def test_only_blocks_that_run_again_are_put_away() -> None:
    lora = LoraConfig(rank=2, targets=(r"blocks\.[34]\.ffn\.0",))
    moved = job(MEASURES["all"], lora=lora)
    for seed in range(2):
        assert_same_bits(moved.step(seed=seed), plain_step(seed, lora=lora))
    assert moved.chunks == -(-2 * INPUT // CHUNK)


def count_blocks(moved: Job) -> None:
    """Let the copies know which block computes: the number of starts of a self-attention so far."""
    for number in range(LAYERS):
        attention = moved.model.get_submodule(f"blocks.{number}.self_attn")
        attention.register_forward_pre_hook(lambda *_: moved.copies.tick())


@pytest.mark.parametrize(
    "base",
    [
        *(pytest.param(one, marks=pytest.mark.soak) for one in ("float32", "int8", "nvfp4", "mxfp8", "Q8_0")),
        "int8 convrot",
    ],
)
def test_a_loaded_model_with_measures_is_the_one_without(tmp_path: Path, base: str) -> None:
    """Through the loader: blocks go to rest when they are packed, here or in their file, and adapters start as ever."""
    plan = ModelPlan(base_file="diffusion_models:wan_tiny_t2v.safetensors")
    roots, _ = make_roots(tmp_path)
    file = roots.resolve(plan.base_file)
    if base == "int8":
        plan = replace(plan, quantize=QuantizeConfig(scheme=base))
    elif base == "nvfp4":
        write_nvfp4(file, random_weights())
    elif base == "mxfp8":
        write_mxfp8(file, random_weights())
    elif base == "int8 convrot":
        write_int8(file, random_weights(), group=64)
    elif base == "Q8_0":
        write_gguf(file.with_suffix(".gguf"), random_weights(), base)
        plan = replace(plan, base_file="diffusion_models:wan_tiny_t2v.gguf")
    plain, moved = (
        materialize(plan, roots, LoraConfig(rank=4), seed=3, measures=measures) for measures in (None, MEASURES["all"])
    )
    plain.checkpoint_blocks = moved.checkpoint_blocks = True
    assert [name for name, _ in moved.named_parameters()] == [name for name, _ in plain.named_parameters()]
    inputs = (torch.ones(1, 16, 3, 8, 8), torch.tensor([700.0]), torch.ones(1, 512, 4096))
    for _ in range(2):
        losses = [model(*inputs).square().mean() for model in (plain, moved)]
        for loss in losses:
            loss.backward()
        assert torch.equal(*losses)
    for one, other in zip(adapter_parameters(plain).values(), adapter_parameters(moved).values(), strict=True):
        assert torch.equal(one, other)
        assert one.grad is not None
        assert other.grad is not None
        assert torch.equal(one.grad, other.grad)


@pytest.mark.soak
@pytest.mark.filterwarnings("ignore:The .grad attribute")  # torch looks at it while it compiles
def test_weights_that_move_cost_a_compiled_block_no_graph() -> None:
    from torch._dynamo.testing import CompileCounterWithBackend

    graphs = []
    for measures in (MemoryMeasures(), MEASURES["all"]):
        torch.compiler.reset()
        counter, moved = CompileCounterWithBackend("eager"), job(measures)
        moved.model.compile_blocks(counter)  # type: ignore[arg-type]
        for size in (TWO_FRAMES, SIX_FRAMES, TWO_FRAMES, SIX_FRAMES):
            moved.step(size)
        graphs.append(counter.frame_count)
    assert graphs[0] == graphs[1] > 0


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs one CUDA GPU; this machine has none")
@pytest.mark.parametrize("policy", ["full", "offload_matmul_without_batch"])
def test_on_a_gpu_copies_race_with_nothing_and_less_memory_is_held(
    tmp_path: Path, policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model wide enough that compute is queued far behind the host; the deterministic kernels give the same bits."""
    monkeypatch.undo()  # chunks of their own size
    shape = WanShape(dim=1024, ffn_dim=4096, num_heads=8, num_layers=8)
    plan = ModelPlan(
        base_file="diffusion_models:wan_tiny_t2v.safetensors", base_precision="bf16", attention="sdpa_math"
    )
    roots, _ = make_roots(tmp_path, shape)
    inputs = tuple(x.cuda() for x in (torch.ones(1, 16, 5, 32, 32), torch.tensor([700.0]), torch.ones(1, 512, 4096)))
    found, held = [], []
    for measures in (None, MEASURES["all"]):
        model = materialize(plan, roots, LoraConfig(rank=4), seed=3, measures=measures)
        model.checkpoint_blocks, model.checkpoint_policy = True, POLICIES[policy]
        for number, adapter in enumerate(adapter_parameters(model).values()):
            adapter.data = torch.randn(adapter.shape, generator=torch.Generator().manual_seed(number)).cuda()
        for _ in range(3):
            torch.cuda.reset_peak_memory_stats()
            for adapter in adapter_parameters(model).values():
                adapter.grad = None
            model(*inputs).square().mean().backward()
        held.append(torch.cuda.max_memory_allocated())
        found.append({name: p.grad for name, p in adapter_parameters(model).items() if p.grad is not None})
        del model
        gc.collect()
    assert_same_bits(*found)
    block = 2 * (8 * shape.dim**2 + 2 * shape.dim * shape.ffn_dim)
    assert held[0] - held[1] > (shape.num_layers - 3) * block, "two buffers and a little are left of the weights"
