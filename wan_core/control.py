"""Control of a running worker: commands are JSON lines on stdin; end of file means the parent has died."""

from __future__ import annotations

import json
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from .errors import Stopped
from .events import COMMANDS
from .pipes import lines

_LONGEST_LINE = 1 << 16


class Control(Protocol):
    """A source of requests to the training loop."""

    def stop_reason(self) -> str:
        """Returns the reason of a requested stop, or "". Called at every micro-step and denoising step."""
        ...

    def take(self, command: str) -> bool:
        """Returns True once per request of `command` (save, sample, profile)."""
        ...

    def wait_decoded(self, sample_id: str, timeout_s: float) -> dict[str, Any] | None:
        """Returns the answer to the event `decode_wanted`: an error after the timeout, None if no process decodes.
        Raises Stopped.
        """
        ...


def stop_on_signals(stop: Callable[[str], bool]) -> None:
    """Call `stop(reason)` on SIGINT, SIGTERM, SIGHUP and SIGUSR1; a second signal ends the process at once."""

    def on_signal(number: int, _frame: object) -> None:
        if not stop(f"signal {signal.Signals(number).name}"):
            raise KeyboardInterrupt  # saved steps are complete on disk

    if threading.current_thread() is threading.main_thread():
        for name in ("SIGINT", "SIGTERM"):
            signal.signal(getattr(signal, name), on_signal)
        hangup = getattr(signal, "SIGHUP", None)  # a closed terminal; Windows has no SIGHUP
        if hangup is not None and signal.getsignal(hangup) != signal.SIG_IGN:  # nohup ignores it
            signal.signal(hangup, on_signal)
        # Slurm's `--signal=USR1@...` warns before the time limit. Set also if torchrun made the process ignore it.
        if hasattr(signal, "SIGUSR1"):
            signal.signal(signal.SIGUSR1, on_signal)


def _ignore_signals() -> None:
    """Ignores stop signals: the parent process receives them too and sends the command `stop`."""
    # Terminals and service managers signal the whole process group. Signal and command would count as two signals, and
    # the second ends the process at once.
    if threading.current_thread() is threading.main_thread():
        for name in ("SIGINT", "SIGTERM", "SIGHUP"):
            if hasattr(signal, name):
                signal.signal(getattr(signal, name), signal.SIG_IGN)


class NoControl:
    """Control without requests."""

    def stop_reason(self) -> str:
        return ""

    def take(self, command: str) -> bool:
        return False

    def wait_decoded(self, sample_id: str, timeout_s: float) -> dict[str, Any] | None:
        return None


class SignalControl(NoControl):
    """Control without a parent process: the signals of `stop_on_signals` stop after the current step; stdin is ignored.

    `signals` is False for ranks that receive stops from another rank.
    """

    def __init__(self, *, signals: bool = True) -> None:
        self._reason = ""
        stop_on_signals(self._stop) if signals else _ignore_signals()

    def _stop(self, reason: str) -> bool:
        first, self._reason = not self._reason, self._reason or reason
        return first

    def stop_reason(self) -> str:
        return self._reason


class PipeControl:
    """Control by commands from a pipe, which a thread reads. The end of the pipe stops the run: the parent has died.

    Signals are handled from the start, unless `signals` is False. Commands stay in the pipe until `listen` is called,
    once all libraries are imported.
    """

    def __init__(self, file: int, *, signals: bool = True) -> None:
        # RLock: a signal handler may run while the main thread holds the lock.
        self._changed = threading.Condition(threading.RLock())
        self._reason = ""
        self._pending: deque[str] = deque()
        self._decoded: dict[str, dict[str, Any]] = {}
        self._file = file
        stop_on_signals(self._stop) if signals else _ignore_signals()

    def listen(self) -> None:
        """Start reading commands."""
        threading.Thread(target=self._read, daemon=True, name="commands").start()

    def _read(self) -> None:
        try:
            for line in lines(self._file, _LONGEST_LINE):
                self._accept(line)
        finally:  # without this thread no command could stop the worker
            self._stop("the parent process ended")

    def _accept(self, line: bytes) -> None:
        try:
            message = json.loads(line)
            command = message["command"]
        except (ValueError, KeyError, TypeError, RecursionError):
            command, message = "", {}
        if not isinstance(command, str) or command not in COMMANDS:
            print(f"Unknown command ignored: {line[:200]!r}", file=sys.stderr)  # noqa: T201
        elif command == "stop":
            self._stop(str(message.get("reason") or "stopped by the user"))
        else:
            with self._changed:
                if command == "decoded":
                    self._decoded[str(message.get("sample_id"))] = message
                elif command not in self._pending:
                    self._pending.append(command)
                self._changed.notify_all()

    def _stop(self, reason: str) -> bool:
        with self._changed:
            first, self._reason = not self._reason, self._reason or reason
            self._changed.notify_all()
        return first

    def stop_reason(self) -> str:
        return self._reason

    def take(self, command: str) -> bool:
        with self._changed:
            if command not in self._pending:
                return False
            self._pending = deque(c for c in self._pending if c != command)
            return True

    def wait_decoded(self, sample_id: str, timeout_s: float) -> dict[str, Any] | None:
        deadline = time.monotonic() + timeout_s
        with self._changed:
            while sample_id not in self._decoded:
                if self._reason:
                    raise Stopped(self._reason)
                left = deadline - time.monotonic()
                if left <= 0:
                    return {"error": f"no answer within {timeout_s:.0f} s"}
                self._changed.wait(left)
            answer = self._decoded.pop(sample_id)
            return None if answer.get("nobody") else answer
