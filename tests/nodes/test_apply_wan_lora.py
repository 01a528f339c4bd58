"""Apply Wan LoRA on a core MODEL in this process: what was trained, on packed bases too, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from route_server import our_module
from safetensors.torch import save_file
from torch import Tensor

from tests.support.applied_loras import KEPT, KINDS, apart, given_inputs, held_by, held_by_comfyui, trained
from tests.support.containers import SHAPE, weights

pytestmark = pytest.mark.comfy
GIVEN = given_inputs()


class Core:
    """ComfyUI's loader and sampler."""

    def __init__(self, pack_nodes: dict[str, Any]) -> None:
        self.apply = our_module(pack_nodes, "apply_wan_lora")
        self.loras: dict[str, tuple[Tensor, dict[str, Tensor]]] = {}

    def load(self, file: Path, base: str) -> Any:
        import comfy.sd

        return comfy.sd.load_diffusion_model(str(file), {"dtype": KEPT[base]} if base in KEPT else {})

    def sampled(self, model: Any) -> Tensor:
        """The velocity at the first level of noise, from one step of a sampler."""
        import comfy.sample

        noise, _, text = GIVEN
        words, blank = [[text, {}]], torch.zeros_like(noise)
        out = comfy.sample.sample(
            model, noise, 1, 1.0, "euler", "simple", words, words, blank, seed=0, disable_pbar=True
        )
        return noise - model.model.process_latent_in(out)

    def with_lora(self, model: Any, tensors: dict[str, Tensor], folder: Path, strength: float = 1.0) -> Any:
        """As the node does it with a saved step that holds `tensors`."""
        save_file(tensors, folder / "lora.safetensors")
        saved = SimpleNamespace(loras={"": folder / "lora.safetensors"}, lora_file=folder / "lora.safetensors")
        run = SimpleNamespace(directory=folder)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(self.apply, "saved_step", lambda *_: saved)
            return self.apply.with_lora(model, run, 1, strength)


@pytest.fixture(scope="module")
def core(pack_nodes: dict[str, Any]) -> Iterator[Core]:
    with torch.inference_mode():  # as ComfyUI runs every node
        yield Core(pack_nodes)


@pytest.fixture(scope="module")
def packed(core: Core, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, dict[str, Tensor], Tensor]:
    """A scaled fp8 MODEL, the weights it holds, and what it answers."""
    file = tmp_path_factory.mktemp("base") / "fp8.safetensors"
    held = held_by(file, weights(), "fp8 scaled")
    model = core.load(file, "fp8 scaled")
    plain = core.sampled(model)
    return model, held_by_comfyui(model, held), plain


def bits_of(model: Any) -> dict[str, Tensor]:
    return {name: value.reshape(-1).view(torch.uint8).clone() for name, value in model.model.state_dict().items()}


@pytest.mark.parametrize("kind", ["LoRA", "LoRA, norms and biases", pytest.param("OFT", marks=pytest.mark.soak)])
def test_a_packed_base_gives_what_was_trained(core: Core, packed: Any, tmp_path: Path, kind: str) -> None:
    import comfy.sd

    model, held, plain = packed
    wanted, tensors = trained(held, KINDS[kind], GIVEN)
    core.sampled(model)  # without what another test may have merged into it
    bits = bits_of(model)
    applied = core.with_lora(model, tensors, tmp_path)
    assert apart(core.sampled(applied) - plain, wanted) < 0.01
    assert torch.equal(core.sampled(model), plain), "the model it was put on is what it was"
    assert [name for name, value in bits_of(model).items() if not torch.equal(value, bits[name])] == []
    assert not any(module._forward_hooks for module in model.model.modules())
    if kind == "LoRA":
        merged, _ = comfy.sd.load_lora_for_models(model, None, dict(tensors), 1.0, 0)
        assert apart(core.sampled(merged) - plain, wanted) > 1, "what ComfyUI's own loader loses"


@pytest.mark.parametrize("kind", ["DoRA", pytest.param("LoKr", marks=pytest.mark.soak)])
def test_a_bf16_base_is_not_rounded_with_the_change_in_it(core: Core, tmp_path: Path, kind: str) -> None:
    held = held_by(tmp_path / "bf16.safetensors", weights(), "bf16")
    model = core.load(tmp_path / "bf16.safetensors", "bf16")
    wanted, tensors = trained(held, KINDS[kind], GIVEN)
    plain = core.sampled(model)
    assert apart(core.sampled(core.with_lora(model, tensors, tmp_path)) - plain, wanted) < 0.01


def test_a_chain_adds_up_beside_a_lora_of_core_and_a_clone_keeps_it(core: Core, packed: Any, tmp_path: Path) -> None:
    import comfy.sd

    model, held, plain = packed
    (one, first), (two, second) = (trained(held, KINDS[kind], GIVEN) for kind in ("LoRA", "LoHa"))
    chain = core.with_lora(core.with_lora(model, first, tmp_path, 0.5), second, tmp_path, -1.0)
    changed = core.sampled(chain) - plain
    assert apart(changed, 0.5 * one - two) < 0.1, "the model itself is not linear"
    assert torch.equal(core.sampled(chain.clone()), core.sampled(chain))
    nothing, _ = comfy.sd.load_lora_for_models(chain, None, dict(second), 0.0, 0)
    assert apart(core.sampled(nothing) - plain, changed) < 0.5, "core packs the weights again; ours acts on them"
    assert torch.equal(core.sampled(core.with_lora(model, first, tmp_path, 0.0)), plain)


