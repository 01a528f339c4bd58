"""Speeds of this user's cards measured by `wan_core measure`, in one file in the user's state folder.

There is an entry for each kind of card and version of torch. If the file is missing or damaged, plans use the
constants that `cards.py` assumes.
"""

from __future__ import annotations

import math
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ..config import Config
from ..errors import ConfigError
from ..files import FileError, Memo, read_json
from ..words import logger

STATE = "WAN_TRAINER_STATE"
"""environment variable: folder of the file, in place of the user's state folder"""
_FILE = "cards.json"
_VERSION, _NEWEST = 1, 100
_log = logger(__name__)
_noted = set[Path]()


@dataclass(frozen=True, kw_only=True)
class Constants(Config):
    """The speeds that one kind of card reaches under one version of torch."""

    card: str
    """name that the driver reports"""
    torch: str
    date: str
    """date of the measurement, yyyy-mm-dd"""
    rows: int
    """number of measured steps from which the constants are fitted"""
    off: float
    """largest relative error of the fit over these steps"""
    flops_per_s: float
    """FLOP/s of matrix products and attention"""
    bytes_per_s: float
    """bytes/s of all other kernels"""
    kernel_s: float
    """seconds that each kernel adds"""
    host_s: float = 0.0
    """upper bound of the host's seconds for each kernel; 0: unknown"""

    def __post_init__(self) -> None:
        super().__post_init__()
        speeds = (self.flops_per_s, self.bytes_per_s, self.kernel_s)
        if not (all(0 < value < math.inf for value in speeds) and 0 <= self.host_s < math.inf):
            raise ConfigError(f"The constants of {self.card[:80]} must be positive numbers.")


def own_constants(card: str) -> Constants | None:
    """Returns the constants measured on a kind of card with this torch; None without a measurement.

    A damaged file is logged once and ignored.
    """
    found: Any = _memo().get(_key(card, torch.__version__))
    if found is None:
        _note_damage(state_file())
        return None
    try:
        return Constants.from_dict(found, _FILE)
    except ConfigError as error:
        _note(state_file(), str(error))
        return None


def keep_constants(found: Constants) -> bool:
    """Writes constants in place of older ones of the same card and torch; returns whether they were written."""
    memo = _memo()
    memo.put(_key(found.card, found.torch), found.to_dict())
    memo.save()
    return _memo().get(_key(found.card, found.torch)) == found.to_dict()


def state_file() -> Path:
    """Returns the path of the file, which may not exist."""
    if said := os.environ.get(STATE, "").strip():
        return Path(said) / _FILE
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local"
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Application Support"
    else:
        base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(base) / "wan_trainer" / _FILE


def _memo() -> Memo:
    file = state_file()
    return Memo(file, _VERSION, _NEWEST, next((folder for folder in file.parents if folder.is_dir()), None))


def _key(card: str, version: str) -> str:
    return f"{card} / {version}"


def _note_damage(file: Path) -> None:
    try:
        if file.is_file():
            read_json(file)
    except (FileError, OSError) as error:
        _note(file, str(error))


def _note(file: Path, why: str) -> None:
    if file not in _noted:
        _noted.add(file)
        _log.warning("%s is damaged and ignored; measure again: %s", file, why)
