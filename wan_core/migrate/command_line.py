"""Reads the training commands of a text or a script of a shell, without running it.

A variable is replaced if the text assigns it once, at the start of a line, and mentions it nowhere else but where it is
used; other expressions stay as written, and are listed in the account.
"""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..errors import ConfigError
from .musubi import FLAGS, KEYS

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
_WITH_VALUE = {name for key in KEYS if key.at for name in key.names.split()} - FLAGS

_SCRIPT = "wan_train_network"
"""musubi-tuner's training script"""
_IS_SCRIPT = re.compile(rf"(?:.*[/\\.])?{_SCRIPT}(?:\.py)?")
_SAY = frozenset(("echo", "printf", "print", "ls", "cat", "grep", "pgrep", "pkill", "[", "rem", "::", "write-host"))
"""commands that may mention the training script without running it"""
_IN_PROSE = re.compile(rf"`([^`\n]*{_SCRIPT}[^`\n]*)`")
"""a command inside a line of Markdown text"""
_COMMENT = re.compile(r"(?:(?<=\s)|^)#[^\n]*|^[ \t]*(?:rem\b|::)[^\n]*", re.MULTILINE | re.IGNORECASE)
_GOES_ON = re.compile(r"[ \t](?:\\|\^|`)[ \t]*\n")
"""the end of a line that continues: of a shell, of cmd, of PowerShell"""
_OUTPUT = re.compile(r"\$\([^()\n]*\)|`[^`\n]*`")
_LISTED = re.compile(r"\"(\$\{\w+\[@\]\})\"")
_ASSIGNS = re.compile(
    r"(?:^|;[ \t]*)(?:@?set[ \t]+\"(\w+)=([^\"\n]*)\"|@?set[ \t]+(\w+)=([^\n&|)]*)"
    r"|(?:export[ \t]+)?(\w+)=(?:\(([^()]*)\)|\"([^\"\n]*)\"|'([^'\n]*)'|([^\s;&|\"'()]*)))",
    re.MULTILINE | re.IGNORECASE,
)
_USED = re.compile(r"\$\{(\w+)(?:\[@\])?(?::?[-=]([^{}\n]*))?\}|\$(\w+)|%(\w+)%|!(\w+)!")
_DEFAULT = re.compile(r"\$\{(\w+):?-([^{}\n]*)\}")
_JUMPS = re.compile(
    r"^[^\n]*(?<![\w/])(?:goto\b|(?:source|\.|call)[ \t]+(?![^\n]*(?:activate|conda|rc\b)))", re.MULTILINE
)
"""a jump, or another script, which may assign variables; one that activates Python does not"""
_UNSET = re.compile(r"\$[\w({\[:]|%[^%\s]+%|![A-Za-z_]\w*!")
_MOST_LETTERS = 64 << 10


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
    """Returns the different training commands of a text; ConfigError for an unreadable one."""
    text = _GOES_ON.sub(" ", _COMMENT.sub("", text.replace("\r\n", "\n").replace("\r", "\n")))
    text = _LISTED.sub(r"\1", _OUTPUT.sub("${...}", _IN_PROSE.sub(r"\n\1\n", text)))
    values = {} if _JUMPS.search(text) else _values(text)
    is_windows = re.search(r"[A-Za-z]:\\|^@?set[ \t]", text, re.MULTILINE | re.IGNORECASE) is not None
    found: list[Command] = []
    last: Command | None = None
    for line in text.split("\n"):
        if last is not None and line.lstrip().startswith("--"):
            last.cut += line.split()
            continue
        last = None
        if _ASSIGNS.match(line) and _SCRIPT not in _ASSIGNS.sub("", line):
            continue
        line = _filled(line, values)
        try:
            for before, after in _trainings(line, escape="" if is_windows else "\\"):
                last = _command(before, after)
                if last not in found:
                    found.append(last)
        except ValueError as error:
            raise ConfigError(f"{name}: the command cannot be read ({error}). Check its quotes.") from error
    return found


def _values(text: str) -> dict[str, str]:
    """Returns name -> value of the variables that are assigned once and mentioned nowhere else."""
    values: dict[str, str] = {}
    for found in _ASSIGNS.finditer(text):
        name, *said = (group for group in found.groups() if group is not None)
        own = _DEFAULT.fullmatch(said[0])  # RANK=${RANK:-64}
        values[name] = (own[2] if own and own[1] == name else said[0]).replace("\n", " ")
    mentions = Counter(re.findall(r"(?<![\w${%!.-])([A-Za-z_]\w*)(?![\w%!.-])", text))
    return {name: value for name, value in values.items() if mentions[name] == 1}


def _filled(line: str, values: Mapping[str, str]) -> str:
    """Returns a line with the values of variables. ConfigError if they are too long."""
    spent = 0

    def value(found: re.Match[str]) -> str:
        nonlocal spent
        name = next(found[group] for group in (1, 3, 4, 5) if found[group])
        said = values.get(name, found[2] if found[2] is not None and values else found[0])
        spent += len(said)
        if spent > _MOST_LETTERS:
            raise ConfigError(f"the values of the command have more than {_MOST_LETTERS:,} characters. Use fewer.")
        return said

    for _ in range(8):  # values that name other variables
        before, line = line, _USED.sub(value, line)
        if line == before:
            break
    return line


def _trainings(line: str, escape: str, depth: int = 0) -> Iterator[tuple[list[str], list[str]]]:
    """Yields the words before and after the script of each command of a line. ValueError for an open quote."""
    if _SCRIPT not in line:
        return
    lexer = shlex.shlex(line, posix=True, punctuation_chars="();&|<>")
    lexer.whitespace_split, lexer.commenters, lexer.escape = True, "", escape
    part: list[str] = []
    for word in [*lexer, ";"]:
        if word.strip("();&|<>"):
            part.append(word)
            continue
        words = part[:-1] if word.startswith(">") and part and part[-1] in ("1", "2") else part
        part = []
        start = next((index for index, said in enumerate(words) if _IS_SCRIPT.fullmatch(said)), None)
        if not words or words[0].lower().lstrip("!$@") in _SAY:
            continue
        if start is not None and any(said.startswith("-") or _UNSET.search(said) for said in words[start + 1 :]):
            yield words[:start], words[start + 1 :]
        for inside in words if start is None and depth < 2 else ():  # bash -c "...", eval "..."
            yield from _trainings(inside, escape, depth + 1)


def _command(before: Sequence[str], after: Sequence[str]) -> Command:
    launcher = {key: said for key, said in _options(before)[0].items() if key in _OF_LAUNCHER}
    options, loose = _options(after)
    command = Command({}, loose=loose)
    for key, words in [*launcher.items(), *options.items()]:
        if any(_is_unset(key, word) for word in words):
            command.settings.pop(key, None)
            command.unset[key] = " ".join(words)
        elif not words or (key in FLAGS and words == [""]):
            command.settings[key] = True
        else:
            command.settings[key] = words if len(words) > 1 else words[0]
            command.unset.pop(key, None)
    return command


def _is_unset(key: str, word: str) -> bool:
    """Returns whether a word has a part that the text does not define; of a path, only the last part counts."""
    return _UNSET.search(re.split(r"[/\\]", word.rstrip("/\\"))[-1] if key in _PATHS else word) is not None


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
