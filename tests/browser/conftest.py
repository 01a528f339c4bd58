"""The real canvas in a headless Chromium, on two frontends: the one the ComfyUI tree ships, and a much newer one.

@pytest.mark.browser
def test_something(canvas: Canvas) -> None:      # runs once per frontend
    canvas.open_template("01_stills_1_3b")
    assert canvas.missing_nodes() == []
"""

from __future__ import annotations

import copy
import json
import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from comfy_server import PACK_NAME, ComfyServer
from environment import CACHE, OTHER_FRONTEND, ROOT, find_chromium
from world import CLIP

from tests.support.preforked import PreforkedEngine

READY = "() => window.app?.extensionManager && (window.app.graph || window.app.rootGraph) && window.app.vueAppReady"
QUICK_MAIN = ROOT / "tests" / "tiny" / "quick_main.py"
RESERVE_GIB = 1.5 if sys.platform == "win32" else 1.0
PATIENCE_MS = 120_000
"""how long the certain is waited for; only a test that fails waits so long, however busy a machine is"""
# 404s of unset user files and answers blocked by the page's own policy are the frontend's, not ours.
NOISE = re.compile(
    r"user\.css|comfy\.templates\.json|/settings/|api\.comfy\.org|Content Security Policy|favicon",
    re.I,
)


BOUNDS = """ids => {
  const view = window.app.canvas, at = view.canvas.getBoundingClientRect(), { scale, offset } = view.ds;
  const nodes = (window.app.rootGraph ?? window.app.graph)._nodes;
  const all = nodes.filter(({ id }) => !ids?.length || ids.includes(Number(id))).map(node => {
    const drawn = document.querySelector(`[data-node-id="${node.id}"]`)?.getBoundingClientRect();
    const lower = drawn ? (drawn.bottom - at.y) / scale - offset[1] : 0;
    const [x, y] = node.pos;
    if (node.flags?.collapsed) return [x, y - 30, x + (node._collapsed_width ?? node.size[0]), y];
    return [x, y - 30, x + node.size[0], Math.max(y + node.size[1], lower)];
  });
  return [0, 1, 2, 3].map(side => Math[side < 2 ? "min" : "max"](...all.map(box => box[side])));
}"""
"""left, top, right and bottom of all nodes on the canvas, or of those with these ids; one that the page draws itself
may be higher than it says"""


STANDS_STILL = """(() => {
  const frame = window.requestAnimationFrame.bind(window);
  let waiting = null;
  window.requestAnimationFrame = callback => waiting ? (waiting.push(callback), 0) : frame(callback);
  window.drawFrames = on => {
    const kept = waiting ?? [];
    waiting = on ? null : kept;
    if (on) kept.forEach(callback => frame(callback));
  };
})()"""
"""No frames after `drawFrames(false)`; those requested meanwhile come after `drawFrames(true)`. A page behind another
one would draw itself all the time, in software."""


