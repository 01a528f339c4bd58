"""The panel and the tab on made-up runs: how often they draw, who can use them, what hostile texts do to them."""

from __future__ import annotations

import itertools
import re
import time
from collections.abc import Iterator
from typing import Any

import pytest
from environment import CACHE, OTHER_FRONTEND

from tests.browser.conftest import PATIENCE_MS, Canvas, Pages, newer_in_ci, shipped_in_ci, shows, tiny_canvas
from tests.browser.runs_on_page import Runs, whole_run

pytestmark = pytest.mark.browser

PANEL = 'window.app.graph._nodes.find(n => n.type === "TrainLoRA").wanTrainerPanel'
AXE = CACHE / "node" / "node_modules" / "axe-core" / "axe.min.js"
# The button of the sidebar tab, as the shipped and as the newer frontend mark it.
TAB = ".wan-trainer-runs-tab-button, [data-testid=wan-trainer-runs-tab-button]"

NOTE = """() => {
  const note = window.app.graph._nodes.find(n => n.type === "MarkdownNote");
  return `${note.title}: ${note.widgets[0].value}`;
}"""
SETTINGS = ("WanTrainer.Chart.Theme", "WanTrainer.NewNodes.DatasetFolder", "WanTrainer.NewNodes.RunFolder")

DETAILS = ".wan-details > summary"
# Words that are seen on the panel, its height, and pixels from its top to its clips.
SEEN = """() => {
  const panel = document.querySelector(".wan-panel"), top = panel.getBoundingClientRect().top;
  const walk = document.createTreeWalker(panel, NodeFilter.SHOW_TEXT), words = [];
  while (walk.nextNode())
    if (walk.currentNode.parentElement.checkVisibility())
      words.push(...walk.currentNode.textContent.split(/\\s+/).filter(word => /[a-z0-9]/i.test(word)));
  return [words.length, panel.offsetHeight, panel.querySelector(".wan-clips").getBoundingClientRect().top - top];
}"""
LOADED = """() => [...document.querySelectorAll(".wan-clips video")].every(({ videoWidth }) => videoWidth)"""
"""clips have their own aspect ratio once they have loaded"""

NOTIFICATIONS = """() => {
  window.notified = [];
  window.Notification = class {
    static permission = "default";
    static requestPermission() { this.permission = "granted"; window.notified.push(["asked"]); }
    constructor(title, { body }) { window.notified.push([title, body]); }
  };
}"""

HOSTILE = (
    "<img src=x onerror=\"window.hacked='img'\">",
    "<script>window.hacked='script'</script>",
    '"><svg onload="window.hacked=\'svg\'"><iframe srcdoc="<script>parent.hacked=1</script>">',
    "javascript:window.hacked='url'",
    "'-alert(1)-'${window.hacked=1}{{constructor.constructor('window.hacked=1')()}}",
)

STORM = f"""async lines => {{
  const panel = {PANEL};
  let frames = 0, going = true;
  const count = () => {{ frames += 1; if (going) requestAnimationFrame(count); }};
  requestAnimationFrame(count);
  const drawn = panel.plot.draws;
  for (let i = 0; i < 10000; i++) {{
    const text = `step ${{i}}/10000   loss`;
    const detail = {{ node: "7", run: "smoke_test_002", stage: "train", text, metrics_lines: i }};
    window.app.api.dispatchEvent(new CustomEvent("wan_trainer.status", {{ detail }}));
    if (i % 1000 === 999) await new Promise(done => setTimeout(done, 20));
  }}
  const patience = Date.now() + 60000;
  while (panel.history.lines < lines && Date.now() < patience) await new Promise(done => setTimeout(done, 50));
  await new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)));
  going = false;
  return [panel.plot.draws - drawn, frames, panel.history.losses.get("auto").points.length, panel.history.newest.step];
}}"""


def made_up_runs(canvas: Canvas) -> Runs:
    """The routes of the page, answered by the test; one run trains in node 7, others have ended."""
    runs = Runs()
    runs.add("other", whole_run(90, 90, 30), state="done")
    runs.add("smoke_test", whole_run(64, 150, 10), live=True, state="running", node="7")
    runs.serve(canvas.page)
    return runs


def over_fitting_run() -> list[dict[str, Any]]:
    """A run whose held-out loss is lowest at step 40 of 90."""
    lines = whole_run(90, 90, 10)
    for line in lines:
        if line["event"] == "evaluated":
            line["eval_loss"] = 0.15 + ((line["step"] - 40) / 100) ** 2
            line["held_out"] = True
    why = (
        "Step 40 is suggested: its held-out loss of 0.1500 is the lowest of the saved steps, 51.6 % below the 0.3100 "
        "before training. Changes smaller than 0.0100 between steps are noise."
    )
    return [*lines, {"event": "suggested", "step": 90, "best": 40, "why": why, "overfits_from": 40}]


