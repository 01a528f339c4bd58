"""What the routes say about runs on disk, and that a page can redraw a whole run from them."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import pytest
import torch
from comfy_server import PACK_NAME, ComfyServer
from route_server import CLIP, RouteServer, Worker, loose, our_module, serve, step_done, write_run
from safetensors.torch import save

from wan_core.cache import LatentCache
from wan_core.events import Evaluated, Marked, to_line
from wan_core.files import atomic_write_json, locked
from wan_core.job.config import RunStatus, read_run, write_status
from wan_core.metrics import JsonlSink
from wan_core.train import SaveStore

pytestmark = pytest.mark.comfy


@pytest.fixture
def routes(pack_nodes: dict[str, Any], tmp_path: Path) -> Iterator[RouteServer]:
    """A server over one stopped run called cat, two of whose LoRAs are published."""
    write_run(tmp_path / "output" / "wan_trainer")
    loras = tmp_path / "models" / "loras" / "wan_trainer"
    loras.mkdir(parents=True)
    for name in ("cat", "cat_000004", "cathedral"):
        (loras / f"{name}.safetensors").write_bytes(b"")
    with serve(pack_nodes, tmp_path / "output" / "wan_trainer", loras) as server:
        yield server


def live_run(pack_nodes: dict[str, Any], name: str = "cat", **settings: Any) -> Any:
    return our_module(pack_nodes, "engine.live_runs").LiveRun(run=name, node="12:3", prompt_id="p1", **settings)


def test_help_of_a_second_id_is_that_of_the_first(comfy: ComfyServer) -> None:
    docs = f"/extensions/{PACK_NAME}/docs"
    for page in ("TrainLoRA.md", "TrainLoRA/ja.md"):
        assert comfy.get(f"{docs}/WanTrainer_{page}") == comfy.get(f"{docs}/{page}")
    for page in ("javascript:x.md", "TrainLoRA/../x.md"):
        with pytest.raises(HTTPError, match="404"):
            comfy.get(f"{docs}/WanTrainer_{page}")


def test_the_list_tells_where_each_run_stands(routes: RouteServer) -> None:
    answer = routes.get("/runs")
    assert (answer.status, answer.data["version"]) == (200, 1)
    (run,) = answer.data["runs"]
    assert run["updated"] > 1.7e9
    names = [Path(name) for name in run.pop("lora_names")]
    assert names == [Path("wan_trainer/cat.safetensors"), Path("wan_trainer/cat_000004.safetensors")]
    assert {key: run[key] for key in run if key != "updated"} == {
        "id": "cat",
        "state": "stopped",
        "step": 4,
        "steps": 10,
        "reached": 4,
        "reason": "Cancel was pressed",
        "loss": 0.25,
        "eval_loss": 0.25,
        "eval_step": 4,
        "eval_held_out": None,
        "eval_expert": "",
        "eval_best": 0.25,
        "eval_best_step": 4,
        "preview": "step-000002_p0",
        "best": None,
        "best_why": "",
        "seconds_per_step": 0.25,  # the median of 0.1 to 0.4
        "seconds_left": None,
        "expert": "auto",
        "variant": "2.1 T2V-1.3B",
        "live": False,
        "settings": {},
        "can_preview": False,
        "node": None,
        "prompt_id": None,
        "memory": {},
    }


def test_the_list_tells_in_which_settings_runs_differ(routes: RouteServer) -> None:
    write_run(routes.runs, "dog", total=20)
    listed = routes.get("/runs").data
    assert {run["id"]: run["settings"] for run in listed["runs"]} == {"cat": {"steps": 10}, "dog": {"steps": 20}}
    assert (listed["common"]["rank"], "steps" in listed["common"]) == (4, False)


def test_memory_is_told_by_device_and_only_a_running_run_holds_any_now(routes: RouteServer) -> None:
    cards = {f"cuda:{n}": {"now": 10 + n, "peak": 20 + n, "predicted": None, "total": 40 + n} for n in (0, 1)}
    cards["cuda:0"]["predicted"] = 30
    sink = JsonlSink(routes.runs / "cat" / "metrics.jsonl")
    sink(dataclasses.replace(step_done(5, 10), memory=cards))
    sink.close()
    assert routes.get("/runs/cat").data["memory"] == {
        "cuda:0": {"now": None, "peak": 20, "predicted": 30, "total": 40},
        "cuda:1": {"now": None, "peak": 21, "predicted": None, "total": 41},
    }
    with locked(routes.runs / "cat" / ".lock", "busy"):
        write_status(routes.runs / "cat", RunStatus(state="running", step=4, steps=10))
        assert routes.get("/runs/cat").data["memory"] == cards
    records = routes.get("/runs/cat/metrics").data["records"]
    assert records[-1]["memory"] == cards


def test_the_newest_run_stands_first_and_what_is_no_run_is_not_listed(routes: RouteServer) -> None:
    import os

    newer = write_run(routes.runs, "dog")
    for file in newer.iterdir():
        os.utime(file, (2e9, 2e9))
    (routes.runs / "_cache").mkdir()
    (routes.runs / "holiday").mkdir()
    (write_run(routes.runs, "foreign") / "run.json").write_text('{"version": 99}')
    (routes.runs / "broken").mkdir()
    (routes.runs / "broken" / "run.json").write_text("no json")
    assert [run["id"] for run in routes.get("/runs").data["runs"]] == ["dog", "cat"]


def test_a_server_without_runs_lists_none(pack_nodes: dict[str, Any], tmp_path: Path) -> None:
    with serve(pack_nodes, tmp_path / "never_made", tmp_path) as server:
        assert server.get("/runs").data == {"version": 1, "runs": [], "common": {}}
        assert server.get("/runs/cat").status == 404


def test_the_detail_has_everything_a_reloaded_page_draws(routes: RouteServer) -> None:
    run = routes.get("/runs/cat").data
    assert run["id"] == "cat"
    assert (run["settings"]["train"]["steps"], run["settings"]["lora"]["rank"]) == (10, 4)
    assert run["saves"] == [{"step": 2, "eval_loss": 0.5}, {"step": 4, "eval_loss": 0.25}]
    assert run["has_workflow"] is True
    assert run["use"] == [{"lora": os.path.join("wan_trainer", "cat.safetensors"), "model": "wan.safetensors"}]
    assert run["template"] == "text_to_video_wan"
    assert [(s["id"], s["step"]) for s in run["samples"]] == [("step-000000_p0", 0), ("step-000002_p0", 2)]
    assert run["samples"][0]["label"] == "step 0 (before training), prompt 1"
    for sample in run["samples"]:
        answer = routes.ask("GET", sample["url"])
        assert (answer.status, answer.headers["content-type"], answer.body) == (200, "video/mp4", CLIP)


def test_the_detail_has_the_devices_of_every_rank_by_their_files(routes: RouteServer) -> None:
    run, card = routes.runs / "cat", {"device": "cuda:0", "name": "A card", "now": 3, "peak": 4, "total": 8, "busy": 98}
    assert routes.get("/runs/cat").data["devices"] == []
    for rank, host in ((0, "alpha"), (1, "beta")):
        file = {"version": 1, "rank": rank, "host": host, "devices": [{**card, "secret": "x"}]}
        atomic_write_json(run / "ranks" / f"rank-{rank:04d}.json", file, run)
    os.utime(run / "ranks" / "rank-0001.json", (1e9, 1e9))
    ended = routes.get("/runs/cat").data["devices"]
    of_first = {"rank": 0, "host": "alpha", "device": "cuda:0", "name": "A card", "peak": 4, "total": 8}
    assert ended == [of_first, {**of_first, "rank": 1, "host": "beta"}], "an ended run holds nothing now"
    write_status(run, RunStatus(state="running", step=4, steps=10))
    with locked(run / ".lock", ""):
        first, silent = routes.get("/runs/cat").data["devices"]
    assert first == of_first | {"now": 3, "busy": 98, "silent": None}
    assert silent["silent"] > 20
    assert routes.post("/runs/cat/delete", {"confirm": "cat"}).data["kept"] == []


RENDERING = "validate-0123456789ab"


def rendered(runs: Path, *clips: tuple[str, int, str]) -> None:
    """Add clips of ValidateVideo to the run cat: (id, step, file name)."""
    folder = runs / "cat" / "samples" / RENDERING
    folder.mkdir(exist_ok=True)
    index = folder.parent / "index.json"
    entries = json.loads(index.read_text())
    for clip, step, name in clips:
        (folder / name).write_bytes(CLIP)
        entries.append({"id": clip, "step": step, "file": f"samples/{RENDERING}/{name}"})
    atomic_write_json(index, entries)


def test_clips_of_validate_video_are_samples_of_their_step_with_a_label(routes: RouteServer) -> None:
    rendered(
        routes.runs,
        ("step-000002_s0.5_p0", 2, "step-000002_s0.5_p0.mp4"),
        ("step-000002_s1.0_p1", 2, "step-000002_s1.0_p1.mp4"),
        ("baseline_p0", 0, "baseline_p0.mp4"),
    )
    samples = routes.get("/runs/cat").data["samples"]
    assert [(s["id"], s["label"]) for s in samples[2:]] == [
        (f"{RENDERING}_baseline_p0", "validation: base model, prompt 1"),
        (f"{RENDERING}_step-000002_s0.5_p0", "validation: step 2, strength 0.5, prompt 1"),
        (f"{RENDERING}_step-000002_s1.0_p1", "validation: step 2, strength 1, prompt 2"),
    ]
    assert [(s["rendering"], s["step"], s["prompt"], s["strength"]) for s in samples] == [
        ("", 0, 0, None),
        ("", 2, 0, None),
        (RENDERING, 0, 0, None),
        (RENDERING, 2, 0, 0.5),
        (RENDERING, 2, 1, 1.0),
    ]
    assert {routes.ask("GET", s["url"]).body for s in samples} == {CLIP}


def test_a_clip_says_its_prompt_and_nickname(routes: RouteServer) -> None:
    rendered(routes.runs, ("baseline_p0_red-ball", 0, "baseline_p0_red-ball.mp4"))
    index = routes.runs / "cat" / "samples" / "index.json"
    (first, *others), odd = json.loads(index.read_text()), {"prompt": ["no text"]}
    atomic_write_json(index, [first | {"prompt": "a cat <b>runs</b>"}, others[0] | odd, *others[1:]])
    samples = routes.get("/runs/cat").data["samples"]
    assert [(s["label"], s["name"], s["text"]) for s in samples] == [
        ("step 0 (before training), prompt 1", "", "a cat <b>runs</b>"),
        ("validation: base model, prompt 1 (red-ball)", "red-ball", ""),
    ]


def test_a_clip_whose_name_step_and_file_do_not_belong_together_is_no_sample(routes: RouteServer) -> None:
    rendered(
        routes.runs,
        ("step-000002_s1.0_p0", 4, "step-000002_s1.0_p0.mp4"),
        ("step-000002_s1.0_p1", 2, "step-000004_s1.0_p1.mp4"),
        ("baseline_p2", 2, "baseline_p2.mp4"),
        ("step-000002_p3", 2, "step-000002_p3.mp4"),
        ("anything", 2, "anything.mp4"),
    )
    assert [s["rendering"] for s in routes.get("/runs/cat").data["samples"]] == ["", ""]


def test_a_variant_nobody_named_is_told_by_the_node_or_by_the_saved_lora(
    routes: RouteServer, pack_nodes: dict[str, Any]
) -> None:
    file = routes.runs / "cat" / "run.json"
    data = json.loads(file.read_text())
    data["model"]["variant"] = "auto"
    atomic_write_json(file, data)
    assert routes.get("/runs/cat").data["variant"] == "2.1 T2V-1.3B"
    with routes.live.entered(live_run(pack_nodes, variant="2.2-TI2V-5B")):
        assert routes.get("/runs/cat").data["variant"] == "2.2-TI2V-5B"


def test_a_second_client_and_a_restarted_server_see_the_same(routes: RouteServer, pack_nodes: dict[str, Any]) -> None:
    paths = ("/runs", "/runs/cat", "/runs/cat/metrics", "/runs/cat/workflow")
    before = [routes.get(path).data for path in paths]
    with serve(pack_nodes, routes.runs, routes.loras) as restarted:
        assert [restarted.get(path).data for path in paths] == before


def test_metrics_are_the_lines_of_the_file_from_any_line_on(routes: RouteServer) -> None:
    lines = [json.loads(line) for line in (routes.runs / "cat" / "metrics.jsonl").read_text().splitlines()]
    assert {line["event"] for line in lines} == {"step", "saved", "evaluated", "sample"}
    assert routes.get("/runs/cat/metrics").data == {"version": 1, "next": len(lines), "records": lines}
    for since in (0, 3, len(lines)):
        assert routes.get(f"/runs/cat/metrics?since={since}").data["records"] == lines[since:]


def test_metrics_of_a_run_that_was_made_anew_say_so(routes: RouteServer) -> None:
    assert routes.get("/runs/cat/metrics?since=500").data == {
        "version": 1, "next": 10, "records": [], "restarted": True,
    }  # fmt: skip


def test_a_long_run_comes_in_pages_of_5000(routes: RouteServer) -> None:
    sink = JsonlSink(write_run(routes.runs, "long", steps=2) / "metrics.jsonl")
    for step in range(3, 6001):
        sink(step_done(step, 6000))
    sink.close()
    first = routes.get("/runs/long/metrics").data
    assert (len(first["records"]), first["next"], first["more"]) == (5000, 5000, True)
    rest = routes.get("/runs/long/metrics?since=5000").data
    assert "more" not in rest
    steps = [r["step"] for r in [*first["records"], *rest["records"]] if r["event"] == "step"]
    assert steps == list(range(1, 6001))


@pytest.mark.parametrize("since", ["-1", "1.5", "x", "", "%F0%9F%98%80", "9999999999", "٣", "0x1", "1e3", "NaN"])
def test_since_is_a_line_number(routes: RouteServer, since: str) -> None:
    from urllib.parse import quote

    answer = routes.get(f"/runs/cat/metrics?since={quote(since, safe='%')}")
    assert answer.status == 400
    assert "line number" in answer.data["error"]


def test_a_clip_is_sent_in_the_parts_a_player_asks_for(routes: RouteServer) -> None:
    clip = "/runs/cat/samples/step-000000_p0"
    for asked, part in (("0-99", CLIP[:100]), ("100-", CLIP[100:]), ("-50", CLIP[-50:]), ("5-999999", CLIP[5:])):
        answer = routes.get(clip, Range=f"bytes={asked}")
        assert (answer.status, answer.body) == (206, part)
        assert answer.headers["content-range"].endswith(f"/{len(CLIP)}")
    assert routes.get(clip, Range=f"bytes={len(CLIP)}-").status == 416
    assert routes.get(clip, Range="lines=1-2").body == CLIP
    head = routes.ask("HEAD", f"/wan_trainer{clip}")
    assert (head.status, head.body, head.headers["content-length"]) == (200, b"", str(len(CLIP)))


def test_the_workflow_comes_back_without_paths(routes: RouteServer) -> None:
    assert routes.get("/runs/cat/workflow").data == {"nodes": [{"type": "TrainLoRA"}]}
    atomic_write_json(routes.runs / "cat" / "workflow.json", {"nodes": [{"widgets_values": ["/data/me/clips"]}]})
    assert routes.get("/runs/cat/workflow").data["nodes"][0]["widgets_values"] == ["[path removed]"]
    (routes.runs / "cat" / "workflow.json").unlink()
    assert routes.get("/runs/cat/workflow").status == 404
    assert routes.get("/runs/cat").data["has_workflow"] is False


def test_the_end_of_the_log_comes_without_paths_and_without_what_libraries_say(routes: RouteServer) -> None:
    assert routes.get("/runs/cat/log").data == {"version": 1, "text": "a line"}
    log = routes.runs / "cat" / "log.txt"
    noise = "W1122 02:28:17.974000 20237 torch/utils/_pytree.py:630] <enum 'X'> is an Enum subclass"
    log.write_text("\n".join([*map(str, range(300)), noise, "cannot read /data/me/secret.mp4"]), encoding="utf-8")
    lines = routes.get("/runs/cat/log").data["text"].splitlines()
    assert (lines[0], lines[-2], len(lines)) == ("101", "299", 200)
    assert lines[-1] == "cannot read [path removed]"
    log.unlink()
    assert routes.get("/runs/cat/log").data["text"] == ""
    log.symlink_to(routes.runs / "cat" / "run.json")
    assert routes.get("/runs/cat/log").data.get("text", "") == "", "what a link leads to is nobody's log"


def test_a_run_that_says_running_is_running_only_while_a_process_holds_it(routes: RouteServer) -> None:
    directory = routes.runs / "cat"
    write_status(directory, RunStatus(state="running", step=2, steps=10))
    died = routes.get("/runs/cat").data
    assert (died["state"], died["step"]) == ("failed", 2)
    assert "Press Run again to resume" in died["reason"]
    with locked(directory / ".lock", "busy"):
        elsewhere = routes.get("/runs/cat").data
    assert (elsewhere["state"], elsewhere["live"], elsewhere["step"]) == ("running", False, 4)
    assert elsewhere["seconds_left"] == pytest.approx(6 * 0.25)
    line = {"event": "step", "step": 5, "steps": 10, "loss": 1.0, "seconds": 0.25, "seconds_left": 0.5}
    with open(directory / "metrics.jsonl", "a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")
    with locked(directory / ".lock", "busy"):
        assert routes.get("/runs/cat").data["seconds_left"] == 0.5, "its hours end before its steps"


def test_looking_at_a_run_makes_no_file(routes: RouteServer) -> None:
    write_status(routes.runs / "cat", RunStatus(state="running", step=2, steps=10))
    before = loose(routes.runs)
    for path in ("/runs", "/runs/cat", "/runs/cat/metrics", "/runs/cat/workflow", "/runs/cat/samples/step-000000_p0"):
        assert routes.get(path).status == 200
    assert loose(routes.runs) == before


def test_a_failure_is_told_without_a_path(routes: RouteServer) -> None:
    reason = "Folder /data/somebody/wan does not exist, so it cannot be read. Make it."
    write_status(routes.runs / "cat", RunStatus(state="failed", step=2, steps=10, reason=reason))
    failed = routes.get("/runs").data["runs"][0]
    assert failed["state"] == "failed"
    assert failed["reason"] == "Folder [path removed] does not exist, so it cannot be read. Make it."


def test_buttons_reach_the_worker_of_that_run(routes: RouteServer, pack_nodes: dict[str, Any]) -> None:
    write_run(routes.runs, "dog")
    run, worker = live_run(pack_nodes), Worker()
    with routes.live.entered(run):
        assert routes.post("/runs/cat/save").data == {"sent": True}  # before the worker has started
        with run.listening(worker):
            assert [routes.post(f"/runs/cat/{button}").status for button in ("sample", "stop")] == [202, 202]
            assert [routes.post(f"/runs/dog/{button}").status for button in ("save", "sample", "stop")] == [409] * 3
            shown = routes.get("/runs").data["runs"][0]
    assert worker.heard == ["save", "sample", "stop"]
    assert worker.reasons == ["Stop and keep was pressed"]
    assert run.stop_pressed
    assert (shown["id"], shown["live"], shown["state"]) == ("cat", True, "running")
    assert (shown["node"], shown["prompt_id"]) == ("12:3", "p1")
    assert routes.post("/runs/cat/stop").status == 409


def test_preview_now_says_when_nothing_could_draw_one(routes: RouteServer, pack_nodes: dict[str, Any]) -> None:
    run, worker = live_run(pack_nodes, can_preview=False), Worker()
    with routes.live.entered(run), run.listening(worker):
        answer = routes.post("/runs/cat/sample")
    assert answer.status == 409
    assert "Connect a VAE" in answer.data["error"]
    assert worker.heard == []


def test_a_step_measured_twice_counts_once(routes: RouteServer) -> None:
    sink = JsonlSink(routes.runs / "cat" / "metrics.jsonl")
    sink(Evaluated(step=4, eval_loss=0.125))
    sink.close()
    run = routes.get("/runs/cat").data
    assert run["eval_loss"] == 0.125
    assert run["saves"][-1] == {"step": 4, "eval_loss": 0.125}


def test_deleting_removes_the_run_and_leaves_others(routes: RouteServer) -> None:
    write_run(routes.runs, "dog")
    before = loose(routes.runs / "dog")
    assert routes.post("/runs/cat/delete").status == 400
    assert routes.post("/runs/cat/delete", {"confirm": "dog"}).status == 400
    assert (routes.runs / "cat" / "run.json").is_file()
    answer = routes.post("/runs/cat/delete", {"confirm": "cat"})
    assert (answer.status, answer.data["kept"]) == (200, [])
    assert not (routes.runs / "cat").exists()
    assert [run["id"] for run in routes.get("/runs").data["runs"]] == ["dog"]
    assert loose(routes.runs / "dog") == before
    assert (routes.loras / "cat.safetensors").is_file(), "the published LoRA is the product, and stays"


def publish_into(loras: Path, folders: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """LoRAs go there, and loaders look nowhere else."""
    monkeypatch.setattr(folders, "publish_folder", lambda: loras)
    monkeypatch.setattr(folders, "publish_folders", lambda: [loras])


def test_a_chosen_step_is_published_as_the_runs_lora_until_the_run_is_trained_on(
    routes: RouteServer, pack_nodes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stays the chosen one after a look from the queue; a newer saved step ends the choice."""
    run, store = routes.runs / "cat", SaveStore(routes.runs / "cat")
    publishing, job = our_module(pack_nodes, "runs.publish"), read_run(run).job_id
    publish_into(routes.loras, publishing.folders, monkeypatch)
    (routes.loras / "cat.safetensors").unlink()
    (routes.loras / "cat_000004.safetensors").unlink()
    store.commit(6, job, save({"a": 6 * torch.ones(2)}), {"lora.a": torch.ones(2)}, {"step": 6})
    answer = routes.post("/runs/cat/use", {"step": 4})
    assert (answer.status, answer.data) == (200, {"lora_name": os.path.join("wan_trainer", "cat.safetensors")})
    at_4 = (run / "saves" / "step-000004" / "lora.safetensors").read_bytes()
    assert (routes.loras / "cat.safetensors").read_bytes() == at_4
    assert routes.get("/runs/cat").data["chosen"] == 4
    assert routes.get("/runs/cat").data["in_use"] == 4
    assert publishing.chosen(run, job).step == 4
    assert publishing.chosen(run, "other settings") is None
    store.commit(8, job, save({"a": 8 * torch.ones(2)}), {"lora.a": torch.ones(2)}, {"step": 8})
    assert publishing.chosen(run, job) is None
    assert routes.get("/runs/cat").data["chosen"] is None
    assert routes.get("/runs/cat").data["in_use"] is None, "the newest was not published"
    publishing.publish(run, store.read(8))
    assert routes.get("/runs/cat").data["in_use"] == 8


