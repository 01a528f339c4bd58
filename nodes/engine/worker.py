"""The engine process of a run: starts it, sends commands, reads events, and stops it by command, signal and kill.

Independent of ComfyUI; the caller of `follow` handles the events.
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
from .process import NEXT_LOG, HostWatch, log_tail, signal_tree, start_process, without_noise, worker_environment

_LOG_TAIL_BYTES = 4000
_KILLED_WHEN_FULL = (
    "The system killed the training process, most likely because the computer's memory (RAM) was full: {reason}."
)
_KILLED_WITH_ROOM = (
    "The training process was killed from outside, for an unknown reason. Shortly before, the computer's memory (RAM) "
    "was not full ({reason}). If you or another program ended it, change nothing."
)
_KILLED = (-9, 137)
"""exit codes after Linux' out-of-memory kill; 137 is the same through a shell or torchrun"""


@dataclass(frozen=True)
class Patience:
    """The seconds to wait for each way of stopping."""

    command_s: float = 30.0
    """between command and signal; at least two steps of the run"""
    terminate_s: float = 5.0
    """between signal and kill; on Windows the signal kills already"""
    poll_s: float = 0.1
    """between checks of the Cancel button"""


@dataclass(frozen=True)
class Ending:
    """The end of a worker."""

    exit_code: int
    cancelled: bool
    """whether Cancel was pressed"""
    killed: bool
    """whether it was killed, after no reaction to command and signal, or by a second press"""
    finished: Finished | None
    failed: Failed | None
    log_tail: str
    watch: HostWatch
    held: str
    """host memory that ComfyUI holds: "9.4 GiB (WanTEModel 6.7 ...)"; "" for little or an unknown amount"""

    def sentence(self) -> str:
        """Returns the reason of an unexpected end, for the user."""
        if self.failed is not None:
            return self.failed.message
        if self.exit_code in _KILLED:
            what = filled(
                _KILLED_WHEN_FULL if self.watch.was_full else _KILLED_WITH_ROOM,
                reason=self.watch.in_words or "the memory in use is not known",
            )
            return failure(what, helps=host_helps(self.held), if_again=not self.watch.was_full, closing=RESUME)
        last = " ".join(" ".join(without_noise(self.log_tail)).split())[-300:]
        what = filled(
            "The training process ended unexpectedly (exit code {code}; its log ends with: {log}).",
            code=self.exit_code,
            log=last or "nothing",
        )
        return failure(what, closing=RESUME)


def _opened_log(log: Path) -> tuple[Path, BinaryIO]:
    """Returns the opened log and its path; NEXT_LOG in the same folder while another program holds the log."""
    try:
        return log, open_append(log)
    except OSError as error:
        if not is_held(error, log):  # Windows lets a program open a file exclusively
            raise
        beside = log.with_name(NEXT_LOG)
        return beside, open_append(beside)


class Worker:
    """One engine process: commands to its stdin, events from its stdout, its stderr into the log file."""

    def __init__(self, command: Sequence[str], cwd: Path, log: Path, held: str = "") -> None:
        """`held`: the host memory that ComfyUI holds, in words."""
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
        """Kill the process if it still runs."""
        if self.process.poll() is None:
            self.kill()
        self._reader.join(5)
        for pipe in (self.process.stdin, self.process.stdout):
            with contextlib.suppress(OSError, ValueError):
                if pipe is not None:
                    pipe.close()

    def send(self, command: str, **values: Any) -> None:
        """Send one command; does nothing after the process has ended."""
        assert self.process.stdin is not None
        line = json.dumps({"command": command, **values}, ensure_ascii=True) + "\n"
        with self._sending, contextlib.suppress(OSError, ValueError):
            self.process.stdin.write(line.encode("ascii"))
            self.process.stdin.flush()

    def events(self, wait_s: float) -> Iterator[Event]:
        """Yields the received events, waiting at most `wait_s` for the first."""
        with contextlib.suppress(queue.Empty):
            event = self._events.get(timeout=wait_s)
            while event is not None:
                yield event
                event = self._events.get_nowait()

    def follow(
        self, on_event: Callable[[Event], None], cancel_pressed: Callable[[], bool], patience: Patience | None = None
    ) -> Ending:
        """Calls `on_event` for every event until the end. Cancel stops the process, a second press kills it."""
        stop = _Stopping(self, patience or Patience())
        watch = HostWatch(self.process.pid)
        finished, failed = None, None
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
            has_ended = self.process.poll() is not None
            is_read = not self._reader.is_alive() and self._events.empty()
            if has_ended and (is_read or not stop.wait_for_reader()):
                break
        tail = self.log_tail()
        self._note_end(finished or failed)
        code = self.process.returncode
        return Ending(code, stop.pressed, stop.killed, finished, failed, tail, watch, self._held)

    def log_tail(self) -> str:
        """Returns the last lines that this process wrote into the log."""
        return log_tail(self._log, _LOG_TAIL_BYTES, self._log_start)

    def _note_end(self, last: Event | None) -> None:
        """Logs the exit code of a process that sent neither Finished nor Failed."""
        code = self.process.returncode
        if last is not None or code == 0:
            return
        how = f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"
        with contextlib.suppress(OSError, FileError), open_append(self._log) as log:
            when = datetime.now().isoformat(" ", "milliseconds").replace(".", ",")
            log.write(f"{when} INFO wan_trainer: the training process {how} without a final message\n".encode())

    def kill(self) -> None:
        """Kill the process and its children, and wait for its end."""
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
    """The escalation from command to signal to kill."""

    def __init__(self, worker: Worker, patience: Patience) -> None:
        self.worker, self.patience = worker, patience
        self.pressed = self.killed = self._terminated = False
        self.step_s = self._deadline = self._reader_deadline = 0.0

    def press(self) -> None:
        if self.pressed:
            self._kill()
            return
        self.pressed = True
        self._deadline = time.monotonic() + max(self.patience.command_s, 2 * self.step_s)
        self.worker.send("stop", reason="Cancel was pressed")

    def tick(self) -> None:
        """Tries the next way of stopping, if the wait for the last one is over."""
        if not self.pressed or self.killed or time.monotonic() < self._deadline:
            return
        if self._terminated:
            self._kill()
            return
        self._terminated = True
        self._deadline = time.monotonic() + self.patience.terminate_s
        signal_tree(self.worker.process, force=False)

    def wait_for_reader(self) -> bool:
        """Returns whether to wait for the last lines of an ended process, at most five seconds."""
        now = time.monotonic()
        self._reader_deadline = self._reader_deadline or now + 5  # a grandchild can hold the pipe open
        return now < self._reader_deadline

    def _kill(self) -> None:
        if not self.killed:
            self.killed = True
            self.worker.kill()
