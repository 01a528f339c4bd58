"""A cursor over the text of a shell script."""

from __future__ import annotations

import re

from .scope import UnbalancedError


class Reader:
    """A text, and the place in it that is read next."""

    def __init__(self, text: str) -> None:
        self.text, self.at = text, 0

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

    def bracket(self, begin: int, opens: str, closes: str) -> int:
        """Returns the position after the bracket that closes the one at `begin`."""
        depth, at = 0, begin
        signs = re.compile(f"[\\\\'`{re.escape(opens + closes)}]")
        while found := signs.search(self.text, at):
            sign, at = found[0], found.end()
            if sign == "\\":
                at += 1
            elif sign in "'`":
                at = self.closing(sign, at) + 1
            else:
                depth += 1 if sign in opens else -1
                if depth <= 0:
                    return at
        raise UnbalancedError("No closing bracket")
