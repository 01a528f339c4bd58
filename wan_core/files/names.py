"""Names that can be a file's on every system, in letters of any script, and which of them some system takes for one."""

from __future__ import annotations

import os
import re
import unicodedata

from ..errors import ConfigError
from ..words import filled

_CHARACTERS, _BYTES = 100, 170
_COMPOSED = 1000
"""characters at most of a name that is composed: of many marks in a row that takes the square of their number"""
_PUNCTUATION = "._ -+()"
_DEVICE_NAMES = re.compile(r"(con|prn|aux|nul|com[\d¹²³]|lpt[\d¹²³]) *(\.|$)", re.IGNORECASE)  # Windows: "NUL .txt" too
_UNSEEN = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u3164\ufe00-\ufe0f\uffa0\U0001bca0-\U0001bca3\U000e0000-\U000e0fff]"
)
"""letters and marks of Unicode that show nothing (Default_Ignorable_Code_Point): two names would look the same"""


def safe_name(name: str, what: str, room: int = 0) -> str:
    """`name`, composed (NFC), if it can be a file name on every system; else ConfigError, which says the rule.

    `what` names the setting in the message; `room` is kept free for what is put behind the name. Letters, marks and
    digits of any script, and a few of ASCII's marks; 1-100 characters; no leading mark, no trailing dot or space, no
    Windows device name (rule S1).
    """
    composed = unicodedata.normalize("NFC", name) if len(name) <= _COMPOSED else name
    problem = _broken_rule(composed, room)
    if problem:
        raise ConfigError(
            "{what} {name} cannot be a file name. {problem}", what=what, name=f"{name[:120]!r}", problem=problem
        )
    return composed


def _broken_rule(name: str, room: int = 0) -> str:
    """Returns the rule that a name breaks; empty where it breaks none."""
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
        return "It must not have two dots beside each other."
    if _DEVICE_NAMES.match(name):
        return "Windows keeps that name for a device. Put another word before it."
    if len(name) > (most := _fitting(name, _CHARACTERS - room, _BYTES - room)):
        return filled("It has {name} characters. Use at most {most}.", name=len(name), most=most)
    try:
        os.fsencode(name)
    except UnicodeEncodeError:  # a C locale, where Python was told to keep to it
        return "This Python writes file names in ASCII alone. Start it with PYTHONUTF8=1, or use ASCII letters."
    return ""


def _is_safe(letter: str) -> bool:
    known = letter.isalnum() or letter in _PUNCTUATION or unicodedata.category(letter)[0] == "M"
    return known and not _UNSEEN.match(letter)


def _fitting(name: str, characters: int, most_bytes: int) -> int:
    """Returns how many of the characters of `name`, or of more like them, a name of these limits may have."""
    per_letter = max(1.0, len(name.encode("utf-8", "surrogatepass")) / max(1, len(name)))
    return min(characters, int(most_bytes / per_letter))


def name_key(name: str) -> str:
    """Returns what is the same for names that some system, or a reader, takes for one: by case or by normal form."""
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", name).casefold())


def with_safe_letters(name: str) -> str:
    """Returns the letters, digits, dots and dashes of `name`, and _ for all else, as a file may be called; empty for
    none.
    """
    composed = unicodedata.normalize("NFC", name[:_COMPOSED]).replace("..", "__")
    kept = "".join(letter if _is_safe(letter) and letter not in " +()" else "_" for letter in composed)
    kept = kept.lstrip("._-")
    kept = kept[: _fitting(kept, 80, 120)].rstrip("._")
    return "" if _broken_rule(kept) else kept
