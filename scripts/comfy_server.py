"""A real ComfyUI with this pack as a child process, for the demo and the tests.

    with ComfyServer(base, comfyui=tree) as comfy:
        entry = comfy.run(graph)            # queue through POST /prompt and wait
        files = comfy.outputs(entry, "9")   # what node 9 showed

The server gets a base directory of its own (custom_nodes, models, input, output, temp, user), so nothing outside is
read or written. Standard library only, except `events()` (websocket), which needs the aiohttp that ComfyUI brings.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PACK_NAME = "ComfyUI-WanTrainer"

Graph = dict[str, dict[str, Any]]


class ComfyError(RuntimeError):
    """The server did not start, or a prompt failed. The message ends with the log's last lines."""


# What ComfyUI writes before each line since 2026: ESC[32m[INFO]ESC[0m and a blank. A few lines have a colour besides.
_LEVEL = re.compile(
    r"^(?:\x1b\[\d+m)*\[(?:DEBUG|INFO|WARNING|ERROR|CRITICAL)\]\x1b\[0m (?:\x1b\[3\dm(.*)\x1b\[0m$)?", re.MULTILINE
)


class PromptRefused(ComfyError):  # noqa: N818  (it is named after what happened)
    """POST /prompt returned 400, or dropped a branch. `body` is the parsed response."""

    def __init__(self, message: str, body: dict[str, Any]) -> None:
        super().__init__(message)
        self.body = body


def link_folder(source: Path, link: Path) -> None:
    """Make `link` show `source`: a symlink, on Windows a junction, else a copy."""
    if link.exists() or link.is_symlink():
        return
    try:
        link.symlink_to(source, target_is_directory=True)
        return
    except OSError:
        if os.name == "nt":
            made = subprocess.run(["cmd", "/c", "mklink", "/J", str(link), str(source)], capture_output=True)
            if made.returncode == 0:
                return
    left = shutil.ignore_patterns(".git", ".venv", ".cache", "__pycache__", "demo_output")
    shutil.copytree(source, link, ignore=left)


def make_base(base: Path, packs: Sequence[Path] = ()) -> Path:
    """Creates a base directory with ComfyUI's folders, this pack and `packs`."""
    for name in ("input", "output", "temp", "user", "custom_nodes", "models/diffusion_models"):
        (base / name).mkdir(parents=True, exist_ok=True)
    for name in ("vae", "loras", "text_encoders", "clip_vision"):
        (base / "models" / name).mkdir(exist_ok=True)
    link_folder(ROOT, base / "custom_nodes" / PACK_NAME)
    for pack in packs:
        link_folder(pack.resolve(), base / "custom_nodes" / pack.name)
    return base


