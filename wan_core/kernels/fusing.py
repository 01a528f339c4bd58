"""Small functions whose compiled form a GPU runs as one kernel, each with its plain form.

A fused function is an operator of torch: a dispatch mode sees one call with a name, and a meta tensor gets its shape.
Nothing is compiled, and no compiler is imported, before a function is tried on a device; it is used where its compiled
form gave there what its plain form gives, on random values.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import torch
from torch import Tensor

from ..accelerator import has_float64, synchronize
from ..words import first_line
from .direct import Direct, backend, key_of

_NAMESPACE = f"wan_fused_{uuid4().hex[:12]}"
"""of this copy of the code, and each time that it is imported: torch refuses a name that is given twice"""
_library = torch.library.Library(_NAMESPACE, "DEF")
_OF_16_BITS_OR_LESS = {
    torch.bfloat16: 2.0**-7,
    torch.float16: 2.0**-10,
    torch.float8_e4m3fn: 2.0**-3,
    torch.float8_e5m2: 2.0**-2,
    torch.int8: 2.0**-6,
}
"""one step of a value as it is rounded, as a part of it; int8 rows reach 127, so their step is less"""
_GRAPHS = 64
"""of one function, for the dtypes of several models in one process; torch's own limit of 8 is an error beyond it"""
_OF_SUMS = 1e-4
"""float32: two orders of summing a few thousand values"""
_set_aside: list[str] = []


class Fused:
    """One function of tensors, which keeps nothing; it changes none of its inputs, or writes its first and returns
    nothing."""

    def __init__(self, schema: str, body: Callable[..., Any], shapes: Callable[..., Any]) -> None:
        """`schema`: torch's, such as "norm(Tensor x, float eps) -> Tensor"; `shapes`: what `body` returns, empty.

        `body` takes a float as text too.
        """
        self.name, self.body = schema.partition("(")[0], body
        self._ready: set[tuple[torch.device, str]] = set()
        self._compiled: Callable[..., Any] | None = None
        self._direct = Direct()
        _library.define(schema)
        _library.impl(self.name, self._run, "CompositeExplicitAutograd")
        _library.impl(self.name, shapes, "Meta")
        self._operator: Any = getattr(getattr(torch.ops, _NAMESPACE), self.name).default

    def __call__(self, *inputs: Any) -> Any:
        """Runs the compiled form, whatever `on` says."""
        key = key_of(inputs)
        known = None if key is None else self._direct.call(key, inputs)
        return self._operator(*inputs) if known is None else known[0]

    def on(self, tensor: Tensor, kind: str = "") -> bool:
        """Returns whether it is to be used where `tensor` lies; `kind` names a case that is tried for itself."""
        return bool(self._ready) and (tensor.device, kind) in self._ready and not torch.compiler.is_compiling()

    @staticmethod
    def all_on(functions: Iterable[Fused], tensor: Tensor) -> bool:
        """Returns whether all of these are on."""
        place = (tensor.device, "")
        return all(place in one._ready for one in functions) and not torch.compiler.is_compiling()

    def use(self, device: torch.device, kind: str = "") -> None:
        """Lets it be used on a device, untried."""
        self._ready.add((device, kind))

    def set_aside(self, device: torch.device | None = None, kind: str | None = None) -> None:
        """Lets the plain form be used from now on: on one device, or on all; for one kind, or for all."""
        self._ready = {one for one in self._ready if device not in (None, one[0]) or kind not in (None, one[1])}

    def _run(self, *inputs: Any) -> Any:
        # One graph with and without gradients: a caller has its own backward pass. A float is given as text, which the
        # compiler takes as a constant; a number would be one more tensor.
        plain = [
            one.detach() if isinstance(one, Tensor) else repr(one) if isinstance(one, float) else one for one in inputs
        ]
        if self._compiled is None:
            self._compiled = compiled(self.body)
        with torch.no_grad():
            try:
                return self._direct.learn(self._compiled, key_of(inputs), plain)
            except Exception as error:
                if not _is_of_the_compiler(error) or not self._ready:
                    raise
                self.set_aside()
                self._direct.forget()
                _set_aside.append(_remark(self.name, f"does not compile ({first_line(error)})"))
                return self.body(*inputs)


