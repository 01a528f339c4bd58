"""Tells what each device of this machine is and can compute: alone to ask torch for a card's name, age and size.

What a card is comes as a frozen value. What follows from its age stands here as torch and its libraries have it, so
that a plan, a node and a refusal say the same; what a table cannot know (`_int_mm` of one CUDA, a kernel of a package)
is tried where it is needed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import torch

from .errors import ConfigError

_CARD_CAPABILITY = "WAN_TRAINER_CARD_CAPABILITY"
"""environment variable: plan and compute as on cards of this compute capability, such as 7.5; the CPU then too"""
_GIB = 1 << 30
_WRONG_FP16 = re.compile(r"\b(1630|1650|1660|T400|T500|T550|T600|T1000|T1200|T2000|MX450|MX550|CMP 30HX)\b")
"""7.5 without tensor cores: float16 gives NaN there, so ComfyUI computes in float32 on them (model_management)"""
_AMD_WITHOUT_BF16 = ("gfx803", "gfx900", "gfx906", "gfx101", "gfx103")
"""RDNA2, Vega and older, as ComfyUI has them; torch calls bf16 supported on all of AMD's"""


@dataclass(frozen=True, kw_only=True)
class Abilities:
    """One device."""

    name: str
    memory: int = 0
    """bytes; 0 where nobody asked, as of the CPU"""
    capability: tuple[int, int] | None = None
    """compute capability of an NVIDIA card; None for any other device"""
    amd: str = ""
    """what ROCm calls the kind of an AMD card, such as gfx1030"""
    uuid: str = ""
    """tells it from other cards of its kind; empty where the driver does not say"""
    kernels: str = ""
    """the kinds of cards that this torch has code for, where this card is none of them"""

    def _is_at_least(self, major: int, minor: int) -> bool:
        return self.capability is None or self.capability >= (major, minor)

    @property
    def bf16(self) -> bool:
        """Whether it computes bfloat16 itself. Older cards emulate it, which torch calls support."""
        return self._is_at_least(8, 0) and not self.amd.startswith(_AMD_WITHOUT_BF16)

    @property
    def fp16(self) -> bool:
        """Whether float16 is right and worth it: not before Pascal, and not where it is known to give NaN."""
        return self._is_at_least(6, 0) and not (self.capability == (7, 5) and _WRONG_FP16.search(self.name))

    @property
    def fp8_products(self) -> bool:
        """Whether `_scaled_mm` takes it (8.9 and newer; of AMD's it is tried)."""
        return self._is_at_least(8, 9)

    @property
    def int8_products(self) -> bool:
        """Whether `_int_mm` may take it (cublasLt: 8.0; 7.0 and 7.5 from CUDA 12.3 on, so it is tried too)."""
        return self._is_at_least(7, 0)

    @property
    def compiles(self) -> bool:
        """Whether triton makes code for it (torch._dynamo.device_interface)."""
        return self._is_at_least(7, 0)

    @property
    def compute(self) -> str:
        """The base precision that a new run takes where nothing else was asked for: bf16, fp16 or fp32."""
        return "bf16" if self.bf16 else "fp16" if self.fp16 else "fp32"

    @property
    def what(self) -> str:
        """Returns its name, with what its age goes by: "Tesla T4 (compute capability 7.5)"."""
        if self.capability is not None:
            return f"{self.name} (compute capability {self.capability[0]}.{self.capability[1]})"
        return f"{self.name} ({self.amd})" if self.amd else self.name

    def sentence(self) -> str:
        """Returns in a sentence what it can; "" of a CPU."""
        if self.capability is None and not self.amd:
            return ""
        can = ("fp8 products", self.fp8_products), ("int8 products", self.int8_products), ("compile", self.compiles)
        lacks = ", ".join(name for name, has in can if not has)
        without = f" Not there: {lacks}." if lacks else ""
        if self.bf16:
            return f"{self.what} computes in bf16.{without}"
        # Of cards before 8.0 torch's memory-efficient attention takes float16 and float32, its flash attention nothing
        # (sdp_utils.cpp).
        kind = "fp16 with a scaled loss" if self.fp16 else "fp32, at twice the memory, as its fp16 cannot be relied on"
        attention = "" if self.amd else ", with torch's memory-efficient attention, which is slower than flash"
        return f"{self.what} has no bf16 of its own, so new runs compute in {kind}{attention}.{without}"

    def refusal(self) -> str:
        """Returns why nothing can be computed on it; "" where something can."""
        if not self.kernels:
            return ""
        return (
            f"This torch ({torch.__version__}) has no code for {self.what}: it was built for {self.kernels}. Install a "
            "torch built for this card (https://pytorch.org/get-started/previous-versions), or choose another device."
        )


def gpu_count() -> int:
    """Returns how many GPUs torch sees, without opening one."""
    return torch.cuda.device_count()


def gpu_names() -> tuple[str, ...]:
    """Returns the devices that torch sees beside the CPU: cuda:0, cuda:1 ..."""
    return tuple(f"cuda:{index}" for index in range(gpu_count()))


def all_have_bf16(devices: Iterable[torch.device | str]) -> bool:
    """Returns whether all of these devices compute bfloat16 themselves."""
    return all(abilities_of(device).bf16 for device in devices)


def abilities_of(device: torch.device | str) -> Abilities:
    """Returns what a device is and can; ConfigError where _CARD_CAPABILITY says no such number."""
    device = torch.device(device)
    found = _ask(device.index or 0) if device.type == "cuda" else Abilities(name=device.type)
    said = os.environ.get(_CARD_CAPABILITY, "").strip()
    if not said:
        return found
    if not re.fullmatch(r"\d{1,2}\.\d", said):
        raise ConfigError(f'{_CARD_CAPABILITY} is "{said[:40]}". Set it to a number such as 7.5, or to nothing.')
    major, _, minor = said.partition(".")
    return replace(found, capability=(int(major), int(minor)), amd="", kernels="")


def _ask(index: int) -> Abilities:
    """Returns what torch says of one card; it keeps that itself after the first time."""
    card: Any = torch.cuda.get_device_properties(index)
    amd = str(getattr(card, "gcnArchName", "")).partition(":")[0] if torch.version.hip else ""
    capability = None if amd else (card.major, card.minor)
    built_for = torch.cuda.get_arch_list()
    fits = capability is None or not built_for or _has_code(capability, built_for)
    return Abilities(
        name=card.name,
        memory=card.total_memory,
        capability=capability,
        amd=amd,
        uuid=str(getattr(card, "uuid", "")),
        kernels="" if fits else ", ".join(built_for),
    )


def _has_code(capability: tuple[int, int], built_for: list[str]) -> bool:
    """Returns whether one of "sm_75", "compute_90" runs on a card.

    Machine code does on later minors of its major, an intermediate form on everything later.
    """
    for one in built_for:
        kind, _, number = one.partition("_")
        digits = re.match(r"\d+", number)
        if digits is None:
            continue
        of = divmod(int(digits.group()), 10)
        if of <= capability and (kind == "compute" or of[0] == capability[0]):
            return True
    return False
