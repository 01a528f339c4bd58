"""Twenty hostile workflows opened, ten hostile LoRAs and ten hostile recipes dropped: nothing runs, nothing leaves.

The server's own import path leads to the folders that an upload can fill, as it does for whoever keeps ComfyUI's
folders where they are. An audit hook in the server and in its workers hears every connection.
"""

from __future__ import annotations

import base64
import copy
import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from comfy_server import ComfyServer
from environment import CACHE, OTHER_FRONTEND
from world import tiny_graph

from tests.browser.conftest import Canvas, lora_with

pytestmark = [pytest.mark.browser, pytest.mark.soak]

FOLDERS = ("input", "output", "temp", "user", "models")
LONGEST_WAIT_S = 5.0
"""until another request is answered; a server that is held does not answer at all"""
HOOK = """
import sys
def heard(event, arguments):
    if event == "socket.connect" and isinstance(arguments[1], tuple):
        host = str(arguments[1][0])
        if not (host.startswith("127.") or host in ("localhost", "::1", "0.0.0.0")):
            with open({file!r}, "a") as out:
                out.write(host + "\\n")
    elif event == "os.system":
        with open({file!r}, "a") as out:
            out.write(str(arguments) + "\\n")
sys.addaudithook(heard)
"""
EVIL = """
from pathlib import Path
Path({file!r}).open("a").write(__name__ + "\\n")
raise SystemExit(3)
"""
COLONS = "/ho" + "me/x/" + ":" * 400_000  # in two: no file of ours holds such a path
SLOW = "(?x)(?:.|.|.|.) +!"


class Stranger:
    """A server that strangers' files are opened on, and what must stay as it is."""

    def __init__(self, base: Path, start: Callable[[Path, dict[str, str]], ComfyServer]) -> None:
        self.ran, self.left = base / "ran.txt", base / "left.txt"
        watch = base / "watch"
        watch.mkdir()
        (watch / "sitecustomize.py").write_text(HOOK.format(file=str(self.left)), encoding="utf-8")
        for folder in (*FOLDERS, "."):
            (base / folder).mkdir(exist_ok=True)
            for name in ("evil", "pytorch_optimizer", "prodigyopt", "schedulefree"):
                (base / folder / f"{name}.py").write_text(EVIL.format(file=str(self.ran)), encoding="utf-8")
        self.server = start(base, {"PYTHONPATH": os.pathsep.join((str(watch), str(base)))})
        self.waits: list[tuple[float, str]] = []

    def alive(self, after: str) -> None:
        """The server answers a request about something else."""
        began = time.monotonic()
        self.server.get("/system_stats", timeout=60)
        self.waits.append((time.monotonic() - began, after))

    def figures(self, line: str) -> None:
        """Adds a line to what a person reads after a soak run."""
        with (CACHE / "strangers.txt").open("a", encoding="utf-8") as out:
            out.write(line + "\n")

    def check(self) -> None:
        assert not self.ran.exists(), self.ran.read_text(encoding="utf-8")
        assert not self.left.exists(), self.left.read_text(encoding="utf-8")
        longest, after = max(self.waits)
        self.figures(f"longest wait of another request: {longest:.3f} s, after {after}")
        assert longest < LONGEST_WAIT_S, after


@pytest.fixture
def stranger(frontend: str, comfy_base: Callable[..., Path], comfyui_tree: Path, chromium: Any) -> Iterator[Stranger]:
    root = None if frontend == "shipped" else CACHE / f"frontend-{OTHER_FRONTEND}"

    def start(base: Path, env: dict[str, str]) -> ComfyServer:
        server = ComfyServer(base, comfyui=comfyui_tree, front_end_root=root, env=env).start()
        server.setting("Comfy.TutorialCompleted", True)
        server.setting("Comfy.Workflow.ShowMissingModelsWarning", False)
        return server

    made = Stranger(comfy_base("stranger"), start)
    yield made
    made.server.stop()


def hostile_graphs(shipped: dict[str, Any]) -> dict[str, Any]:
    """Returns graphs of the API by what is hostile in them."""

    def graph(settings: dict[str, Any] | None = None, **changes: dict[str, Any]) -> dict[str, Any]:
        found = tiny_graph(copy.deepcopy(shipped), **changes)
        found["90"] = {"class_type": "WanTrainSettings", "inputs": settings or {}}
        train = next(body for body in found.values() if body["class_type"] == "TrainLoRA")
        train["inputs"]["settings"] = ["90", 0]
        return found

    def custom(path: Any) -> dict[str, Any]:
        return graph({"optimizer": "custom", "optimizer_class": path})

    classes = (
        *(f"{folder}.evil.X" for folder in FOLDERS),
        *("certifi.__main__.X", "numpy.f2py.__main__.X", "torch.utils.model_dump.__main__.X", "main.X"),
        *("pytorch_optimizer.X", "prodigyopt.Prodigy", "server.PromptServer"),
    )
    quantized = graph()
    quantized["91"] = {"class_type": "Fp8Quantize", "inputs": {"model": ["1", 0], "include": SLOW}}
    return {
        **{f"class {path}": custom(path) for path in classes},
        "slow rank pattern": graph({"rank_patterns": f"{SLOW} = 4"}),
        "slow rate pattern": graph({"lr_patterns": f"{SLOW} = 0.5"}),
        "slow target": graph({"lora_targets": SLOW}),
        "slow include": quantized,
        "long prompt": graph(WanPreviewSettings={"prompts": COLONS}),
        "long run name": graph(TrainLoRA={"run_name": "../" * 4000 + "evil"}),
        "folder elsewhere": graph(WanVideoDataset={"folder": "../../../../etc"}),
        "address as a file": graph(WanVideoDataset={"folder": "//evil.invalid/share"}),
    }


