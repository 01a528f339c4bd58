"""CacheLatents in several processes: ranks of torchrun, or a process for each further card."""

from __future__ import annotations

import contextlib
import functools
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import folder_paths
from comfy import model_management as mm

from ...wan_core.accelerator import backend_of, gpu_names
from ...wan_core.cache import ENCODING, SHARE, EncodingPlan, ShareDone, shares_of
from ...wan_core.errors import stop_if
from ...wan_core.files import atomic_write_json, read_json
from ...wan_core.train import Group, join_group
from ...wan_core.words import logger

_log = logger(__name__)
_VISIBLE = "CUDA_VISIBLE_DEVICES"
_CARDS = "WAN_TRAINER_CARDS"
"""environment variable: further cards for encoding, as in CUDA_VISIBLE_DEVICES; unset: all"""
_WORTH_CLIPS = 4
"""least number of missing clips for a further process, which first has to load the VAE"""
_PACK = Path(__file__).resolve().parents[2]


@functools.cache
def ranks_of_torchrun() -> Group | None:
    """Returns the ranks of `cache encode` under torchrun, and joins them at the first call; None in other processes."""
    if os.environ.get(ENCODING) != "1":
        return None
    _end_with_parent()
    return join_group()


def given_share() -> tuple[list[str], Path] | None:
    """Returns the keys that this process encodes for another CacheLatents, and the file for its report; else None."""
    if not (name := os.environ.get(SHARE)):
        return None
    _end_with_parent()
    return list(read_json(Path(name))), Path(f"{name}.done")


@functools.cache
def _end_with_parent() -> None:
    """End this process when its parent has died, which closes the pipe to stdin."""

    def wait() -> None:
        with contextlib.suppress(OSError):
            while os.read(0, 1):
                pass
        os._exit(1)

    threading.Thread(target=wait, daemon=True, name="parent").start()


class FurtherCards:
    """A context manager with a ComfyUI process for each further card, which encodes a share of the missing clips."""

    def __init__(self, graph: Mapping[str, Any], plan: EncodingPlan, cards: Sequence[str] | None = None) -> None:
        """`cards`: values of CUDA_VISIBLE_DEVICES; None: all cards of this ComfyUI except its own."""
        cards = _further_cards() if cards is None else cards
        cards = cards[: max(len(plan.missing_clips) // _WORTH_CLIPS - 1, 0)]
        # This process encodes all texts, so that no other one loads the text encoder.
        self.own_keys, *self._shares = shares_of(plan, 1 + len(cards), texts_with_first=True)
        nodes = {name: {key: node[key] for key in ("class_type", "inputs")} for name, node in graph.items()}
        self._graph, self._cards = nodes, cards
        self._processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> FurtherCards:
        self._folder = tempfile.TemporaryDirectory(prefix="wan_shares", ignore_cleanup_errors=True)
        try:
            self._start(Path(self._folder.name))
        except BaseException:  # Processes that were started before the error may run.
            self.__exit__()
            raise
        return self

    def _start(self, folder: Path) -> None:
        atomic_write_json(folder / "graph.json", self._graph)
        for number, (card, keys) in enumerate(zip(self._cards, self._shares, strict=True)):
            share = folder / f"{number}.json"
            atomic_write_json(share, keys)
            self._processes.append(
                subprocess.Popen(
                    _command(folder / "graph.json"),
                    env=os.environ | {SHARE: str(share), _VISIBLE: card},
                    stdin=subprocess.PIPE,
                    stdout=subprocess.DEVNULL,
                    creationflags=getattr(subprocess, "CREATE_NO_WINDOW", 0),
                )
            )

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            process.terminate()  # ends its ComfyUI too
        for process in self._processes:
            with process:  # waits for its end and closes its pipe
                pass
        self._folder.cleanup()

    def answers(self, should_stop: Callable[[], bool]) -> list[ShareDone]:
        """Waits for the processes and returns their reports. The caller encodes the clips of failed ones."""
        found: list[ShareDone] = []
        for number, process in enumerate(self._processes):
            while process.poll() is None:
                stop_if(should_stop, "caching")
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(0.2)
            answer = Path(self._folder.name) / f"{number}.json.done"
            if answer.is_file():
                found.append(ShareDone.from_dict(read_json(answer)))
            if process.returncode or not answer.is_file():
                _log.warning(
                    "The process that encodes on card %s failed; this process encodes its clips.", self._cards[number]
                )
        return found


def _further_cards() -> list[str]:
    """Returns the other cards of this ComfyUI as values of CUDA_VISIBLE_DEVICES."""
    if listed := os.environ.get(_CARDS):
        return listed.split(",")
    names, own = gpu_names(), mm.get_torch_device()
    if backend_of(own).visible != _VISIBLE:  # without this variable, all processes would use the same card
        return []
    seen = [card for card in os.environ.get(_VISIBLE, "").split(",") if card] or [str(n) for n in range(len(names))]
    return [card for name, card in zip(names, seen, strict=False) if name != f"{own.type}:{own.index or 0}"]


def _command(graph: Path) -> list[str]:
    """Returns the command line of a further process, with the options of this ComfyUI."""
    tree = os.path.dirname(os.path.abspath(folder_paths.__file__))
    launch = [sys.executable, "-X", "utf8", str(_PACK / "wan_core" / "launch.py")]
    return [*launch, "cache", "encode", str(graph), "--comfyui", tree, "--comfyui-options", *_options(sys.argv[1:])]


def _options(words: Sequence[str]) -> list[str]:
    """Returns the options of this ComfyUI, without those that choose a device."""
    found: list[str] = []
    skip = False
    for word in words:
        name, given, _ = word.partition("=")
        if name in ("--cuda-device", "--default-device"):
            skip = not given
        elif skip and not word.startswith("-"):
            skip = False
        else:
            found.append(word)
    return found
