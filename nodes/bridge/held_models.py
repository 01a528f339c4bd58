"""Finds the models that ComfyUI holds in host memory, and releases those that no waiting node needs.

ComfyUI caches node outputs, models included: a text encoder of 11 GB stays in RAM for the hours of a training whose
captions are encoded already. ComfyUI's button *Free model and node cache* works only between two prompts, so a training
releases these models itself.

ComfyUI has no interface to its caches, so they are found by class. Removing entries while a prompt runs is safe, and
ComfyUI does it too (`--cache-ram`), because `ExecutionList.execution_cache` keeps the inputs of waiting nodes. In a
version without these classes, nothing is found or released.
"""

from __future__ import annotations

import bisect
import contextlib
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

from ...wan_core.accelerator import is_gpu
from ...wan_core.words import first_line, logger, plain

_log = logger(__name__)
_GIB = 1 << 30
_KINDS = (("execution", "PromptExecutor"), ("comfy_execution.graph", "ExecutionList"))
"""classes that hold node outputs: for later queues, and for the waiting nodes of a prompt"""
_PLACES = ("execution", "__main__", "main")
"""modules whose functions have these instances as local variables: the loop over prompts, and the executor"""
_HOLDERS = ("patcher", "model", "control_model")
"""attributes of objects of ComfyUI and other packs that lead to a module"""
_DEEPEST = 6
_WORTH_SAYING = _GIB // 2
_SEEN: weakref.WeakSet[nn.Module] = weakref.WeakSet()
"""models found earlier and still in memory, also without a cache that holds them"""


@dataclass(frozen=True)
class HeldModel:
    name: str
    """class of the module"""
    bytes: int


def held_models() -> list[HeldModel]:
    """Returns the models in ComfyUI's RAM, largest first, without parameters on a GPU or in mapped files."""
    try:
        caches, count = _Caches.found(), _Counted()
        found = [HeldModel(type(one).__name__, count.of(one)) for one in _all_modules(caches)]
        pinned = [HeldModel(type(one.model).__name__, _pinned_bytes(one)) for one in _loaded()]
        return sorted((one for one in found + pinned if one.bytes), key=lambda one: -one.bytes)
    except Exception as error:  # other internals of ComfyUI must never end a run
        _log.warning("the models that ComfyUI holds in RAM could not be found: %s", first_line(error))
        return []


def idle_bytes() -> int:
    """Returns the bytes that `release_idle_models` would free, minus the bytes that ComfyUI offloads from GPUs."""
    try:
        caches, count = _Caches.found(), _Counted()
        stay = [module for module in _all_modules(caches) if module not in caches.idle_modules]
        coming = sum(part.nbytes for module in stay for part in _parts(module) if is_gpu(part.device))
        for module in stay:
            count.of(module)  # storages shared with other models stay allocated
        return max(sum(map(count.of, caches.idle_modules)) - coming, 0)
    except Exception as error:
        _log.warning("the models that ComfyUI holds in RAM could not be found: %s", first_line(error))
        return 0


def release_idle_models() -> None:
    """Remove models from ComfyUI's caches that no node of the running prompt waits for; a later queue loads them again.

    Call before GPUs are freed, so that a released model is not first offloaded to RAM.
    """
    try:
        gc.collect()  # frees the lists of finished prompts
        caches, count = _Caches.found(), _Counted()
        if not caches.prompts:
            return  # A prompt is running, but its list of waiting nodes was not found.
        going = [(weakref.ref(one), HeldModel(type(one).__name__, count.of(one))) for one in caches.idle_modules]
        for cache, key in caches.idle:
            # ComfyUI 0.33 keeps the initial entries of a prompt in another list, so the entry is emptied too.
            outputs = getattr(cache.pop(key, None), "outputs", None)
            if isinstance(outputs, list):
                outputs.clear()
        del caches
        gc.collect()
        _give_back()
        if freed := in_words(model for module, model in going if module() is None):
            _log.info("released from ComfyUI's RAM: %s", freed)
    except Exception as error:
        _log.warning("models of ComfyUI could not be released from RAM: %s", first_line(error))


