"""Variables of a script, and marked text for values that it does not define.

An unknown value keeps its text between two marks; nothing is substituted.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from ...errors import ConfigError

MOST_LETTERS = 64 << 10
"""per command and per value"""
_OPEN, _CLOSE, _BLANK = "\ue000", "\ue001", "\ue002"
_MARKED = re.compile(f"{_OPEN}[^{_CLOSE}]*{_CLOSE}?")
_READIES = re.compile(
    r"activate|conda|vcvars|setvars|set_env|(?:bash|zsh|cargo|bin).{0,2}(?:rc|env)\b|(?:^|/)\.?(?:bash_)?profile\b",
    re.IGNORECASE,
)
"""scripts that activate Python, a compiler or a driver"""
_FUNCTION = re.compile(r"^[ \t]*(?:function[ \t]+)?([\w-]+)[ \t]*(?:\(\))?[ \t\n]*\{", re.MULTILINE)
_SET_INSIDE = re.compile(r"(?<![\w$\"'=-])(local[ \t]+)?([A-Za-z_]\w*)(?:\[[^\]\s]*\])?\+?=")
_MOST_FUNCTIONS, _MOST_INSIDE = 1000, 1 << 20
_MOST_NAMES, _MOST_WRITTEN, _MOST_SPENT, _MOST_FORGOTTEN = 2000, 200, 16 << 20, 50


class UnbalancedError(Exception):
    """A quote or bracket without its end."""


def check_length(words: list[str]) -> None:
    """Raises ConfigError for a training command that is too long."""
    letters = sum(len(word) + 1 for word in words)
    if letters > MOST_LETTERS and any("wan_train_network" in word for word in words):
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
    """Returns whether the last part of a path is unknown; its folder may be."""
    return _OPEN in re.split(r"[/\\]", _MARKED.sub(_OPEN, word.rstrip("/\\")))[-1]


def as_written(word: str) -> str:
    """Returns a word without marks."""
    return word.replace(_OPEN, "").replace(_CLOSE, "").replace(_BLANK, " ")


@dataclass
class _Block:
    """Names assigned in an open block: values before it, and after each of its branches."""

    before: dict[str, list[str] | None] = field(default_factory=dict[str, "list[str] | None"])
    """name -> earlier value; None: unknown or missing"""
    new: set[str] = field(default_factory=set[str])
    """names that did not exist before"""
    made: dict[str, list[list[str] | None]] = field(default_factory=dict[str, "list[list[str] | None]"])
    others: int = 0
    """number of sourced scripts when it was opened"""


class Scope:
    """Variables and their values; assignments in a block that may not run become unknown after it."""

    def __init__(self, *, folds: bool = False) -> None:
        """`folds`: names ignore case."""
        self._folds = folds
        self._values: dict[str, list[str] | None] = {}
        self._blocks: list[_Block] = []
        self._spent = 0
        self._others = 0
        """number of sourced scripts, which may have assigned any name"""

    def spend(self, words: Iterable[str]) -> None:
        """Counts expanded characters; ConfigError for more than a real script has."""
        self._spent += sum(len(word) + 1 for word in words)
        if self._spent > _MOST_SPENT:
            raise ConfigError("the script stands for more than 16 MiB of text. Keep the command that trains alone.")

    def set(self, name: str, value: list[str] | str | None) -> None:
        """Assigns a value; None: an unknown one."""
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
        """Appends words to a list."""
        held = self.get(name) if self.has(name) else []
        self.set(name, None if held is None or words is None else [*held, *words])

    def has(self, name: str) -> bool:
        """Returns whether the script has assigned the name."""
        return self._others > 0 or self._key(name) in self._values

    def get(self, name: str) -> list[str] | None:
        """Returns the words of a name; None for unknown ones."""
        return self._values.get(self._key(name))

    def forget(self, name: str) -> None:
        self.set(name, None)

    def forget_these(self, names: set[str]) -> None:
        """Forgets names that a called part of the script assigns."""
        if len(names) > _MOST_FORGOTTEN:
            self.forget_all()
        else:
            for name in names:
                self.forget(name)

    def read_other(self, words: Iterable[str]) -> None:
        """Handles a sourced script: all names become unknown, unless it only activates an environment."""
        if not any(map(_READIES.search, words)):
            self.forget_all()

    def forget_all(self) -> None:
        self._others += 1
        self._values = {}

    def open(self) -> None:
        """Opens a block that may not run."""
        self._blocks.append(_Block(others=self._others))

    def _block(self) -> _Block:
        """Returns the innermost block; a sourced script resets it."""
        if self._blocks[-1].others != self._others:
            self._blocks[-1] = _Block(others=self._others)
        return self._blocks[-1]

    def other_branch(self) -> None:
        """Starts another branch of the block, from the values before it."""
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
        """Closes a block: names it assigned become unknown; appended words are kept as conditional."""
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
    """Returns a value with the words that branches append; None where one assigns otherwise."""
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


def names_of_functions(text: str) -> dict[str, set[str]]:
    """Returns the global names that each function assigns: calling it makes them unknown."""
    found: dict[str, set[str]] = {}
    read = 0
    for begins in itertools.islice(_FUNCTION.finditer(text), _MOST_FUNCTIONS):
        one_line = text.find("\n", begins.end())
        ends = one_line if text[begins.end() : one_line].strip() else text.find("\n}", begins.end())
        inside = text[begins.end() : ends if ends >= 0 else len(text)]
        read += len(inside)
        if read > _MOST_INSIDE:
            break
        found[begins[1]] = {said[2] for said in _SET_INSIDE.finditer(inside) if not said[1]}
    return found
