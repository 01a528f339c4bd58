"""The bar that says whether a training fits: red before anything is queued, one click, green, and it trains."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.browser.conftest import Pages, shipped_in_ci, shows, tiny_canvas
from tests.browser.test_panel import serious
from tests.support.headers import write_empty_model

pytestmark = pytest.mark.browser

BAR = ".wan-panel .wan-fit"


@shipped_in_ci
def test_what_does_not_fit_is_red_before_it_is_queued_and_fits_after_a_click(
    pages: Pages, workflows: dict[str, Any], card_of: Callable[[float], None], frontend: str
) -> None:
    """On the newer frontend with the nodes it draws itself."""
    card_of(18)
    canvas = pages.take(vue=frontend != "shipped")
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

    # Opened again, it says what Run would do with that run before anything is queued.
    run = asked["run_name"]
    canvas.load(tiny_canvas(workflows["08_smoke_test"], TrainLoRA={**asked, "rank": 32}))
    canvas.page.locator(".wan-panel .wan-details").evaluate("one => { one.open = true; }")
    standing = canvas.page.locator(".wan-panel .wan-standing")
    shows(standing, f"{run} is a finished run (step 2 of 2). With the same clips, Run trains nothing more.")
    canvas.load(tiny_canvas(workflows["08_smoke_test"], TrainLoRA={**asked, "rank": 16}))
    shows(standing, "It has other settings: rank is 32 in that run and 16 here. Run starts a new one,", f"{run}_002")
    assert standing.get_attribute("data-action") == "start"
    assert serious(canvas, ".wan-panel .wan-standing") == []
    canvas.show(".wan-panel .wan-standing")
    canvas.screenshot("other-settings")
    assert canvas.our_problems == []


@contextmanager
def a14b_on_16_gib(server: Any) -> Iterator[None]:
    """Inside, the server has both experts of template 03, with the headers and sizes of the real files and no values,
    a card of 16 GiB, and 64 GiB of its own memory free."""
    folder = server.base / "models" / "diffusion_models"
    files = [folder / f"wan2.2_t2v_{which}_noise_14B_fp8_scaled.safetensors" for which in ("high", "low")]
    for file in files:
        write_empty_model(file, "wan2.2-t2v-A14B-expert", "scaled fp8")
    server.post("/tiny/card", {"gib": "16", "host_gib": "64"})
    try:
        yield
    finally:
        server.post("/tiny/card", {"gib": ""})
        for file in files:
            file.unlink()


@pytest.fixture
def a14b(canvas_server: Any) -> Iterator[None]:
    with a14b_on_16_gib(canvas_server):
        yield


def turn(canvas: Any, **values: int) -> None:
    """Turns the widgets of the dataset."""
    canvas.node("WanVideoDataset").evaluate(
        """(node, values) => {
          for (const [name, value] of Object.entries(values)) {
            const widget = node.widgets.find(w => w.name === name);
            widget.value = value;
            widget.callback?.(value);
          }
        }""",
        values,
    )


@pytest.mark.soak
@pytest.mark.usefixtures("a14b")
def test_the_14b_template_on_a_card_of_16_gib(canvas: Any) -> None:
    """Its real headers: nothing of 14B can be trained here, so it is opened, planned and made to fit, not run."""
    canvas.open_template("03_wan22_t2v_A14B_character")
    bar = canvas.page.locator(BAR).first
    shows(bar, "Fits: ", "blocks offloaded")

    turn(canvas, num_frames=81)
    shows(bar, "Fits: ", "832x480x81")
    turn(canvas, width=1280, height=720)
    shows(bar, "Does not fit: ", "1280x720x81", "frames fits")
    assert bar.get_attribute("data-state") == "short"
    canvas.show(BAR)
    canvas.screenshot("14b-does-not-fit")

    bar.get_by_role("button", name="frames fits").click()
    shows(bar, "Fits: ", "1280x720x")
    assert bar.get_attribute("data-state") == "fits"
    (dataset,) = [node for node in canvas.to_prompt().values() if node["class_type"] == "WanVideoDataset"]
    assert 33 <= dataset["inputs"]["num_frames"] < 81
    canvas.screenshot("14b-fits")
    assert canvas.our_problems == []


@pytest.mark.soak
def test_token_routes_are_drawn_layer_by_layer(
    pages: Pages, workflows: dict[str, Any], card_of: Callable[[float], None], frontend: str
) -> None:
    """The server's plan of the tiny model, with the routes of a model of forty layers put into its answer."""
    card_of(64)
    canvas = pages.take(vue=frontend != "shipped")
    routes = {"kept": [1, 1, *[0.5] * 37, 1], "flops_saved": 0.58, "time_saved": 0.55}

    def answered(route: Any) -> None:
        route.fulfill(json={**route.fetch().json(), "routes": routes})

    canvas.page.route("**/wan_trainer/plan", answered)
    canvas.load(tiny_canvas(workflows["08_smoke_test"], TrainLoRA={"run_name": f"routes-{frontend}"}))
    bar = canvas.page.locator(BAR)
    shows(bar, "Fits: ")
    drawn = bar.get_by_role("img", name="Tokens that layers 0 to 39 see: 58 % less arithmetic in a step.")
    heights = drawn.locator("span").evaluate_all("all => all.map(one => one.getBoundingClientRect().height)")
    assert len(heights) == 40
    assert max(heights) == pytest.approx(2 * min(heights), rel=0.02)
    assert heights.count(max(heights)) == 3
    assert serious(canvas, BAR) == []
    canvas.show(BAR)
    canvas.screenshot("token-routes")
    canvas.page.unroute("**/wan_trainer/plan")
