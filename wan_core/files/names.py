"""File names that are valid on every system, and a key that equivalent names share."""

from __future__ import annotations

import os
import re
import unicodedata

from ..errors import ConfigError
from ..words import filled

_CHARACTERS, _BYTES = 100, 170
_COMPOSED = 1000
"""longest name that is normalised: NFC takes quadratic time for a row of combining marks"""
_PUNCTUATION = "._ -+()"
# Windows reserves "NUL .txt" as well
_DEVICE_NAMES = re.compile(r"(con|prn|aux|nul|com[\d¹²³]|lpt[\d¹²³]) *(\.|$)", re.IGNORECASE)
_UNSEEN = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u3164\ufe00-\ufe0f\uffa0\U0001bca0-\U0001bca3\U000e0000-\U000e0fff]"
)
"""invisible code points (Default_Ignorable_Code_Point), which would make different names look equal"""


def safe_name(name: str, what: str, room: int = 0) -> str:
    """Returns `name` in NFC if it is a valid file name on every system; else ConfigError with the rule (rule S1).

    `what`: name of the setting, for the message; `room`: characters that are reserved for a suffix. Allowed are 1 to
    100 letters, marks and digits of any script and some ASCII punctuation, without a leading mark, a trailing dot or
    space, or the name of a Windows device.
    """
    composed = unicodedata.normalize("NFC", name) if len(name) <= _COMPOSED else name
    problem = _broken_rule(composed, room)
    if problem:
        raise ConfigError(
            "{what} {name} cannot be a file name. {problem}", what=what, name=f"{name[:120]!r}", problem=problem
        )
    return composed


def _broken_rule(name: str, room: int = 0) -> str:
    strange = next((letter for letter in name if not _is_safe(letter)), "")
    if not name:
        return "Write one with a letter or digit in it."
    if strange:
        shown = ascii(strange) if _UNSEEN.match(strange) else repr(strange)
        return filled(
            "It must not have {shown} in it. Use letters and digits of any script, dots, dashes, "
            "underscores, spaces, + or ( ).",
            shown=shown,
        )
    if not name[0].isalnum():
        return "It must start with a letter or digit."
    if name[-1] in ". ":
        return "It must not end with a dot or space, which Windows drops."
    if ".." in name:
        return "It must not have two dots in a row."
    if _DEVICE_NAMES.match(name):
        return "Windows keeps that name for a device. Put another word before it."
    if len(name) > (most := _fitting(name, _CHARACTERS - room, _BYTES - room)):
        return filled("It has {name} characters. Use at most {most}.", name=len(name), most=most)
    try:
        os.fsencode(name)
    except UnicodeEncodeError:  # in the C locale without UTF-8 mode
        return "This Python writes file names in ASCII alone. Start it with PYTHONUTF8=1, or use ASCII letters."
    return ""


def _is_safe(letter: str) -> bool:
    known = letter.isalnum() or letter in _PUNCTUATION or unicodedata.category(letter)[0] == "M"
    return known and not _UNSEEN.match(letter)


def _fitting(name: str, characters: int, most_bytes: int) -> int:
    per_letter = max(1.0, len(name.encode("utf-8", "surrogatepass")) / max(1, len(name)))
    return min(characters, int(most_bytes / per_letter))


def name_key(name: str) -> str:
    """Returns a key that is equal for names differing only in case or Unicode normal form."""
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", name).casefold())


def with_safe_letters(name: str) -> str:
    """Returns `name` with _ for each character but letters, digits, dots and dashes; "" if no valid name is left."""
    composed = unicodedata.normalize("NFC", name[:_COMPOSED]).replace("..", "__")
    kept = "".join(letter if _is_safe(letter) and letter not in " +()" else "_" for letter in composed)
    kept = kept.lstrip("._-")
    kept = kept[: _fitting(kept, 80, 120)].rstrip("._")
    return "" if _broken_rule(kept) else kept
