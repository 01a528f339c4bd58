"""The contact sheet on the canvas: a clip plays, its caption is written and put back, a text is replaced in all."""

from __future__ import annotations

import base64
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from comfy_server import ComfyServer
from world import MODEL

from tests.browser.conftest import Pages, newer_in_ci, shipped_in_ci, shows
from tests.browser.test_cards import PICTURES, card, queue, values
from tests.browser.test_panel import serious

pytestmark = pytest.mark.browser
FOLDER = "sheet"
GRAPH = {
    "1": {"class_type": "LoadWanModel", "inputs": {"diffusion_model": MODEL}},
    "3": {
        "class_type": "WanVideoDataset",
        "inputs": {"model": ["1", 0], "folder": FOLDER, "width": 48, "height": 48, "num_frames": 5},
    },
}
PLAYS = (
    "() => { const v = document.querySelector('.wan-editor video'); return v && v.readyState >= 2 && v.videoWidth; }"
)

HIGH = """() => {
  const node = window.app.graph._nodes.find(one => one.type === "WanVideoDataset");
  return document.querySelector(`[data-node-id="${node.id}"]`)?.offsetHeight ?? node.size[1];
}"""
WRITES = """name => document.querySelector(".wan-editor strong").textContent === name
  && document.activeElement.matches(".wan-editor textarea:not([readonly])")"""


@pytest.fixture
def folder(canvas_server: ComfyServer) -> Iterator[Path]:
    """The clips of the tests, of which the last has no caption."""
    clips = Path(canvas_server.base) / "input" / "clips"
    made = clips.with_name(FOLDER)
    shutil.copytree(clips, made, dirs_exist_ok=True)
    for number, path in enumerate(sorted(made.glob("*.mp4"))):
        path.with_suffix(".txt").write_text(f"a red fox number {number}\n", encoding="utf-8")
    path.with_suffix(".txt").unlink()
    yield made
    shutil.rmtree(made)


def texts(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text(encoding="latin-1") for path in sorted(folder.glob("*.txt"))}


MARKED = """() => {
  const { value, selectionStart, selectionEnd } = document.querySelector(".wan-editor textarea");
  return value.slice(selectionStart, selectionEnd);
}"""
PLACES = "() => window.app.graph._nodes.map(node => [...node.pos].map(Number))"


def marked_with_the_mouse(canvas: Any, field: Any) -> str:
    """The text that a drag over the whole field, and beside it, marks; no node moves meanwhile."""
    before, box = canvas.script(PLACES), field.bounding_box()
    left, top, right = box["x"] + 4, box["y"] + 6, box["x"] + box["width"]
    canvas.page.mouse.move(left, top)
    canvas.page.mouse.down()
    for x, y in ((right - 4, top), (right + 5, top - 30), (right - 4, top + 2)):
        canvas.page.mouse.move(x, y, steps=5)
    canvas.page.mouse.up()
    assert canvas.script(PLACES) == before
    return canvas.script(MARKED)


