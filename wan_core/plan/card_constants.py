"""The three constants of this user's cards, as `wan_core measure` found them: one small file for all of their runs.

Kept for each kind of card and version of torch, whose kernels differ, in the user's state folder. Without the file, and
where it is damaged, plans go by the constants that `cards.py` assumes.
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
"""environment variable: folder for what is known of this user's machine, in place of the usual one"""
_FILE = "cards.json"
_VERSION, _NEWEST = 1, 100
_log = logger(__name__)
_noted = set[Path]()


@dataclass(frozen=True, kw_only=True)
class Constants(Config):
    """The speeds that one kind of card reaches under one version of torch."""

    card: str
    """as its driver calls it"""
    torch: str
    date: str
    """of the measurement, yyyy-mm-dd"""
    rows: int
    """steps that they were fitted to"""
    off: float
    """the largest error of these steps, as a share"""
    flops_per_s: float
    """of matrix products and attention"""
    bytes_per_s: float
    """of all other kernels"""
    kernel_s: float
    """seconds that each kernel adds"""
    host_s: float = 0.0
    """seconds that the host takes for each kernel, at most; 0 where no step says it"""

    def __post_init__(self) -> None:
        super().__post_init__()
        speeds = (self.flops_per_s, self.bytes_per_s, self.kernel_s)
        if not (all(0 < value < math.inf for value in speeds) and 0 <= self.host_s < math.inf):
            raise ConfigError(f"The constants of {self.card[:80]} must be positive numbers.")


def own_constants(card: str) -> Constants | None:
    """Returns what was measured on such a card with this torch; None where nothing was. A damaged file is noted once
    and ignored.
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
    """Writes constants in place of older ones of the same card and torch; returns whether the file has them now."""
    memo = _memo()
    memo.put(_key(found.card, found.torch), found.to_dict())
    memo.save()
    return _memo().get(_key(found.card, found.torch)) == found.to_dict()


def state_file() -> Path:
    """Returns the file of the constants, which need not exist."""
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