def compiled(body: Callable[..., Any]) -> Callable[..., Any]:
    """Returns `body` as one graph for all sizes, of which nothing is written to memory but the results.

    What `body` rounds is rounded, as in its plain form.
    """
    wanted = {"realize_opcount_threshold": 1000, "emulate_precision_casts": True}
    import torch._inductor as inductor  # half a second, where nothing is compiled too

    known = inductor.list_options()
    options = {name: value for name, value in wanted.items() if name in known}
    return torch.compile(body, fullgraph=True, dynamic=True, backend=backend(options))


def static_width(tensor: Tensor) -> None:
    """Called in a body, makes the last size of `tensor` a number that its graph is made for."""
    if torch.compiler.is_compiling():
        torch._dynamo.mark_static(tensor, tensor.ndim - 1)  # pyright: ignore[reportPrivateUsage]


@dataclass(frozen=True)
class Trial:
    """One case of a fused function, with what it is tried on."""

    function: Fused
    inputs: Callable[[], tuple[Any, ...]]
    """draws them on the device"""
    kind: str = ""

    @property
    def name(self) -> str:
        """With its kind, where it has one: what a remark says."""
        return f"{self.function.name} ({self.kind})" if self.kind else self.function.name


def try_on(device: torch.device, trials: Iterable[Trial]) -> list[str]:
    """Runs each trial on a device, and lets what is right be used there; returns a sentence for each other, and one
    that says what compiling took."""
    began, remarks, names = time.monotonic(), list[str](), set[str]()
    tried, failed = set[tuple[Fused, str]](), set[tuple[Fused, str]]()
    with torch._dynamo.config.patch(recompile_limit=_GRAPHS):  # pyright: ignore[reportPrivateUsage]
        for trial in trials:
            if (trial.function, trial.kind) in failed:
                continue
            if fault := _fault(trial):
                failed.add((trial.function, trial.kind))
                remarks.append(_remark(trial.name, f"{fault} on {device}"))
            else:
                tried.add((trial.function, trial.kind))
    for function, kind in failed:
        function.set_aside(device, kind)
    for function, kind in tried - failed:
        function.use(device, kind)
        names.add(function.name)
    took = time.monotonic() - began
    said = f"{len(names)} fused functions were compiled and tried on {device} in {took:.0f} s; later starts find them."
    return [*remarks, said] if names else remarks


def later_remarks() -> list[str]:
    """Returns, once, a sentence for each function that was set aside since they were tried."""
    found = _set_aside.copy()
    _set_aside.clear()
    return found


@contextmanager
def used_on(device: torch.device, functions: Iterable[tuple[Fused, str]]) -> Iterator[None]:
    """Inside, these functions (with the kind of each) are used on a device, untried."""
    chosen = list(functions)
    for function, kind in chosen:
        function.use(device, kind)
    try:
        yield
    finally:
        for function, _ in chosen:
            function.set_aside(device)


def _remark(name: str, fault: str) -> str:
    return f"The fused function {name} {fault}; its plain form is used, which is slower and gives the same."


def _fault(trial: Trial) -> str:
    """Returns what is wrong with a compiled function; "" for nothing."""
    inputs = trial.inputs()
    wanted = [one.clone() if isinstance(one, Tensor) else one for one in inputs]
    try:
        trial.function(*(one.clone() if isinstance(one, Tensor) else one for one in inputs))
        found = trial.function(*inputs)  # the second call goes to the graph directly, as later ones do
        if found is None:
            found = inputs[0]
        for one in _several(found):
            synchronize(one.device)
    except Exception as error:  # whatever a compiler, a driver or a missing header says
        return f"fails ({first_line(error)})"
    plain = trial.function.body(*wanted)
    return "" if _equal(found, wanted[0] if plain is None else plain) else "differs from its plain form"


def _several(found: Any) -> tuple[Tensor, ...]:
    return (found,) if isinstance(found, Tensor) else tuple(found)


def _equal(found: Any, wanted: Any) -> bool:
    """Returns whether results of the compiled form are those of the plain one, but for rounding."""
    for one, other in zip(_several(found), _several(wanted), strict=True):
        if one.dtype != other.dtype or one.shape != other.shape:
            return False
        if not has_float64(one.device):
            one, other = one.cpu(), other.cpu()
        size, step = other.double().abs(), _OF_16_BITS_OR_LESS.get(one.dtype, _OF_SUMS)
        within = (one.double() - other.double()).abs() <= step * (size + size.mean())
        if not within.all():
            return False
    return True


def _is_of_the_compiler(error: Exception) -> bool:
    """Returns whether compiling failed, and not what was compiled."""
    return any(kind.__module__.startswith(("torch._dynamo", "torch._inductor")) for kind in type(error).__mro__)
