"""Reads the commands of a shell script, with the variables that the script itself sets. Runs nothing."""

from __future__ import annotations

import itertools
import re

from ...errors import ConfigError
from .scope import MOST_LETTERS, Scope, UnbalancedError, check_length, check_word, unset

_PLAIN = re.compile(r"[^\s'\"\\$`;&|()<>#]+")
_PLAIN_QUOTED = re.compile(r"[^\"\\$`]+")
_BLANK = re.compile(r"(?:[ \t\r]|\\\r?\n)+")
_ASSIGNS = re.compile(r"([A-Za-z_]\w*)(\[[^\]\s]*\])?(\+?)=")
_NAME = re.compile(r"[A-Za-z_]\w*|[0-9@*#?$!_-]")
_HEREDOC = re.compile(r"<<-?[ \t]*(?:'([^'\n]*)'|\"([^\"\n]*)\"|\\?([^\s;&|<>()]+))")
_REDIRECTS = re.compile(r"(?:<<<|<&|<>|<|>>|>\||>&|>|&>>|&>)[ \t]*")
_OPENS = {"if", "while", "until", "for", "case", "select", "{"}
_CLOSES = {"fi", "done", "esac", "}"}
_SETS = {"export", "declare", "local", "readonly", "typeset"}
_FORGETS = {"read", "mapfile", "readarray", "getopts", "unset", "printf"}
"""commands whose words are names that they set; printf with -v"""
_SUM = re.compile(r"(?<!\w)([A-Za-z_]\w*)[ \t]*(?:[-+*/%&|^]|<<|>>)?=(?!=)|(?<!\w)([A-Za-z_]\w*)[ \t]*(?:\+\+|--)")
_FUNCTION = re.compile(r"^[ \t]*(?:function[ \t]+)?([\w-]+)[ \t]*(?:\(\))?[ \t\n]*\{", re.MULTILINE)
_SET_INSIDE = re.compile(r"(?<![\w$\"'=-])(local[ \t]+)?([A-Za-z_]\w*)(?:\[[^\]\s]*\])?\+?=")
_MOST_FUNCTIONS, _MOST_INSIDE = 1000, 1 << 20
_DEEPEST = 20


