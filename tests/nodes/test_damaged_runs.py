"""What is damaged in the files of one run costs neither the others nor a training that has ended."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from route_server import RouteServer, assert_safe, our_module, write_run

from tests.support.damaged import BAD_NUMBERS, damaged_lines
from wan_core.metrics import read_loss_curve

pytestmark = pytest.mark.comfy
bad_values = pytest.mark.parametrize("value", BAD_NUMBERS.values(), ids=BAD_NUMBERS)


@bad_values
def test_a_training_that_ended_is_told_from_the_lines_that_are_whole(
    pack_nodes: dict[str, Any], tmp_path: Path, value: str
) -> None:
    directory = write_run(tmp_path / "output" / "wan_trainer")
    with (directory / "metrics.jsonl").open("a") as file:
        file.write("\n".join(damaged_lines(value)) + "\n")
    runs = our_module(pack_nodes, "runs.facts")
    curve = read_loss_curve(directory / "metrics.jsonl")
    said = runs.run_report(directory, curve, 4, tmp_path, variant="2.1 T2V-1.3B", note="", stop_pressed=False)
    assert [loss for _, loss in said["losses"]][:2] == [1.0, 0.5]
    assert said["losses"][-1][1] == 0.25
    assert said["eval_losses"] == [(2, 0.5), (4, 0.25)]
    assert said["seconds_per_step"] in (0.2, 0.3, 0.4)
    assert runs.chosen_steps(directory, "best") == runs.chosen_steps(directory, "latest") == (4,)
    assert len(said["samples"]) == 2


@bad_values
def test_a_damaged_index_of_samples_costs_only_its_samples(
    pack_nodes: dict[str, Any], tmp_path: Path, value: str
) -> None:
    directory = write_run(tmp_path / "output" / "wan_trainer")
    index = directory / "samples" / "index.json"
    good = json.loads(index.read_text())[0]
    entry = f'{{"id": {value}, "step": {value}, "file": {value}}}'
    outside = '{"id": "a", "step": 1, "file": "../status.json"}, {"id": "b", "step": 1, "file": "samples/..\\\\x"}'
    long = json.dumps({"id": "c", "step": 1, "file": "samples/" + "x" * 5000})
    index.write_text(f"[{json.dumps(good)}, {entry}, {outside}, {long}]")
    previews = our_module(pack_nodes, "runs.facts").previews
    assert [sample["filename"] for sample in previews(directory)] in (
        [Path(good["file"]).name],
        [],
    )  # []: no JSON at all
    index.write_text(value)
    assert previews(directory) == []


@pytest.mark.skipif(os.name == "nt", reason="links need a right on Windows")
@pytest.mark.parametrize("link", ["samples", "the folder of the clips"])
def test_clips_of_a_strangers_run_are_rendered_through_no_link(
    pack_nodes: dict[str, Any], tmp_path: Path, link: str
) -> None:
    run, outside = tmp_path / "output" / "wan_trainer" / "cat", tmp_path / "outside"
    run.mkdir(parents=True)
    rendering = our_module(pack_nodes, "runs.rendering")
    made = rendering.Rendering(run, rendering.SampleJob(saved_steps=(4,)), 16.0, {})
    place = made.folder if link != "samples" else run / "samples"
    (outside / made.folder.name).mkdir(parents=True)
    place.parent.mkdir(exist_ok=True)
    place.symlink_to(outside)
    before = sorted(outside.rglob("*"))
    for make in (lambda: made.render(None, None, None), made.sheet, lambda: made.movie("mp4", lambda: False)):
        with pytest.raises(Exception, match=r"is a link or a file\. Move it away"):
            make()
    assert sorted(outside.rglob("*")) == before


@bad_values
def test_a_damaged_run_never_hides_the_others(routes: RouteServer, value: str) -> None:
    """Every number of its status and every number of its metrics, one after the other."""
    directory = routes.runs / "cat"
    status = json.loads((directory / "status.json").read_text())
    files = [("metrics.jsonl", "\n".join([*damaged_lines(value), ""]))]
    files += [("status.json", json.dumps(status | {key: "@"}).replace('"@"', value)) for key in status]
    for name, text in files:
        whole = (directory / name).read_bytes()
        (directory / name).write_text(text)
        for path in ("/runs", "/runs/cat", "/runs/cat/metrics"):
            answer = routes.get(path)
            assert_safe(answer)
            json.loads(answer.body, parse_constant=lambda word: pytest.fail(f"an answer holds {word}"))
        assert "dog" in [run["id"] for run in routes.get("/runs").data["runs"]], text[:200]
        (directory / name).write_bytes(whole)


@pytest.mark.parametrize("error", [ValueError, TypeError, OverflowError, RecursionError, KeyError, OSError])
def test_a_run_that_cannot_be_told_is_left_out_of_the_list(
    routes: RouteServer, pack_nodes: dict[str, Any], monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    handlers, listing = our_module(pack_nodes, "routes.handlers"), our_module(pack_nodes, "routes.summary")
    summary = listing.summary

    def failing(run: Any, *others: Any) -> Any:
        if (run if isinstance(run, Path) else run.directory).name == "cat":
            raise error("damaged")
        return summary(run, *others)

    monkeypatch.setattr(listing, "summary", failing)
    monkeypatch.setattr(handlers, "detail", failing)
    answer = routes.get("/runs")
    assert (answer.status, [run["id"] for run in answer.data["runs"]]) == (200, ["dog"])
    answer = routes.get("/runs/cat")
    assert answer.status == 409
    assert_safe(answer)
    assert "cat" in answer.data["error"] or error is OSError


def test_a_run_that_says_itself_what_is_wrong_is_believed(routes: RouteServer) -> None:
    (routes.runs / "cat" / "run.json").write_text('{"version": 99}')
    answer = routes.get("/runs/cat")
    assert answer.status == 409
    assert "are damaged" not in answer.data["error"]
    assert "99" in answer.data["error"]


def test_a_record_nested_too_deeply_hides_no_other(routes: RouteServer) -> None:
    with (routes.runs / "cat" / "metrics.jsonl").open("a") as file:
        for depth in (600, 900, 3000, 20_000):
            file.write('{"event": "x", "y": ' + "[" * depth + "]" * depth + "}\n")
        file.write('{"event": "last"}\n')
    answer = routes.get("/runs/cat/metrics")
    assert answer.status == 200
    assert [record["event"] for record in answer.data["records"]][-1] == "last"
    assert len(answer.data["records"]) >= 11


def test_a_workflow_nested_too_deeply_is_refused(routes: RouteServer) -> None:
    for depth in (900, 3000, 20_000, 200_000):
        (routes.runs / "cat" / "workflow.json").write_text('{"nodes": ' + "[" * depth + "]" * depth + "}")
        answer = routes.get("/runs/cat/workflow")
        assert answer.status in (200, 409)
        assert_safe(answer)
    assert answer.status == 409