@pytest.fixture
def shared(pages: Pages) -> Canvas:
    """The page that LiteGraph draws, as it stays open."""
    return pages.take(vue=False)


@pytest.fixture
def shared_runs(shared: Canvas) -> Iterator[Runs]:
    """Made-up runs on the shared page."""
    runs = made_up_runs(shared)
    yield runs
    runs.leave(shared.page)


def open_run(page: Any, run: str) -> Any:
    """The card of a run, opened in the list."""
    page.locator(".wan-table").get_by_role("button", name=run, exact=True).click()
    return page.locator(".wan-run")


def shown(canvas: Any, points: int) -> None:
    """Wait until the panel has read a run."""
    canvas.page.wait_for_function(f"n => {PANEL}?.history.points === n", arg=points)
    canvas.drawn()


def serious(canvas: Any, selector: str) -> list[str]:
    """What axe-core finds wrong, serious or worse, as `rule: element`."""
    if not AXE.is_file():
        pytest.skip("no axe-core: npm was not there when python3 scripts/test.py set things up")
    if not canvas.script("() => 'axe' in window"):
        canvas.page.add_script_tag(path=str(AXE))
    found = canvas.script("async s => (await window.axe.run(document.querySelector(s))).violations", selector)
    return [
        f"{rule['id']}: {node['html'][:200]} {node.get('failureSummary', '')[:200]}"
        for rule in found
        if rule["impact"] in ("serious", "critical")
        for node in rule["nodes"]
    ]


@newer_in_ci
def test_the_suggested_step_is_marked_and_can_be_made_the_runs_lora(
    shared: Canvas, smoke: dict[str, Any], shared_runs: Runs
) -> None:
    canvas, runs = shared, shared_runs
    use = [{"lora": "wan_trainer/smoke_test.safetensors", "model": "wan.safetensors", "trigger": "ohwx"}]
    runs.add("smoke_test", over_fitting_run(), state="done", node="7", in_use=90, use=use)
    canvas.load(smoke)
    detail = {"node": "7", "run": "smoke_test", "state": "done", "text": "done", "metrics_lines": 999}
    canvas.script("d => window.app.api.dispatchEvent(new CustomEvent('wan_trainer.status', {detail: d}))", detail)
    shown(canvas, 90)
    canvas.focus("TrainLoRA")
    panel = canvas.page.locator(".wan-panel")
    shows(panel.locator(".wan-headline"), "✓Done. 90 steps in 3:45")
    shows(panel.locator(".wan-use"), "Use it:", "wan_trainer/smoke_test.safetensors", "Write ohwx into the prompt.")
    canvas.page.wait_for_function(LOADED)
    words, height, clips = canvas.script(SEEN)
    assert words <= 60
    assert height <= 530
    assert clips <= 60
    canvas.screenshot("panel-five-things")
    canvas.script("() => { navigator.clipboard.writeText = async text => { window.copied = text; }; }")
    canvas.focus("TrainLoRA")  # on a busy machine the node grew after it was brought into view
    panel.get_by_role("button", name="Copy", exact=True).click()
    canvas.page.wait_for_function("() => window.copied === 'wan_trainer/smoke_test.safetensors'")
    canvas.script("() => { delete navigator.clipboard.writeText; }")
    shows(panel, "★ Step 40 is suggested.")
    panel.get_by_role("button", name="Why?").click()
    reason = panel.locator(".wan-suggestion p")
    shows(reason, "its held-out loss of 0.1500", "After step 40 the held-out loss rose while the training loss fell")
    assert reason.is_visible()
    canvas.focus("TrainLoRA")  # and now by the suggestion
    panel.get_by_role("button", name="Show the suggested step").click()
    canvas.page.wait_for_function(f"() => {PANEL}.player.slider.getAttribute('aria-valuetext').startsWith('★ step 40')")
    panel.get_by_role("button", name="Use this step").click()
    shows(panel.locator(".wan-answer"), "Step 40 is the run's LoRA now.")
    assert [(path, body) for path, _, body in runs.posted] == [("smoke_test/use", {"step": 40})]
    assert serious(canvas, ".wan-panel") == []
    canvas.screenshot("panel-suggested")
    canvas.focus("TrainLoRA")
    panel.locator(DETAILS).press("Enter")
    canvas.drawn()
    canvas.show(".wan-panel .wan-controls")  # with Details open the node may be higher than the page
    panel.get_by_text("by timestep").click()
    shows(panel, "◆ timestep 200")
    canvas.page.wait_for_timeout(500)
    legend, line = (panel.locator(name).bounding_box() for name in (".wan-legend", ".wan-use"))
    assert legend["y"] + legend["height"] <= line["y"] + 1, "the panel grows with its legend"
    canvas.screenshot("panel-by-timestep")
    high = "() => window.app.graph._nodes.find(n => n.type === 'TrainLoRA').size[1]"
    opened = canvas.script(high)
    panel.locator(DETAILS).press("Enter")
    canvas.page.wait_for_function(f"most => ({high})() <= most", arg=opened - 100)