class Canvas:
    """One page with the app ready."""

    def __init__(self, page: Any, server: ComfyServer, shots: Path) -> None:
        self.page = page
        self.server = server
        self.problems: list[str] = []
        self.shots = shots
        self.vue = False
        """how the page draws nodes: as `canvas` and new pages begin"""
        # Playwright's own default is each frame, which makes the page draw one.
        page.wait_for_function = partial(page.wait_for_function, polling=100)
        page.on("pageerror", lambda error: self.problems.append(f"page error: {error}"))
        page.on("console", self._listen)

    def _listen(self, message: Any) -> None:
        where = str((message.location or {}).get("url", ""))
        if message.type == "error" and not NOISE.search(message.text + where):
            self.problems.append(f"console: {message.text} ({where})")

    @property
    def our_problems(self) -> list[str]:
        """Page errors, and console errors that name a file or node of ours."""
        mine = re.compile(rf"{PACK_NAME}|wan_trainer|WanTrainer", re.IGNORECASE)
        return [text for text in self.problems if mine.search(text)]

    def open(self) -> Canvas:
        """Load the page and wait until the app and all extensions are set up."""
        self.page.goto(self.server.url, wait_until="domcontentloaded")
        return self.wait_until_ready()

    def wait_until_ready(self) -> Canvas:
        """The app and all extensions are set up, after a reload too."""
        self.page.wait_for_function(READY)
        return self

    def script(self, code: str, argument: Any = None) -> Any:
        """Evaluate an arrow function in the page."""
        return self.page.evaluate(code, argument)

    def extensions(self) -> list[str]:
        """Names of all registered frontend extensions."""
        return list(self.script("() => window.app.extensions.map(e => e.name)"))

    def clear(self) -> None:
        self.script("() => window.app.graph.clear()")

    def drawn(self, most_ms: int = 300) -> None:
        """Wait until the page has drawn itself a few times over; one that nobody sees draws nothing, and has
        `most_ms`."""
        self.script(
            """most => new Promise(done => {
              setTimeout(done, most);
              let left = 4;
              const frame = () => { left -= 1; left ? requestAnimationFrame(frame) : done(); };
              requestAnimationFrame(frame);
            })""",
            most_ms,
        )

    def draws(self, on: bool) -> None:
        """Whether the page draws frames; a reload turns them on."""
        self.script("on => window.drawFrames(on)", on)

    def load(self, workflow: dict[str, Any]) -> None:
        """Load a canvas (UI format) workflow."""
        self.script("async w => { await window.app.loadGraphData(w) }", workflow)
        self.drawn()

    def load_api(self, graph: dict[str, Any], name: str = "graph") -> None:
        """Load an API-format graph."""
        self.script("([g, n]) => window.app.loadApiJson(g, n)", [graph, name])
        self.drawn()

    def templates(self) -> list[str]:
        """Names of the templates this pack offers to the browser dialog."""
        offered = self.server.get("/workflow_templates")
        return sorted(offered.get(PACK_NAME, []))

    def open_template_dialog(self) -> None:
        """The template browser, as a user opens it."""
        self.script("() => window.app.extensionManager.command.execute('Comfy.BrowseTemplates')")
        self.page.get_by_text(PACK_NAME, exact=False).first.wait_for()

    def open_template(self, name: str) -> None:
        """Open a template of this pack through the dialog: choose the pack, then the card."""
        self.open_template_dialog()
        self.page.get_by_text(PACK_NAME, exact=False).first.click()
        card = self.page.locator(f'[data-testid="template-workflow-{name}"], [data-testid$="{name}"]')
        if not card.count():
            card = self.page.get_by_text(name, exact=True)
        card.first.click()
        self.page.wait_for_function("() => window.app.graph && window.app.graph._nodes.length > 0")
        self.page.wait_for_timeout(500)

    def missing_nodes(self) -> list[str]:
        """Node types on the canvas that no class stands behind. The dialog about them must be absent too."""
        types = self.script(
            """() => {
              const known = window.LiteGraph.registered_node_types;
              const all = [];
              const walk = graph => {
                for (const n of graph._nodes) { all.push(n); if (n.subgraph) walk(n.subgraph); }
              };
              walk(window.app.rootGraph ?? window.app.graph);
              return all.filter(n => !n.subgraph && !(n.type in known)).map(n => n.type);
            }"""
        )
        if self.page.get_by_text("missing node", exact=False).count():
            types = [*types, "(the dialog about missing nodes is open)"]
        return list(types)

    def fit(self, ids: Sequence[int] = ()) -> None:
        """Show the whole graph, or the nodes with these ids, clear of the page's own bars."""
        self.script(
            """([left, top, right, bottom]) => {
              const view = window.app.canvas;
              const [x, y] = [80, 200];
              const wide = view.canvas.clientWidth - x - 30, high = view.canvas.clientHeight - y - 30;
              const scale = Math.min(wide / (right - left), high / (bottom - top), 1);
              view.ds.scale = scale;
              view.ds.offset[0] = x / scale - left;
              view.ds.offset[1] = y / scale - top;
              view.setDirty(true, true);
            }""",
            self.script(BOUNDS, list(ids)),
        )
        self.drawn(700)

    def focus(self, node_type: str) -> None:
        """Bring the lower end of the first node of a type into view, at full size."""
        self.script(
            """type => {
              const view = window.app.canvas, node = window.app.graph._nodes.find(n => n.type === type);
              view.ds.scale = 1;
              view.ds.offset[0] = 500 - node.pos[0];
              view.ds.offset[1] = view.canvas.clientHeight - 60 - (node.pos[1] + node.size[1]);
              view.setDirty(true, true);
            }""",
            node_type,
        )
        self.drawn(400)

    def show(self, selector: str) -> None:
        """Bring an element inside a node to the middle of the view, whatever its node measures."""
        self.script(
            """selector => {
              const view = window.app.canvas, place = view.canvas.getBoundingClientRect();
              const seen = document.querySelector(selector).getBoundingClientRect();
              view.ds.offset[0] += (place.x + place.width / 2 - seen.x - seen.width / 2) / view.ds.scale;
              view.ds.offset[1] += (place.y + place.height / 2 - seen.y - seen.height / 2) / view.ds.scale;
              view.setDirty(true, true);
            }""",
            selector,
        )
        self.drawn()

    def to_prompt(self) -> dict[str, Any]:
        """The canvas as the queue would get it (API format)."""
        return dict(self.script("async () => (await window.app.graphToPrompt()).output"))

    def prompt_becomes(self, wanted: dict[str, Any]) -> None:
        """Wait until the queue would get this: a page under load loads a workflow late."""
        deadline = time.monotonic() + PATIENCE_MS / 1000
        while (found := self.to_prompt()) != wanted and time.monotonic() < deadline:
            self.page.wait_for_timeout(100)
        assert found == wanted

    def node(self, node_type: str) -> Any:
        """Handle of the first node of a type, in subgraphs too."""
        return self.page.evaluate_handle(
            """type => {
              const find = g => { for (const n of g._nodes) {
                if (n.type === type) return n;
                const inner = n.subgraph && find(n.subgraph); if (inner) return inner; } };
              return find(window.app.rootGraph ?? window.app.graph);
            }""",
            node_type,
        )

    def watch(self) -> None:
        """Begin to keep what the server says (`seen`) and every text of TrainLoRA's status line (`lines`)."""
        self.script(
            """() => {
              const kinds = ["wan_trainer.status", "progress", "progress_state", "executed", "execution_success",
                "execution_error", "b_preview"];
              const listens = Boolean(window.seen);
              window.seen = Object.fromEntries(kinds.map(kind => [kind, []]));
              for (const kind of listens ? [] : kinds) {
                window.app.api.addEventListener(kind, e => window.seen[kind].push(e.detail));
              }
              const line = window.app.graph._nodes.find(n => n.type === "TrainLoRA").wanTrainerStatus;
              window.lines = [];
              window.watching?.disconnect();
              window.watching = new MutationObserver(() => window.lines.push(line.textContent));
              window.watching.observe(line, {childList: true});
            }"""
        )

    def seen(self, kind: str) -> list[Any]:
        """What `watch` kept of one kind of message."""
        return list(self.script("k => window.seen[k].map(d => d instanceof Blob ? 'picture' : d)", kind))

    def lines(self) -> list[str]:
        """Texts of the status line since `watch`."""
        return list(self.script("() => window.lines"))

    def press_run(self, timeout_s: float = 300, name: str = "Run") -> None:
        """Press the Run button, by its name, as a user does, and wait until the queue entry has ended."""
        before = self.script("() => window.seen.execution_success.length + window.seen.execution_error.length")
        self.page.get_by_role("button", name=name, exact=True).first.click()
        self.page.wait_for_function(
            "n => window.seen.execution_success.length + window.seen.execution_error.length > n",
            arg=before,
            timeout=timeout_s * 1000,
        )
        assert self.seen("execution_error") == []

    def run(self) -> None:
        """Queue the canvas."""
        self.script("() => window.app.queuePrompt(0, 1)")

    def screenshot(self, name: str) -> Path:
        """A picture of the page, kept under .cache/screenshots."""
        self.shots.mkdir(parents=True, exist_ok=True)
        file = self.shots / f"{name}.png"
        self.page.screenshot(path=str(file))
        return file


