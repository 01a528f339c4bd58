"""Graphs on the canvas: shipped ones, one saved before inputs were added, and the one inside a trained LoRA.

One page per frontend and way of drawing nodes serves all of them, in the order of this file. What does not depend on
how nodes are drawn is asked of LiteGraph only.
"""

from __future__ import annotations

import base64
import copy
import json
from collections.abc import Iterator
from typing import Any

import pytest
from comfy_server import PACK_NAME
from environment import OTHER_FRONTEND, ROOT
from shipped_graphs.core_nodes import SINCE

from tests.browser.conftest import Canvas, Pages, lora_with, newer_in_ci, shipped_in_ci
from tests.browser.grown import OUTPUTS, ROOM, TELL, finished_runs, overlaps

pytestmark = pytest.mark.browser

SAVED = ROOT / "tests" / "fixtures" / "workflows" / "before_only_what_fits.json"
SCHEMAS: dict[str, Any] = json.loads((ROOT / "tests" / "nodes" / "schemas.json").read_text(encoding="utf-8"))
LORAS: dict[str, bytes] = {}
"""the LoRA of each run name"""

Graph = dict[str, dict[str, Any]]


@pytest.fixture
def plain(pages: Pages) -> Canvas:
    """The page that LiteGraph draws, as it stays open."""
    return pages.take(vue=False)


@pytest.fixture(params=["litegraph", "vue"])
def page(request: Any, pages: Pages) -> Canvas:
    """That page, and the one with Vue nodes."""
    return pages.take(vue=request.param == "vue")


one_way_each = pytest.mark.parametrize(
    ("frontend", "page"),
    [
        ("shipped", "litegraph"),
        pytest.param("shipped", "vue", marks=pytest.mark.soak),
        pytest.param(OTHER_FRONTEND, "litegraph", marks=pytest.mark.soak),
        (OTHER_FRONTEND, "vue"),
    ],
    indirect=True,
)
"""in CI each frontend with one way of drawing nodes, and each way once"""


@pytest.fixture(autouse=True)
def nothing_broke(request: pytest.FixtureRequest) -> Iterator[None]:
    """No test leaves an error of ours in the console."""
    canvas: Canvas = request.getfixturevalue("page" if "page" in request.fixturenames else "plain")
    canvas.problems.clear()
    canvas.clear()
    yield
    assert canvas.our_problems == []
    assert [text for text in canvas.problems if text.startswith("page error")] == []


def ours(prompt: Graph) -> Graph:
    return {node: body for node, body in prompt.items() if body["class_type"] in SCHEMAS}


def values(body: dict[str, Any]) -> dict[str, Any]:
    """Widget values of a node of an API graph, by name."""
    return {name: value for name, value in body["inputs"].items() if not isinstance(value, list)}


def defaults(kind: str) -> dict[str, Any]:
    return {entry["name"]: entry["default"] for entry in SCHEMAS[kind]["inputs"] if "default" in entry}


# ---- the page itself -----------------------------------------------------------------------------

API_GRAPH = {"1": {"class_type": "EmptyLatentImage", "inputs": {"width": 64, "height": 64, "batch_size": 1}}}


def test_the_app_is_ready_with_our_extension_and_draws_a_graph_in_both_ways(
    page: Canvas, request: pytest.FixtureRequest
) -> None:
    served = page.server.get("/extensions")
    assert [path for path in served if path.endswith("/wan_trainer.js")], served
    assert [name for name in page.extensions() if "wan" in name.lower()]
    vue = "vue" in request.node.callspec.id
    page.load_api(API_GRAPH)
    assert page.missing_nodes() == []
    assert page.to_prompt()["1"]["inputs"]["width"] == 64
    if vue:
        page.page.locator("[data-node-id]").first.wait_for()
    drawn = page.page.locator("[data-node-id]").count()
    assert bool(drawn) is vue, f"{drawn} nodes are drawn as page elements with Vue nodes {vue}"
    assert page.screenshot(f"vue-{vue}").stat().st_size > 5_000


