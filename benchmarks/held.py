"""How long a running ComfyUI does not respond while it handles hostile and large inputs.

    COMFYUI_PATH=... python benchmarks/held.py

A second pack measures every 5 ms, on the server's event loop and in a thread, how late it is scheduled. Only time in
which the server's process used the CPU counts, so that a busy machine adds little: the longest block of the loop, and
the longest hold of the GIL. The goal is 0.2 s, the limit 0.5 s; the first row is an idle server. Writes one result file
to benchmarks/results/.
"""

from __future__ import annotations

import argparse
import json
import struct
import sys
import tempfile
import time
import urllib.error
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / name) for name in ("benchmarks", "scripts", "tests/tiny", "tests/nodes")]

from comfy_server import ComfyServer, PromptRefused, make_base
from result_files import hardware, write_result
from world import CLIP, MODEL, TINY_PACK, VAE, fill_base

CHANGE = {"X-Wan-Trainer": "1"}
GOAL_S, LIMIT_S = 0.2, 0.5
ENDLESS = "(?x)(?:.|.|.|.) +!"
HOME = "/ho" + "me/x/"  # split, because a test refuses such a path in our files
LARGE = 100_000
_WATCH = """
import asyncio, threading, time
from aiohttp import web
from server import PromptServer
EVERY = 0.005
longest = {"loop": 0.0, "lock": 0.0}

def late(name, since, used):
    longest[name] = max(longest[name], min(time.monotonic() - since - EVERY, time.process_time() - used))

def watch():
    while True:
        since, used = time.monotonic(), time.process_time()
        time.sleep(EVERY)
        late("lock", since, used)

async def on_loop(app=None):
    async def ticks():
        while True:
            since, used = time.monotonic(), time.process_time()
            await asyncio.sleep(EVERY)
            late("loop", since, used)
    app["held"] = asyncio.create_task(ticks())

@PromptServer.instance.routes.get("/held")
async def held(request):
    found = dict(longest)
    longest.update(loop=0.0, lock=0.0)
    return web.json_response(found)

PromptServer.instance.app.on_startup.append(on_loop)
threading.Thread(target=watch, daemon=True).start()
NODE_CLASS_MAPPINGS = {}
"""


def write_watch(folder: Path) -> Path:
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text(_WATCH, encoding="utf-8")
    return folder


def write_lora(path: Path, names: list[str]) -> None:
    """Writes a LoRA file with one number for each name."""
    places = {
        name: {"dtype": "F32", "shape": [1, 1], "data_offsets": [4 * n, 4 * n + 4]} for n, name in enumerate(names)
    }
    text = json.dumps(places).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(4 * len(names)))


def write_runs(output: Path) -> None:
    """Writes a hostile run folder: 300 targets that take a second each to compile."""
    folder = output / "wan_trainer" / "stranger"
    folder.mkdir(parents=True, exist_ok=True)
    slow = [r"(?i)[\x00-\U0010ffff]" * 20 + str(number) for number in range(300)]
    run = {"run_name": "stranger", "model": {"base_file": "a:b"}, "data": {"fingerprint": "0"}}
    (folder / "run.json").write_text(json.dumps({**run, "lora": {"targets": slow}}), encoding="utf-8")


class Asked:
    """Sends the requests of the rows to one server."""

    def __init__(self, server: ComfyServer) -> None:
        self.server = server

    def post(self, route: str, data: Any) -> None:
        try:
            self.server.post(route, data, timeout=600, headers=CHANGE)
        except urllib.error.HTTPError as error:
            error.read()

    def plan(self, chain: tuple[Any, ...] = (), **more: Any) -> None:
        first = ["LoadWanModel", {"diffusion_model": MODEL, "device": "cpu"}]
        train = {"rank": 4, "steps": 4, "preview_every_n_steps": 2}
        self.post("/wan_trainer/plan", {"chain": [first, *chain], "train": train, "sizes": [[48, 48, 5]], **more})

    def dropped(self, name: str, text: str) -> None:
        self.post("/wan_trainer/import", {"files": {name: text}})

    def prompt(self, name: str, settings: dict[str, Any], title: str = "") -> None:
        """Queues one step of training; presses Cancel after 5 s."""
        size = {"width": 48, "height": 48, "num_frames": 5}
        train = {"run_name": name, "steps": 1, "rank": 4, "save_every_n_steps": 1, "preview_every_n_steps": 0}
        nodes: dict[str, tuple[str, dict[str, Any]]] = {
            "model": ("LoadWanModel", {"diffusion_model": MODEL, "device": "cpu"}),
            "data": ("WanVideoDataset", {"model": ["model", 0], "folder": "clips", **size}),
            "vae": ("VAELoader", {"vae_name": VAE}),
            "clip": (CLIP, {}),
            "cache": ("CacheLatents", {"dataset": ["data", 0], "vae": ["vae", 0], "clip": ["clip", 0]}),
            "settings": ("WanTrainSettings", settings),
            "train": (
                "TrainLoRA",
                {"model": ["model", 0], "cache": ["cache", 0], "settings": ["settings", 0], **train},
            ),
        }
        graph = {node: {"class_type": kind, "inputs": inputs} for node, (kind, inputs) in nodes.items()}
        extra = {"extra_pnginfo": {"workflow": {"id": name, "nodes": [{"title": title, "widgets_values": [title]}]}}}
        try:
            number = self.server.queue(graph, extra_data=extra)
        except (PromptRefused, urllib.error.HTTPError):
            return
        end = time.monotonic() + 5
        while self.server.history(number) is None:
            if time.monotonic() > end:
                self.server.interrupt()
                end += 5
            time.sleep(0.2)


