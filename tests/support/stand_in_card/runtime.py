"""`torch.cuda` as the stand-in cards have it: its streams and events, its counters, and what it says of a card."""

from __future__ import annotations

import ctypes
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

_ROOT = str(Path(__file__).parents[3])
_CALLBACK = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_char_p, ctypes.c_int64)
_WAIT = "wait: "
_NO_FAULT = ("copy", _WAIT)
"""how the kinds begin that are no fault"""
_open: Any
"""the library, the book, and how many cards there are"""


class Book:
    """What happened on the cards: (kind, place in the code) -> how often."""

    def __init__(self) -> None:
        self.counts = Counter[tuple[str, str]]()
        self._sites: list[str] = []
        self._lock = threading.Lock()

    def note(self, kind: str, earlier: int = -1) -> int:
        """Counts one event of a kind where this thread is; `earlier`: the number of the copy it is about."""
        site = _site()
        with self._lock:
            where = site if earlier < 0 else f"{self._sites[earlier]}, seen at {site}"
            self.counts[kind, where] += 1
            self._sites.append(site)
            return len(self._sites) - 1

    def clear(self) -> None:
        """Lets everything arrive that is on its way, and begins a new page."""
        for card in range(_open.count):
            _open.lib.card_synchronize(card)
        with self._lock:
            self.counts.clear()

    def faults(self) -> dict[str, int]:
        """What would be a wrong number on a real card: reads before arrival, and the like."""
        return {f"{kind}: {where}": n for (kind, where), n in self.counts.items() if not kind.startswith(_NO_FAULT)}

    def waits(self) -> dict[str, int]:
        """How often the host waited for a card, by kind and place."""
        return self.waits_of(self.counts)

    @staticmethod
    def waits_of(counts: Counter[tuple[str, str]]) -> dict[str, int]:
        """The same of a part of the book."""
        waits = {(kind.removeprefix(_WAIT), where): n for (kind, where), n in counts.items() if kind.startswith(_WAIT)}
        return {f"{kind}: {where}": n for (kind, where), n in sorted(waits.items())}

    def copies(self) -> dict[str, int]:
        """Copies that nobody waited for, and those within cards."""
        return {f"{kind}: {where}": n for (kind, where), n in self.counts.items() if kind.startswith("copy")}


def _site() -> str:
    """Returns the innermost place of our own code that this thread is at."""
    frame: Any = sys._getframe(2)
    here = str(Path(__file__).parent)
    while frame is not None:
        file = frame.f_code.co_filename
        if file.startswith(_ROOT) and not file.startswith(here) and "site-packages" not in file:
            return f"{Path(file).relative_to(_ROOT)}:{frame.f_code.co_name}"
        frame = frame.f_back
    return "autograd"


def _index(device: Any = None) -> int:
    if isinstance(device, int):
        return device
    found = None if device is None else torch.device(device).index
    return torch.cuda.current_device() if found is None else found


