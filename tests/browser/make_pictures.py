"""Makes the pictures of the docs; run by name, never collected with the tests:

    OMP_NUM_THREADS=2 .venv/bin/python -m pytest tests/browser/make_pictures.py

docs/images/stage_*.jpg and canvas.jpg are the stages of
a real run of the smoke graph; panel*.png and runs_tab.png show the panel and the sidebar tab on made-up runs, fit.png
the bar that says whether a training fits, split.png when two cards work, settings.png the node with the many settings,
grid_node.png and grid.png
Validate Video and what it makes, contact_sheet.png a dataset with some bad files, dropped.jpg what settings of another
trainer become.
"""

from __future__ import annotations

import io
import json
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from environment import CACHE
from PIL import Image
from shapeworld.comfy_graphs import MODELS, SAMPLING, VAE, Recipe, dataset_inputs, train_inputs
from shapeworld.concept import load_concept
from shapeworld.learning import CONCEPTS, DEFAULT_CONCEPT, draw_dataset, fill_models

from tests.browser.conftest import BOUNDS, shows, tiny_canvas
from tests.browser.grown import OUTPUTS, TELL, TOO_LARGE, TWO_CARDS, finished_runs
from tests.browser.runs_on_page import Runs, whole_run
from tests.browser.test_captions import GRAPH as DATASET_GRAPH
from tests.browser.test_cards import PICTURES, queue
from tests.browser.test_fit import a14b_on_16_gib
from tests.browser.test_graphs import DROP_TEXTS, JOBS
from tests.browser.test_settings import FINDER, TURN
from tests.browser.test_settings import GRAPH as SETTINGS_GRAPH

pytestmark = pytest.mark.browser

ROOT = Path(__file__).resolve().parents[2]
FITS_TWO = {
    **TOO_LARGE,
    "fits": True,
    "devices": [{"name": f"cuda:{n}", "needed": 20 << 30, "room": 23 << 30, "total": 24 << 30} for n in range(2)],
    "host": {"needed": 4 << 30, "room": 50 << 30},
    "suggestions": None,
}


@pytest.fixture
def bare(canvas: Any, frontend: str) -> Any:
    """A large canvas without toasts, banner and minimap; one frontend is enough."""
    if frontend != "shipped":
        pytest.skip("pictures are made on the shipped frontend")
    canvas.server.setting("Comfy.Minimap.Visible", False)
    canvas.server.setting("Comfy.Graph.CanvasInfo", False)
    canvas.server.setting("LiteGraph.Canvas.MinFontSizeForLOD", 0)  # small, but not blank
    canvas.page.set_viewport_size({"width": 2480, "height": 1330})
    canvas.open()
    return canvas


def picture(canvas: Any, mouse: tuple[int, int] = (2000, 1250), ids: Sequence[int] = ()) -> Image.Image:
    """The nodes, or those with these ids, and a margin, cut out of the page; the mouse is where it shows nothing."""
    canvas.page.mouse.move(*mouse)
    canvas.script("() => window.app.canvas.deselectAll()")  # the frontend cuts what stands behind a selected node
    canvas.fit(ids)
    hidden = canvas.page.add_style_tag(
        content=".side-tool-bar-container, .comfyui-body-top, .comfyui-body-left, .comfyui-body-right, .p-toast,"
        " .p-tooltip, .p-panel, .p-buttongroup, [class*=actionbar], [class*=topbar], [class*=subgraph-breadcrumb]"
        " {visibility: hidden}"
    )
    canvas.page.wait_for_timeout(500)
    left, top, right, bottom = canvas.script(BOUNDS, list(ids))
    box = canvas.script(
        """([left, top, right, bottom]) => {
          const { scale, offset } = window.app.canvas.ds, at = window.app.canvas.canvas.getBoundingClientRect();
          return [at.x + (left + offset[0]) * scale, at.y + (top + offset[1]) * scale,
            at.x + (right + offset[0]) * scale, at.y + (bottom + offset[1]) * scale];
        }""",
        [left, top - 30, right, bottom],
    )
    shot = canvas.page.screenshot()
    hidden.evaluate("style => style.remove()")
    with Image.open(io.BytesIO(shot)) as page:
        edges = [box[0] - 20, box[1], min(box[2] + 20, page.width), min(box[3] + 20, page.height)]
        return page.convert("RGB").crop([round(max(0, edge)) for edge in edges])