# ---- shipped graphs ------------------------------------------------------------------------------


def twin(name: str) -> Graph:
    return json.loads((ROOT / "workflows" / "api" / f"{name}.json").read_text(encoding="utf-8"))


LATER = {"CreateVideo": {"bit_depth": 8}, "SaveVideo": {"format.codec": "auto"}}
"""what a newer ComfyUI asks of its own nodes beside what the shipped graphs say, at its default"""


def as_shipped(canvas: Canvas) -> Graph:
    """What a queue would get, without what is `LATER`, and the pack and version that newer frontends add to a node."""
    prompt = canvas.to_prompt()
    for body in prompt.values():
        body["_meta"] = {"title": body["_meta"]["title"]}
        for name, value in LATER.get(body["class_type"], {}).items():
            assert body["inputs"].pop(name, value) == value, name
    return prompt


def test_a_shipped_graph_opens_from_the_template_browser(plain: Canvas, workflows: dict[str, Any]) -> None:
    assert plain.templates() == sorted(workflows)
    shown = plain.script("async () => await window.app.api.getWorkflowTemplates()")
    assert shown[PACK_NAME] == sorted(workflows), "the first lesson stands first"
    name = "07_wan22_t2v_A14B_train_then_generate"
    plain.open_template(name)
    assert plain.missing_nodes() == []
    assert as_shipped(plain) == twin(name)
    plain.fit()
    plain.screenshot(f"template-{name}")


READABLE = 8 / 14
"""below this zoom the page draws nodes without words"""
GROWN = """() => {
  window.app.canvas.setDirty(true, true);
  const nodes = window.app.graph._nodes, card = n => n.wanTrainerCard?.element;
  return nodes.every(n => n.type !== "TrainLoRA" || n.size[1] > 900 || n.wanTrainerPanel.least > 500)
    && nodes.every(n => n.type !== "WanVideoDataset" || card(n).querySelector(".wan-sheet"));
}"""


def room_at_rest(page: Canvas) -> list[list[Any]]:
    """Where the nodes are once none grows any more: under load the page draws late."""
    now, before = page.script(ROOM), None
    for _ in range(100):
        if now == before:
            return now
        page.page.wait_for_timeout(250)
        now, before = page.script(ROOM), now
    pytest.fail("the nodes grow and grow")


@pytest.mark.parametrize(
    ("frontend", "page", "placed"),
    [
        pytest.param("shipped", "litegraph", 1, id="shipped-litegraph"),
        pytest.param("shipped", "vue", 0, id="shipped-vue"),
        pytest.param(OTHER_FRONTEND, "litegraph", 1, id=f"{OTHER_FRONTEND}-placed", marks=pytest.mark.soak),
        pytest.param(OTHER_FRONTEND, "vue", 2, id=f"{OTHER_FRONTEND}-vue"),
        pytest.param(OTHER_FRONTEND, "vue", 1, id=f"{OTHER_FRONTEND}-vue-placed", marks=pytest.mark.soak),
    ],
    indirect=["frontend", "page"],
)
def test_every_shipped_graph_is_its_api_twin_and_no_node_lies_on_another_however_they_grow(
    page: Canvas, placed: int, workflows: dict[str, Any]
) -> None:
    """What a queue gets is asked of LiteGraph: it is read from the widgets, and they have their values before anything
    is drawn. Vue loads each layout once; the shipped frontend moves its nodes by a rule of its own, so there is one.
    `placed`: the nodes' places are looked at in each graph (1), in every second one (2) or in none (0); in CI once for
    each way of drawing."""
    vue, seen = page.script("() => Boolean(window.LiteGraph.vueNodesMode)"), []
    runs, here = finished_runs(page, workflows.values()), page.server.object_info()
    for name in list(workflows)[:: placed or 1]:
        workflow = page.server.get(f"/api/workflow_templates/{PACK_NAME}/{name}.json")
        if {node["type"] for node in workflow["nodes"]} & SINCE.keys() - here.keys():
            continue  # its note says which ComfyUI has them; COMFYUI_PATH names one
        layout = [(node["type"], node["pos"]) for node in workflow["nodes"]]
        if vue and (layout in seen or (seen and not placed)):
            continue
        page.load(workflow)
        assert page.missing_nodes() == [], name
        assert as_shipped(page) == twin(name), name
        if placed and layout not in seen:
            assert page.script("() => window.app.canvas.ds.scale") > READABLE, name
            assert overlaps(page.script(ROOM)) == [], name
            page.script(TELL, OUTPUTS)
            page.page.wait_for_function(GROWN)
            assert overlaps(room_at_rest(page)) == [], f"{name}, after a run"
        seen.append(layout)
    runs.leave(page.page)


