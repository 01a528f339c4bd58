"""The three journeys of docs/measured/journey.md to the first training step: clicks by the page, seconds by the clock.

A new user, somebody who comes from another trainer, and a pipeline engineer.

    OMP_NUM_THREADS=2 .venv/bin/python -m pytest tests/browser/test_first_hour.py

keeps its table in .cache/first_hour.md; with WAN_TRAINER_UPDATE=1 it stands in docs/measured/journey.md. Nobody
thinks or reads here, the models are the tiny ones, and a worker starts as a user's does.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from clips import place_clips
from comfy_server import ComfyServer
from environment import CACHE, OTHER_FRONTEND, ROOT
from world import CLIP, MODEL, VAE, tiny_graph

from tests.browser.conftest import shows, tiny_canvas
from tests.browser.test_fit import BAR
from tests.browser.test_graphs import DROP_TEXTS, ON_CANVAS

pytestmark = [pytest.mark.browser, pytest.mark.soak]

FIRST = "01_wan21_t2v_1.3B_clips"
STEPS = {"steps": 200, "save_every_n_steps": 200, "preview_every_n_steps": 0}
SMALL = {"width": 64, "height": 48, "num_frames": 9}
HEAD = ("who", "page", "clicks", "drops", "keys", "commands", "seconds to Run", "from Run to the first step")
MARK = "<!-- counted -->"
TERMINAL = "<!-- terminal -->"

SHOWN = 12
"""lines of what the client prints that the page shows"""

# Only what a hand does is trusted; files cannot be dropped by one here.
COUNT = """() => {
  window.hands = { clicks: 0, drops: 0, keys: 0 };
  const count = (kind, what, counts) =>
    window.addEventListener(kind, e => { if (counts(e)) window.hands[what] += 1; }, true);
  count("pointerdown", "clicks", e => e.isTrusted);
  count("keydown", "keys", e => e.isTrusted);
  count("drop", "drops", () => true);
}"""
POINTS = (
    """() => (window.app.graph._nodes.find(n => n.type === "TrainLoRA").wanTrainerPanel.history.points ?? 0) >= 1"""
)
# The middle of a widget, in pixels of the window.
PLACE_OF = """([type, name]) => {
  const view = window.app.canvas, at = view.canvas.getBoundingClientRect(), { scale, offset } = view.ds;
  const node = window.app.graph._nodes.find(n => n.type === type), widget = node.widgets.find(w => w.name === name);
  const [x, y] = [node.pos[0] + node.size[0] * 0.6, node.pos[1] + widget.last_y + 10];
  return [at.x + (x + offset[0]) * scale, at.y + (y + offset[1]) * scale];
}"""


@pytest.fixture(scope="session")
def preforked() -> None:
    """Workers start as a user's do."""


@pytest.fixture(scope="module")
def table() -> Iterator[list[tuple[str, ...]]]:
    """The rows, written when all are there."""
    rows: list[tuple[str, ...]] = []
    yield rows
    lines = [f"| {' | '.join(row)} |" for row in (HEAD, ("---",) * len(HEAD), *rows)]
    (CACHE / "first_hour.md").write_text("\n".join(lines), encoding="utf-8")
    write_between(MARK, lines)


def write_between(mark: str, lines: list[str]) -> None:
    """Write `lines` between the two marks in docs/measured/journey.md, with WAN_TRAINER_UPDATE=1."""
    if os.environ.get("WAN_TRAINER_UPDATE"):
        page = ROOT / "docs" / "measured" / "journey.md"
        before, _, after = page.read_text(encoding="utf-8").split(mark)
        page.write_text(mark.join([before, "\n".join(["", "", *lines, "", ""]), after]), encoding="utf-8")