def without_note(workflow: dict[str, Any]) -> dict[str, Any]:
    """At the size of a thumbnail the note is grey dust."""
    return {**workflow, "nodes": [n for n in workflow["nodes"] if n["type"] != "MarkdownNote"]}


def demo_run(canvas: Any, workflows: dict[str, Any], **more: dict[str, Any]) -> dict[str, Any]:
    """The smoke graph with the demo model and the concept of the learning test, so that previews show something."""
    model, concept = MODELS["t2v"], load_concept(CONCEPTS / f"{DEFAULT_CONCEPT}.json")
    recipe = Recipe(steps=200, batch_size=3, prior_clips=0)
    fill_models(canvas.server.base, model)
    folder, _ = draw_dataset(canvas.server.base, concept, recipe)
    changes = {
        "LoadWanModel": {"diffusion_model": model.files[0]},
        "VAELoader": {"vae_name": VAE},
        "WanVideoDataset": dataset_inputs(folder),
        "WanPreviewSettings": {
            "prompts": concept.caption,
            "negative_prompt": "",
            "steps": SAMPLING.steps,
            "cfg": SAMPLING.cfg,
            "shift": SAMPLING.shift,
        },
        "TrainLoRA": {**train_inputs(recipe, "my_lora"), "preview_every_n_steps": 100, "save_every_n_steps": 100},
        "ValidateVideo": {},
    }
    changes = {kind: {**inputs, **more.get(kind, {})} for kind, inputs in changes.items()}
    return without_note(tiny_canvas(workflows["08_smoke_test"], **changes))


def save_canvas(canvas: Any, name: str) -> None:
    """The whole graph as docs/images/NAME.jpg."""
    file = ROOT / "docs" / "images" / f"{name}.jpg"
    canvas.page.wait_for_timeout(2500)
    whole = picture(canvas)
    whole.thumbnail((1600, 1600), Image.Resampling.LANCZOS)
    whole.save(file, quality=88, optimize=True)
    assert file.stat().st_size <= 400_000


def test_the_stages_of_a_run(bare: Any, workflows: dict[str, Any]) -> None:
    """A real run: loaded, training, stopped and kept, the page reloaded, resumed to its end."""
    points = 'window.app.graph._nodes.find(n => n.type === "TrainLoRA").wanTrainerPanel.history.points'
    ended = "() => window.seen.execution_success.length + window.seen.execution_error.length > 0"
    bare.load(demo_run(bare, workflows))
    save_canvas(bare, "stage_1_loaded")
    bare.watch()
    bare.fit()
    bare.page.get_by_role("button", name="Run", exact=True).first.click()
    bare.page.wait_for_function(f"() => {points} >= 40", timeout=1_200_000)
    save_canvas(bare, "stage_2_training")
    bare.show(".wan-panel .wan-headline")
    bare.page.locator(".wan-panel").get_by_role("button", name="Stop and keep").click()
    bare.page.wait_for_function(ended, timeout=1_200_000)
    assert bare.seen("execution_error") == []
    save_canvas(bare, "stage_3_stopped")
    bare.page.reload(wait_until="domcontentloaded")
    bare.wait_until_ready()
    bare.page.wait_for_function(f"() => {points} >= 40", timeout=120_000)
    save_canvas(bare, "stage_4_reloaded")
    bare.watch()
    bare.fit()
    bare.press_run(timeout_s=1500)
    save_canvas(bare, "canvas")