# ---- values by name ------------------------------------------------------------------------------


@one_way_each
def test_a_workflow_that_lacks_inputs_added_since_keeps_every_value_at_its_name(page: Canvas) -> None:
    old = json.loads(SAVED.read_text(encoding="utf-8"))
    page.load(old["workflow"])
    for node, body in ours(page.to_prompt()).items():
        kind = body["class_type"]
        assert values(body) == {**defaults(kind), **values(old["prompt"][node])}, kind


@one_way_each
def test_saved_values_have_names_and_positions_are_not_needed(page: Canvas, workflows: dict[str, Any]) -> None:
    page.load(workflows["08_smoke_test"])
    before = page.to_prompt()
    saved = page.script("() => JSON.parse(JSON.stringify((window.app.rootGraph ?? window.app.graph).serialize()))")
    for node in saved["nodes"]:
        if node["type"] in SCHEMAS:
            assert node["widgets_values_named"] == values(before[str(node["id"])])
            assert node["widgets_values"] == list(node["widgets_values_named"].values()), "the panel saved something"
            node["widgets_values"] = ["", *reversed(node["widgets_values"])]
    page.load(saved)
    assert page.to_prompt() == before


CHANGED = {"run_name": "another", "steps": 77, "expert": "low", "seed": 4242, "start_from_lora": "gone.safetensors"}
EVERY_WAY = """async changed => {
  const graph = window.app.rootGraph ?? window.app.graph, view = window.app.canvas;
  const train = graph._nodes.find(n => n.type === "TrainLoRA");
  const read = node => Object.fromEntries(node.widgets.filter(w => w.serialize !== false).map(w => [w.name, w.value]));
  for (const widget of train.widgets) if (widget.name in changed) widget.value = changed[widget.name];
  const told = { set: read(train), clone: read(train.clone()) };

  view.selectItems?.([train]);
  view.copyToClipboard([train]);
  view.pasteFromClipboard();
  const pasted = graph._nodes.find(n => n.type === "TrainLoRA" && n !== train);
  told.paste = read(pasted);
  graph.remove(pasted);

  const { node } = graph.convertToSubgraph(new Set([train]));
  told.subgraph = read(node.subgraph._nodes.find(n => n.type === "TrainLoRA"));
  await window.app.loadGraphData(JSON.parse(JSON.stringify(graph.serialize())));
  const again = (window.app.rootGraph ?? window.app.graph)._nodes.find(n => n.subgraph);
  told.reopened = read(again.subgraph._nodes.find(n => n.type === "TrainLoRA"));
  return told;
}"""


@one_way_each
def test_values_stay_through_copy_paste_and_subgraphs(page: Canvas, workflows: dict[str, Any]) -> None:
    page.load(workflows["08_smoke_test"])
    told = page.script(EVERY_WAY, CHANGED)
    (train,) = [body for body in twin("08_smoke_test").values() if body["class_type"] == "TrainLoRA"]
    for way, found in told.items():
        assert found == {**values(train), **CHANGED}, way


