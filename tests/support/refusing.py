"""File systems that lack calls: a library, `refusing.c`, that is loaded before the C library and says so in its place.

Linux with glibc and a C compiler.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.support.forked import ROOT, ForkServer, Worker
from tests.support.tiny_run import SHORT, TinyRun, make_run
from wan_core.train import TrainConfig

SOURCE = Path(__file__).with_suffix(".c")
BUILDS = ROOT / ".cache" / "refusing"
DELETE = Path(__file__).with_name("delete_run.py")
_FIRST = "import os, posix, wan_core.files.locks as locks; os.fsync, locks._SETTLE_S = posix.fsync, 0.01"
"""the server that processes are forked from waits for no disk; and no other machine is waited for here"""
_WAITS = "the run waits and loses nothing"


def missing() -> str:
    """Says what this machine lacks for such file systems; '' when they are to be had."""
    if not sys.platform.startswith("linux"):
        return "a library that is loaded before the C library, as Linux does it"
    return "" if _compiler() else "no C compiler (cc or gcc) for file systems that lack calls"


def _compiler() -> str | None:
    return shutil.which("cc") or shutil.which("gcc")


def _library() -> Path:
    """Returns the library, built where this source has none yet."""
    target = BUILDS / f"{hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:16]}.so"
    if not target.exists():
        BUILDS.mkdir(parents=True, exist_ok=True)
        whole = target.with_suffix(f".{os.getpid()}")
        command = [str(_compiler()), "-shared", "-fPIC", "-O1", "-Wall", "-Werror", str(SOURCE), "-o", str(whole)]
        subprocess.run([*command, "-ldl"], check=True)
        whole.replace(target)
    return target


def environment(refused: Mapping[str, int], below: Path, log: Path) -> dict[str, str]:
    """What a process is started with that finds `refused` lacking in the folder `below`.

    By call, an error; `log` has a letter for each call that was refused.
    """
    return {
        "LD_PRELOAD": str(_library()),
        "REFUSED": " ".join(f"{call}={number}" for call, number in refused.items()),
        "REFUSED_BELOW": str(below),
        "REFUSED_LOG": str(log),
    }


@dataclass
class Outcome:
    """How a run fared: trained with a save, trained on from it, deleted."""

    trained: tuple[str, ...] = ()
    """what of it was done: train, resume, delete"""
    said: str = ""
    """the sentence that ended it, or with which it waits"""
    calls: int = 0
    """how many were refused"""
    notes: tuple[str, ...] = ()
    lora: bytes = b""
    left: tuple[str, ...] = ()
    """files that are there when the run was deleted"""


class Refusing:
    """Runs on a file system that lacks calls."""

    def __init__(self, comfyui: Path) -> None:
        self._comfyui = comfyui
        self._server = ForkServer(environment=environment({}, Path(), Path()))

    def close(self) -> None:
        self._server.close()

    def command(self, run: TinyRun, refused: Mapping[str, int], *more: str) -> Worker:
        """A training of the run, begun."""
        words = ["train", str(run.directory), "--roots", str(run.roots_file), *more]
        return self._begun(run, refused, words)

    def _begun(self, run: TinyRun, refused: Mapping[str, int], words: list[str], script: str = "") -> Worker:
        # What a process says lies elsewhere, and so do weights: those of the user are often on another drive.
        root = run.roots_file.parent
        given = environment(refused, root / "runs", root / "refused")
        out = root / f"out-{time.monotonic_ns()}.jsonl"
        return self._server.start(words, out, first=_FIRST, script=script, environment=given)

    def fare(self, folder: Path, refused: Mapping[str, int]) -> Outcome:
        """Trains the smallest run with a save, trains it on, and deletes it."""
        train = TrainConfig(**{**SHORT, "steps": 2, "save_every_n_steps": 1})  # type: ignore[arg-type]
        run, outcome = make_run(folder, train=train), Outcome()
        for what, more, code in (("train", ["--max-steps", "1"], 3), ("resume", [], 0)):
            self._train(run, refused, outcome, what, more, code)
            if outcome.said:
                break
        else:
            file = run.directory / "saves" / "step-000002" / "lora.safetensors"
            outcome.lora = file.read_bytes() if file.exists() else b""
            self._delete(run, refused, outcome)
        if (log := folder / "refused").exists():
            outcome.calls = log.stat().st_size
        return outcome

    def _train(
        self, run: TinyRun, refused: Mapping[str, int], outcome: Outcome, what: str, more: list[str], code: int
    ) -> None:
        worker = self.command(run, refused, *more)
        ended = self._ended(worker)
        notes = [event["text"] for event in worker.events() if event["event"] == "note"]
        outcome.notes += tuple(notes)
        if waits := [text for text in notes if _WAITS in text]:
            outcome.said = waits[0]
        elif ended == code:
            outcome.trained += (what,)
        else:
            said = [event["message"] for event in worker.events() if event["event"] == "failed"]
            outcome.said = said[-1].replace(str(run.roots_file.parent), "") if said else f"exit code {ended}"

    def _ended(self, worker: Worker) -> int:
        """The exit code; a run that waits for its file system is stopped."""
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            events = worker.events()
            if any(_WAITS in event.get("text", "") for event in events) or _has_ended(worker.pid):
                break
            time.sleep(0.02)
        if not _has_ended(worker.pid):
            os.kill(worker.pid, signal.SIGTERM)
        return worker.wait()

    def _delete(self, run: TinyRun, refused: Mapping[str, int], outcome: Outcome) -> None:
        worker = self._begun(run, refused, [str(self._comfyui), str(run.directory)], script=str(DELETE))
        code = worker.wait()
        answer = json.loads(worker.out.read_text().splitlines()[-1]) if code == 0 else {"error": worker.log()[-2000:]}
        kept = (
            f"The answer says that {answer['deleted']} files are deleted, and names what stays."
            if answer.get("kept")
            else ""
        )
        outcome.said = answer.get("error", kept)
        outcome.left = tuple(str(path.name) for path in run.directory.rglob("*"))
        if not outcome.said and not run.directory.exists():
            outcome.trained += ("delete",)


def _has_ended(process: int) -> bool:
    return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
