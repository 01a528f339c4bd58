"""Splits a script into the words of its commands, with the values of variables. Nothing is run.

A variable is replaced by its value if all its assignments are plain, and outside of branches, loops, functions and
groups. Words that a branch appends become "if ...: words". All other variables stay as written, between marks.
"""

from __future__ import annotations

import re
from collections import Counter

from ...errors import ConfigError
from .dialects import CMD, POSIX, Dialect, prepared
from .marks import MOST_LETTERS, UnbalancedError, check_length, check_word, unset

_OPENS = {"if", "while", "until", "for", "case", "select", "{"}
_CLOSES = {"fi", "done", "esac", "}"}
_RESERVED = {"if", "while", "until", "{", "then", "do", "else", "elif", "!", "time", *_CLOSES}
_READIES = re.compile(
    r"activate|conda|vcvars|setvars|set_env|(?:bash|zsh|cargo|bin).{0,2}(?:rc|env)\b|(?:^|/)\.?(?:bash_)?profile\b",
    re.IGNORECASE,
)
"""scripts that only activate Python, a compiler or a driver"""
_BRACED = re.compile(r"([A-Za-z_]\w*|\d)(?:\[([@*]|\d{1,4})\]|(:?)([-=])(.*))?")
_MOST_SPENT = 16 << 20


def commands_in(text: str, dialect: Dialect) -> list[list[str]]:
    """Returns the words of each command; UnbalancedError for an open quote, ConfigError for a value that is too
    long."""
    text, follows = prepared(text, dialect)
    if dialect.assigns is None or not follows:
        return _Script(text, dialect, None).read()
    first = _Script(text, dialect, set())
    first.read()
    said = Counter(
        name if dialect is POSIX else name.strip().lower()
        for changes in dialect.changes
        for found in changes.findall(text)
        for name in (re.findall(r"[A-Za-z_]\w*", found) if dialect is POSIX else [found])
    )
    return _Script(text, dialect, {name for name, count in said.items() if count != first.plain[name]}).read()


