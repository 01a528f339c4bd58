"""Models that ComfyUI itself holds in the computer's memory (RAM): names, sizes, and letting go of those nobody needs.

ComfyUI keeps what its nodes gave, so that an equal queue runs nothing twice, and models with it: a text encoder of
11 GB for all the hours of a training that has its captions encoded. Its own button, *Free model and node cache*, works
between two prompts, so a training lets go of the same itself.

No version has a door to these caches. They are found by their classes, which ComfyUI takes entries out of while a
prompt runs too (`--cache-ram`): a node that waits for its turn has the values of its inputs beside them
(`ExecutionList.execution_cache`). Where a version has them no more, nothing is known, and nothing is let go.
"""

from __future__ import annotations

import bisect
import ctypes
import gc
import itertools
import sys
import weakref
from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from comfy import model_management as mm
from torch import Tensor, nn

from ...wan_core.words import first_line, logger, plain

_log = logger(__name__)
_GIB = 1 << 30
_KINDS = (("execution", "PromptExecutor"), ("comfy_execution.graph", "ExecutionList"))
"""the classes that hold what nodes gave: for later queues, and for the nodes of a prompt that have not run yet"""
_PLACES = ("execution", "__main__", "main")
"""the modules whose functions hold them: the loop over prompts in main.py, and what runs one"""
_HOLDERS = ("patcher", "model", "control_model")
"""attributes under which ComfyUI's objects, and those of other packs, hold a module or what holds one"""
_DEEPEST = 6
_WORTH_SAYING = _GIB // 2
_SEEN: weakref.WeakSet[nn.Module] = weakref.WeakSet()
"""models that were found once and are there still, whoever holds them now"""


@dataclass(frozen=True)
class HeldModel:
    """One model, by the class of its module."""

    name: str
    bytes: int


def held_models() -> list[HeldModel]:
    """Lists the models in ComfyUI's RAM, the largest first; what lies on a GPU or is a mapped file is not counted."""
    try:
        return _held(_Caches.found())
    except Exception as error:  # never the end of a run
        _log.warning("what ComfyUI holds in RAM is not known: %s", first_line(error))
        return []


def idle_bytes() -> int:
    """Returns the bytes that `release_idle_models` would free now, less those that models on a GPU will take here
    when they make room there.
    """
    try:
        caches, count = _Caches.found(), _Counted()
        stay = [module for module in _all_modules(caches) if module not in caches.idle_modules]
        coming = sum(part.nbytes for module in stay for part in _parts(module) if part.device.type == "cuda")
        for module in stay:
            count.of(module)  # what is shared with them stays
        return max(sum(map(count.of, caches.idle_modules)) - coming, 0)
    except Exception as error:
        _log.warning("what ComfyUI holds in RAM is not known: %s", first_line(error))
        return 0


def release_idle_models() -> None:
    """Take models out of ComfyUI's caches that no node of the running prompt waits for; a later queue loads them again.

    Before GPUs are freed: what has gone need not come back from there.
    """
    try:
        gc.collect()  # lists of prompts that are over
        caches, count = _Caches.found(), _Counted()
        if not caches.prompts:
            return  # one runs, or nothing would ask, so its list is of a kind that nobody knows here
        going = [(weakref.ref(one), HeldModel(type(one).__name__, count.of(one))) for one in caches.idle_modules]
        for cache, key in caches.idle:
            # A prompt of 0.33 keeps a list of the entries that it began with, so the entry is emptied too.
            outputs = getattr(cache.pop(key, None), "outputs", None)
            if isinstance(outputs, list):
                outputs.clear()
        del caches
        gc.collect()
        _give_back()
        if freed := in_words(model for module, model in going if module() is None):
            _log.info("ComfyUI's RAM was freed of %s", freed)
    except Exception as error:
        _log.warning("models of ComfyUI stay in RAM: %s", first_line(error))


