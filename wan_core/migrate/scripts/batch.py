"""Parses a Windows batch file into commands, following its own variables. Nothing is run."""

from __future__ import annotations

import re

from ...errors import ConfigError
from .scope import MOST_LETTERS, Scope, UnbalancedError, unset

_CONTINUES = re.compile(r"\^[ \t]*\r?\n")
_VARIABLE = re.compile(r"%%~?[A-Za-z]+|%~[A-Za-z$:]*[0-9*]|%[0-9*]|%([^%\s=:!]+)(:[^%\n]*)?%")
_DELAYED = re.compile(r"!([^!\s=:]+)!")
_SET = re.compile(r"set\s+(/[ap]\s+)?\"?\s*([^=\"&|<>]+?)=(.*)", re.IGNORECASE | re.DOTALL)
_MISSING = re.compile(r"if\s+(?:not\s+defined\s+(\S+)|\"?%([^%\s]+)%\"?\s*==\s*\"\"?)\s+\(?", re.IGNORECASE)
_DEEPEST, _MOST_SECTIONS = 20, 20
_LABEL = re.compile(r"\s*:([\w.-]+)")
_GOTO = re.compile(r"\bgoto\s*:?\s*([\w.-]+)", re.IGNORECASE)
_CALL = re.compile(r"(?:^|[\s(&@])call\s+\"?(:[\w.-]+|[^\s\"&|]+\.(?:bat|cmd))\b", re.IGNORECASE)
_RETURNS = re.compile(r"\s*(?:exit\s+/b|goto\s*:\s*eof)\b", re.IGNORECASE)
_SETS = re.compile(r"(?:^|[\s(&])set\s+(?:/[ap]\s+)?\"?([^=\"&|<>]+?)=", re.IGNORECASE)
_ELSE = re.compile(r"\)\s*else\s*\(?", re.IGNORECASE)
_PASSED = re.compile(r"(?:rem\b|::|:)", re.IGNORECASE)


def batch_commands(text: str, scope: Scope | None = None) -> list[list[str]]:
    scope = scope or Scope(folds=True)
    delayed = "enabledelayedexpansion" in text.lower()
    found: list[list[str]] = []
    lines = _CONTINUES.sub(" ", text).splitlines()
    sections = _sections(lines)
    places = {name: number for number, (name, _, _) in reversed(list(enumerate(sections)))}
    leaps, opened = {name.lower() for name in _GOTO.findall(text)} - {"eof"}, False
    for line in lines:
        label = _LABEL.match(line)
        if label and label[1].lower() in leaps:  # reached by goto: the lines above may not have run
            if opened:
                scope.close()
            scope.open()
            opened = True
        _line(line, scope, found, delayed=delayed)
        if not opened and leaps and (leap := _GOTO.search(line)) and leap[1].lower() != "eof":
            scope.open()
            opened = True
        for called in _CALL.findall(line):
            _called(called, sections, places, scope)
    return found


def _sections(lines: list[str]) -> list[tuple[str, set[str], bool]]:
    """Returns the sections between labels: label, assigned names, and whether it returns at its end."""
    found: list[tuple[str, set[str], bool]] = []
    for line in lines:
        if label := _LABEL.match(line):
            found.append((label[1].lower(), set(), False))
        elif found and not found[-1][2]:
            name, names, _ = found[-1]
            names.update(said.strip() for said in _SETS.findall(line))
            found[-1] = (name, names, bool(_RETURNS.match(line)))
    return found


def _called(called: str, sections: list[tuple[str, set[str], bool]], places: dict[str, int], scope: Scope) -> None:
    """Forgets the names that a called section or file may assign."""
    if not called.startswith(":"):
        scope.read_other([called])
        return
    begin = places.get(called[1:].lower())
    if begin is None:
        return
    names: set[str] = set()
    for _, more, goes_back in sections[begin : begin + _MOST_SECTIONS]:
        names |= more
        if goes_back:
            break
    else:
        if begin + _MOST_SECTIONS < len(sections):
            scope.forget_all()
            return
    scope.forget_these(names)