class ComfyServer:
    """One ComfyUI process with its own base directory, on a free port."""

    def __init__(
        self,
        base: Path,
        *,
        comfyui: Path | None = None,
        python: str | Path | None = None,
        main: str | Path = "main.py",
        packs: Sequence[Path] = (),
        flags: Sequence[str] = (),
        front_end_root: Path | None = None,
        env: dict[str, str] | None = None,
        cpu: bool = True,
        start_timeout_s: float = 180,
    ) -> None:
        tree = comfyui or Path(os.environ.get("COMFYUI_PATH") or ROOT / ".cache" / "comfyui")
        self.comfyui = Path(tree).resolve()
        self.base = make_base(Path(base).resolve(), packs)
        self.client_id = uuid.uuid4().hex
        self.port = 0
        self.process: subprocess.Popen[bytes] | None = None
        self._python, self._main = str(python or sys.executable), str(main)
        self._flags = list(flags)
        if front_end_root:
            self._flags += ["--front-end-root", str(front_end_root)]
        if cpu:
            self._flags.append("--cpu")
        self._env = env or {}
        self._start_timeout_s = start_timeout_s
        self._starts = 0

    # ---- life ------------------------------------------------------------------------------------

    def __enter__(self) -> ComfyServer:
        return self.start()

    def __exit__(self, *exc: object) -> None:
        self.stop()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def log_file(self) -> Path:
        return self.base / "server.log"

    @property
    def output(self) -> Path:
        return self.base / "output"

    @property
    def pid(self) -> int:
        if self.process is None:
            raise ComfyError("The server is not running.")
        return self.process.pid

    def start(self, port: int = 0) -> ComfyServer:
        """Start and wait for the first response; 0 = a free port. Raises ComfyError with the log's end on failure."""
        if self.process is not None:
            raise ComfyError("The server is running already.")
        self._starts += 1
        self.port = port or _free_port()
        command = [
            *(self._python, "-X", "utf8", self._main, "--port", str(self.port)),
            *("--base-directory", str(self.base), "--database-url", "sqlite:///:memory:"),
            *("--disable-api-nodes", "--disable-auto-launch", *self._flags),
        ]
        env = {**os.environ, **self._env, "PYTHONUNBUFFERED": "1", "DO_NOT_TRACK": "1"}
        env.pop("PYTHONDONTWRITEBYTECODE", None)  # without byte code every start compiles all of ComfyUI again
        with self.log_file.open("ab") as log:
            log.write(f"---- start {self._starts}\n".encode())
            log.flush()
            self.process = subprocess.Popen(
                command,
                cwd=self.comfyui,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=os.name != "nt",  # a Ctrl-C here must not reach the server before stop() does
            )
        deadline = time.monotonic() + self._start_timeout_s
        while True:
            with contextlib.suppress(OSError, ValueError):
                self.get("/system_stats", timeout=2)
                return self
            code = self.process.poll()
            if code is not None:
                self.process = None
                raise ComfyError(f"ComfyUI ended with code {code} before it answered.\n{self._log_end()}")
            if time.monotonic() > deadline:
                self.stop()
                raise ComfyError(f"ComfyUI did not answer within {self._start_timeout_s} s.\n{self._log_end()}")
            time.sleep(0.1)

    def stop(self) -> None:
        """Terminate the server and its child processes, then kill those that remain."""
        process, self.process = self.process, None
        if process is None:
            return
        below = _descendants(process.pid)
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(10)
        for child in below:
            with contextlib.suppress(Exception):
                child.kill()

    def kill(self) -> None:
        """Kill only the server process, as the kernel would: without clean-up, child processes continue."""
        process, self.process = self.process, None
        if process is not None:
            process.kill()
            process.wait(10)

    def restart(self) -> ComfyServer:
        """Stop, then start with the same base directory on another port."""
        self.stop()
        return self.start()

    def children(self) -> list[int]:
        """Process ids of the server's child processes: workers and video decoders."""
        return [child.pid for child in _descendants(self.pid)]

    # ---- talking ---------------------------------------------------------------------------------

    def get(self, path: str, timeout: float = 30) -> Any:
        """GET; JSON parsed when it is JSON, else bytes."""
        return self._open(urllib.request.Request(self.url + path), timeout)

    def post(self, path: str, data: Any = None, timeout: float = 30, headers: dict[str, str] | None = None) -> Any:
        """POST `data` as JSON. An error status raises urllib.error.HTTPError."""
        body = json.dumps({} if data is None else data).encode()
        request = urllib.request.Request(self.url + path, body, {"Content-Type": "application/json", **(headers or {})})
        return self._open(request, timeout)

    def view(self, file: dict[str, str]) -> bytes:
        """Bytes of a file through ComfyUI's /view; `file` is an entry of a node's ui output."""
        query = {key: file.get(key, "") for key in ("filename", "subfolder", "type")}
        return bytes(self.get("/view?" + urllib.parse.urlencode(query)))

    def object_info(self, node: str = "") -> dict[str, Any]:
        """/object_info of all nodes, or of one."""
        return self.get("/object_info" + (f"/{node}" if node else ""), timeout=60)

    def setting(self, name: str, value: Any) -> None:
        """Set a frontend setting, as the settings dialog does."""
        self.post(f"/settings/{name}", value)

    def upload(self, file: Path, subfolder: str = "", overwrite: bool = True) -> dict[str, str]:
        """Upload a file into input/, as a drop on the canvas does."""
        edge = uuid.uuid4().hex
        fields = {
            "subfolder": subfolder,
            "type": "input",
            "overwrite": "true" if overwrite else "false",
        }
        parts = [
            f'--{edge}\r\nContent-Disposition: form-data; name="{key}"\r\n\r\n{value}\r\n'.encode()
            for key, value in fields.items()
        ]
        parts.append(
            f'--{edge}\r\nContent-Disposition: form-data; name="image"; filename="{file.name}"\r\n'
            "Content-Type: application/octet-stream\r\n\r\n".encode()
        )
        body = b"".join([*parts, file.read_bytes(), f"\r\n--{edge}--\r\n".encode()])
        kind = {"Content-Type": f"multipart/form-data; boundary={edge}"}
        return self._open(urllib.request.Request(self.url + "/upload/image", body, kind), 60)

    def queue(
        self,
        prompt: Graph,
        client_id: str | None = None,
        extra_data: dict[str, Any] | None = None,
        partial: bool = False,
    ) -> str:
        """Queue an API graph; returns its prompt id.

        Raises PromptRefused where ComfyUI refuses it, or, unless `partial`, where it drops a branch.
        """
        body: dict[str, Any] = {"prompt": prompt, "client_id": client_id or self.client_id}
        if extra_data:
            body["extra_data"] = extra_data
        try:
            answer = self.post("/prompt", body)
        except urllib.error.HTTPError as refusal:
            said = json.loads(refusal.read() or b"{}")
            raise PromptRefused(f"ComfyUI refused the graph: {_reasons(said)}", said) from None
        if answer.get("node_errors") and not partial:
            raise PromptRefused(f"ComfyUI dropped a branch of the graph: {_reasons(answer)}", answer)
        return str(answer["prompt_id"])

    def history(self, prompt_id: str) -> dict[str, Any] | None:
        """The history entry, or None while the prompt is not finished."""
        return self.get(f"/history/{prompt_id}").get(prompt_id)

    def wait(self, prompt_id: str, timeout: float = 300, check: bool = True) -> dict[str, Any]:
        """Wait for the prompt's history entry. With `check`, raises ComfyError with the reason of a failure."""
        deadline = time.monotonic() + timeout
        while True:
            entry = self.history(prompt_id)
            if entry is not None:
                break
            if self.process is None or self.process.poll() is not None:
                raise ComfyError(f"The server ended while a prompt ran.\n{self._log_end()}")
            if time.monotonic() > deadline:
                raise ComfyError(f"The prompt was not finished within {timeout} s.\n{self._log_end()}")
            time.sleep(0.1)
        if check and entry["status"]["status_str"] != "success":
            raise ComfyError(f"The prompt failed: {self.error(entry) or 'no reason given'}\n{self._log_end()}")
        return entry

    def run(self, prompt: Graph, timeout: float = 300, check: bool = True, **queue: Any) -> dict[str, Any]:
        """Queue and wait."""
        return self.wait(self.queue(prompt, **queue), timeout, check)

    def free(self) -> None:
        """Drop the outputs of earlier prompts and the loaded models, and wait until it is done.

        /free only leaves a note, which the queue reads after a prompt and when it wakes without one. A prompt queued
        before that, as while ComfyUI collects garbage after the last one, is still answered from its cache.
        """
        self.post("/free", {"free_memory": True, "unload_models": True})
        self.run({"freed": {"class_type": "PreviewAny", "inputs": {"source": ""}}})  # the note is read after it

    def interrupt(self, prompt_id: str | None = None) -> None:
        """Press Cancel."""
        self.post("/interrupt", {"prompt_id": prompt_id} if prompt_id else {})

    @staticmethod
    def outputs(entry: dict[str, Any], node: str) -> dict[str, Any]:
        """The ui output of a node in a history entry; empty without one."""
        return entry["outputs"].get(node, {})

    @staticmethod
    def error(entry: dict[str, Any]) -> str:
        """Reason of a failed prompt: `node type: message`, or `interrupted`; empty after success."""
        for kind, data in entry["status"]["messages"]:
            if kind == "execution_error":
                return f"{data['node_type']}: {data['exception_message'].strip()}"
            if kind == "execution_interrupted":
                return "interrupted"
        return ""

    @contextlib.contextmanager
    def events(self, client_id: str | None = None) -> Iterator[Recorder]:
        """Record websocket messages inside. Prompts queued with the same client id send theirs here."""
        recorder = Recorder(self.url, client_id or self.client_id)
        recorder.open()
        try:
            yield recorder
        finally:
            recorder.close()

    # ---- log -------------------------------------------------------------------------------------

    def log_text(self) -> str:
        """Output of all starts of this server, without the colours of newer ComfyUI."""
        try:
            return _LEVEL.sub(r"\1", self.log_file.read_text(encoding="utf-8", errors="replace"))
        except OSError:
            return ""

    def _log_end(self, lines: int = 40) -> str:
        return "Last lines of the server's log:\n" + "\n".join(self.log_text().splitlines()[-lines:])

    @staticmethod
    def _open(request: urllib.request.Request, timeout: float) -> Any:
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(request, timeout=timeout) as answer:
            body = answer.read()
            if "json" in answer.headers.get("Content-Type", ""):
                return json.loads(body)
            return body


