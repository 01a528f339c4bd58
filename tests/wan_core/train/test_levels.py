"""The noise levels that settings ask for: lists, ranges, and draws spread evenly over several clips."""

from __future__ import annotations

import pytest
import torch

from wan_core.errors import ConfigError
from wan_core.flow import TIMESTEP_SAMPLINGS, loss_factor
from wan_core.train import TrainConfig
from wan_core.train.draws import Levels


def levels(
    place: int, count: int = 1, sigma_range: tuple[float, float] = (0.0, 1.0), **settings: object
) -> torch.Tensor:
    config = TrainConfig(**{"discrete_flow_shift": 3.0, **settings})  # type: ignore[arg-type]
    return Levels(config, sigma_range).at(place, torch.empty(count, 16, 1, 8, 8))


@pytest.mark.parametrize(
    "sampling",
    [
        pytest.param(one, marks=[] if one in ("logsnr", "mode", "qwen_shift") else pytest.mark.soak)
        for one in TIMESTEP_SAMPLINGS
    ],
)
def test_a_window_of_strata_has_one_draw_in_every_equal_part(sampling: str) -> None:
    usual = {"timestep_sampling": sampling, "batch_size": 50}
    plain = torch.cat([levels(place, 50, **usual) for place in range(400)]).sort().values
    edges = plain[torch.arange(1, 10) * 2000]
    for window in range(3):
        drawn = torch.cat([levels(5 * window + turn, 2, timestep_strata=10, timestep_sampling=sampling, batch_size=2)
                           for turn in range(5)])  # fmt: skip
        parts = torch.bucketize(drawn, edges)
        # A part's border is known to about its hundredth; a draw close to it may fall on either side.
        assert (parts.sort().values - torch.arange(10)).abs().max() <= 1
        assert parts.tolist() != sorted(parts.tolist())
    many = torch.cat([levels(place, 10, timestep_strata=10, timestep_sampling=sampling, batch_size=10)
                      for place in range(200)]).sort().values  # fmt: skip
    assert torch.allclose(many[100::200], plain[1000::2000], atol=0.02)


def test_strata_of_one_expert_cut_the_draw_as_drawing_again_does() -> None:
    plain = torch.cat([levels(place, 50, (0.875, 1.0), batch_size=50) for place in range(100)]).sort().values
    many = torch.cat([levels(p, 50, (0.875, 1.0), batch_size=50, timestep_strata=50) for p in range(10)]).sort().values
    assert many.min() >= 0.875
    assert torch.allclose(many[50::100], plain[500::1000], atol=0.01)


def test_a_range_cuts_or_squeezes() -> None:
    narrow = {"min_timestep": 200.0, "max_timestep": 600.0, "batch_size": 50}
    whole = levels(0, 50, batch_size=50)
    assert torch.allclose(levels(0, 50, timestep_range="rescaled", **narrow), 0.2 + 0.4 * whole)
    cut = levels(0, 50, **narrow)
    inside = whole[(whole >= 0.2) & (whole < 0.6)]
    assert torch.equal(cut[: len(inside)], inside)


def test_a_list_is_trained_and_nothing_else() -> None:
    listed = {"timestep_list": (1000.0, 750.0, 500.0, 250.0), "batch_size": 200}
    drawn, counts = levels(0, 200, **listed).unique(return_counts=True)
    assert (1000 * drawn).tolist() == [250, 500, 750, 1000]
    assert counts.min() > 30
    assert (1000 * levels(0, 50, (0.9, 1.0), **listed).unique()).tolist() == [1000]
    every = levels(0, 4, timestep_strata=4, **{**listed, "batch_size": 4})
    assert (1000 * every.sort().values).tolist() == [250, 500, 750, 1000]
    with pytest.raises(ConfigError, match="No noise level of timestep_list is in the trained range, 900 to 1000"):
        levels(0, 1, (0.9, 1.0), timestep_list=(500.0,))


def test_min_snr_weighs_the_clean_latent_by_the_ratio_up_to_five() -> None:
    sigma = torch.tensor([0.1, 0.25, 0.5, 0.9])
    ratio = ((1 - sigma) / sigma) ** 2  # 81, 9, 1, 0.012
    found = loss_factor(sigma, "min_snr")
    assert found is not None
    assert torch.allclose(found, ratio.clamp(max=5) * sigma**2)
    assert found.tolist() == pytest.approx([0.05, 0.3125, 0.25, 0.01])
