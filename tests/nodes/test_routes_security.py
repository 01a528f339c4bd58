"""Nobody but this server's own page changes anything, and no answer holds what is not the reader's (S9, S10, S13)."""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from route_server import CHANGE, SCAN, RouteServer, Worker, assert_safe, loose, our_module

from wan_core.events import StepSkipped
from wan_core.files import atomic_write_json
from wan_core.job.config import RunStatus, write_status
from wan_core.metrics import JsonlSink

pytestmark = pytest.mark.comfy
posix = pytest.mark.skipif(os.name == "nt", reason="Windows has another way to open a folder")

CLIP_PATH = "/runs/cat/samples/step-000000_p0"
SCRIPT = "<img src=x onerror=\"document.title='owned'\">"
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
    "/runs/cat/profile": b"{}",
    "/runs/dog/delete": b'{"confirm": "dog"}',
    "/runs/dog/open": b"{}",
    "/runs/dog/use": b'{"step": 4}',
    "/plan": b"{}",
    "/import": b'{"files": {"a.toml": "x = 1"}}',
    "/cache/trim": b'{"confirm": true}',
    f"/scans/{SCAN}/choice": b'{"clip": 0, "before": {}, "choice": {"excluded": true}}',
    f"/scans/{SCAN}/undo": b'{"change": 1}',
    f"/scans/{SCAN}/replace": b'{"find": "red", "by": "blue", "captions": 1, "places": 1}',
    f"/scans/{SCAN}/caption": b'{"clip": 0, "before": "a red cat", "text": "a black cat"}',
    f"/scans/{SCAN}/measure": b"{}",
}


def test_there_are_twelve_strangers_and_they_try_every_route_that_changes(
    routes: RouteServer, pack_nodes: dict[str, Any]
) -> None:
    package = our_module(pack_nodes, "routes")
    doors = package.Doors(None)
    tables = package.RunRoutes(None, None, None, None).table() + package.ScanRoutes(doors, None).table()
    tables += package.CacheRoutes(doors, None, None).table()
    posts = {path.rpartition("/")[2] for method, path, _ in tables if method == "POST"}
    assert posts == {path.rpartition("/")[2] for path in ROUTES}
    assert len(STRANGERS) == 12


@pytest.mark.parametrize("who", STRANGERS)
def test_a_stranger_changes_nothing(routes: RouteServer, worker: Worker, opened: list[Path], who: str) -> None:
    before = loose(routes.runs), loose(routes.clips)
    for path, body in ROUTES.items():
        answer = routes.ask("POST", f"/wan_trainer{path}", STRANGERS[who](routes.port), body)
        assert answer.status in (403, 415), path
        assert_safe(answer)
    assert (loose(routes.runs), loose(routes.clips)) == before
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
    assert statuses == [*[200] * 9, 202, 200, 202, 202, 202, 202]
    assert sorted(worker.heard) == ["profile", "sample", "save", "stop"]
    assert not (routes.runs / "dog").exists()
    assert opened == [routes.runs / "dog"]
    assert [(routes.clips / f"a{n}.txt").read_text(encoding="utf-8") for n in (0, 1)] == ["a red cat\n", "a blue dog"]


@pytest.mark.parametrize(
    "host", ["", "evil.example", "127.0.0.1.evil.example", "a@127.0.0.1", "127.0.0.1:x", "0x7f.1 "]
)
def test_a_host_that_is_no_address_of_ours_is_refused(routes: RouteServer, worker: Worker, host: str) -> None:
    answer = routes.ask("POST", "/wan_trainer/runs/cat/stop", [*CHANGE.items(), ("Host", host)], b"{}")
    assert answer.status in (400, 403)  # 400: aiohttp itself
    assert worker.heard == []


BOUND = "evil.example:8188"
"""a name somebody else's page was opened under, and which then leads here (DNS rebinding)"""


READABLE = ("/ids", "/runs", "/runs/cat", "/runs/cat/metrics", "/runs/cat/workflow", "/runs/cat/log", CLIP_PATH)


