"""What an audit measures: exactly nothing where nothing differs, the trained model, and errors of the right size."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.support.tiny_run import TinyRun, make_run
from wan_core.audit.any_dtype import compute_in, fill_empty_adapters, let_linears_cast
from wan_core.audit.candidates import REFERENCE
from wan_core.audit.measure import measure
from wan_core.flow import add_noise
from wan_core.load import ModelPlan, materialize
from wan_core.lora import LoraConfig, adapter_parameters
from wan_core.model import Numerics, WanTransformer
from wan_core.train import NoisedBatch

PLAN = ModelPlan(base_file="diffusion_models:wan_tiny_t2v.safetensors", base_precision="bf16")
BF16, FP32 = torch.bfloat16, torch.float32


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> TinyRun:
    return make_run(tmp_path_factory.mktemp("measure"), plan=PLAN, size=(3, 8, 8))


def built(run: TinyRun) -> WanTransformer:
    model = materialize(PLAN, run.roots, LoraConfig(rank=4), seed=1)
    fill_empty_adapters(model, 1)
    return model


def point(size: tuple[int, int, int] = (3, 8, 8)) -> NoisedBatch:
    generator = torch.Generator().manual_seed(3)
    latent, noise = (torch.randn(1, 16, *size, generator=generator) for _ in range(2))
    text = torch.zeros(1, 512, 4096)
    text[:, :9] = torch.randn(1, 9, 4096, generator=generator)
    sigma = torch.tensor([0.7])
    return NoisedBatch(latent, noise, add_noise(latent, noise, sigma), sigma, text)


def errors(run: TinyRun, numerics: Numerics, at: NoisedBatch | None = None) -> tuple[float, float]:
    """(velocity, gradients) of one set of dtypes."""

    def points() -> Iterator[NoisedBatch]:
        yield at or point()

    model = built(run)
    let_linears_cast(model)
    found, _ = measure(model, points, [numerics], on_pass=lambda: None, stop_reason=lambda: "")
    return found[numerics].output[0].relative, found[numerics].gradient[0].relative


def test_the_reference_itself_has_no_error_at_all(run: TinyRun) -> None:
    assert errors(run, REFERENCE) == (0.0, 0.0)


@pytest.mark.lasts(1)
@pytest.mark.parametrize(
    "part",
    ["residual", *(pytest.param(p, marks=pytest.mark.soak) for p in ("norm", "time", "head")), "attention", "adapter"],
)
def test_a_switch_that_says_what_the_reference_says_costs_exactly_nothing(run: TinyRun, part: str) -> None:
    assert errors(run, replace(REFERENCE, **{part: FP32})) == (0.0, 0.0)


def test_what_is_measured_as_the_plan_is_what_training_computes(run: TinyRun) -> None:
    """Velocity and every gradient equal to the last bit, before and after a float32 pass."""
    trained, audited = built(run).train(False), built(run)
    trained.checkpoint_blocks = True
    let_linears_cast(audited)
    compute_in(audited, REFERENCE)
    audited(point().noised, point().timestep, point().text)
    compute_in(audited, PLAN.precision.numerics(BF16))
    outputs = []
    for model in (trained, audited):
        outputs.append(model(point().noised, point().timestep, point().text))
        outputs[-1].square().mean().backward()
    assert torch.equal(*outputs)
    ours = adapter_parameters(audited)
    for name, parameter in adapter_parameters(trained).items():
        assert parameter.grad is not None
        assert parameter.grad.any(), name  # A has gradients too, because B is not zero
        assert torch.equal(parameter.grad, ours[name].grad), name  # type: ignore[arg-type]


def test_the_float32_reference_on_bf16_weights_is_a_float32_model_of_those_weights(run: TinyRun) -> None:
    """Casting a resting bf16 weight is exact: a model whose weights are widened once computes the same bits."""
    audited = built(run)
    let_linears_cast(audited)
    compute_in(audited, REFERENCE)
    widened = built(run)
    for parameter in widened.parameters():
        parameter.data = parameter.data.float()
    compute_in(widened, REFERENCE)
    with torch.no_grad():
        first, second = (m.train(False)(point().noised, point().timestep, point().text) for m in (audited, widened))
    assert torch.equal(first, second)


def test_an_error_of_known_size_is_found(run: TinyRun) -> None:
    """The head alone in bf16 rounds input, weight and output once each: 2^-9 is the most one rounding moves a value,
    and a velocity that came out of one matmul cannot be off by more than a few of them, nor by less than a tenth."""
    velocity, _ = errors(run, replace(REFERENCE, head=BF16))
    assert 0.1 * 2**-9 < velocity < 3 * 2**-9


def test_a_broken_dtype_makes_gradients_loudly_wrong(tmp_path: Path) -> None:
    """Angles in bf16 at column 199 are off by up to half a radian (8 bits for 199): no rounding error any more.

    Attention is made sharp, so that it depends on where things are; random queries hardly do.
    """
    wide = make_run(tmp_path, plan=PLAN, size=(1, 2, 400))
    path = wide.roots.resolve(PLAN.base_file)
    weights = load_file(path)
    save_file({name: (48 * w if "norm_q" in name else w).clone() for name, w in weights.items()}, path)
    at = point(size=(1, 2, 400))
    sound = errors(wide, replace(REFERENCE, rope_table=FP32), at)
    broken = errors(wide, replace(REFERENCE, rope_table=BF16), at)
    assert broken[0] > 0.1
    assert broken[1] > 0.4
    assert broken[1] > 1000 * sound[1] > 0
