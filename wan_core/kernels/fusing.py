"""Fused functions: small functions that torch.compile turns into one GPU kernel, each with its plain form.

A fused function is a registered operator: dispatch modes see one call with a name, and meta tensors get their shape.
Compiling, and importing the compiler, begins when a function is tried on a device. The compiled form is used if it
gave the same results as the plain form on random values.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import torch
from torch import Tensor

from ..accelerator import has_float64, synchronize
from ..words import first_line
from .direct import Direct, backend, key_of

_NAMESPACE = f"wan_fused_{uuid4().hex[:12]}"
"""namespace of the operators, new for each import of this file, because torch refuses to define an operator twice"""
_library = torch.library.Library(_NAMESPACE, "DEF")
_OF_16_BITS_OR_LESS = {
    torch.bfloat16: 2.0**-7,
    torch.float16: 2.0**-10,
    torch.float8_e4m3fn: 2.0**-3,
    torch.float8_e5m2: 2.0**-2,
    torch.int8: 2.0**-6,
}
"""relative rounding step of each dtype; int8 rows reach 127, so their step is smaller than this"""
_GRAPHS = 64
"""largest number of compiled graphs of one function, for models of several dtypes; torch's own limit is 8"""
_OF_SUMS = 1e-4
"""relative tolerance of float32, for sums of a few thousand values in another order"""
_set_aside: list[str] = []


class Fused:
    """One function of tensors, without a graph. It changes none of its inputs, or writes its first one and returns
    None."""

    def __init__(self, schema: str, body: Callable[..., Any], shapes: Callable[..., Any]) -> None:
        """`schema`: torch's operator schema, such as "norm(Tensor x, float eps) -> Tensor". `body`: the plain form,
        which must also accept a float as text. `shapes`: returns uninitialized results of `body`.
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
        """Runs the compiled form, even if `on` is False."""
        key = key_of(inputs)
        known = None if key is None else self._direct.call(key, inputs)
        return self._operator(*inputs) if known is None else known[0]

    def on(self, tensor: Tensor, kind: str = "") -> bool:
        """Returns whether the compiled form is used on the device of `tensor`. `kind`: a case with its own trial."""
        return bool(self._ready) and (tensor.device, kind) in self._ready and not torch.compiler.is_compiling()

    @staticmethod
    def all_on(functions: Iterable[Fused], tensor: Tensor) -> bool:
        """Returns whether all of these functions are on."""
        place = (tensor.device, "")
        return all(place in one._ready for one in functions) and not torch.compiler.is_compiling()

    def use(self, device: torch.device, kind: str = "") -> None:
        """Use the compiled form on a device, without a trial."""
        self._ready.add((device, kind))

    def set_aside(self, device: torch.device | None = None, kind: str | None = None) -> None:
        """Use the plain form from now on. `device`, `kind`: None means all."""
        self._ready = {one for one in self._ready if device not in (None, one[0]) or kind not in (None, one[1])}

    def _run(self, *inputs: Any) -> Any:
        # Detached, so that there is one graph with and without gradients; callers have their own backward pass. A float
        # is passed as text, which becomes a constant of the graph; a number would become another input.
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
    """Returns `body` compiled to one graph for all sizes, which writes only its results to memory.

    Casts of `body` to 16 bits round as in its plain form.
    """
    wanted = {"realize_opcount_threshold": 1000, "emulate_precision_casts": True}
    import torch._inductor as inductor  # imported here, because it takes half a second

    known = inductor.list_options()
    options = {name: value for name, value in wanted.items() if name in known}
    return torch.compile(body, fullgraph=True, dynamic=True, backend=backend(options))


def static_width(tensor: Tensor) -> None:
    """Makes the last size of `tensor` a constant of the graph; called in the body of a fused function."""
    if torch.compiler.is_compiling():
        torch._dynamo.mark_static(tensor, tensor.ndim - 1)  # pyright: ignore[reportPrivateUsage]


@dataclass(frozen=True)
class Trial:
    """One case of a fused function, with its test inputs."""

    function: Fused
    inputs: Callable[[], tuple[Any, ...]]
    """returns random inputs on the device"""
    kind: str = ""

    @property
    def name(self) -> str:
        """The function's name, with the kind in parentheses."""
        return f"{self.function.name} ({self.kind})" if self.kind else self.function.name


def try_on(device: torch.device, trials: Iterable[Trial]) -> list[str]:
    """Runs each trial on a device, and uses the compiled forms that are right; returns a remark for each failure, and
    one on the time that compiling took."""
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
    """Returns, once, a remark for each function that failed after its trial."""
    found = _set_aside.copy()
    _set_aside.clear()
    return found


def _remark(name: str, fault: str) -> str:
    return f"The fused function {name} {fault}; its plain form is used, which is slower and gives the same results."


def _fault(trial: Trial) -> str:
    """Returns why the compiled form fails its trial; "" if it passes."""
    inputs = trial.inputs()
    wanted = [one.clone() if isinstance(one, Tensor) else one for one in inputs]
    try:
        trial.function(*(one.clone() if isinstance(one, Tensor) else one for one in inputs))
        # The second call runs like all later calls, without torch's guards (`direct.py`).
        found = trial.function(*inputs)
        if found is None:
            found = inputs[0]
        for one in _several(found):
            synchronize(one.device)
    except Exception as error:  # A compiler, a driver or a missing header may raise any error.
        return f"fails ({first_line(error)})"
    plain = trial.function.body(*wanted)
    return "" if _equal(found, wanted[0] if plain is None else plain) else "differs from its plain form"


def _several(found: Any) -> tuple[Tensor, ...]:
    return (found,) if isinstance(found, Tensor) else tuple(found)


def _equal(found: Any, wanted: Any) -> bool:
    """Returns whether results of the compiled and the plain form are equal within rounding."""
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
    """Returns whether an error comes from the compiler, and not from running the graph."""
    return any(kind.__module__.startswith(("torch._dynamo", "torch._inductor")) for kind in type(error).__mro__)
