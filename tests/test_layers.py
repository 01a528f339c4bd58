"""The shape of the code: who may import whom, and what nobody may do. Everything is read with `ast`; nothing is run."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

# Lowest first; a room imports only rooms that stand before it (docs/architecture.md).
# The last three are one room: the door.
ROOMS = (
    "words",
    "secrets",
    "errors",
    "packages",
    "config",
    "patterns",
    "files",
    "events",
    "pipes",
    "control",
    "video",
    "flow",
    "model",
    "checkpoint",
    "precision",
    "placement",
    "lora",
    "load",
    "footprint",
    "data",
    "sample",
    "export",
    "metrics",
    "train",
    "run",
    "checks",
    "full_memory",
    "job",
    "render",
    "plan",
    "audit",
    "ranks",
    "cache_command",
    "tfrecord_command",
    "protocol",
    "launch",
    "__main__",
)
RANK = {room: index for index, room in enumerate(ROOMS)}
RANK.update(protocol=100, launch=100, __main__=100)

COMFYUI = {
    "comfy",
    "comfy_api",
    "comfy_api_nodes",
    "comfy_execution",
    "comfy_extras",
    "execution",
    "folder_paths",
    "latent_preview",
    "node_helpers",
    "nodes",
    "server",
}
_RUNS_TEXT = {"eval", "exec", "compile", "builtins.eval", "builtins.exec", "builtins.compile"}
POSIX_MODULES = {"fcntl", "grp", "pty", "pwd", "resource", "termios"}
POSIX_CALLS = re.compile(
    r"os\.(fork|forkpty|killpg|getpg\w+|setpg\w+|setsid|getsid|getuid|geteuid|statvfs|mkfifo|nice|uname|wait\w*"
    r"|sched_\w+|posix_\w+|O_DIRECTORY|O_NOFOLLOW|O_NONBLOCK|O_CLOEXEC|chown|lchown|getloadavg)"
    r"|signal\.(SIGKILL|SIGHUP|SIGUSR1|SIGUSR2|SIGSTOP|SIGCONT|SIGQUIT|SIGALRM|alarm|setitimer|pthread_\w+)"
)
GUARD = re.compile(
    r"os\.name|sys\.platform|platform\.system|hasattr\(|getattr\(|\b(IS_)?(POSIX|WINDOWS|LINUX)\b",
    re.IGNORECASE,
)

Parents = dict[ast.AST, ast.AST]


def sources(*folders: str) -> list[Path]:
    found = [file for folder in folders for file in sorted((ROOT / folder).rglob("*.py"))]
    return [file for file in found if "__pycache__" not in file.parts]


DOOR = ROOT / "wan_core" / "launch.py"


def name_of(file: Path) -> str:
    return file.relative_to(ROOT).as_posix()


@functools.cache
def parse(file: Path) -> tuple[ast.Module, Parents]:
    tree = ast.parse(file.read_text(encoding="utf-8"), name_of(file))
    parents = {child: parent for parent in ast.walk(tree) for child in ast.iter_child_nodes(parent)}
    return tree, parents


def imports(tree: ast.Module) -> Iterator[tuple[int, str, list[str], int]]:
    """(level, module, names, line) of every import, wherever it stands."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield 0, alias.name, [], node.lineno
        elif isinstance(node, ast.ImportFrom):
            yield node.level, node.module or "", [alias.name for alias in node.names], node.lineno


def room_of(file: Path) -> str:
    inside = file.relative_to(ROOT / "wan_core")
    return inside.parts[0] if len(inside.parts) > 1 else inside.stem


def rooms_imported(file: Path, tree: ast.Module) -> Iterator[tuple[str, int]]:
    package = file.relative_to(ROOT).parent.parts
    for level, module, names, line in imports(tree):
        if level == 0:
            if module == "wan_core" or module.startswith("wan_core."):
                yield [*module.split("."), ""][1], line
            continue
        base = (*package[: len(package) - level + 1], *(module.split(".") if module else ()))
        for name in names if len(base) == 1 else [""]:
            yield (base[1] if len(base) > 1 else name), line


def guarded(node: ast.AST, parents: Parents) -> bool:
    """True when a platform test stands around `node`, or an early return behind one stands before it."""
    child = node
    while (parent := parents.get(child)) is not None:
        if isinstance(parent, (ast.If, ast.IfExp, ast.While)) and GUARD.search(ast.unparse(parent.test)):
            return True
        if isinstance(parent, ast.BoolOp) and GUARD.search(ast.unparse(parent)):
            return True
        if isinstance(parent, ast.Try) and any(
            handler.type is not None and re.search(r"ImportError|AttributeError", ast.unparse(handler.type))
            for handler in parent.handlers
        ):
            return True
        body = getattr(parent, "body", None)
        if isinstance(body, list):
            for before in body:
                if before is child:
                    break
                leaves = isinstance(before, ast.If) and isinstance(before.body[-1], (ast.Return, ast.Raise))
                if leaves and GUARD.search(ast.unparse(before.test)):
                    return True
        child = parent
    return False


