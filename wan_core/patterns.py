"""The only file that compiles and matches regular expressions from users, workflows and files.

A short pattern can take unlimited time in Python's `re`, which holds the GIL and cannot be interrupted. So the patterns
of a setting run in one short-lived process with time and memory limits. Results are cached.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Collection, Iterable, Sequence
from functools import lru_cache

from .errors import ConfigError

LIMIT_S = 5.0
_LONGEST = 2000
"""characters of a pattern"""
_MOST = 2000
"""patterns of a setting"""
_REMEMBERED = 20_000
"""names kept for a pattern, with whether it matched"""
_CHILD = """
import json, re, sys
try:
    import resource
    for limit, most in ((resource.RLIMIT_AS, 1 << 30), (resource.RLIMIT_CPU, 10)):
        resource.setrlimit(limit, (most, most))
except (ImportError, OSError, ValueError):
    pass  # Windows has no such limits, macOS none of memory
asked = json.load(sys.stdin)
print("begun", flush=True)
for pattern in asked["patterns"]:
    try:
        known = re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        print("-" + json.dumps(str(error)[:200]), flush=True)
        continue
    matches = known.fullmatch if asked["whole"] else known.search
    print("+" + "".join("1" if matches(name) else "0" for name in asked["names"]), flush=True)
"""
"""Prints + and a digit per name for each pattern, or - and the compiler's message."""


def matching(
    patterns: Iterable[str], names: Sequence[str], what: str, *, whole: bool, ours: Collection[str] = ()
) -> list[frozenset[str]]:
    """Returns the matched `names` of each pattern. Without names, only the syntax is checked.

    `what`: the setting's name; `whole`: fullmatch instead of search; `ours`: trusted patterns of this pack, matched
    without a process. Raises ConfigError for a pattern that is invalid or exceeds the limits.
    """
    listed = list(patterns)
    if len(listed) > _MOST:
        raise ConfigError(f"{what} has {len(listed)} patterns. Use at most {_MOST}.")
    for pattern in listed:
        if len(pattern) > _LONGEST:
            raise ConfigError(f"{what} {pattern[:80]!r}... has {len(pattern)} characters. Use at most {_LONGEST}.")
    found = {pattern: _matched_here(pattern, names, whole) for pattern in {*listed} & {*ours}}
    known = {pattern: _known(pattern, whole) for pattern in listed if pattern not in found}
    asked = tuple(name for name in dict.fromkeys(names) if any(name not in one for one in known.values()))
    if known and (asked or not names):
        answers, ended = _answers_of_child(tuple(known), asked, whole)
        for pattern, answer in zip(known, answers, strict=False):
            if answer.startswith("-"):
                raise ConfigError(f"{what} {pattern[:300]!r} is not a regular expression: {json.loads(answer[1:])}.")
            known[pattern].update(zip(asked, (digit == "1" for digit in answer[1:]), strict=True))
        if len(answers) < len(known):
            raise _too_much(what, tuple(known)[len(answers)], len(asked), len(answers), ended)
    found |= {pattern: frozenset(name for name in names if one[name]) for pattern, one in known.items()}
    return [found[pattern] for pattern in listed]


@lru_cache(maxsize=64)
def _known_of(pattern: str, whole: bool) -> dict[str, bool]:
    return {}


def _known(pattern: str, whole: bool) -> dict[str, bool]:
    """Returns the names with which a pattern was matched before, and whether it matched: `matching` adds to it."""
    known = _known_of(pattern, whole)
    if len(known) > _REMEMBERED:
        _known_of.cache_clear()  # and not `known`, which another thread may be reading
        known = _known_of(pattern, whole)
    return known


def _matched_here(pattern: str, names: Iterable[str], whole: bool) -> frozenset[str]:
    known = re.compile(pattern)
    matches = known.fullmatch if whole else known.search
    return frozenset(name for name in names if matches(name))


def _too_much(what: str, pattern: str, names: int, before: int, ended: bool) -> ConfigError:
    """Returns the refusal of the first pattern without an answer. `ended`: the process ended within the time limit."""
    others = f", with {before} before it" if before else ""
    return ConfigError(
        f"{what} {pattern[:300]!r} takes {'too much memory' if ended else f'more than {LIMIT_S:.0f} s'} to be matched "
        f"with {names} names{others}. "
        r"Write it shorter, without a repeat inside of a repeat. Example: blocks\.\d+\.ffn\..*"
    )


@lru_cache(maxsize=64)
def _answers_of_child(patterns: tuple[str, ...], names: tuple[str, ...], whole: bool) -> tuple[tuple[str, ...], bool]:
    """Returns a line for each pattern, as far as the process came, and whether it ended within the time limit."""
    asked = json.dumps({"patterns": patterns, "names": names, "whole": whole}).encode("ascii")
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-S", "-c", _CHILD],
            input=asked,
            capture_output=True,
            timeout=LIMIT_S,
            check=False,
            creationflags=getattr(subprocess, "CREATE_NO_WINDOW", 0),
        )
        output, ended = done.stdout, True
    except subprocess.TimeoutExpired as late:
        output, ended = late.stdout or b"", False
    begun, *answers = output.decode("ascii").split("\n")
    if begun != "begun" and ended:
        raise ConfigError(f"Patterns cannot be matched: {sys.executable} does not start. Install Python again.")
    return tuple(answers[:-1]), ended  # the last piece is empty, or a torn line of a killed process
