"""Nobody but this server's own page changes anything, and no request reads or writes outside a run (rules S1-S19)."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from hostile_paths import HOSTILE_PATHS
from route_server import CHANGE, Answer, RouteServer, loose, our_module, serve, write_run

from wan_core.events import StepSkipped
from wan_core.files import atomic_write_json
from wan_core.metrics import JsonlSink
from wan_core.run import RunStatus, write_status

pytestmark = pytest.mark.comfy
posix = pytest.mark.skipif(os.name == "nt", reason="needs POSIX links, which Windows gives only to administrators")

CANARY = b"the canary sings"
SCRIPT = "<img src=x onerror=\"document.title='owned'\">"


class Worker:
    def __init__(self) -> None:
        self.heard: list[str] = []

    def send(self, command: str, **_: str) -> None:
        self.heard.append(command)


@pytest.fixture
def routes(pack_nodes: dict[str, Any], tmp_path: Path) -> Iterator[RouteServer]:
    """Runs called cat and dog, and canaries wherever a path could lead."""
    runs = tmp_path / "output" / "wan_trainer"
    for name in ("cat", "dog"):
        write_run(runs, name)
    for place in ("canary.txt", "output/canary.txt", "output/wan_trainer/canary.mp4", "output/wan_trainer/canary.txt"):
        (tmp_path / place).write_bytes(CANARY)
    (runs / "_cache").mkdir()
    (runs / "_cache" / "canary.mp4").write_bytes(CANARY)
    (runs / "cat" / "samples" / "secret.mp4").write_bytes(CANARY)  # in no index
    loras = tmp_path / "loras"
    loras.mkdir()
    with serve(pack_nodes, runs, loras) as server:
        yield server


@pytest.fixture
def worker(routes: RouteServer, pack_nodes: dict[str, Any]) -> Iterator[Worker]:
    """The run cat is live; what its worker hears."""
    worker = Worker()
    run = our_module(pack_nodes, "live_runs").LiveRun(run="cat", node="1", prompt_id="p")
    with routes.live.entered(run), run.listening(worker):
        yield worker


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch, pack_nodes: dict[str, Any]) -> list[Path]:
    """The folders that were shown on this computer's screen."""
    shown: list[Path] = []
    monkeypatch.setattr(our_module(pack_nodes, "routes.handlers"), "open_folder", shown.append)
    return shown


# ---- who may change something --------------------------------------------------------------------

JSON = {"Content-Type": "application/json"}
STRANGERS: dict[str, Callable[[int], list[tuple[str, str]]]] = {
    "no header at all": lambda port: [],
    "a form": lambda port: [("Content-Type", "application/x-www-form-urlencoded"), ("X-Wan-Trainer", "1")],
    "a form with files": lambda port: [("Content-Type", "multipart/form-data; boundary=x"), ("X-Wan-Trainer", "1")],
    "JSON called text": lambda port: [("Content-Type", "text/plain"), ("X-Wan-Trainer", "1")],
    "JSON without our header": lambda port: [*JSON.items()],
    "our header with another value": lambda port: [*JSON.items(), ("X-Wan-Trainer", "true")],
    "a sandboxed frame": lambda port: [*CHANGE.items(), ("Origin", "null")],
    "another site": lambda port: [*CHANGE.items(), ("Origin", "http://evil.example")],
    "another port of this computer": lambda port: [*CHANGE.items(), ("Origin", f"http://127.0.0.1:{port + 1}")],
    "a name that was bound to us": lambda port: [
        *CHANGE.items(), ("Host", f"evil.example:{port}"), ("Origin", f"http://evil.example:{port}")
    ],
    "a browser that says cross-site": lambda port: [*CHANGE.items(), ("Sec-Fetch-Site", "cross-site")],
    "two kinds of content": lambda port: [("Content-Type", "application/json, text/plain"), ("X-Wan-Trainer", "1")],
}  # fmt: skip
ROUTES = {
    "/runs/cat/stop": b"{}",
    "/runs/cat/save": b"{}",
    "/runs/cat/sample": b"{}",
    "/runs/dog/delete": b'{"confirm": "dog"}',
    "/runs/dog/open": b"{}",
}


def test_there_are_twelve_strangers_and_they_try_every_route_that_changes(
    routes: RouteServer, pack_nodes: dict[str, Any]
) -> None:
    handlers = our_module(pack_nodes, "routes").RunRoutes(None, None, None, None)
    posts = {path.rpartition("/")[2] for method, path, _ in handlers.table() if method == "POST"}
    assert posts == {path.rpartition("/")[2] for path in ROUTES}
    assert len(STRANGERS) == 12


@pytest.mark.parametrize("who", STRANGERS)
def test_a_stranger_changes_nothing(routes: RouteServer, worker: Worker, opened: list[Path], who: str) -> None:
    before = loose(routes.runs)
    for path, body in ROUTES.items():
        answer = routes.ask("POST", f"/wan_trainer{path}", STRANGERS[who](routes.port), body)
        assert answer.status in (403, 415), path
        assert_safe(answer)
    assert loose(routes.runs) == before
    assert worker.heard == []
    assert opened == []