class Event:
    """Marks a place on a stream."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self._mark: Any = None

    def record(self, stream: Stream | None = None) -> None:
        stream = stream or current_stream()
        self.__del__()
        self._mark = _open.lib.card_record(stream.card, stream.number)

    def wait(self, stream: Stream | None = None) -> None:
        (stream or current_stream()).wait_event(self)

    def synchronize(self) -> None:
        _open.book.note(_WAIT + "event")
        if self._mark is not None:
            _open.lib.card_reach(self._mark)

    def query(self) -> bool:
        return True

    def elapsed_time(self, _end: Event) -> float:
        return 0.0

    def __del__(self) -> None:
        if self._mark is not None:
            _open.lib.card_forget(self._mark)
        self._mark = None


class Stream:
    """A row of work on one card; number 0 computes."""

    def __init__(self, device: Any = None, priority: int = 0, *, number: int | None = None) -> None:
        self.card = _index(device)
        self.device = torch.device("cuda", self.card)
        self.number = _open.lib.card_new_stream(self.card) if number is None else number

    def record_event(self, event: Event | None = None) -> Event:
        event = event or Event()
        event.record(self)
        return event

    def wait_event(self, event: Event) -> None:
        if event._mark is not None:
            _open.lib.card_wait(self.card, self.number, event._mark)

    def wait_stream(self, other: Stream) -> None:
        self.wait_event(other.record_event())

    def synchronize(self) -> None:
        self.record_event().synchronize()

    def query(self) -> bool:
        return True

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream) and (self.card, self.number) == (other.card, other.number)

    def __hash__(self) -> int:
        return hash((self.card, self.number))


def current_stream(device: Any = None) -> Stream:
    card = _index(device)
    return Stream(card, number=_open.lib.card_current_stream(card))


@contextmanager
def _stream(stream: Stream | None) -> Iterator[None]:
    if stream is None:
        yield
        return
    card = _open.lib.card_exchange(stream.card)
    before = _open.lib.card_exchange_stream(stream.card, stream.number)
    try:
        yield
    finally:
        _open.lib.card_exchange_stream(stream.card, before)
        _open.lib.card_exchange(card)


@contextmanager
def _device(device: Any) -> Iterator[None]:
    before = _open.lib.card_exchange(_index(device))
    try:
        yield
    finally:
        _open.lib.card_exchange(before)


def _synchronize(device: Any = None) -> None:
    _open.book.note(_WAIT + "synchronize")
    _open.lib.card_synchronize(_index(device))


def _pin(pointer: int, size: int, _flags: int) -> int:
    if _open.lockable < size:
        return 2  # cudaErrorMemoryAllocation
    _open.lockable -= size
    _open.lib.card_pin(pointer, size)
    return 0


def _unpin(pointer: int) -> int:
    _open.lib.card_pin(pointer, 0)
    return 0


def limit_locked(size: int) -> None:
    """Lets the system page-lock `size` more bytes and then refuse."""
    _open.lockable = size


def limit_memory(size: int) -> None:
    """Gives every card `size` bytes; what it holds beyond stays."""
    _open.lib.card_limit(size)


def install(lib: Any, book: Book, count: int, memory: int) -> None:
    """Puts the cards into torch: C++ does its part as it opens, `torch.cuda` its own."""
    global _open
    told = _CALLBACK(lambda kind, earlier: book.note(kind.decode(), earlier))
    for name, result, inputs in _SIGNATURES:
        getattr(lib, name).restype, getattr(lib, name).argtypes = result, inputs
    _open = SimpleNamespace(lib=lib, book=book, count=count, told=told, lockable=1 << 62)
    lib.card_open(count, memory, told)
    names = [torch.device("cuda", card) for card in range(count)]
    told_of_card = SimpleNamespace(
        name="stand-in card", total_memory=memory, major=8, minor=9, uuid="", multi_processor_count=1, gcnArchName=""
    )
    runtime = SimpleNamespace(cudaHostRegister=_pin, cudaHostUnregister=_unpin)
    shim: dict[str, Any] = {
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "_lazy_init": lambda: None,
        "device_count": lambda: count,
        "current_device": lambda: lib.card_exchange(lib.card_exchange(0)),
        "set_device": lambda device: lib.card_exchange(_index(device)) and None,
        "device": _device,
        "Stream": Stream,
        "Event": Event,
        "stream": _stream,
        "current_stream": current_stream,
        "default_stream": lambda device=None: Stream(device, number=0),
        "synchronize": _synchronize,
        "is_current_stream_capturing": lambda: False,
        "cudart": lambda: runtime,
        "empty_cache": lambda: None,
        "memory_allocated": lambda device=None: lib.card_bytes(_index(device), 0),
        "memory_reserved": lambda device=None: lib.card_bytes(_index(device), 0),
        "max_memory_allocated": lambda device=None: lib.card_bytes(_index(device), 1),
        "max_memory_reserved": lambda device=None: lib.card_bytes(_index(device), 1),
        "reset_peak_memory_stats": lambda device=None: lib.card_reset_peak(_index(device)),
        "mem_get_info": lambda device=None: (memory - lib.card_bytes(_index(device), 0), memory),
        "get_device_properties": lambda device=None: told_of_card,
        "get_device_capability": lambda device=None: (8, 9),
        "get_device_name": lambda device=None: told_of_card.name,
        "get_arch_list": lambda: ["sm_89"],
        "is_bf16_supported": lambda *_: True,
        # One generator, the CPU's: so a card draws what the CPU would.
        "get_rng_state": lambda device=None: torch.get_rng_state(),
        "set_rng_state": lambda state, device=None: torch.set_rng_state(state),
        "get_rng_state_all": lambda: [torch.get_rng_state() for _ in names],
        "set_rng_state_all": lambda states: torch.set_rng_state(states[0]),
        "manual_seed": lambda seed: None,
        "manual_seed_all": lambda seed: None,
    }
    for name, value in shim.items():
        setattr(torch.cuda, name, value)


def on_the_way(card: int = 0) -> int:
    """Returns how many copies of a card have begun and nobody has waited for them."""
    return _open.lib.card_on_the_way(card)


_INT, _LONG, _SIZE, _AT = ctypes.c_int, ctypes.c_int64, ctypes.c_size_t, ctypes.c_void_p
_SIGNATURES: list[tuple[str, Any, list[Any]]] = [
    ("card_open", None, [_INT, _SIZE, _CALLBACK]),
    ("card_new_stream", _LONG, [_INT]),
    ("card_exchange", _INT, [_INT]),
    ("card_exchange_stream", _LONG, [_INT, _LONG]),
    ("card_current_stream", _LONG, [_INT]),
    ("card_record", _AT, [_INT, _LONG]),
    ("card_forget", None, [_AT]),
    ("card_wait", None, [_INT, _LONG, _AT]),
    ("card_reach", None, [_AT]),
    ("card_synchronize", None, [_INT]),
    ("card_pin", None, [_AT, _SIZE]),
    ("card_bytes", _SIZE, [_INT, _INT]),
    ("card_limit", None, [_SIZE]),
    ("card_reset_peak", None, [_INT]),
    ("card_on_the_way", _SIZE, [_INT]),
]
