"""The maths of flow matching, against pinned numbers (tests/fixtures/wan_math_golden.json) and by hand."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from wan_core.errors import ConfigError
from wan_core.flow import (
    LOSSES,
    TIMESTEP_SAMPLINGS,
    add_noise,
    draw_noise,
    draw_sigma,
    loss_factor,
    resolution_shift,
    seeded_generator,
    shift_sigma,
    simple_sigmas,
    velocity_loss,
    velocity_target,
)

GOLDEN: dict[str, Any] = json.loads(
    (Path(__file__).parents[1] / "fixtures" / "wan_math_golden.json").read_text(encoding="utf-8")
)
CASES = pytest.mark.parametrize("case", GOLDEN["cases"], ids=lambda case: f"shift {case['shift']:g}")


@CASES
def test_ten_simple_sigmas_are_the_shifted_line_from_one_to_zero(case: dict[str, Any]) -> None:
    sigmas = simple_sigmas(case["steps"], case["shift"])
    assert sigmas.dtype == torch.float32
    # float32 rounds numbers up to 1 by at most 6e-8.
    torch.testing.assert_close(sigmas.double(), torch.tensor(case["sigmas_euler"]).double(), rtol=0, atol=6e-8)


@CASES
def test_euler_steps_over_simple_sigmas_follow_the_pinned_trajectory(case: dict[str, Any]) -> None:
    sigmas = simple_sigmas(case["steps"], case["shift"]).double()
    x = torch.tensor(GOLDEN["x_init"], dtype=torch.float64)
    for index, expected in enumerate(case["euler_trajectory"]):
        velocity = 0.5 * x - 0.8 * sigmas[index] ** 2 + 0.3 * torch.sin(3 * x)
        x = x + (sigmas[index + 1] - sigmas[index]) * velocity
        torch.testing.assert_close(x, torch.tensor(expected, dtype=torch.float64), rtol=0, atol=1e-6)


@pytest.mark.parametrize("steps", [1, 3, 4, 6, 7, 20, 30, 999, 1000])
def test_simple_sigmas_fall_from_one_to_zero_for_any_number_of_steps(steps: int) -> None:
    sigmas = simple_sigmas(steps, 8.0)
    assert len(sigmas) == steps + 1
    assert sigmas[0] == 1
    assert sigmas[-1] == 0
    assert bool((sigmas.diff() < 0).all())


def test_thirty_steps_pick_whole_thousandths_as_comfyui_does() -> None:
    """1000 / 30 = 33.33: entries 1000, 967, 934, 900 of the grid, not 1 - k / 30."""
    assert simple_sigmas(30, 1.0)[:4].tolist() == pytest.approx([1.0, 0.967, 0.934, 0.9], abs=1e-7)


@pytest.mark.parametrize("shift", sorted(GOLDEN["shift_map"]))
def test_the_shift_map_equals_the_pinned_one(shift: str) -> None:
    sigma = torch.tensor(GOLDEN["shift_map_u"], dtype=torch.float64)
    expected = torch.tensor(GOLDEN["shift_map"][shift], dtype=torch.float64)
    torch.testing.assert_close(shift_sigma(sigma, float(shift)), expected, rtol=0, atol=1e-12)


def test_shift_of_one_leaves_sigma_unchanged() -> None:
    sigma = torch.linspace(0, 1, 101, dtype=torch.float64)
    torch.testing.assert_close(shift_sigma(sigma, 1.0), sigma, rtol=0, atol=0)


def test_noising_target_and_loss_by_hand() -> None:
    latent, noise = torch.full((2, 1, 1, 1, 1), 2.0), torch.full((2, 1, 1, 1, 1), -1.0)
    noised = add_noise(latent, noise, torch.tensor([0.25, 1.0]))
    assert noised.flatten().tolist() == [1.25, -1.0]
    target = velocity_target(latent, noise)
    assert target.flatten().tolist() == [-3.0, -3.0]
    assert float(velocity_loss(torch.zeros_like(target), target)) == 9.0


def test_frames_of_weight_zero_do_not_count_and_the_rest_is_a_true_mean() -> None:
    prediction, target = torch.zeros(2, 1, 3, 1, 2), torch.tensor([9.0, 1.0, 2.0]).view(1, 1, 3, 1, 1)
    weight = torch.tensor([[0.0, 1.0, 1.0], [1.0, 1.0, 1.0]]).view(2, 1, 3, 1, 1)
    # by hand: (1 + 4) twice and 81 once, two pixels each, over five frames of two pixels
    found = velocity_loss(prediction, target.expand_as(prediction), weight)
    assert float(found) == pytest.approx((1 + 4 + 81 + 1 + 4) / 5)


def test_mode_is_drawn_as_diffusers_draws_it() -> None:
    """Numbers of diffusers 0.42.1, compute_density_for_timestep_sampling, from the same generator."""
    theirs = {1.29: [0.3858466, 0.8438367, 0.06268997, 0.6094705], -0.5: [0.2010349, 0.9547484, 0.01525372, 0.7929776]}
    for scale, expected in theirs.items():
        ours = draw_sigma(4, seeded_generator("mode"), sampling="mode", shift=3.0, mode_scale=scale)
        torch.testing.assert_close(ours, torch.tensor(expected), rtol=1e-6, atol=0)


def test_the_shift_by_resolution_is_that_of_flux_and_of_qwen() -> None:
    """Both begin at exp(0.5) with 256 tokens; a frame of 1024 x 1024 has 4096 (latents of 128 x 128)."""
    for sampling in ("flux_shift", "qwen_shift"):
        assert resolution_shift(sampling, 32, 32) == pytest.approx(math.exp(0.5))
    assert resolution_shift("flux_shift", 128, 128) == pytest.approx(math.exp(1.15))
    assert resolution_shift("qwen_shift", 128, 256) == pytest.approx(math.exp(0.9))
    assert resolution_shift("shift", 128, 128) is None
    flux, plain = (
        draw_sigma(9, seeded_generator(1), sampling=sampling, shift=2.5, sigmoid_scale=1.3)
        for sampling in ("flux_shift", "shift")
    )
    assert torch.equal(flux, plain)


def test_beta_and_logsnr_have_their_moments() -> None:
    beta = draw_sigma(200_000, seeded_generator(1), sampling="beta", shift=3.0)
    assert float(beta.mean()) == pytest.approx(0.5, abs=2e-3)
    assert float(beta.var()) == pytest.approx(2 * 2 / (4 * 4 * 5), abs=1e-3)
    sigma = draw_sigma(200_000, seeded_generator(1), sampling="logsnr", shift=3.0, logit_mean=-1.0, logit_std=2.0)
    logsnr = 2 * torch.log((1 - sigma.double()) / sigma.double())
    assert float(logsnr.mean()) == pytest.approx(-1.0, abs=0.02)
    assert float(logsnr.std()) == pytest.approx(2.0, abs=0.02)


def test_the_other_errors_by_hand() -> None:
    prediction, target = torch.tensor([0.1, -3.0]), torch.zeros(2)
    by_hand = {
        "mse": (0.01 + 9) / 2,
        "l1": (0.1 + 3) / 2,
        "huber": (0.5 * 0.01 + 0.5 * (3 - 0.25)) / 2,
        "pseudo_huber": 0.5 * (math.sqrt(0.01 + 0.25) - 0.5 + math.sqrt(9 + 0.25) - 0.5) / 2,
    }
    assert by_hand.keys() == set(LOSSES)
    for kind, expected in by_hand.items():
        assert float(velocity_loss(prediction, target, kind=kind, delta=0.5)) == pytest.approx(expected), kind
    weighted = velocity_loss(prediction, target, torch.tensor([1.0, 0.0]), kind="l1", factor=torch.tensor([3.0, 5.0]))
    assert float(weighted) == pytest.approx(0.3)
    with pytest.raises(ConfigError, match="loss_type"):
        velocity_loss(prediction, target, kind="mea")


def test_noise_levels_count_as_diffusers_counts_them() -> None:
    """Numbers of diffusers 0.42.1, compute_loss_weighting_for_sd3."""
    sigma = torch.tensor([0.001, 0.05, 0.3, 0.5, 0.8, 1.0])
    theirs = {
        "sigma_sqrt": [999999.9, 400.0, 11.11111, 4.0, 1.5625, 1.0],
        "cosmap": [0.6378943, 0.7034473, 1.09762, 1.273239, 0.9362055, 0.6366197],
    }
    for weighting, expected in theirs.items():
        factor = loss_factor(sigma, weighting)
        assert factor is not None
        torch.testing.assert_close(factor, torch.tensor(expected), rtol=1e-6, atol=0)
    assert loss_factor(sigma, "none") is None


def test_the_bell_has_a_mean_of_one_and_nothing_at_its_ends() -> None:
    sigma = torch.linspace(0, 1, 10_001, dtype=torch.float64)
    bell = loss_factor(sigma, "bell")
    assert bell is not None
    assert float(bell.mean()) == pytest.approx(1, abs=1e-3)
    assert float(bell[0]) == float(bell[-1]) == pytest.approx(0, abs=1e-12)
    assert float(bell.max()) == float(bell[5000])


@pytest.mark.parametrize("sampling", TIMESTEP_SAMPLINGS)
@pytest.mark.parametrize("expert", [(0.0, 1.0), (0.0, 0.875), (0.875, 1.0), (0.9, 1.0)])
def test_drawn_noise_levels_stay_in_the_range_of_the_expert(sampling: str, expert: tuple[float, float]) -> None:
    low, high = expert
    draw = seeded_generator(1, sampling)
    sigma = draw_sigma(2000, draw, sampling=sampling, shift=3.0, logit_mean=-3.0, sigma_min=low, sigma_max=high)
    assert sigma.shape == (2000,)
    assert low <= float(sigma.min()) <= float(sigma.max()) <= high


def test_an_expert_sees_the_noise_levels_it_would_see_in_the_pair() -> None:
    """The distribution is cut, not squeezed: quantiles equal those of the whole one above the boundary."""
    settings = {"sampling": "shift", "shift": 5.0}
    whole = draw_sigma(200_000, seeded_generator(1), **settings)  # type: ignore[arg-type]
    cut = draw_sigma(20_000, seeded_generator(2), **settings, sigma_min=0.875)  # type: ignore[arg-type]
    at = torch.tensor([0.1, 0.5, 0.9])
    torch.testing.assert_close(cut.quantile(at), whole[whole >= 0.875].quantile(at), rtol=0, atol=2e-3)


def test_a_range_that_is_almost_never_drawn_is_refused_in_one_sentence() -> None:
    with pytest.raises(ConfigError, match="almost never falls into the range 999-1000"):
        draw_sigma(64, seeded_generator(0), sampling="sigmoid", shift=1.0, sigmoid_scale=0.01, sigma_min=0.999)


def test_an_unknown_sampling_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="uniform, sigmoid, shift"):
        draw_sigma(1, seeded_generator(0), sampling="sigmiod", shift=1.0)


@pytest.mark.parametrize("shift", sorted(set(GOLDEN["shift_sampling_quantiles"]) - {"q"}))
def test_shift_sampling_has_the_pinned_quantiles(shift: str) -> None:
    pinned = GOLDEN["shift_sampling_quantiles"]
    sigma = draw_sigma(200_000, seeded_generator("quantiles", shift), sampling="shift", shift=float(shift)).double()
    at = torch.tensor(pinned["q"], dtype=torch.float64)
    # The standard error of these quantiles of 200,000 draws is below 0.001.
    torch.testing.assert_close(sigma.quantile(at), torch.tensor(pinned[shift]).double(), rtol=0, atol=4e-3)


def test_generators_depend_on_every_part_of_their_name_and_on_nothing_else() -> None:
    first = draw_noise((8,), seeded_generator(0, "noise", 3))
    torch.manual_seed(99)
    torch.rand(5)
    assert torch.equal(draw_noise((8,), seeded_generator(0, "noise", 3)), first)
    others = [(0, "noise", 4), (1, "noise", 3), (0, "sigma", 3), (0, "noise", "3x"), (0, "noise"), ("0noise", 3)]
    for parts in others:
        assert not torch.equal(draw_noise((8,), seeded_generator(*parts)), first), parts


def test_neighbouring_micro_steps_draw_uncorrelated_noise() -> None:
    draws = torch.stack([draw_noise((4096,), seeded_generator(0, "noise", step)) for step in range(20)])
    correlation = torch.corrcoef(draws) - torch.eye(20)
    # 190 pairs of 4096 normal numbers: the largest correlation of independent ones is near 0.045.
    assert float(correlation.abs().max()) < 5 / math.sqrt(4096)


def test_drawing_leaves_the_global_random_state_alone() -> None:
    before = torch.random.get_rng_state()
    draw_sigma(4, seeded_generator(0), sampling="shift", shift=3.0)
    draw_noise((4,), seeded_generator(1))
    assert torch.equal(torch.random.get_rng_state(), before)