@pytest.mark.parametrize(
    "extra",
    [
        [],
        [("Origin", "http://127.0.0.1:{port}"), ("Sec-Fetch-Site", "same-origin")],
        [("Host", "localhost:{port}"), ("Origin", "http://localhost:{port}")],
        [("Host", "[::1]:{port}"), ("Origin", "http://[::1]:{port}")],
        [("Host", "gpu-box"), ("Origin", "https://gpu-box")],
        [("Host", "GPU-box:80"), ("Origin", "http://gpu-box")],
    ],
    ids=["a program", "our page", "localhost", "IPv6", "a listed name behind TLS", "default port"],
)
def test_our_own_page_changes_things(
    routes: RouteServer, worker: Worker, opened: list[Path], extra: list[tuple[str, str]]
) -> None:
    """The proof that the strangers above fail for being strangers."""
    routes.hosts.append("gpu-box")
    headers = [*CHANGE.items(), *((name, value.format(port=routes.port)) for name, value in extra)]
    statuses = [
        routes.ask("POST", f"/wan_trainer{path}", headers, body).status for path, body in reversed(ROUTES.items())
    ]
    assert statuses == [202, 200, 202, 202, 202]
    assert sorted(worker.heard) == ["sample", "save", "stop"]
    assert not (routes.runs / "dog").exists()
    assert opened == [routes.runs / "dog"]


@pytest.mark.parametrize(
    "host", ["", "evil.example", "127.0.0.1.evil.example", "a@127.0.0.1", "127.0.0.1:x", "0x7f.1 "]
)
def test_a_host_that_is_no_address_of_ours_is_refused(routes: RouteServer, worker: Worker, host: str) -> None:
    answer = routes.ask("POST", "/wan_trainer/runs/cat/stop", [*CHANGE.items(), ("Host", host)], b"{}")
    assert answer.status in (400, 403)  # 400: aiohttp itself
    assert worker.heard == []


def test_reading_never_changes_and_changing_is_never_reading(routes: RouteServer, worker: Worker) -> None:
    before = loose(routes.runs)
    for path in ROUTES:
        assert routes.ask("GET", f"/wan_trainer{path}", CHANGE).status == 405
        assert routes.ask("PUT", f"/wan_trainer{path}", CHANGE).status == 405
    assert routes.ask("POST", "/wan_trainer/runs/cat", CHANGE, b"{}").status == 405
    assert loose(routes.runs) == before
    assert worker.heard == []


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"null", b"1", b'"x"', b"{", b"\xff\xfe", b"[" * 3000, b'{"a":' * 500], ids=range(9)
)
def test_a_body_that_is_no_object_is_refused(routes: RouteServer, worker: Worker, body: bytes) -> None:
    answer = routes.ask("POST", "/wan_trainer/runs/cat/stop", CHANGE, body)
    assert answer.status == 400
    assert worker.heard == []


def test_a_long_body_is_not_read_to_its_end(routes: RouteServer, worker: Worker) -> None:
    body = b'{"x": "' + b"x" * 100_000 + b'"}'
    assert routes.ask("POST", "/wan_trainer/runs/cat/stop", CHANGE, body).status == 413
    assert worker.heard == []


@pytest.mark.parametrize(
    ("remote", "headers", "allowed"),
    [
        ("127.0.0.1", {}, True),
        ("::1", {}, True),
        ("::ffff:127.0.0.1", {}, True),
        ("192.168.1.5", {}, False),
        ("2001:db8::1", {}, False),
        ("127.0.0.1", {"X-Forwarded-For": "203.0.113.9"}, False),
        ("127.0.0.1", {"Forwarded": "for=203.0.113.9"}, False),
        ("", {}, False),
        (None, {}, False),
        ("localhost", {}, False),
    ],
)
def test_a_folder_opens_only_for_the_computer_it_is_on(
    pack_nodes: dict[str, Any], remote: str | None, headers: dict[str, str], allowed: bool
) -> None:
    check = our_module(pack_nodes, "routes.guard").check_local
    if allowed:
        check(remote, headers)
        return
    with pytest.raises(our_module(pack_nodes, "routes.refusal").Refused) as refused:
        check(remote, headers)
    assert refused.value.status == 403


