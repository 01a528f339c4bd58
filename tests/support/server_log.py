"""What a server wrote to its console, as far as it tells of mistakes of ours."""

from __future__ import annotations

import re
from pathlib import Path

from comfy_server import PACK_NAME

ROOT = Path(__file__).resolve().parents[2]
_WARNING = re.compile(r"^(.*\.py:\d+: \w*Warning: .*)$", re.MULTILINE)
_OURS = (f"/{PACK_NAME}/", *(f"{ROOT.as_posix()}/{folder}/" for folder in ("nodes", "wan_core")))


def warnings_of_ours(log: str) -> list[str]:
    """Returns the lines with which Python shows a warning of a file of this pack, of the server and its workers."""
    return [line for line in _WARNING.findall(log) if any(place in line.replace("\\", "/") for place in _OURS)]


def refuse_warnings(log_file: Path) -> None:
    """Fails where a person would have seen a warning of ours on the console."""
    found = warnings_of_ours(log_file.read_text(encoding="utf-8", errors="replace")) if log_file.is_file() else []
    assert not found, "\n".join(["warnings of ours on the console:", *sorted(set(found))])