@shipped_in_ci
def test_a_graph_that_is_left_asks_for_nothing_more(shared: Canvas, smoke: dict[str, Any], shared_runs: Runs) -> None:
    shared_runs.add("smoke_test", whole_run(64, 150, 10), state="done")
    shared.load(smoke)
    shown(shared, 64)
    shared.script(f"() => {{ window.left = {PANEL}; }}")
    shared.page.wait_for_function("() => window.left.player.after.video.readyState > 0")
    shared.clear()
    assert shared.script("() => window.left.element.querySelectorAll('video[src]').length") == 0
    asked = len(shared_runs.asked)
    shared.script("() => { window.left.refresh(); window.left.pulse(); }")
    shared.page.wait_for_timeout(600)  # it reads at most every 250 ms
    assert shared_runs.asked[asked:] == []


@pytest.mark.parametrize("frontend", ["shipped"], indirect=True)
def test_a_run_that_failed_says_so_and_what_to_do(shared: Canvas, smoke: dict[str, Any], shared_runs: Runs) -> None:
    reason = "Step 64 is not finite. " + "It goes on and on. " * 20 + "Lower learning_rate."
    shared_runs.add("smoke_test", whole_run(64, 150, 10), state="failed", step=60, reached=64, reason=reason)
    shared.load(smoke)
    shown(shared, 64)
    shared.script("() => { window.queued = 0; window.app.queuePrompt = async () => { window.queued += 1; }; }")
    shared.script("() => { navigator.clipboard.writeText = async text => { window.copied = text; }; }")
    shared.focus("TrainLoRA")
    box = shared.page.locator(".wan-trouble")
    shows(box, "Failed after step 64 of 150. Saved step 60 is kept, later steps are lost.")
    shows(box, "Lower learning_rate.")
    is_whole = box.locator("p").first.evaluate("p => p.clientHeight > 0 && p.scrollHeight <= p.clientHeight + 1")
    assert is_whole, "a part of the sentence is cut off"
    box.get_by_role("button", name="Retry from step 60").click()
    shared.page.wait_for_function("() => window.queued === 1")
    box.get_by_role("button", name="Copy").click()
    shared.page.wait_for_function("() => window.copied?.includes('Lower learning_rate.')")
    assert "step 64/150  loss 0.4711" in shared.script("() => window.copied")
    box.get_by_role("button", name="Show log").click()
    shows(box.locator(".wan-log"), "step 64/150")
    top, line = box.locator(".wan-log").evaluate("log => [log.scrollTop, parseFloat(getComputedStyle(log).lineHeight)]")
    assert top > 0, "it is at its end"
    assert top % line == 0, "its first row is cut"
    starts = box.locator(".wan-log > *").evaluate_all("lines => lines.map(one => one.offsetTop - lines[0].offsetTop)")
    assert any(later - start > line for start, later in itertools.pairwise(starts)), "no line has several rows"
    assert top in starts, "it begins within a line"
    assert serious(shared, ".wan-panel") == []
    shared.screenshot("panel-failed")
    shared.page.locator(TAB).first.click()
    card = open_run(shared.page, "smoke_test")
    said = box.locator("p").first.inner_text()
    kept = "Failed after step 64 of 150. Saved step 60 is kept, later steps are lost."
    shows(card.locator(".wan-trouble"), kept, said)
    assert serious(shared, ".wan-runs") == []
    shared.screenshot("tab-failed")
    shared.script("() => { delete window.app.queuePrompt; delete navigator.clipboard.writeText; }")