def in_words(models: Iterable[HeldModel]) -> str:
    """Returns "9.4 GiB (WanTEModel 6.7, WanVAE 0.5)"; "" for less than half a GiB."""
    models = list(models)
    total = sum(one.bytes for one in models)
    if total < _WORTH_SAYING:
        return ""
    large = [one for one in models if one.bytes >= _GIB // 20]
    return f"{total / _GIB:.1f} GiB ({', '.join(f'{plain(one.name)} {one.bytes / _GIB:.1f}' for one in large)})"


@dataclass
class _Caches:
    """A snapshot of ComfyUI's caches."""

    prompts: int = 0
    """number of running prompts whose list of waiting nodes was found"""
    waiting: list[nn.Module] = field(default_factory=list[nn.Module])
    """models that waiting nodes need"""
    idle: list[tuple[MutableMapping[Any, Any], Any]] = field(default_factory=list[tuple[MutableMapping[Any, Any], Any]])
    """cache and key of each entry with a model that no node waits for"""
    idle_modules: list[nn.Module] = field(default_factory=list[nn.Module])

    @classmethod
    def found(cls) -> _Caches:
        self = cls()
        kinds = [getattr(sys.modules.get(module), name, None) for module, name in _KINDS]
        if None in kinds:
            return self  # the waiting nodes are not known
        executors, lists = _instances(kinds)
        self.prompts = len(lists)
        # Copies of dicts, because the thread of the queue may change them meanwhile.
        nodes = [node for one in lists for node in list(one.execution_cache.values())]
        self.waiting = _modules([entry for node in nodes for entry in list(node.values())])
        for cache in (store for one in executors for store in _stores(one.caches.outputs)):
            for key, entry in list(cache.items()):
                modules = _modules(entry)
                if not set(modules) <= set(self.waiting):
                    self.idle.append((cache, key))
                    self.idle_modules += [one for one in modules if one not in (*self.waiting, *self.idle_modules)]
        _SEEN.update([*self.waiting, *self.idle_modules])
        return self


def _all_modules(caches: _Caches) -> list[nn.Module]:
    return list(dict.fromkeys([*caches.idle_modules, *caches.waiting, *_modules(_loaded()), *_SEEN]))


def _loaded() -> list[Any]:
    """Returns the patchers of models that ComfyUI has loaded."""
    return [one for one in (loaded.model for loaded in list(mm.current_loaded_models)) if one is not None]


def _pinned_bytes(patcher: Any) -> int:
    """Returns the bytes of pinned buffers of a model with dynamic VRAM (ComfyUI 0.33), whose weights are mapped."""
    is_dynamic = getattr(patcher, "is_dynamic", None)
    return int(patcher.loaded_ram_size()) if is_dynamic is not None and is_dynamic() else 0


def _instances(kinds: list[Any]) -> list[list[Any]]:
    """Returns the instances of each class, subclasses included, among the local variables of ComfyUI's functions."""
    # gc.get_objects would raise SystemError for a tuple that another thread is building.
    found: list[list[Any]] = [[] for _ in kinds]
    for top in list(sys._current_frames().values()):
        frame: FrameType | None = top
        while frame is not None:
            if frame.f_globals.get("__name__") in _PLACES:
                for value in list(frame.f_locals.values()):
                    # Classes are compared by identity, because a metaclass may define equality.
                    of = (i for i, kind in enumerate(kinds) if any(base is kind for base in type(value).__mro__))
                    place = next(of, None)
                    if place is not None and not any(one is value for one in found[place]):
                        found[place].append(value)
            frame = frame.f_back
    return found


def _stores(cache: Any) -> Iterator[MutableMapping[Any, Any]]:
    """Yields the entries of a cache and its subcaches; none under --cache-none."""
    if isinstance(store := getattr(cache, "cache", None), dict):
        yield store
    for below in list(getattr(cache, "subcaches", {}).values()):
        yield from _stores(below)


def _modules(value: Any) -> list[nn.Module]:
    """Returns the modules inside a node's output."""
    return list(dict.fromkeys(_found_in(value, 0)))


def _found_in(value: Any, depth: int) -> Iterator[nn.Module]:
    if isinstance(value, nn.Module):
        yield value
    elif depth > _DEEPEST or value is None or isinstance(value, Tensor | str | bytes | int | float):
        return
    elif isinstance(value, Mapping | list | tuple):
        for one in value.values() if isinstance(value, Mapping) else value:
            yield from _found_in(one, depth + 1)
    else:  # through __dict__, because reading a property may load something
        own = getattr(value, "__dict__", {})
        for name in _HOLDERS:
            yield from _found_in(own.get(name), depth + 1)


class _Counted:
    """Counts each storage once, also if several modules share it."""

    def __init__(self) -> None:
        self._seen: set[int] = set()
        self._files = _MappedFiles()

    def of(self, module: nn.Module) -> int:
        """Returns the bytes of a module in host memory that are not counted yet."""
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
    """Yields the tensors inside a quantized tensor; else the tensor itself."""
    flatten = getattr(tensor, "__tensor_flatten__", None)
    if flatten is None:
        yield tensor
        return
    for name in flatten()[0]:
        yield from _plain_parts(getattr(tensor, name))


class _MappedFiles:
    """The address ranges of mapped files, which the system reclaims under memory pressure. Empty except on Linux."""

    def __init__(self) -> None:
        self._areas: list[range] = []
        lines: list[str] = []
        with contextlib.suppress(OSError):
            lines = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace").splitlines()
        for line in lines:
            area, _mode, _offset, _device, inode, *path = line.split(maxsplit=5)
            if inode != "0" and path and not path[0].startswith(("/dev/", "/memfd:", "/SYSV")):
                self._areas.append(range(*(int(end, 16) for end in area.split("-"))))

    def __contains__(self, address: int) -> bool:
        place = bisect.bisect_right(self._areas, address, key=lambda area: area.start) - 1
        return place >= 0 and address in self._areas[place]


def _give_back() -> None:
    """Return freed memory to the system, because the allocator of Linux keeps pieces below 32 MiB."""
    if sys.platform == "linux":
        with contextlib.suppress(AttributeError):  # glibc only
            ctypes.CDLL(None).malloc_trim(0)