def test_a_grid(bare: Any, workflows: dict[str, Any]) -> None:
    """Twelve cells of Validate Video: two prompts with two seeds, by the base model and two saved steps."""
    caption = load_concept(CONCEPTS / f"{DEFAULT_CONCEPT}.json").caption
    graph = demo_run(
        bare,
        workflows,
        TrainLoRA={"run_name": "grid", "steps": 80, "save_every_n_steps": 40, "preview_every_n_steps": 0},
        WanPreviewSettings={"prompts": json.dumps({"concept": caption, "old world": "a red circle moving right"})},
        ValidateVideo={"saved_steps": "40, 80", "seeds": "1, 2"},
    )
    bare.load(graph)
    prompt = bare.to_prompt()
    bare.page.goto("about:blank")  # nothing is drawn while it renders
    bare.server.run(prompt, timeout=1500)
    bare.open()
    bare.load(graph)  # it shows what its nodes left in the history
    bare.page.wait_for_function("() => document.querySelectorAll('.wan-compared video').length === 12")
    bare.script(
        """() => {
          const node = window.app.graph._nodes.find(n => n.type === "ValidateVideo"), view = window.app.canvas;
          node.setSize([700, 850]);
          view.ds.scale = 1;
          [view.ds.offset[0], view.ds.offset[1]] = [600 - node.pos[0], 160 - node.pos[1]];
          view.setDirty(true, true);
        }"""
    )
    bare.page.wait_for_timeout(5000)
    box = bare.page.locator(".wan-compared").bounding_box()
    clip = {"x": box["x"] - 20, "y": 100, "width": box["width"] + 40, "height": 930}
    with Image.open(io.BytesIO(bare.page.screenshot(clip=clip))) as shot:
        save([shot.convert("RGB")], "grid_node.png")
    (sheet,) = (bare.server.base / "output" / "wan_trainer").glob("grid*/samples/validate-*/grid-*.png")
    with Image.open(sheet) as labelled:  # without its workflow
        save([labelled.convert("RGB")], "grid.png")


# Seconds apart, as the messages of a run that was watched from its start.
WATCHED = (("load", "loading weights", 3), ("train", "step 1120/1500   loss", 0))


def made_up_runs(base: Path) -> Runs:
    """A run that trains in node 7, and two that ended; their clips are drawn ones."""
    folder, _ = draw_dataset(base, load_concept(CONCEPTS / f"{DEFAULT_CONCEPT}.json"), Recipe(prior_clips=0))
    runs = Runs(sorted((base / "input" / folder).glob("*.mp4"))[0])
    now = time.time()
    runs.add("my_lora", whole_run(1500, 1500, 250), state="done", updated=now - 90_000)
    runs.add("my_lora_002", whole_run(430, 900, 100), reason="Stop and keep was pressed", updated=now - 7_500)
    runs.add("smoke_test", whole_run(1120, 1500, 250), live=True, state="running", node="7", updated=now)
    return runs


def show_run(canvas: Any, smoke: dict[str, Any], palette: str, vue: bool) -> None:
    """The smoke graph with a run in its panel."""
    canvas.server.setting("Comfy.ColorPalette", palette)
    canvas.server.setting("Comfy.VueNodes.Enabled", vue)
    canvas.open()
    canvas.load(smoke)
    canvas.page.wait_for_timeout(2000)
    for stage, text, seconds in WATCHED:
        detail = {"node": "7", "run": "smoke_test", "stage": stage, "text": text, "metrics_lines": 9999}
        if stage == "train":  # a step, whose numbers stand below: the panel says them once
            detail["about"] = {"kind": "step"}
        canvas.script("d => window.app.api.dispatchEvent(new CustomEvent('wan_trainer.status', {detail: d}))", detail)
        canvas.page.wait_for_timeout(seconds * 1000)