class Recorder:
    """Websocket messages of one client: `messages` has (type, data) pairs, `binary` the raw previews."""

    def __init__(self, url: str, client_id: str) -> None:
        self.messages: list[tuple[str, dict[str, Any]]] = []
        self.binary: list[bytes] = []
        self._address = f"{url.replace('http', 'ws', 1)}/ws?clientId={client_id}"
        self._change = threading.Condition()
        self._ready = threading.Event()
        self._closing: Any = None
        self._problem: BaseException | None = None
        self._thread = threading.Thread(target=self._listen, daemon=True)

    def open(self) -> None:
        self._thread.start()
        if not self._ready.wait(30) or self._problem:
            raise ComfyError(f"The websocket did not open: {self._problem or 'no answer'}")

    def close(self) -> None:
        """Stop recording after all messages so far: the server's pong arrives behind them."""
        if self._closing:
            loop, stop = self._closing
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(stop.set)
        self._thread.join(10)

    def of(self, kind: str) -> list[dict[str, Any]]:
        """Data of every message of one type so far."""
        with self._change:
            return [data for name, data in self.messages if name == kind]

    def wait_for(self, kind: str, count: int = 1, timeout: float = 60) -> list[dict[str, Any]]:
        """Wait for `count` messages of one type."""
        with self._change:
            met = self._change.wait_for(lambda: sum(name == kind for name, _ in self.messages) >= count, timeout)
            if not met:
                seen = sorted({name for name, _ in self.messages})
                raise ComfyError(f"No {count} messages of type {kind} within {timeout} s; seen: {', '.join(seen)}")
        return self.of(kind)

    def _listen(self) -> None:
        import asyncio

        try:
            asyncio.run(self._read())
        except BaseException as problem:
            self._problem = problem
            self._ready.set()

    async def _read(self) -> None:
        import asyncio

        import aiohttp

        stop = asyncio.Event()
        async with (
            aiohttp.ClientSession() as session,
            session.ws_connect(self._address, max_msg_size=0, autoping=False) as socket_,
        ):
            await socket_.send_json({"type": "feature_flags", "data": {"supports_preview_metadata": True}})

            async def ask_for_the_end() -> None:
                await stop.wait()
                with contextlib.suppress(ConnectionError):
                    await socket_.ping()

            self._closing = (asyncio.get_running_loop(), stop)
            self._ready.set()
            ending = asyncio.create_task(ask_for_the_end())
            async for message in socket_:
                if message.type == aiohttp.WSMsgType.TEXT:
                    data = json.loads(message.data)
                    with self._change:
                        self.messages.append((data.get("type", ""), data.get("data", {})))
                        self._change.notify_all()
                elif message.type == aiohttp.WSMsgType.BINARY:
                    with self._change:
                        self.binary.append(message.data)
                        self._change.notify_all()
                elif message.type == aiohttp.WSMsgType.PING:
                    await socket_.pong(message.data)
                else:  # the answer to our ping, or an error
                    break
            ending.cancel()


def _reasons(answer: dict[str, Any]) -> str:
    """Returns the refusals of a /prompt response in one line."""
    reasons = []
    for node, found in (answer.get("node_errors") or {}).items():
        for error in found["errors"]:
            reasons.append(f"node {node} ({found['class_type']}): {error['message']}: {error['details']}")
    return "; ".join(reasons) or str((answer.get("error") or {}).get("message", answer))


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _descendants(pid: int) -> list[Any]:
    """Returns the descendants of `pid`, deepest last. Empty without psutil, which ComfyUI requires."""
    try:
        import psutil
    except ImportError:
        return []
    with contextlib.suppress(psutil.Error):
        return psutil.Process(pid).children(recursive=True)
    return []