def shows(place: Any, *texts: str) -> None:
    """Wait until an element says these texts: a page under load draws late."""
    from playwright.sync_api import expect

    for text in texts:
        expect(place).to_contain_text(text, timeout=PATIENCE_MS)


def tiny_canvas(workflow: dict[str, Any], **changes: dict[str, Any]) -> dict[str, Any]:
    """The smoke graph as the canvas loads it, with the tiny text encoder in place of CLIPLoader.

    `changes` sets widgets by node class: `tiny_canvas(workflow, TrainLoRA={"steps": 8})`.
    """
    known = json.loads((ROOT / "tests" / "nodes" / "schemas.json").read_text(encoding="utf-8"))
    kinds = ("INT", "FLOAT", "STRING", "BOOLEAN", "COMBO")
    widgets = {name: [i["name"] for i in node["inputs"] if i["type"] in kinds] for name, node in known.items()}
    widgets["VAELoader"] = ["vae_name"]
    out = copy.deepcopy(workflow)
    for node in out["nodes"]:
        for name, value in changes.get(node["type"], {}).items():
            node["widgets_values"][widgets[node["type"]].index(name)] = value
        if node["type"] == "CLIPLoader":
            node |= {"type": CLIP, "widgets_values": [22, "fixed"], "title": "Load CLIP", "properties": {}}
    return out