def panel_picture(canvas: Any, width: int, height: int) -> Image.Image:
    """Train Wan LoRA at that size, cut out of the page at full size."""
    canvas.script(
        """size => {
          const node = window.app.graph._nodes.find(n => n.type === "TrainLoRA"), view = window.app.canvas;
          for (const other of window.app.graph._nodes) // out of the way of a wide one
            if (other.pos[0] > node.pos[0]) other.pos = [node.pos[0] + 2000, other.pos[1]];
          node.setSize(size);
          view.ds.scale = 1;
          [view.ds.offset[0], view.ds.offset[1]] = [600 - node.pos[0], 120 - node.pos[1]];
          view.setDirty(true, true);
        }""",
        [width, height],
    )
    canvas.page.wait_for_timeout(4000)
    box = canvas.page.locator(".wan-panel").first.bounding_box()
    below = box["y"] + box["height"] + 12 - canvas.page.viewport_size["height"]
    if below > 0:  # Vue nodes are higher
        canvas.script("by => { const { ds } = window.app.canvas; ds.offset[1] -= by; }", below)
        canvas.script("() => window.app.canvas.setDirty(true, true)")
        canvas.page.wait_for_timeout(2000)
        box = canvas.page.locator(".wan-panel").first.bounding_box()
    clip = {"x": box["x"] - 6, "y": box["y"] - 6, "width": box["width"] + 12, "height": box["height"] + 12}
    with Image.open(io.BytesIO(canvas.page.screenshot(clip=clip))) as shot:
        return shot.convert("RGB")


def save(pictures: list[Image.Image], name: str) -> None:
    """Beside each other, as a small PNG."""
    gap = 16
    wide = sum(one.width for one in pictures) + gap * (len(pictures) - 1)
    out = Image.new("RGB", (wide, max(one.height for one in pictures)), (24, 24, 24))
    left = 0
    for one in pictures:
        out.paste(one, (left, 0))
        left += one.width + gap
    file = ROOT / "docs" / "images" / name
    out.save(file, optimize=True)
    assert file.stat().st_size <= 400_000


def test_the_panel(bare: Any, smoke: dict[str, Any]) -> None:
    made_up_runs(bare.server.base).serve(bare.page)
    try:
        show_run(bare, smoke, "dark", vue=False)
        sizes = [panel_picture(bare, 320, 500), panel_picture(bare, 440, 500)]
        show_run(bare, smoke, "light", vue=True)
        save([*sizes, panel_picture(bare, 440, 500)], "panel.png")
    finally:
        bare.server.setting("Comfy.ColorPalette", "dark")


def test_the_bar_that_says_whether_it_fits(bare: Any, workflows: dict[str, Any]) -> None:
    """Template 03 on a card of 16 GiB, at 1280x720x81, before and after a click; the models are headers alone."""
    with a14b_on_16_gib(bare.server):
        bare.open()
        asked = {"WanVideoDataset": {"width": 1280, "height": 720, "num_frames": 81}}
        bare.load(tiny_canvas(workflows["03_wan22_t2v_A14B_character"], **asked))
        bars = bare.page.locator(".wan-panel .wan-fit")
        buttons = bars.first.get_by_role("button")
        buttons.first.wait_for()
        red = fit_picture(bare)
        buttons.get_by_text("frames fits").click()
        bare.page.locator('.wan-panel .wan-fit[data-state="fits"][aria-busy="false"]').first.wait_for()
        save([red, fit_picture(bare)], "fit.png")


def fit_picture(canvas: Any) -> Image.Image:
    """The upper part of the first Train Wan LoRA's panel, cut out of the page at full size."""
    panel_picture(canvas, 440, 500)
    box = canvas.page.locator(".wan-panel .wan-fit").first.bounding_box()
    clip = {"x": box["x"] - 10, "y": box["y"] - 60, "width": box["width"] + 20, "height": 260}
    with Image.open(io.BytesIO(canvas.page.screenshot(clip=clip))) as shot:
        return shot.convert("RGB")


