"""Two experts take their steps in turn, each brought in for its own only; one alone is asked for nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from wan_core.errors import ConfigError
from wan_core.flow import simple_sigmas
from wan_core.sampler import Denoiser, generate
from wan_core.sampler.config import SamplingPreset
from wan_core.sampler.denoiser import turns

NOISE = torch.randn(1, 16, 3, 4, 4, generator=torch.Generator().manual_seed(1))
TEXT = torch.zeros(1, 512, 8)
PRESET = SamplingPreset(20, 1.0, 8.0)
"""ComfyUI's template for A14B: shift 8, 20 steps; 11 of them begin at 0.875 or above"""


class Model(nn.Module):
    """Predicts a constant, and writes down when it was asked."""

    def __init__(self, name: str, value: float, log: list[Any]) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))
        self.name, self.value, self.log = name, value, log

    def forward(self, latent: Tensor, timestep: Tensor, text: Tensor, conditioning: object) -> Tensor:
        self.log.append((self.name, float(timestep[-1])))
        return torch.full_like(latent, self.value)

    def opened(self) -> Callable[[], Any]:
        @contextmanager
        def bring() -> Iterator[Model]:
            self.log.append(f"{self.name} in")
            yield self
            self.log.append(f"{self.name} out")

        return bring


def pair(log: list[Any], boundary: float = 0.875) -> list[Denoiser]:
    high, low = Model("high", 1.0, log), Model("low", 3.0, log)
    return [Denoiser(high.opened(), boundary), Denoiser(low.opened())]  # type: ignore[arg-type]


def test_each_expert_takes_the_steps_on_its_side_of_the_boundary() -> None:
    log: list[Any] = []
    seen: list[tuple[int, int]] = []
    found = generate(pair(log), TEXT, TEXT, NOISE, PRESET, on_step=lambda *at: seen.append(at))
    sigmas = simple_sigmas(20, 8.0)
    names = [entry if isinstance(entry, str) else entry[0] for entry in log]
    assert names == ["high in", *["high"] * 11, "high out", "low in", *["low"] * 9, "low out"]
    assert [entry[1] for entry in log if isinstance(entry, tuple)] == pytest.approx((1000 * sigmas[:-1]).tolist())
    assert seen == [(done, 20) for done in range(1, 21)]
    switch = float(sigmas[11])
    torch.testing.assert_close(found, NOISE - (1 - switch) * 1.0 - switch * 3.0, atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    ("boundary", "steps", "shift", "high"), [(0.9, 20, 8.0, 10), (0.9, 20, 5.0, 8), (0.875, 10, 3.0, 4)]
)
def test_the_boundary_itself_belongs_to_the_high_expert(boundary: float, steps: int, shift: float, high: int) -> None:
    """The counts are official Wan's: t >= boundary. With shift 3 and 10 steps, 0.875 is a noise level of its own."""
    assert len(turns(pair([], boundary), simple_sigmas(steps, shift))[0][1]) - 1 == high


def test_the_high_expert_alone_shows_what_it_expects_at_the_boundary() -> None:
    log: list[Any] = []
    found = generate(pair(log)[:1], TEXT, TEXT, NOISE, PRESET)
    assert len(log) == 2 + 11
    torch.testing.assert_close(found, NOISE - 1.0, atol=1e-5, rtol=0)


def test_the_low_expert_alone_starts_from_a_clip_noised_as_far_as_it_knows() -> None:
    log: list[Any] = []
    low = Model("low", 0.0, log)
    clean = torch.ones_like(NOISE)
    seen: list[tuple[int, int]] = []
    alone = [Denoiser(low.opened(), sigma_max=0.875)]  # type: ignore[arg-type]
    found = generate(alone, TEXT, TEXT, NOISE, PRESET, start=clean, on_step=lambda *at: seen.append(at))
    sigma = float(simple_sigmas(20, 8.0)[11])
    assert sigma < 0.875
    assert log[1] == ("low", pytest.approx(1000 * sigma))
    assert seen[-1] == (9, 9)
    torch.testing.assert_close(found, (1 - sigma) * clean + sigma * NOISE)


def test_a_denoiser_without_a_step_is_named() -> None:
    with pytest.raises(ConfigError, match=r"None of 1 sampling steps begins .* 0 to 0.875\. Set more steps"):
        turns([Denoiser(Model("low", 0.0, []).opened(), sigma_max=0.875)], simple_sigmas(1, 8.0))  # type: ignore[arg-type]