class _Script:
    """One pass over a script, command by command."""

    def __init__(self, text: str, dialect: Dialect, unsure: set[str] | None) -> None:
        """`unsure`: names that are not replaced; None: no name is replaced."""
        self._text, self._dialect, self._unsure = text, dialect, unsure
        self._at = self._spent = self._depth = self._parens = 0
        self._values: dict[str, list[str]] = {}
        self._other = False
        """True once another script may have assigned variables"""
        self._maybe = False
        """True if the exit code of the previous command decides whether this one runs"""

        self.plain = Counter[str]()
        """name -> number of plain assignments"""

    def read(self) -> list[list[str]]:
        commands: list[list[str]] = []
        words: list[str] = []
        while self._at < len(self._text):
            if not words and self._assignment():
                continue
            piece = self._match()
            if piece["end"] is not None:
                self._at = piece.end()
                self._ended(words, piece["end"])
                if words:
                    commands.append(words)
                words = []
            elif piece["blank"] is not None:
                self._at = piece.end()
            else:
                words += self._word(splits=True)
                if len(words) == 1 and self._dialect is POSIX and self._is_reserved(words[0]):
                    words = []
        self._ended(words, "\n")
        return [*commands, words] if words else commands

    @property
    def _may_not_run(self) -> bool:
        """True in a branch, loop, function or group, and for a command after && or ||."""
        return self._maybe or self._depth > 0 or self._parens > 0

    def _is_reserved(self, word: str) -> bool:
        """Counts a block that the first word opens or closes; returns whether the command begins after the word."""
        self._depth = max(0, self._depth + (word in _OPENS) - (word in _CLOSES))
        return word in _RESERVED

    def _match(self) -> re.Match[str]:
        piece = self._dialect.piece.match(self._text, self._at)
        if piece is None:
            raise UnbalancedError("No closing quotation")
        return piece

    def _ended(self, words: list[str], sign: str) -> None:
        """Handles the end of a command: counts the blocks and groups that it opens, and notes scripts that it
        sources."""
        self._depth += self._dialect is POSIX and len(words) > 1 and words[-1] == "{"  # function name {
        if len(words) > 1 and words[0].lower() in ("source", ".", "call") and not _READIES.search(words[1]):
            self._values, self._other = {}, True
        self._parens = max(0, self._parens + (sign == "(") - (sign == ")"))
        self._maybe = sign in ("&&", "||")
        self._spend(words)
        check_length(words)

    def _spend(self, words: list[str]) -> None:
        self._spent += sum(len(word) + 1 for word in words)
        if self._spent > _MOST_SPENT:
            raise ConfigError("the script stands for more than 16 MiB of text. Keep the command that trains alone.")

    def _assignment(self) -> bool:
        """Reads an assignment at the start of a command; returns whether there was one."""
        found = self._dialect.assigns.match(self._text, self._at) if self._dialect.assigns else None
        if found is None or self._unsure is None:
            return False
        self._at = found.end()
        if self._dialect is CMD:
            name = (found["name"] or found["bare"]).strip().lower()
            words = [self._in_text(found["value"] or (found["text"] or "").rstrip())]
        else:
            name = found["name"]
            words, appended = self._assigned(name, adds=bool(found["adds"]))
            if appended and self._may_not_run:
                self.plain[name] += 1
                self._set(name, words)
        if not self._may_not_run:
            self.plain[name] += 1
            self._set(name, words)
        return True

    def _assigned(self, name: str, *, adds: bool) -> tuple[list[str], bool]:
        """Reads the value of `NAME=` or `NAME+=`; returns all words of the variable, and whether some were appended.

        Words that a branch appends become "if ...: words".
        """
        begin, held = self._at, self._values.get(name)
        is_list = self._text.startswith("(", begin)
        words = self._list() if is_list else ["".join(self._word(splits=False))]
        if held is None:
            return words, False
        if not is_list and self._text[begin : self._at].startswith((f'"${name} ', f'"${{{name}}} ')):
            words, adds = [words[0][len(held[0]) :]], True
        if not adds:
            return words, False
        if self._may_not_run:
            more = unset(f"if ...: {' '.join(words).strip()}")
            words = [more] if is_list else [f" {more}"]
        return [*held, *words] if is_list else [held[0] + words[0]], True

    def _set(self, name: str, words: list[str]) -> None:
        if sum(map(len, words)) > MOST_LETTERS:
            raise ConfigError(f"the value of {name[:40]} has more than {MOST_LETTERS:,} characters. Use fewer.")
        self._spend(words)
        self._values[name] = words

    def _list(self) -> list[str]:
        words: list[str] = []
        self._at += 1
        while self._at < len(self._text):
            piece = self._match()
            if piece["end"] is None and piece["blank"] is None:
                words += self._word(splits=True)
                continue
            self._at = piece.end()
            if piece["end"] == ")":
                return words
        raise UnbalancedError("No closing bracket")

    def _word(self, *, splits: bool) -> list[str]:
        """Returns the words up to the next blank: none, one, or the elements of a list."""
        fields, begun = [""], False
        while self._at < len(self._text):
            piece = self._match()
            if piece["blank"] is not None or piece["end"] is not None:
                break
            self._at = piece.end()
            if piece["literal"] is not None or piece["quoted"] is not None:
                begun = True
            self._put(piece, fields, splits=splits)
            check_word(fields[-1])
        return fields if begun or fields != [""] else []

    def _put(self, piece: re.Match[str], fields: list[str], *, splits: bool) -> None:
        if piece["literal"] is not None:
            fields[-1] += piece["literal"]
            return
        listed = re.fullmatch(r"\$\{\w+\[@\]\}", piece["quoted"] or "") if self._dialect is POSIX else None
        if piece["unknown"] is not None:
            values = [unset(piece["unknown"])]
        elif piece["variable"] is not None or listed:
            values = self._value(piece["variable"] or piece["quoted"])
            if splits and not listed:
                values = [part for value in values for part in value.split()]
        elif piece["quoted"] is not None:
            values = [self._in_text(piece["quoted"])]
        else:
            plain = piece["plain"]
            if self._dialect is POSIX:  # before a letter a backslash is part of a Windows path
                values = [re.sub(r"\\(?!\w)(.)", r"\1", plain)]
            else:
                said = self._in_text(plain)
                values = re.findall(r"[^\s\"]+", said) if self._dialect is CMD and splits else [said]
        if values:
            fields[-1] += values[0]
            fields += values[1:]

    def _in_text(self, text: str) -> str:
        """Returns `text` with its variables replaced by their values."""

        def value(found: re.Match[str]) -> str:
            if found[0][0] in "\\^":
                return "" if found[0][1:] == "\n" else found[0][1:]
            return " ".join(self._value(found[0]))

        return self._dialect.variable.sub(value, text)

    def _value(self, written: str) -> list[str]:
        """Returns the words of the variable reference `written`, such as `${NAME:-text}` or `%NAME%`."""
        if self._unsure is None:
            return [unset(written)]
        if self._dialect is CMD:
            held = self._values.get(written[1:-1].lower())
            return [unset(written)] if held is None or written[1:-1].lower() in self._unsure else held
        said = _BRACED.fullmatch(written[2:-1] if written.startswith("${") else written[1:])
        if said is None or said[1] in self._unsure:
            return [unset(written)]
        held = self._values.get(said[1])
        if said[4]:  # a default
            if held is None and self._other:
                return [unset(written)]
            if held is None or (said[3] and held == [""]):
                held = [self._in_text(said[5].strip("\"'"))]
            if said[4] == "=" and not self._may_not_run:
                self.plain[said[1]] += 1
                self._values.setdefault(said[1], held)
            return held
        if held is None:
            return [unset(written)]
        if said[2] and said[2].isdigit():
            return held[int(said[2]) : int(said[2]) + 1] or [unset(written)]
        return held if said[2] else held[:1]
