"""Removes paths of this machine and secrets from JSON data, such as the graph in workflow.json.

Folder names may contain spaces, so the text after a path up to the end of the line is removed too. Links (http, https)
and relative paths, such as names of models, are kept.
"""

from __future__ import annotations

import functools
import os
import re
from typing import Any

from ...wan_core.export.secrets import SECRET, announces_a_secret, without_secrets
from ...wan_core.words import Sentence, filled

_PATH = "[path removed]"

_RUN = r"""(?:(?!\bhttps?://|\\{1,8}["'])[^\r\n\t"`<>|'\u201d\u00bb]|'(?=\w))*"""
"""remainder of a path that may contain spaces: up to the end of the line, a closing quote, a delimiter or a link"""
_ROOTED = r"|".join([
    r"(?<!\w)/{1,4}(?:home|Users|mnt|media|Volumes|run/media)/{1,4}(?=\S)",
    r"(?<!\w)/root(?![\w-])",
    r"(?<!\w)(?<!\(\?)(?<!\(\?-)[A-Za-z]:[\\/]{1,4}(?=\S)",  # not (?i:\w) of a regular expression
    r"(?<![\w.)\]+*?\\])\\{2,8}(?:\?\\|\w[\w.$-]+(?=[\\/\s\"'<>|]|$))",  # a share, not \\. or \\d+ of one
    r"(?<![\w.:/~+\\])//\w[\w.-]*/(?=\S)",
    r"(?<![A-Za-z0-9])(?!(?:[\w.-]{1,20}\+)?https?:)[A-Za-z][A-Za-z0-9+.-]{1,20}://(?=\S)",  # file, smb, s3
    r"(?<!\w)~[\\/](?=\S)",
    r"""(?:^|(?<=["'`]))/(?=[^/\s"'<>|]+/[^/\s])""",
])  # fmt: skip
"""starts of a path that may contain spaces: home folders, disks, drives, shares, / at the start of a line or quote"""
_ABSOLUTE = r"""(?<![\w.~/+%})])/(?:[^/\s"'<>|]+/)+[^/\s"'<>|]*"""
"""any other absolute path of at least two parts; not the end of a relative path"""
_LINK = r"""https?://(?:(?!{home}|[=:](?:/home/|/Users/|/root\b|/mnt/|/media/|file:|[A-Za-z]:[\\/]))[^\s"'<>`|\\,;])*"""
_SENTENCE = re.compile(r"[ ](?:(?:do|does|is|are|was|has|have|can|could)[ ]not?\b|cannot\b|is[ ]full\b)")
"""words that show that a sentence goes on after a path"""
_CLOSING = ").,;:!?]}"
"""characters after a path that are not part of it"""
_SHORT = 80
_LONGEST = 1_000_000
"""most characters of a searched text; one search of them takes a sixth of a second and holds the GIL"""
_NAMES_OF_NOBODY = frozenset(
    {"root", "user", "users", "home", "ubuntu", "admin", "administrator", "runner", "comfyui", "workspace"}
    | {"models", "input", "output", "wan_trainer"}
)


def scrubbed(graph: Any) -> Any:
    """Returns JSON data with paths and secrets replaced in values and keys, without ComfyUI's key `is_changed`.

    Keys that become equal are numbered. Returns {} for data nested deeper than Python's recursion limit.
    """
    try:
        return _scrubbed(graph, os.path.expanduser("~"))
    except RecursionError:  # no page writes such a graph
        return {}


def _scrubbed(graph: Any, home: str) -> Any:
    if isinstance(graph, list | tuple):
        return [_scrubbed(value, home) for value in graph]
    if not isinstance(graph, dict):
        return _scrubbed_text(graph, home) if isinstance(graph, str) else graph
    clean: dict[str, Any] = {}
    # `numbers` has the last number of each key, so that a million equal keys are not compared pairwise.
    numbers: dict[str, int] = {}
    for key, value in graph.items():
        if key == "is_changed":
            continue
        shown = name = _scrubbed_text(str(key), home)
        while shown in clean:
            numbers[name] = numbers.get(name, 1) + 1
            shown = f"{name} ({numbers[name]})"
        is_secret = isinstance(value, str) and value and announces_a_secret(str(key))
        clean[shown] = SECRET if is_secret else _scrubbed(value, home)
    return clean


def _scrubbed_text(text: str, home: str) -> str:
    if isinstance(text, Sentence):
        return filled(text.template, **{name: _scrubbed(value, home) for name, value in text.values.items()})
    if len(text) > _LONGEST:
        return f"[{len(text):,} characters removed]"
    return (_scrubbed_short if len(text) <= _SHORT else _without_paths)(text, home)


def _without_paths(text: str, home: str) -> str:
    return _paths(home).sub(_without_path, without_secrets(text))


_scrubbed_short = functools.lru_cache(maxsize=4096)(_without_paths)
"""cached, because thousands of runs share a few hundred names and values"""


@functools.lru_cache(maxsize=4)
def _paths(home: str) -> re.Pattern[str]:
    """Returns a pattern for links, which are kept, and for paths, the user's home folder and name."""
    parts = [part for part in re.split(r"[\\/]+", home) if part]
    here = r"[\\/]{1,4}".join(map(re.escape, parts))
    own = rf"(?:(?<!\w)[\\/]{{1,4}})?{here}(?![\w-])" if len(parts) > 1 else r"(?!)"
    name = parts[-1] if parts and len(parts[-1]) > 2 and parts[-1].lower() not in _NAMES_OF_NOBODY else ""
    person = rf"(?<=[\\/~]){re.escape(name)}(?![\w-])" if name else r"(?!)"
    link = _LINK.replace("{home}", rf"[\\/]{here}(?![\w-])" if len(parts) > 1 else r"(?!)")
    return re.compile(
        rf"(?P<link>{link})|(?P<rooted>(?:{own}|{_ROOTED}){_RUN})|(?P<absolute>{_ABSOLUTE})|(?P<person>{person})",
        re.IGNORECASE | re.MULTILINE,
    )


def _without_path(found: re.Match[str]) -> str:
    if found["link"] is not None:
        return found["link"]
    if found["rooted"] is None:
        return _PATH if found["absolute"] is not None else "[name removed]"
    path = found["rooted"]
    last = max(path.rfind("/"), path.rfind("\\")) + 1
    rest = _SENTENCE.search(path, last)
    end = rest.start() if rest else max(last, len(path.rstrip(_CLOSING)))
    return _PATH + path[end:]