@pytest.mark.parametrize(
    ("frontend", "vue"),
    [
        pytest.param("shipped", False, id="shipped-litegraph"),
        pytest.param("shipped", True, id="shipped-vue", marks=pytest.mark.soak),
        pytest.param(OTHER_FRONTEND, False, id=f"{OTHER_FRONTEND}-litegraph", marks=pytest.mark.soak),
        pytest.param(OTHER_FRONTEND, True, id=f"{OTHER_FRONTEND}-vue"),
    ],
    indirect=["frontend"],
)
def test_a_run_is_drawn_from_its_file_in_both_kinds_of_nodes(vue: bool, pages: Pages, smoke: dict[str, Any]) -> None:
    canvas = pages.take(vue)
    runs = made_up_runs(canvas)
    sentence = "The evaluation loss has not fallen since step 20: more steps like these add little."
    for line in runs.lines["smoke_test"]:
        line |= {"prior_loss": line["step"] / 1e4} if line["event"] == "step" else {}
    runs.lines["smoke_test"] += [
        {"event": "skipped", "step": 41, "reason": "the loss is not finite", "in_a_row": 1},
        {"event": "marked", "step": 50, "kind": "plateau", "text": sentence, "expert": ""},
    ]
    canvas.load(smoke)
    shown(canvas, 64)
    canvas.focus("TrainLoRA")
    panel = canvas.page.locator(".wan-panel")
    assert not panel.locator(".wan-facts").is_visible(), "figures stand in the details"
    panel.locator(DETAILS).press("Enter")
    panel.locator(".wan-facts").wait_for()
    canvas.script("() => new Promise(done => setTimeout(done, 50))")  # the browser says later that they are open
    assert canvas.script("() => localStorage.getItem('WanTrainer.Panel.details')") == "on"
    canvas.focus("TrainLoRA")
    shows(panel, "64 / 150")
    shows(panel.locator(".wan-marks"), f"⚠ {sentence}")
    shows(panel.locator(".wan-legend"), "⚠ problem at step 50", "× skipped: not finite")
    shows(panel.locator(".wan-legend"), "prior preservation")
    shows(panel.locator(".wan-facts"), "prior", "0.0064")
    assert canvas.page.get_by_label("Memory of cuda:0").count() == 1
    assert serious(canvas, ".wan-panel") == []

    stop = panel.get_by_role("button", name="Stop and keep")
    stop.focus()
    canvas.page.keyboard.press("Enter")
    canvas.page.wait_for_function(f"() => {PANEL}.face.spoken.textContent.startsWith('Stopping')")
    path, headers, body = runs.posted.pop()
    assert (path, headers["x-wan-trainer"], headers["content-type"]) == ("smoke_test/stop", "1", "application/json")
    assert body == {}

    slider = panel.get_by_label("Saved step to preview")
    slider.focus()
    canvas.page.keyboard.press("ArrowLeft")
    canvas.page.wait_for_function(f"() => {PANEL}.player.slider.getAttribute('aria-valuetext').includes('step 50')")
    chart = panel.get_by_role("img")
    chart.focus()
    canvas.page.keyboard.press("ArrowLeft")
    canvas.page.keyboard.press("ArrowLeft")
    canvas.page.wait_for_function(f"() => {PANEL}.plot.reading.textContent.startsWith('step 63:')")
    canvas.screenshot(f"panel-{'vue' if vue else 'litegraph'}")

    canvas.script(NOTIFICATIONS)
    tick = panel.get_by_role("checkbox", name="Notify me when a run ends")
    assert not tick.is_checked(), "nobody is told unless they want it"
    assert canvas.script("() => window.notified") == []
    tick.press("Space")
    ended = {"node": "7", "run": "smoke_test", "state": "done", "text": "done: step 150 of 150", "metrics_lines": 1}
    canvas.script("d => window.app.api.dispatchEvent(new CustomEvent('wan_trainer.status', {detail: d}))", ended)
    told = [["asked"], ["smoke_test", "done: step 150 of 150"]]
    canvas.page.wait_for_function("told => JSON.stringify(window.notified) === JSON.stringify(told)", arg=told)
    tick.press("Space")

    saved = canvas.script("() => window.app.graph.serialize().nodes.find(n => n.type === 'TrainLoRA')")
    before = next(n for n in smoke["nodes"] if n["type"] == "TrainLoRA")
    assert saved["widgets_values"] == before["widgets_values"], "the panel shifted the values"
    assert not [name for name in canvas.to_prompt()["7"]["inputs"] if "trainer" in name]
    assert canvas.our_problems == []
    runs.leave(canvas.page)


@pytest.fixture
def spanish(canvas_server: Any) -> Iterator[None]:
    """The page comes up in Spanish."""
    canvas_server.setting("Comfy.Locale", "es")
    yield
    for name, value in {"Comfy.Locale": "en", **dict.fromkeys(SETTINGS, "")}.items():
        canvas_server.setting(name, value)


