"""The list of runs is short work, however many there are: what did not change is not read again."""

from __future__ import annotations

import json
import os
import shutil
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from route_server import RouteServer, our_module, step_done, write_run

from wan_core.events import Evaluated
from wan_core.metrics import JsonlSink
from wan_core.run.config import RunStatus, write_status

pytestmark = [pytest.mark.comfy, pytest.mark.lasts(2)]


@pytest.mark.parametrize("count", [60, pytest.param(2000, marks=pytest.mark.soak)])
def test_only_what_changed_is_read_again_for_the_list(
    routes: RouteServer, pack_nodes: dict[str, Any], count: int
) -> None:
    shutil.rmtree(routes.runs)
    one = write_run(routes.runs, "run_0000")
    routes.loras.mkdir(parents=True, exist_ok=True)
    for number in range(1, count):
        shutil.copytree(one, routes.runs / f"run_{number:04d}")
    (routes.runs / "no_run").mkdir()
    (routes.runs / "a_link").symlink_to(one)
    seen = our_module(pack_nodes, "routes.seen_runs").SEEN
    seen.forget()

    def ask() -> tuple[list[dict[str, Any]], int, float]:
        """The runs, how many were read from disk, and the CPU seconds of it all."""
        before, began = seen.reads, time.process_time()
        runs = routes.get("/runs").data["runs"]
        return runs, seen.reads - before, time.process_time() - began

    first, read, _ = ask()
    assert {run["id"] for run in first} == {f"run_{number:04d}" for number in range(count)}
    assert read == count
    again, read, seconds = ask()
    assert (again, read) == (first, 0)
    print(f"{count} runs: {seconds:.2f} CPU s")  # noqa: T201
    assert seconds < 0.5  # 2,000 take 0.14 s; before, 4.6 s

    sink = JsonlSink(routes.runs / "run_0007" / "metrics.jsonl")
    sink(step_done(5, 10))
    sink.close()
    write_status(routes.runs / "run_0008", RunStatus(state="done", step=10, steps=10))
    (routes.loras / "run_0009.safetensors").write_bytes(b"")
    runs, read, _ = ask()
    assert read == 2
    by_id = {run["id"]: run for run in runs}
    assert by_id["run_0007"]["loss"] == 0.2
    assert (by_id["run_0008"]["state"], by_id["run_0008"]["step"]) == ("done", 10)
    assert by_id["run_0009"]["lora_names"] == [f"{routes.loras.name}/run_0009.safetensors"]

    seen.forget()  # the server starts anew
    write_status(routes.runs / "run_0010", RunStatus(state="failed", reason="the disk is full", step=4, steps=10))
    shutil.rmtree(routes.runs / "run_0011")
    write_run(routes.runs, "run_0011", steps=2)
    again, read, seconds = ask()
    assert read == 4, "those that changed since the file was written"
    print(f"{count} runs of a server that has just started: {seconds:.2f} CPU s")  # noqa: T201
    told = {run["id"]: run for run in again}
    assert {name for name in told if told[name] != by_id[name]} == {"run_0010", "run_0011"}
    assert (told["run_0010"]["state"], told["run_0011"]["step"]) == ("failed", 2)


def test_a_list_that_may_not_take_long_says_how_many_runs_are_still_read_and_fills_in(
    routes: RouteServer, pack_nodes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.rmtree(routes.runs)
    for number in range(30):
        write_run(routes.runs, f"run_{number:02d}")
    newest = routes.runs / "run_07" / "metrics.jsonl"
    os.utime(newest, ns=(2**62, 2**62))
    (routes.runs / "damaged").mkdir()
    (routes.runs / "damaged" / "run.json").write_text("{")
    module = our_module(pack_nodes, "routes.seen_runs")
    module.SEEN.forget()
    whole = routes.get("/runs").data
    assert len(whole["runs"]) == 30

    read, reading, may_go_on = module.read_seen, threading.Event(), threading.Event()
    order: list[str] = []

    def slowly(directory: Path, marks: Any) -> Any:
        order.append(directory.name)
        reading.set()
        assert may_go_on.wait(30)
        return read(directory, marks)

    monkeypatch.setattr(module, "read_seen", slowly)
    module.SEEN.forget()
    shutil.rmtree(routes.runs / "_seen")
    first = routes.get("/runs?within=0").data
    assert (first["runs"], first["unread"]) == ([], 31)
    assert reading.wait(30), "it is read on without being asked"
    assert not (routes.runs / "_seen").exists(), "what is known of some is not kept as what is known of all"
    may_go_on.set()
    told, asked = first, 0
    while told["unread"]:
        told, asked = routes.get("/runs?within=0.05").data, asked + 1
        assert len(told["runs"]) + told["unread"] in (30, 31)
        assert asked < 1000
    assert told == {**whole, "unread": 0}
    assert order[0] == "run_07", "the newest first"
    assert module.SEEN.reads == 30
    for wrong in ("", "x", "-1", "1e3", "nan"):
        assert routes.get(f"/runs?within={wrong}").status == 400, wrong


def test_the_file_beside_the_runs_is_believed_only_where_it_is_ours(
    routes: RouteServer, pack_nodes: dict[str, Any]
) -> None:
    for number in range(25):
        write_run(routes.runs, f"more_{number:02d}")
    seen = our_module(pack_nodes, "routes.seen_runs").SEEN
    seen.forget()
    told = routes.get("/runs").data["runs"]
    file = routes.runs / "_seen" / "runs.json"
    kept = json.loads(file.read_text())
    for damage in (
        b"",
        b"[]",
        b"{",
        json.dumps({**kept, "pack": "0.0.0"}).encode(),
        json.dumps({**kept, "runs": {"cat": [[], []]}}).encode(),
        json.dumps({**kept, "runs": {"cat": 1, "../cat": 2}}).encode(),
    ):
        seen.forget()
        file.write_bytes(damage)
        assert routes.get("/runs").data["runs"] == told, damage[:100]
        assert seen.reads == len(told), damage[:100]


def test_a_run_says_its_lowest_evaluation_its_newest_preview_and_its_data(routes: RouteServer) -> None:
    sink = JsonlSink(routes.runs / "cat" / "metrics.jsonl")
    for step, loss in ((5, 0.01), (6, 0.9)):
        sink(Evaluated(step=step, eval_loss=loss))
    sink.close()
    write_run(routes.runs, "bigger")
    config = json.loads((routes.runs / "bigger" / "run.json").read_text())
    config["data"] |= {"num_items": 34, "fingerprint": "ab" * 32}
    (routes.runs / "bigger" / "run.json").write_text(json.dumps(config))
    runs = {run["id"]: run for run in routes.get("/runs").data["runs"]}
    cat = runs["cat"]
    assert (cat["eval_loss"], cat["eval_best"], cat["eval_best_step"]) == (0.9, 0.01, 5)
    assert cat["preview"] == routes.get("/runs/cat").data["samples"][-1]["id"]
    assert [runs[name]["settings"]["data"] for name in ("cat", "bigger")] == ["3 #000000", "34 #ababab"]
