"""tests/fixtures/timestep_shares.json: what the page draws on Wan Train Settings is what `draw_sigma` draws.

`draw_sigma` gets, instead of random numbers, the quantiles of a fine grid: what it makes of them is its distribution,
without chance. Write the file anew with WAN_TRAINER_UPDATE=1 pytest tests/wan_core/test_timestep_golden.py; the page's
own numbers are compared with it in tests/web/cards/density.test.mjs.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from wan_core.checkpoint.catalogue import names_of
from wan_core.families import FAMILIES
from wan_core.flow import TIMESTEP_SAMPLINGS, draw_sigma, seeded_generator
from wan_core.model import WAN21_LATENTS, WAN22_LATENTS

GOLDEN = Path(__file__).parents[1] / "fixtures" / "timestep_shares.json"
POINTS = 200_000
EVERY = 50
"""timesteps between two shares"""
MODELS = [(model, family.pair if model.pair else None) for family in FAMILIES for model in family.models]
SHIFTS = {
    name: pair.shift if pair else (WAN22_LATENTS if model.dim == 3072 else WAN21_LATENTS).shift
    for model, pair in MODELS
    for name in names_of(model)
}
"""name of every published model and expert -> its training shift; the 5B models have latents of 48 channels"""
BOUNDARIES = {name: pair.boundary for model, pair in MODELS if pair for name in names_of(model)}

CASES = [
    {"sampling": sampling, "shift": shift, "scale": scale, "low": low, "high": high}
    for sampling, shift, scale, low, high in (
        ("uniform", 1.0, 1.0, 0.0, 1.0),
        ("uniform", 3.0, 1.0, 0.0, 1.0),
        ("uniform", 5.0, 1.0, 0.875, 1.0),
        ("uniform", 0.4, 1.0, 0.0, 0.9),
        ("sigmoid", 3.0, 1.0, 0.0, 1.0),
        ("sigmoid", 1.0, 0.3, 0.0, 0.875),
        ("sigmoid", 1.0, 4.0, 0.9, 1.0),
        ("shift", 3.0, 1.0, 0.0, 1.0),
        ("shift", 8.0, 1.0, 0.0, 1.0),
        ("shift", 8.0, 1.5, 0.9, 1.0),
        ("shift", 5.0, 1.0, 0.0, 0.875),
        ("shift", 0.5, 2.0, 0.0, 1.0),
        ("flux_shift", 2.0, 1.2, 0.0, 1.0),
        ("qwen_shift", 1.8, 1.0, 0.0, 0.9),
        ("beta", 3.0, 1.0, 0.0, 1.0),
        ("beta", 1.0, 1.0, 0.875, 1.0),
    )
] + [
    {"sampling": sampling, "shift": 3.0, "scale": 1.0, **own, "low": low, "high": 1.0}
    for sampling, own, low in (
        ("logsnr", {"mean": 0.0, "deviation": 1.0}, 0.0),
        ("logsnr", {"mean": -6.0, "deviation": 2.0}, 0.875),
        ("mode", {"mode": 1.29}, 0.0),
        ("mode", {"mode": -0.7}, 0.4),
    )
]


@pytest.fixture
def grid(monkeypatch: pytest.MonkeyPatch) -> None:
    """Random numbers become the quantiles of their distribution, POINTS of them whatever is asked for."""
    parts = (torch.arange(POINTS, dtype=torch.float64) + 0.5) / POINTS
    monkeypatch.setattr(torch, "rand", lambda *_args, **_options: parts.float())
    monkeypatch.setattr(torch, "randn", lambda *_args, **_options: torch.special.ndtri(parts).float())


def drawn(case: dict[str, Any], count: int, low: float, high: float) -> Tensor:
    return draw_sigma(
        count,
        seeded_generator(0),
        sampling=case["sampling"],
        shift=case["shift"],
        sigmoid_scale=case["scale"],
        logit_mean=case.get("mean", 0.0),
        logit_std=case.get("deviation", 1.0),
        mode_scale=case.get("mode", 1.29),
        sigma_min=low,
        sigma_max=high,
    ).double()


def measured(case: dict[str, Any]) -> dict[str, Any]:
    """Share of the draws that the range keeps, and of those the share at or below every EVERY timesteps."""
    whole = drawn(case, POINTS, 0.0, 1.0)
    inside = int(((whole >= case["low"]) & (whole <= case["high"])).sum())
    found = drawn(case, inside, case["low"], case["high"])
    edges = torch.arange(0, 1001, EVERY, dtype=torch.float64) / 1000
    shares = (found[:, None] <= edges).double().mean(0)
    return {**case, "kept": round(inside / POINTS, 6), "shares": [round(float(share), 6) for share in shares]}


def test_the_shares_the_page_is_compared_with_are_those_the_engine_draws(grid: None) -> None:
    assert {case["sampling"] for case in CASES} == set(TIMESTEP_SAMPLINGS)
    facts = {"every": EVERY, "boundaries": BOUNDARIES, "shifts": SHIFTS}
    found = {**facts, "cases": [measured(case) for case in CASES]}
    if os.environ.get("WAN_TRAINER_UPDATE"):
        GOLDEN.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    known = json.loads(GOLDEN.read_text(encoding="utf-8"))
    assert {name: known[name] for name in facts} == facts
    for case, pinned in zip(found["cases"], known["cases"], strict=True):
        # Another release of torch may round a point to the other side of an edge.
        numbers = {name: pytest.approx(pinned[name], abs=2e-5) for name in ("kept", "shares")}
        assert case == {**pinned, **numbers}
