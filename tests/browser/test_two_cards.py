"""Template 06: when both cards work in a step, on the Split node; and a run on two cards, in the panel."""

from __future__ import annotations

from typing import Any

import pytest
from environment import OTHER_FRONTEND

from tests.browser.conftest import Pages, shows
from tests.browser.grown import REASON, TOO_LARGE, TWO_CARDS, finished_runs
from tests.browser.test_panel import serious

pytestmark = pytest.mark.browser

SPLIT = '.wan-card[data-card="split"]'


@pytest.mark.parametrize("frontend", ["shipped", pytest.param(OTHER_FRONTEND, marks=pytest.mark.soak)], indirect=True)
def test_template_06_draws_when_both_cards_work_and_the_panel_shows_both(
    pages: Pages, workflows: dict[str, Any], frontend: str
) -> None:
    canvas, workflow = pages.take(vue=frontend != "shipped"), workflows["06_two_gpus_fp8"]
    runs = finished_runs(canvas, [workflow])
    canvas.load(workflow)
    card = canvas.page.locator(SPLIT)
    shows(card, "split blocks", REASON, "of which the cards wait 20 %", "cuda:0", "cuda:1")
    rows = card.locator(".wan-lane")
    assert rows.count() == 2
    assert rows.nth(1).get_attribute("aria-label") == "cuda:1 works 79 % of a step"
    assert [rows.nth(card).locator("span").all_inner_texts() for card in (0, 1)] == [
        [str(micro + 1) for _, micro, _, _ in one["work"]] for one in TWO_CARDS["cards"]
    ]
    wide, (left, width) = rows.nth(1).bounding_box()["width"], TWO_CARDS["cards"][1]["work"][0][2:]
    assert left > 0, "the second card waits for the first"
    first = rows.nth(1).locator("span").first
    assert first.bounding_box()["width"] == pytest.approx(wide * (width - left), abs=1)
    assert serious(canvas, SPLIT) == []
    canvas.show(SPLIT)
    canvas.screenshot(f"two-cards-{frontend}")

    canvas.page.unroute("**/wan_trainer/plan")
    canvas.page.route("**/wan_trainer/plan", lambda route: route.fulfill(json={**TOO_LARGE, "cards": None}))
    canvas.load(workflow)
    card.locator(".wan-lane").first.wait_for(state="hidden")
    runs.leave(canvas.page)
    assert canvas.our_problems == []
