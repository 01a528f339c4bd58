"""Files of a run that a program holds open, as Windows has it: nothing is lost, and what stays can be deleted later."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest
from route_server import RouteServer, our_module

from tests.support.held import holding
from wan_core.files import atomic_write_json
from wan_core.job.config import RunStatus, read_status, write_status
from wan_core.train import SaveStore

SAYS = "import sys; print('said', file=sys.stderr)"
Held = set[str]


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Held:
    return holding(monkeypatch)


def deleted(routes: RouteServer) -> tuple[int, Any]:
    answer = routes.post("/runs/cat/delete", {"confirm": "cat"})
    return answer.status, answer.data


def listed(routes: RouteServer) -> list[str]:
    return sorted(run["id"] for run in routes.get("/runs").data["runs"])


@pytest.mark.parametrize(
    "names",
    [
        ("metrics.jsonl", "status.json"),
        ("step-000000_p0.mp4",),
        ("lora.safetensors", "log.txt", "workflow.json", "status.json"),
        ("index.json",),
        ("manifest.json",),
        ("run.json",),
        (".lock",),
    ],
)
def test_what_is_held_while_a_run_is_deleted_stays_listed_and_goes_with_the_next_time(
    routes: RouteServer, held: Held, names: tuple[str, ...]
) -> None:
    directory = routes.runs / "cat"
    (directory / "samples" / "secret.mp4").unlink()  # in no index, and of a name that no run writes
    held |= set(names)
    for _ in range(2):
        status, data = deleted(routes)
        assert status == 409
        assert data["error"].startswith("Run cat is deleted, except ")
        assert data["error"].endswith(
            ": another program, such as a viewer, a virus scanner or one that syncs folders, has that open, or the "
            "folder is not writable. Close it there, then delete the run again; until then the run is listed."
        )
        assert ("and others" in data["error"]) == (len(names) > 3)
        assert listed(routes) == ["cat", "dog"]
        assert routes.get("/runs/cat").status == 200
    held.clear()
    status, data = deleted(routes)
    assert (status, data["kept"]) == (200, [])
    assert data["deleted"] >= len(names)
    assert not directory.exists()
    assert listed(routes) == ["dog"]


def test_previews_that_no_index_lists_are_deleted_with_their_run(routes: RouteServer) -> None:
    samples = routes.runs / "cat" / "samples"
    (samples / "secret.mp4").unlink()
    for name in ("step-000006_p1.latent", "step-000006_p12_a-cat.mp4"):
        (samples / name).write_bytes(b"ours")
    (samples / "step-000006_p1 (my copy).mp4").write_bytes(b"mine")
    assert deleted(routes)[1]["kept"] == ["samples"]
    assert [file.name for file in samples.iterdir()] == ["step-000006_p1 (my copy).mp4"]


def test_where_a_run_stands_is_told_from_the_file_beside_one_that_is_held(routes: RouteServer, held: Held) -> None:
    directory = routes.runs / "cat"
    write_status(directory, RunStatus(state="stopped", step=4, steps=10, reason="Cancel was pressed"))
    assert routes.get("/runs/cat").data["state"] == "stopped"
    held.add("status.json")
    write_status(directory, RunStatus(state="done", step=10, steps=10))
    assert routes.get("/runs/cat").data["state"] == "done"
    held.clear()
    write_status(directory, RunStatus(state="failed", step=10, steps=12, reason="no room"))
    assert (routes.get("/runs/cat").data["state"], read_status(directory).steps) == ("failed", 12)
    assert not (directory / "status.next.json").exists()


def test_a_choice_that_cannot_be_kept_replaces_no_lora(
    routes: RouteServer, held: Held, pack_nodes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    publishing = our_module(pack_nodes, "runs.publish")
    monkeypatch.setattr(publishing.folders, "publish_folder", lambda: routes.loras)
    monkeypatch.setattr(publishing.folders, "publish_folders", lambda: [routes.loras])
    step = SaveStore(routes.runs / "cat").steps()[0]
    atomic_write_json(routes.runs / "cat" / "chosen.json", {})
    before = {file.name: file.read_bytes() for file in routes.loras.iterdir()}
    held.add("chosen.json")
    answer = routes.post("/runs/cat/use", {"step": step})
    assert answer.status == 409
    assert answer.data["error"].startswith("chosen.json in folder output/wan_trainer/cat is open in another program")
    assert {file.name: file.read_bytes() for file in routes.loras.iterdir()} == before


def test_a_log_that_a_program_keeps_for_itself_keeps_no_worker_from_starting(
    pack_nodes: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = our_module(pack_nodes, "engine.worker")
    log, real = tmp_path / "log.txt", engine.open_append
    log.write_bytes(b"before\n")

    def open_append(path: Path) -> Any:
        if path == log:
            raise PermissionError(13, "Permission denied", os.fspath(path))
        return real(path)

    monkeypatch.setattr(engine, "open_append", open_append)
    with engine.Worker([sys.executable, "-c", SAYS], tmp_path, log) as worker:
        worker.process.wait()
        assert worker.log_tail() == "said\n"
    assert log.read_bytes() == b"before\n"
