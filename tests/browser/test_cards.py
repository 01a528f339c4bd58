"""The cards on nodes: a split over devices, a scanned dataset, the density of timesteps. Nothing is trained."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from comfy_server import ComfyServer
from world import MODEL

from tests.browser.conftest import Pages, shipped_in_ci, shows
from tests.browser.test_panel import HOSTILE, serious

pytestmark = pytest.mark.browser

KINDS = ("split", "dataset", "density")
FOLDER, TRIGGER = "cards", "x"
BAD_NAME = "<img src=x onerror=window.hacked=1>.mp4"
GRAPH = {
    "1": {"class_type": "LoadWanModel", "inputs": {"diffusion_model": MODEL}},
    "2": {
        "class_type": "SplitAcrossGPUs",
        "inputs": {"model": ["1", 0], "mode": "copy per GPU", "devices": "cpu,cpu", "split_at": "auto"},
    },
    "3": {
        "class_type": "WanVideoDataset",
        "inputs": {
            "model": ["1", 0],
            "folder": FOLDER,
            "trigger_word": "x",
            "width": 48,
            "height": 48,
            "num_frames": 5,
        },
    },
    "4": {"class_type": "WanTrainSettings", "inputs": {}},
}
NODE = "type => window.app.graph._nodes.find(n => n.type === type)"
SHOWN = """() => document.querySelectorAll('.wan-card [data-part=block]').length === 4
  && document.querySelector('.wan-buckets') !== null"""
CONNECTED = """count => {
  const cards = window.app.graph._nodes.flatMap(n => n.wanTrainerCard?.element ?? []);
  return cards.length === count && cards.every(card => card.isConnected);
}"""
# The tab keeps the workflow with the shift that was turned last.
SAVED = r"""() => [sessionStorage, localStorage].some(kept => Object.values(kept).some(
  text => /discrete_flow_shift[\\]*":8\b/.test(text)))"""
PICTURES = """() => { const all = [...document.querySelectorAll('.wan-sheet img')];
  return all.length > 0 && all.every(i => i.naturalWidth > 0); }"""


@pytest.fixture
def folder(canvas_server: ComfyServer) -> Iterator[Path]:
    """The clips of the tests and one under a name that is markup, where the file system allows it."""
    clips = Path(canvas_server.base) / "input" / "clips"
    made = clips.with_name(FOLDER)
    shutil.copytree(clips, made, dirs_exist_ok=True)
    with contextlib.suppress(OSError):  # Windows knows no such name
        shutil.copy(next(clips.glob("*.mp4")), made / BAD_NAME)
    yield made
    shutil.rmtree(made)


def card(canvas: Any, kind: str) -> Any:
    return canvas.page.locator(f'.wan-card[data-card="{kind}"]')


def values(canvas: Any) -> dict[str, Any]:
    nodes = canvas.script("() => window.app.graph.serialize().nodes")
    return {node["type"]: node.get("widgets_values") for node in nodes}


def turn(canvas: Any, node_type: str, widget: str, value: Any) -> None:
    """Change a widget as the page does when a person turns it."""
    canvas.script(
        f"""([type, name, value]) => {{
          const widget = ({NODE})(type).widgets.find(w => w.name === name);
          widget.value = value;
          widget.callback?.(value);
        }}""",
        [node_type, widget, value],
    )


def queue(canvas: Any) -> None:
    canvas.script(
        """() => {
          window.ended = 0;
          for (const kind of ["execution_success", "execution_error"])
            window.app.api.addEventListener(kind, e => {
              window.ended += 1;
              window.failed = e.detail.exception_message;
            });
          window.app.queuePrompt(0, 1);
        }"""
    )
    canvas.page.wait_for_function("() => window.ended > 0")
    assert canvas.script("() => window.failed ?? ''") == ""


def strangers(canvas: Any) -> list[Any]:
    """Elements of cards that no card makes, and whether a script ran."""
    return canvas.script(
        """() => {
          const all = [...document.querySelectorAll(".wan-card *")];
          const bad = all.filter(e => /^(script|svg|iframe|object|embed|a|style|link)$/i.test(e.tagName)
            || [...e.attributes].some(a => /^on|^srcdoc$/.test(a.name)));
          const away = all.filter(e => /^(IMG|VIDEO)$/.test(e.tagName) && !e.src.startsWith(location.origin));
          return [bad.length, away.length, window.hacked ?? "nothing ran"];
        }"""
    )


def facts_of_strangers() -> dict[str, Any]:
    """Outputs of which every text is markup."""
    bad = HOSTILE[0]
    named = {"count": 1, "names": list(HOSTILE)}
    cell = {"clip": bad, "name": bad, "kind": bad, "frames": bad, "width": bad, "height": bad, "caption": bad}
    dataset = {
        "scan": bad,
        "clips": bad,
        "stills": 1,
        "buckets": [{"frames": 5, "width": bad, "height": bad, "clips": bad, "samples": bad, "batches": [bad]}],
        "findings": [{"kind": text, **named} for text in HOSTILE],
        "left_out": {"count": 9, "files": [{"name": text, "reason": text} for text in HOSTILE]},
        "sheet": {"columns": 1, "rows": 1, "cell_width": 9, "cell_height": 9, "name_height": 9, "cells": [cell]},
        "asked": {bad: bad},
    }
    split = {
        "model": bad,
        "mode": bad,
        "devices": [{"name": text, "title": text} for text in HOSTILE],
        "copies": [[0, bad, 2]],
        "memory": {text: {"weights": bad, "total": bad} for text in HOSTILE},
    }
    image = {"filename": '../../x" onerror="window.hacked=1', "subfolder": bad, "type": bad}
    clips = {
        "width": bad,
        "height": bad,
        "asked": {bad: bad},
        "rows": [{"prompt": t, "clips": [{"step": t, "strength": t, "file": image, "still": image}]} for t in HOSTILE],
    }
    return {
        "2": {"wan_split": [split]},
        "3": {"wan_dataset": [{**dataset, "image": image}]},
        "5": {"wan_clips": [clips]},
    }


@shipped_in_ci
def test_cards_say_what_is_known_before_and_after_a_queue_and_a_reload_and_never_markup(
    pages: Pages, folder: Path
) -> None:
    """Each reload opens the page in the other way of drawing nodes: a load of the page takes longest."""
    canvas = pages.take(vue=True)
    for vue in (True, False):
        mode = "vue" if vue else "litegraph"
        canvas.script("() => sessionStorage.removeItem('wan_trainer.cards')")  # the tab knows nothing
        canvas.server.post("/history", {"clear": True})
        canvas.load_api(GRAPH)
        canvas.load_api(GRAPH)  # another workflow with nodes of the same ids, as in the next tab
        canvas.page.wait_for_function(CONNECTED, arg=len(KINDS))
        before = values(canvas)
        for kind in ("split", "dataset"):
            shows(card(canvas, kind), "Press Run")
        shows(card(canvas, "density"), "between timesteps 604 and 855")
        shows(card(canvas, "density"), "known after Load Wan Model has run; this curve uses 3.")
        turn(canvas, "WanTrainSettings", "discrete_flow_shift", 8)
        shows(card(canvas, "density"), "the median is 889")
        canvas.fit()
        canvas.screenshot(f"cards-before-{mode}")

        queue(canvas)
        canvas.page.wait_for_function(SHOWN)
        canvas.page.wait_for_function(PICTURES)
        files = len(list(folder.glob("*.mp4")))
        text = card(canvas, "dataset").inner_text()
        assert f"clips\n{files}" in text or f"clips {files}" in text
        assert "48 × 48 × 5" in text
        assert BAD_NAME in text or not (folder / BAD_NAME).exists()
        shows(card(canvas, "split"), "2 copies")
        canvas.fit()
        canvas.screenshot(f"cards-{mode}")
        for kind in KINDS:
            assert serious(canvas, f'.wan-card[data-card="{kind}"]') == []
        assert strangers(canvas) == [0, 0, "nothing ran"]

        turn(canvas, "SplitAcrossGPUs", "devices", "cpu")
        shows(card(canvas, "split"), "Changed since: devices")
        turn(canvas, "SplitAcrossGPUs", "devices", "cpu,cpu")
        canvas.page.wait_for_function("() => !document.querySelector('[data-card=split] .wan-changed').textContent")
        assert {k: v for k, v in values(canvas).items() if k != "WanTrainSettings"} == {
            k: v for k, v in before.items() if k != "WanTrainSettings"
        }
        assert not [name for node in canvas.to_prompt().values() for name in node["inputs"] if "trainer" in name]

        canvas.page.wait_for_function(SAVED)  # a little later
        if vue:  # from the server's history; the other time from the tab's own memory
            canvas.script("() => sessionStorage.removeItem('wan_trainer.cards')")
        canvas.server.setting("Comfy.VueNodes.Enabled", not vue)
        canvas.page.reload(wait_until="domcontentloaded")
        canvas.wait_until_ready()
        canvas.page.wait_for_function(SHOWN)
        canvas.page.wait_for_function(PICTURES)
        shows(card(canvas, "density"), "the median is 889")
    assert canvas.our_problems == []

    # The same page, told by strangers.
    canvas.load_api({**GRAPH, "5": {"class_type": "ValidateVideo", "inputs": {}}})
    canvas.script(
        """outputs => {
          const tell = (kind, detail) =>
            window.app.api.dispatchEvent(new CustomEvent(kind, { detail: { prompt_id: "p", ...detail } }));
          tell("execution_start", {});
          for (const [node, output] of Object.entries(outputs)) tell("executed", { node, display_node: node, output });
        }""",
        facts_of_strangers(),
    )
    canvas.page.wait_for_function("() => document.querySelectorAll('.wan-notes li').length >= 5")
    for kind in ("dataset", "split", "clips"):
        shows(card(canvas, kind), HOSTILE[0])
    assert strangers(canvas) == [0, 0, "nothing ran"]


@shipped_in_ci
def test_files_without_a_caption_are_marked_and_the_buttons_say_what_becomes_of_them(
    pages: Pages, folder: Path
) -> None:
    canvas = pages.take(vue=True)
    next(iter(sorted(folder.glob("*.txt")))).unlink()
    dataset = {**GRAPH["3"]["inputs"], "trigger_word": ""}
    canvas.load_api({"1": GRAPH["1"], "3": {**GRAPH["3"], "inputs": dataset}})
    queue(canvas)
    shown = card(canvas, "dataset")
    shows(shown, "without a caption")
    canvas.fit()
    canvas.screenshot("cards-captions-missing")
    shows(shown, "not measured yet")
    shown.locator(".wan-sheet").hover()
    canvas.page.wait_for_function(
        "() => !document.querySelector('[data-card=dataset]').innerText.includes('not measured yet')"
    )
    assert serious(canvas, '.wan-card[data-card="dataset"]') == []

    shown.get_by_label("trigger word").fill("ohwx")
    shown.get_by_role("button", name="Use this trigger word").click()
    assert "ohwx" in values(canvas)["WanVideoDataset"]
    shows(shown, "Changed since: ")
    turn(canvas, "WanVideoDataset", "trigger_word", "")

    shown.get_by_role("button", name="Skip these files").click()
    shows(shown, "Set. Run again to see what it does.")
    assert "skip the file" in values(canvas)["WanDatasetSettings"]
    canvas.fit()
    canvas.screenshot("cards-captions-skipped")
    queue(canvas)
    canvas.page.wait_for_function("() => !document.querySelector('.wan-remedies')")
    shows(shown, "skipped, with the reason. ")
    assert canvas.our_problems == []


@shipped_in_ci
def test_validate_video_takes_a_run_or_a_model_where_there_is_none(pages: Pages) -> None:
    """At the same socket, also once the graph was saved and opened; and nothing else goes there."""
    canvas, taken = pages.take(vue=False), {}
    for giver in ("LoadWanModel", "TrainLoRA", "WanLoraFile"):
        canvas.clear()
        taken[giver] = canvas.script(
            """async giver => {
          const [from, to] = [giver, "ValidateVideo"].map((type) => window.LiteGraph.createNode(type));
          for (const node of [from, to]) window.app.graph.add(node);
          from.connect(from.outputs.findIndex(o => ["model", "run", "loras"].includes(o.name)), to, "run");
          await window.app.loadGraphData(window.app.graph.serialize());
          const again = window.app.graph._nodes.find((node) => node.type === "ValidateVideo");
          return again.inputs.find((input) => input.name === "run").link != null;
        }""",
            giver,
        )
    assert taken == {"LoadWanModel": True, "TrainLoRA": True, "WanLoraFile": False}