@shipped_in_ci
def test_captions_are_edited_on_the_contact_sheet(pages: Pages, frontend: str, folder: Path) -> None:
    """Vue nodes on the one frontend, LiteGraph nodes on the other."""
    names = [path.stem for path in sorted(folder.glob("*.mp4"))]
    for name in ("bad", "wordless"):
        shutil.copy(folder / f"{names[0]}.mp4", folder / f"{name}.mp4")
    (folder / "bad.txt").write_bytes(b"caf\xe9")
    vue = frontend == "shipped"
    canvas = pages.take(vue)
    canvas.load_api(GRAPH)
    queue(canvas)
    sheet = card(canvas, "dataset")
    shows(sheet, f"⚠ {names[-1]}.mp4")
    canvas.fit()  # pictures out of view are not loaded
    canvas.page.wait_for_function(PICTURES)
    wrong = sheet.get_by_text("without a caption")
    shows(wrong, "without a caption")
    before = texts(folder)

    sheet.get_by_role("button", name="Write a new caption instead (can be undone)").click()
    shows(
        sheet,
        "is not saved as UTF-8 (byte 0xe9 at offset 3). Save it again as UTF-8.",
        "Save it again as UTF-8. Saving overwrites it; Undo restores it.",
    )
    caption = sheet.get_by_label("Caption", exact=True)
    caption.fill("a café")
    caption.press("Control+Enter")
    shows(sheet, "Saved. Run again to train with it.")
    assert (folder / "bad.txt").read_text(encoding="utf-8") == "a café"
    sheet.get_by_role("button", name="Undo", exact=True).click()
    shows(sheet, "Restored: 1 caption file.")
    assert texts(folder) == before

    sheet.get_by_role("button", name=f"{names[-1]}.mp4").click()
    canvas.page.wait_for_function(PLAYS)
    canvas.page.wait_for_function("() => document.activeElement.matches('.wan-editor textarea:not([readonly])')")
    caption.fill("a <b>blue</b> bird")
    assert marked_with_the_mouse(canvas, caption) == "a <b>blue</b> bird"
    shows(sheet, "not saved yet")
    canvas.fit()
    canvas.screenshot(f"captions-{'vue' if vue else 'litegraph'}")
    assert serious(canvas, '.wan-card[data-card="dataset"]') == []
    caption.press("Control+Enter")
    shows(sheet, f"Saved {names[-1]}.mp4. Clips without a caption: 1.")
    canvas.page.wait_for_function(WRITES, arg="wordless.mp4")
    canvas.page.keyboard.type("an owl")
    sheet.get_by_role("button", name="Save caption").click()
    shows(sheet, "Saved. Run again to train with it.")
    assert texts(folder) == {**before, f"{names[-1]}.txt": "a <b>blue</b> bird", "wordless.txt": "an owl"}
    wrong.wait_for(state="detached")
    high = canvas.script(HIGH)
    sheet.get_by_role("button", name="Close").click()
    canvas.page.wait_for_function(f"most => ({HIGH})() <= most", arg=high - 200)

    sheet.get_by_label("Find in captions").fill("fox")
    shows(
        sheet,
        f"{len(names) - 1} of {len(names) + 2} captions",
        f"Replace {len(names) - 1} in {len(names) - 1} captions",
    )
    sheet.get_by_label("Replace with").fill("hare")
    sheet.get_by_role("button", name="Replace 2 in").click()
    shows(sheet, f"{len(names) - 1} captions changed.")
    assert texts(folder)[f"{names[0]}.txt"] == "a red hare number 0\n"
    for count in (len(names) - 1, 1, 1):
        sheet.get_by_role("button", name="Undo", exact=True).click()
        shows(sheet, f"Restored: {count} caption file" + ("." if count == 1 else "s."))
    for _ in range(100):  # the last two say the same words
        if texts(folder) == before:
            break
        canvas.page.wait_for_timeout(100)
    assert texts(folder) == before
    shows(wrong, "without a caption")
    sheet.get_by_label("Find in captions").fill("")
    assert canvas.our_problems == []


CHOSEN_NOW = """name => document.querySelector(".wan-editor strong").textContent === name
  && document.querySelector(".wan-picture video")?.readyState >= 2"""


OPENS = """name => {
  [...document.querySelectorAll(".wan-sheet button")].find(one => one.textContent.includes(name)).click();
  const buttons = [...document.querySelectorAll(".wan-editor button")];
  return buttons.filter(one => one.offsetParent).map(one => one.textContent);
}"""
"""opens a clip; returns the buttons that are there before the server has answered"""


def choices(folder: Path) -> dict[str, Any]:
    file = folder / "wan_dataset.json"
    return json.loads(file.read_text(encoding="utf-8"))["clips"] if file.exists() else {}


def settled(canvas: Any, folder: Path, wanted: dict[str, Any]) -> None:
    """The choices on disk are `wanted`; the page saves a moment after the last movement."""
    for _ in range(100):
        if choices(folder) == wanted:
            break
        canvas.page.wait_for_timeout(50)
    assert choices(folder) == wanted


