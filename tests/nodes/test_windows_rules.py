"""A ComfyUI and its workers under what Windows refuses of files (tests/support/windows), with files held open."""

from __future__ import annotations

import json
import threading
import time
import urllib.error
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from comfy_server import ComfyServer
from graphs import TRAIN, folder_of, run_of, steps_trained, training_graph
from world import sampling_graph

from tests.support.windows_rules import below, held, windows_rules
from wan_core.train import SaveStore

pytestmark = [pytest.mark.comfy, pytest.mark.soak]


@contextmanager
def read_by_three(comfy: ComfyServer, name: str) -> Iterator[list[int]]:
    """Inside, three readers ask every route of a run; the answers that say an error of ours."""
    ended, faults = threading.Event(), list[int]()

    def read() -> None:
        run = f"/wan_trainer/runs/{name}"
        while not ended.is_set():
            for path in ("/wan_trainer/runs", run, f"{run}/metrics", f"{run}/log", f"{run}/bytes", f"{run}/workflow"):
                try:
                    comfy.get(path)
                except urllib.error.HTTPError as error:
                    faults.extend([error.code] if error.code >= 500 else [])
            with suppress(OSError, LookupError):
                for sample in comfy.get(run)["samples"]:
                    comfy.get(sample["url"])
            time.sleep(0.05)

    readers = [threading.Thread(target=read) for _ in range(3)]
    for reader in readers:
        reader.start()
    try:
        yield faults
    finally:
        ended.set()
        for reader in readers:
            reader.join()


def posted(comfy: ComfyServer, path: str, data: Any) -> tuple[int, Any]:
    try:
        return 200, comfy.post(f"/wan_trainer{path}", data, headers={"X-Wan-Trainer": "1"})
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


def test_a_run_is_trained_read_used_and_deleted(
    comfy_base: Callable[..., Path], own_comfy: Callable[..., ComfyServer]
) -> None:
    base = comfy_base("windows")
    with windows_rules() as rules:
        comfy = own_comfy(base, env={**rules, **below(base)})
        graph = training_graph("Alice", vae=["vae", 0], preview_every_n_steps=2)
        loras = base / "models" / "loras" / "wan_trainer"
        run = folder_of(comfy, "Alice")
        with read_by_three(comfy, "Alice") as faults:
            ended = run_of(comfy, comfy.run(graph))
            assert (ended["status"], ended["lora_name"]) == ("done", "wan_trainer/Alice.safetensors")
            assert len(ended["samples"]) == 3

            graph[TRAIN]["inputs"]["run_name"] = "ALICE"
            ended = run_of(comfy, comfy.run(graph))
            assert ended["lora_name"] == "wan_trainer/Alice.safetensors", "the run is found by other letters"
            assert ended["note"].startswith("Alice is finished at step 4; nothing to train. Its folder is called Alice")
            assert [file.name for file in run.parent.iterdir() if file.name.lower().startswith("alice")] == ["Alice"]

            beside = {**graph, **sampling_graph(ended["lora_name"])}
            graph[TRAIN]["inputs"] |= {"run_name": "Alice", "steps": 5}
            comfy.run(beside)
            graph[TRAIN]["inputs"]["steps"] = 6
            maps = Path(f"/proc/{comfy.pid}/maps").read_text(encoding="utf-8")
            assert str(loras / "Alice.safetensors") in maps, "core's Load LoRA keeps the file mapped"
            assert run_of(comfy, comfy.run(beside))["lora_name"] == "wan_trainer/Alice_000006.safetensors"
            comfy.free()

            graph[TRAIN]["inputs"]["steps"] = 8
            viewed = (run / "status.json", loras / "Alice.safetensors", run / "samples" / "step-000002_p0.mp4")
            with held(*viewed), held(run / "metrics.jsonl", run / "log.txt", run / "workflow.json", kept=True):
                before = (loras / "Alice.safetensors").read_bytes()
                ended = run_of(comfy, comfy.run(graph))
                assert (ended["status"], ended["step"]) == ("done", 8)
                assert ended["lora_name"] == "wan_trainer/Alice_000008.safetensors"
                assert (loras / "Alice.safetensors").read_bytes() == before
                assert comfy.get("/wan_trainer/runs/Alice")["state"] == "done"
                assert json.loads((run / "status.json").read_text())["step"] == 6
            graph[TRAIN]["inputs"]["steps"] = 10
            ended = run_of(comfy, comfy.run(graph))
            assert (ended["lora_name"], ended["step"]) == ("wan_trainer/Alice.safetensors", 10)
            assert json.loads((run / "status.json").read_text())["step"] == 10
            assert not (run / "status.next.json").exists()

            graph[TRAIN]["inputs"] |= {"steps": 100_000, "keep_last_saves": 2}
            prompt = comfy.queue(graph)
            while steps_trained(comfy, "Alice") < 20 and comfy.history(prompt) is None:
                time.sleep(0.1)
            comfy.interrupt()
            assert comfy.error(comfy.wait(prompt, check=False)) == "interrupted"
            stopped = comfy.get("/wan_trainer/runs/Alice")
            assert stopped["state"] == "stopped"
            graph[TRAIN]["inputs"]["steps"] = stopped["step"] + 3
            assert run_of(comfy, comfy.run(graph))["step"] == stopped["step"] + 3
            kept = SaveStore(run).steps()
            assert posted(comfy, "/runs/Alice/use", {"step": kept[0]}) == (
                200,
                {"lora_name": "wan_trainer/Alice.safetensors"},
            )
            files = (run / "samples" / "step-000002_p0.mp4", run / "metrics.jsonl", run / "status.json")
            with held(*files):
                status, said = posted(comfy, "/runs/Alice/delete", {"confirm": "Alice"})
                assert (status, "metrics.jsonl" in said["error"]) == (409, True)
                assert [one["id"] for one in comfy.get("/wan_trainer/runs")["runs"]] == ["Alice"]
            status, said = posted(comfy, "/runs/Alice/delete", {"confirm": "Alice"})
            assert (status, said.get("kept"), run.exists()) == (200, [], False)
            assert comfy.get("/wan_trainer/runs")["runs"] == []
            before = comfy.get("/wan_trainer/cache")
            room = posted(comfy, "/cache/trim", {"confirm": True})[1]
            assert room["bytes"] <= before["bytes"]
        assert faults == []