def in_words(models: Iterable[HeldModel]) -> str:
    """Returns "9.4 GiB (WanTEModel 6.7, WanVAE 0.5)"; "" where it is not worth a word."""
    models = list(models)
    total = sum(one.bytes for one in models)
    if total < _WORTH_SAYING:
        return ""
    large = [one for one in models if one.bytes >= _GIB // 20]
    return f"{total / _GIB:.1f} GiB ({', '.join(f'{plain(one.name)} {one.bytes / _GIB:.1f}' for one in large)})"


@dataclass
class _Caches:
    """The caches of this process, as they are now."""

    prompts: int = 0
    """how many that run have a list of nodes which wait"""
    waited_for: list[Any] = field(default_factory=list[Any])
    """entries of nodes that have not run yet"""
    idle: list[tuple[MutableMapping[Any, Any], Any]] = field(default_factory=list[tuple[MutableMapping[Any, Any], Any]])
    """cache and key of each entry with a model that nobody waits for"""
    idle_modules: list[nn.Module] = field(default_factory=list[nn.Module])

    @classmethod
    def found(cls) -> _Caches:
        self = cls()
        kinds = [getattr(sys.modules.get(module), name, None) for module, name in _KINDS]
        if None in kinds:
            return self  # nobody knows who waits
        executors, lists = _instances(kinds)
        self.prompts = len(lists)
        nodes = [node for one in lists for node in list(one.execution_cache.values())]  # a page asks from its thread
        self.waited_for = [entry for node in nodes for entry in list(node.values())]
        waiting = _modules(self.waited_for)
        for cache in (store for one in executors for store in _stores(one.caches.outputs)):
            for key, entry in list(cache.items()):
                modules = _modules(entry)
                if not set(modules) <= set(waiting):
                    self.idle.append((cache, key))
                    self.idle_modules += [one for one in modules if one not in (*waiting, *self.idle_modules)]
        _SEEN.update([*waiting, *self.idle_modules])
        return self


def _held(caches: _Caches) -> list[HeldModel]:
    count = _Counted()
    found = [HeldModel(type(one).__name__, count.of(one)) for one in _all_modules(caches)]
    pinned = [HeldModel(type(one.model).__name__, _pinned_bytes(one)) for one in _loaded()]
    return sorted((one for one in found + pinned if one.bytes), key=lambda one: -one.bytes)


def _all_modules(caches: _Caches) -> list[nn.Module]:
    waiting = _modules(caches.waited_for)
    return list(dict.fromkeys([*caches.idle_modules, *waiting, *_modules(_loaded()), *_SEEN]))


def _loaded() -> list[Any]:
    """Lists the patchers of models that ComfyUI has in use."""
    patchers = [loaded.model for loaded in list(mm.current_loaded_models)]
    return [one for one in patchers if one is not None]


def _pinned_bytes(patcher: Any) -> int:
    """Returns the page-locked memory through which a model of dynamic VRAM (0.33) passes; its weights are a file."""
    is_dynamic = getattr(patcher, "is_dynamic", None)
    return int(patcher.loaded_ram_size()) if is_dynamic is not None and is_dynamic() else 0


def _instances(kinds: list[Any]) -> list[list[Any]]:
    """Returns the instances of each class, and of what a pack made of it, that ComfyUI's own functions work with now.

    They are looked for in the variables of these functions. A walk over all objects (`gc.get_objects`) would hold a
    tuple that another thread is just making, and Python ends that with a SystemError there.
    """
    found: list[list[Any]] = [[] for _ in kinds]
    for top in list(sys._current_frames().values()):
        frame: FrameType | None = top
        while frame is not None:
            if frame.f_globals.get("__name__") in _PLACES:
                for value in list(frame.f_locals.values()):
                    # By identity: a class may have an equality of its own.
                    of = (i for i, kind in enumerate(kinds) if any(base is kind for base in type(value).__mro__))
                    place = next(of, None)
                    if place is not None and not any(one is value for one in found[place]):
                        found[place].append(value)
            frame = frame.f_back
    return found


def _stores(cache: Any) -> Iterator[MutableMapping[Any, Any]]:
    """Yields the entries of a cache and of those below it; none under --cache-none."""
    if isinstance(store := getattr(cache, "cache", None), dict):
        yield store
    for below in list(getattr(cache, "subcaches", {}).values()):
        yield from _stores(below)


def _modules(value: Any) -> list[nn.Module]:
    """Lists the modules in what a node gave, wherever they are in it."""
    return list(dict.fromkeys(_found_in(value, 0)))


def _found_in(value: Any, depth: int) -> Iterator[nn.Module]:
    if isinstance(value, nn.Module):
        yield value
    elif depth > _DEEPEST or value is None or isinstance(value, Tensor | str | bytes | int | float):
        return
    elif isinstance(value, Mapping):
        for one in value.values():
            yield from _found_in(one, depth + 1)
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _found_in(one, depth + 1)
    else:  # by its own dictionary: an attribute may be code that loads something
        own = getattr(value, "__dict__", {})
        for name in _HOLDERS:
            yield from _found_in(own.get(name), depth + 1)


class _Counted:
    """Counts each piece of memory once, however many modules have a part in it."""

    def __init__(self) -> None:
        self._seen: set[int] = set()
        self._files = _MappedFiles()

    def of(self, module: nn.Module) -> int:
        """Returns the bytes of a module in the computer's memory which it has not counted yet."""
        total = 0
        for part in _parts(module):
            if part.device.type != "cpu":
                continue
            storage = part.untyped_storage()
            place = storage.data_ptr()
            if place and place not in self._seen and place not in self._files:
                self._seen.add(place)
                total += storage.nbytes()
        return total


def _parts(module: nn.Module) -> Iterator[Tensor]:
    for tensor in itertools.chain(module.parameters(), module.buffers()):
        yield from _plain_parts(tensor)


def _plain_parts(tensor: Tensor) -> Iterator[Tensor]:
    """Yields the tensors that a quantized one is made of; else itself."""
    flatten = getattr(tensor, "__tensor_flatten__", None)
    if flatten is None:
        yield tensor
        return
    for name in flatten()[0]:
        yield from _plain_parts(getattr(tensor, name))


class _MappedFiles:
    """The addresses that are pages of a file: the system takes those back when it needs memory. Told by Linux alone."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []
        try:
            lines = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            return
        for line in lines:
            area, _mode, _offset, _device, inode, *path = line.split(maxsplit=5)
            if inode != "0" and path and not path[0].startswith(("/dev/", "/memfd:", "/SYSV")):
                start, end = area.split("-")
                self._starts.append(int(start, 16))
                self._ends.append(int(end, 16))

    def __contains__(self, address: int) -> bool:
        place = bisect.bisect_right(self._starts, address) - 1
        return place >= 0 and address < self._ends[place]


def _give_back() -> None:
    """Give the system what was freed: Linux' allocator keeps pieces below 32 MiB for the next that asks."""
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:  # of glibc alone
            trim(0)