def _line(line: str, scope: Scope, found: list[list[str]], *, delayed: bool, depth: int = 0) -> None:
    line = line.strip().lstrip("@").strip()
    while line.startswith(")"):
        scope.close()
        line = line[1:].lstrip()
    if not line or _PASSED.match(line):
        return
    missing = _MISSING.match(line)
    name = next(filter(None, missing.groups()), "") if missing else ""
    if missing and name and not scope.has(name) and depth < _DEEPEST:  # the default of an unset variable
        rest = _ELSE.split(line[missing.end() :])[0] if missing[0].endswith("(") else line[missing.end() :]
        _line(rest.rstrip(")"), scope, found, delayed=delayed, depth=depth + 1)
        return
    opens = bool(re.match(r"(?:if|for|else)\b", line, re.IGNORECASE))
    if opens:
        scope.open()
        inside = re.match(r"(?:if|for|else)\b[^(]*\(", line, re.IGNORECASE)
        rest = line[inside.end() :] if inside else _behind_condition(line)
        for number, branch in enumerate(_ELSE.split(rest) if inside else [rest]):
            if number:
                scope.other_branch()
            _commands(branch.rstrip(")") if inside else branch, scope, found, delayed=delayed)
        if not inside or rest.rstrip().endswith(")"):
            scope.close()
        return
    _commands(line, scope, found, delayed=delayed)


def _behind_condition(line: str) -> str:
    """Returns a line's command after its condition: if [not] a == b, if exist file."""
    told = re.match(
        r"if\s+(?:/i\s+)?(?:not\s+)?(?:exist\s+(?:\"[^\"]*\"|\S+)|defined\s+\S+|errorlevel\s+\d+"
        r"|(?:\"[^\"]*\"|\S+?)\s*(?:==|\bequ\b|\bneq\b|\blss\b|\bleq\b|\bgtr\b|\bgeq\b)\s*(?:\"[^\"]*\"|\S+))\s+",
        line,
        re.IGNORECASE,
    )
    return line[told.end() :] if told else line


def _commands(line: str, scope: Scope, found: list[list[str]], *, delayed: bool) -> None:
    for part in _parts(line):
        part = part.strip().lstrip("@").strip()
        setting = _SET.match(part)
        if setting:
            _set(setting, part, scope, delayed=delayed)
            continue
        words = _words(_expanded(part, scope, delayed=delayed))
        if words:
            found.append(words)


def _set(setting: re.Match[str], part: str, scope: Scope, *, delayed: bool) -> None:
    name, value = setting[2], setting[3]
    if setting[1]:
        scope.forget(name)
        return
    quoted = re.match(r"set\s+\"", part, re.IGNORECASE)
    if quoted:
        value = value.rpartition('"')[0] if '"' in value else value
    scope.set(name.strip() if quoted else name, _expanded(value, scope, delayed=delayed))


def _expanded(text: str, scope: Scope, *, delayed: bool) -> str:
    def value(found: re.Match[str]) -> str:
        name = found[1] if found.re.groups else ""
        words = scope.get(name) if name and (found.re.groups < 2 or not found[2]) else None
        return unset(found[0]) if words is None else "".join(words)

    text = _VARIABLE.sub(value, text)
    if delayed:
        text = _DELAYED.sub(value, text)
    if len(text) > MOST_LETTERS and "wan_train_network" in text:
        raise ConfigError(f"the command has {len(text):,} characters. Use at most {MOST_LETTERS:,}.")
    scope.spend([text])
    return text[: MOST_LETTERS + 1]


def _parts(line: str) -> list[str]:
    """Splits a line at & && || and |."""
    parts, quoted, begin = [], False, 0
    for sign in re.finditer(r"\^.|[\"&|]", line):
        if sign[0] == '"':
            quoted = not quoted
        elif sign[0] in "&|" and not quoted:
            parts.append(line[begin : sign.start()])
            begin = sign.end()
    parts.append(line[begin:])
    return parts


def _words(text: str) -> list[str]:
    words: list[str] = []
    word, quoted, begun, skips = "", False, False, False
    for piece in re.findall(r"\^.|\"|\s+|[<>]|[^\s\"^<>]+|\^", text):
        if piece == '"':
            quoted, begun = not quoted, True
        elif quoted or not (piece.isspace() or piece in "<>"):
            word, begun = word + (piece[1:] if piece[0] == "^" and not quoted else piece), True
        else:
            if begun and not skips and not (piece in "<>" and word in ("1", "2")):
                words.append(word)
            skips = piece in "<>" or (skips and not begun)
            word, begun = "", False
    if quoted:
        raise UnbalancedError("No closing quotation")
    if begun and not skips:
        words.append(word)
    return words
