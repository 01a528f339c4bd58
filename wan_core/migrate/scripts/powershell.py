"""Reads the commands of a PowerShell script, with the variables that the script itself sets. Runs nothing."""

from __future__ import annotations

import re

from .scope import Scope, UnbalancedError, check_length, check_word, unset

_NAME = re.compile(r"\$(?:\{([^}\n]{0,200})\}|((?:script:|global:|local:|env:)?\w+))", re.IGNORECASE)
_ASSIGNS = re.compile(
    r"(?:\[[\w.]{1,80}(?:\[\])?\]\s*)*\$((?:script:|global:|local:|env:)?\w+)[ \t]*(\+?)=(?!=)", re.IGNORECASE
)
_COUNTS = re.compile(r"\$((?:script:|global:|local:|env:)?\w+)[ \t]*(?:\+\+|--|[-*/%]=)", re.IGNORECASE)
_BLANK = re.compile(r"(?:[ \t\r]|`\r?\n)+")
_SPACE = re.compile(r"(?:\s|`\r?\n)+")
_PLAIN = re.compile(r"[^\s'\"`$;|(){}@,&<>#]+")
_CAST = re.compile(r"(?:\[[\w.]{1,80}(?:\[\])?\]\s*)+(?=[\"'$@(\d])")
_KEYWORD = re.compile(
    r"(?:if|elseif|else|foreach|for|while|do|function|switch|try|catch|finally|param)\b", re.IGNORECASE
)
_ENDS = "\n;|{})"


