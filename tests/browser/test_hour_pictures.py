"""The journeys of a new user and of somebody who comes from musubi-tuner as pictures, in two languages, on the canvas
and with the nodes that the newer page draws itself. What a hand does for them is counted in test_first_hour.py.

    OMP_NUM_THREADS=2 .venv/bin/python -m pytest tests/browser/test_hour_pictures.py

keeps its pictures under .cache/screenshots; with WAN_TRAINER_UPDATE=1 they become those of docs/journey.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from world import MODEL, VAE

from tests.browser.conftest import shows, tiny_canvas
from tests.browser.test_first_hour import COMMAND, FIRST, SMALL, drop_settings, quiet
from tests.browser.test_fit import BAR
from tests.browser.test_graphs import ON_CANVAS
from tests.browser.test_journey import POINTS, Journey, Words

pytestmark = [pytest.mark.browser, pytest.mark.soak]

LONG = {"steps": 3000, "save_every_n_steps": 500, "preview_every_n_steps": 0}
"""the page says that its lists are new whenever a LoRA is saved, over the picture"""
TRAINED = 45
"""steps that a curve is seen of"""


@pytest.fixture(params=["en", "zh"])
def hour(canvas: Any, frontend: str, request: pytest.FixtureRequest) -> Iterator[Journey]:
    words, name = Words(request.param), "hour" if frontend == "shipped" else "hour_vue"
    canvas.vue = frontend != "shipped"
    for setting, value in {
        "Comfy.Locale": words.language,
        "Comfy.Minimap.Visible": False,
        "Comfy.Graph.CanvasInfo": False,
        "LiteGraph.Canvas.MinFontSizeForLOD": 0,
        "Comfy.VueNodes.Enabled": canvas.vue,
    }.items():
        canvas.server.setting(setting, value)
    canvas.page.set_viewport_size({"width": 2200, "height": 1250})
    canvas.open()
    yield Journey(canvas, name if words.language == "en" else f"{name}_{words.language}", words)
    canvas.server.setting("Comfy.Locale", "en")
    canvas.server.post("/tiny/card", {"gib": ""})


def train_and_keep(hour: Journey, what: str) -> None:
    """Run, a picture of the first steps, and Cancel."""
    canvas = hour.canvas
    canvas.page.mouse.move(700, 1100)  # what the page says lies over Run, and stays while the mouse is on it
    canvas.page.wait_for_function("() => !document.querySelector('.p-toast-message')", timeout=60_000)
    canvas.page.get_by_role("button", name=hour.words("Run"), exact=True).first.click()
    canvas.page.wait_for_function(f"() => {POINTS} >= {TRAINED}", timeout=120_000)
    hour.keep(what)
    quiet(canvas)


def test_a_template_and_a_dropped_command_train(hour: Journey, workflows: dict[str, Any]) -> None:
    canvas, words = hour.canvas, hour.words
    canvas.server.post("/tiny/card", {"gib": "16"})
    tiny = tiny_canvas(
        workflows[FIRST],
        LoadWanModel={"diffusion_model": MODEL},
        VAELoader={"vae_name": VAE},
        WanVideoDataset={**SMALL, "folder": "clips"},
        TrainLoRA={**LONG, "run_name": f"new_user_{hour.name}"},
    )
    hour.open(FIRST, tiny)
    shows(canvas.page.locator(BAR), words.start("Fits: {needed} needed, {room} free"), "15.0 GiB")
    hour.keep("new_user_fits")
    train_and_keep(hour, "new_user_trains")

    canvas.open()
    canvas.page.wait_for_timeout(1000)  # the shipped page never unblocks where files fall while it still fades in
    command = COMMAND.replace("OUTPUT", f"veteran_{hour.name}")
    drop_settings(canvas, command.replace("train_steps 200", "train_steps 3000").replace("n_steps 200", "n_steps 500"))
    canvas.page.wait_for_function(ON_CANVAS, arg="TrainLoRA")
    canvas.drawn(1500)
    canvas.page.wait_for_timeout(6000)  # what the page says of them lies over the nodes
    hour.keep("veteran_dropped")
    train_and_keep(hour, "veteran_trains")
    assert canvas.our_problems == []
