"""Reads the literal command lists in a Python file. Nothing is run."""

from __future__ import annotations

import ast
import re
import warnings
from collections import Counter

from ...errors import ConfigError
from .marks import SCRIPT, unset

_MOST_BYTES = 512 << 10
_OPTION = re.compile(r"--\w+[ \t]+\S")
_ADDS, _SAYS = ("append", "extend"), ("print", "info", "debug", "warning", "error", "exists", "isfile", "echo", "write")


def python_commands(name: str, text: str) -> list[list[str]]:
    """Returns the words of each list or text that contains the training script, with words that are appended later.

    ConfigError for invalid Python.
    """
    if len(text) > _MOST_BYTES:
        raise ConfigError(f"{name} is larger than 512 KiB; a file that starts a training is not. Choose that file.")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # for example about an invalid escape sequence
            tree = ast.parse(text)
        reader = _Reader(tree)
        reader.visit(tree)
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
        raise ConfigError(f"{name} is no Python that can be read ({type(error).__name__}). Correct it.") from error
    return [_split(words) for words in reader.commands]


def _split(words: list[str]) -> list[str]:
    """Splits words that combine an option and its value."""
    if len(words) == 1 or not any(_OPTION.match(word) for word in words):
        return words
    return [part for word in words for part in (word.split() if _OPTION.match(word) else [word])]


class _Reader(ast.NodeVisitor):
    """Replaces names to which a literal is assigned once. All other names, and arguments of functions, are unknown."""

    def __init__(self, tree: ast.Module) -> None:
        nodes = list(ast.walk(tree))
        added = {id(node.target) for node in nodes if isinstance(node, ast.AugAssign)}
        counts = Counter(node.arg for node in nodes if isinstance(node, ast.arg))
        names = [node for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)]
        counts.update(node.id for node in names if id(node) not in added)
        self._once = {name for name, count in counts.items() if count == 1}
        self._values: dict[str, list[str]] = {}
        self.commands: list[list[str]] = []
        self._of_name: dict[str, int] = {}
        """name of a list -> index of its command"""
        self._maybe = 0
        """number of enclosing conditions"""

    def visit(self, node: ast.AST) -> None:
        branches = isinstance(node, ast.If | ast.For | ast.AsyncFor | ast.While | ast.Match | ast.ExceptHandler)
        self._maybe += branches
        super().visit(node)
        self._maybe -= branches

    def visit_Assign(self, node: ast.Assign) -> None:
        for target in node.targets:
            if isinstance(target, ast.Name):
                self._set(target.id, node.value)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if isinstance(node.target, ast.Name) and node.value is not None:
            self._set(node.target.id, node.value)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        if isinstance(node.target, ast.Name):
            self._add(node.target.id, self._listed(node.value))

    def visit_Return(self, node: ast.Return) -> None:
        for value in node.value.elts if isinstance(node.value, ast.Tuple) else [node.value]:
            words = self._listed(value) if isinstance(value, ast.List) else None
            if words and any(SCRIPT in word for word in words):
                self.commands.append(words)
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        self._call(node)
        self.generic_visit(node)

    def _set(self, name: str, value: ast.expr) -> None:
        words = self._listed(value)
        text = self._text(value) if words is None else None
        held = [text] if text is not None else words
        if held is not None and name in self._once and not self._maybe:
            if sum(map(len, held)) > _MOST_BYTES:
                raise MemoryError
            self._values[name] = held
        if words and any(SCRIPT in word for word in words):
            self._of_name[name] = len(self.commands)
            self.commands.append(words)
        else:
            self.generic_visit(value)
            if isinstance(value, ast.Call):
                self._call(value)

    def _add(self, name: str, words: list[str] | None) -> None:
        if words is None:
            words = [unset("...")]
        elif self._maybe:
            words = [unset(f"if ...: {' '.join(words)}")]
        if name in self._of_name:
            self.commands[self._of_name[name]] += words
        elif name in self._values:
            self._values[name] = [*self._values[name], *words]

    def _call(self, call: ast.Call) -> None:
        function = call.func
        if isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name) and function.attr in _ADDS:
            given = call.args[0] if call.args else None
            if given is None:
                return
            one = function.attr == "append"
            self._add(function.value.id, [self._word(given)] if one else self._listed(given))
            return
        if (getattr(function, "id", "") or getattr(function, "attr", "")) in _SAYS:
            return
        for argument in call.args:
            words = self._listed(argument)
            if words is None and isinstance(text := self._text(argument), str) and " " in text:
                words = [text]
            if words and any(SCRIPT in word for word in words) and not isinstance(argument, ast.Name):
                self.commands.append(words)

    def _listed(self, value: ast.expr) -> list[str] | None:
        if isinstance(value, ast.List | ast.Tuple):
            words: list[str] = []
            for element in value.elts:
                if isinstance(element, ast.Starred):
                    more = self._listed(element.value)
                    words += [unset(f"*{ast.unparse(element.value)[:80]}")] if more is None else more
                else:
                    words.append(self._word(element))
            return words
        if isinstance(value, ast.Name):
            held = self._values.get(value.id)
            return held if held is not None and len(held) != 1 else None
        if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Add):
            left, right = self._listed(value.left), self._listed(value.right)
            return None if left is None or right is None else left + right
        return None

    def _word(self, value: ast.expr) -> str:
        text = self._text(value)
        return unset(ast.unparse(value)[:80]) if text is None else text

    def _text(self, value: ast.expr) -> str | None:
        """Returns the text of a constant, a name, an f-string, or a path of these; None for other expressions."""
        match value:
            case ast.Constant(value=str(text)):
                return text
            case ast.Constant(value=bool(flag)):
                return str(flag)
            case ast.Constant(value=int() | float() as number):
                return repr(number) if abs(number) < 1e300 else None
            case ast.Name(id=name):
                held = self._values.get(name)
                return held[0] if held is not None and len(held) == 1 else None
            case ast.JoinedStr(values=parts):
                return "".join(self._word(part) for part in parts)
            case ast.FormattedValue(value=inner, format_spec=None):
                return self._word(inner)
            case ast.BinOp(left=left, op=ast.Add(), right=right):
                return self._word(left) + self._word(right)
            case ast.BinOp(left=left, op=ast.Div(), right=right):
                return f"{self._word(left)}/{self._word(right)}"
            case ast.Call(func=ast.Name(id="str" | "Path"), args=[inner], keywords=[]):
                return self._text(inner)
            case ast.Call(func=ast.Attribute(attr="join"), args=[*parts]) if len(parts) > 1:
                return "/".join(self._word(part) for part in parts)
            case _:
                return None
