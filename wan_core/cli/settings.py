"""The option `--set NAME=VALUE`: settings by their names in run.json or on the nodes."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from ..config import names_on_nodes, nearest
from ..errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

    from ..files import Roots
    from ..job import RunConfig
    from ..placement import PlacementConfig

_SECTIONS = ("train", "lora", "model")
"""search order of a name without a dot"""


def add_set_option(command: argparse.ArgumentParser) -> None:
    """Adds the repeatable option `--set`."""
    text = "a setting by its name, such as learning_rate=1e-4; others as in run.json: model.attention=sdpa"
    command.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help=text)


def with_settings(config: RunConfig, asked: Sequence[str]) -> RunConfig:
    """Returns `config` with the changes of `--set`. ConfigError for an unknown name or value."""
    data = config.to_dict()
    for pair in asked:
        name, sign, text = pair.partition("=")
        if not sign:
            raise ConfigError(f"--set {pair[:80]!r} is not NAME=VALUE. Example: --set learning_rate=1e-4")
        name, text = _as_in_run(name.strip(), text.strip())
        section, key = _place(data, name)
        section[key] = _value(text, section[key])
    changed = type(config).from_dict(data)
    placement = changed.model.placement
    before = config.model.placement
    if (placement.mode, placement.context_parallel) != (
        before.mode,
        before.context_parallel,
    ):  # the placement is now the user's, no longer one that `auto` chose
        changed = replace(changed, model=changed.model.with_placement(replace(placement, chosen="")))
    changed.lora.check_grammar()
    changed.train.check_grammar()
    return changed


def _as_in_run(name: str, text: str) -> tuple[str, str]:
    """Returns the name and value in run.json of a setting of a node."""
    from ..lora import TARGET_PRESETS, LoraConfig

    if name == "target_preset":
        if text not in TARGET_PRESETS:
            raise ConfigError(
                f"--set target_preset: {text[:80]!r} is not a preset.{nearest(text, list(TARGET_PRESETS))}"
            )
        return "lora.targets", json.dumps(TARGET_PRESETS[text])
    if name == "start_from_lora":
        return "lora.start_from", "" if text == "none" else text if ":" in text else f"loras:{text}"
    if name == "model.placement.context_parallel" and text in ("auto", "-1"):
        return name, "0"
    own = names_on_nodes(LoraConfig).get(name, name)
    return name if own == name else f"lora.{own}", text


def change_run(
    directory: Path, roots: Roots, asked: Sequence[str], *, placement: PlacementConfig | None = None
) -> None:
    """Writes the changes of `--set` into run.json, and the placement, if given.

    If a run with saved steps gets another number of processes, gradient accumulation changes so that a step keeps its
    number of batches. ConfigError if that is impossible, or if saved steps would belong to another job.
    """
    from ..cache import LatentCache
    from ..files import atomic_write_json
    from ..job import batches_a_step, on_other_ranks, read_run, shared_out, with_clip_values
    from ..plan import with_mode
    from ..train import SaveStore

    known, saved = read_run(directory), SaveStore(directory).stated()
    if not asked and placement is None and saved is None:
        return
    begun = known if placement is None else replace(known, model=replace(known.model, placement=placement))
    changed = with_settings(begun, asked)
    batches = 0 if saved is None else batches_a_step(known, saved)
    if batches:
        changed = shared_out(changed, known, batches)
    if changed == known:
        return
    if changed.data == known.data:
        clips = LatentCache(roots.first("cache")).read_set(known.data.fingerprint)
        changed = replace(changed, train=with_clip_values(changed.train, clips, changed.model.placement.batches))
        changed = with_mode(changed, roots, clips)
    elsewhere = replace(changed.model, placement=known.model.placement)
    if elsewhere != known.model or changed.data != known.data:
        raise ConfigError(
            f"The model and the clips of {directory.name} cannot be changed. Create a new run: new NAME --model FILE."
        )
    changed = on_other_ranks(changed, known, batches) or replace(changed, begun_as="")
    if changed.job_id != known.job_id and SaveStore(directory).latest() is not None:
        raise ConfigError(
            f"{directory.name} has saved steps, and {', '.join(asked)[:200]} would make it another job. Create a "
            f"new run: new NAME --like RUN{' --set ...' if asked else ''}."
        )
    atomic_write_json(directory / "run.json", changed.to_dict())


def _place(data: dict[str, Any], name: str) -> tuple[dict[str, Any], str]:
    """Returns the table of `data` that contains the setting, and the key in that table."""
    *path, key = name.split(".")
    tables = [data]
    for part in path:
        tables = [table[part] for table in tables if isinstance(table.get(part), dict)]
    if not path:
        tables = [data[section] for section in _SECTIONS]
    for table in tables:
        if key in table:
            return table, key
    known = sorted({one for table in tables or (data[section] for section in _SECTIONS) for one in table})
    raise ConfigError(f"--set {name[:80]}: there is no such setting.{nearest(key, known)}")


def _value(text: str, before: Any) -> Any:
    """Parses a value in JSON or Python syntax, by the type of `before`."""
    if isinstance(before, str):
        return text
    if isinstance(before, list):
        return _list(text)
    lower = text.lower()
    if lower in ("true", "false", "null", "none"):
        return {"true": True, "false": False}.get(lower)
    try:
        value: Any = json.loads(text)
    except (ValueError, RecursionError):
        return text  # the config refuses the text, with the valid form
    whole = isinstance(before, int) and not isinstance(before, bool)
    return int(value) if whole and isinstance(value, float) and value.is_integer() else value


def _list(text: str) -> list[Any]:
    """Parses a list: JSON, or numbers or words separated by commas, or else lines (expressions contain commas)."""
    try:
        value: Any = json.loads(text)
    except (ValueError, RecursionError):
        value = None
    if isinstance(value, list):
        return cast("list[Any]", value)
    parts = [part.strip() for part in text.split(",") if part.strip()]
    try:
        return [float(part) for part in parts]
    except ValueError:
        return parts if all(map(str.isidentifier, parts)) else [line.strip() for line in text.splitlines()]
