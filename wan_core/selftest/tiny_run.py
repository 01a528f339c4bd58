"""Trains a two-block model from file to LoRA, with a stop, a resume and a preview."""

from __future__ import annotations

import math
from pathlib import Path

import torch
from safetensors.torch import save_file

from ..accelerator import default_device
from ..cache import LatentCache, SyntheticConfig, synthetic_set
from ..control import NoControl
from ..errors import TrainingError
from ..events import CheckpointSaved, DecodeWanted, Event, StepDone
from ..files import Roots
from ..job import DataConfig, RunConfig, choose_run, prepare_run, with_scaled_loss
from ..load import ModelPlan, inspect_model, resolved
from ..lora import LoraConfig
from ..model import WAN21_LATENTS, WanShape, WanTransformer, condition_named
from ..precision import QuantizeConfig
from ..sampler import SampleConfig
from ..session.train_job import run_job
from ..train import SaveStore, TrainConfig

_SHAPE = WanShape(dim=128, ffn_dim=256, num_heads=1, num_layers=2)
_FILE = "wan_check_t2v.safetensors"
_STEPS = 6


def trains(place: Path) -> str:
    """Returns the result of a run that is trained, stopped, resumed, previewed and saved."""
    return _train(place, ModelPlan(base_file=f"diffusion_models:{_FILE}"))


def trains_in_fp8(place: Path) -> str:
    """Returns the result of the same run on an 8-bit base."""
    plan = ModelPlan(base_file=f"diffusion_models:{_FILE}")
    return "a base in fp8_e4m3fn: " + _train(place, plan.with_quantize(QuantizeConfig(scheme="fp8_e4m3fn")))


def _train(place: Path, plan: ModelPlan) -> str:
    directory, roots = _made(place, plan)
    events: list[Event] = []
    for part in (_STEPS // 2, 0):  # stopped half-way, then resumed
        finished = run_job(directory, roots, emit=events.append, control=NoControl(), max_steps=part)
    losses = [event.loss for event in events if isinstance(event, StepDone)]
    if (finished.state, len(losses)) != ("done", _STEPS) or not all(map(math.isfinite, losses)):
        raise TrainingError(f"the run ended as {finished.state} after {len(losses)} of {_STEPS} steps: {losses[-3:]}")
    saved = SaveStore(directory).latest()
    looks = [event for event in events if isinstance(event, CheckpointSaved)]
    if saved is None or not looks or looks[-1].passed_over or not looks[-1].modules:
        raise TrainingError("ComfyUI's loader would skip a part of the saved LoRA. Report it with these lines.")
    clips = len({event.sample_id for event in events if isinstance(event, DecodeWanted)})
    return (
        f"{_STEPS} steps on {default_device().type}, resumed half-way, {clips} previews sampled, a LoRA of "
        f"{looks[-1].modules} weights that ComfyUI's loader takes"
    )


def _made(place: Path, plan: ModelPlan) -> tuple[Path, Roots]:
    models = place / "models"
    models.mkdir()
    save_file(_weights(), models / _FILE)
    roots = Roots({"diffusion_models": (str(models),), "cache": (str(place / "cache"),), "loras": (str(place),)})
    clips = SyntheticConfig(count=4, width=64, height=64, num_frames=9, text_length=16)
    plan = resolved(plan, (inspect_model(plan, roots),))
    drawn = synthetic_set(clips, space=WAN21_LATENTS, size_multiple=16, kind=condition_named("none"))
    train = TrainConfig(
        steps=_STEPS, save_every_n_steps=3, preview_every_n_steps=_STEPS, eval_items=2, learning_rate=1e-3
    )
    config = RunConfig(
        run_name="check",
        model=plan,
        data=DataConfig(fingerprint=LatentCache(place / "cache").write_set(drawn), num_items=len(drawn.items)),
        lora=LoraConfig(rank=4),
        train=with_scaled_loss(train, plan),
        preview=SampleConfig(steps=2),
    ).with_digests(roots)
    decision = choose_run(place / "runs", config)
    prepare_run(decision, config)
    return decision.directory, roots


def _weights() -> dict[str, torch.Tensor]:
    """Returns random matrices that keep the variance of their input, and small biases."""
    generator = torch.Generator().manual_seed(0)
    with torch.device("meta"):
        model = WanTransformer(_SHAPE)
    weights: dict[str, torch.Tensor] = {}
    for name, parameter in model.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        if parameter.ndim == 1 and name.endswith("weight"):
            weights[name] = 1 + 0.1 * noise
        else:
            weights[name] = noise / max(parameter[0].numel(), 16) ** 0.5 if parameter.ndim > 1 else 0.1 * noise
    return weights