@one_way_each
def test_values_stay_through_undo(page: Canvas, workflows: dict[str, Any]) -> None:
    page.load(workflows["08_smoke_test"])
    before = page.to_prompt()
    page.script(
        """async () => {
          const tracker = window.app.extensionManager.workflow.activeWorkflow.changeTracker;
          const note = () => (tracker.captureCanvasState ?? tracker.checkState).call(tracker);
          const train = () => (window.app.rootGraph ?? window.app.graph)._nodes.find(n => n.type === "TrainLoRA");
          note();
          train().widgets.find(w => w.name === "steps").value = 5;
          note();
          await tracker.undo();
        }"""
    )
    page.prompt_becomes(before)


# ---- nodes as they are drawn ---------------------------------------------------------------------

FILLS = """type => {
  const node = window.app.graph._nodes.find(n => n.type === type);
  const own = node.widgets.at(-1).element.getBoundingClientRect().width / window.app.canvas.ds.scale;
  return Math.round(own) === node.size[0] - 20;
}"""
CUT_OFF = """() => {
  const page = [...document.querySelectorAll("li")].find(li => li.innerText.startsWith("learning_rate")).closest("div");
  return [...page.querySelectorAll("*")].filter(part => part.scrollWidth > part.clientWidth + 1 && part.clientWidth > 0
    || part.getBoundingClientRect().right > page.getBoundingClientRect().right + 1).map(part => part.innerText);
}"""


@pytest.mark.parametrize("frontend", [OTHER_FRONTEND], indirect=True)  # the shipped one has no such panel
def test_what_we_show_in_nodes_stays_as_wide_as_its_node_beside_the_side_panel(
    plain: Canvas, workflows: dict[str, Any]
) -> None:
    plain.load(workflows["08_smoke_test"])
    plain.focus("TrainLoRA")
    button = plain.page.get_by_label("Toggle properties panel").first
    button.click()
    for kind in ("TrainLoRA", "WanVideoDataset", "CacheLatents"):
        plain.script(
            """kind => {
              const node = window.app.graph._nodes.find(n => n.type === kind);
              window.app.canvas.selectNode(node);
              node.setSize([node.size[0] + 100, node.size[1]]);
            }""",
            kind,
        )
        plain.page.get_by_role("tab", name="Parameters").or_(
            plain.page.get_by_text("Parameters", exact=True)
        ).first.wait_for()
        plain.focus(kind)
        plain.page.wait_for_function(FILLS, arg=kind)

    plain.script("() => window.app.canvas.selectNode(window.app.graph._nodes.find(n => n.type === 'TrainLoRA'))")
    plain.page.get_by_role("tab", name="Info").or_(plain.page.get_by_text("Info", exact=True)).first.click()
    plain.page.get_by_text("How far one optimizer step moves").first.wait_for()
    assert plain.script(CUT_OFF) == [], "the help page does not fit"
    assert [problem for problem in plain.problems if "/docs/" in problem] == []
    button.click()


# ---- what the server says ------------------------------------------------------------------------


SAID = """([id, text]) => {
  const root = window.app.rootGraph ?? window.app.graph;
  const detail = { node: id, graph: root.id, text };
  window.app.api.dispatchEvent(new CustomEvent("wan_trainer.status", { detail }));
}"""
IN_LINE = """text => {
  const find = graph => graph._nodes.flatMap(n => [n, ...(n.subgraph ? find(n.subgraph) : [])]);
  const line = find(window.app.rootGraph ?? window.app.graph).find(n => n.type === "TrainLoRA").wanTrainerStatus;
  return line.textContent === text && line.children.length === 0;
}"""


