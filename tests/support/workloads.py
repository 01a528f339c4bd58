"""Runs to plan: the model file has a header and no weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.support.headers import write_empty_model
from wan_core.files import Roots
from wan_core.load import ModelPlan, inspect_model
from wan_core.lora import LoraConfig
from wan_core.placement import PlacementConfig, StepShape, resolve_placement
from wan_core.plan.workload import Workload
from wan_core.precision import QuantizeConfig
from wan_core.train import TrainConfig

CLIP = StepShape(batch_size=1, latent_frames=13, latent_height=60, latent_width=104)
"""832x480x49: 20,280 tokens"""


def workload_of(folder: Path, name: str, variant: str, rank: int, **model: Any) -> Workload:
    """A run of clips as CLIP on the CPU; `name` is that of the file, `model` settings of ModelPlan."""
    file = write_empty_model(folder / name, variant)
    plan = ModelPlan(base_file=f"diffusion_models:{file.name}", **model)
    roots = Roots({"diffusion_models": (str(folder),)})
    found = inspect_model(plan, roots)
    return Workload(
        model=plan,
        roots=roots,
        file=found,
        lora=LoraConfig(rank=rank),
        train=TrainConfig(),
        step=CLIP,
        placement=resolve_placement(PlacementConfig(devices="cpu"), found.variant.shape.num_layers),
    )


def high_noise_14b(folder: Path) -> Workload:
    """The high-noise expert in fp8, rank 32."""
    name = "wan2.2_t2v_high_noise_14B_bf16.safetensors"
    return workload_of(folder, name, "wan2.2-t2v-A14B-expert", 32, quantize=QuantizeConfig())


def t2v_1_3b(folder: Path, **model: Any) -> Workload:
    """T2V-1.3B in bf16, rank 16."""
    return workload_of(folder, "wan2.1_t2v_1.3B_bf16.safetensors", "wan2.1-t2v-1.3B", 16, **model)
