"""Which runs are live, where a press goes, and what is left in the history; without a server."""

from __future__ import annotations

import re
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from route_server import Worker, our_module, step_done, write_run

from wan_core.events import to_line
from wan_core.job.config import QUEUE_DONE, RunStatus, write_status
from wan_core.metrics import read_loss_curve

pytestmark = pytest.mark.comfy


@pytest.fixture
def live_runs(pack_nodes: dict[str, Any]) -> Any:
    return our_module(pack_nodes, "engine.live_runs")


def test_presses_before_the_worker_started_are_kept_in_order_and_once(live_runs: Any) -> None:
    run, worker = live_runs.LiveRun(run="cat", node="1", prompt_id="p"), Worker()
    for button in ("save", "stop", "save", "stop"):
        run.press(button)
    with run.listening(worker):
        assert worker.heard == ["save", "stop"]
        run.press("sample")
    run.press("save")  # it has ended
    assert worker.heard == ["save", "stop", "sample"]
    assert run.stop_pressed


def test_a_run_is_live_until_its_node_is_done_however_it_ends(live_runs: Any) -> None:
    runs = live_runs.LiveRuns()
    run = live_runs.LiveRun(run="cat", node="1", prompt_id="p")

    def execute() -> None:
        with runs.entered(run):
            assert runs.get("cat") is run
            assert runs.get("dog") is None
            assert runs.is_used("cat")
            raise RuntimeError("broke")

    with pytest.raises(RuntimeError, match="broke"):
        execute()
    assert runs.get("cat") is None
    assert not runs.is_used("cat")


def test_a_run_used_twice_is_free_after_the_second(live_runs: Any) -> None:
    runs = live_runs.LiveRuns()
    with runs.used("cat"):
        with runs.used("cat"):
            pass
        assert runs.is_used("cat")
    assert not runs.is_used("cat")


