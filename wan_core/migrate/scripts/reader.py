"""A cursor over the text of a script; the shells share it."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from typing import ClassVar

from .scope import Scope, UnbalancedError, check_length


class Reader(ABC):
    """One script. `commands` are the words of each command, expanded as far as the script defines them."""

    escape: ClassVar[str]
    """the character that makes the next one literal"""
    opaque: ClassVar[str]
    """quotes in which brackets do not count"""
    sources: ClassVar[tuple[str, ...]] = (".",)
    """commands that run another script in this one"""

    def __init__(self, text: str, scope: Scope) -> None:
        self.text, self.at, self.scope = text, 0, scope
        self.commands: list[list[str]] = []

    @property
    def letter(self) -> str:
        """The next character; "" at the end."""
        return self.text[self.at : self.at + 1]

    def take(self, pattern: re.Pattern[str]) -> str:
        """Moves behind a match that starts here; returns it, or ""."""
        found = pattern.match(self.text, self.at)
        if found is None:
            return ""
        self.at = found.end()
        return found[0]

    def read(self) -> list[list[str]]:
        """Returns the commands; UnbalancedError for an open quote."""
        while self.at < len(self.text):
            self.step()
        self.end()
        return self.commands

    @abstractmethod
    def step(self) -> None:
        """Reads the next part of a command, or a complete one."""

    def end(self) -> None:  # noqa: B027  optional: each step of PowerShell ends its command
        """Ends the last command."""

    def add_command(self, words: list[str]) -> None:
        if words[1:] and words[0] in self.sources:
            self.scope.read_other(words[1:2])
        check_length(words)
        self.commands.append(words)

    def find(self, sign: str) -> int:
        """Returns where `sign` is next, else the end of the text."""
        end = self.text.find(sign, self.at)
        return len(self.text) if end < 0 else end

    def closing(self, sign: str, begin: int) -> int:
        """Returns where a quote ends; UnbalancedError without an end."""
        end = self.text.find(sign, begin)
        if end < 0:
            raise UnbalancedError("No closing quotation")
        return end

    def bracket(self, begin: int, opens: str = "([{", closes: str = ")]}") -> int:
        """Returns the position after the bracket that closes the one at `begin`."""
        depth, at = 0, begin
        signs = re.compile(f"[{re.escape(self.escape + self.opaque + opens + closes)}]")
        while found := signs.search(self.text, at):
            sign, at = found[0], found.end()
            if sign == self.escape:
                at += 1
            elif sign in self.opaque:
                at = self.closing(sign, at) + 1
            else:
                depth += 1 if sign in opens else -1
                if depth <= 0:
                    return at
        raise UnbalancedError("No closing bracket")
