"""The smoke graph on the canvas: press Run, watch it train, see the preview play, press Run again."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.browser.conftest import Pages, shipped_in_ci, shows, tiny_canvas
from tests.browser.test_panel import serious

pytestmark = pytest.mark.browser

# TrainLoRA's newest preview and a clip of ValidateVideo.
BOTH_PLAY = """() => new Set([...document.querySelectorAll("video")]
  .filter(v => v.readyState >= 2 && v.videoWidth > 0 && !v.error).map(v => v.currentSrc)).size >= 2"""

# Where the clips of the page are; the page itself would show those of an output below the widgets.
PLACES = """() => {
  const found = {};
  for (const video of document.querySelectorAll("video")) {
    const place = ["panel", "card"].find(one => video.closest(`.wan-${one}`)) ?? "page";
    found[place] = (found[place] ?? 0) + 1;
  }
  return found;
}"""


TABS = "() => window.app.extensionManager.workflow.openWorkflows.map(one => one.path)"
STEPS = 120
"""enough that a fast machine, too, tells some of them: messages about steps come at most four a second"""


@shipped_in_ci
def test_run_trains_and_the_preview_plays_and_run_again_trains_nothing(pages: Pages, workflows: dict[str, Any]) -> None:
    """In CI on the frontend that ComfyUI ships; on the newer one test_panel_trains.py trains there, and the soak."""
    canvas = pages.take(vue=False)
    asked = {"steps": STEPS, "save_every_n_steps": STEPS, "preview_every_n_steps": STEPS}
    smoke = tiny_canvas(workflows["08_smoke_test"], TrainLoRA=asked)
    canvas.load(smoke)
    canvas.watch()
    canvas.press_run()

    train = str(next(n["id"] for n in smoke["nodes"] if n["type"] == "TrainLoRA"))
    steps = [int(found[1]) for text in canvas.lines() if (found := re.match(rf"step (\d+)/{STEPS} ", text))]
    assert steps == sorted(steps)
    assert steps, canvas.lines()
    assert len(set(canvas.lines())) >= 4, canvas.lines()
    assert canvas.lines()[-1].startswith(f"done: step {STEPS} of {STEPS}")
    name = "wan_trainer/smoke_test.safetensors"
    assert canvas.lines()[-1].splitlines()[-2:] == [
        f"{name}: on wan_tiny_t2v.safetensors, at strength 1.0",
        "Or use Apply Wan LoRA, which applies exactly what was trained, on quantized models too.",
    ]
    bars = [d for d in canvas.seen("progress") if str(d["node"]) == train]
    assert max(bar["value"] for bar in bars) == bars[-1]["max"] == STEPS
    canvas.page.wait_for_function(BOTH_PLAY)
    assert canvas.script(PLACES) == {"panel": 2, "card": 2}, "the page shows a clip of its own"
    compared = canvas.page.locator(".wan-compared")
    shows(compared, "a man talks in a driving car", "base model", f"step {STEPS}")
    assert compared.locator("figcaption").all_inner_texts() == ["base model", f"step {STEPS} · strength 1"]
    assert serious(canvas, '.wan-card[data-card="clips"]') == []
    assert canvas.seen("b_preview"), "the progress bar had no picture"

    canvas.page.wait_for_function(
        """name => {
          const node = window.app.graph._nodes.find(n => n.type === "TrainLoRA");
          const widget = node.widgets.find(w => w.name === "start_from_lora");
          return widget.options.values.includes(name);
        }""",
        arg=name,
    )
    canvas.fit()
    canvas.screenshot("trained")

    told = len(canvas.seen("wan_trainer.status"))
    canvas.press_run()
    again = [d for d in canvas.seen("wan_trainer.status")[told:] if d.get("stage") == "train"]
    assert again == [], "the second run trained"
    assert {d["graph"] for d in canvas.seen("wan_trainer.status")} == {canvas.script("() => window.app.graph.id")}
    assert canvas.lines()[-1].startswith(f"done: step {STEPS} of {STEPS}")

    tabs = canvas.script(TABS)
    canvas.page.get_by_role("button", name="Generate with it").click()
    canvas.page.wait_for_function("() => window.app.graph._nodes.some(n => n.type === 'KSampler')")
    assert canvas.script(TABS) == [*tabs, "workflows/smoke_test generate.json"], "it replaced a workflow"
    prompt = {body["class_type"]: body["inputs"] for body in canvas.to_prompt().values()}
    assert prompt["LoraLoaderModelOnly"]["lora_name"] == name
    assert prompt["CLIPTextEncode"]["clip"], "the loader of the run's own graph is missing"
    assert canvas.missing_nodes() == []
    assert canvas.our_problems == []
