"""The bar that says whether a training fits: red before anything is queued, one click, green, and it trains."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.browser.conftest import shows, tiny_canvas
from tests.browser.test_panel import serious

pytestmark = pytest.mark.browser

RESERVE_GIB = 1.5 if sys.platform == "win32" else 1.0
BAR = ".wan-panel .wan-fit"


@pytest.fixture
def card_of(canvas: Any) -> Iterator[Callable[[float], None]]:
    """Makes the server take its cards for having so many MiB beside the reserve."""

    def told(gib: str) -> None:
        canvas.server.post("/tiny/card", {"gib": gib})

    yield lambda mib: told(f"{RESERVE_GIB + mib / 1024:.6f}")
    told("")


def test_what_does_not_fit_is_red_before_it_is_queued_and_fits_after_a_click(
    canvas: Any, workflows: dict[str, Any], card_of: Callable[[float], None], frontend: str
) -> None:
    """On the newer frontend with the nodes it draws itself."""
    card_of(18)
    if frontend != "shipped":
        canvas.vue_nodes(True)
    asked = {"steps": 2, "rank": 64, "preview_every_n_steps": 0, "run_name": f"fits-{frontend}"}
    canvas.load(tiny_canvas(workflows["08_smoke_test"], TrainLoRA=asked))
    canvas.watch()
    bar = canvas.page.locator(BAR)
    shows(bar, "Does not fit: ", "rank 64", "rank 32 fits")
    assert bar.get_attribute("data-state") == "short"
    on_dataset = canvas.page.locator('.wan-card[data-card="dataset"] .wan-fit')
    shows(on_dataset, "Does not fit")
    assert serious(canvas, BAR) == []
    canvas.show(BAR)
    canvas.screenshot("does-not-fit")

    bar.get_by_role("button", name="rank 32 fits").click()
    shows(bar, "Fits: ", "rank 32.")
    assert bar.get_attribute("data-state") == "fits"
    assert bar.get_by_role("button").count() == 0
    shows(on_dataset, "Fits")
    (train,) = [node for node in canvas.to_prompt().values() if node["class_type"] == "TrainLoRA"]
    assert train["inputs"]["rank"] == 32
    assert serious(canvas, BAR) == []
    canvas.screenshot("fits")

    canvas.press_run()
    assert canvas.lines()[-1].startswith("done: step 2 of 2")
    assert canvas.our_problems == []