@pytest.mark.parametrize("file", sources("wan_core"), ids=name_of)
def test_a_room_imports_only_rooms_below_it(file: Path) -> None:
    here = room_of(file)
    if here == "__init__":
        here = "errors"  # the package itself knows nothing
    assert here in RANK, f"{name_of(file)}: new room; give it a place in ROOMS and in docs/architecture.md"
    tree, _ = parse(file)
    for room, line in rooms_imported(file, tree):
        if room in ("", "__version__") or room == here:
            continue
        assert room in RANK, f"{name_of(file)}:{line} imports {room}, which is no room of the table"
        assert RANK[room] < RANK[here] or RANK[room] == RANK[here] == 100, (
            f"{name_of(file)}:{line}: {here} imports {room}, which stands above it"
        )


@pytest.mark.parametrize("file", [f for f in sources("wan_core", "nodes") if f != DOOR], ids=name_of)
def test_our_own_code_is_imported_relatively(file: Path) -> None:
    """launch.py excepted: it runs as a script, before there is a package to be relative to."""
    tree, _ = parse(file)
    ours = ("wan_core", "nodes") if file.is_relative_to(ROOT / "wan_core") else ("wan_core",)
    for level, module, _names, line in imports(tree):
        top = module.split(".")[0]
        assert level or top not in ours, f"{name_of(file)}:{line}: import {module} relatively"


@pytest.mark.parametrize("file", sources("wan_core"), ids=name_of)
def test_the_engine_does_not_know_comfyui(file: Path) -> None:
    tree, _ = parse(file)
    for level, module, _names, line in imports(tree):
        assert level or module.split(".")[0] not in COMFYUI, f"{name_of(file)}:{line} imports {module}"


@pytest.mark.parametrize(
    "file",
    [f for f in (*ROOT.glob("__init__.py"), *sources("wan_core", "nodes")) if f != DOOR],
    ids=name_of,
)
def test_only_the_door_edits_the_import_path(file: Path) -> None:
    tree, parents = parse(file)
    for node in ast.walk(tree):
        if not isinstance(node, ast.Attribute) or ast.unparse(node) not in (
            "sys.path",
            "sys.modules",
        ):
            continue
        holder = parents[node]
        changed = isinstance(node.ctx, (ast.Store, ast.Del)) or (
            isinstance(holder, ast.Subscript) and isinstance(holder.ctx, (ast.Store, ast.Del))
        )
        called = isinstance(holder, ast.Attribute) and holder.attr in (
            *("append", "insert", "extend", "remove", "pop", "clear", "update", "setdefault"),
        )
        edited = changed or called
        assert not edited, f"{name_of(file)}:{node.lineno} edits {ast.unparse(node)}"


@pytest.mark.parametrize("file", sources("wan_core", "nodes"), ids=name_of)
def test_posix_only_calls_stand_behind_a_platform_guard(file: Path) -> None:
    tree, parents = parse(file)
    for node in ast.walk(tree):
        if (isinstance(node, ast.Attribute) and POSIX_CALLS.fullmatch(ast.unparse(node))) or (
            isinstance(node, ast.Import) and POSIX_MODULES & {alias.name for alias in node.names}
        ):
            what = ast.unparse(node)
        else:
            continue
        assert guarded(node, parents), f"{name_of(file)}:{node.lineno}: {what} does not exist on Windows"


@pytest.mark.parametrize("file", sources("wan_core", "nodes"), ids=name_of)
def test_no_file_can_run_code(file: Path) -> None:
    """No pickle, no eval, exec or compile; torch.load only with weights_only=True."""
    tree, _ = parse(file)
    for level, module, _names, line in imports(tree):
        top = module.split(".")[0]
        assert level or top not in ("pickle", "dill", "cloudpickle", "marshal", "shelve"), f"{name_of(file)}:{line}"
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        called = ast.unparse(node.func)
        assert called not in _RUNS_TEXT, f"{name_of(file)}:{node.lineno}"
        if called == "torch.load":
            given = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
            assert given.get("weights_only") == "True", (
                f"{name_of(file)}:{node.lineno}: torch.load needs weights_only=True"
            )


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("import os\nos.killpg(1, 2)\n", False),
        ("import os\nif os.name != 'nt':\n    os.killpg(1, 2)\n", True),
        (
            "import os\ndef f():\n    if os.name == 'nt':\n        return\n    os.killpg(1, 2)\n",
            True,
        ),
        (
            "import os\ndef f():\n    if os.cpu_count():\n        return\n    os.killpg(1, 2)\n",
            False,
        ),
        ("import os\nx = os.O_NOFOLLOW if hasattr(os, 'O_NOFOLLOW') else 0\n", True),
    ],
)
def test_the_guard_detector_itself(code: str, expected: bool) -> None:
    tree = ast.parse(code)
    parents = {child: parent for parent in ast.walk(tree) for child in ast.iter_child_nodes(parent)}
    use = next(n for n in ast.walk(tree) if isinstance(n, ast.Attribute) and POSIX_CALLS.fullmatch(ast.unparse(n)))
    assert guarded(use, parents) is expected
