"""Tells which trainer a settings file, or a command line in a text file, belongs to."""

from __future__ import annotations

import itertools
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any, cast

from ..errors import ConfigError, WanTrainerError
from ..importers import is_backend_list, parse_document, processes_of, read_settings_text
from ..words import first_line
from .ai_toolkit import read_ai_toolkit_job
from .beside import Beside, Folders, Texts
from .diffusion_pipe import read_diffusion_pipe_job
from .job import Job
from .musubi import FLAGS, NotOfMusubiError, read_musubi_job
from .settle import settle
from .simpletuner import read_simpletuner_job

__all__ = ["UnknownSettingsError", "read_job", "read_texts"]

_DATA_HALF = (
    "{name} is the data half of {trainer} alone. Choose it in Wan Dataset From File, or import the training settings, "
    "which name it."
)
_READS = (
    "Read are: the command line of musubi-tuner's wan_train_network.py in a text file, or its --config_file; "
    "diffusion-pipe's TOML; SimpleTuner's config.json; ai-toolkit's YAML."
)
_DOCUMENTS = (".toml", ".json", ".yaml", ".yml")


_OF_ANOTHER_KIND = (TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RecursionError)
"""what a text where the trainer has a table ends in, say, or a number that no float can hold"""


class DataHalfError(ConfigError):
    """Settings of a dataset alone."""


class UnknownSettingsError(ConfigError):
    """A file that is of no trainer that is known."""


def read_job(path: Path, *, folders: tuple[Path, ...] = (), clips: int = 0) -> Job:
    """Returns the whole job that another trainer's settings describe.

    `folders` are looked in for the files it names, after its own; `clips` is what an epoch has where nothing can be
    counted. Raises ConfigError where the file is of no known trainer, or of no Wan model.
    """
    beside = Folders((path.parent, *path.parents[1:4], *folders))
    return _settled(path.name, read_settings_text(path), beside, clips)


def read_texts(texts: Mapping[str, str]) -> tuple[Job, tuple[str, ...]]:
    """Returns the job of settings that came as texts by name, and the files it names that did not come along.

    Nothing is read from disk. The first text that is a job counts; the others are what it names. Raises
    UnknownSettingsError where none is of a known trainer, ConfigError where one is and cannot be taken.
    """
    refused: WanTrainerError | None = None
    for name, text in texts.items():
        beside = Texts(texts)
        try:
            return _settled(name, text, beside, 0), tuple(beside.missing)
        except DataHalfError as error:
            refused = error
        except UnknownSettingsError as error:
            refused = refused or error
    raise refused or UnknownSettingsError(_READS)


def _settled(name: str, text: str, beside: Beside, clips: int) -> Job:
    suffix = PurePosixPath(name).suffix.lower()
    data: Any
    commands = 1
    if suffix in _DOCUMENTS:
        data = parse_document(name, text)
    else:
        data, commands = _command_line(name, text)
    try:
        job = settle(_job_of(data, name, suffix), beside, clips)
    except WanTrainerError:
        raise
    except _OF_ANOTHER_KIND as error:
        raise ConfigError(f"{name} has a value of another kind: {first_line(error)}. Correct it.") from error
    if commands > 1:
        job.hints.append(
            f"{name} holds {commands} training commands, and this is the first; give each of the others a file of its "
            "own, or choose low_noise_model in Load Wan Model where they are both experts of a pair"
        )
    return job


