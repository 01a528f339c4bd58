"""No name, index, manifest or link makes a route read, write or delete outside a run (rules S1, S4, S16)."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from hostile_paths import HOSTILE_PATHS
from route_server import CANARY, CHANGE, Answer, RouteServer, assert_safe, loose, our_module, write_run

from wan_core.files import atomic_write_json
from wan_core.job.config import RunStatus, write_status

pytestmark = pytest.mark.comfy
posix = pytest.mark.skipif(os.name == "nt", reason="needs POSIX links, which Windows gives only to administrators")
PLACES = {
    "GET": [
        "/runs/{}",
        "/runs/{}/metrics",
        "/runs/{}/workflow",
        "/runs/{}/samples/step-000000_p0",
        "/runs/cat/samples/{}",
    ],
    "POST": ["/runs/{}/stop", "/runs/{}/save", "/runs/{}/sample", "/runs/{}/delete", "/runs/{}/open"],
}


_EVENTS = ("open", "os.listdir", "os.scandir", "os.remove", "os.rename", "os.rmdir", "os.mkdir")


class Opened:
    """Every path this process opens, lists, links, renames or removes while `watching`."""

    def __init__(self) -> None:
        self.paths: list[str] = []
        self.on = False
        sys.addaudithook(self._hear)  # stays for the life of the process, deaf but for `watching`

    def _hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self.on and event in _EVENTS and isinstance(arguments[0], str | bytes | os.PathLike):
            self.paths.append(os.fsdecode(arguments[0]))

    @contextlib.contextmanager
    def watching(self) -> Iterator[list[str]]:
        self.paths, self.on = [], True
        try:
            yield self.paths
        finally:
            self.on = False


@pytest.fixture(scope="module")
def opened_paths() -> Opened:
    return Opened()


def assert_nobody(answer: Answer, what: str) -> None:
    assert answer.status in (400, 404, 405), (what, answer.status, answer.body[:200])
    assert CANARY not in answer.body
    if answer.headers["content-type"].startswith("application/json"):
        assert_safe(answer)
        assert list(answer.data) == ["error"]
        assert "alert" not in answer.data["error"]
    assert "x-injected" not in answer.headers


@pytest.mark.parametrize(("method", "place"), [(m, p) for m, places in PLACES.items() for p in places])
def test_a_hostile_name_reaches_nothing(
    routes: RouteServer,
    opened: list[Path],
    opened_paths: Opened,
    tmp_path: Path,
    method: str,
    place: str,
) -> None:
    before = loose(tmp_path)
    with opened_paths.watching() as paths:
        for name in HOSTILE_PATHS:
            body = json.dumps({"confirm": name}).encode() if place.endswith("delete") else b"{}"
            target = f"/wan_trainer{place.format(quote(name, safe=''))}"
            assert_nobody(routes.ask(method, target, CHANGE if method == "POST" else {}, body), name)
    runs = str(routes.runs)
    allowed = [path for path in paths if path == runs or path.startswith(f"{runs}{os.sep}cat")]
    assert allowed, "the hook heard nothing"
    outside = [p for p in paths if p.startswith((str(tmp_path), "/etc", "/proc", "/dev")) and p not in allowed]
    assert outside == []
    assert not [p for p in paths if "canary" in p or "secret" in p]
    assert loose(tmp_path) == before
    assert opened == []


@pytest.mark.parametrize(
    "target",
    [
        *("/runs/../../canary.txt", "/runs/cat/samples/../run.json", "/runs/..%2f..%2fcanary.txt", "/../canary.txt"),
        *("/runs//", "/runs/%", "/runs/%ff%fe", "/runs/cat/samples/%c0%ae%c0%ae%c0%afcanary.txt"),
    ],
)
def test_a_raw_path_reaches_nothing(routes: RouteServer, target: str) -> None:
    answer = routes.ask("GET", f"/wan_trainer{target}")
    assert answer.status in (400, 404)
    assert CANARY not in answer.body


def test_an_index_names_only_clips_of_its_run(routes: RouteServer) -> None:
    """The index is a file too; one from a stranger must not make the route read for him."""
    files = ["../canary.txt", "samples/../../canary.mp4", "samples/../../../canary.txt", "/etc/passwd", "canary.mp4",
        "samples\\..\\..\\canary.mp4", "samples/./secret.mp4", "samples//secret.mp4", "samples/.lock", "run.json",
        "samples/secret.mp4/..", "samples/validate-0/secret.mp4", "samples/step-000000_p0.latent", "samples/index.json",
        "C:\\canary.txt", "samples/\0secret.mp4", "samples/secret.html"]  # fmt: skip
    odd: list[Any] = [None, 1, [], {}, {"id": 1, "step": 0, "file": 2}, {"id": "x"}]
    odd.append({"id": "a b/..", "step": 0, "file": "samples/secret.mp4"})
    entries = [{"id": f"s{i}", "step": 0, "file": file} for i, file in enumerate(files)]
    (routes.runs / "cat" / "samples" / "secret.html").write_bytes(CANARY)
    atomic_write_json(routes.runs / "cat" / "samples" / "index.json", [*entries, *odd])
    assert routes.get("/runs/cat").data["samples"] == []
    for entry in entries:
        answer = routes.get(f"/runs/cat/samples/{entry['id']}")
        assert answer.status == 404
        assert CANARY not in answer.body
    for broken in (b"{}", b"null", b"[", b'"x"', b"\xff"):
        (routes.runs / "cat" / "samples" / "index.json").write_bytes(broken)
        assert routes.get("/runs/cat").data["samples"] == []


@posix
@pytest.mark.parametrize(
    "name",
    [
        *("run.json", "status.json", "metrics.jsonl", "workflow.json"),
        *("samples", "samples/index.json", "samples/step-000000_p0.mp4"),
        *("saves", "saves/step-000002", "saves/step-000002/manifest.json", "saves/step-000002/lora.safetensors"),
    ],
)
def test_a_link_inside_a_run_is_not_followed_out_of_it(routes: RouteServer, tmp_path: Path, name: str) -> None:
    elsewhere = write_run(tmp_path / "elsewhere", "cat")
    for file in elsewhere.rglob("*.mp4"):
        file.write_bytes(CANARY)
    atomic_write_json(elsewhere / "workflow.json", {"canary": CANARY.decode()})
    (elsewhere / "metrics.jsonl").write_text(json.dumps({"event": "note", "text": CANARY.decode()}) + "\n")
    write_status(elsewhere, RunStatus(state="failed", reason=CANARY.decode()))
    before = loose(elsewhere)
    place = routes.runs / "cat" / name
    place.rename(tmp_path / "aside")
    place.symlink_to(elsewhere / name)
    for path in ("/runs", "/runs/cat", "/runs/cat/metrics", "/runs/cat/workflow", "/runs/cat/samples/step-000000_p0"):
        answer = routes.get(path)
        assert_safe(answer)
        assert CANARY not in answer.body
    routes.post("/runs/cat/delete", {"confirm": "cat"})
    assert loose(elsewhere) == before


@posix
def test_a_lock_that_is_a_link_makes_no_file_elsewhere(routes: RouteServer, tmp_path: Path) -> None:
    (routes.runs / "cat" / ".lock").symlink_to(tmp_path / "made")
    before = loose(routes.runs / "cat")
    assert routes.post("/runs/cat/delete", {"confirm": "cat"}).status == 409
    assert not (tmp_path / "made").exists()
    assert loose(routes.runs / "cat") == before


@posix
@pytest.mark.parametrize("target", ["elsewhere/cat", "output/wan_trainer/cat"])
def test_a_run_folder_that_is_a_link_is_no_run(routes: RouteServer, tmp_path: Path, target: str) -> None:
    write_run(tmp_path / "elsewhere", "cat")
    before = loose(tmp_path)
    (routes.runs / "linked").symlink_to(tmp_path / target)
    assert "linked" not in [run["id"] for run in routes.get("/runs").data["runs"]]
    assert routes.get("/runs/linked").status == 404
    assert routes.post("/runs/linked/delete", {"confirm": "linked"}).status == 404
    (routes.runs / "linked").unlink()
    assert loose(tmp_path) == before


def test_deleting_leaves_every_file_no_manifest_lists(routes: RouteServer) -> None:
    directory = routes.runs / "cat"
    own = ["notes.txt", "saves/mine.safetensors", "saves/step-000002/backup.zip", "samples/holiday.mp4", "deep/er/x",
        "saves/step-000009/lora.safetensors"]  # fmt: skip
    for name in own:
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_bytes(b"mine")
    answer = routes.post("/runs/cat/delete", {"confirm": "cat"})
    assert answer.status == 200
    assert sorted(loose(directory)) == sorted([*own, "samples/secret.mp4"])
    assert answer.data["kept"] == ["deep", "notes.txt", "samples", "saves"]
    assert [run["id"] for run in routes.get("/runs").data["runs"]] == ["dog"]


def test_deleting_takes_what_validate_video_made_beside_its_clips(routes: RouteServer) -> None:
    directory = routes.runs / "dog"
    folder = directory / "samples" / "validate-0123456789ab"
    folder.mkdir()
    clip = ("baseline_p0.mp4", "baseline_p0.latent", "baseline_p0.png", "baseline_p0.json")
    grid = ("job-0123456789ab.json", "grid-0123456789ab.png", "grid-0123456789ab.webm")
    for name in (*clip, *grid, "job.json", "metrics.json"):
        (folder / name).write_bytes(b"ours")
    index = directory / "samples" / "index.json"
    entry = {"id": "baseline_p0", "step": 0, "file": f"samples/{folder.name}/baseline_p0.mp4"}
    atomic_write_json(index, [*json.loads(index.read_text()), entry])
    os.link(directory / "log.txt", directory.parent / "of_my_own.txt")  # its bytes are not free again
    loose_bytes = sum(file.stat().st_size for file in directory.rglob("*") if file.is_file())
    freed = loose_bytes - sum((directory / name).stat().st_size for name in ("log.txt", "run.json"))
    assert routes.get("/runs/dog/bytes").data["bytes"] == freed > 0
    answer = routes.post("/runs/dog/delete", {"confirm": "dog"}).data
    assert (answer["kept"], answer["freed"]) == ([], freed)
    assert not directory.exists()


def test_manifests_of_a_stranger_remove_nothing_else(routes: RouteServer, tmp_path: Path) -> None:
    """What an index or a manifest names outside the run's own folders stays."""
    directory = routes.runs / "cat"
    named = [
        "../canary.txt",
        "samples/../../canary.txt",
        "samples/../../dog/run.json",
        "/etc/passwd",
        "../dog/run.json",
    ]
    atomic_write_json(
        directory / "samples" / "index.json", [{"id": f"s{i}", "step": 0, "file": file} for i, file in enumerate(named)]
    )
    (directory / "saves" / "step-000002" / "manifest.json").write_text('{"step": 3, "files": ["../../../canary.txt"]}')
    before = {k: v for k, v in loose(tmp_path).items() if "/cat/" not in k}
    assert routes.post("/runs/cat/delete", {"confirm": "cat"}).status == 200
    assert {k: v for k, v in loose(tmp_path).items() if "/cat/" not in k} == before
    assert (directory / "saves" / "step-000002" / "lora.safetensors").is_file()


