"""Buttons of a run that trains in a real ComfyUI, the client of docs/use/headless.md, and runs of another process."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import urllib.error
from pathlib import Path
from typing import Any

import av
import pytest
from comfy_server import ComfyServer
from graphs import TRAIN, Graph, folder_of, run_of, training_graph
from route_server import serve
from steering import PATIENCE_S, endless, live_run, press, records, until

from tests.support.preforked import PreforkedEngine
from tests.support.tiny_run import make_run
from wan_core.train import SaveStore, TrainConfig

pytestmark = [pytest.mark.comfy, pytest.mark.slow, pytest.mark.lasts(5)]


def test_save_preview_stop_and_keep_resume_delete(comfy: ComfyServer) -> None:
    with comfy.events() as seen:
        prompt = comfy.queue(endless("steered"))
        run = until(comfy, prompt, lambda: live_run(comfy, "steered", 2))
        assert (run["state"], run["node"], run["prompt_id"]) == ("running", TRAIN, prompt)
        assert run["seconds_left"] > 0

        assert press(comfy, "steered", "save") == {"sent": True}
        (saved,) = until(comfy, prompt, lambda: records(comfy, "steered", "saved"))
        assert SaveStore(folder_of(comfy, "steered")).read(saved["step"]) is not None

        press(comfy, "steered", "sample")
        _, now = until(comfy, prompt, lambda: len(found := records(comfy, "steered", "sample")) > 1 and found)
        clip = comfy.get(f"/api/wan_trainer/runs/steered/samples/{now['sample_id']}")
        place = comfy.base / "temp" / "preview_now.mp4"
        place.write_bytes(clip)
        with av.open(str(place)) as video:
            assert len(list(video.decode(video=0))) == 5

        press(comfy, "steered", "stop")
        entry = comfy.wait(prompt, timeout=PATIENCE_S)

    ended = run_of(comfy, entry)
    assert (ended["run"], ended["status"], ended["stopped_by"]) == ("steered", "stopped", "stop_and_keep")
    assert ended["step"] == len(records(comfy, "steered", "step")) == ended["losses"][-1][0]
    assert comfy.outputs(entry, "loss")["images"], "downstream nodes did not run"
    listed = comfy.get("/models/loras")
    assert set(ended["lora_names"]) <= set(listed)
    assert ended["lora_name"] == os.path.join("wan_trainer", "steered.safetensors")
    lines = (folder_of(comfy, "steered") / "metrics.jsonl").read_bytes().count(b"\n")
    statuses = [status for status in seen.of("wan_trainer.status") if status["node"] == TRAIN]
    assert {(status["run"], status["prompt_id"], status["graph"]) for status in statuses} == {("steered", prompt, "")}
    counts = [status["metrics_lines"] for status in statuses]
    assert (counts[0], counts[-1]) == (0, lines)
    assert counts == sorted(counts)

    stopped = comfy.get("/wan_trainer/runs/steered")
    assert (stopped["state"], stopped["live"], stopped["step"]) == ("stopped", False, ended["step"])
    assert stopped["reason"] == "Stop and keep was pressed"
    with pytest.raises(urllib.error.HTTPError, match="409"):
        press(comfy, "steered", "stop")
    with pytest.raises(urllib.error.HTTPError, match="403"):
        comfy.post("/wan_trainer/runs/steered/delete", {"confirm": "steered"})

    again = endless("steered")
    again[TRAIN]["inputs"]["steps"] = wanted = ended["step"] + 1
    resumed = run_of(comfy, comfy.run(again, timeout=PATIENCE_S))
    assert (resumed["run"], resumed["step"], resumed["status"], resumed["stopped_by"]) == (
        "steered",
        wanted,
        "done",
        "",
    )
    assert len(records(comfy, "steered", "step")) == wanted

    assert press(comfy, "steered", "delete", {"confirm": "steered"})["kept"] == []
    assert not folder_of(comfy, "steered").exists()


def test_the_client_of_the_docs_queues_follows_and_reads_the_result(
    comfy: ComfyServer, repo: Path, tmp_path: Path
) -> None:
    text = (repo / "docs" / "use" / "headless.md").read_text(encoding="utf-8")
    (client,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert len([line for line in client.splitlines() if line.strip()]) <= 20
    (tmp_path / "client.py").write_text(client, encoding="utf-8")

    def run(graph: Graph, server: str = comfy.url) -> subprocess.CompletedProcess[str]:
        (tmp_path / "graph.json").write_text(json.dumps(graph), encoding="utf-8")
        command = [sys.executable, "client.py", server, "graph.json"]
        environment = {**os.environ, "no_proxy": "*"}
        return subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=PATIENCE_S, check=False
        )

    part = run(training_graph("scripted", steps_this_queue=2))
    assert part.returncode == 3, part.stderr
    assert part.stdout.splitlines()[-1].startswith("scripted: stopped at step 2, LoRA")
    whole = run(training_graph("scripted"))
    assert whole.returncode == 0, whole.stderr
    assert whole.stdout.splitlines()[-1].startswith("scripted: done at step 4, LoRA")
    refused = run(training_graph("scripted", rank=8, resume="require"))
    assert refused.returncode == 1
    assert "resume is set to require" in refused.stderr
    behind = training_graph("scripted")
    behind["grid"] = {
        "class_type": "ValidateVideo",
        "inputs": {"run": [TRAIN, 0], "vae": ["vae", 0], "saved_steps": "3"},
    }
    failed = run(behind)
    assert failed.returncode == 1, "the LoRA is there, what was asked for is not"
    assert "scripted: done at step 4" in failed.stdout
    assert "Not finished: " in failed.stderr
    assert "has no saved step 3. It has: 2, 4." in failed.stderr
    nothing = run(training_graph("scripted", folder="/etc"))
    assert nothing.returncode == 1
    assert "HTTP Error 400" in nothing.stderr
    assert "roots.json" in nothing.stderr, "the reason is what the answer is for"
    assert "Traceback" not in nothing.stderr
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # and never listens
        gone = run(training_graph("scripted"), f"http://127.0.0.1:{nobody.getsockname()[1]}")
    assert gone.returncode == 1
    assert re.fullmatch(r".* refused.*: the server is gone\. Saved steps stand: .*\n", gone.stderr)


def test_a_run_of_another_process_is_running_but_not_live(
    pack_nodes: dict[str, Any], preforked: PreforkedEngine | None, tmp_path: Path
) -> None:
    tiny = make_run(tmp_path, train=TrainConfig(steps=100_000, save_every_n_steps=100_000, preview_every_n_steps=0))
    python = str(preforked.python) if preforked else sys.executable
    root = Path(__file__).resolve().parents[2]
    program = [python, "-X", "utf8", str(root / "wan_core" / "launch.py")]
    command = [*program, "train", str(tiny.directory), "--roots", str(tiny.roots_file)]
    with (
        serve(pack_nodes, tiny.directory.parent, tmp_path) as server,
        subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as worker,
    ):
        assert worker.stdout is not None
        while b'"event": "step"' not in worker.stdout.readline():
            assert worker.poll() is None
        (run,) = server.get("/runs").data["runs"]
        pressed = server.post("/runs/tiny/stop").status
        worker.terminate()
        worker.stdout.read()
        worker.wait(60)
        (after,) = server.get("/runs").data["runs"]
    assert (run["id"], run["state"], run["live"], run["prompt_id"]) == ("tiny", "running", False, None)
    assert run["step"] >= 1
    assert pressed == 409
    assert (after["state"], [after["step"]]) == ("stopped", SaveStore(tiny.directory).steps())
