"""What is seen of a saved LoRA file, beside the matrices it stands for."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from wan_core.export import look_at_lora

WEIGHTS = {"blocks.0.self_attn.q.weight", "blocks.0.ffn.0.weight", "vace_blocks.1.ffn.2.weight", "head.head.weight"}


def pair(module: str, seed: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        f"{module}.lora_A.weight": torch.randn(4, 12, generator=generator),
        f"{module}.lora_B.weight": torch.randn(20, 4, generator=generator),
        f"{module}.alpha": torch.tensor(2.0),
    }


def test_the_change_of_a_block_is_that_of_its_whole_matrices(tmp_path: Path):
    modules = [f"diffusion_model.{name.removesuffix('.weight')}" for name in sorted(WEIGHTS)]
    tensors = {key: value for seed, module in enumerate(modules) for key, value in pair(module, seed).items()}
    save_file(tensors, tmp_path / "lora.safetensors")
    found = look_at_lora(tmp_path / "lora.safetensors", WEIGHTS)
    squares = {
        module: float((0.5 * tensors[f"{module}.lora_B.weight"] @ tensors[f"{module}.lora_A.weight"]).square().sum())
        for module in modules
    }
    ffn, attention, head, vace = (squares[module] for module in modules)
    wanted = {"blocks.0": (ffn + attention) ** 0.5, "vace_blocks.1": vace**0.5, "other": head**0.5}
    assert found.updates == {block: pytest.approx(norm, rel=1e-5) for block, norm in wanted.items()}
    assert found.unplaced == ()
    assert found.weights == tuple(sorted(WEIGHTS))


def test_a_name_the_model_has_not_and_half_a_pair_are_found(tmp_path: Path):
    tensors = pair("diffusion_model.blocks.0.self_attn.q", 0) | pair("diffusion_model.blocks.7.ffn.0", 1)
    tensors |= pair("blocks.0.ffn.0", 2) | {"extra": torch.zeros(1)}
    del tensors["diffusion_model.blocks.0.self_attn.q.alpha"]
    save_file(tensors, tmp_path / "lora.safetensors")
    found = look_at_lora(tmp_path / "lora.safetensors", WEIGHTS)
    names = ("extra", "blocks.0.ffn.0", "diffusion_model.blocks.0.self_attn.q", "diffusion_model.blocks.7.ffn.0")
    assert found.unplaced == names
    assert (found.weights, found.updates) == ((), {})
