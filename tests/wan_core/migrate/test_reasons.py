"""Whatever an import can say of a setting is translated: read out of the code and its tables, by template.

tests/test_sentences.py holds the languages to one another, and finds a translation of what nobody says.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from importlib import import_module
from itertools import product
from pathlib import Path
from typing import Any

import wan_core.migrate
from wan_core.migrate import TRAINERS

ROOM = Path(wan_core.migrate.__file__).parent
LOCALE = Path(__file__).parents[3] / "locales" / "zh" / "main.json"
HOLE = re.compile(r"\{\w*\}")
NO_WORDS = {
    "network_args {} -> loraplus_lr_ratio {}",
    "network_args {} -> {} {}",
    "network_args {} -> adapter {}",
    "lr_warmup_steps {} -> lr_warmup_share",
    "lr_warmup_steps {} -> lr_warmup_steps",
    "validation_resolution {} -> width {}, height {}",
    "{} {} -> max_train_epochs {}",
    "{} {} -> optimizer_args {}",
    "{} -> {}",
    "expert {}",
    "experts is not set: both, the default of ai-toolkit -> low_noise_model {}",
    "learning_rate {} -> low_noise_learning_rate {}",
    "network_args {} -> {} []",
    "network_dim {} -> low_noise_rank {}",
    "optimizer lr {} -> learning_rate {}",
    "output_name {}, {} -> run_name {}",
    "steps {} + {} -> steps {}",
    "{} / {} -> high_noise_share {}",
    "type {} -> offload_optimizer",
}
"""keys, widgets and numbers alone"""
REASON = {"Changed": 1, "Without": 0, "drop": 1, "drops": 1}
"""what takes a reason, and as which argument"""
Local = dict[str, list[ast.expr]]


def texts(node: ast.expr, local: Local, module: Any) -> list[str]:
    """What an expression can say, a {} for each hole."""
    match node:
        case ast.Constant(value=str(text)):
            return [text]
        case ast.IfExp():
            return [*texts(node.body, local, module), *texts(node.orelse, local, module)]
        case ast.Name() if node.id in local:
            return [text for one in local[node.id] for text in texts(one, local, module)]
        case ast.Name() if isinstance(getattr(module, node.id, None), str):
            return [getattr(module, node.id)]
        case ast.Call(func=ast.Name(id="filled"), args=[template]):
            return texts(template, local, module)
        case ast.JoinedStr():
            parts = [
                [str(part.value)] if isinstance(part, ast.Constant) else texts(part.value, local, module) or ["{}"]
                for part in node.values
                if isinstance(part, ast.Constant | ast.FormattedValue)
            ]
            return ["".join(pieces) for pieces in product(*parts)]
        case _:
            return []


def assigned(function: ast.AST, module: Any) -> Local:
    """What the names of a function are given, by a row of a table too."""
    found: Local = {}
    for one in ast.walk(function):
        if not isinstance(one, ast.Assign) or len(one.targets) != 1:
            continue
        target = one.targets[0]
        if isinstance(target, ast.Name):
            found.setdefault(target.id, []).append(one.value)
        elif isinstance(target, ast.Tuple):
            for index, name in enumerate(target.elts):
                if isinstance(name, ast.Name):
                    found.setdefault(name.id, []).extend(row_texts(one.value, index, module))
    return found


def row_texts(value: ast.expr, index: int, module: Any) -> Iterator[ast.expr]:
    """The `index`th of a tuple, of the rows of a table, and of what stands for a row that is not there."""
    if isinstance(value, ast.Tuple):
        yield value.elts[index]
        return
    table = value
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and value.func.attr == "get":
        table = value.func.value
        yield from row_texts(value.args[1], index, module)
    elif isinstance(value, ast.Subscript):
        table = value.value
    rows = getattr(module, table.id, {}) if isinstance(table, ast.Name) else {}
    for row in rows.values() if isinstance(rows, dict) else ():
        yield ast.Constant(row[index])


def called(call: ast.Call) -> str:
    """What is called, as far as it says something of a setting."""
    if isinstance(call.func, ast.Name):
        return call.func.id
    if not isinstance(call.func, ast.Attribute):
        return ""
    return call.func.attr if call.func.attr in ("drop", "take", "change", "mend", "hint") else ""


def said_by(path: Path) -> Iterator[tuple[str, str]]:
    module = import_module(f"wan_core.migrate.{path.stem}")
    tree = ast.parse(path.read_text(encoding="utf-8"))
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    for part in [*functions, *(node for node in tree.body if node not in functions)]:
        local = assigned(part, module) if isinstance(part, ast.FunctionDef) else {}
        for call in (node for node in ast.walk(part) if isinstance(node, ast.Call)):
            name = called(call)
            place = REASON.get(name)
            if place is not None and len(call.args) > place:
                yield from (("reasons", text) for text in texts(call.args[place], local, module))
            elif name in ("take", "change", "mend", "hint", "filled") and call.args:
                yield from (("sentences", text) for text in texts(call.args[0], local, module))
                inner = [one.value for one in call.keywords if one.arg == "why"]
                yield from (("reasons", text) for one in inner for text in texts(one, local, module))


def everything_said() -> dict[str, list[str]]:
    """Every reason, and every sentence that is whole."""
    found: dict[str, set[str]] = {"reasons": set(), "sentences": set()}
    for path in sorted(ROOM.glob("*.py")):
        for kind, text in said_by(path) if path.stem != "__init__" else ():
            found[kind].add(HOLE.sub("{}", text))
    found["reasons"] |= {
        key.note
        for tables in TRAINERS.values()
        for keys in tables.values()
        for key in keys
        if not key.at and not key.read
    }
    return {kind: sorted(text for text in one - NO_WORDS if re.search("[a-z]", text)) for kind, one in found.items()}


def test_every_reason_and_every_sentence_of_an_import_is_translated() -> None:
    found = everything_said()
    assert "a scale for each row" in found["reasons"], "said in a function"
    assert "torchao's, with 8-bit moments too" in found["reasons"], "of a table"
    assert "the class {}, which needs its package" in found["reasons"], "with a hole"
    assert "{}: {} after a prompt -> skipped: they are not read here" in found["sentences"]
    assert (len(found["reasons"]) > 100, len(found["sentences"]) > 50) == (True, True)
    translated = {HOLE.sub("{}", one) for one in json.loads(LOCALE.read_text(encoding="utf-8"))["wanTrainerServer"]}
    assert [one for kind in found.values() for one in kind if one not in translated] == []