def test_what_the_server_says_is_text_in_the_line_of_its_node_inside_a_subgraph_too(
    plain: Canvas, smoke: dict[str, Any]
) -> None:
    plain.page.bring_to_front()  # a page that nobody sees draws nothing
    plain.load(smoke)
    train = str(next(node["id"] for node in smoke["nodes"] if node["type"] == "TrainLoRA"))
    plain.script(SAID, [train, "<img src=x> a & b"])
    plain.page.wait_for_function(IN_LINE, arg="<img src=x> a & b")
    inside = plain.script(
        """() => {
          const graph = window.app.graph, train = graph._nodes.find(n => n.type === "TrainLoRA");
          const { node } = graph.convertToSubgraph(new Set([train]));
          return `${node.id}:${node.subgraph._nodes.find(n => n.type === "TrainLoRA").id}`;
        }"""
    )
    plain.script(SAID, [inside, "step 3/20"])
    plain.page.wait_for_function(IN_LINE, arg="step 3/20")


# ---- a LoRA on the canvas ------------------------------------------------------------------------


def trained(page: Canvas, smoke: dict[str, Any], frontend: str) -> tuple[bytes, Graph]:
    """The graph of a small run as the page queues it, and its LoRA. It is trained from the shipped frontend; on the
    other one a file with the same graph in its header stands for it."""
    workflow = copy.deepcopy(smoke)
    page.load(workflow)
    told = page.script(
        """async () => {
          const set = {run_name: "dropped", steps: 1, save_every_n_steps: 1, preview_every_n_steps: 0, seed: 7};
          const train = window.app.graph._nodes.find(n => n.type === "TrainLoRA");
          for (const widget of train.widgets) if (widget.name in set) widget.value = set[widget.name];
          const { workflow, output } = await window.app.graphToPrompt();
          return JSON.parse(JSON.stringify({ workflow, output }));
        }"""
    )
    prompt = {node: body for node, body in told["output"].items() if body["class_type"] != "ValidateVideo"}
    if frontend != "shipped":
        return lora_with({"workflow": json.dumps(told["workflow"])}), told["output"]
    if "dropped" not in LORAS:
        page.server.run(prompt, extra_data={"extra_pnginfo": {"workflow": told["workflow"]}})
        file = next((page.server.base).glob("**/loras/wan_trainer/dropped.safetensors"))
        LORAS["dropped"] = file.read_bytes()
    return LORAS["dropped"], told["output"]


DROP = """([name, bytes]) => {
  const data = Uint8Array.from(atob(bytes), c => c.charCodeAt(0));
  const transfer = new DataTransfer();
  transfer.items.add(new File([data], name));
  const target = document.querySelector("#graph-canvas");
  const { x, y } = target.getBoundingClientRect();
  for (const kind of ["dragenter", "dragover", "drop"]) {
    target.dispatchEvent(new DragEvent(kind,
      { bubbles: true, cancelable: true, dataTransfer: transfer, clientX: x + 900, clientY: y + 900 }));
  }
}"""


@one_way_each
def test_a_trained_lora_dropped_on_the_canvas_opens_its_workflow(
    page: Canvas, smoke: dict[str, Any], frontend: str
) -> None:
    lora, prompt = trained(page, smoke, frontend)
    page.clear()
    page.script(DROP, ["dropped.safetensors", base64.b64encode(lora).decode()])
    page.page.wait_for_function(
        "n => (window.app.rootGraph ?? window.app.graph)._nodes.length > n", arg=len(prompt) - 1
    )
    page.prompt_becomes(prompt)
    assert page.missing_nodes() == []
    header = lora[8 : int.from_bytes(lora[:8], "little") + 8].decode("utf-8")
    assert str(page.server.base) not in header


