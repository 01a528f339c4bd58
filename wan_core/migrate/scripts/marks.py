"""Marks for values that a script does not define, and the limits of a command.

An unknown value is written as its text between two mark characters.
"""

from __future__ import annotations

import re

from ...errors import ConfigError

SCRIPT = "wan_train_network"
"""musubi-tuner's training script"""
MOST_LETTERS = 64 << 10
"""characters of a command, and of a value"""
_MOST_WRITTEN = 200
_OPEN, _CLOSE, _BLANK = "\ue000", "\ue001", "\ue002"
_MARKED = re.compile(f"{_OPEN}[^{_CLOSE}]*{_CLOSE}?")


class UnbalancedError(Exception):
    """A quote or bracket is not closed."""


def check_length(words: list[str]) -> None:
    """Raises ConfigError for a training command that is too long."""
    letters = sum(len(word) + 1 for word in words)
    if letters > MOST_LETTERS and any(SCRIPT in word for word in words):
        raise ConfigError(f"the command has more than {MOST_LETTERS:,} characters. Use fewer.")


def check_word(word: str) -> None:
    """Raises ConfigError for a word that is too long."""
    if len(word) > MOST_LETTERS:
        raise ConfigError(f"a word has more than {MOST_LETTERS:,} characters. Use fewer.")


def without_marks(text: str) -> str:
    """Removes mark characters from a script."""
    return re.sub(f"[{_OPEN}{_CLOSE}{_BLANK}]", "", text)


def unset(written: str) -> str:
    """Marks a part of a word as unknown."""
    return _OPEN + re.sub(r"\s+", _BLANK, as_written(written)[:_MOST_WRITTEN]) + _CLOSE


def is_unset(word: str) -> bool:
    """Returns whether part of a word is unknown."""
    return _OPEN in word


def ends_unset(word: str) -> bool:
    """Returns whether the file name of a path is unknown."""
    return _OPEN in re.split(r"[/\\]", _MARKED.sub(_OPEN, word.rstrip("/\\")))[-1]


def as_written(word: str) -> str:
    """Returns a word without marks."""
    return word.replace(_OPEN, "").replace(_CLOSE, "").replace(_BLANK, " ")