@posix
def test_opening_a_folder_starts_the_file_manager_with_that_folder(
    routes: RouteServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    if sys.platform == "darwin":
        pytest.skip("macOS has a command of another name")
    monkeypatch.delenv("DISPLAY", raising=False)
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    answer = routes.post("/runs/dog/open")
    assert answer.status == 409
    assert "no desktop" in answer.data["error"]

    program = tmp_path / "bin" / "xdg-open"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nprintf %s "$*" > "{tmp_path}/shown"\n', encoding="utf-8")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent), prepend=os.pathsep)
    monkeypatch.setenv("DISPLAY", ":99")
    assert routes.post("/runs/dog/open").status == 202
    for thread in [t for t in threading.enumerate() if t.name == "wan-trainer-open"]:
        thread.join(20)
    assert (tmp_path / "shown").read_text() == str((routes.runs / "dog").resolve())


# ---- no path leads outside -----------------------------------------------------------------------

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


def assert_safe(answer: Answer) -> None:
    """Never an error of ours, a sniffed type or a stored answer."""
    assert answer.status < 500
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["cache-control"] == "no-store"


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


# ---- deleting ------------------------------------------------------------------------------------


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
    for name in ("baseline_p0.mp4", "baseline_p0.latent", "baseline_p0.png", "job.json", "metrics.json"):
        (folder / name).write_bytes(b"ours")
    index = directory / "samples" / "index.json"
    entry = {"id": "baseline_p0", "step": 0, "file": f"samples/{folder.name}/baseline_p0.mp4"}
    atomic_write_json(index, [*json.loads(index.read_text()), entry])
    assert routes.post("/runs/dog/delete", {"confirm": "dog"}).data["kept"] == []
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


# ---- what answers hold ---------------------------------------------------------------------------

READS = ("/runs", "/runs/cat", "/runs/cat/metrics", "/runs/cat/workflow", "/runs/nobody", "/runs/cat/metrics?since=x")


def test_markup_comes_back_as_data_only(routes: RouteServer) -> None:
    directory = routes.runs / "cat"
    write_status(directory, RunStatus(state="failed", step=4, steps=10, reason=SCRIPT))
    sink = JsonlSink(directory / "metrics.jsonl")
    sink(StepSkipped(step=5, reason=SCRIPT, in_a_row=1))
    sink.close()
    atomic_write_json(directory / "workflow.json", {"nodes": [{"title": SCRIPT}]})
    for path in READS:
        answer = routes.get(path)
        assert answer.headers["content-type"] == "application/json; charset=utf-8"
        assert_safe(answer)
        assert answer.headers["content-security-policy"].startswith("default-src 'none'")
    assert routes.get("/runs/cat").data["reason"] == SCRIPT
    assert routes.get("/runs/cat/metrics").data["records"][-1]["reason"] == SCRIPT
    assert routes.get("/runs/cat/workflow").data["nodes"][0]["title"] == SCRIPT
    for name in (SCRIPT, "<b>"):
        assert b"<" not in routes.get(f"/runs/{quote(name, safe='')}").body


TOKENS = [
    "hf_" + "aB3" * 12,
    "ghp_" + "x9Y" * 12,
    "sk-proj-" + "Zz1" * 12,
    "AKIA" + "ABCDEFGH12345678",
]


def test_no_answer_holds_a_path_or_a_token(routes: RouteServer, tmp_path: Path) -> None:
    directory = routes.runs / "cat"
    secrets = [str(tmp_path), "D:\\films\\somebody", "~/somebody/x", *TOKENS]
    text = " ".join(f"{secret}/x" if secret == str(tmp_path) else secret for secret in secrets)
    write_status(directory, RunStatus(state="failed", step=4, steps=10, reason=text))
    sink = JsonlSink(directory / "metrics.jsonl")
    sink(StepSkipped(step=5, reason=text, in_a_row=1))
    sink.close()
    atomic_write_json(directory / "workflow.json", {"nodes": [{"widgets_values": [text, {"key": text}]}]})
    (directory / "log.txt").write_text(text, encoding="utf-8")
    said = b"".join(routes.get(path).body for path in READS)
    said += b"".join(routes.post(f"/runs/{run}/{name}").body for run in ("cat", "x") for name in ("stop", "delete"))
    assert not [
        secret
        for secret in (*secrets, "somebody")
        if secret.encode() in said or json.dumps(secret)[1:-1].encode() in said
    ]


def test_numbers_json_does_not_know_become_null(routes: RouteServer) -> None:
    with (routes.runs / "cat" / "metrics.jsonl").open("a") as file:
        file.write('{"event": "step", "step": 5, "loss": NaN, "seconds": Infinity}\n')
    write_status(routes.runs / "cat", RunStatus(state="running", step=4, steps=10))
    for path in ("/runs", "/runs/cat", "/runs/cat/metrics"):
        json.loads(routes.get(path).body, parse_constant=lambda name: pytest.fail(f"an answer holds {name}"))
    assert routes.get("/runs/cat/metrics").data["records"][-1]["loss"] is None


def test_records_of_the_wrong_shape_cost_no_answer(routes: RouteServer) -> None:
    lines = [
        '{"event": "step", "step": "5", "loss": "x", "seconds": "y", "memory_bytes": []}',
        '{"event": "evaluated", "step": [], "eval_loss": {}}',
        *("[]", "null", "1", "{}", '{"event": "step"}', '{"event": []}', "x" * 200_000),
    ]
    with (routes.runs / "cat" / "metrics.jsonl").open("a") as file:
        file.write("\n".join(lines) + "\n")
    for path in ("/runs", "/runs/cat", "/runs/cat/metrics"):
        answer = routes.get(path)
        assert answer.status == 200
        assert_safe(answer)
    assert routes.get("/runs/cat/metrics").data["next"] == 10 + len(lines)
