"""The shape of the code: who may import whom, and what nobody may do. Everything is read with `ast`; nothing is run."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from code_trees import nodes_of, parents_in

ROOT = Path(__file__).resolve().parent.parent

# Lowest first; a room imports only rooms that stand before it (docs/develop/architecture.md).
# The last two are one room: the door.
ROOMS = (
    "words",
    "errors",
    "packages",
    "config",
    "patterns",
    "canvas",
    "files",
    "choices",
    "events",
    "run_lines",
    "pipes",
    "control",
    "children",
    "parsers",
    "footage",
    "video",
    "flow",
    "accelerator",
    "abilities",
    "families",
    "kernels",
    "model",
    "checkpoint",
    "precision",
    "placement",
    "lora",
    "parallel",
    "load",
    "footprint",
    "dataset",
    "cache",
    "importers",
    "sampler",
    "export",
    "metrics",
    "train",
    "advice",
    "job",
    "plan",
    "session",
    "migrate",
    "trackers",
    "audit",
    "selftest",
    "cli",
    "launch",
    "__main__",
)
RANK = {room: index for index, room in enumerate(ROOMS)}
RANK.update(launch=100, __main__=100)

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

Nodes = Iterable[ast.AST]
Parents = dict[ast.AST, ast.AST]


def sources(*folders: str) -> list[Path]:
    found = [file for folder in folders for file in sorted((ROOT / folder).rglob("*.py"))]
    return [file for file in found if "__pycache__" not in file.parts]


DOOR = ROOT / "wan_core" / "launch.py"


def name_of(file: Path) -> str:
    return file.relative_to(ROOT).as_posix()


def imports(nodes: Nodes) -> Iterator[tuple[int, str, list[str], int]]:
    """(level, module, names, line) of every import, wherever it stands."""
    for node in nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield 0, alias.name, [], node.lineno
        elif isinstance(node, ast.ImportFrom):
            yield node.level, node.module or "", [alias.name for alias in node.names], node.lineno


def dotted(node: ast.AST) -> str:
    """`a.b` of an attribute of a name, `a` of a name; empty of anything else."""
    if isinstance(node, ast.Attribute):
        before = dotted(node.value)
        return f"{before}.{node.attr}" if before else ""
    return node.id if isinstance(node, ast.Name) else ""


def room_of(file: Path) -> str:
    inside = file.relative_to(ROOT / "wan_core")
    return inside.parts[0] if len(inside.parts) > 1 else inside.stem


def rooms_imported(file: Path, nodes: Nodes) -> Iterator[tuple[str, int]]:
    package = file.relative_to(ROOT).parent.parts
    for level, module, names, line in imports(nodes):
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


def no_line_of(files: list[Path], offences: Callable[[Path, Nodes, Parents], Iterator[str]]) -> None:
    """Fails with every offending line of every file at once."""
    assert len(files) > 100, "the files to read were not found"
    found = [offence for file in files for offence in offences(file, nodes_of(file), parents_in(file))]
    assert not found, "\n".join(["", *found])


def test_a_room_imports_only_rooms_below_it() -> None:
    def offences(file: Path, nodes: Nodes, _: Parents) -> Iterator[str]:
        here = room_of(file)
        if here == "__init__":
            here = "errors"  # the package itself knows nothing
        if here not in RANK:
            yield f"{name_of(file)}: new room; give it a place in ROOMS and in docs/develop/architecture.md"
            return
        for room, line in rooms_imported(file, nodes):
            if room in ("", "__version__") or room == here:
                continue
            if room not in RANK:
                yield f"{name_of(file)}:{line} imports {room}, which is no room of the table"
            elif not (RANK[room] < RANK[here] or RANK[room] == RANK[here] == 100):
                yield f"{name_of(file)}:{line}: {here} imports {room}, which stands above it"

    no_line_of(sources("wan_core"), offences)


def test_our_own_code_is_imported_relatively() -> None:
    """launch.py excepted: it runs as a script, before there is a package to be relative to."""

    def offences(file: Path, nodes: Nodes, _: Parents) -> Iterator[str]:
        ours = ("wan_core", "nodes") if file.is_relative_to(ROOT / "wan_core") else ("wan_core",)
        for level, module, _names, line in imports(nodes):
            if not level and module.split(".")[0] in ours:
                yield f"{name_of(file)}:{line}: import {module} relatively"

    no_line_of([file for file in sources("wan_core", "nodes") if file != DOOR], offences)


def test_the_engine_does_not_know_comfyui() -> None:
    def offences(file: Path, nodes: Nodes, _: Parents) -> Iterator[str]:
        for level, module, _names, line in imports(nodes):
            if not level and module.split(".")[0] in COMFYUI:
                yield f"{name_of(file)}:{line} imports {module}"

    no_line_of(sources("wan_core"), offences)


def test_only_the_door_edits_the_import_path() -> None:
    def offences(file: Path, nodes: Nodes, parents: Parents) -> Iterator[str]:
        for node in nodes:
            if not isinstance(node, ast.Attribute) or dotted(node) not in ("sys.path", "sys.modules"):
                continue
            holder = parents[node]
            changed = isinstance(node.ctx, (ast.Store, ast.Del)) or (
                isinstance(holder, ast.Subscript) and isinstance(holder.ctx, (ast.Store, ast.Del))
            )
            called = isinstance(holder, ast.Attribute) and holder.attr in (
                *("append", "insert", "extend", "remove", "pop", "clear", "update", "setdefault"),
            )
            if changed or called:
                yield f"{name_of(file)}:{node.lineno} edits {ast.unparse(node)}"

    files = [*ROOT.glob("__init__.py"), *sources("wan_core", "nodes")]
    no_line_of([file for file in files if file != DOOR], offences)


def test_posix_only_calls_stand_behind_a_platform_guard() -> None:
    def offences(file: Path, nodes: Nodes, parents: Parents) -> Iterator[str]:
        for node in nodes:
            posix_only = (isinstance(node, ast.Attribute) and POSIX_CALLS.fullmatch(dotted(node))) or (
                isinstance(node, ast.Import) and POSIX_MODULES & {alias.name for alias in node.names}
            )
            if posix_only and not guarded(node, parents):
                yield f"{name_of(file)}:{node.lineno}: {ast.unparse(node)} does not exist on Windows"

    no_line_of(sources("wan_core", "nodes"), offences)


def test_no_process_that_windows_may_start_opens_a_window() -> None:
    def offences(file: Path, nodes: Nodes, _: Parents) -> Iterator[str]:
        for node in nodes:
            if isinstance(node, ast.Call) and dotted(node.func) in ("subprocess.Popen", "subprocess.run"):
                flags = next((ast.unparse(k.value) for k in node.keywords if k.arg == "creationflags"), "")
                if "CREATE_NO_WINDOW" not in flags and flags != "OWN_GROUP":
                    yield f"{name_of(file)}:{node.lineno}: {ast.unparse(node.func)} without CREATE_NO_WINDOW"

    # desktop.py opens a folder elsewhere than on Windows, where Explorer does it.
    desktop = ROOT / "nodes" / "routes" / "desktop.py"
    no_line_of([file for file in sources("wan_core", "nodes") if file != desktop], offences)
    assert '"CREATE_NO_WINDOW"' in (ROOT / "wan_core" / "children.py").read_text(encoding="utf-8")


def test_no_file_can_run_code() -> None:
    """No pickle, no eval, exec or compile; torch.load only with weights_only=True."""

    def offences(file: Path, nodes: Nodes, _: Parents) -> Iterator[str]:
        for level, module, _names, line in imports(nodes):
            if not level and module.split(".")[0] in ("pickle", "dill", "cloudpickle", "marshal", "shelve"):
                yield f"{name_of(file)}:{line} imports {module}"
        for node in nodes:
            if not isinstance(node, ast.Call):
                continue
            called = dotted(node.func)
            if called in _RUNS_TEXT:
                yield f"{name_of(file)}:{node.lineno} calls {called}"
            elif called == "torch.load":
                given = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
                if given.get("weights_only") != "True":
                    yield f"{name_of(file)}:{node.lineno}: torch.load needs weights_only=True"

    no_line_of(sources("wan_core", "nodes"), offences)


_CHANGES_FILES = re.compile(
    r"os\.(replace|rename|renames|unlink|remove|rmdir|removedirs|mkdir|makedirs|link|symlink|truncate|mknod|mkfifo)"
    r"|shutil\.(rmtree|move|copy|copy2|copyfile|copytree|copymode|copystat)"
    r"|[\w.()\[\]]+\.(write_bytes|touch|unlink|rmdir|mkdir|rename|symlink_to|hardlink_to)"
)
_MAY_CHANGE = {
    "wan_core/selftest/findings.py": "a temporary folder",
    "wan_core/selftest/tiny_run.py": "a temporary folder",
    "wan_core/video/writer.py": "a temporary folder",
    "wan_core/job/choose.py": "the folder of a run, which must not be there",
    "wan_core/cli/new.py": "a folder that the command line names",
    "wan_core/export/tfrecords.py": "a folder that the command line names",
    "nodes/runs/publish.py": "ComfyUI's folder of LoRAs",
    "wan_core/trackers/mirror.py": "storage elsewhere, which the owner of the server named",
}


def test_no_block_enters_autocast() -> None:
    """Dtypes are explicit (Numerics): what a block computes in never depends on what surrounds it."""
    names = re.compile(r"autocast|set_autocast\w*|custom_(fwd|bwd)|_enter_autocast|_exit_autocast")

    def offences(file: Path, nodes: Nodes, _: Parents) -> Iterator[str]:
        for _level, module, imported, line in imports(nodes):
            if module.startswith("torch") and any(names.fullmatch(name) for name in imported):
                yield f"{name_of(file)}:{line} imports {', '.join(imported)} of {module}"
        for node in nodes:
            if isinstance(node, ast.Attribute) and names.fullmatch(node.attr):
                yield f"{name_of(file)}:{node.lineno}: {ast.unparse(node)}; cast explicitly"

    own = ROOT / "wan_core" / "kernels" / "recompute.py"  # keeps it out of blocks
    no_line_of([file for file in sources("wan_core", "nodes") if file != own], offences)
    assert list(offences(own, nodes_of(own), parents_in(own))), f"{name_of(own)} needs no leave any more"


_NAMES_DEVICES = {
    "wan_core/accelerator.py": "the table of the kinds",
    "wan_core/placement/copies.py": "streams and page-locked memory, which are CUDA's",
    "wan_core/parallel/handover.py": "streams between cards",
    "wan_core/kernels/modulate.py": "is_cuda alone: asked hundreds of times a step",
    "wan_core/cli/commands.py": "suffixes of torch's versions",
}


def test_one_file_names_kinds_of_devices() -> None:
    """A kind of device is a row of wan_core/accelerator.py: no other file compares with "cuda" or calls its module."""
    name = re.compile(r"(cuda|xpu|mps|hip)(:.*)?", re.DOTALL)
    module = re.compile(r"torch(\.backends)?\.(cuda|xpu|mps|accelerator)\..+")

    def offences(file: Path, nodes: Nodes, _: Parents) -> Iterator[str]:
        for node in nodes:
            text = isinstance(node, ast.Constant) and isinstance(node.value, str) and name.fullmatch(node.value)
            called = isinstance(node, ast.Attribute) and (
                node.attr in ("is_cuda", "is_xpu", "is_mps") or module.fullmatch(dotted(node))
            )
            if text or called:
                yield f"{name_of(file)}:{node.lineno}: {ast.unparse(node)}; ask wan_core.accelerator"

    files = {name_of(file): file for file in sources("wan_core", "nodes")}
    no_line_of([file for where, file in files.items() if where not in _NAMES_DEVICES], offences)
    for where in _NAMES_DEVICES:
        assert list(offences(files[where], nodes_of(files[where]), {})), f"{where} needs no leave any more"


def test_files_are_written_and_removed_by_one_room() -> None:
    """`wan_core/files` follows no link below a folder of ours (rule S16); whoever opens files to write may."""

    def offences(file: Path, nodes: Nodes, _: Parents) -> Iterator[str]:
        for call in (node for node in nodes if isinstance(node, ast.Call)):
            called = ast.unparse(call.func)
            given = [ast.unparse(one) for one in (*call.args, *(k.value for k in call.keywords if k.arg == "mode"))]
            opens = (
                called.endswith("open")
                and called != "os.fdopen"
                and any(re.fullmatch(r"'[rb]*[wax+][wxabt+]*'", one) for one in given)
            )
            text = called.endswith(".write_text") and len(call.args) == 1  # a cache's own has more
            if opens or text or _CHANGES_FILES.fullmatch(called):
                yield f"{name_of(file)}:{call.lineno} calls {called}"

    def name(file: Path) -> str:
        return file.relative_to(ROOT).as_posix()

    room = [file for file in sources("wan_core") if name(file).startswith("wan_core/files/")]
    others = [file for file in sources("wan_core", "nodes") if name(file) not in _MAY_CHANGE and file not in room]
    no_line_of(others, offences)
    for file in _MAY_CHANGE:
        nodes, parents = nodes_of(ROOT / file), parents_in(ROOT / file)
        assert list(offences(ROOT / file, nodes, parents)), f"{file} needs no leave any more"


def test_nobody_maps_a_file() -> None:
    """Some file systems map none, a writable mapping counts against the memory that Linux promises, and a disk that
    fails under one ends the process."""
    shared = ROOT / "wan_core" / "placement" / "shared.py"  # memory of no file system

    maps = {"mmap", "memmap", "safe_open", "load_file", "from_file", "GGUFReader"}

    def offences(file: Path, nodes: Nodes, _: Parents) -> Iterator[str]:
        for _level, module, names, line in imports(nodes):
            if maps & {module, *names}:
                yield f"{name_of(file)}:{line} imports what maps files"
        for node in nodes:
            if isinstance(node, ast.Attribute) and node.attr in maps:
                yield f"{name_of(file)}:{node.lineno}: {dotted(node)} maps a file"

    no_line_of([file for file in sources("wan_core", "nodes") if file != shared], offences)


def test_the_guard_detector_itself() -> None:
    """The detector reads what stands around a call, not merely before it."""
    for code, expected in (
        ("import os\nos.killpg(1, 2)\n", False),
        ("import os\nif os.name != 'nt':\n    os.killpg(1, 2)\n", True),
        ("import os\ndef f():\n    if os.name == 'nt':\n        return\n    os.killpg(1, 2)\n", True),
        ("import os\ndef f():\n    if os.cpu_count():\n        return\n    os.killpg(1, 2)\n", False),
        ("import os\nx = os.O_NOFOLLOW if hasattr(os, 'O_NOFOLLOW') else 0\n", True),
    ):
        tree = ast.parse(code)
        parents = {child: parent for parent in ast.walk(tree) for child in ast.iter_child_nodes(parent)}
        use = next(n for n in ast.walk(tree) if isinstance(n, ast.Attribute) and POSIX_CALLS.fullmatch(dotted(n)))
        assert guarded(use, parents) is expected, code