class PowerShell:
    """One script. `commands` are its words, expanded as far as the script says them."""

    def __init__(self, text: str, scope: Scope | None = None) -> None:
        self.text, self.at = text, 0
        self.scope = scope or Scope(folds=True)
        self.commands: list[list[str]] = []

    def read(self) -> list[list[str]]:
        """Returns the commands; raises UnbalancedError where a quote is not closed."""
        while self.at < len(self.text):
            self._statement()
        return self.commands

    def _statement(self) -> None:
        self._pass(_SPACE)
        if self.at >= len(self.text):
            return
        letter = self.text[self.at]
        if self._comment():
            return
        if letter in "{}":
            (self.scope.open if letter == "{" else self.scope.close)()
            self.at += 1
        elif letter in ";|)&,":
            self.at += 1
        elif keyword := _KEYWORD.match(self.text, self.at):
            self._keyword(keyword)
        elif assigns := _ASSIGNS.match(self.text, self.at):
            self._assign(assigns)
        elif counts := _COUNTS.match(self.text, self.at):
            self.scope.forget(_local(counts[1]))
            self.at = counts.end()
        else:
            self._command()

    def _keyword(self, keyword: re.Match[str]) -> None:
        self.at = keyword.end()
        if keyword[0].lower() == "function":
            self.at = (re.compile(r"[ \t]*[\w:-]+").match(self.text, self.at) or keyword).end()
        self._pass(_SPACE)
        if not self.text.startswith("(", self.at):
            return
        if keyword[0].lower() != "param":
            self.at = self._bracket(self.at)
            return
        self.at += 1
        while self.at < len(self.text) and self.text[self.at] != ")":
            if assigns := _ASSIGNS.match(self.text, self.at):
                self._assign(assigns, of_parameter=True)
            elif self.text[self.at] == "[":
                self.at = self._bracket(self.at)
            elif not self._comment():
                self.at += 1
        self.at += 1

    def _assign(self, assigns: re.Match[str], *, of_parameter: bool = False) -> None:
        self.at = assigns.end()
        self._pass(_BLANK)
        words = self._element() if of_parameter else self._value()
        name = _local(assigns[1])
        held = self.scope.get(name)
        if not assigns[2]:
            self.scope.set(name, words)
        elif held is not None and words is not None and len(held) == len(words) == 1 and _is_number(held[0]):
            self.scope.forget(name)  # a sum
        elif held is not None and words is not None and len(held) == len(words) == 1 and self._is_text(held[0]):
            self.scope.set(name, [held[0] + words[0]])
        else:
            self.scope.add(name, words)

    @staticmethod
    def _is_text(word: str) -> bool:
        return " " in word

    def _value(self) -> list[str] | None:
        """The words of the right side, up to the end of the statement; None where it is more than literal."""
        words: list[str] = []
        self._pass(_BLANK)
        while self.at < len(self.text) and self.text[self.at] not in _ENDS:
            letter = self.text[self.at]
            if self._comment():
                break
            if letter == ",":
                self.at += 1
                self._pass(_SPACE)
                continue
            if letter == "+" and words:
                self.at += 1
                self._pass(_SPACE)
                more = self._element()
                if more is None:
                    return self._give_up()
                words = [words[-1] + more[0]] if len(words) == len(more) == 1 else words + more
                continue
            element = self._element()
            if element is None:
                return self._give_up()
            words += element
            self._pass(_BLANK)
            if self.at < len(self.text) and self.text[self.at] not in f"{_ENDS},+#":
                return self._give_up()
        return words

    def _element(self) -> list[str] | None:
        self._pass(_CAST)
        if self.text.startswith("@(", self.at):
            return self._array()
        if re.compile(r"\(?\s*Join-Path\b", re.IGNORECASE).match(self.text, self.at):
            return self._joined()
        if self.text.startswith(("@", "("), self.at):
            return None
        return self._word()

    def _joined(self) -> list[str] | None:
        """A folder and a name, as one path."""
        found = re.compile(r"(\(?)\s*Join-Path\s+(?:-Path\s+)?", re.IGNORECASE).match(self.text, self.at)
        if found is None:
            return None
        self.at = found.end()
        parts: list[str] = []
        while self.at < len(self.text) and self.text[self.at] not in f"{_ENDS},":
            if word := re.compile(r"-(?:ChildPath|Path)\b", re.IGNORECASE).match(self.text, self.at):
                self.at = word.end()
            elif self.text[self.at] == "(":
                self.at = self._bracket(begin := self.at)
                parts.append(unset(self.text[begin : self.at]))
            else:
                parts += self._word()
            self._pass(_BLANK)
        if found[1] and self.text.startswith(")", self.at):
            self.at += 1
        return ["/".join(parts)]

    def _array(self) -> list[str] | None:
        self.at += 2
        words: list[str] = []
        known = True
        while self.at < len(self.text):
            self._pass(_SPACE)
            if self._comment():
                continue
            if self.text.startswith(")", self.at):
                self.at += 1
                return words if known else None
            if self.text.startswith((",", ";"), self.at):
                self.at += 1
                continue
            element = self._element()
            if element is None:
                known = False
                self.at = self._bracket(self.at + self.text[self.at].count("@"))
            else:
                words += element
        raise UnbalancedError("No closing bracket")

    def _command(self) -> None:
        words: list[str] = []
        while self.at < len(self.text) and self.text[self.at] not in _ENDS:
            letter = self.text[self.at]
            if self._pass(_BLANK) or self._comment():
                continue
            if letter in "&,":
                self.at += 1
            elif letter in "<>":
                self._redirect(words)
            elif splat := re.compile(r"@(\w+)").match(self.text, self.at):
                self.at = splat.end()
                held = self.scope.get(splat[1])
                words += [unset(splat[0])] if held is None else held
                self.scope.spend(held or ())
            elif letter in "(@":
                begin = self.at
                self.at = self._bracket(self.at + (letter == "@"))
                words.append(unset(self.text[begin : self.at]))
            else:
                words += self._word()
        self.scope.spend(words)
        if words[1:] and words[0] == ".":
            self.scope.read_other(words[1:2])
        if words:
            check_length(words)
            self.commands.append(words)

    def _redirect(self, words: list[str]) -> None:
        if words and words[-1] in ("1", "2", "*"):
            words.pop()
        self.at = (re.compile(r"[<>]+(?:&\d)?[ \t]*").match(self.text, self.at) or _never()).end()
        if self.at < len(self.text) and self.text[self.at] not in _ENDS and self.text[self.at - 2] != "&":
            self._word()

    def _word(self) -> list[str]:
        """Returns the words up to the next blank: one, or those of a list."""
        word, begin = "", self.at
        while self.at < len(self.text):
            letter = self.text[self.at]
            if plain := _PLAIN.match(self.text, self.at):
                word += plain[0]
                self.at = plain.end()
            elif letter == "'":
                word += self._single()
            elif letter == '"':
                word += self._double()
            elif letter == "$":
                check_word(word)
                words = self._variable(alone=self.at == begin)
                self.scope.spend(words)
                if len(words) != 1:
                    return words
                word += words[0]
            elif letter == "`" and self.at + 1 < len(self.text) and not self.text[self.at + 1].isspace():
                word += self.text[self.at + 1]
                self.at += 2
            elif letter == "#" and self.at > begin:
                word += letter
                self.at += 1
            else:
                break
        if self.at == begin:
            self.at += 1
            return []
        return [word]

    def _variable(self, *, alone: bool) -> list[str]:
        begin = self.at
        if self.text.startswith("$(", begin):
            self.at = self._bracket(begin + 1)
            inside = re.fullmatch(r"\$\(\s*\$(\w+)\s*\)", self.text[begin : self.at])
            held = self.scope.get(inside[1]) if inside else None
            return [unset(self.text[begin : self.at]) if held is None else " ".join(held)]
        name = _NAME.match(self.text, begin)
        if name is None:
            self.at += 1
            return ["$"]
        self.at = name.end()
        further = re.compile(r"(?:\.\w+|\[[^\]\n]{0,200}\])+").match(self.text, self.at)
        if further is not None and alone:
            self.at = further.end()
            return [unset(self.text[begin : self.at])]
        known = {"true": ["True"], "false": ["False"], "null": [""]}
        said = name[1] if name[1] is not None else name[2]
        held = known.get(said.lower()) or self.scope.get(_local(said))
        if held is None:
            return [unset(name[0])]
        return held if alone else [" ".join(held)]

    def _single(self) -> str:
        end = self.at + 1
        while (end := self.text.find("'", end)) >= 0 and self.text.startswith("''", end):
            end += 2
        if end < 0:
            raise UnbalancedError("No closing quotation")
        found = self.text[self.at + 1 : end].replace("''", "'")
        self.at = end + 1
        return found

    def _double(self) -> str:
        self.at += 1
        word = ""
        while self.at < len(self.text):
            letter = self.text[self.at]
            if plain := re.compile(r"[^\"$`]+").match(self.text, self.at):
                word += plain[0]
                self.at = plain.end()
            elif letter == "$":
                check_word(word)
                word += "".join(self._variable(alone=False))
            elif letter == "`":
                word += self.text[self.at + 1 : self.at + 2]
                self.at += 2
            elif self.text.startswith('""', self.at):
                word += '"'
                self.at += 2
            else:
                self.at += 1
                return word
        raise UnbalancedError("No closing quotation")

    def _comment(self) -> bool:
        """Passes over a comment, or a text over several lines."""
        begin = self.at
        for opens, closes in (("<#", "#>"), ('@"\n', '\n"@'), ("@'\n", "\n'@"), ("#", "\n")):
            if self.text.startswith(opens, begin):
                end = self.text.find(closes, begin + 1)
                keeps = 0 if closes == "\n" else len(closes)
                self.at = len(self.text) if end < 0 else end + keeps
                return True
        return False

    def _give_up(self) -> None:
        """The value is made by more than what can be followed: the statement is passed over."""
        while self.at < len(self.text) and self.text[self.at] not in "\n;}":
            letter = self.text[self.at]
            if self._pass(_BLANK) or self._comment():
                continue
            if letter == "'":
                self._single()
            elif letter == '"':
                self._double()
            elif letter in "({":
                self.at = self._bracket(self.at)
            else:
                self.at += 1

    def _bracket(self, begin: int) -> int:
        """Returns the place behind the bracket that closes the one at `begin`."""
        depth, at = 0, begin
        signs = re.compile(r"[`'\"(){}\[\]]")
        while found := signs.search(self.text, at):
            sign, at = found[0], found.end()
            if sign == "`":
                at += 1
            elif sign in "'\"":
                at = self.text.find(sign, at) + 1
                if not at:
                    raise UnbalancedError("No closing quotation")
            else:
                depth += 1 if sign in "([{" else -1
                if depth <= 0:
                    return at
        raise UnbalancedError("No closing bracket")

    def _pass(self, pattern: re.Pattern[str]) -> bool:
        found = pattern.match(self.text, self.at)
        if found is None:
            return False
        self.at = found.end()
        return True


def _local(name: str) -> str:
    """A name without where it lives."""
    return re.sub(r"^(?:script|global|local|env):", "", name, flags=re.IGNORECASE)


def _never() -> re.Match[str]:
    raise UnbalancedError("No closing quotation")


def _is_number(word: str) -> bool:
    return re.fullmatch(r"[-+]?[\d.]+(?:e[-+]?\d+)?", word, re.IGNORECASE) is not None