def test_it_acts_in_a_model_that_is_loaded_in_part_and_unloaded(core: Core, packed: Any, tmp_path: Path) -> None:
    import comfy.model_management

    model, held, plain = packed
    wanted, tensors = trained(held, KINDS["LoRA"], GIVEN)
    applied = core.with_lora(model, tensors, tmp_path)
    comfy.model_management.unload_all_models()
    applied.patch_model(
        torch.device("cpu"), lowvram_model_memory=1
    )  # nothing fits: each weight is cast when it is used
    assert applied.model.model_lowvram
    noise, _, text = GIVEN
    found = [
        applied.model.apply_model(noise, torch.ones(1), c_crossattn=text, transformer_options={"wrappers": wrappers})
        for wrappers in (applied.wrappers, {})
    ]
    assert apart(found[1] - found[0], wanted) < 0.01  # of the clip without noise, which is noise - velocity
    applied.unpatch_model(torch.device("cpu"))
    comfy.model_management.unload_all_models()
    assert apart(core.sampled(applied) - plain, wanted) < 0.01


def test_its_values_are_a_model_that_comfyui_loads_and_counts(core: Core, packed: Any, tmp_path: Path) -> None:
    model, held, _ = packed
    _, tensors = trained(held, KINDS["LoRA"], GIVEN)
    applied = core.with_lora(model, tensors, tmp_path)
    (beside,) = applied.get_nested_additional_models()
    numbers = sum(value.nbytes for name, value in tensors.items() if not name.endswith(".alpha"))
    assert beside.model_size() == numbers
    assert (beside.load_device, beside.offload_device) == (model.load_device, model.offload_device)


def test_a_lora_of_another_size_is_refused_when_it_is_applied(core: Core, packed: Any, tmp_path: Path) -> None:
    model, _, _ = packed
    tensors = {
        "diffusion_model.blocks.0.ffn.0.lora_A.weight": torch.ones(4, SHAPE.dim + 2),
        "diffusion_model.blocks.0.ffn.0.lora_B.weight": torch.ones(SHAPE.ffn_dim, 4),
        "diffusion_model.blocks.9.ffn.0.diff_b": torch.ones(SHAPE.ffn_dim),
    }
    with pytest.raises(Exception, match=r"2 of 2 LoRA modules of .* do not fit this model, for example blocks\.0"):
        core.with_lora(model, tensors, tmp_path)


def test_a_model_whose_layers_are_never_called_is_refused(core: Core, packed: Any, tmp_path: Path) -> None:
    model, held, _ = packed
    _, tensors = trained(held, KINDS["LoRA"], GIVEN)
    applied = core.with_lora(model, tensors, tmp_path)
    applied.add_wrapper("diffusion_model", lambda _executor, x, *_, **__: torch.zeros_like(x))
    with pytest.raises(Exception, match=r"The LoRA of .* had no effect: another node runs this model"):
        core.sampled(applied)


def test_a_compiled_model_runs_as_written_while_it_acts(core: Core, packed: Any, tmp_path: Path) -> None:
    """Compiled code sees no hooks that come and go; ComfyUI compiles before Apply Wan LoRA, or behind it."""
    from comfy_api.torch_helpers import set_torch_compile_wrapper

    model, held, plain = packed
    wanted, tensors = trained(held, KINDS["LoRA"], GIVEN)
    before, behind = model.clone(), core.with_lora(model, tensors, tmp_path)
    for compiled in (before, behind):
        set_torch_compile_wrapper(compiled, backend="eager")
    for applied in (core.with_lora(before, tensors, tmp_path), behind):
        assert apart(core.sampled(applied) - plain, wanted) < 0.01


def test_each_expert_may_take_a_step_of_its_own(core: Core, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        core.apply, "chosen_steps", lambda _directory, written: [int(part) for part in written.split(",")]
    )
    monkeypatch.setattr(core.apply, "with_lora", lambda model, _run, step, _strength, **expert: (model, step, expert))
    node, run = core.apply.ApplyWanLoRA, SimpleNamespace(directory=Path())
    first, second = SimpleNamespace(), SimpleNamespace()
    for low, step in (("", 500), (" 250 ", 250)):
        both = node.execute(run, first, "500", 1.0, second, 1.0, low).args
        assert both == ((first, 500, {}), (second, step, {"expert": "low_noise"}))
    with pytest.raises(core.apply.ConfigError, match=r'saved_step "1,2" names 2 saved steps'):
        node.execute(run, first, "500", model_low_noise=second, saved_step_low_noise="1,2")
    assert node.validate_inputs("500", "") is True
    assert "names 2 saved steps" in node.validate_inputs("500", "1,2")