@posix
def test_a_folder_exchanged_for_a_link_while_deleting_leads_nowhere(
    routes: RouteServer, pack_nodes: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    removal = our_module(pack_nodes, "routes.removal")
    twin = write_run(tmp_path / "elsewhere", "cat")
    before = loose(twin)
    listed = removal.listed_files

    def swap(directory: Path) -> Any:
        files = listed(directory)
        for folder in ("saves/step-000004", "samples"):
            (directory / folder).rename(tmp_path / f"aside-{Path(folder).name}")
            (directory / folder).symlink_to(twin / folder)
        return files

    monkeypatch.setattr(removal, "listed_files", swap)
    assert routes.post("/runs/cat/delete", {"confirm": "cat"}).status == 200
    assert loose(twin) == before
    assert not (routes.runs / "cat" / "saves" / "step-000002").exists()


@posix
@pytest.mark.parametrize("folder", ["samples", "samples/step-000000_p0.mp4"])
def test_a_clip_exchanged_for_a_link_while_it_is_asked_for_is_not_sent(
    routes: RouteServer, pack_nodes: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, folder: str
) -> None:
    handlers = our_module(pack_nodes, "routes.handlers")
    twin = write_run(tmp_path / "elsewhere", "cat")
    (twin / "samples" / "step-000000_p0.mp4").write_bytes(CANARY)
    find = handlers.find_sample

    def swap(directory: Path, sample_id: str) -> Any:
        found = find(directory, sample_id)
        (directory / folder).rename(tmp_path / "aside")
        (directory / folder).symlink_to(twin / folder)
        return found

    monkeypatch.setattr(handlers, "find_sample", swap)
    answer = routes.get("/runs/cat/samples/step-000000_p0")
    assert answer.status == 404
    assert CANARY not in answer.body