class Shell:
    """One script. `commands` are its words, expanded as far as the script says them."""

    def __init__(self, text: str, scope: Scope | None = None, depth: int = 0) -> None:
        self.text, self.at = text, 0
        self.scope = scope or Scope()
        self.commands: list[list[str]] = []
        self._depth = depth
        self._words: list[str] = []
        self._docs: list[str] = []
        self._sets = False
        """the words may be assignments, behind export"""
        self._maybe = False
        """the command runs where another has gone well, or not"""
        self._parens = 0
        self._functions = _names_of_functions(text) if not depth else {}

    def read(self) -> list[list[str]]:
        """Returns the commands; raises UnbalancedError where a quote is not closed."""
        while self.at < len(self.text):
            self._step()
        self._end()
        return self.commands

    def _step(self) -> None:
        if blank := _BLANK.match(self.text, self.at):
            self.at = blank.end()
            return
        letter = self.text[self.at]
        if letter == "\n":
            self._end()
            self.at += 1
            self._pass_documents()
        elif letter.isspace():
            self.at += 1
        elif letter == "#" or (not self._words and self.text.startswith("```", self.at)):
            self.at = self._find("\n")
        elif document := (not self.text.startswith("<<<", self.at) and _HEREDOC.match(self.text, self.at)):
            self._docs.append(next(filter(None, document.groups()), ""))
            self.at = document.end()
        elif redirect := _REDIRECTS.match(self.text, self.at):
            self.at = redirect.end()
            if self.at < len(self.text) and self.text[self.at] not in "\n;|()":
                self._word()
        elif not self._words and self.text.startswith("((", self.at):
            begin, self.at = self.at, self._bracket(self.at, "(", ")")
            self._count(self.text[begin : self.at])
        elif letter in ";&|()":
            self._operator(letter)
        else:
            self._next_word()

    def _operator(self, letter: str) -> None:
        two = self.text[self.at : self.at + 2]
        self._end()
        self._maybe = two in ("&&", "||")
        self.at += 2 if two in ("&&", "||", ";;", "|&") else 1
        if two == ";;":
            self.scope.other_branch()
        elif letter == "(":
            self._parens += 1
            self.scope.open()
        elif letter == ")" and self._parens:
            self._parens -= 1
            self.scope.close()

    def _next_word(self) -> None:
        first = not self._words
        assigns = _ASSIGNS.match(self.text, self.at) if first or self._sets else None
        if assigns is not None:
            self._assign(assigns)
            return
        begin = self.at
        words = self._word()
        raw = self.text[begin : self.at]
        if first and raw in (*_OPENS, *_CLOSES, "then", "do", "else", "elif", "!", "time"):
            self._reserved(raw)
            return
        if re.fullmatch(r"\d+", raw) and self.text[self.at : self.at + 1] in ("<", ">"):
            return  # the number of a stream
        if first and raw in _SETS:
            self._sets = True
        self.scope.spend(words)
        self._words += words

    def _reserved(self, word: str) -> None:
        if word in _OPENS:
            self.scope.open()
        if word in _CLOSES:
            self.scope.close()
        if word in ("else", "elif"):
            self.scope.other_branch()
        if word in ("for", "select") and (name := re.compile(r"[ \t]*([A-Za-z_]\w*)").match(self.text, self.at)):
            self.scope.forget(name[1])

    def _count(self, sums: str) -> None:
        """Forget what a sum sets: nothing is worked out."""
        for said in _SUM.finditer(sums):
            self.scope.forget(said[1] or said[2])

    def _end(self) -> None:
        """The command is whole."""
        words = self._words
        if words and words[0] == "let":
            self._count(" ".join(words[1:]))
        elif words and words[0] in _FORGETS:
            for word in words[1:]:
                if word.isidentifier():
                    self.scope.forget(word)
        elif words[1:] and words[0] in ("source", "."):
            self.scope.read_other(words[1:2])
        elif words and words[0] in self._functions:
            self.scope.forget_these(self._functions[words[0]])
        if words and not self._sets:
            check_length(words)
            self.commands.append(words)
        self._words, self._sets, self._maybe = [], False, False

    def _assign(self, assigns: re.Match[str]) -> None:
        self.at = assigns.end()
        name, adds = assigns[1], bool(assigns[3])
        value: list[str] | None = [""]
        if self.text.startswith("(", self.at):
            value = self._array()
        elif self.at < len(self.text) and self.text[self.at] not in " \t\r\n;&|()<>":
            value = ["".join(self._word(splits=False))]
        if self._maybe and adds:
            value = [unset(f"if ...: {' '.join(value)}")]
        elif assigns[2] or self._maybe:
            value = None
        if adds and value is not None and not self.text[assigns.end() :].startswith("("):
            held = self.scope.get(name) if self.scope.has(name) else [""]
            value = None if held is None else ["".join(held) + value[0]]
        elif adds:
            self.scope.add(name, value)
            return
        self.scope.set(name, value)

    def _array(self) -> list[str]:
        self.at += 1
        words: list[str] = []
        while self.at < len(self.text):
            if blank := re.compile(r"(?:\s|\\\r?\n)+").match(self.text, self.at):
                self.at = blank.end()
            elif self.text[self.at] == "#":
                self.at = self._find("\n")
            elif self.text[self.at] == ")":
                self.at += 1
                return words
            elif self.text[self.at] in ";&|<>(":
                self.at += 1
            else:
                words += self._word()
        raise UnbalancedError("No closing bracket")

    def _word(self, *, splits: bool = True) -> list[str]:
        """Returns the words that the text up to the next blank stands for: none, one, or those of a list."""
        fields, quoted = [""], False
        begin = self.at
        while self.at < len(self.text):
            letter = self.text[self.at]
            if plain := _PLAIN.match(self.text, self.at):
                fields[-1] += plain[0]
                self.at = plain.end()
            elif letter == "'":
                end = self._closing("'", self.at + 1)
                fields[-1] += self.text[self.at + 1 : end]
                self.at, quoted = end + 1, True
            elif letter == '"':
                self._quoted(fields)
                quoted = True
            elif letter == "\\":
                self._escaped(fields)
            elif letter in "$`":
                self._expanded(fields, splits=splits, quoted=False)
            elif letter == "#" and self.at > begin:
                fields[-1] += letter
                self.at += 1
            else:
                break
        if self.at == begin:  # nothing that a word begins with
            self.at += 1
        return fields if quoted or fields != [""] else []

    def _escaped(self, fields: list[str]) -> None:
        """A backslash; before a letter it is one of a path of Windows."""
        after = self.text[self.at + 1 : self.at + 2]
        if after == "\n" or self.text.startswith("\r\n", self.at + 1):
            self.at += 2 + (after != "\n")
            return
        fields[-1] += f"\\{after}" if after.isalnum() or after == "_" else after or "\\"
        self.at += 2

    def _quoted(self, fields: list[str]) -> None:
        self.at += 1
        while self.at < len(self.text):
            letter = self.text[self.at]
            if plain := _PLAIN_QUOTED.match(self.text, self.at):
                fields[-1] += plain[0]
                self.at = plain.end()
            elif letter == '"':
                self.at += 1
                return
            elif letter == "\\":
                after = self.text[self.at + 1 : self.at + 2]
                fields[-1] += "" if after == "\n" else after if after and after in '$`"\\' else f"\\{after}"
                self.at += 2
            else:
                self._expanded(fields, splits=False, quoted=True)
        raise UnbalancedError("No closing quotation")

    def _expanded(self, fields: list[str], *, splits: bool, quoted: bool) -> None:
        """A $ or a backtick."""
        begin = self.at
        check_word(fields[-1])
        if self.text[begin] == "`":
            self.at = self._closing("`", begin + 1) + 1
            fields[-1] += unset(self.text[begin : self.at])
            return
        after = self.text[begin + 1 : begin + 2]
        if after == "(":
            self.at = self._bracket(begin + 1, "(", ")")
            fields[-1] += unset(self.text[begin : self.at])
        elif after == "{":
            self.at = self._bracket(begin + 1, "{", "}")
            self._put(self._braced(self.text[begin + 2 : self.at - 1]), fields, begin, splits=splits)
        elif after == "[":  # the old form of $((
            self.at = self._bracket(begin + 1, "[", "]")
            fields[-1] += unset(self.text[begin : self.at])
        elif after == "'" and not quoted:
            end = self._closing("'", begin + 2)
            fields[-1] += self.text[begin + 2 : end]
            self.at = end + 1
        elif name := _NAME.match(self.text, begin + 1):
            self.at = name.end()
            found = self.scope.get(name[0])
            self._put(None if found is None else "" if not found else found[0], fields, begin, splits=splits)
        else:
            fields[-1] += "$"
            self.at += 1

    def _put(self, value: str | list[str] | None, fields: list[str], begin: int, *, splits: bool) -> None:
        if value is None:
            fields[-1] += unset(self.text[begin : self.at])
            return
        pieces = value
        if isinstance(value, str):
            pieces = value.split() if splits else [value]
            if splits and value[:1].isspace() and pieces:
                pieces.insert(0, "")
        if not pieces:
            return
        fields[-1] += pieces[0]
        fields += pieces[1:]
        if sum(map(len, fields)) > MOST_LETTERS:
            raise ConfigError(f"a word has more than {MOST_LETTERS:,} characters. Use fewer.")

    def _braced(self, inside: str) -> str | list[str] | None:
        """The value of ${...}: a name, one of a list, or a name with what counts where it is not set."""
        if every := re.fullmatch(r"([A-Za-z_]\w*)\[[@*]\]", inside):
            return self.scope.get(every[1])
        if one := re.fullmatch(r"([A-Za-z_]\w*)\[(\d{1,4})\]", inside):
            listed = self.scope.get(one[1])
            return listed[int(one[2])] if listed and int(one[2]) < len(listed) else None
        said = re.fullmatch(r"([A-Za-z_]\w*|\d)(?:(:?)([-=+])(.*))?", inside, re.DOTALL)
        if said is None:
            return None
        name, sign, other = said[1], said[3], said[4]
        held = self.scope.get(name)
        value = None if held is None else held[0] if held else ""
        if sign is None:
            return value
        there = self.scope.has(name)
        if there and held is None:
            return None
        chosen = bool(value) if said[2] else there
        if sign == "+":
            return self._inner(other) if chosen else ""
        if chosen:
            return value
        inner = self._inner(other)
        if sign == "=":
            self.scope.set(name, inner)
        return inner

    def _inner(self, text: str) -> str | None:
        if self._depth >= _DEEPEST:
            return None
        inner = Shell(f'"{text}"' if '"' not in text and "'" not in text else text, self.scope, self._depth + 1)
        return " ".join(inner._word(splits=False))

    def _closing(self, sign: str, begin: int) -> int:
        end = self.text.find(sign, begin)
        if end < 0:
            raise UnbalancedError("No closing quotation")
        return end

    def _find(self, sign: str) -> int:
        end = self.text.find(sign, self.at)
        return len(self.text) if end < 0 else end

    def _bracket(self, begin: int, opens: str, closes: str) -> int:
        """Returns the place behind the bracket that closes the one at `begin`."""
        depth, at = 0, begin
        signs = re.compile(r"[\\'\"`" + re.escape(opens + closes) + "]")
        while found := signs.search(self.text, at):
            sign, at = found[0], found.end()
            if sign == "\\":
                at += 1
            elif sign == "'" or sign == "`":
                at = self._closing(sign, at) + 1
            elif sign == opens:
                depth += 1
            elif sign == closes:
                depth -= 1
                if not depth:
                    return at
        raise UnbalancedError("No closing bracket")

    def _pass_documents(self) -> None:
        """The lines of here-documents are not commands."""
        for delimiter in self._docs:
            end = re.compile(rf"^\t*{re.escape(delimiter)}\r?$", re.MULTILINE).search(self.text, self.at)
            self.at = len(self.text) if end is None else min(end.end() + 1, len(self.text))
        self._docs = []


def _names_of_functions(text: str) -> dict[str, set[str]]:
    """The names that each function of a script sets for what stands behind a call of it."""
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
