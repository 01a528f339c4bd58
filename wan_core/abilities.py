"""The capabilities of each device: name, compute capability, memory, and the dtypes that follow from them.

Capabilities follow from the compute capability, as in torch and its libraries. Kernels that depend on more (`_int_mm`
of a CUDA version, a package) are tried where they are used.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

import torch

from .accelerator import backend_of, built_architectures, is_gpu, properties
from .errors import ConfigError

_CARD_CAPABILITY = "WAN_TRAINER_CARD_CAPABILITY"
"""environment variable: the compute capability to assume, such as 7.5, for planning and computing; also on a CPU"""
_GIB = 1 << 30
_WRONG_FP16 = re.compile(r"\b(1630|1650|1660|T400|T500|T550|T600|T1000|T1200|T2000|MX450|MX550|CMP 30HX)\b")
"""names of cards of 7.5 without tensor cores, whose float16 gives NaN; from ComfyUI's model_management"""
_AMD_WITHOUT_BF16 = ("gfx803", "gfx900", "gfx906", "gfx101", "gfx103")
"""architectures of RDNA2, Vega and older, as in ComfyUI; torch reports bf16 for every AMD card"""


@dataclass(frozen=True, kw_only=True)
class Abilities:
    """The capabilities of one device."""

    name: str
    kind: str = "cpu"
    """the device type of torch"""
    memory: int = 0
    """bytes; 0 for a CPU"""
    capability: tuple[int, int] | None = None
    """compute capability of an NVIDIA card; None for other devices"""
    amd: str = ""
    """ROCm architecture of an AMD card, such as gfx1030"""
    uuid: str = ""
    """the driver's UUID, which distinguishes equal cards; "" without one"""
    kernels: str = ""
    """architectures this torch was built for, if it has no code for the card; else "" """

    def _is_at_least(self, major: int, minor: int) -> bool:
        return self.capability is None or self.capability >= (major, minor)

    @property
    def bf16(self) -> bool:
        """True for native bfloat16. Older cards emulate it, which torch reports as supported."""
        return self._is_at_least(8, 0) and not self.amd.startswith(_AMD_WITHOUT_BF16)

    @property
    def fp16(self) -> bool:
        """True if float16 is correct and fast: from Pascal on, except for `_WRONG_FP16`."""
        return self._is_at_least(6, 0) and not (self.capability == (7, 5) and _WRONG_FP16.search(self.name))

    @property
    def fp8_products(self) -> bool:
        """True if `_scaled_mm` may accept fp8: compute capability 8.9 and newer, and AMD."""
        return self._is_at_least(8, 9)

    @property
    def int8_products(self) -> bool:
        """True if `_int_mm` may work (cublasLt: compute capability 8.0; with CUDA 12.3 also 7.0 and 7.5)."""
        return self._is_at_least(7, 0)

    def fuses_attention(self, dtype: torch.dtype) -> bool:
        """Returns whether torch has fused attention for `dtype`, which stores no matrix of scores (sdp_utils.cpp).

        From 8.0 on torch has flash and cuDNN attention. Older cards have memory-efficient attention in float16 and
        float32. AMD cards count as able.
        """
        if self.capability is None:
            return backend_of(self.kind).fused_attention
        return dtype in (torch.float16, torch.float32) or (dtype == torch.bfloat16 and self._is_at_least(8, 0))

    @property
    def compiles(self) -> bool:
        """True if torch.compile is offered: triton supports the card (torch._dynamo.device_interface)."""
        return backend_of(self.kind).compiles and self._is_at_least(7, 0)

    @property
    def compute(self) -> str:
        """The default compute precision of a new run: bf16, fp16 or fp32."""
        return "bf16" if self.bf16 else "fp16" if self.fp16 else "fp32"

    @property
    def what(self) -> str:
        """The name and architecture: "Tesla T4 (compute capability 7.5)"."""
        if self.capability is not None:
            return f"{self.name} (compute capability {self.capability[0]}.{self.capability[1]})"
        return f"{self.name} ({self.amd})" if self.amd else self.name

    def sentence(self) -> str:
        """Returns the capabilities as a sentence; "" for a CPU."""
        if not (backend := backend_of(self.kind)).proven:
            return (
                f"{self.what} is used through {backend.title} and computes in bf16. This pack was never run on such "
                "a device; docs/use/cards.md says what is expected. If a run fails, set device to cpu and please "
                "report it."
            )
        if self.capability is None and not self.amd:
            return ""
        can = ("fp8 products", self.fp8_products), ("int8 products", self.int8_products), ("compile", self.compiles)
        lacks = ", ".join(name for name, has in can if not has)
        without = f" Not available: {lacks}." if lacks else ""
        if self.bf16:
            return f"{self.what} computes in bf16.{without}"
        # Before 8.0 torch has memory-efficient attention (float16, float32) but no flash attention (sdp_utils.cpp).
        kind = (
            "fp16 with a scaled loss"
            if self.fp16
            else ("fp32, which takes twice the memory, because its fp16 is unreliable")
        )
        attention = "" if self.amd else ", with torch's memory-efficient attention, which is slower than flash"
        return f"{self.what} has no native bf16, so new runs compute in {kind}{attention}.{without}"

    def refusal(self) -> str:
        """Returns why the device cannot be used; "" if it can."""
        if not self.kernels:
            return ""
        return (
            f"This torch ({torch.__version__}) has no code for {self.what}: it was built for {self.kernels}. Install a "
            "torch built for this card (https://pytorch.org/get-started/previous-versions), or choose another device."
        )


def all_have_bf16(devices: Iterable[torch.device | str]) -> bool:
    """Returns whether all devices have native bfloat16."""
    return all(abilities_of(device).bf16 for device in devices)


def abilities_of(device: torch.device | str) -> Abilities:
    """Returns the capabilities of a device; ConfigError for an invalid _CARD_CAPABILITY."""
    device = torch.device(device)
    found = _ask(device) if is_gpu(device) else Abilities(name=device.type)
    said = os.environ.get(_CARD_CAPABILITY, "").strip()
    if not said:
        return found
    if not re.fullmatch(r"\d{1,2}\.\d", said):
        raise ConfigError(f'{_CARD_CAPABILITY} is "{said[:40]}". Set it to a number such as 7.5, or unset it.')
    major, _, minor = said.partition(".")
    return replace(found, capability=(int(major), int(minor)), amd="", kernels="")


def _ask(device: torch.device) -> Abilities:
    card = properties(device)
    amd = str(getattr(card, "gcnArchName", "")).partition(":")[0] if torch.version.hip else ""
    capability = (card.major, card.minor) if hasattr(card, "major") and not amd else None
    built_for = built_architectures(device)
    fits = capability is None or not built_for or _has_code(capability, built_for)
    return Abilities(
        name=card.name,
        kind=device.type,
        memory=card.total_memory,
        capability=capability,
        amd=amd,
        uuid=str(getattr(card, "uuid", "")),
        kernels="" if fits else ", ".join(built_for),
    )


def _has_code(capability: tuple[int, int], built_for: list[str]) -> bool:
    """Returns whether code in `built_for` runs on a card. sm_75 runs on 7.5 to 7.9, compute_75 on 7.5 and all newer."""
    for one in built_for:
        kind, _, number = one.partition("_")
        digits = re.match(r"\d+", number)
        if digits is None:
            continue
        of = divmod(int(digits.group()), 10)
        if of <= capability and (kind == "compute" or of[0] == capability[0]):
            return True
    return False
