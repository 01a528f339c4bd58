"""Parses the command list in a Python file, as far as it is literal. Nothing is run."""

from __future__ import annotations

import ast
import re
import warnings

from ...errors import ConfigError
from .scope import Scope, unset

SCRIPT = "wan_train_network"
_MOST_BYTES, _DEEPEST = 512 << 10, 100
_OPTION = re.compile(r"--\w+[ \t]+\S")
_ADDS, _SAYS = ("append", "extend"), ("print", "info", "debug", "warning", "error", "exists", "isfile", "echo", "write")


def python_commands(name: str, text: str) -> list[list[str]]:
    """Returns the words of each list or text that names the training script, with later additions.

    ConfigError for invalid Python.
    """
    if len(text) > _MOST_BYTES:
        raise ConfigError(f"{name} is larger than 512 KiB; a file that starts a training is not. Choose that file.")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a foreign "\\d" must not fail our run
            tree = ast.parse(text)
        reader = _Reader()
        reader.block(tree.body, depth=0)
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
        raise ConfigError(f"{name} is no Python that can be read ({type(error).__name__}). Correct it.") from error
    return [_split(words) for words in reader.commands]


def _split(words: list[str]) -> list[str]:
    """Splits words that combine an option and its value."""
    if len(words) == 1 or not any(_OPTION.match(word) for word in words):
        return words
    return [part for word in words for part in (word.split() if _OPTION.match(word) else [word])]


class _Reader:
    """Follows literal assignments, statement by statement."""

    def __init__(self) -> None:
        self.scope = Scope()
        self.commands: list[list[str]] = []
        self._of_name: dict[str, int] = {}
        """name of a list -> index of its command"""

    def block(self, statements: list[ast.stmt], depth: int) -> None:
        if depth > _DEEPEST:
            raise RecursionError
        for statement in statements:
            self._statement(statement, depth)

    def _statement(self, statement: ast.stmt, depth: int) -> None:
        blocks = [getattr(statement, name, None) for name in ("body", "orelse", "finalbody")]
        handlers = [one.body for one in getattr(statement, "handlers", ())]
        inner = [block for block in [*blocks, *handlers] if isinstance(block, list) and block]
        if inner:
            function = isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef)
            sure = function or isinstance(statement, ast.With | ast.Try)
            if function or not sure:
                self.scope.open()  # a function's names are local, or assigned when it is called
            if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
                for argument in [*statement.args.args, *statement.args.kwonlyargs]:
                    self.scope.forget(argument.arg)
            for number, block in enumerate(inner):
                if number and not sure:
                    self.scope.other_branch()
                self._maybe += not sure
                self.block(block, depth + 1)
                self._maybe -= not sure
            if function or not sure:
                self.scope.close()
            return
        if isinstance(statement, ast.Assign | ast.AnnAssign) and statement.value is not None:
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            for target in targets:
                if isinstance(target, ast.Name):
                    self._set(target.id, statement.value)
            return
        if isinstance(statement, ast.AugAssign) and isinstance(statement.target, ast.Name):
            self._add(statement.target.id, self._listed(statement.value))
            return
        if isinstance(statement, ast.Return) and statement.value is not None:
            several = statement.value.elts if isinstance(statement.value, ast.Tuple) else [statement.value]
            for value in several:
                words = self._listed(value) if isinstance(value, ast.List) else None
                if words and any(SCRIPT in word for word in words):
                    self.commands.append(words)
        for node in ast.walk(statement):
            if isinstance(node, ast.Call):
                self._call(node)

    _maybe = 0
    """number of enclosing conditions"""

    def _set(self, name: str, value: ast.expr) -> None:
        words = self._listed(value)
        self.scope.set(name, words if words is not None else self._text(value))
        if words and any(SCRIPT in word for word in words):
            self._of_name[name] = len(self.commands)
            self.commands.append(words)
        elif isinstance(value, ast.Call):
            self._call(value)

    def _add(self, name: str, words: list[str] | None) -> None:
        if words is None:
            words = [unset("...")]
        elif self._maybe and name in self._of_name:
            words = [unset(f"if ...: {' '.join(words)}")]
        if name in self._of_name:
            self.commands[self._of_name[name]] += words
        self.scope.add(name, words)

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
            held = self.scope.get(value.id)
            return held if held is not None and len(held) != 1 else None
        if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Add):
            left, right = self._listed(value.left), self._listed(value.right)
            return None if left is None or right is None else left + right
        return None

    def _word(self, value: ast.expr) -> str:
        text = self._text(value)
        return unset(ast.unparse(value)[:80]) if text is None else text

    def _text(self, value: ast.expr) -> str | None:
        """Returns the text of a constant, its name, an f-string or a path of them; None for others."""
        match value:
            case ast.Constant(value=str(text)):
                return text
            case ast.Constant(value=bool(flag)):
                return str(flag)
            case ast.Constant(value=int() | float() as number):
                return repr(number) if abs(number) < 1e300 else None
            case ast.Name(id=name):
                held = self.scope.get(name)
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
