"""The list of runs is short work, however many there are: what did not change is not read again."""

from __future__ import annotations

import json
import shutil
import time
from typing import Any

import pytest
from route_server import RouteServer, our_module, step_done, write_run

from wan_core.events import Evaluated
from wan_core.job.config import RunStatus, write_status
from wan_core.metrics import JsonlSink

pytestmark = [pytest.mark.comfy, pytest.mark.lasts(2)]


@pytest.mark.parametrize("count", [60, pytest.param(2000, marks=pytest.mark.soak)])
def test_only_what_changed_is_read_again_for_the_list(
    routes: RouteServer, pack_nodes: dict[str, Any], monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    shutil.rmtree(routes.runs)
    one = write_run(routes.runs, "run_0000")
    routes.loras.mkdir(parents=True, exist_ok=True)
    for number in range(1, count):
        shutil.copytree(one, routes.runs / f"run_{number:04d}")
    (routes.runs / "no_run").mkdir()
    (routes.runs / "a_link").symlink_to(one)
    module, reads = our_module(pack_nodes, "routes.recorded"), list[Any]()
    read_run = module._read
    monkeypatch.setattr(module, "_read", lambda *given: reads.append(given) or read_run(*given))

    def ask() -> tuple[list[dict[str, Any]], int, float]:
        """The runs, how many were read from disk, and the CPU seconds of it all."""
        before, began = len(reads), time.process_time()
        runs = routes.get("/runs").data["runs"]
        return runs, len(reads) - before, time.process_time() - began

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
