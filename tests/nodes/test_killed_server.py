"""ComfyUI is killed in the middle of a run, and a server on the same base takes over: one life after another, since
starting a server is what these claims cost."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import psutil
import pytest
from comfy_server import ComfyServer
from graphs import content, folder_of, run_of, steps_trained, training_graph
from test_cancel import TRAINING, wait_for_status
from world import sampling_graph

from tests.support.preforked import PreforkedEngine
from wan_core.train import SaveStore

pytestmark = [pytest.mark.comfy, pytest.mark.slow, pytest.mark.lasts(25)]

ENDLESS = {"steps": 100_000, "save_every_n_steps": 100_000}
ROUTES = [f"/wan_trainer/runs{path}" for path in ("/again", "/again/metrics", "/again/workflow")]


def test_a_finished_run_trains_nothing_again_and_a_killed_one_resumes(
    own_comfy: Callable[..., ComfyServer], preforked: PreforkedEngine | None, request: pytest.FixtureRequest
) -> None:
    comfy = own_comfy(env=preforked.environment if preforked else None)
    first = first_run(comfy)
    before = content(folder_of(comfy, "again"))
    at_once = run_of(comfy, comfy.run(training_graph("again")))
    comfy.run(sampling_graph(prefix="before"))
    after_another = run_of(comfy, comfy.run(training_graph("again")))
    listed, told = comfy.get("/wan_trainer/runs")["runs"], [comfy.get(path) for path in ROUTES]

    over = request.getfixturevalue("real_engine")  # the worker that loses its server
    saved = kill_while_training(comfy)
    over()
    comfy.start()
    assert comfy.history("none") is None
    assert list((comfy.output / "before").glob("*.png"))
    assert [comfy.get(path) for path in ROUTES] == told
    again = [run for run in comfy.get("/wan_trainer/runs")["runs"] if run["id"] == "again"]
    # In which settings a run differs from the others depends on the others.
    assert [{**run, "settings": {}} for run in again] == [{**run, "settings": {}} for run in listed]
    after_restart = run_of(comfy, comfy.run(training_graph("again")))
    for later in (at_once, after_another, after_restart):
        same = ("run", "status", "step", "lora_name", "eval_loss_first", "eval_loss_last")
        assert {k: later[k] for k in same} == {k: first[k] for k in same}
        assert later["cache"]["latents_encoded"] == later["cache"]["texts_encoded"] == 0
        assert later["cache"]["latents_reused"] == 3
    assert steps_trained(comfy, "again") == 4
    assert content(folder_of(comfy, "again")) == before

    resumed = run_of(comfy, comfy.run(training_graph("orphan", **{**ENDLESS, "steps": saved + 1})))
    assert (resumed["run"], resumed["step"]) == ("orphan", saved + 1)


def first_run(comfy: ComfyServer) -> dict[str, Any]:
    """What TrainLoRA reports of a run of four steps, which learns and says how long its stages took."""
    first = run_of(comfy, comfy.run(training_graph("again")))
    assert (first["status"], first["step"], first["steps"]) == ("done", 4, 4)
    assert first["eval_loss_last"] < first["eval_loss_first"]
    assert first["eval_held_out"] is False
    stored = json.loads((folder_of(comfy, "again") / "run.json").read_text(encoding="utf-8"))
    assert stored["train"]["discrete_flow_shift"] == 3.0, "what the model stands for, as a number"
    assert first["cache"]["latents_encoded"] == 3
    lines = (folder_of(comfy, "again") / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    ended = [record for record in map(json.loads, lines) if record["event"] == "stage_ended"]
    assert [record["stage"] for record in ended[:3]] == ["cache", "start", "load"]
    assert all(record["seconds"] > 0 for record in ended[:3])
    return first


def kill_while_training(comfy: ComfyServer) -> int:
    """Kills the server while it trains `orphan`. The step its worker saved before it ended by itself."""
    with comfy.events() as seen:
        wait_for_status(comfy, seen, comfy.queue(training_graph("orphan", **ENDLESS)), TRAINING)
        workers = [psutil.Process(pid) for pid in comfy.children()]
        assert workers
        comfy.kill()
    _, alive = psutil.wait_procs(workers, timeout=20)
    assert alive == []
    saved = SaveStore(folder_of(comfy, "orphan")).latest()
    assert saved is not None
    assert saved.step >= 1
    return saved.step
