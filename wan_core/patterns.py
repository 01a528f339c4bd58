"""The only file that compiles and matches regular expressions from users, workflows and files.

A short pattern can take unlimited time in Python's `re`, which holds the GIL and cannot be interrupted. So the patterns
of a setting run in one short-lived process with time and memory limits. Results are cached.
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
"""characters of a pattern"""
_MOST = 2000
"""patterns of a setting"""
_MOST_CACHED = 300_000
"""cached results, each of one pattern and name"""
_CHILD = """
import json, re, sys
try:
    import resource
    for limit, most in ((resource.RLIMIT_AS, 1 << 30), (resource.RLIMIT_CPU, 10)):
        resource.setrlimit(limit, (most, most))
except (ImportError, OSError, ValueError):
    pass  # Windows has no such limits, macOS none of memory
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
"""Prints "at" before each pattern, then + and a digit per name, or - and the compiler's message."""
_cache: OrderedDict[tuple[str, bool], dict[str, bool]] = OrderedDict()
"""(pattern, `whole`) -> name -> whether it matches; least recently used first"""
_cache_lock = Lock()
_should_stop: ContextVar[Callable[[], bool] | None] = ContextVar("_should_stop", default=None)


@contextlib.contextmanager
def waits_end_with(should_stop: Callable[[], bool]) -> Iterator[None]:
    """Inside, `matching` raises Stopped once `should_stop` returns True. Of nested contexts, the outermost one
    counts."""
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
    """Returns the matched `names` of each pattern. Without names, only the syntax is checked.

    `what`: the setting's name; `whole`: fullmatch instead of search; `ours`: trusted patterns of this pack, matched
    without a process. Raises Stopped, and ConfigError for a pattern that is invalid or exceeds the limits.
    """
    listed = list(patterns)
    if len(listed) > _MOST:
        raise ConfigError(f"{what} has {len(listed)} patterns. Use at most {_MOST}.")
    for pattern in listed:
        if len(pattern) > _LONGEST:
            raise ConfigError(f"{what} {pattern[:80]!r}... has {len(pattern)} characters. Use at most {_LONGEST}.")
    found = {pattern: frozenset(_matched_here(pattern, names, whole)) for pattern in {*listed} & {*ours}}
    found |= _cached({*listed} - found.keys(), names, whole)
    if missing := [pattern for pattern in dict.fromkeys(listed) if pattern not in found]:
        results = _matched_by_child(missing, names, what, whole)
        _store(results, whole)
        found |= {
            pattern: frozenset(name for name, yes in result.items() if yes) for pattern, result in results.items()
        }
    return [found[pattern] for pattern in listed]


def _matched_here(pattern: str, names: Iterable[str], whole: bool) -> Iterator[str]:
    known = re.compile(pattern)
    matches = known.fullmatch if whole else known.search
    return (name for name in names if matches(name))


def _cached(patterns: Iterable[str], names: Sequence[str], whole: bool) -> dict[str, frozenset[str]]:
    """Returns pattern -> matched names, of the patterns with a cached result for every name."""
    found: dict[str, frozenset[str]] = {}
    with _cache_lock:
        for pattern in patterns:
            result = _cache.get((pattern, whole))
            if result is not None and all(name in result for name in names):
                found[pattern] = frozenset(name for name in names if result[name])
                _cache.move_to_end((pattern, whole))
    return found


def _store(results: dict[str, dict[str, bool]], whole: bool) -> None:
    with _cache_lock:
        for pattern, result in results.items():
            _cache[pattern, whole] = {**_cache.pop((pattern, whole), {}), **result}
        count = sum(1 + len(result) for result in _cache.values())
        while count > _MOST_CACHED:
            count -= 1 + len(_cache.popitem(last=False)[1])


def _matched_by_child(patterns: list[str], names: Sequence[str], what: str, whole: bool) -> dict[str, dict[str, bool]]:
    """Returns pattern -> name -> whether it matches; raises the errors of `matching`."""
    output, in_time = _output_of_child({"patterns": patterns, "names": list(names), "whole": whole})
    answers: dict[str, dict[str, bool]] = {}
    lines = output.split("\n")[:-1]  # the last piece is empty, or a torn line of a killed process
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


def _output_of_child(request: dict[str, object]) -> tuple[str, bool]:
    """Returns the process's output, and whether it ended within the time limit. Raises Stopped."""
    data = json.dumps(request).encode("ascii")
    end, should_stop = time.monotonic() + LIMIT_S, _should_stop.get()
    with subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", _CHILD],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        creationflags=getattr(subprocess, "CREATE_NO_WINDOW", 0),
    ) as child:
        # communicate() is not used: called again after a timeout, it does not write the remaining input.
        stdin, child.stdin = child.stdin, None
        writer = Thread(target=_write_all, args=(stdin, data), daemon=True)
        writer.start()
        try:
            while True:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    return child.communicate(timeout=_POLL_S)[0].decode("ascii"), True
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