# The shipped frontend is Japanese in test_japanese_page.py.
@newer_in_ci
@pytest.mark.usefixtures("spanish")  # first: the page asks for its language once
def test_the_page_speaks_its_language_and_follows_its_settings(canvas: Any, smoke: dict[str, Any]) -> None:
    """And says in it what a run is refused for, in the panel of the node."""
    runs = made_up_runs(canvas)
    canvas.load(smoke)
    shown(canvas, 64)
    canvas.focus("TrainLoRA")
    panel = canvas.page.locator(".wan-panel")
    assert panel.get_by_role("button", name="Detener y conservar").count() == 1
    shows(panel.locator(".wan-headline"), "Entrenando")
    shows(panel, "en curso: paso 64 de 150")
    assert canvas.script(NOTE).startswith("Léeme: ## ¿Está todo instalado?\n\nEntrena un modelo")
    buttons = panel.locator(".wan-button").all()
    assert [b.inner_text() for b in buttons if b.evaluate("b => b.scrollWidth > b.clientWidth")] == [], "cut off"

    look = f"""async theme => {{
      await window.app.extensionManager.setting.set("WanTrainer.Chart.Theme", theme);
      for (let i = 0; i < 3; i++) await new Promise(requestAnimationFrame);
      return [getComputedStyle({PANEL}.plot.canvas).backgroundColor, {PANEL}.plot.dark];
    }}"""
    assert [canvas.script(look, theme) for theme in ("light", "dark")] == [
        ["rgb(255, 255, 255)", False],
        ["rgb(34, 34, 34)", True],
    ]

    defaults = """async ([folder, workflow]) => {
      const { setting } = window.app.extensionManager, { graph } = window.app;
      const value = (node, name) => node.widgets.find(w => w.name === name).value;
      const make = type => { const node = window.LiteGraph.createNode(type); graph.add(node); return node; };
      await setting.set("WanTrainer.NewNodes.DatasetFolder", folder);
      await setting.set("WanTrainer.NewNodes.RunFolder", "anna");
      const made = [value(make("WanVideoDataset"), "folder"), value(make("TrainLoRA"), "run_name")];
      await window.app.loadGraphData(workflow);
      const loaded = window.app.graph._nodes.find(n => n.type === "TrainLoRA");
      return [...made, value(loaded, "run_name")];
    }"""
    menu = canvas.server.get("/object_info/WanVideoDataset")["WanVideoDataset"]["input"]["optional"]["folder"][1]
    last = menu["options"][-1]
    assert last != menu["default"], "nothing to choose"
    assert canvas.script(defaults, [last, smoke]) == [last, "anna", "smoke_test"]

    canvas.script("() => window.app.extensionManager.command.execute('Comfy.ShowSettingsDialog')")
    canvas.page.get_by_text(re.compile(r"^\s*Entrenamiento de Wan\s*$")).last.click()
    canvas.page.get_by_text(re.compile(r"^\s*Tema de los gráficos\s*$")).wait_for()
    canvas.page.keyboard.press("Escape")

    runs.leave(canvas.page)
    canvas.load(tiny_canvas(smoke, TrainLoRA={"run_name": "nobody", "resume": "require"}))
    canvas.watch()
    canvas.run()
    canvas.page.wait_for_function("() => window.seen.execution_error.length", timeout=300_000)
    (refused,) = canvas.seen("execution_error")
    english = "resume is set to require, but there is no run called nobody. Set resume to auto to start a new run."
    assert refused["exception_message"].strip() == english
    canvas.page.keyboard.press("Escape")  # ComfyUI's own dialog, in the words of the server
    canvas.focus("TrainLoRA")
    box = canvas.page.locator(".wan-trouble")
    shows(box, "resume está en require, pero no hay ningún entrenamiento llamado nobody.")
    assert english not in box.inner_text()
    canvas.screenshot("refused-es")
    assert canvas.our_problems == []


@shipped_in_ci
def test_a_storm_of_events_is_one_draw_a_frame(shared: Canvas, smoke: dict[str, Any], shared_runs: Runs) -> None:
    """Which messages a panel draws, and when, is decided by our own code: one frontend is enough."""
    shared.load(smoke)
    shown(shared, 64)
    shared_runs.add("smoke_test_002", whole_run(10_000, 10_000, 500), live=True, state="running", node="7")
    shared_runs.asked.clear()
    draws, frames, points, newest = shared.script(STORM, len(shared_runs.lines["smoke_test_002"]))
    assert newest == 10_000
    assert 0 < draws <= frames
    assert 500 < points <= 2000
    asked = [place for place in shared_runs.asked if place == "smoke_test_002/metrics"]
    assert len(asked) <= 40, f"{len(asked)} requests"


