"""The engine process as its parent sees it: start it, talk to it, and end it by ever firmer means.

Knows processes and lines, not ComfyUI: what an event means is decided by whoever calls `follow`.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, BinaryIO

from ...wan_core.errors import HELD_ELSEWHERE, RESUME, failure, host_helps
from ...wan_core.events import Event, Failed, Finished, StepDone, parse_event
from ...wan_core.files import FileError, is_held, open_append
from ...wan_core.words import filled
from .host_watch import HostWatch
from .log_file import NEXT_LOG, log_tail, without_noise
from .process import signal_tree, start_process, worker_environment

_LOG_TAIL_BYTES = 4000
_KILLED_WHEN_FULL = (
    "The training process was killed by the system, most likely because the computer's own memory (RAM) was full: "
    "{reason}."
)
_KILLED_WITH_ROOM = (
    "The training process was killed from outside; why is not known. Shortly before, the computer's own memory (RAM) "
    "had room ({reason}). If you or another program ended it, nothing has to change."
)
_KILLED = (-9, 137)
"""Linux kills so what takes the last of the memory; 137 is the same through a shell or torchrun"""


@dataclass(frozen=True)
class Patience:
    """The seconds each means of stopping is given."""

    command_s: float = 30.0
    """after the command; at least two steps of the run"""
    terminate_s: float = 5.0
    """after the signal, before the kill; Windows has no such signal, and kills"""
    poll_s: float = 0.1
    """between looks at the Cancel button"""


@dataclass(frozen=True)
class Ending:
    """The end of a worker."""

    exit_code: int
    cancelled: bool
    """the user asked for it"""
    killed: bool
    """it did not obey, or a second press wanted it gone at once"""
    finished: Finished | None
    failed: Failed | None
    log_tail: str
    memory: str = ""
    """what it and the computer held when last looked at: "it held 3.1 GiB ..."; "" where nobody could look"""
    was_full: bool = True
    """whether the computer's memory was nearly full then; True too where nobody could look"""
    held: str = ""
    """what ComfyUI itself holds of it: "9.4 GiB (WanTEModel 6.7 ...)"; "" where that is little or not known"""

    def sentence(self) -> str:
        """Returns the reason it did not end well, for the user."""
        if self.failed is not None:
            return self.failed.message
        if self.exit_code in _KILLED:
            seen = self.memory or "how much was in use is not known"
            what = _KILLED_WHEN_FULL if self.was_full else _KILLED_WITH_ROOM
            helps = host_helps(self.held)
            return failure(filled(what, reason=seen), helps=helps, if_again=not self.was_full, closing=RESUME)
        last = " ".join(" ".join(without_noise(self.log_tail)).split())[-300:]
        what = filled(
            "The training process ended unexpectedly (exit code {code}; its log ends with: {log}).",
            code=self.exit_code,
            log=last or "nothing",
        )
        return failure(what, closing=RESUME)


def _opened_log(log: Path) -> tuple[Path, BinaryIO]:
    """Opens the log, or one beside it while a program keeps the log for itself, as Windows lets it."""
    try:
        return log, open_append(log)
    except OSError as error:
        if not is_held(error, log):
            raise
        beside = log.with_name(NEXT_LOG)
        return beside, open_append(beside)