@shipped_in_ci
def test_clips_are_excluded_cut_and_cropped_on_the_contact_sheet(pages: Pages, frontend: str, folder: Path) -> None:
    """LiteGraph nodes on the one frontend, Vue nodes on the other: the other way round than captions."""
    names = [path.name for path in sorted(folder.glob("*.mp4"))]
    canvas = pages.take(frontend != "shipped")
    graph = {**GRAPH, "3": {**GRAPH["3"], "inputs": {**GRAPH["3"]["inputs"], "enable_bucket": False, "width": 32}}}
    canvas.load_api(graph)
    queue(canvas)
    sheet = card(canvas, "dataset")
    canvas.fit()
    canvas.page.wait_for_function(PICTURES)
    sheet.get_by_role("button", name=names[0]).click()
    canvas.page.wait_for_function(CHOSEN_NOW, arg=names[0])

    sheet.get_by_label("Start of the piece").press("ArrowRight")
    sheet.get_by_label("Start of the piece").press("ArrowRight")
    sheet.get_by_role("slider", name="Crop").press("ArrowLeft")
    settled(canvas, folder, {names[0]: {"start_s": 0.2, "crop": [0.45, 0.5]}})
    shows(sheet, "Saved. Run again to train with it.")
    crop = sheet.get_by_role("slider", name="Crop").bounding_box()
    before = canvas.script(PLACES)
    canvas.page.mouse.move(crop["x"] + crop["width"] / 2, crop["y"] + crop["height"] / 2)
    canvas.page.mouse.down()
    canvas.page.mouse.move(crop["x"] - 300, crop["y"], steps=4)
    canvas.page.mouse.up()
    settled(canvas, folder, {names[0]: {"start_s": 0.2, "crop": [0.0, 0.5]}})
    assert canvas.script(PLACES) == before, "a drag of the crop moved the node"
    canvas.fit()
    canvas.screenshot(f"choices-{'vue' if canvas.vue else 'litegraph'}")
    assert serious(canvas, '.wan-card[data-card="dataset"]') == []
    sheet.get_by_role("button", name="Close").click()
    assert canvas.script(OPENS, names[1]) == ["✕"], "a button that would change the clip that was open before"
    sheet.get_by_role("button", name="Exclude", exact=True).click()
    shows(sheet, "Excluded. Run again to train without it.", f"✕ {names[1]}")
    settled(canvas, folder, {names[0]: {"start_s": 0.2, "crop": [0.0, 0.5]}, names[1]: {"excluded": True}})
    sheet.get_by_role("button", name="Close").click()

    (folder / "wan_dataset.json").write_text('{"version": 1, "clips": {}}', encoding="utf-8")
    sheet.get_by_role("button", name=f"✕ {names[1]}").click()
    shows(sheet, "Exclude")  # what another page has written is read when a clip is opened
    sheet.get_by_role("button", name="Exclude", exact=True).click()
    settled(canvas, folder, {names[1]: {"excluded": True}})
    sheet.get_by_role("button", name="Close").click()
    queue(canvas)
    shows(sheet, "excluded")
    sheet.get_by_label("Which clips are shown").select_option("excluded")
    shows(sheet, f"1 of {len(names)} clips", f"✕ {names[1]}")
    canvas.page.wait_for_function(PICTURES)
    canvas.screenshot(f"excluded-{'vue' if canvas.vue else 'litegraph'}")
    sheet.get_by_role("button", name="Undo", exact=True).click()
    shows(sheet, "Restored: the previous choice.")
    settled(canvas, folder, {})
    sheet.get_by_label("Which clips are shown").select_option("")
    assert canvas.our_problems == []


DROP = """([data, onCard]) => {
  const bytes = Uint8Array.from(atob(data), one => one.charCodeAt(0));
  const carried = new DataTransfer();
  for (const [name, content] of [["Hop.mp4", bytes], ["Hop.txt", "a rabbit hops"], ["notes.docx", "x"]])
    carried.items.add(new File([content], name));
  const node = window.app.graph._nodes.find(one => one.type === "WanVideoDataset");
  const view = window.app.canvas, at = view.canvas.getBoundingClientRect();
  const [x, y] = [0, 1].map(side => (node.pos[side] + [60, -12][side] + view.ds.offset[side]) * view.ds.scale);
  const drawn = document.querySelector(`[data-node-id="${node.id}"]`);
  const place = onCard ? document.querySelector(".wan-card .wan-hint, .wan-card dl") : drawn ?? view.canvas;
  const how = { bubbles: true, cancelable: true, clientX: at.x + x, clientY: at.y + y, dataTransfer: carried };
  for (const kind of ["dragenter", "dragover", "drop"]) place.dispatchEvent(new DragEvent(kind, how));
}"""

CHOSEN = """before => window.app.graph._nodes.flatMap(node => node.widgets ?? []).some(
  widget => /^dropped_/.test(widget.value) && widget.value !== before)"""


@newer_in_ci
def test_clips_dropped_on_the_node_lie_in_a_new_folder_that_it_reads(pages: Pages, frontend: str) -> None:
    canvas = pages.take(vue=frontend != "shipped")
    base = Path(canvas.server.base) / "input"
    clip = next((base / "clips").glob("*.mp4")).read_bytes()
    before = set(base.iterdir())
    canvas.load_api({**GRAPH, "3": {**GRAPH["3"], "inputs": {**GRAPH["3"]["inputs"], "folder": "clips"}}})
    canvas.fit()
    sheet = card(canvas, "dataset")
    shows(sheet, "go into a new folder of input/")
    made = base / "clips"
    try:
        for on_card in (False, True):
            canvas.script(DROP, [base64.b64encode(clip).decode(), on_card])
            canvas.page.wait_for_function(CHOSEN, arg=made.name)
            shows(sheet, "Run to see what will be trained.")
            canvas.screenshot(f"dropped-{'vue' if canvas.vue else 'litegraph'}")
            made = base / values(canvas)["WanVideoDataset"][0]
            shows(
                sheet,
                f"2 files are in input/{made.name}. Run to see what will be trained.",
                "stills or captions: notes.docx.",
            )
            assert {path.name: path.read_bytes() for path in made.iterdir()} == {
                "Hop.mp4": clip, "Hop.txt": b"a rabbit hops"
            }  # fmt: skip
        assert len(set(base.iterdir()) - before) == 2, "a drop is never into a folder that is there"
        queue(canvas)
        canvas.page.wait_for_function(PICTURES)
        shows(sheet, "Hop.mp4")
    finally:
        for made in set(base.iterdir()) - before:
            shutil.rmtree(made)
    assert canvas.our_problems == []
