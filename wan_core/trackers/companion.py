"""Starts the sender process of a run, and writes the events of the run to its stdin."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import subprocess
import sys
import threading
from collections import deque
from pathlib import Path

from ..children import OWN_GROUP
from ..events import Event, to_line
from .delivery import Delivery
from .figures import About

_LAUNCH = Path(__file__).resolve().parents[1] / "launch.py"
_MOMENT_S = 0.5
_LATE = (
    "Some messages of this run are not sent yet. A separate process sends them; what the mirror lacks then is copied "
    "when the run is resumed, or by: python wan_core/launch.py send RUN"
)

_ENDED = (
    "it has ended, and later messages of this run are not sent. Check user/wan_trainer/trackers.json; "
    "what the mirror lacks is copied when the run is resumed, or by: python wan_core/launch.py send RUN"
)


class Companion:
    """A `Delivery` to the sender process. Each line that the process writes to stdout is the sentence of a failure."""

    def __init__(self, directory: Path, settings: Path, about: About, *, waits: bool) -> None:
        """`settings`: the settings file. `waits`: `close` waits until all events are sent."""
        command = [sys.executable, "-X", "utf8", str(_LAUNCH), "send", str(directory)]
        self._line = _Line([*command, "--trackers", str(settings), "--follow"], directory.parent, about, waits=waits)
        self._events = Delivery(self._line, late=_LATE)

    def put(self, event: Event) -> None:
        """Queues an event without blocking."""
        self._events.put(event)

    def complaints(self) -> list[str]:
        """Returns the failures since the last call, as sentences."""
        return self._events.complaints() + self._line.heard()

    def close(self) -> list[str]:
        """Ends the events; returns the last failures. The sender process may continue after this process has
        ended."""
        left = self._events.close()
        return self._line.heard() + left


class _Line:
    """The sender process as a destination: each event becomes a line on its stdin."""

    title = "The process that sends this run's messages"

    def __init__(self, command: list[str], folder: Path, about: About, *, waits: bool) -> None:
        self._command, self._folder, self._about = command, folder, about
        self._process: subprocess.Popen[bytes] | None = None
        self._heard: deque[str] = deque()
        self._reader: threading.Thread | None = None
        self.patience_s = float("inf") if waits else _MOMENT_S

    def begin(self) -> None:
        """Starts the process and writes `About`. Raises OSError."""
        self._process = subprocess.Popen(
            self._command,
            # The working directory is not the run's folder, because Windows cannot delete the working directory of a
            # process.
            cwd=self._folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=os.name != "nt",
            creationflags=OWN_GROUP,
        )
        self._reader = threading.Thread(target=self._read, daemon=True, name="wan-companion")
        self._reader.start()
        self._write(json.dumps(dataclasses.asdict(self._about)) + "\n")

    def take(self, event: Event) -> None:
        self._write(to_line(event))

    def end(self) -> None:
        """Closes stdin and waits for the process to exit."""
        if self._process is not None and self._process.stdin is not None and self._reader is not None:
            with contextlib.suppress(OSError, ValueError):
                self._process.stdin.close()
            self._reader.join()
            self._process.wait()

    def heard(self) -> list[str]:
        """Returns the sentences of the process since the last call."""
        return [self._heard.popleft() for _ in range(len(self._heard))]

    def _write(self, line: str) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(line.encode("ascii"))
            self._process.stdin.flush()
        except OSError as error:
            raise BrokenPipeError(_ENDED) from error

    def _read(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        with contextlib.suppress(OSError, ValueError), self._process.stdout as said:
            for line in said:
                with contextlib.suppress(ValueError, KeyError, TypeError):
                    self._heard.append(str(json.loads(line)["said"]))
