"""Preview prompts: one per line, or JSON with nicknames, each with settings as suffixes.

a red ball rolling --w 480 --h 832 --f 33 --d 7 --n blurry
{"ball": "a red ball rolling", "dog": "[trigger] runs --s 30"}
["a red ball rolling", "[trigger] runs --s 30"]

Suffixes are those of kohya's and musubi's prompt files; nicknames are SimpleTuner's.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

from ..config import Config
from ..errors import ConfigError

TRIGGER = "[trigger]"
_LONGEST_TRIGGER = 1000
_JSON = re.compile(r'\s*(?:\{\s*["}]|\[\s*["\[{\]])')
"""regular expression of the start of JSON, which a line that starts with [trigger] does not match"""
_SUFFIX = re.compile(r"(?:^|\s)--([A-Za-z]\S*)(?=\s|$)")
"""a suffix up to the next blank. So --w480 is an unknown suffix, not a part of the prompt"""
_SUFFIXES = {
    "w": ("width", int), "h": ("height", int), "f": ("num_frames", int), "s": ("steps", int), "d": ("seed", int),
    "l": ("cfg", float), "fs": ("shift", float), "n": ("negative_prompt", str),
}  # fmt: skip
"""suffix -> field and type"""


@dataclass(frozen=True, kw_only=True)
class PreviewPrompt(Config):
    """The settings of one prompt; 0 and None stand for the common setting."""

    name: str = ""
    """the nickname as written by the user"""
    negative_prompt: str | None = None
    width: int = 0
    height: int = 0
    num_frames: int = 0
    steps: int = 0
    cfg: float = 0.0
    shift: float = 0.0
    seed: int | None = None
    negative_key: str = ""
    """cache key of the negative prompt"""

    condition_key: str = ""
    """cache key of the condition at the prompt's size"""
    first_frame_key: str = ""

    def settings(self) -> dict[str, Any]:
        """Returns the prompt's own settings by their names in SampleConfig."""
        given = {name: getattr(self, name) for name in ("width", "height", "num_frames", "steps", "cfg", "shift")}
        found: dict[str, Any] = {name: value for name, value in given.items() if value}
        if self.seed is not None:
            found["seed"] = self.seed
        if self.negative_prompt is not None:
            found |= {"negative_prompt": self.negative_prompt, "negative_key": self.negative_key}
        keys = {"condition_key": self.condition_key, "first_frame_key": self.first_frame_key}
        return found | {name: key for name, key in keys.items() if key}


def read_prompts(written: str, trigger_word: str = "") -> list[tuple[str, PreviewPrompt]]:
    """Returns all prompts in order, with their settings and with the trigger word for `[trigger]`.

    Empty lines and lines that start with # are skipped. Raises ConfigError, which names the line or nickname and a
    valid form.
    """
    if len(trigger_word) > _LONGEST_TRIGGER:
        raise ConfigError(f"trigger_word has {len(trigger_word):,} characters. Use at most {_LONGEST_TRIGGER}.")
    found: list[tuple[str, PreviewPrompt]] = []
    for place, name, prompt in _written(written):
        if TRIGGER in prompt and not trigger_word:
            raise ConfigError(
                "{place}: there is no trigger word for [trigger]. Write it into trigger_word.", place=place
            )
        found.append(_parted(place, name, prompt.replace(TRIGGER, trigger_word)))
    return found


def file_name_of(name: str) -> str:
    """Returns a nickname as part of a file name: letters, digits and dashes, at most 40."""
    return re.sub(r"[^A-Za-z0-9]+", "-", name)[:40].strip("-")


def _written(written: str) -> Iterator[tuple[str, str, str]]:
    """Yields (place, nickname, prompt with suffixes)."""
    written = written.removeprefix("\ufeff")  # a byte order mark, which some editors write
    if not _JSON.match(written):
        for number, line in enumerate(written.splitlines(), 1):
            if line.strip() and not line.lstrip().startswith("#"):
                yield f"prompts, line {number}", "", line.strip()
        return
    try:
        read = json.loads(written, object_pairs_hook=_once_each)
    except ConfigError:
        raise
    except (ValueError, RecursionError) as error:
        line, why = getattr(error, "lineno", 1), getattr(error, "msg", error)
        raise ConfigError(
            f'prompts, line {line}: this is no JSON ({why}). Write {{"nickname": "prompt"}}, or a prompt a line.'
        ) from error
    if isinstance(read, list):
        yield from _listed(cast("list[object]", read))
        return
    for name, prompt in cast("dict[str, object]", read).items():
        place = f'prompts, "{name[:40]}"'
        if not isinstance(prompt, str) or not prompt.strip():
            raise ConfigError(f'{place}: the prompt is missing. Write "{name[:40]}": "what the clip shows".')
        yield place, name, " ".join(prompt.split())


def _listed(prompts: list[object]) -> Iterator[tuple[str, str, str]]:
    for number, prompt in enumerate(prompts, 1):
        place = f"prompts, number {number} of the list"
        if not isinstance(prompt, str) or not prompt.strip():
            what = json.dumps(prompt, ensure_ascii=False)[:40]
            raise ConfigError(f'{place} is {what}, which is not text. Write ["one", "two"], or {{"nickname": "one"}}.')
        yield place, "", " ".join(prompt.split())


def _once_each(pairs: list[tuple[str, object]]) -> dict[str, object]:
    named = dict(pairs)
    for name, _ in pairs:
        if [other for other, _ in pairs].count(name) > 1:
            raise ConfigError(f'prompts, "{name[:40]}": the nickname occurs twice. Rename one of them.')
    return named


def _parted(place: str, name: str, line: str) -> tuple[str, PreviewPrompt]:
    """Returns the prompt without its suffixes, and its settings."""
    marks = list(_SUFFIX.finditer(line))
    prompt = line[: marks[0].start()].strip() if marks else line
    if not prompt:
        raise ConfigError(f"{place}: there is no prompt before {marks[0].group().strip()}. Write it in front.")
    values: dict[str, object] = {"name": name}
    for number, mark in enumerate(marks, 1):
        end = marks[number].start() if number < len(marks) else len(line)
        key, value = mark[1].lower(), line[mark.end() : end].strip()
        if key not in _SUFFIXES:
            known = " ".join(f"--{suffix}" for suffix in _SUFFIXES)
            raise ConfigError(f"{place}: --{mark[1]} is not a setting of a prompt. Use {known}.")
        field, kind = _SUFFIXES[key]
        try:
            values[field] = kind(value)
        except ValueError as error:
            wanted = "a whole number" if kind is int else "a number"
            raise ConfigError(f'{place}: --{key} "{value[:40]}" is not {wanted}. Example: --{key} 33') from error
    return prompt, PreviewPrompt(**values)  # type: ignore[arg-type]