class Worker:
    """One engine process. stdin carries commands, stdout events, stderr goes straight into the log file."""

    def __init__(self, command: Sequence[str], cwd: Path, log: Path, held: str = "") -> None:
        """`held`: what ComfyUI itself holds of the computer's memory, in words."""
        self._held = held
        self._log, opened = _opened_log(log)
        with opened as stderr:
            self._log_start = stderr.tell()
            self.process = start_process(command, cwd, worker_environment({**os.environ, HELD_ELSEWHERE: held}), stderr)
        self._events: queue.Queue[Event | None] = queue.Queue()
        self._sending = threading.Lock()
        self._reader = threading.Thread(target=self._read, daemon=True, name="wan-trainer-events")
        self._reader.start()

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        """Leaves no process behind, whatever happened to the caller."""
        if self.process.poll() is None:
            self.kill()
        self._reader.join(5)
        for pipe in (self.process.stdin, self.process.stdout):
            with contextlib.suppress(OSError, ValueError):
                if pipe is not None:
                    pipe.close()

    def send(self, command: str, **values: Any) -> None:
        """One command; a worker that is gone is not an error."""
        assert self.process.stdin is not None
        line = json.dumps({"command": command, **values}, ensure_ascii=True) + "\n"
        with self._sending, contextlib.suppress(OSError, ValueError):
            self.process.stdin.write(line.encode("ascii"))
            self.process.stdin.flush()

    def events(self, wait_s: float) -> Iterator[Event]:
        """Returns the events that have come, waiting at most `wait_s` for the first."""
        with contextlib.suppress(queue.Empty):
            event = self._events.get(timeout=wait_s)
            while event is not None:
                yield event
                event = self._events.get_nowait()

    def follow(
        self, on_event: Callable[[Event], None], cancel_pressed: Callable[[], bool], patience: Patience | None = None
    ) -> Ending:
        """Hand every event to `on_event` until the process ended. A press of Cancel stops it: command, signal, kill.

        A second press kills at once; committed saves stand.
        """
        stop = _Stopping(self, patience or Patience())
        watch = HostWatch(self.process.pid)
        finished: Finished | None = None
        failed: Failed | None = None
        while True:
            for event in self.events(stop.patience.poll_s):
                if isinstance(event, Finished):
                    finished = event
                elif isinstance(event, Failed):
                    failed = event
                elif isinstance(event, StepDone):
                    stop.step_s = max(stop.step_s, event.seconds or 0.0)
                on_event(event)
                if cancel_pressed():
                    stop.press()
            if cancel_pressed():
                stop.press()
            stop.tick()
            watch.look()
            if self.process.poll() is not None and not self._reader.is_alive() and self._events.empty():
                break
            if self.process.poll() is not None and not stop.wait_for_reader():
                break
        tail = self.log_tail()
        self._note_end(finished or failed)
        return Ending(
            *(self.process.returncode, stop.pressed, stop.killed, finished, failed, tail),
            *(watch.in_words, watch.was_full, self._held),
        )

    def log_tail(self) -> str:
        """The last lines this process wrote into the log."""
        return log_tail(self._log, _LOG_TAIL_BYTES, self._log_start)

    def _note_end(self, said: Event | None) -> None:
        """Write into the log how a process ended that could not say so itself."""
        code = self.process.returncode
        if said is not None or code == 0:
            return
        how = f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"
        with contextlib.suppress(OSError, FileError), open_append(self._log) as log:
            when = datetime.now().isoformat(" ", "milliseconds").replace(".", ",")
            log.write(f"{when} INFO wan_trainer: the training process {how}, without a word\n".encode())

    def terminate(self) -> None:
        """Ask the process and everything below it to end; on Windows, where nobody would hear, end them."""
        signal_tree(self.process, force=False)

    def kill(self) -> None:
        """End the process and everything below it now."""
        signal_tree(self.process, force=True)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(10)

    def _read(self) -> None:
        assert self.process.stdout is not None
        with contextlib.suppress(OSError, ValueError):
            for line in self.process.stdout:
                event = parse_event(line.decode("utf-8", "replace"))
                if event is not None:
                    self._events.put(event)
        self._events.put(None)


class _Stopping:
    """The state of the escalation."""

    def __init__(self, worker: Worker, patience: Patience) -> None:
        self.worker, self.patience = worker, patience
        self.pressed = self.killed = False
        self.step_s = 0.0
        self._deadline = 0.0
        self._terminated = False
        self._reader_deadline = 0.0

    def press(self) -> None:
        if self.pressed:
            self._kill()
            return
        self.pressed = True
        self._deadline = time.monotonic() + max(self.patience.command_s, 2 * self.step_s)
        self.worker.send("stop", reason="Cancel was pressed")

    def tick(self) -> None:
        """Go one means further when its time is over."""
        if not self.pressed or self.killed or time.monotonic() < self._deadline:
            return
        if self._terminated:
            self._kill()
            return
        self._terminated = True
        self._deadline = time.monotonic() + self.patience.terminate_s
        self.worker.terminate()

    def wait_for_reader(self) -> bool:
        """True while the last lines of an ended process may still come; a grandchild can hold the pipe open."""
        now = time.monotonic()
        self._reader_deadline = self._reader_deadline or now + 5
        return now < self._reader_deadline

    def _kill(self) -> None:
        if not self.killed:
            self.killed = True
            self.worker.kill()
