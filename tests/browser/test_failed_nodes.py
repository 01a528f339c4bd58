"""Why a node failed stands on that node, in every frontend: a message that goes away is nowhere a minute later."""

from __future__ import annotations

import shutil
from typing import Any

import pytest
from clips import place_clips
from world import VAE

from tests.browser.conftest import Pages, newer_in_ci, shows, tiny_canvas

pytestmark = pytest.mark.browser

ID_OF = "type => String(window.app.graph._nodes.find(n => n.type === type).id)"
RUN_ALONE = "id => window.app.queuePrompt(0, 1, [id])"
BOX = """type => {
  const node = window.app.graph._nodes.find(n => n.type === type);
  const box = node.wanTrainerCard?.failed ?? node.wanTrainerFailure;
  return box && !box.hidden ? box.textContent : "";
}"""
RED = """type => {
  const node = window.app.graph._nodes.find(n => n.type === type);
  const box = node.wanTrainerCard?.failed ?? node.wanTrainerFailure;
  const [r, g, b] = getComputedStyle(box).color.match(/[\\d.]+/g).map(Number);
  return r > 1.4 * g && r > 1.4 * b;
}"""
ways = pytest.mark.parametrize("vue", [False, pytest.param(True, marks=pytest.mark.soak)])


def broken(canvas: Any, count: int) -> None:
    canvas.page.wait_for_function("n => window.seen.execution_error.length >= n", arg=count, timeout=300_000)
    canvas.page.keyboard.press("Escape")
    canvas.drawn(400)


@newer_in_ci
@ways
def test_a_scan_that_fails_is_said_on_the_dataset_and_its_old_pictures_go(
    pages: Pages, canvas_server: Any, workflows: dict[str, Any], vue: bool
) -> None:
    folder = place_clips(canvas_server.base / "input" / "emptied")
    canvas = pages.take(vue)
    canvas.load(tiny_canvas(workflows["08_smoke_test"], WanVideoDataset={"folder": "emptied"}))
    canvas.watch()
    dataset = canvas.script(ID_OF, "WanVideoDataset")
    card = canvas.page.locator('[data-card="dataset"]')
    canvas.script(RUN_ALONE, dataset)
    shows(card, "clips")
    card.locator(".wan-facts").wait_for()
    shutil.rmtree(folder)
    folder.mkdir()
    canvas.script(RUN_ALONE, dataset)
    broken(canvas, 1)
    canvas.focus("WanVideoDataset")
    shows(card, "'emptied' holds no clips or stills")
    assert card.locator(".wan-facts").count() == 0, "what it showed is no longer so"
    assert canvas.script(RED, "WanVideoDataset")
    bars = canvas.page.locator(".wan-fit[data-state=fits]")
    assert [bar.inner_text() for bar in bars.all() if bar.is_visible()] == []
    canvas.screenshot(f"failed-scan-{'vue' if vue else 'classic'}")
    place_clips(folder)
    canvas.script(RUN_ALONE, dataset)
    card.locator(".wan-facts").wait_for()
    assert canvas.script(BOX, "WanVideoDataset") == ""
    shutil.rmtree(folder)
    canvas.script(RUN_ALONE, dataset)
    shows(
        card, "Folder 'emptied' does not exist. Choose one that does."
    )  # ComfyUI refuses it when it is queued: nothing runs, and no message comes
    assert card.locator(".wan-facts").count() == 0
    assert canvas.script(RED, "WanVideoDataset")
    canvas.focus("WanVideoDataset")
    canvas.screenshot(f"refused-folder-{'vue' if vue else 'classic'}")
    place_clips(folder)
    canvas.script(RUN_ALONE, dataset)
    card.locator(".wan-facts").wait_for()
    assert canvas.script(BOX, "WanVideoDataset") == ""
    # ComfyUI's page writes the refusal to the console, with the way it took.
    assert [said for said in canvas.our_problems if "PromptExecutionError" not in said] == []


@newer_in_ci
@ways
def test_a_model_that_is_refused_is_said_on_its_loader_until_something_runs(
    pages: Pages, canvas_server: Any, workflows: dict[str, Any], vue: bool
) -> None:
    models = canvas_server.base / "models"
    shutil.copyfile(models / "vae" / VAE, models / "diffusion_models" / "a_vae.safetensors")
    canvas = pages.take(vue)
    canvas.load(tiny_canvas(workflows["08_smoke_test"], LoadWanModel={"diffusion_model": "a_vae.safetensors"}))
    canvas.watch()
    canvas.run()
    broken(canvas, 1)
    canvas.focus("LoadWanModel")
    said = canvas.script(BOX, "LoadWanModel")
    assert "a_vae.safetensors is the Wan 2.1 VAE, not a Wan diffusion model" in said
    assert canvas.script(RED, "LoadWanModel")
    box = canvas.page.locator(".wan-failed", has_text="a_vae.safetensors").first
    assert box.is_visible()
    canvas.screenshot(f"failed-model-{'vue' if vue else 'classic'}")
    canvas.script("() => window.app.api.dispatchCustomEvent('execution_start', { prompt_id: 'x' })")
    canvas.drawn(400)
    assert canvas.script(BOX, "LoadWanModel") == ""
    assert canvas.our_problems == []
    pages.drop(canvas)  # it shows dialogs, and waits for the queue entry x
