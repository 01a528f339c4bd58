"""Parses a shell script into commands, following its own variables. Nothing is run."""

from __future__ import annotations

import re

from ...errors import ConfigError
from .reader import Reader
from .scope import MOST_LETTERS, Scope, UnbalancedError, check_length, check_word, names_of_functions, unset

_PLAIN = re.compile(r"[^\s'\"\\$`;&|()<>#]+")
_PLAIN_QUOTED = re.compile(r"[^\"\\$`]+")
_BLANK = re.compile(r"(?:[^\S\n]|\\\r?\n)+")
_SPACE = re.compile(r"(?:\s|\\\r?\n)+")
_ASSIGNS = re.compile(r"([A-Za-z_]\w*)(\[[^\]\s]*\])?(\+?)=")
_NAME = re.compile(r"[A-Za-z_]\w*|[0-9@*#?$!_-]")
_HEREDOC = re.compile(r"<<-?[ \t]*(?:'([^'\n]*)'|\"([^\"\n]*)\"|\\?([^\s;&|<>()]+))")
_REDIRECTS = re.compile(r"(?:<<<|<&|<>|<|>>|>\||>&|>|&>>|&>)[ \t]*")
_OPENS = {"if", "while", "until", "for", "case", "select", "{"}
_CLOSES = {"fi", "done", "esac", "}"}
_SETS = {"export", "declare", "local", "readonly", "typeset"}
_FORGETS = {"read", "mapfile", "readarray", "getopts", "unset", "printf"}
"""commands that assign to their words; printf with -v"""
_SUM = re.compile(r"(?<!\w)([A-Za-z_]\w*)[ \t]*(?:[-+*/%&|^]|<<|>>)?=(?!=)|(?<!\w)([A-Za-z_]\w*)[ \t]*(?:\+\+|--)")
_DEEPEST = 20


class Shell(Reader):
    """One script. `commands` are the words of each command, expanded as far as the script defines them."""

    def __init__(self, text: str, scope: Scope | None = None, depth: int = 0) -> None:
        super().__init__(text)
        self.scope, self.commands = scope or Scope(), list[list[str]]()
        self._depth = depth
        self._words: list[str] = []
        self._docs: list[str] = []
        self._sets = False
        """whether words may be assignments, after export"""
        self._maybe = False
        """whether the command depends on another one's exit code"""
        self._parens = 0
        self._functions = names_of_functions(text) if not depth else {}

    def read(self) -> list[list[str]]:
        """Returns the commands; UnbalancedError for an open quote."""
        while self.at < len(self.text):
            self._step()
        self._end()
        return self.commands

    def _step(self) -> None:
        """Reads the next part of a command."""
        if self.take(_BLANK):
            return
        letter = self.letter
        if letter == "\n":
            self._end()
            self.at += 1
            self._pass_documents()
        elif letter == "#" or (not self._words and self.text.startswith("```", self.at)):
            self.at = self.find("\n")
        elif document := (not self.text.startswith("<<<", self.at) and _HEREDOC.match(self.text, self.at)):
            self._docs.append(next(filter(None, document.groups()), ""))
            self.at = document.end()
        elif self.take(_REDIRECTS):
            if self.letter and self.letter not in "\n;|()":
                self._word()
        elif not self._words and self.text.startswith("((", self.at):
            begin, self.at = self.at, self.bracket(self.at, "(", ")")
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
        if raw.isdecimal() and self.letter in ("<", ">"):
            return  # the number of a stream, as in 2>&1
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
        """Forgets the names that an arithmetic expression assigns: it is not evaluated."""
        for said in _SUM.finditer(sums):
            self.scope.forget(said[1] or said[2])

    def _end(self) -> None:
        """Ends a command and applies its assignments."""
        words = self._words
        if words and words[0] == "let":
            self._count(" ".join(words[1:]))
        elif words and words[0] in _FORGETS:
            for word in words[1:]:
                if word.isidentifier():
                    self.scope.forget(word)
        elif words and words[0] in self._functions:
            self.scope.forget_these(self._functions[words[0]])
        if words and not self._sets:
            if words[1:] and words[0] in ("source", "."):
                self.scope.read_other(words[1:2])
            check_length(words)
            self.commands.append(words)
        self._words, self._sets, self._maybe = [], False, False

    def _assign(self, assigns: re.Match[str]) -> None:
        self.at = assigns.end()
        name, adds = assigns[1], bool(assigns[3])
        value: list[str] | None = [""]
        if self.text.startswith("(", self.at):
            value = self._array()
        elif self.letter and self.letter not in " \t\r\n;&|()<>":
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
            if self.take(_SPACE):
                continue
            if self.letter == "#":
                self.at = self.find("\n")
            elif self.letter == ")":
                self.at += 1
                return words
            elif self.letter in ";&|<>(":
                self.at += 1
            else:
                words += self._word()
        raise UnbalancedError("No closing bracket")

    def _word(self, *, splits: bool = True) -> list[str]:
        """Returns the expanded words up to the next blank: none, one, or the elements of a list."""
        fields, quoted, begin = [""], False, self.at
        while self.at < len(self.text):
            letter = self.letter
            if plain := self.take(_PLAIN):
                fields[-1] += plain
            elif letter == "'":
                end = self.closing("'", self.at + 1)
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
        if self.at == begin:  # no word starts with this character
            self.at += 1
        return fields if quoted or fields != [""] else []

    def _escaped(self, fields: list[str]) -> None:
        # Before a letter a backslash is part of a Windows path: shells would drop it, and the path with it.
        after = self.text[self.at + 1 : self.at + 2]
        if after == "\n" or self.text.startswith("\r\n", self.at + 1):
            self.at += 2 + (after != "\n")
            return
        fields[-1] += f"\\{after}" if after.isalnum() or after == "_" else after or "\\"
        self.at += 2

    def _quoted(self, fields: list[str]) -> None:
        self.at += 1
        while self.at < len(self.text):
            letter = self.letter
            if plain := self.take(_PLAIN_QUOTED):
                fields[-1] += plain
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
        """Expands a $ or a backtick."""
        begin = self.at
        check_word(fields[-1])
        after = self.text[begin + 1 : begin + 2]
        if self.letter == "`":
            self.at = self.closing("`", begin + 1) + 1
            fields[-1] += unset(self.text[begin : self.at])
        elif after == "{":
            self.at = self.bracket(begin + 1, "{", "}")
            self._put(self._braced(self.text[begin + 2 : self.at - 1]), fields, begin, splits=splits)
        elif after in ("(", "["):  # $[ is the old form of $((
            self.at = self.bracket(begin + 1, after, ")" if after == "(" else "]")
            fields[-1] += unset(self.text[begin : self.at])
        elif after == "'" and not quoted:
            end = self.closing("'", begin + 2)
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
        pieces = [unset(self.text[begin : self.at])] if value is None else value
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
        """Returns the value of ${...}: a name, a list or its element, or a name with a default."""
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

    def _pass_documents(self) -> None:
        """Skips here-documents: their lines are not commands."""
        for delimiter in self._docs:
            end = re.compile(rf"^\t*{re.escape(delimiter)}\r?$", re.MULTILINE).search(self.text, self.at)
            self.at = len(self.text) if end is None else min(end.end() + 1, len(self.text))
        self._docs = []
