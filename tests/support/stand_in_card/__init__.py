"""`cuda:0` ... `cuda:3` without hardware, with real values: what README.md of this folder promises.

For a torch that was built without CUDA. Changes the process for good, so use it in a process of its own.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

from . import runtime
from .runtime import Book

_HERE = Path(__file__).parent
_BUILDS = Path(__file__).parents[3] / ".cache" / "stand_in_card"


def missing() -> str:
    """Says what this machine lacks for stand-in cards; '' when they are to be had."""
    if torch.version.cuda is not None:
        return "this torch has CUDA of its own; the tests marked gpu run on it"
    if not _compiler():
        return "no C++ compiler (g++ or c++) for the stand-in cards"
    if sys.platform != "linux":
        return "the stand-in cards are built on Linux only"
    return ""


def open_cards(count: int = 1, *, memory: int = 1 << 34) -> Book:
    """Makes `count` cards of `memory` bytes in this process, and returns the book of what happens on them."""
    assert torch.version.cuda is None, "this torch has real CUDA devices"
    book = Book()
    runtime.install(ctypes.CDLL(str(library())), book, count, memory)
    return book


def _compiler() -> str | None:
    return shutil.which("g++") or shutil.which("c++")


def library() -> Path:
    """Returns the library, built where these sources and this torch have none yet (ten seconds)."""
    torch_at = Path(torch.__file__).parent
    sources = sorted(_HERE.glob("*.cpp"))
    made_of = b"".join(
        [f"{torch.__version__} {torch_at}".encode(), *(p.read_bytes() for p in sorted(_HERE.glob("*.[ch]*")))]
    )
    kept = _BUILDS / f"{hashlib.sha256(made_of).hexdigest()[:16]}.so"
    if kept.exists():
        return kept
    folder = Path(tempfile.mkdtemp())
    include = [f"-I{torch_at / 'include'}", f"-I{torch_at / 'include/torch/csrc/api/include'}"]
    compilers = [
        subprocess.Popen(
            [str(_compiler()), "-std=c++20", "-O0", "-fPIC", *include, "-c", str(p), "-o", f"{folder / p.stem}.o"]
        )
        for p in sources
    ]
    assert [compiler.wait() for compiler in compilers] == [0] * len(sources), "the stand-in cards did not compile"
    objects, lib = [f"{folder / p.stem}.o" for p in sources], torch_at / "lib"
    made = folder / "card.so"
    link = ["-shared", *objects, f"-L{lib}", "-ltorch_cpu", "-lc10", f"-Wl,-rpath,{lib}", "-o", str(made)]
    subprocess.run([str(_compiler()), *link], check=True)
    try:
        _BUILDS.mkdir(parents=True, exist_ok=True)
        complete = kept.with_suffix(f".{os.getpid()}")
        shutil.copyfile(made, complete)
        os.replace(complete, kept)
    except OSError:  # a checkout that cannot be written to builds each time
        return made
    return kept