class Way:
    """A page from the moment it is there, to the first step."""

    def __init__(self, canvas: Any) -> None:
        self.canvas, self.begun, self.pressed = canvas, time.monotonic(), 0.0
        canvas.script(COUNT)

    def choose(self, node_type: str, name: str, value: str) -> None:
        """Take a choice of a menu on the canvas, by hand."""
        page = self.canvas.page
        page.mouse.click(*self.canvas.script(PLACE_OF, [node_type, name]))
        page.locator(".litecontextmenu .litemenu-entry").get_by_text(value, exact=True).click()

    def run(self) -> None:
        """Press Run and wait for the first step."""
        page = self.canvas.page
        page.get_by_role("button", name="Run", exact=True).first.click()
        self.pressed = time.monotonic()
        page.wait_for_function(POINTS, timeout=120_000, polling=50)
        self.stepped = time.monotonic()

    def row(self, who: str, frontend: str) -> tuple[str, ...]:
        hands = self.canvas.script("() => window.hands")
        counted = [str(hands[name]) for name in ("clicks", "drops", "keys")]
        return (who, frontend, *counted, "0", f"{self.pressed - self.begun:.1f}", f"{self.stepped - self.pressed:.1f}")


def quiet(canvas: Any) -> None:
    """Cancel what trains, and wait until it has ended."""
    canvas.server.interrupt()
    canvas.page.wait_for_function(
        "() => fetch('/queue').then(r => r.json()).then(q => !q.queue_running.length)", timeout=120_000
    )


@pytest.fixture
def named(frontend: str, canvas: Any) -> str:
    canvas.page.set_viewport_size({"width": 2200, "height": 1250})
    return "shipped" if frontend == "shipped" else OTHER_FRONTEND


def test_a_new_user_with_one_card_of_16_gib(
    canvas: Any, workflows: dict[str, Any], named: str, table: list[tuple[str, ...]]
) -> None:
    """The template names the tiny files and a small size; its folder is chosen as in a real one."""
    canvas.server.post("/tiny/card", {"gib": "16"})
    name = f"new-user-{named}"
    tiny = tiny_canvas(
        workflows[FIRST],
        LoadWanModel={"diffusion_model": MODEL},
        VAELoader={"vae_name": VAE},
        WanVideoDataset=SMALL,
        TrainLoRA={**STEPS, "run_name": name},
    )
    canvas.page.route(f"**/{FIRST}.json", lambda route: route.fulfill(body=json.dumps(tiny)))
    way = Way(canvas)
    page = canvas.page
    page.locator(".templates-tab-button, button:has-text('Templates')").first.click()
    page.get_by_text("ComfyUI-WanTrainer", exact=False).first.click()
    card = page.locator(f'[data-testid="template-workflow-{FIRST}"], [data-testid$="{FIRST}"]')
    (card if card.count() else page.get_by_text(FIRST, exact=True)).first.click()
    page.wait_for_function(ON_CANVAS, arg="TrainLoRA")
    page.wait_for_timeout(500)  # the dialog goes
    way.choose("WanVideoDataset", "folder", "clips")
    shows(page.locator(BAR), "Fits: ", "15.0 GiB free")
    way.run()
    table.append(way.row("a new user, one card of 16 GiB: template 01", named))
    canvas.screenshot("first-hour-new-user")
    quiet(canvas)
    canvas.server.post("/tiny/card", {"gib": ""})
    assert canvas.our_problems == []


COMMAND = f"""accelerate launch src/musubi_tuner/wan_train_network.py --task t2v-1.3B --dit models/{MODEL} \\
    --dataset_config my_clips.toml --sdpa --mixed_precision bf16 --optimizer_type adamw --learning_rate 2e-4 \\
    --network_module networks.lora_wan --network_dim 8 --timestep_sampling shift --discrete_flow_shift 3.0 \\
    --max_train_steps 200 --save_every_n_steps 200 --seed 42 --vae models/{VAE} \\
    --output_dir out --output_name "OUTPUT"
"""
CLIPS = """[general]
resolution = [64, 48]
caption_extension = ".txt"
batch_size = 1
enable_bucket = true

[[datasets]]
video_directory = "my_clips"
target_frames = [9]
frame_extraction = "head"
"""