def test_a_step_without_the_second_lora_of_a_pair_leaves_none_of_another_step_beside_it(
    routes: RouteServer, pack_nodes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pair is published together: who loads both names never gets halves of two steps."""
    run, store = routes.runs / "cat", SaveStore(routes.runs / "cat")
    publish_into(routes.loras, our_module(pack_nodes, "runs.publish").folders, monkeypatch)
    config = read_run(run)
    config = dataclasses.replace(config, train=dataclasses.replace(config.train, expert="both"))
    atomic_write_json(run / "run.json", config.to_dict())
    job = config.job_id

    def lora(value: int, job: str = job) -> bytes:
        return save({"a": value * torch.ones(2)}, {"wan_trainer.job_id": job})

    state, low = {"lora.a": torch.ones(2)}, routes.loras / "cat_low_noise.safetensors"
    store.commit(6, job, lora(6), state, {"step": 6, "expert_steps": [6, 0]})
    store.commit(8, job, lora(6), state, {"step": 8, "expert_steps": [6, 2]}, low_noise_lora=lora(8))

    assert routes.post("/runs/cat/use", {"step": 8}).status == 200
    assert low.read_bytes() == lora(8)
    assert routes.post("/runs/cat/use", {"step": 6}).status == 200
    assert not low.exists()
    assert (routes.loras / "cat_low_noise_000008.safetensors").read_bytes() == lora(8), "that of its step stays"
    assert routes.post("/runs/cat/use", {"step": 8}).status == 200
    assert low.read_bytes() == lora(8)

    low.write_bytes(lora(1, "beef" * 8))  # of a run of that name that is no more
    assert routes.post("/runs/cat/use", {"step": 6}).status == 200
    assert not low.exists()
    assert (routes.loras / "cat_low_noise_beefbeef.safetensors").read_bytes() == lora(1, "beef" * 8), "nothing is lost"


def test_publishing_takes_away_what_one_that_was_killed_left_among_the_loras(
    routes: RouteServer, pack_nodes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is as large as a LoRA, and nobody lists it."""
    publish_into(routes.loras, our_module(pack_nodes, "runs.publish").folders, monkeypatch)
    old, young = (routes.loras / f".cat.safetensors.{digit * 16}.partial" for digit in "0a")
    for file in (old, young):
        file.write_bytes(b"half")
    os.utime(old, (0, 0))
    assert routes.post("/runs/cat/use", {"step": 4}).status == 200
    assert (old.exists(), young.exists()) == (False, True)


@pytest.mark.parametrize(("body", "status"), [({}, 400), ({"step": "4"}, 400), ({"step": 3}, 409), ({"step": -4}, 400)])
def test_a_step_that_is_not_saved_is_not_published(routes: RouteServer, body: dict[str, Any], status: int) -> None:
    answer = routes.post("/runs/cat/use", body)
    assert answer.status == status
    assert not (routes.runs / "cat" / "chosen.json").exists()


def test_a_run_in_use_is_not_deleted(routes: RouteServer, pack_nodes: dict[str, Any]) -> None:
    before = loose(routes.runs)
    with routes.live.entered(live_run(pack_nodes)):
        assert routes.post("/runs/cat/delete", {"confirm": "cat"}).status == 409
    with routes.live.used("cat"):  # clips of it are being rendered
        assert routes.post("/runs/cat/delete", {"confirm": "cat"}).status == 409
    with locked(routes.runs / "cat" / ".lock", "busy"):
        answer = routes.post("/runs/cat/delete", {"confirm": "cat"})
    assert answer.status == 409
    assert "another process" in answer.data["error"]
    assert {k: v for k, v in loose(routes.runs).items() if not k.endswith(".lock")} == before


def test_a_long_run_is_sent_in_few_thin_pages_and_its_newest_step_in_full(routes: RouteServer) -> None:
    short = routes.get("/runs/cat/metrics?since=0&thin=1").data
    assert short == routes.get("/runs/cat/metrics?since=0").data, "a short run is sent in full"
    steps = [to_line(step_done(step, 12_000)) for step in range(5, 12_001)]
    with (routes.runs / "cat" / "metrics.jsonl").open("a") as file:
        file.writelines([*steps, to_line(Marked(step=9, kind="worse", text="It grew. Look into /data/somebody/x."))])
    answer = routes.get("/runs/cat/metrics?since=0&thin=1").data
    assert (answer["next"], "more" in answer) == (len(short["records"]) + len(steps) + 1, False)
    *others, newest, marked = answer["records"][-2000:]
    assert newest == json.loads(steps[-1])
    assert marked["text"] == "It grew. Look into [path removed]"
    early = json.loads(steps[-1999])
    assert others[0] == {key: early[key] for key in ("event", "step", "loss", "seconds", "expert", "timestep_mean")}
    assert routes.get(f"/runs/cat/metrics?since={answer['next']}&thin=1").data["records"] == []


def test_cached_clips_that_no_unfinished_run_needs_go_where_that_is_confirmed(routes: RouteServer) -> None:
    cache = LatentCache(routes.runs / "_cache")
    assert routes.get("/cache").data == {"version": 1, "bytes": 0, "spare": 0}
    of_the_run = read_run(routes.runs / "cat").data.fingerprint
    for key in (of_the_run, "a" * 64):
        cache.write_latent(key, torch.zeros(16, 1, 2, 2))
        os.utime(cache.entry_path("latent", key), (1, 1))
    each = cache.entry_path("latent", of_the_run).stat().st_size
    assert routes.get("/cache").data == {"version": 1, "bytes": 2 * each, "spare": each}
    assert routes.post("/cache/trim", {"confirm": "yes"}).status == 400
    assert cache.has("latent", "a" * 64)
    assert routes.post("/cache/trim", {"confirm": True}).data == {"version": 1, "bytes": each, "freed": each}
    assert [LatentCache(cache.root).has("latent", key) for key in (of_the_run, "a" * 64)] == [True, False]
