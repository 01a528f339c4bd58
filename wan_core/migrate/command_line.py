"""Converts the options of a training command to settings."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .musubi import FLAGS, KEYS
from .scripts import Training, as_written, ends_unset, is_unset, trainings

_OF_LAUNCHER = ("num_processes", "mixed_precision", "num_cpu_threads_per_process")
"""options of accelerate, which come before the script"""
_LISTS = frozenset(
    ["optimizer_args", "lr_scheduler_args", "network_args", "base_weights", "base_weights_multiplier", "metadata_tags"]
)
"""options that take several words"""
_PATHS = frozenset(
    (
        *("dit", "dit_high_noise", "vae", "t5", "clip", "dataset_config", "network_weights"),
        *("base_weights", "sample_prompts", "config_file"),
    )
)
"""options with a path, of which only the last part must be known"""
_WITH_VALUE = {name for key in KEYS for name in key.names.split()} - FLAGS


@dataclass
class Command:
    settings: dict[str, Any]
    unset: dict[str, str] = field(default_factory=dict[str, str])
    """option -> text of a value that the script does not define"""

    loose: list[str] = field(default_factory=list[str])
    """words that belong to no option"""

    cut: list[str] = field(default_factory=list[str])
    """options after the end of the command"""


def commands_of(name: str, text: str) -> list[Command]:
    """Returns the different training commands of a script."""
    found: list[Command] = []
    for training in trainings(name, text):
        command = _command(training)
        if command not in found:
            found.append(command)
    return found


def _command(training: Training) -> Command:
    launcher = {key: said for key, said in _options(training.before)[0].items() if key in _OF_LAUNCHER}
    options, loose = _options(training.after)
    command = Command(
        {}, loose=[as_written(word) for word in loose], cut=[as_written(word) for word in training.behind]
    )
    for key, words in [*launcher.items(), *options.items()]:
        if any(map(ends_unset if key in _PATHS else is_unset, words)):
            command.settings.pop(key, None)
            command.unset[key] = " ".join(map(as_written, words))
        elif not words or (key in FLAGS and words == [""]):
            command.settings[key] = True
        else:
            plain = [as_written(word) for word in words]
            command.settings[key] = plain if len(plain) > 1 else plain[0]
            command.unset.pop(key, None)
    return command


def _options(words: Sequence[str]) -> tuple[Mapping[str, list[str]], list[str]]:
    """Returns option -> words, and the words that belong to no option."""
    found: dict[str, list[str]] = {}
    loose: list[str] = []
    takes, name = 0, ""
    for word in words:
        if re.match(r"--[A-Za-z]", word):
            name, sign, value = word[2:].partition("=")
            name = name.replace("-", "_")
            found[name] = [value] if sign else []
            takes = 0 if name in FLAGS else len(words) if name in _LISTS else 1 - len(found[name])
        elif takes > 0 and name:
            found[name].append(word)
            takes -= 1
        elif word.strip():
            loose.append(word)
    for key in [key for key, said in found.items() if not said and key in _WITH_VALUE]:
        del found[key]
        loose.append(f"--{key}")
    return found, loose
