"""Parses a PowerShell script into commands, following its own variables. Nothing is run."""

from __future__ import annotations

import re

from .reader import Reader
from .scope import Scope, UnbalancedError, check_word, unset

_NAME = re.compile(r"\$(?:\{([^}\n]{0,200})\}|((?:script:|global:|local:|env:)?\w+))", re.IGNORECASE)
_ASSIGNS = re.compile(
    r"(?:\[[\w.]{1,80}(?:\[\])?\]\s*)*\$((?:script:|global:|local:|env:)?\w+)[ \t]*(\+?)=(?!=)", re.IGNORECASE
)
_COUNTS = re.compile(r"\$((?:script:|global:|local:|env:)?\w+)[ \t]*(?:\+\+|--|[-*/%]=)", re.IGNORECASE)
_BLANK = re.compile(r"(?:[ \t\r]|`\r?\n)+")
_SPACE = re.compile(r"(?:\s|`\r?\n)+")
_PLAIN = re.compile(r"[^\s'\"`$;|(){}@,&<>#]+")
_SINGLE = re.compile(r"'(?:[^']|'')*'")
_PLAIN_QUOTED = re.compile(r"[^\"$`]+")
_CAST = re.compile(r"(?:\[[\w.]{1,80}(?:\[\])?\]\s*)+(?=[\"'$@(\d])")
_KEYWORD = re.compile(
    r"(?:if|elseif|else|foreach|for|while|do|function|switch|try|catch|finally|param)\b", re.IGNORECASE
)
_FUNCTION_NAME = re.compile(r"[ \t]*[\w:-]+")
_JOINS = re.compile(r"(\(?)\s*Join-Path\b\s*(?:-Path\s+)?", re.IGNORECASE)
_PATH_OPTION = re.compile(r"-(?:ChildPath|Path)\b", re.IGNORECASE)
_COMMENT = re.compile(r"<(?=#).*?(?:#>|\Z)|@\"(?=\n).*?(?:\n\"@|\Z)|@'(?=\n).*?(?:\n'@|\Z)|#[^\n]*", re.DOTALL)
_COMMA, _PLUS = re.compile(r",(?:\s|`\r?\n)*"), re.compile(r"\+(?:\s|`\r?\n)*")
_SPLAT, _ESCAPED, _MEMBERS = re.compile(r"@\w+"), re.compile(r"`\S"), re.compile(r"(?:\.\w+|\[[^\]\n]{0,200}\])+")
_NUMBER = re.compile(r"[-+]?[\d.]+(?:e[-+]?\d+)?", re.IGNORECASE)
_REDIRECTS = re.compile(r"[<>]+(?:&\d)?[ \t]*")
_ENDS = "\n;|{})"