@shipped_in_ci
def test_texts_of_strangers_stay_texts(shared: Canvas, smoke: dict[str, Any], shared_runs: Runs) -> None:
    """Every string of every answer and message is markup; nothing runs and no element of its own appears."""
    texts = itertools.cycle(HOSTILE)
    for name in HOSTILE:
        shared_runs.add(name, whole_run(4, 9, 2), reason=next(texts), variant=next(texts), lora_names=[next(texts)])
        for line in shared_runs.lines[name]:
            line |= {key: next(texts) for key in ("expert", "sample_id", "label", "folder", "reason") if key in line}
        shared_runs.summaries[name] |= {
            "state": next(texts),
            "expert": next(texts),
            "memory": {next(texts): {"peak": 9}},
        }
    shared.load(smoke)
    shared.page.locator(TAB).first.click()
    listed = shared.page.locator(".wan-run-name")
    shared.page.wait_for_function(
        "n => document.querySelectorAll('.wan-run-name').length === n", arg=len(shared_runs.summaries)
    )
    for box in listed.get_by_role("checkbox").all()[:5]:
        box.check()
    shared_runs.deny = HOSTILE[0]
    listed.nth(0).get_by_role("button").click()
    card = shared.page.locator(".wan-run")
    card.get_by_role("button", name="Delete …").click()
    card.get_by_role("button", name="Delete", exact=True).last.click()
    for name in HOSTILE:
        shared.script(
            """([run, text]) => {
              const node = window.app.graph._nodes.find(n => n.type === "TrainLoRA");
              node.widgets.find(w => w.name === "run_name").value = run;
              for (const stage of ["load", "train", text]) {
                const detail = { node: "7", run, text, stage, sample: text, state: "running" };
                window.app.api.dispatchEvent(new CustomEvent("wan_trainer.status", { detail }));
              }
            }""",
            [name, name],
        )
        shared.page.wait_for_function(f"n => {PANEL}.run === n && {PANEL}.history.points > 0", arg=name)
        shared.page.wait_for_timeout(150)
    shared.script("() => { document.querySelector('.wan-details').open = true; }")
    shared.page.get_by_role("button", name="Open folder").focus()
    shared.page.keyboard.press("Enter")
    shared.page.wait_for_function(f"text => {PANEL}.line.said.textContent === text", arg=HOSTILE[0])
    strange = shared.script(
        """() => {
          const own = [...document.querySelectorAll(".wan-panel, .wan-runs")];
          const all = own.flatMap(one => [...one.querySelectorAll("*")]);
          const bad = all.filter(e => /^(img|script|svg|iframe|object|embed|a|style|link)$/i.test(e.tagName));
          const wired = all.filter(e => [...e.attributes].some(a => /^on|^srcdoc$/.test(a.name)));
          const videos = [...document.querySelectorAll(".wan-panel video")];
          const away = videos.filter(v => v.src && !v.src.startsWith(location.origin));
          return [own.length, bad.length + wired.length + away.length, window.hacked ?? "nothing ran"];
        }"""
    )
    assert strange == [2, 0, "nothing ran"]
    shows(shared.page.locator(".wan-runs"), HOSTILE[0])


