"""The memory of PEFT's tuners beside their trained values, known without PEFT: the server counts it for plans."""

from __future__ import annotations

from ..config import arguments_of
from ..placement import TunerBytes
from .config import LoraConfig

_FLOAT32 = 4
_R_OF_HRA = 8
"""PEFT's default"""
_SMALL = frozenset({"VERA", "MISS", "DELORA", "GRALORA", "ROAD"})
"""tuners whose matrices are as narrow as those of a LoRA"""
_KEPT_WEIGHTS, _PASSING_WEIGHTS = 2, 3
"""float32 matrices of the weight's size that any other tuner keeps at most, and has while its layer runs; measured with
LOHA, HIRA, FOURIERFT, WAVEFT, RANDLORA and OSF of PEFT 0.21.2"""


def tuner_bytes(config: LoraConfig, wide: int, tall: int) -> TunerBytes:
    """Returns the bytes of a tuner in a linear of `wide` inputs and `tall` outputs."""
    square, weight, name = _FLOAT32 * wide * wide, _FLOAT32 * wide * tall, config.peft_tuner.upper()
    if name in _SMALL:
        return TunerBytes()
    options = arguments_of(config.peft_args, "peft_args")
    if name == "BOFT":  # a product of that number of rotations; one, where PEFT cannot build its CUDA kernel
        turns = _count(options.get("boft_n_butterfly_factor"), 1)
        return TunerBytes(fixed=turns * square, kept=2 * turns * square, passing=2 * square)
    if name == "HRA":  # a product of r reflections, of which each partial product is kept
        return TunerBytes(kept=(_count(options.get("r"), _R_OF_HRA) + 1) * square + 2 * weight, passing=2 * square)
    return TunerBytes(kept=_KEPT_WEIGHTS * weight, passing=_PASSING_WEIGHTS * weight)


def _count(value: object, usual: int) -> int:
    return value if type(value) is int else usual