@pytest.mark.parametrize("path", [*READABLE, f"/scans/{SCAN}/captions", f"/scans/{SCAN}/clips/0"])
def test_nobody_reads_under_a_name_that_is_not_ours(routes: RouteServer, path: str) -> None:
    assert routes.get(path).status == 200
    for host in (BOUND, "127.0.0.1.evil.example", "localhost.evil.example", "evillocalhost", ""):
        answer = routes.get(path, Host=host)
        assert answer.status in (400, 403), host
        assert_safe(answer)
        assert b"cat" not in answer.body
    routes.hosts.append("gpu-box")
    ours = ("localhost", "localhost.:8188", "wan.localhost", "[::1]:8188", "192.168.1.7:8188", "0.0.0.0:8188")
    for host in (*ours, "gpu-box:8188", "GPU-Box", "gpu-box."):
        assert routes.get(path, Host=host).status == 200, host


def test_the_refusal_names_the_line_to_add(routes: RouteServer) -> None:
    said = routes.get("/runs", Host="gpu-box.lan:8188").data["error"]
    assert 'add ["gpu-box.lan"] to wan_trainer/hosts.json in its user folder' in said
    assert len(said) < 300, "the page shows no more"
    assert '["comfy_ui"]' in routes.get("/runs", Host="comfy_ui:8188").data["error"]  # a service of Docker
    odd = routes.get("/runs", Host="<b>x")
    assert odd.status in (400, 403)
    assert b"<b>" not in odd.body


def test_a_page_the_browser_vouches_for_needs_no_list(routes: RouteServer, worker: Worker) -> None:
    """Browsers send Sec-Fetch-Site to localhost and over TLS alone, where a bound name has no certificate, and no
    script can set it: behind a TLS proxy every name is the server's own."""
    proxied = {"Host": "abc-8188.proxy.example", "Sec-Fetch-Site": "same-origin"}
    assert routes.get("/runs", **{k.replace("-", "_"): v for k, v in proxied.items()}).status == 200
    page = [*CHANGE.items(), *proxied.items(), ("Origin", "https://abc-8188.proxy.example")]
    assert routes.ask("POST", "/wan_trainer/runs/cat/save", page, b"{}").status == 202
    assert worker.heard == ["save"]
    for site in (["cross-site"], ["same-site"], ["same-origin", "same-origin"]):
        headers = [("Host", BOUND), *(("Sec-Fetch-Site", value) for value in site)]
        assert routes.ask("GET", "/wan_trainer/runs", headers).status == 403, site
        assert routes.ask("POST", "/wan_trainer/runs/cat/stop", [*CHANGE.items(), *headers], b"{}").status == 403, site
    assert worker.heard == ["save"]


def test_the_server_knows_the_name_of_its_own_computer(
    pack_nodes: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = our_module(pack_nodes, "routes")
    monkeypatch.setattr(socket, "gethostname", lambda: "Render-1")
    monkeypatch.setattr(our_module(pack_nodes, "bridge.folders"), "user_file", lambda name: tmp_path / name)
    assert package._known_hosts() == ["Render-1", "Render-1.local"]
    (tmp_path / "hosts.json").write_text('["a", 1]', encoding="utf-8")
    assert package._known_hosts() == ["a", "Render-1", "Render-1.local"]


def test_reading_never_changes_and_changing_is_never_reading(routes: RouteServer, worker: Worker) -> None:
    before = loose(routes.runs), loose(routes.clips)
    for path in ROUTES:
        assert routes.ask("GET", f"/wan_trainer{path}", CHANGE).status == 405
        assert routes.ask("PUT", f"/wan_trainer{path}", CHANGE).status == 405
    assert routes.ask("POST", "/wan_trainer/runs/cat", CHANGE, b"{}").status == 405
    assert (loose(routes.runs), loose(routes.clips)) == before
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
    with pytest.raises(our_module(pack_nodes, "routes.guard").Refused) as refused:
        check(remote, headers)
    assert refused.value.status == 403


@pytest.mark.parametrize("header", ["X-Forwarded-For", "x-forwarded-for", "Forwarded", "X-Real-IP", "Via"])
def test_the_route_opens_no_folder_for_whom_a_proxy_speaks(
    routes: RouteServer, opened: list[Path], header: str
) -> None:
    answer = routes.ask("POST", "/wan_trainer/runs/dog/open", [*CHANGE.items(), (header, "203.0.113.9")], b"{}")
    assert answer.status == 403
    assert "own screen" in answer.data["error"]
    assert_safe(answer)
    assert opened == []
    assert routes.post("/runs/dog/open").status == 202
    assert opened == [routes.runs / "dog"]


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
        '{"event": "step", "step": "5", "loss": "x", "seconds": "y", "memory": []}',
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