def hostile_loras(graphs: dict[str, Any], canvas: Canvas) -> dict[str, bytes]:
    """Returns files by what is hostile in them: graphs in their headers, as the canvas and as the API has them."""
    found: dict[str, bytes] = {}
    for name in ("class input.evil.X", "class certifi.__main__.X", "slow target", "long prompt"):
        canvas.load_api(graphs[name])
        drawn = canvas.script("async () => (await window.app.graphToPrompt()).workflow")
        found[name] = lora_with({"workflow": json.dumps(drawn)})
    api = json.dumps(graphs["class main.X"])
    return {
        **found,
        "API graph": lora_with({"prompt": api}),
        "long key": lora_with({}, **{"a." * 50_000: {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}),
        "deep": lora_with({"workflow": "[" * 100_000}),
        "digits": lora_with({"workflow": '{"nodes": [], "last_node_id": ' + "9" * 100_000 + "}"}),
        "no header": b"\xff" * 64,
        "header that is longer than the file": (1 << 40).to_bytes(8, "little") + b"{}",
    }


def hostile_recipes() -> dict[str, tuple[str, str]]:
    """Returns file name and text by what is hostile in them."""
    toml = (
        "[model]\ntype = 'wan'\nckpt_path = 'x'\n[optimizer]\ntype = 'input.evil.X'\nlr = 1e-4\n"
        "[adapter]\ntype = 'lora'\nrank = 8\n"
    )
    yaml = (
        "job: extension\nconfig:\n  process:\n    - type: sd_trainer\n"
        "      model: {arch: wan21, name_or_path: x}\n"
        "      network: {type: lora, linear: 8}\n      train: {optimizer: input.evil.X, steps: 10}\n"
    )
    command = "accelerate launch src/musubi_tuner/wan_train_network.py --task t2v-14B --dit x.safetensors"
    simple = {"model_family": "wan", "model_type": "lora", "optimizer": "input.evil.X", "lora_rank": 8}
    return {
        "TOML with a class": ("a.toml", toml),
        "YAML with a class": ("b.yaml", yaml),
        "command with a class": ("c.sh", f"{command} --optimizer_type input.evil.X\n"),
        "command in a command": ("d.sh", f"{command} --optimizer_type $(touch evil) --output_name `touch evil`\n"),
        "JSON with a class": ("e.json", json.dumps(simple)),
        "TOML of dots": ("f.toml", "a." * 100_000 + "a = 1"),
        "YAML of brackets": ("g.yaml", "model: " + "[" * 200_000),
        "YAML with an object": ("h.yaml", "config: !!python/object/apply:os.system ['touch evil']\n"),
        "many digits": ("i.toml", f"[model]\ntype = 'wan'\n[optimizer]\nlr = {'9' * 5000}\n"),
        "one long line": ("j.sh", f"{command} --output_name {'x' * 900_000}\n"),
    }


DROP = """([name, bytes]) => {
  const data = Uint8Array.from(atob(bytes), c => c.charCodeAt(0));
  const carried = new DataTransfer();
  carried.items.add(new File([data], name));
  const drop = { bubbles: true, cancelable: true, clientX: 900, clientY: 500, dataTransfer: carried };
  (window.app.canvasEl ?? window.app.canvas.canvas).dispatchEvent(new DragEvent("drop", drop));
}"""


@pytest.mark.parametrize("vue", [False, True], ids=["classic", "Nodes 2.0"])
def test_what_strangers_send_runs_nothing_and_leaves_the_page_usable(
    stranger: Stranger, repo: Path, chromium: Any, vue: bool
) -> None:
    stranger.server.setting("Comfy.VueNodes.Enabled", vue)
    context = chromium.new_context(viewport={"width": 1600, "height": 1000})
    context.set_default_timeout(120_000)
    page = Canvas(context.new_page(), stranger.server, CACHE / "screenshots" / "strangers")
    elsewhere: set[str] = set()
    page.page.on("request", lambda request: elsewhere.add(urlsplit(request.url).hostname or ""))
    page.open()
    page.page.wait_for_timeout(2000)
    usual = set(elsewhere)
    shipped = json.loads((repo / "workflows" / "api" / "08_smoke_test.json").read_text(encoding="utf-8"))
    graphs = hostile_graphs(shipped)
    assert len(graphs) >= 20

    def looked(name: str) -> None:
        page.page.wait_for_timeout(700)  # the page asks for a plan 0.3 s after a graph is there
        stranger.alive(name)

    for name, graph in graphs.items():
        page.load_api(graph)
        looked(name)
    for name, data in hostile_loras(graphs, page).items():
        page.script(DROP, [f"{name}.safetensors", base64.b64encode(data).decode()])
        looked(f"LoRA {name}")
    for name, (file, text) in hostile_recipes().items():
        page.script(DROP, [file, base64.b64encode(text.encode()).decode()])
        looked(f"recipe {name}")
    page.load_api(graphs["class certifi.__main__.X"])
    page.page.wait_for_timeout(1500)  # it is what the page restores
    port = stranger.server.port
    stranger.server.stop()
    stranger.server.start(port)
    page.open()
    looked("a restart")
    assert page.extensions()
    context.close()
    assert elsewhere - usual - {"127.0.0.1", ""} == set()
    stranger.check()