def _job_of(data: Any, name: str, suffix: str) -> Job:
    if suffix == ".json" and is_backend_list(data):
        raise DataHalfError(_DATA_HALF.format(name=name, trainer="SimpleTuner"))
    table = cast("dict[str, Any]", data) if isinstance(data, dict) else {}
    if processes_of(table):
        return read_ai_toolkit_job(table, name)
    keys = {str(key).lstrip("-") for key in table}
    if suffix == ".json" and keys & {"model_family", "data_backend_config", "pretrained_model_name_or_path"}:
        return read_simpletuner_job(table, name)
    if suffix == ".toml" and isinstance(table.get("model"), dict):
        return read_diffusion_pipe_job(table, name)
    if suffix == ".toml" and isinstance(table.get("datasets"), list):
        raise DataHalfError(_DATA_HALF.format(name=name, trainer="musubi-tuner"))
    if suffix == ".toml" and isinstance(table.get("directory"), list):
        raise DataHalfError(_DATA_HALF.format(name=name, trainer="diffusion-pipe"))
    try:
        return read_musubi_job(table, name)
    except NotOfMusubiError as error:
        raise UnknownSettingsError(f"{name} is of no trainer that is known. {_READS}") from error


def _command_line(name: str, text: str) -> tuple[dict[str, Any], int]:
    """Returns the options of the first command of musubi-tuner's Wan trainer in a script, and how many there are."""
    text = re.sub(r"[\\^`][ \t]*\r?\n", " ", text)  # lines that go on, in a shell, in cmd and in PowerShell
    commands = list(_commands(text, name))
    if not commands:
        raise UnknownSettingsError(f"{name} holds no command of a known trainer. {_READS}")
    words, start = commands[0]
    launcher = {key: said for key, said in _options(words[:start]).items() if key in _OF_LAUNCHER}
    before = {key: said[0] if isinstance(said, list) else said for key, said in launcher.items()}  # and the program
    return before | _options(words[start + 1 :]), len(commands)


def _commands(text: str, name: str) -> Iterator[tuple[list[str], int]]:
    """Yields the words of each command of the trainer, and which of them is its script; one may be named elsewhere."""
    for line in text.splitlines():
        if _SCRIPT not in line or _REMARK.match(line):
            continue
        if len(line) > _LONGEST_COMMAND:
            raise ConfigError(f"{name}: the command has {len(line):,} characters. Use at most {_LONGEST_COMMAND:,}.")
        try:
            words = _shell_words(line)
        except ValueError as error:
            raise ConfigError(f"{name}: the command cannot be read ({error}). Check its quotes.") from error
        for ends, found in itertools.groupby(words, _ENDS.__contains__):
            command = [] if ends else _without_redirects(found)
            start = next((i for i, word in enumerate(command) if _SCRIPT in word and not re.search(r"\s", word)), None)
            if start is not None and command[0].lower().lstrip("@") not in _PRINTS:
                yield command, start


def _shell_words(line: str) -> list[str]:
    """Returns the words of a line, and what ends its commands as words of their own. Raises ValueError."""
    line = re.sub(r"(?<=\s)[0-9]>(&[0-9])?", lambda found: "" if found[1] else ">", line.replace("\\", "/"))
    lexer = shlex.shlex(line, posix=True, punctuation_chars=";&|")
    lexer.whitespace_split = True
    return list(lexer)


def _without_redirects(words: Iterable[str]) -> list[str]:
    found, kept = iter(words), list[str]()
    for word in found:
        if word in (">", ">>"):
            next(found, None)
        elif not word.startswith(">"):
            kept.append(word)
    return kept


_SCRIPT = "wan_train_network"
_ENDS = (";", "&", "&&", "|", "||")
_PRINTS = ("echo", "printf", "write-host")
_REMARK = re.compile(r"\s*@?(rem\s|::)", re.IGNORECASE)
"""of cmd"""
_LONGEST_COMMAND = 64 << 10
_OF_LAUNCHER = ("num_processes", "mixed_precision", "num_cpu_threads_per_process")
"""options of accelerate that stand before the script"""


def _options(words: list[str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    name = ""
    for word in words:
        if word.startswith("--"):
            name, sign, value = word[2:].partition("=")
            name = name.replace("-", "_")
            found[name] = value if sign else True if name in FLAGS else None
        elif name and name not in FLAGS:
            held = found[name]
            if isinstance(held, list):
                cast("list[str]", held).append(word)
            else:
                found[name] = word if held is None else [held, word]
    return {key: value for key, value in found.items() if value is not None}