@shipped_in_ci
def test_the_tab_compares_opens_copies_resumes_and_asks_before_it_deletes(canvas: Any, smoke: dict[str, Any]) -> None:
    runs = made_up_runs(canvas)
    runs.add("halfway", whole_run(40, 90, 20), reason="Cancel was pressed")
    runs.add("halfway_ema0.1", whole_run(40, 90, 20), lora_names=[], state="done")
    runs.workflows["halfway"] = smoke
    canvas.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    # The page's colours change before any list was read: all is drawn, and nothing is known yet.
    canvas.script("() => { document.body.dataset.theme = 'other'; return new Promise(requestAnimationFrame); }")
    canvas.page.wait_for_timeout(100)
    canvas.page.locator(TAB).first.click()
    canvas.page.get_by_label("Compare other").check()
    canvas.page.get_by_label("Compare smoke_test").check()
    legend = canvas.page.locator(".wan-runs .wan-legend li span[title]")
    canvas.page.wait_for_function("() => document.querySelectorAll('.wan-runs .wan-legend li').length === 2")
    assert legend.all_inner_texts() == ["other", "smoke_test"]
    assert canvas.page.locator(".wan-said").inner_text() == "", "something is said about no runs"
    assert serious(canvas, ".wan-runs") == []
    canvas.screenshot("tab")

    open_run(canvas.page, "halfway_ema0.1").get_by_role("button", name="Use as LoRA").click()
    shows(canvas.page.locator(".wan-said"), "is the run's LoRA now.")
    assert [path for path, *_ in runs.posted] == ["halfway_ema0.1/use"]
    runs.posted.clear()
    card = open_run(canvas.page, "halfway")
    assert not card.get_by_role("button", name="Use as LoRA").is_visible(), "it is among the LoRAs"
    shows(card, "Cancel was pressed")
    card.get_by_role("button", name="Copy LoRA name").click()
    canvas.page.wait_for_function(
        "async () => await navigator.clipboard.readText() === 'wan_trainer/halfway.safetensors'"
    )
    queued: list[Any] = []

    def keep(route: Any) -> None:
        """What is queued is looked at here; in the server it would train beside the next test."""
        if route.request.method != "POST":
            route.continue_()
            return
        queued.append(route.request.post_data_json)
        route.fulfill(json={"prompt_id": "kept", "number": 1, "node_errors": {}})

    canvas.page.route("**/prompt", keep)
    card.get_by_role("button", name="Resume").click()
    canvas.page.wait_for_function("() => window.app.graph._nodes.some(n => n.type === 'TrainLoRA')")
    deadline = time.monotonic() + PATIENCE_MS / 1000
    while not queued and time.monotonic() < deadline:
        canvas.page.wait_for_timeout(100)
    assert "TrainLoRA" in [node["class_type"] for node in queued[0]["prompt"].values()]

    assert (
        open_run(canvas.page, "smoke_test").get_by_role("button", name="Delete …").get_attribute("aria-disabled")
        == "true"
    )
    open_run(canvas.page, "halfway").get_by_role("button", name="Delete …").click()
    canvas.page.keyboard.press("Enter")  # the answer at hand is no
    assert runs.posted == []
    card.get_by_role("button", name="Delete …").click()
    card.get_by_role("alertdialog").get_by_role("button", name="Delete", exact=True).click()
    canvas.page.wait_for_function("() => document.querySelectorAll('.wan-run-name').length === 3")

    room = {"bytes": 3 << 30, "spare": 2 << 30, "freed": 2 << 30}
    asked: list[Any] = []

    def cache(route: Any) -> None:
        if route.request.method == "POST":
            asked.append(route.request.post_data_json)
        route.fulfill(json=room)

    canvas.page.route(re.compile(r"/wan_trainer/cache"), cache)
    canvas.page.get_by_role("button", name="Cached clips …").click()
    cached = canvas.page.get_by_role("alertdialog", name="Cached clips")
    shows(cached, "use 3.0 GiB, and no unfinished run needs 2.0 GiB of that. Delete these?")
    canvas.screenshot("tab-cached")
    assert serious(canvas, ".wan-cached") == []
    cached.get_by_role("button", name="Delete 2.0 GiB").click()
    shows(canvas.page.locator(".wan-said"), "2.0 GiB are free again.")
    assert asked == [{"confirm": True}]
    assert [(path, body) for path, _, body in runs.posted] == [("halfway/delete", {"confirm": "halfway"})]
    assert canvas.our_problems == []


