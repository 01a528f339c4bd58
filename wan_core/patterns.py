"""Regular expressions that users write, tried under a time limit before anything hangs on them.

Python's matcher can take longer than the universe for a short pattern, and no thread that matches can be stopped. So a
pattern with a repeat of a group, or with many repeats or alternatives, is tried in a short-lived process, which can;
all of a setting in one, so that many patterns have no more time than one.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterable, Sequence

from .errors import ConfigError

__all__ = ["check_patterns"]

LIMIT_S = 5.0
_MOST_REPEATS = 2
_MOST_CHOICES = 4
_LONGEST = 2000
_TRIAL = """
import json, re, sys
asked = json.load(sys.stdin)
matches = re.fullmatch if asked["whole"] else re.search
for number, pattern in enumerate(asked["patterns"]):
    print(number, flush=True)
    for name in asked["names"]:
        matches(pattern, name)
"""
"""says which pattern it is at"""


def check_patterns(patterns: Iterable[str], names: Sequence[str], what: str, *, whole: bool) -> None:
    """ConfigError when one of `patterns` is no regular expression, or cannot be matched with `names` in good time.

    `what` is the setting they come from; `whole`: they are matched with whole names, not with parts of them. Without
    names only their grammar is looked at.
    """
    slow: list[str] = []
    for pattern in patterns:
        if len(pattern) > _LONGEST:
            raise ConfigError(f"{what} {pattern[:80]!r}... has {len(pattern)} characters. Use at most {_LONGEST}.")
        try:
            re.compile(pattern)
        except (re.error, OverflowError, RecursionError) as error:
            raise ConfigError(f"{what} {pattern[:300]!r} is not a regular expression: {error}.") from error
        if not _is_quick(pattern):
            slow.append(pattern)
    if names and slow and (late := _late(slow, names, whole)) is not None:
        others = f", with {late} before it" if late else ""
        raise ConfigError(
            f"{what} {slow[late][:300]!r} takes more than {LIMIT_S:.0f} s to be matched with {len(names)} "
            f"names{others}. "
            r"Write it without a repeat inside of a repeat. Example: blocks\.\d+\.ffn\..*"
        )


def _is_quick(pattern: str) -> bool:
    """Returns whether it cannot take long, judged by its text alone: at most two repeats, none of a group, no
    back-reference, and few alternatives, each of which may double the ways.

    Names have some 30 characters, so such a pattern tries some ten thousand ways at most.
    """
    if re.search(r"\)[*+?{]|\\[1-9]|\(\?P=", pattern) or pattern.count("|") > _MOST_CHOICES:
        return False
    return len(re.findall(r"[*+{]|(?<!\()\?", pattern)) <= _MOST_REPEATS


def _late(patterns: Sequence[str], names: Sequence[str], whole: bool) -> int | None:
    """The number of the pattern at which the time for all of them was over; None when they end in time."""
    asked = json.dumps({"patterns": list(patterns), "names": list(names), "whole": whole})
    try:
        tried = subprocess.run(
            [sys.executable, "-I", "-S", "-c", _TRIAL],
            input=asked.encode("ascii"),
            capture_output=True,
            timeout=LIMIT_S,
            check=False,
            creationflags=getattr(subprocess, "CREATE_NO_WINDOW", 0),
        )
    except subprocess.TimeoutExpired as late:
        said = late.stdout
    else:
        if tried.returncode == 0:
            return None
        said = tried.stdout
    numbers = (said or b"").split()
    return int(numbers[-1]) if numbers else 0