def rows_of(asked: Asked) -> list[tuple[str, str, Callable[[], object]]]:
    """(route, what is sent, how)."""
    plan, dropped, prompt, server = "/wan_trainer/plan", "/wan_trainer/import", "/prompt", asked.server
    musubi = "accelerate launch wan_train_network.py " + " ".join(f"--network_dim {n}" for n in range(40_000))
    long_list = "datasets:\n" + "  - a\n" * 50_000
    lines = "\n".join(f"a red ball rolling over floor {n} --w 480 --h 832" for n in range(50))
    layers = "\n".join(rf"blocks\.{n}\.ffn\..* = 8" for n in range(400))
    return [
        ("", "nothing, for 5 s", lambda: time.sleep(5)),
        ("/queue", "the queue, 200 times", lambda: [server.get("/queue") for _ in range(200)]),
        (plan, "a usual graph", asked.plan),
        (plan, "50 prompts with sizes of their own", lambda: asked.plan(preview=[0, 0, 0], prompts=[lines, ""])),
        (plan, "60 rank_patterns", lambda: asked.plan(settings={"rank_patterns": layers[:1700].rpartition("\n")[0]})),
        (plan, "rank_patterns that never end", lambda: asked.plan(settings={"rank_patterns": f"{ENDLESS} = 4"})),
        (plan, "include that never ends", lambda: asked.plan((["Fp8Quantize", {"include": ENDLESS}],))),
        (plan, "a LoRA with a key of 92,000 characters", lambda: asked.plan(
            loras=[{"lora": "long.safetensors"}], preview=[0, 0, 0])),
        (plan, "a LoRA of 50,000 tensors", lambda: asked.plan(
            loras=[{"lora": "many.safetensors"}], preview=[0, 0, 0])),
        (plan, "prompts of 3,000 brackets", lambda: asked.plan(preview=[0, 0, 0], prompts=["[" * 3_000, ""])),
        ("/wan_trainer/runs", "a run with 300 targets slow to compile",
            lambda: server.get("/wan_trainer/runs", timeout=600)),
        (dropped, "a command of 40,000 options", lambda: asked.dropped("a.sh", musubi)),
        (dropped, "a YAML list of 50,000 lines", lambda: asked.dropped("a.yaml", long_list)),
        (dropped, "10,000 brackets of YAML", lambda: asked.dropped("a.yaml", "[" * 10_000)),
        (dropped, "a TOML key of 20,000 parts", lambda: asked.dropped("a.toml", "a" + ".a" * 20_000 + " = 1")),
        (dropped, "a number of 100,000 digits", lambda: asked.dropped("a.toml", "a = " + "1" * LARGE)),
        (prompt, "a usual graph", lambda: asked.prompt("usual", {})),
        (prompt, "a note of a path and 100,000 colons", lambda: asked.prompt("colons", {}, HOME + ":" * LARGE)),
        (prompt, "a note of 5 MB", lambda: asked.prompt("note", {}, "a red ball rolling over the floor. " * 150_000)),
        (prompt, "lr_patterns that never end, and Cancel", lambda: asked.prompt(
            "endless", {"lr_patterns": r"(?:.*.*)*! = 4"})),
        (prompt, "400 rank_patterns", lambda: asked.prompt("ranks", {"rank_patterns": layers})),
    ]  # fmt: skip


def measure(server: ComfyServer) -> list[dict[str, Any]]:
    found = []
    for route, what, send in rows_of(Asked(server)):
        server.get("/held", timeout=60)
        began = time.monotonic()
        send()
        took = time.monotonic() - began
        held = server.get("/held", timeout=600)
        found.append({"route": route, "what": what, "seconds": took, **held})
        print(found[-1], flush=True)
    return found


def page_of(found: list[dict[str, Any]]) -> str:
    over = [row for row in found if max(row["loop"], row["lock"]) > LIMIT_S]
    lines = "\n".join(
        f"| {row['route']} | {row['what']} | {row['seconds']:.1f} | {row['loop']:.3f} | {row['lock']:.3f} |"
        for row in found
    )
    return (
        f"# How long a server is held\n\n{hardware()}. Seconds: until the answer; the longest that the event loop did "
        f"not answer; the longest that the interpreter's lock was held. The goal is {GOAL_S} s, the limit {LIMIT_S} s: "
        f"{len(over)} of {len(found)} rows are above it.\n\n"
        f"| route | what was sent | answered after | loop | lock |\n| --- | --- | --- | --- | --- |\n{lines}\n"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        watch = write_watch(Path(folder) / "watch")
        base = make_base(Path(folder) / "base", [TINY_PACK, watch])
        server = ComfyServer(base, env={"WAN_TRAINER_CARD_GIB": "16"})
        fill_base(base, server.comfyui)
        write_lora(
            base / "models" / "loras" / "long.safetensors", ["blocks.0.ffn.0" + ".lora_magnitude_vector.a" * 4_000]
        )
        names = [f"diffusion_model.blocks.{n}.ffn.0.lora_A.weight" for n in range(50_000)]
        write_lora(base / "models" / "loras" / "many.safetensors", names)
        write_runs(base / "output")
        with server:
            found = measure(server)
    write_result("held", {"rows": found}, page_of(found))


if __name__ == "__main__":
    main()
