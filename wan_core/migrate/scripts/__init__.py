"""Finds training commands in shell, cmd, PowerShell or Python scripts, without running them.

Variables with literal values are replaced, except in PowerShell; other expressions stay as written, and are listed in
the account.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from ...errors import ConfigError
from .commands import commands_in
from .dialects import CMD, POSIX, POWERSHELL
from .marks import SCRIPT, UnbalancedError, as_written, ends_unset, is_unset, without_marks
from .python_file import python_commands

__all__ = ["Training", "as_written", "ends_unset", "is_unset", "trainings"]

_IS_SCRIPT = re.compile(rf"(?:.*[/\\.\ue001])?{SCRIPT}(?:\.py)?")
_SAY = frozenset(
    (
        *("echo", "printf", "print", "cat", "ls", "dir", "test", "[", "[[", "grep", "rg", "find", "cp", "mv", "rm"),
        *("chmod", "touch", "nano", "vim", "vi", "sed", "awk", "ps", "pgrep", "pkill", "kill", "wget", "curl", "git"),
        *("tail", "head", "less", "more", "log", "info", "die", "warn", "title", "rem", "if", "exist", "type"),
        *("write-host", "write-output", "pip", "dos2unix", "source", ".", "call:echo", "exit", "return"),
    )
)
"""commands that may mention the training script without running it"""
_DIALECTS = {"posix": POSIX, "cmd": CMD, "powershell": POWERSHELL}
_ENDINGS = {".bat": "cmd", ".cmd": "cmd", ".ps1": "powershell", ".psm1": "powershell", ".py": "python"}
_IN_PROSE = re.compile(rf"`([^`\n]*{SCRIPT}[^`\n]*)`")
"""a command inside a line of Markdown text"""
_DEEPEST = 2


@dataclass
class Training:
    before: list[str]
    """words before the script"""

    after: list[str]
    """words after the script"""

    behind: list[str] = field(default_factory=list[str])
    """options found after the end of the command, for example after a comment within the command"""


def trainings(name: str, text: str) -> list[Training]:
    """Returns the training commands in order; ConfigError for an unreadable one."""
    text = without_marks(text).replace("\r\n", "\n").replace("\r", "\n")
    dialect = _dialect(name, text)
    if dialect == "posix" and PurePosixPath(name).suffix.lower() in (".txt", ".md", ""):
        text = _IN_PROSE.sub(r"\n\1\n", text)
    return _found(_commands(name, text, dialect), name)


def _found(commands: list[list[str]], name: str, depth: int = 0) -> list[Training]:
    found: list[Training] = []
    last: Training | None = None
    for words in commands:
        training = _training(words)
        if training is not None:
            found.append(training)
        elif last is not None and words[0].startswith("--"):
            last.behind += words
            continue
        elif depth < _DEEPEST and words[0].lower() not in _SAY:
            inside = [word for word in words if SCRIPT in word and " " in word.strip()]
            for word in inside[:4]:  # bash -c "...", eval "$COMMAND"
                text = " ".join(words) if words[0] == "eval" else word
                found += _found(_commands(name, text.removeprefix("eval "), "posix"), name, depth + 1)
        last = training
    return found


def _training(words: list[str]) -> Training | None:
    if not words or words[0].lower().lstrip("@") in _SAY or words[0].startswith(("#", "::")):
        return None
    words = [words[0].lstrip("!$@"), *words[1:]]
    start = next((index for index, word in enumerate(words) if _IS_SCRIPT.fullmatch(word)), None)
    if start is None:
        return None
    after = words[start + 1 :]
    if not any(word.startswith("-") or is_unset(word) for word in after):
        return None
    return Training(words[:start], after)


def _dialect(name: str, text: str) -> str:
    """Returns the language of a script by its suffix; of a text file by its line continuations."""
    ending = PurePosixPath(name).suffix.lower()
    if ending == ".py" and re.search(r"^\s*[!%]\s*\w", text, re.MULTILINE):
        return "posix"  # notebook commands start with an exclamation mark
    if ending in _ENDINGS:
        return _ENDINGS[ending]
    if ending in (".sh", ".bash", ".zsh", ".command") or text.startswith("#!"):
        return "posix"
    if re.search(r"\^[ \t]*\n|^@?set \"?\w+=|^@?rem\s", text, re.MULTILINE | re.IGNORECASE):
        return "cmd"
    if re.search(r"[^`\s][ \t]+`[ \t]*\n|^\$\w+[ \t]*=", text, re.MULTILINE):
        return "powershell"
    if SCRIPT in text and re.search(r"[A-Za-z]:\\", text) and not re.search(r"\\[ \t]*\n", text):
        return "cmd"
    return "posix"


def _commands(name: str, text: str, dialect: str) -> list[list[str]]:
    try:
        if dialect == "python":
            return python_commands(name, text)
        return commands_in(text, _DIALECTS[dialect])
    except UnbalancedError:
        return _by_lines(name, text, dialect)
    except ConfigError as error:
        raise ConfigError(f"{name}: {error}" if not str(error).startswith(name) else str(error)) from error


_GOES_ON = {
    "posix": re.compile(r"\\[ \t]*\n"),
    "cmd": re.compile(r"\^[ \t]*\n"),
    "powershell": re.compile(r"`[ \t]*\n"),
}


def _by_lines(name: str, text: str, dialect: str) -> list[list[str]]:
    """Reads a text line by line, for example notes around a command; skips lines with unbalanced quotes."""
    found = list[list[str]]()
    for line in _GOES_ON[dialect].sub(" ", text).split("\n"):
        try:
            found += commands_in(line, _DIALECTS[dialect])
        except UnbalancedError as error:
            if re.search(rf"{SCRIPT}\S*\s+-", line) and not line.lstrip().startswith(("#", "rem ", "::")):
                raise ConfigError(f"{name}: the command cannot be read ({error}). Check its quotes.") from error
    return found