class PowerShell(Reader):
    escape, opaque = "`", "'\""

    def __init__(self, text: str, scope: Scope | None = None) -> None:
        super().__init__(text, scope or Scope(folds=True))

    def step(self) -> None:
        self.take(_SPACE)
        letter = self.letter
        if not letter or self._comment():
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
            self.take(_FUNCTION_NAME)
        self.take(_SPACE)
        if not self.text.startswith("(", self.at):
            return
        if keyword[0].lower() != "param":
            self.at = self.bracket(self.at)
            return
        self.at += 1
        while self.letter not in ("", ")"):
            if assigns := _ASSIGNS.match(self.text, self.at):
                self._assign(assigns, of_parameter=True)
            elif self.letter == "[":
                self.at = self.bracket(self.at)
            elif not self._comment():
                self.at += 1
        self.at += 1

    def _assign(self, assigns: re.Match[str], *, of_parameter: bool = False) -> None:
        self.at = assigns.end()
        self.take(_BLANK)
        words = self._element() if of_parameter else self._value()
        name = _local(assigns[1])
        match assigns[2] and self.scope.get(name), words:
            case "", _:
                self.scope.set(name, words)
            case [one], [_] if _NUMBER.fullmatch(one):
                self.scope.forget(name)  # += of numbers is a sum, which is not evaluated
            case [one], [more] if " " in one:
                self.scope.set(name, [one + more])
            case _:
                self.scope.add(name, words)

    def _value(self) -> list[str] | None:
        """Returns the words of an assignment's right side; None for one that is not literal."""
        words: list[str] = []
        self.take(_BLANK)
        while self._inside():
            if self._comment():
                break
            if self.take(_COMMA):
                continue
            if words and self.take(_PLUS):
                more = self._element()
                if more is None:
                    return self._give_up()
                words = [words[-1] + more[0]] if len(words) == len(more) == 1 else words + more
                continue
            element = self._element()
            if element is None:
                return self._give_up()
            words += element
            self.take(_BLANK)
            if self.letter and self.letter not in f"{_ENDS},+#":
                return self._give_up()
        return words

    def _element(self) -> list[str] | None:
        self.take(_CAST)
        if self.text.startswith("@(", self.at):
            return self._array()
        if joins := self.take(_JOINS):
            return self._joined(in_brackets=joins.startswith("("))
        if self.text.startswith(("@", "("), self.at):
            return None
        return self._word()

    def _joined(self, *, in_brackets: bool) -> list[str]:
        """Returns the path of a Join-Path, whose name has been read."""
        parts: list[str] = []
        while self._inside() and self.letter != ",":
            if self.take(_PATH_OPTION):
                pass
            elif self.letter == "(":
                self.at = self.bracket(begin := self.at)
                parts.append(unset(self.text[begin : self.at]))
            else:
                parts += self._word()
            self.take(_BLANK)
        if in_brackets and self.letter == ")":
            self.at += 1
        return ["/".join(parts)]

    def _inside(self) -> bool:
        """Returns whether the statement goes on here."""
        return self.letter != "" and self.letter not in _ENDS

    def _array(self) -> list[str] | None:
        self.at += 2
        words: list[str] = []
        known = True
        while self.at < len(self.text):
            self.take(_SPACE)
            if self._comment():
                continue
            if self.letter == ")":
                self.at += 1
                return words if known else None
            if self.letter in (",", ";"):
                self.at += 1
                continue
            element = self._element()
            if element is None:
                known = False
                self.at = self.bracket(self.at + self.letter.count("@"))
            else:
                words += element
        raise UnbalancedError("No closing bracket")

    def _command(self) -> None:
        words: list[str] = []
        while self._inside():
            letter = self.letter
            if self.take(_BLANK) or self._comment():
                continue
            if letter in "&,":
                self.at += 1
            elif letter in "<>":
                if words and words[-1] in ("1", "2", "*"):
                    words.pop()
                if "&" not in self.take(_REDIRECTS) and self._inside():
                    self._word()
            elif splat := self.take(_SPLAT):
                held = self.scope.get(splat[1:])
                words += [unset(splat)] if held is None else held
                self.scope.spend(held or ())
            elif letter in "(@":
                begin = self.at
                self.at = self.bracket(self.at + (letter == "@"))
                words.append(unset(self.text[begin : self.at]))
            else:
                words += self._word()
        self.scope.spend(words)
        if words:
            self.add_command(words)

    def _word(self) -> list[str]:
        """Returns the words up to the next blank: one, or the elements of a list."""
        word, begin = "", self.at
        while self.at < len(self.text):
            letter = self.letter
            if plain := self.take(_PLAIN):
                word += plain
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
            elif escaped := self.take(_ESCAPED):
                word += escaped[1]
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
            self.at = self.bracket(begin + 1)
            inside = re.fullmatch(r"\$\(\s*\$(\w+)\s*\)", self.text[begin : self.at])
            held = self.scope.get(inside[1]) if inside else None
            return [unset(self.text[begin : self.at]) if held is None else " ".join(held)]
        name = _NAME.match(self.text, begin)
        if name is None:
            self.at += 1
            return ["$"]
        self.at = name.end()
        if alone and self.take(_MEMBERS):
            return [unset(self.text[begin : self.at])]
        known = {"true": ["True"], "false": ["False"], "null": [""]}
        said = name[1] if name[1] is not None else name[2]
        held = known.get(said.lower()) or self.scope.get(_local(said))
        if held is None:
            return [unset(name[0])]
        return held if alone else [" ".join(held)]

    def _single(self) -> str:
        if not (found := self.take(_SINGLE)):
            raise UnbalancedError("No closing quotation")
        return found[1:-1].replace("''", "'")

    def _double(self) -> str:
        self.at += 1
        word = ""
        while self.at < len(self.text):
            letter = self.letter
            if plain := self.take(_PLAIN_QUOTED):
                word += plain
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
        """Skips a comment or a here-string; returns whether there was one."""
        return self.take(_COMMENT) != ""

    def _give_up(self) -> None:
        """Skips a statement that cannot be followed."""
        while (letter := self.letter) and letter not in "\n;}":
            if self.take(_BLANK) or self._comment():
                continue
            if letter == "'":
                self._single()
            elif letter == '"':
                self._double()
            elif letter in "({":
                self.at = self.bracket(self.at)
            else:
                self.at += 1


def _local(name: str) -> str:
    """Returns a name without its scope."""
    return re.sub(r"^(?:script|global|local|env):", "", name, flags=re.IGNORECASE)