def sweep(page: Any, count: int) -> Runs:
    """That many runs of sweeps, of which only the list knows anything."""
    runs, lines = Runs(), whole_run(90, 90, 30)
    for number in range(count):
        settings = {"rank": (8, 16, 32)[number % 3], "learning_rate": (5e-5, 1e-4)[number % 2], "seed": number // 6}
        name = "_".join([f"fox{number // 60}", *(f"{key}_{value:g}" for key, value in settings.items())])
        facts = {"eval_best": 0.2 + (number * 37 % 100) / 1000, "eval_best_step": 60, "settings": settings}
        state = "failed" if number % 10 == 9 else "done"
        runs.add(name, lines, updated=1_800_000_000 - number, state=state, **facts)
    runs.serve(page)
    return runs


END_BEFORE_A_FRAME = """button => {
  button.click();
  const first = document.querySelector(".wan-open");
  first.focus();
  first.dispatchEvent(new KeyboardEvent("keydown", { key: "End", bubbles: true }));
}"""


@newer_in_ci
def test_an_empty_tab_says_what_will_stand_there_and_how_to_begin(shared: Canvas) -> None:
    """Also after it was read again; and the button of cached clips is there where some are."""
    page = shared.page
    page.bring_to_front()
    runs, room = Runs(), {"version": 1, "bytes": 0, "spare": 0}
    runs.serve(page)
    page.route("**/wan_trainer/cache", lambda route: route.fulfill(json=room))
    if not page.locator(".wan-runs").is_visible():
        page.locator(TAB).first.click()
    words = page.locator(".wan-none")
    for _ in range(3):
        with page.expect_response("**/wan_trainer/cache"):
            page.get_by_role("button", name="Refresh").click()
        words.wait_for()
        shared.drawn()
        assert words.is_visible()
        shows(words, "No runs yet. Each training is listed here", "Templates → Extensions → ComfyUI-WanTrainer")
        assert not page.get_by_role("button", name="Cached clips …").is_visible()
    assert serious(shared, ".wan-runs") == []
    shared.screenshot("tab-empty")
    room["bytes"] = 1 << 30
    page.get_by_role("button", name="Refresh").click()
    page.get_by_role("button", name="Cached clips …").wait_for()
    runs.add("first", whole_run(90, 90, 30), state="done")
    page.get_by_role("button", name="Refresh").click()
    page.locator(".wan-run-name").first.wait_for()
    assert not words.is_visible()
    assert page.get_by_role("button", name="Cached clips …").is_visible()
    runs.leave(page)


@shipped_in_ci
def test_two_thousand_runs_are_found_compared_and_saved_with_keys_alone(shared: Canvas) -> None:
    """The frontend gives the tab an empty element, all in it is ours: one is enough."""
    page = shared.page
    page.bring_to_front()
    runs = sweep(page, 2000)
    names = page.locator(".wan-run-name")
    if not page.locator(".wan-runs").is_visible():
        page.locator(TAB).first.click()
    page.get_by_role("button", name="Refresh").click()
    page.get_by_text("2000 runs").wait_for()
    assert names.count() < 60, "rows nobody sees are drawn"
    page.locator(".wan-open").first.focus()
    page.keyboard.press("End")
    focused = "document.activeElement.getAttribute('aria-label')"
    drawn = "() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(true))))"
    assert page.evaluate(focused) == "fox33_rank_16_learning_rate_0.0001_seed_333"
    page.keyboard.press("ArrowUp")
    page.keyboard.press("Enter")
    shows(page.locator(".wan-run"), "fox33_rank_8_learning_rate_5e-05_seed_333", "step 90 / 90")
    page.locator(".wan-run").get_by_role("button", name="Close").press("Enter")
    assert page.evaluate(focused) == "fox33_rank_8_learning_rate_5e-05_seed_333", "back where it was opened"
    page.get_by_role("button", name="Group by name").evaluate(END_BEFORE_A_FRAME)
    assert page.evaluate(focused) == "fox33_rank_16_learning_rate_0.0001_seed_333", "the groups were not drawn yet"
    page.get_by_role("button", name="Group by name").press("Enter")

    page.get_by_label("Find runs by name or setting").fill("fox3 rank:16")
    hint, state = page.locator(".wan-find-help").bounding_box(), page.get_by_label("Runs of this state").bounding_box()
    assert hint["y"] >= state["y"] + state["height"], "the help of the field covers the filters"
    page.get_by_label("Runs of this state").select_option("done")
    page.locator(".wan-table").get_by_role("button", name="best eval").press("Enter")
    page.evaluate(drawn)
    found = page.locator(".wan-found .wan-count").first.inner_text()
    lowest = [float(text) for text in page.locator('td[data-key="eval_best"]').all_inner_texts()]
    assert lowest == sorted(lowest)
    assert len(lowest) > 10
    best = page.locator('td[data-best="true"][data-key="eval_best"]')
    assert set(map(float, best.all_inner_texts())) == {lowest[0]}
    assert serious(shared, ".wan-runs") == []
    for box in page.locator(".wan-run-name input").all()[:10]:
        box.press("Space")
    legend = page.locator(".wan-runs .wan-legend li")
    page.wait_for_function("() => document.querySelectorAll('.wan-runs .wan-legend li').length === 10")
    inks = legend.locator(".wan-swatch").evaluate_all("all => all.map(one => one.style.color + one.dataset.dash)")
    assert len(set(inks)) == 10, inks
    page.get_by_role("button", name="Group by name").press("Enter")
    shows(page.locator(".wan-group").first, "fox3", "runs")
    assert serious(shared, ".wan-runs") == []
    shared.screenshot("compared")
    with page.expect_download() as saved:
        page.get_by_role("button", name="CSV", exact=True).press("Enter")
    table = saved.value.path().read_text(encoding="utf-8").splitlines()
    assert found.startswith(f"{len(table) - 1} of"), (found, len(table))
    with page.expect_download() as saved:
        page.get_by_role("button", name="Curves as CSV").press("Enter")
    curves = saved.value.path().read_text(encoding="utf-8").splitlines()
    assert len(curves) == 1 + 10 * (90 + 3)
    page.get_by_role("button", name="Untick all").press("Enter")
    page.wait_for_function("() => !document.querySelector('.wan-runs .wan-legend li')")
    assert legend.count() == 0
    page.get_by_label("Find runs by name or setting").fill("")  # other tests list their runs on this page
    page.get_by_label("Runs of this state").select_option("")
    page.get_by_role("button", name="Group by name").press("Enter")
    runs.leave(page)