def lora_with(metadata: dict[str, str], **tensors: Any) -> bytes:
    """Returns a safetensors file of four bytes, or with a header as it stands."""
    header = {"__metadata__": metadata, "x": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}, **tensors}
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + b"\0\0\0\0"


@pytest.fixture(scope="session")
def smoke(workflows: dict[str, Any]) -> dict[str, Any]:
    """The smoke graph, ready to run here, and shorter."""
    return tiny_canvas(
        workflows["08_smoke_test"], TrainLoRA={"steps": 8, "save_every_n_steps": 8, "preview_every_n_steps": 8}
    )


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    """The browser."""
    program = find_chromium()
    if not program:
        pytest.skip("no Chromium: install one, or set WAN_TRAINER_CHROMIUM to its path")
    playwright = pytest.importorskip("playwright.sync_api", reason="no playwright: run python3 scripts/test.py")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=program, headless=True, args=["--disable-dev-shm-usage"])
        yield browser
        browser.close()


@pytest.fixture(scope="session", params=["shipped", OTHER_FRONTEND])
def frontend(request: pytest.FixtureRequest) -> str:
    """Which frontend a test runs on."""
    return str(request.param)


shipped_in_ci = pytest.mark.parametrize(
    "frontend", ["shipped", pytest.param(OTHER_FRONTEND, marks=pytest.mark.soak)], indirect=True
)
"""for what our own code decides in elements of its own: CI asks one frontend, the soak both"""

newer_in_ci = pytest.mark.parametrize(
    "frontend", [pytest.param("shipped", marks=pytest.mark.soak), OTHER_FRONTEND], indirect=True
)
"""the same, on the other one: each of two processes has as much to do"""


@pytest.fixture(scope="session")
def canvas_server(
    frontend: str, comfy_base: Callable[..., Path], comfyui_tree: Path, preforked: PreforkedEngine | None
) -> Iterator[ComfyServer]:
    """A server with that frontend, tiny models and clips. Its workers are forked with their imports done."""
    root = None
    if frontend != "shipped":
        root = Path(os.environ.get("WAN_TRAINER_OTHER_FRONTEND") or CACHE / f"frontend-{OTHER_FRONTEND}")
        if not (root / "index.html").is_file():
            pytest.skip(f"no frontend {frontend}: run python3 scripts/test.py, which fetches it")
    env = preforked.environment if preforked else None
    base = comfy_base(f"canvas-{frontend}")
    with ComfyServer(base, comfyui=comfyui_tree, main=QUICK_MAIN, front_end_root=root, env=env) as server:
        server.setting("Comfy.TutorialCompleted", True)  # else the template dialog covers the first canvas
        server.setting("Comfy.Workflow.ShowMissingModelsWarning", False)  # tests have tiny models only
        yield server


@pytest.fixture
def card_of(canvas_server: ComfyServer) -> Iterator[Callable[[float], None]]:
    """Makes the server take its cards for having so many MiB beside the reserve."""

    def told(gib: str) -> None:
        canvas_server.post("/tiny/card", {"gib": gib})

    yield lambda mib: told(f"{RESERVE_GIB + mib / 1024:.6f}")
    told("")


@pytest.fixture(scope="session")
def canvas_context(chromium: Any, canvas_server: ComfyServer) -> Iterator[Any]:
    """A browser profile per server: what the page downloads is kept between tests, what it remembers is not."""
    context = chromium.new_context(viewport={"width": 1600, "height": 1000})
    context.set_default_timeout(PATIENCE_MS)
    # A new tab starts empty; a reload of the same tab keeps its graph, as for a user.
    context.add_init_script(
        "if (!sessionStorage.getItem('opened')) { localStorage.clear(); sessionStorage.setItem('opened', '1'); }"
    )
    context.add_init_script(STANDS_STILL)
    yield context
    context.close()