def drop_settings(canvas: Any, command: str) -> None:
    """Drop a training command and its dataset file on the page; that file and the clips lie in ComfyUI's input."""
    folder = canvas.server.base / "input"
    if not (folder / "my_clips").exists():
        place_clips(folder / "my_clips")
    (folder / "my_clips.toml").write_text(CLIPS, encoding="utf-8")

    def with_tiny_encoder(route: Any) -> None:
        answer = route.fetch()
        told = answer.json()
        for node in told["graph"]["nodes"]:
            if node["type"] == "CLIPLoader":
                node |= {"type": CLIP, "widgets_values": [22, "fixed"]}
        route.fulfill(response=answer, json=told)

    canvas.page.route("**/wan_trainer/import", with_tiny_encoder)
    canvas.script(DROP_TEXTS, [["train.sh", command], ["my_clips.toml", CLIPS]])


def test_somebody_who_comes_from_another_trainer(canvas: Any, named: str, table: list[tuple[str, ...]]) -> None:
    """The command and the dataset file of musubi-tuner fall on the page."""
    canvas.open()
    way = Way(canvas)
    drop_settings(canvas, COMMAND.replace("OUTPUT", f"veteran-{named}"))
    canvas.page.wait_for_function(ON_CANVAS, arg="TrainLoRA")
    canvas.page.wait_for_timeout(500)
    way.run()
    table.append(way.row("from musubi-tuner: its command and dataset file dropped", named))
    canvas.screenshot("first-hour-veteran")
    quiet(canvas)
    assert canvas.our_problems == []


def first_line(process: subprocess.Popen[str], pattern: str, said: list[str]) -> float:
    """The moment a process says that line; `said` has the lines before it, too."""
    assert process.stdout is not None
    for line in process.stdout:
        said.append(line)
        if re.search(pattern, line):
            return time.monotonic()
    raise AssertionError("".join(said))


def test_a_pipeline_engineer_without_a_page(
    canvas_server: ComfyServer, frontend: str, repo: Path, tmp_path: Path, table: list[tuple[str, ...]]
) -> None:
    """The client of docs/use/headless.md queues a graph of the API; then one like it from the command line."""
    if frontend != "shipped":
        pytest.skip("no page is opened")
    graph = json.loads((repo / "workflows" / "api" / f"{FIRST}.json").read_text(encoding="utf-8"))
    tiny = tiny_graph(graph, WanVideoDataset=SMALL, TrainLoRA={**STEPS, "run_name": "engineer"})
    (tmp_path / "graph.json").write_text(json.dumps(tiny), encoding="utf-8")
    client = (repo / "docs" / "use" / "headless.md").read_text(encoding="utf-8").split("```python\n")[1].split("```")[0]
    (tmp_path / "client.py").write_text(client, encoding="utf-8")

    def row(who: str, commands: list[list[str]], pattern: str) -> list[str]:
        said: list[str] = []
        begun = time.monotonic()
        for command in commands[:-1]:
            subprocess.run(command, check=True, capture_output=True, cwd=repo)
        started = time.monotonic()
        with subprocess.Popen(commands[-1], stdout=subprocess.PIPE, text=True, cwd=repo) as process:
            stepped = first_line(process, pattern, said)
            assert process.stdout is not None
            said += process.stdout.readlines()
        assert process.returncode == 0
        times = (f"{started - begun:.1f}", f"{stepped - started:.1f}")
        table.append((who, "none", "0", "0", "0", str(len(commands)), *times))
        return said

    python = sys.executable
    asked = [python, str(tmp_path / "client.py"), canvas_server.url, str(tmp_path / "graph.json")]
    said = row("a pipeline engineer: the client of headless.md", [asked], r"engineer: step [1-9]")
    shown = [line.rstrip() for line in said]
    if len(shown) > SHOWN:
        shown = [*shown[: SHOWN // 2], "...", *shown[-SHOWN // 2 :]]
    write_between(TERMINAL, ["```", "$ python client.py http://127.0.0.1:8188 graph.json", *shown, "```"])
    run = canvas_server.base / "output" / "wan_trainer" / "engineer"
    new = [python, "-m", "wan_core", "new", "engineer_8", "--like", str(run), "--runs", str(run.parent)]
    train = [python, "-m", "wan_core", "train", str(run.parent / "engineer_8")]
    row(
        "the same from the command line: `new --like`, `train`", [[*new, "--set", "rank=8"], train], r'"event": ?"step"'
    )
