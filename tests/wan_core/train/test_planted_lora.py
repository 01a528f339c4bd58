"""Training finds what is there to find: a planted LoRA is recovered from its outputs."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import pytest
import torch

from tests.support.sessions import trainer_on
from tests.support.tiny_run import PLAN, make_roots
from wan_core.cache import LatentCache
from wan_core.events import Event, StepDone
from wan_core.load import materialize
from wan_core.lora import LoraConfig, LoraWeights, adapter_parameters
from wan_core.train import NoisedBatch, TrainConfig

# Feed-forward linears: their inputs span the whole width, so the planted change is the only one with these outputs.
# (Attention over random text is nearly constant; there other changes give the same outputs and a cosine says nothing.)
LORA = LoraConfig(rank=2, targets=(r"blocks\.\d+\.ffn\.(0|2)",))


def weight_changes(weights: LoraWeights) -> dict[str, torch.Tensor]:
    """B @ A of every module (scale 1)."""
    downs = {n.removesuffix(".lora_A.weight"): w for n, w in weights.tensors.items() if n.endswith("lora_A.weight")}
    return {name: weights.tensors[f"{name}.lora_B.weight"] @ down for name, down in downs.items()}


@pytest.mark.soak  # that a LoRA learns is seen in tests/learning, and each loss in test_plain_loop.py
@pytest.mark.parametrize("size", [(2, 8, 8), (3, 12, 12)], ids=str)
def test_a_planted_lora_is_recovered_within_300_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: tuple[int, int, int]
) -> None:
    torch.manual_seed(0)
    roots, fingerprint = make_roots(tmp_path, clips=8, size=size)
    teacher = materialize(PLAN, roots, LORA, seed=11)
    generator = torch.Generator().manual_seed(3)
    for name, parameter in adapter_parameters(teacher).items():
        if name.endswith("lora_B.weight"):
            parameter.data = torch.randn(parameter.shape, generator=generator) * 0.3
    teacher.requires_grad_(False)
    planted = weight_changes(LoraWeights.of(teacher))

    def teacher_output(batch: NoisedBatch) -> torch.Tensor:
        with torch.no_grad():
            return teacher(batch.noised, batch.timestep, batch.text)

    student = materialize(PLAN, roots, dataclasses.replace(LORA, rank=4), seed=5)
    cache = LatentCache(roots.first("cache"))
    cache_set = cache.read_set(fingerprint)
    config = TrainConfig(
        steps=300, batch_size=2, learning_rate=1e-2, weight_decay=0.0, lr_scheduler="cosine", lr_warmup_steps=10,
        timestep_sampling="uniform", discrete_flow_shift=1.0, gradient_checkpointing=False,
    )  # fmt: skip
    losses: list[float] = []

    def note(event: Event) -> None:
        if isinstance(event, StepDone):
            losses.append(event.loss)

    trainer = trainer_on(student, cache, cache_set, config, note)
    monkeypatch.setattr("wan_core.train.objective.true_velocity", teacher_output)
    trainer.run(config.steps, lambda _step: None)

    found = weight_changes(LoraWeights.of(student))
    planted_flat = torch.cat([planted[n].flatten() for n in sorted(planted)])
    found_flat = torch.cat([found[n].flatten() for n in sorted(found)])
    cosine = float(torch.nn.functional.cosine_similarity(planted_flat, found_flat, dim=0))
    first, last = sum(losses[:5]) / 5, sum(losses[-20:]) / 20
    print(f"loss {first:.5f} -> {last:.6f} ({1 - last / first:.1%} down), cosine {cosine:.4f}")  # noqa: T201
    assert len(losses) == 300
    assert all(map(math.isfinite, losses))
    assert 1 - last / first >= 0.95
    assert cosine >= 0.9
