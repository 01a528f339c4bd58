"""The attention of a plan reaches the model, or is refused before anything is loaded."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.tiny_run import make_roots
from wan_core.errors import ConfigError
from wan_core.footprint import job_shape
from wan_core.kernels.backends import attention_kernel
from wan_core.load import ModelPlan, materialize
from wan_core.lora import LoraConfig
from wan_core.model.attention import WanAttention
from wan_core.placement import StepShape, estimate_memory

BASE = "diffusion_models:wan_tiny_t2v.safetensors"


def test_the_plans_kernel_is_in_every_attention(tmp_path: Path) -> None:
    roots, _ = make_roots(tmp_path)
    model = materialize(ModelPlan(base_file=BASE, attention="sdpa_math"), roots, None)
    kernels = [module.kernel for module in model.modules() if isinstance(module, WanAttention)]
    wanted = attention_kernel("sdpa_math")
    assert len(kernels) == 2 * len(model.blocks)
    assert all((k.func, k.args) == (wanted.func, wanted.args) for k in kernels)  # type: ignore[attr-defined]


def test_a_kernel_that_cannot_train_here_is_refused_by_plan_and_by_load(tmp_path: Path) -> None:
    roots, _ = make_roots(tmp_path)
    plan = ModelPlan(base_file=BASE, attention="sdpa_cudnn")
    step = StepShape(batch_size=1, latent_frames=1, latent_height=8, latent_width=8)
    with pytest.raises(ConfigError, match='"sdpa_cudnn" cannot train on cpu'):
        estimate_memory(job_shape(plan, roots, LoraConfig()), step)
    loaded: list[int] = []
    with pytest.raises(ConfigError, match='"sdpa_cudnn" cannot train on cpu'):
        materialize(plan, roots, None, on_tensor=lambda done, _total: loaded.append(done))
    assert not loaded
