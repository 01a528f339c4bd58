"""From the path somebody wrote into a list to a file that may be opened (rules S2, S3, S16)."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from ...files import lies_under

__all__ = ["OUTSIDE", "PlaceError", "existing_place", "leads_outside", "spelled_place"]

OUTSIDE = "is outside the allowed folders; move it below input/, or add its folder to user/wan_trainer/roots.json"

_URL = re.compile(r"^[A-Za-z][A-Za-z0-9+.-]+://")


class PlaceError(ValueError):
    """Why a path cannot be used: the rest of a sentence that begins with the path."""


def spelled_place(text: str, folder: Path) -> Path:
    """`text` as a path, relative ones below `folder`; PlaceError for what is no path. Touches no disk."""
    try:
        broken = not text or b"\0" in os.fsencode(text)
    except UnicodeEncodeError:
        broken = True
    if broken or len(text) > 4096:
        raise PlaceError("is not a path")
    if _URL.match(text):
        raise PlaceError("is an address; only files on this machine are read")
    path = folder / text
    if "\\" in text and os.sep == "/" and not os.path.lexists(path):
        path = folder / text.replace("\\", "/")
    return path


def existing_place(text: str, folder: Path, allowed: Sequence[Path]) -> Path:
    """The existing file or folder that `text` names, judged by where links lead; PlaceError says what is wrong."""
    path = spelled_place(text, folder)
    # Whether something exists outside is nobody's business: the refusal comes first.
    if not lies_under(path, allowed):
        raise PlaceError(OUTSIDE)
    if not os.path.exists(path):
        raise PlaceError("does not exist")
    return path


def leads_outside(path: Path, allowed: Sequence[Path]) -> bool:
    """True for a link that leads neither below its own folder nor below `allowed`. Other files lie where they lie."""
    return os.path.islink(path) and not lies_under(path, (path.parent, *allowed))