@pytest.fixture
def canvas(
    canvas_context: Any, canvas_server: ComfyServer, frontend: str, request: pytest.FixtureRequest
) -> Iterator[Canvas]:
    """A fresh page with the app ready and an empty memory; leaves a screenshot if the test failed."""
    canvas_server.setting("Comfy.VueNodes.Enabled", False)
    page = Canvas(canvas_context.new_page(), canvas_server, CACHE / "screenshots" / frontend)
    try:
        yield page.open()
    finally:
        name = re.sub(r"\W+", "-", request.node.name)
        if getattr(request.node, "failed", True):
            page.screenshot(name)
        page.page.close()


# The shipped frontend keeps some of what it says over its Run button until somebody takes it away.
FORGET = """async () => {
  (window.app.rootGraph ?? window.app.graph).clear();
  window.app.canvas.ds.reset();  // where a test before had moved the view
  sessionStorage.removeItem("wan_trainer.cards");
  localStorage.removeItem("WanTrainer.Panel.details");
  const side = window.app.extensionManager.sidebarTab;
  if (side.activeSidebarTabId) side.toggleSidebarTab(side.activeSidebarTabId);
  window.app.extensionManager.toast.removeAll?.();
  await window.app.api.fetchApi("/wan_trainer/runs");  // what the graph has requested before is answered
}"""


class Pages:
    """Pages that stay open between tests, one for each way of drawing nodes: most seconds of a short test on a page of
    its own go into the load of that page. For tests that ask nothing of what a page did before, nor of its language."""

    def __init__(self, context: Any, server: ComfyServer, shots: Path) -> None:
        self._context, self._server, self._shots = context, server, shots
        self._open: dict[bool, Canvas] = {}

    def take(self, vue: bool) -> Canvas:
        """The page that draws nodes so: in front, an empty graph, no side tab, no message and no card remembered."""
        self._server.setting("Comfy.VueNodes.Enabled", vue)  # a reload reads it
        for other in self._open.values():
            if other.vue is not vue:
                other.script(FORGET)  # its clips would play on
                other.draws(False)
        if vue in self._open:
            page = self._open[vue]
            page.page.bring_to_front()
            page.draws(True)
        else:
            page = self._open[vue] = Canvas(self._context.new_page(), self._server, self._shots)
            page.vue = vue
            page.open()
        page.script(FORGET)  # a new page has the graph that the page itself begins with
        page.problems.clear()
        return page

    def take_both(self) -> tuple[Canvas, Canvas]:
        """The page that LiteGraph draws and the one with Vue nodes, which is in front. Both draw."""
        plain, vue = self.take(vue=False), self.take(vue=True)
        plain.draws(True)
        return plain, vue

    def drop(self, page: Canvas) -> None:
        """Close a page; the next that asks for its kind gets a new one."""
        self._open = {vue: other for vue, other in self._open.items() if other is not page}
        page.page.close()

    def failed(self, name: str) -> None:
        """Leave a picture of each page, and no page to the next test."""
        for vue, page in list(self._open.items()):
            page.screenshot(f"{name}-{'vue' if vue else 'litegraph'}")
            self.drop(page)


@pytest.fixture(scope="session")
def open_pages(canvas_context: Any, canvas_server: ComfyServer, frontend: str) -> Pages:
    """The pages that stay open, for fixtures of modules."""
    return Pages(canvas_context, canvas_server, CACHE / "screenshots" / frontend)


@pytest.fixture
def pages(open_pages: Pages, request: pytest.FixtureRequest) -> Iterator[Pages]:
    """The pages that stay open; a test that fails leaves a screenshot of them, and they are closed."""
    yield open_pages
    if getattr(request.node, "failed", True):
        open_pages.failed(re.sub(r"\W+", "-", request.node.name))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
    report = yield
    if report.when == "call":
        item.failed = report.failed  # type: ignore[attr-defined]
    return report


@pytest.fixture(scope="session")
def workflows(repo: Path) -> dict[str, dict[str, Any]]:
    """The shipped canvas graphs by name."""
    return {
        file.stem: json.loads(file.read_text(encoding="utf-8")) for file in sorted((repo / "workflows").glob("*.json"))
    }