def test_the_split_and_its_cards(bare: Any, workflows: dict[str, Any]) -> None:
    """The Split node of template 06, on the plan of two cards that a test makes up."""
    pictures = []
    for palette in ("dark", "light"):
        bare.server.setting("Comfy.ColorPalette", palette)
        bare.open()
        workflow = tiny_canvas(workflows["06_two_gpus_fp8"], SplitAcrossGPUs={"mode": TWO_CARDS["mode"]})
        runs = finished_runs(bare, [workflow], CACHE / "clips" / "carphone.mp4")
        bare.page.route("**/wan_trainer/plan", lambda route: route.fulfill(json={**FITS_TWO, "cards": TWO_CARDS}))
        bare.load(workflow)
        shows(bare.page.locator('.wan-card[data-card="split"]'), TWO_CARDS["reason"])
        bare.script(TELL, {"SplitAcrossGPUs": OUTPUTS["SplitAcrossGPUs"]})
        shows(bare.page.locator('.wan-card[data-card="split"]'), "blocks 20–39")
        pictures.append(picture(bare, ids=[3]))
        runs.leave(bare.page)
    bare.server.setting("Comfy.ColorPalette", "dark")
    save(pictures, "split.png")


def sweeps(base: Path) -> Runs:
    """Thirty runs of three sweeps, no two of which learn alike."""
    runs = made_up_runs(base)
    runs.summaries.clear()
    now = time.time()
    for number in range(30):
        settings = {"rank": (8, 16, 32)[number % 3], "learning_rate": (5e-5, 1e-4)[number % 2]}
        settings["data"] = ("34 #a1b2c3", "112 #77ee10")[number // 6 % 2]
        name = ("my_character", "ink_style", "paper_boat")[number // 12]
        ran = f"_{number // 6 + 1:03d}" if number % 12 > 5 else ""
        last = 1500 if number % 11 != 10 else 640
        lines = [dict(line) for line in whole_run(last, 1500, 250)]
        falls = (1 + number % 5 / 4, 0.02 * (number % 3), 0.06 + 0.01 * (number * 7 % 10))
        for line in lines:
            for key in ("loss", "eval_loss"):
                if key in line:
                    line[key] = line[key] ** falls[0] * 1.5 + falls[1] + falls[2] * line["step"] / 9000
        evaluated = [line for line in lines if line["event"] == "evaluated"]
        best = min(evaluated, key=lambda line: line["eval_loss"])
        runs.add(
            f"{name}_learning_rate_{settings['learning_rate']:g}_rank_{settings['rank']}{ran}",
            lines,
            settings=settings,
            state=("done", "done", "failed", "stopped")[3 if last < 1500 else 2 if number % 13 == 7 else 0],
            updated=now - 5000 * number,
            eval_best=best["eval_loss"],
            eval_best_step=best["step"],
            preview=f"s{last // 250 * 250}",
        )
    return runs


def test_the_tab_of_runs(bare: Any) -> None:
    sweeps(bare.server.base).serve(bare.page)
    bare.page.set_viewport_size({"width": 1800, "height": 1000})
    pictures: list[Image.Image] = []
    for palette in ("dark", "light"):
        bare.server.setting("Comfy.ColorPalette", palette)
        bare.open()
        bare.page.locator(".wan-trainer-runs-tab-button").first.click()
        bare.page.get_by_role("button", name="Group by name").click()
        bare.page.locator(".wan-runs").wait_for()
        bare.script(
            """() => Object.assign(document.querySelector(".wan-runs").style, {position: "fixed", zIndex: 9999,
              left: "0", top: "0", width: "760px", height: "940px"})"""
        )
        for number in range(5):
            bare.page.locator(".wan-run-name input").nth(number).check()
        bare.page.locator(".wan-run-name .wan-open").nth(1).click()
        bare.page.wait_for_timeout(2500)
        with Image.open(io.BytesIO(bare.page.locator(".wan-runs").screenshot())) as shot:
            pictures.append(shot.convert("RGB"))
    bare.server.setting("Comfy.ColorPalette", "dark")
    save(pictures, "runs_tab.png")


def test_the_settings(bare: Any) -> None:
    """Wan Train Settings as it comes, with a group open and a change, and searched."""
    bare.page.set_viewport_size({"width": 1600, "height": 1000})
    bare.load_api(SETTINGS_GRAPH)
    finder = bare.page.locator(FINDER)
    shows(finder, "shown")
    pictures = [picture(bare, mouse=(1500, 500))]
    bare.script(TURN, ["weight_decay", 0.05])
    finder.get_by_role("button", name="Both experts").click()
    shows(finder, "weight_decay 0.05")
    bare.page.wait_for_timeout(1500)
    pictures.append(picture(bare, mouse=(1500, 500)))
    finder.get_by_role("searchbox").fill("learning rate")
    bare.page.wait_for_timeout(1500)
    pictures.append(picture(bare, mouse=(1500, 500)))
    save(pictures, "settings.png")


def test_the_contact_sheet(bare: Any) -> None:
    """A folder with a missing caption, one that is not UTF-8 and a damaged clip; a caption edited, a word replaced."""
    concept = load_concept(CONCEPTS / f"{DEFAULT_CONCEPT}.json")
    drawn, _ = draw_dataset(bare.server.base, concept, Recipe(steps=1, prior_clips=0))
    clips = Path(bare.server.base) / "input" / drawn
    folder = clips.with_name("bars")
    folder.mkdir(exist_ok=True)
    first, second, third = (folder / f"{name}.mp4" for name in ("dawn", "dusk", "noon"))
    for source, clip in zip(sorted(clips.rglob("*.mp4")), (first, second, third), strict=False):
        shutil.copy(source, clip)
    first.with_suffix(".txt").write_text("a pink bar hops at dawn, cartoon", encoding="utf-8")
    second.with_suffix(".txt").write_text("a pink bar hops at dusk, cartoon", encoding="utf-8")
    shutil.copy(first, folder / "den.mp4")
    (folder / "den.txt").write_bytes(b"caf\xe9")
    (folder / "torn.mp4").write_bytes(second.read_bytes()[:300])
    (folder / "torn.txt").write_text("a bar", encoding="utf-8")
    bare.page.set_viewport_size({"width": 1600, "height": 1500})
    graph = json.loads(json.dumps(DATASET_GRAPH))
    graph["3"]["inputs"]["folder"] = folder.name
    bare.load_api(graph)
    bare.script("() => window.app.graph._nodes.find(n => n.type === 'WanVideoDataset').setSize([420, 900])")
    queue(bare)
    bare.page.wait_for_function(PICTURES)
    pictures = [sheet_picture(bare)]
    bare.page.get_by_role("button", name=third.name).click()
    bare.page.wait_for_function("() => document.querySelector('.wan-editor video')?.currentTime > 0.2")
    bare.page.get_by_label("Caption", exact=True).fill("a pink bar hops at noon")
    bare.page.get_by_role("button", name="Save caption").click()
    shows(bare.page.locator(".wan-editor"), "Saved.")
    bare.page.get_by_label("Find in captions").fill("cartoon")
    bare.page.get_by_label("Replace with").fill("3D animation")
    shows(bare.page.locator(".wan-seek"), "Replace 2 in 2 captions")
    pictures.append(sheet_picture(bare))
    save(pictures, "contact_sheet.png")
    shutil.rmtree(folder)


def sheet_picture(canvas: Any) -> Image.Image:
    """The card of the dataset node, cut out of the page at full size."""
    canvas.script("() => { window.app.canvas.ds.scale = 1; window.app.canvas.setDirty(true, true); }")
    canvas.drawn(700)
    canvas.show(".wan-card")
    canvas.page.wait_for_timeout(1500)
    box = canvas.page.locator(".wan-card").first.bounding_box()
    clip = {"x": box["x"] - 6, "y": box["y"] - 6, "width": box["width"] + 12, "height": box["height"] + 12}
    with Image.open(io.BytesIO(canvas.page.screenshot(clip=clip))) as shot:
        return shot.convert("RGB")


def test_settings_of_another_trainer(bare: Any) -> None:
    """What a settings file of musubi-tuner and the files it names become, dropped together."""
    bare.page.set_viewport_size({"width": 2600, "height": 1500})
    names = ("musubi_command.sh", "foxes.toml", "foxes_prompts.txt")
    bare.script(DROP_TEXTS, [[name, (JOBS / name).read_text(encoding="utf-8")] for name in names])
    bare.page.wait_for_function("() => window.app.graph._nodes.some(n => n.type === 'TrainLoRA')")
    save_canvas(bare, "dropped")
