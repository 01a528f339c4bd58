"""Reads the job of a settings file or a script; recognises the trainer by the content."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any, cast

from ..errors import ConfigError, WanTrainerError
from ..importers import is_backend_list, parse_document, processes_of, read_settings_text
from ..words import first_line
from . import ai_toolkit, diffusion_pipe, musubi, simpletuner
from .command_line import Command, commands_of
from .foreign_job import ForeignJob
from .keys import Key
from .musubi import OF_MUSUBI, NotOfMusubiError, flat_settings, read_musubi_job
from .named_files import Folders, NamedFiles, Texts
from .pairs import as_one_job
from .settle import settle

TRAINERS: Mapping[str, Mapping[str, tuple[Key, ...]]] = {
    "musubi-tuner": {"": musubi.KEYS},
    "diffusion-pipe": diffusion_pipe.TABLES,
    "SimpleTuner": {"": simpletuner.KEYS},
    "ai-toolkit": ai_toolkit.TABLES,
}
"""trainer -> section of its file -> its keys"""
_DATA_HALF = (
    "{name} contains only the dataset settings of {trainer}. Choose it in Wan Dataset From File, or import the "
    "training settings, "
    "which name it."
)
_READS = (
    "Known formats: the command line of musubi-tuner's wan_train_network.py in a text file, or its --config_file; "
    "diffusion-pipe's TOML; SimpleTuner's config.json; ai-toolkit's YAML."
)
_MOST_COMMANDS = 8
_DOCUMENTS = (".toml", ".json", ".yaml", ".yml")


_OF_ANOTHER_KIND = (TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RecursionError)
"""errors that readers raise for a value of an unexpected type or size"""


class DataHalfError(ConfigError):
    """Dataset settings without training settings."""


class UnknownSettingsError(ConfigError):
    """A file that belongs to no known trainer."""


def read_job(path: Path, *, folders: tuple[Path, ...] = (), clips: int = 0) -> ForeignJob:
    """Returns the complete job of another trainer's settings.

    `folders`: searched for named files after the folder of the settings; `clips`: clips per epoch, if they cannot be
    counted. ConfigError for an unknown trainer, or a model other than Wan.
    """
    beside = Folders((path.parent, *path.parents[1:4], *folders))
    return _settled(path.name, read_settings_text(path), beside, clips)


def read_texts(texts: Mapping[str, str]) -> tuple[ForeignJob, tuple[str, ...]]:
    """Returns the job of uploaded texts, and the missing files. `texts`: file name -> content.

    Nothing is read from disk. The first text that is a job is read; the others are files that it may name.
    UnknownSettingsError if no text is a job, ConfigError for invalid settings.
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


def _settled(name: str, text: str, beside: NamedFiles, clips: int) -> ForeignJob:
    suffix = PurePosixPath(name).suffix.lower()
    try:
        job = _job_of(parse_document(name, text), name, suffix) if suffix in _DOCUMENTS else _script(name, text, beside)
        return settle(job, beside, clips)
    except WanTrainerError:
        raise
    except _OF_ANOTHER_KIND as error:
        raise ConfigError(f"{name} has a value of the wrong type: {first_line(error)}. Correct it.") from error


def _job_of(data: Any, name: str, suffix: str) -> ForeignJob:
    if suffix == ".json" and is_backend_list(data):
        raise DataHalfError(_DATA_HALF.format(name=name, trainer="SimpleTuner"))
    table = cast("dict[str, Any]", data) if isinstance(data, dict) else {}
    if processes_of(table):
        return ai_toolkit.read_ai_toolkit_job(table, name)
    keys = {str(key).lstrip("-") for key in table}
    if suffix == ".json" and keys & {"model_family", "data_backend_config", "pretrained_model_name_or_path"}:
        return simpletuner.read_simpletuner_job(table, name)
    if suffix == ".toml" and isinstance(table.get("model"), dict) and not _in_sections_of_musubi(table):
        return diffusion_pipe.read_diffusion_pipe_job(table, name)
    if suffix == ".toml" and isinstance(table.get("datasets"), list):
        raise DataHalfError(_DATA_HALF.format(name=name, trainer="musubi-tuner"))
    if suffix == ".toml" and isinstance(table.get("directory"), list):
        raise DataHalfError(_DATA_HALF.format(name=name, trainer="diffusion-pipe"))
    try:
        return read_musubi_job(table, name)
    except NotOfMusubiError as error:
        raise UnknownSettingsError(f"{name} belongs to no known trainer. {_READS}") from error


def _in_sections_of_musubi(table: dict[str, Any]) -> bool:
    """Returns whether a [model] table is a section of musubi-tuner, not the table of diffusion-pipe."""
    return "type" not in table["model"] and bool(OF_MUSUBI & flat_settings(table).keys())


def _script(name: str, text: str, beside: NamedFiles) -> ForeignJob:
    commands = commands_of(name, text)
    if not commands:
        raise UnknownSettingsError(f"{name} holds no command of a known trainer. {_READS}")
    return as_one_job([_job_of_command(name, command, beside) for command in commands[:_MOST_COMMANDS]])


def _job_of_command(name: str, command: Command, beside: NamedFiles) -> ForeignJob:
    settings = dict(command.settings)
    named = str(settings.pop("config_file", ""))
    found = beside.text(named) if named else None
    missing = found is None and bool(named)
    if found is not None:
        held: Any = parse_document(*found)
        settings = {**flat_settings(cast("dict[str, Any]", held) if isinstance(held, dict) else {}), **settings}
    unset = dict(command.unset)
    if command.loose and not {"dit", "config_file"} & {*settings, *unset, *command.settings}:
        unset["dit"] = " ".join(command.loose)
    try:
        job = read_musubi_job(settings, name, unset)
    except NotOfMusubiError as error:
        if missing:
            raise ConfigError(f"{name} takes its settings from {named[:80]}. Import it with that file.") from error
        raise UnknownSettingsError(f"{name} holds no command of a known trainer. {_READS}") from error
    if missing:
        job.hint("{file} was not found, so its settings are missing; import it with that file", file=f"{named:.80}")
    for words in (command.loose, command.cut):
        if words:
            job.hint("{words} belongs to no option of the command: check the command", words=f"{' '.join(words):.200}")
    return job
