"""Names that a script has set so far, and the text of those that it has not.

A value that cannot be followed stays in a word as it is written, between two marks; nothing is put in its place.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from ...errors import ConfigError

MOST_LETTERS = 64 << 10
"""of a command, and of a value"""
_OPEN, _CLOSE, _BLANK = "\ue000", "\ue001", "\ue002"
_MARKED = re.compile(f"{_OPEN}[^{_CLOSE}]*{_CLOSE}?")
_READIES = re.compile(
    r"activate|conda|vcvars|setvars|set_env|(?:bash|zsh|cargo|bin).{0,2}(?:rc|env)\b|(?:^|/)\.?(?:bash_)?profile\b",
    re.IGNORECASE,
)
"""scripts that are run in others to find Python, a compiler or a driver"""
_MOST_NAMES, _MOST_WRITTEN, _MOST_SPENT, _MOST_FORGOTTEN = 2000, 200, 16 << 20, 50


class UnbalancedError(Exception):
    """A quote or a bracket that is never closed."""


def check_length(words: list[str]) -> None:
    """Raises ConfigError for a command that trains and is longer than commands are."""
    letters = sum(len(word) + 1 for word in words)
    if letters > MOST_LETTERS and any("wan_train_network" in word for word in words):
        raise ConfigError(f"the command has more than {MOST_LETTERS:,} characters. Use fewer.")


def check_word(word: str) -> None:
    """Raises ConfigError for a word that grows by more than any of people has."""
    if len(word) > MOST_LETTERS:
        raise ConfigError(f"a word has more than {MOST_LETTERS:,} characters. Use fewer.")


def without_marks(text: str) -> str:
    """A script as it came, in which nothing looks like a mark."""
    return re.sub(f"[{_OPEN}{_CLOSE}{_BLANK}]", "", text)


def unset(written: str) -> str:
    """A part of a word that cannot be followed."""
    return _OPEN + re.sub(r"\s+", _BLANK, as_written(written)[:_MOST_WRITTEN]) + _CLOSE


def is_unset(word: str) -> bool:
    """Tells a word of which some part is not known."""
    return _OPEN in word


def ends_unset(word: str) -> bool:
    """Tells a path whose last part is not known; where it lies need not be."""
    return _OPEN in re.split(r"[/\\]", _MARKED.sub(_OPEN, word.rstrip("/\\")))[-1]


def as_written(word: str) -> str:
    """A word as the script has it."""
    return word.replace(_OPEN, "").replace(_CLOSE, "").replace(_BLANK, " ")


@dataclass
class _Block:
    """Names that an open block has set: their values before, and those that its earlier branches gave them."""

    before: dict[str, list[str] | None] = field(default_factory=dict[str, "list[str] | None"])
    """of each name that it has set; None: not known, or not there"""
    new: set[str] = field(default_factory=set[str])
    """names that were not there"""
    made: dict[str, list[list[str] | None]] = field(default_factory=dict[str, "list[list[str] | None]"])
    others: int = 0
    """other scripts that had run when it set them"""


class Scope:
    """Names and their values. What a block that may not run sets is not known behind it."""

    def __init__(self, *, folds: bool = False) -> None:
        """`folds`: capitals do not count in names."""
        self._folds = folds
        self._values: dict[str, list[str] | None] = {}
        self._blocks: list[_Block] = []
        self._spent = 0
        self._others = 0
        """other scripts that have run in this one, which may have set any name"""

    def spend(self, words: Iterable[str]) -> None:
        """Count the letters that a script stands for; raises ConfigError where they are more than one of people has."""
        self._spent += sum(len(word) + 1 for word in words)
        if self._spent > _MOST_SPENT:
            raise ConfigError("the script stands for more than 16 MiB of text. Keep the command that trains alone.")

    def set(self, name: str, value: list[str] | str | None) -> None:
        """None: it is set to something that cannot be followed."""
        name = self._key(name)
        words = [value] if isinstance(value, str) else value
        if sum(map(len, words or ())) > MOST_LETTERS:
            raise ConfigError(f"the value of {name[:40]} has more than {MOST_LETTERS:,} characters. Use fewer.")
        self.spend(words or ())
        if len(self._values) >= _MOST_NAMES and name not in self._values:
            raise ConfigError(f"the script sets more than {_MOST_NAMES:,} names. Keep the command alone.")
        if self._blocks and name not in (block := self._block()).before:
            block.before[name] = self._values.get(name)
            if name not in self._values:
                block.new.add(name)
        self._values[name] = words

    def add(self, name: str, words: list[str] | None) -> None:
        """Put more words behind those of a list."""
        held = self.get(name) if self.has(name) else []
        self.set(name, None if held is None or words is None else [*held, *words])

    def has(self, name: str) -> bool:
        """Tells whether the script has set it, to whatever."""
        return self._others > 0 or self._key(name) in self._values

    def get(self, name: str) -> list[str] | None:
        """Returns its words; None where they are not known."""
        return self._values.get(self._key(name))

    def forget(self, name: str) -> None:
        """It is something that cannot be followed."""
        self.set(name, None)

    def forget_these(self, names: set[str]) -> None:
        """A part of the script runs that sets them."""
        if len(names) > _MOST_FORGOTTEN:
            self.forget_all()
        else:
            for name in names:
                self.forget(name)

    def read_other(self, words: Iterable[str]) -> None:
        """Another script runs in this one: no name is known behind it, unless it is one that readies Python."""
        if not any(map(_READIES.search, words)):
            self.forget_all()

    def forget_all(self) -> None:
        """Any name may have been set."""
        self._others += 1
        self._values = {}

    def open(self) -> None:
        """A block begins that may run or not."""
        self._blocks.append(_Block(others=self._others))

    def _block(self) -> _Block:
        """The innermost block; what it knew before another script ran in it no longer counts."""
        if self._blocks[-1].others != self._others:
            self._blocks[-1] = _Block(others=self._others)
        return self._blocks[-1]

    def other_branch(self) -> None:
        """Another branch of the block begins: nothing of the one before has happened."""
        if not self._blocks:
            return
        block = self._block()
        for name, before in block.before.items():
            if name in self._values and (self._values[name] != before or name in block.new):
                block.made.setdefault(name, []).append(self._values[name])
            self._values[name] = before
            if name in block.new:
                del self._values[name]

    def close(self) -> None:
        """The block ends: what it set cannot be known. Words that it may have added are named behind the others."""
        if not self._blocks:
            return
        self.other_branch()
        block = self._blocks.pop()
        for name, made in block.made.items():
            held = [] if name in block.new else block.before[name]
            self.set(name, _with_more(held, made))

    def _key(self, name: str) -> str:
        return name.lower() if self._folds else name


def _with_more(held: list[str] | None, made: list[list[str] | None]) -> list[str] | None:
    """The value of a name to which branches have added words; None where one has set it otherwise."""
    if held is None:
        return None
    more: list[str] = []
    in_text = len(held) == 1
    for words in made:
        if words is None:
            return None
        if len(words) > len(held) and words[: len(held)] == held:
            more.append(" ".join(words[len(held) :]))
            in_text = False
        elif in_text and len(words) == 1 and words[0].startswith(held[0]) and " " in words[0]:
            more.append(words[0][len(held[0]) :].strip())
        else:
            return None
    added = unset(f"if ...: {' | '.join(more)}")
    return [f"{held[0]} {added}"] if in_text else [*held, added]