@newer_in_ci
def test_a_large_lora_is_opened_from_its_first_bytes(plain: Canvas, smoke: dict[str, Any], frontend: str) -> None:
    """The page reads the header, however many gigabytes follow it."""
    lora, prompt = trained(plain, smoke, frontend)
    start = lora[: int.from_bytes(lora[:8], "little") + 8]
    plain.clear()
    plain.script(
        """async bytes => {
          const data = Uint8Array.from(atob(bytes), c => c.charCodeAt(0));
          const file = new File([data, ...Array(32).fill(new Uint8Array(1 << 20))], "large.safetensors");
          const read = [];
          const slice = file.slice;
          file.slice = function (...range) { read.push(range); return slice.apply(this, range); };
          for (const name of ["arrayBuffer", "text", "stream"]) file[name] = () => { throw new Error("read whole"); };
          await window.app.handleFile(file);
          window.ranges = read;
        }""",
        base64.b64encode(start).decode(),
    )
    plain.prompt_becomes(prompt)
    ranges = plain.script("() => window.ranges")
    assert ranges
    assert all(end - begin <= 4 << 20 for begin, end in ranges)


JOBS = ROOT / "tests" / "fixtures" / "jobs"
DROP_TEXTS = """files => {
  const carried = new DataTransfer();
  for (const [name, text] of files) carried.items.add(new File([text], name));
  const drop = { bubbles: true, cancelable: true, clientX: 900, clientY: 500, dataTransfer: carried };
  (window.app.canvasEl ?? window.app.canvas.canvas).dispatchEvent(new DragEvent("drop", drop));
}"""
ON_CANVAS = "type => window.app.graph._nodes.some(n => n.type === type)"


@shipped_in_ci
def test_settings_of_another_trainer_fall_on_the_page_and_a_workflow_does_as_ever(
    plain: Canvas, workflows: dict[str, Any]
) -> None:
    assert ".toml" in plain.script("() => document.getElementById('comfy-file-input').accept"), (
        "Open offers no settings"
    )
    names = ("foxes.toml", "foxes_prompts.txt", "musubi_command.sh")  # the first is no training, and is asked for first
    plain.script(DROP_TEXTS, [[name, (JOBS / name).read_text(encoding="utf-8")] for name in names])
    plain.page.wait_for_function(ON_CANVAS, arg="WanDatasetFromFile")
    said = plain.page.locator(".p-toast, [data-testid=toast]")
    said.get_by_text("musubi_command.sh of musubi-tuner: ", exact=False).first.wait_for()
    assert plain.missing_nodes() == []
    prompt = {body["class_type"]: body["inputs"] for body in plain.to_prompt().values()}
    assert (prompt["TrainLoRA"]["rank"], prompt["WanTrainSettings"]["optimizer"]) == (32, "adamw8bit")
    menu = "() => window.app.graph._nodes.find(n => n.type === 'WanDatasetFromFile').widgets[0].value"
    assert plain.script(menu) == "", "no file was chosen, and none is there"
    assert "a red fox runs through deep snow" in prompt["WanPreviewSettings"]["prompts"]
    note = "() => window.app.graph._nodes.find(n => n.type === 'MarkdownNote').widgets[0].value"
    assert "**imported**" in plain.script(note)

    smoke = workflows["08_smoke_test"]
    plain.script(DROP_TEXTS, [["smoke.json", json.dumps(smoke)]])
    plain.page.wait_for_function(ON_CANVAS, arg="WanVideoDataset")
    plain.page.wait_for_function("() => !document.querySelector('.p-progressspinner')")
    assert as_shipped(plain) == twin("08_smoke_test")


def test_a_node_that_nobody_has_is_missing(plain: Canvas) -> None:
    """`missing_nodes` itself sees something."""
    plain.load_api({"1": {"class_type": "NoSuchNodeAnywhere", "inputs": {}}})
    assert plain.missing_nodes()
    plain.page.keyboard.press("Escape")  # a dialog about it
    plain.clear()
    plain.page.get_by_text("missing node", exact=False).first.wait_for(state="hidden")
    assert plain.missing_nodes() == []


# ---- files that fall on the page -----------------------------------------------------------------
