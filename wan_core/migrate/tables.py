"""The tables of all trainers, for docs/coming_from.md."""

from __future__ import annotations

from collections.abc import Mapping

from . import ai_toolkit, diffusion_pipe, musubi, simpletuner
from .keys import Key

TRAINERS: Mapping[str, Mapping[str, tuple[Key, ...]]] = {
    "musubi-tuner": {"": musubi.KEYS},
    "diffusion-pipe": diffusion_pipe.TABLES,
    "SimpleTuner": {"": simpletuner.KEYS},
    "ai-toolkit": ai_toolkit.TABLES,
}
"""trainer -> section of its file -> its keys"""