def test_the_routes_are_added_once_and_only_to_a_server(
    pack_nodes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = our_module(pack_nodes, "bridge.second_ids").TakenIds([])
    register = partial(our_module(pack_nodes, "routes").register_routes, taken, {})
    monkeypatch.delitem(sys.modules, "server", raising=False)
    assert not register()
    monkeypatch.setitem(sys.modules, "server", SimpleNamespace(PromptServer=type("PromptServer", (), {})))
    assert not register()  # ComfyUI's module was imported, nobody started it

    from aiohttp import web

    heard: list[Any] = []
    server = SimpleNamespace(
        routes=web.RouteTableDef(), app=SimpleNamespace(on_startup=[]), add_on_prompt_handler=heard.append
    )
    monkeypatch.setitem(sys.modules, "server", SimpleNamespace(PromptServer=SimpleNamespace(instance=server)))
    assert register()
    assert not register()
    assert len(heard) == 1
    added = [(route.method, route.path) for route in server.routes]
    assert len(added) == len(set(added)) == 29
    others = {path.partition("{")[0] for _, path in added if not path.startswith("/wan_trainer/runs")}
    assert len(others) == 7, others
    assert {
        "/wan_trainer/ids",
        "/wan_trainer/plan",
        "/wan_trainer/import",
        "/wan_trainer/cache",
        "/wan_trainer/scans/",
    } < others
    assert any(re.fullmatch(r"/extensions/(.+/docs/WanTrainer_)?", path) for path in others), "help of second ids"


def test_a_status_carries_facts_as_they_are_when_it_is_sent(
    pack_nodes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[dict[str, Any]] = []
    instance = SimpleNamespace(send_sync=lambda _event, data: sent.append(data), last_prompt_id="p1")
    monkeypatch.setitem(sys.modules, "server", SimpleNamespace(PromptServer=SimpleNamespace(instance=instance)))
    counts = iter([0, 7])
    progress = our_module(pack_nodes, "bridge.progress")
    node = progress.NodeProgress("1", graph="g", facts=lambda: {"metrics_lines": next(counts)})
    node.say("New run", now=True, run="cat")
    node.say("dropped, because it comes too soon")
    node.say("step 1", now=True)
    assert [(s["run"], s["metrics_lines"]) for s in sent] == [("cat", 0), ("cat", 7)]
    assert {(s["node"], s["graph"], s["prompt_id"]) for s in sent} == {("1", "g", "p1")}


def test_a_storm_of_steps_is_few_messages(pack_nodes: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """By the clock, not by the step: what a client that does not read lets pile up is bounded."""
    progress, sent, clock = our_module(pack_nodes, "bridge.progress"), [], [0.0]
    bar = SimpleNamespace(update_absolute=lambda *_: sent.append("bar"))
    monkeypatch.setattr("comfy.utils.ProgressBar", lambda *_args, **_more: bar)
    instance = SimpleNamespace(send_sync=lambda *_: sent.append("status"))
    monkeypatch.setitem(sys.modules, "server", SimpleNamespace(PromptServer=SimpleNamespace(instance=instance)))
    monkeypatch.setattr(progress.time, "monotonic", lambda: clock[0])
    node = progress.NodeProgress("1")
    events = sys.modules[progress.StepDone.__module__]  # ComfyUI's copy: its classes are others than ours
    for step in range(1, 10_001):
        clock[0] = 100 + step / 1000
        node.on_event(events.parse_event(to_line(step_done(step, 10_000))))
    assert 30 < sent.count("status") <= 10 * 4 + 1
    assert 30 < sent.count("bar") <= 10 * 4 + 1


@pytest.mark.parametrize(
    ("queued", "graph"),
    [({"workflow": {"id": "3011"}}, "3011"), ({"workflow": {}}, ""), ({"workflow": "odd"}, ""), ({}, ""), (None, "")],
)
def test_a_graph_is_known_by_the_id_its_canvas_gave_it(pack_nodes: dict[str, Any], queued: Any, graph: str) -> None:
    assert our_module(pack_nodes, "bridge.progress").graph_of(SimpleNamespace(extra_pnginfo=queued)) == graph


def report(pack_nodes: dict[str, Any], directory: Path, stop_pressed: bool = False) -> dict[str, Any]:
    curve = read_loss_curve(directory / "metrics.jsonl")
    loras = directory.parents[1] / "wan_trainer"
    return our_module(pack_nodes, "runs.facts").run_report(
        directory, curve, 4, loras, variant="2.1 T2V-1.3B", note="a note", stop_pressed=stop_pressed
    )


def test_the_history_says_all_an_api_client_needs(pack_nodes: dict[str, Any], tmp_path: Path) -> None:
    directory = write_run(tmp_path / "wan_trainer", "cat", state="done")
    (tmp_path / "wan_trainer" / "cat.safetensors").write_bytes(b"")
    said = report(pack_nodes, directory)
    assert {key: said[key] for key in ("run", "status", "stopped_by", "step", "steps", "note")} == {
        "run": "cat", "status": "done", "stopped_by": "", "step": 4, "steps": 10, "note": "a note",
    }  # fmt: skip
    assert said["losses"] == [(1, 1.0), (2, 0.5), (3, 1 / 3), (4, 0.25)]
    assert (said["loss_first"], said["loss_last"]) == (1.0, 0.25)
    assert said["eval_losses"] == [(2, 0.5), (4, 0.25)]
    assert [Path(name) for name in said["lora_names"]] == [Path("wan_trainer/cat.safetensors")]
    assert said["lora_name"] == said["lora_names"][0]
    assert said["use"] == [{"lora": said["lora_name"], "model": "wan.safetensors"}]
    assert said["template"] == "text_to_video_wan"
    assert [sample["filename"] for sample in said["samples"]] == ["step-000000_p0.mp4", "step-000002_p0.mp4"]


@pytest.mark.parametrize(
    ("state", "reason", "pressed", "stopped_by"),
    [
        ("done", "", False, ""),
        ("done", "", True, ""),
        ("stopped", "Stop and keep was pressed", True, "stop_and_keep"),
        ("stopped", f"2 {QUEUE_DONE}", False, "steps_this_queue"),
        ("stopped", "signal SIGTERM", False, "other"),
    ],
)
def test_ways_to_end_are_told_apart(
    pack_nodes: dict[str, Any], tmp_path: Path, state: str, reason: str, pressed: bool, stopped_by: str
) -> None:
    directory = write_run(tmp_path / "wan_trainer")
    write_status(directory, RunStatus(state=state, step=4, steps=10, reason=reason))
    assert report(pack_nodes, directory, pressed)["stopped_by"] == stopped_by


@pytest.mark.parametrize("count", [0, 1, 499, 500, 501, 100_000])
def test_a_long_curve_is_thinned_and_keeps_its_ends(pack_nodes: dict[str, Any], count: int) -> None:
    points = [(step, 1 / step) for step in range(1, count + 1)]
    kept = our_module(pack_nodes, "runs.facts").thinned(points)
    assert len(kept) == min(count, 500)
    assert kept == sorted(set(kept))
    assert kept[:1] == points[:1]
    assert kept[-1:] == points[-1:]
