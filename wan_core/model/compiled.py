"""torch.compile of the stages of a block: a handful of graphs serves all blocks, chunks and clip sizes.

It does not compile the complete model: checkpointing, offload and device changes happen between the stages, and one
graph of forty equal blocks takes minutes to compile instead of seconds.
"""

from __future__ import annotations

import importlib.util
import shutil
import sys
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from ..abilities import abilities_of
from ..accelerator import backend_of
from ..errors import ConfigError, DependencyError
from ..packages import pip_line

_untraced: list[tuple[Any, str]] = []


def untraced(owner: Any, name: str) -> None:
    """Applies `torch.compiler.disable` to the function `name` of a module or class, before the first compilation.

    It waits that long because `torch.compiler.disable` imports the compiler, 0.8 CPU seconds at every start.
    """
    _untraced.append((owner, name))


class PlainMode(TorchDispatchMode):
    """A TorchDispatchMode whose definition does not import torch's compiler (see `untraced`)."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        untraced(cls, "__torch_dispatch__")

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """False keeps torch from calling `torch.compiler.disable` at once; `untraced` does it later."""
        return False


def check_compile(device: torch.device) -> None:
    """Refuses a device that torch cannot compile for. A GPU needs triton, a CPU needs a C++ compiler.

    Raises ConfigError for a card that is too old for triton, DependencyError if triton or the compiler is missing.
    """
    card, backend = abilities_of(device), backend_of(device)
    if not backend.compiles:
        raise ConfigError(
            f"compile is not offered on {backend.title}, where this pack was not tested with torch's compiler. Turn "
            "compile off: training is the same, only slower."
        )
    if not card.compiles:
        raise ConfigError(
            f"compile needs a card of compute capability 7.0 or newer, and {device} is {card.what}. Turn compile off: "
            "training is the same, only slower."
        )
    if backend.triton and importlib.util.find_spec("triton") is None:
        package = "triton-windows" if sys.platform == "win32" else "triton"
        raise DependencyError(
            "compile needs the package triton, which is not installed. Install it ({package}), or turn compile off: "
            "training gives the same result, only slower.",
            package=pip_line(package),
        )
    if device.type == "cpu" and not any(shutil.which(name) for name in ("g++", "c++", "clang++", "cl")):
        raise DependencyError("compile needs a C++ compiler on a CPU, and there is none. Turn compile off.")


def compile_stages(layers: Iterable[nn.Module], stages: Sequence[str], backend: str = "inductor") -> None:
    """Compiles the methods named `stages` of every layer, for any number of tokens."""
    while _untraced:
        owner, name = _untraced.pop()
        setattr(owner, name, torch.compiler.disable(getattr(owner, name)))
    for layer in layers:
        for stage in stages:
            compiled: Any = torch.compile(getattr(layer, stage), dynamic=True, backend=backend)
            setattr(layer, stage, compiled)
