"""Tries what Windows refuses in the folder $WINDOWS_RULES; prints JSON, what was tried -> errno, or what it gave."""

from __future__ import annotations

import json
import mmap
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(os.environ["WINDOWS_RULES"])
SAID: dict[str, Any] = {}


def tried(what: str, call: Callable[[], Any]) -> None:
    try:
        SAID[what] = call()
    except OSError as error:
        SAID[what] = error.errno


def new(name: str) -> Path:
    (ROOT / name).parent.mkdir(exist_ok=True)
    (ROOT / name).write_bytes(name.encode())
    return ROOT / name


one, two, inner = new("one"), new("two"), new("folder/inner")
with one.open("rb"):
    tried("replace an open file", lambda: os.replace(two, one))
    tried("rename an open file", lambda: os.replace(one, ROOT / "three"))
    tried("remove an open file", one.unlink)
with inner.open("rb"):
    tried("rename a folder with an open file", lambda: os.replace(ROOT / "folder", ROOT / "other"))
with one.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ):
    os.close(os.dup(file.fileno()))
    file.close()
    tried("remove a mapped file", one.unlink)
holder = [sys.executable, "-c", "import sys; f = open(sys.argv[1]); print(flush=True); input()", str(one)]
with subprocess.Popen(holder, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
    assert other.stdin is not None
    assert other.stdout is not None
    other.stdout.readline()
    tried("remove a file that another process has open", one.unlink)
    other.stdin.write(b"\n")
keeper = [sys.executable, "-c", "import fcntl, sys; f = open(sys.argv[1], 'a'); fcntl.lockf(f, fcntl.LOCK_EX); "
    "print(flush=True); input()", str(one)]  # fmt: skip
with subprocess.Popen(keeper, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
    assert other.stdin is not None
    assert other.stdout is not None
    other.stdout.readline()
    tried("read a file that another process keeps for itself", one.read_bytes)
    other.stdin.write(b"\n")
(ROOT / "other").mkdir()
tried("replace a folder", lambda: os.replace(ROOT / "folder", ROOT / "other"))
tried("rename without replacing", lambda: os.rename(two, one))
tried("read by other letters", lambda: (ROOT / "FOLDER" / "Inner").read_text())
tried("make by other letters", lambda: (ROOT / "FOLDER").mkdir())
for name in ("a:b", "a?", 'a"', "a*", "a|b", "a\\b", "a.", "a ", "NUL", "con.txt", "lpt1.a.b"):
    tried(f"make {name}", lambda name=name: (ROOT / name).write_bytes(b"") and None)
room = 259 - len(f"{ROOT}/")
tried("make a path of 260", lambda: (ROOT / ("a" * (room + 1))).write_bytes(b""))
tried("make a path of 259", lambda: (ROOT / ("é" * min(room, 120))).write_bytes(b""))
tried("make a folder of 248", lambda: (ROOT / ("a" * (room + 1 - 12))).mkdir())
tried("replace", lambda: os.replace(two, one))
tried("remove", one.unlink)
tried("open a folder", lambda: os.open in os.supports_dir_fd or hasattr(os, "O_NOFOLLOW"))
print(json.dumps(SAID))
