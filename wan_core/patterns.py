"""The only place that compiles and matches regular expressions from users, workflows and files.

A short pattern can take unlimited time in Python's `re`, which holds the GIL and cannot be interrupted. So all patterns
of a setting run in one short-lived process with time and memory limits, and results are cached.
"""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import sys
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextvars import ContextVar
from threading import Lock, Thread
from typing import IO

from .errors import ConfigError, Stopped

LIMIT_S = 5.0
_POLL_S = 0.1
_LONGEST = 2000
_MOST = 2000
_MOST_KEPT = 300_000
"""results of one pattern and name"""
_CHILD = """
import json, re, sys
try:
    import resource
    for limit, most in ((resource.RLIMIT_AS, 1 << 30), (resource.RLIMIT_CPU, 10)):
        resource.setrlimit(limit, (most, most))
except (ImportError, OSError, ValueError):
    pass  # no such limits on Windows, and of memory none on macOS
asked = json.load(sys.stdin)
for pattern in asked["patterns"]:
    print("at", flush=True)
    try:
        known = re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        print("-" + json.dumps(str(error)[:200]))
        continue
    matches = known.fullmatch if asked["whole"] else known.search
    print("+" + "".join("1" if matches(name) else "0" for name in asked["names"]))
"""
"""prints "at" before each pattern, then + and a digit per name, or - and the compiler's message"""

_kept: OrderedDict[tuple[str, bool], dict[str, bool]] = OrderedDict()
"""(pattern, match complete names) -> name -> matches; least recently used first"""
_keeping = Lock()
_should_stop: ContextVar[Callable[[], bool] | None] = ContextVar("_should_stop", default=None)


@contextlib.contextmanager
def waits_end_with(should_stop: Callable[[], bool]) -> Iterator[None]:
    """In this context, waiting raises Stopped once `should_stop` returns True. The outermost context counts."""
    if _should_stop.get() is not None:
        yield
        return
    token = _should_stop.set(should_stop)
    try:
        yield
    finally:
        _should_stop.reset(token)


def matching(
    patterns: Iterable[str], names: Sequence[str], what: str, *, whole: bool, ours: Collection[str] = ()
) -> list[frozenset[str]]:
    """Returns the matched `names` of each pattern; without names only the syntax is checked.

    `what`: the setting's name; `whole`: fullmatch instead of search; `ours`: fast patterns of this pack, matched
    without a process. ConfigError for an invalid pattern, or one beyond the limits; Stopped.
    """
    listed = list(patterns)
    if len(listed) > _MOST:
        raise ConfigError(f"{what} has {len(listed)} patterns. Use at most {_MOST}.")
    for pattern in listed:
        if len(pattern) > _LONGEST:
            raise ConfigError(f"{what} {pattern[:80]!r}... has {len(pattern)} characters. Use at most {_LONGEST}.")
    found = {pattern: frozenset(_matched_here(pattern, names, whole)) for pattern in {*listed} & {*ours}}
    found |= _remembered({*listed} - found.keys(), names, whole)
    if asked := [pattern for pattern in dict.fromkeys(listed) if pattern not in found]:
        answers = _asked(asked, names, what, whole)
        _remember(answers, whole)
        found |= {pattern: frozenset(name for name, yes in said.items() if yes) for pattern, said in answers.items()}
    return [found[pattern] for pattern in listed]


def _matched_here(pattern: str, names: Iterable[str], whole: bool) -> Iterator[str]:
    known = re.compile(pattern)
    matches = known.fullmatch if whole else known.search
    return (name for name in names if matches(name))


def _remembered(patterns: Iterable[str], names: Sequence[str], whole: bool) -> dict[str, frozenset[str]]:
    """Returns cached results of patterns, for those with a result for every name."""
    found: dict[str, frozenset[str]] = {}
    with _keeping:
        for pattern in patterns:
            said = _kept.get((pattern, whole))
            if said is not None and all(name in said for name in names):
                found[pattern] = frozenset(name for name in names if said[name])
                _kept.move_to_end((pattern, whole))
    return found


def _remember(answers: dict[str, dict[str, bool]], whole: bool) -> None:
    with _keeping:
        for pattern, said in answers.items():
            _kept[pattern, whole] = {**_kept.pop((pattern, whole), {}), **said}
        count = sum(1 + len(said) for said in _kept.values())
        while count > _MOST_KEPT:
            count -= 1 + len(_kept.popitem(last=False)[1])


def _asked(patterns: list[str], names: Sequence[str], what: str, whole: bool) -> dict[str, dict[str, bool]]:
    """Returns pattern -> name -> matches of the child process; raises the refusals of `matching`."""
    said, in_time = _from_child({"patterns": patterns, "names": list(names), "whole": whole})
    answers: dict[str, dict[str, bool]] = {}
    lines = said.split("\n")[:-1]  # the last piece is a torn line of a killed process
    for pattern, line in zip(patterns, (line for line in lines if line != "at"), strict=False):
        if line.startswith("-"):
            error = json.loads(line[1:])
            raise ConfigError(f"{what} {pattern[:300]!r} is not a regular expression: {error}.")
        answers[pattern] = dict(zip(names, (digit == "1" for digit in line[1:]), strict=True))
    if len(answers) == len(patterns):
        return answers
    if not lines and in_time:
        raise ConfigError(f"{what} cannot be matched: {sys.executable} does not start. Install Python again.")
    late = len(answers)
    others = f", with {late} before it" if late else ""
    if in_time:
        raise ConfigError(
            f"{what} {patterns[late][:300]!r} takes too much memory to be matched with {len(names)} names{others}. "
            r"Write it shorter, without a repeat inside of a repeat. Example: blocks\.\d+\.ffn\..*"
        )
    raise ConfigError(
        f"{what} {patterns[late][:300]!r} takes more than {LIMIT_S:.0f} s to be matched with {len(names)} "
        f"names{others}. "
        r"Write it without a repeat inside of a repeat. Example: blocks\.\d+\.ffn\..*"
    )


def _from_child(asked: dict[str, object]) -> tuple[str, bool]:
    """Returns the process output, and whether it ended within the time limit. Raises Stopped."""
    given = json.dumps(asked).encode("ascii")
    end, should_stop = time.monotonic() + LIMIT_S, _should_stop.get()
    with subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", _CHILD],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        creationflags=getattr(subprocess, "CREATE_NO_WINDOW", 0),
    ) as child:
        # Not by communicate(): called again after a timeout, it never writes what was left of its input.
        given_to, child.stdin = child.stdin, None
        writer = Thread(target=_write_all, args=(given_to, given), daemon=True)
        writer.start()
        try:
            while True:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    said, _ = child.communicate(timeout=_POLL_S)
                    return said.decode("ascii"), True
                if should_stop is not None and should_stop():
                    raise Stopped
                if time.monotonic() > end:
                    child.kill()
                    return child.communicate()[0].decode("ascii"), False
        finally:
            child.kill()
            writer.join()


def _write_all(pipe: IO[bytes] | None, data: bytes) -> None:
    """Write to a process that may end before it has read everything."""
    assert pipe is not None
    with contextlib.suppress(OSError), pipe:
        pipe.write(data)
