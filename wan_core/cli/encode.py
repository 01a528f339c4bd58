"""`wan_core cache encode`: encodes the clips of a graph; under torchrun, each rank encodes a share.

Encoding needs ComfyUI's VAE and text encoder, so each process starts a ComfyUI server, which runs the caching nodes of
the graph. Ranks communicate inside the node (nodes/bridge/encoding_ranks.py).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, cast

from ..control import Control, PipeControl, SignalControl
from ..errors import ConfigError, DependencyError, Stopped, WanTrainerError
from ..events import Emit
from ..files import read_json
from .output import done

_NODE = "CacheLatents"
_SHOWN = "shown "
"""id prefix of the added output nodes, which show the report of a caching node"""
_PACK = Path(__file__).resolve().parents[2]
_START_S = 600.0
"""longest wait for ComfyUI's first answer, in seconds: enough for many node packs on network storage"""
_CARDS = "CUDA_VISIBLE_DEVICES"

Graph = dict[str, dict[str, Any]]


def add_encode_command(actions: Any) -> None:
    text = "encode the clips of a graph; under torchrun, each rank encodes a share"
    encode = actions.add_parser("encode", help=text, description=text)
    encode.set_defaults(run=_encode)
    encode.add_argument("graph", type=Path, metavar="GRAPH", help="a graph in API form with Cache Latents + Captions")
    encode.add_argument("--comfyui", type=Path, metavar="FOLDER", help="ComfyUI; default: the one around this pack")
    encode.add_argument(
        "--comfyui-options",
        nargs=argparse.REMAINDER,
        default=[],
        metavar="OPTION",
        help="options of ComfyUI, such as --base-directory FOLDER: everything after this word",
    )


def _encode(options: argparse.Namespace, _emit: Emit, out: BinaryIO) -> int:
    graph = encoding_graph(read_json(options.graph))
    tree = (options.comfyui or _PACK.parents[1]).resolve()
    if not (tree / "main.py").is_file():
        raise ConfigError(f"{tree} is not a ComfyUI folder: it has no main.py. Give the folder with --comfyui.")
    rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    control = _control()
    with _comfyui(tree, options.comfyui_options, _rank_environment(os.environ)) as server:
        reports = server.run(graph, control)
    return done(out, {"rank": rank, "ranks": world, "reports": reports})


def _control() -> Control:
    """Returns the control of this process: by signals, or by stdin if a ComfyUI started the process and closes stdin at
    its end."""
    from ..cache import SHARE

    if SHARE not in os.environ:
        return SignalControl()
    control = PipeControl(os.dup(0))
    control.listen()
    return control


def encoding_graph(graph: Any) -> Graph:
    """Returns the caching nodes of a graph and their inputs. Each caching node gets an output node, without which
    ComfyUI would not run it."""
    known = cast("dict[str, Any]", graph) if isinstance(graph, dict) else {}
    nodes: Graph = {name: node for name, node in known.items() if isinstance(node, dict) and "class_type" in node}
    caching = [name for name, node in nodes.items() if str(node["class_type"]).removeprefix("WanTrainer_") == _NODE]
    if not caching:
        raise ConfigError("The graph has no Cache Latents + Captions. Export it in API form: File > Export (API).")
    needed, waiting = dict[str, dict[str, Any]](), list(caching)
    while waiting:
        name = waiting.pop()
        if name in needed or name not in nodes:
            continue
        needed[name] = nodes[name]
        waiting += [str(value[0]) for value in nodes[name].get("inputs", {}).values() if isinstance(value, list)]
    shown = {f"{_SHOWN}{name}": {"class_type": "PreviewAny", "inputs": {"source": [name, 1]}} for name in caching}
    kept = {name: {key: node[key] for key in ("class_type", "inputs") if key in node} for name, node in needed.items()}
    return kept | shown


def _rank_environment(outside: Mapping[str, str]) -> dict[str, str]:
    """Returns the environment of a rank's ComfyUI: one card, and the rendezvous of torchrun."""
    from ..cache import ENCODING

    found = dict(outside)
    found.pop("PYTHONSAFEPATH", None)  # launch.py sets it, but ComfyUI's main.py imports from its own folder
    if "LOCAL_RANK" in outside:
        number = int(outside["LOCAL_RANK"])
        cards = [card for card in outside.get(_CARDS, "").split(",") if card]
        found[_CARDS] = cards[number] if number < len(cards) else str(number)
        found[ENCODING] = "1"
    return found


@contextlib.contextmanager
def _comfyui(tree: Path, words: Sequence[str], environment: Mapping[str, str]) -> Iterator[_ComfyUI]:
    """Runs a ComfyUI server on a free port of this machine until the context or this process ends."""
    with socket.socket() as free, tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as temporary:
        free.bind(("127.0.0.1", 0))
        port = int(free.getsockname()[1])
        free.close()
        command = [sys.executable, str(tree / "main.py"), *words, "--listen", "127.0.0.1", "--port", str(port)]
        # A separate folder and database, because ComfyUI empties its temporary folder at start, even if another server
        # uses it.
        command += ["--temp-directory", temporary, "--database-url", "sqlite:///:memory:", "--disable-auto-launch"]
        with subprocess.Popen(
            command,
            env=dict(environment),
            stdin=subprocess.PIPE,  # a pipe, which closes when this process ends
            stdout=sys.stderr,
            creationflags=getattr(subprocess, "CREATE_NO_WINDOW", 0),
        ) as process:
            try:
                yield _ComfyUI(process, port)
            finally:
                process.kill()  # A kill is safe, because cache entries are written atomically.


class _ComfyUI:
    def __init__(self, process: subprocess.Popen[bytes], port: int) -> None:
        self._process, self._url = process, f"http://127.0.0.1:{port}"

    def run(self, graph: Graph, control: Control) -> list[str]:
        """Runs a graph; returns the reports of its caching nodes. Raises WanTrainerError with the refusal of a node."""
        deadline = time.monotonic() + _START_S
        while self._ask("/queue", control) is None:
            if time.monotonic() > deadline:
                raise DependencyError(f"ComfyUI did not answer within {_START_S:.0f} s. See its log above.")
            time.sleep(0.2)
        queued = self._ask("/prompt", control, {"prompt": graph}) or {}
        if "prompt_id" not in queued:
            raise ConfigError(f"ComfyUI refused the graph: {json.dumps(queued)[:1000]}")
        job = queued["prompt_id"]
        while not (entry := (self._ask(f"/history/{job}", control) or {}).get(job)):
            time.sleep(0.2)
        for kind, data in entry["status"]["messages"]:
            if kind == "execution_error":
                raise WanTrainerError(str(data["exception_message"]).strip())
        shown = sorted(name for name in entry["outputs"] if name.startswith(_SHOWN))
        return ["".join(entry["outputs"][name].get("text", ())) for name in shown]

    def _ask(self, path: str, control: Control, body: Any = None) -> dict[str, Any] | None:
        """Returns the answer to a request; None while ComfyUI does not listen yet."""
        if reason := control.stop_reason():
            raise Stopped(f"Stopped by {reason}; finished entries are kept.")
        if (code := self._process.poll()) is not None:
            raise DependencyError(f"ComfyUI ended with code {code}. See its log above.")
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self._url + path, data, {"Content-Type": "application/json"})
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            return json.load(opener.open(request, timeout=30))
        except urllib.error.HTTPError as error:
            return json.load(error)
        except OSError:
            return None
