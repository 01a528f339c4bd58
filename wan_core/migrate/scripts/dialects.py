"""Grammars of a shell, cmd and PowerShell, as far as a training command needs them."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass

_MOST_DOCUMENTS = 100


@dataclass(frozen=True)
class Dialect:
    """Patterns of a script language."""

    piece: re.Pattern[str]
    """groups: blank (comments and redirections too), end of a command, unknown, and the parts of a word: literal,
    quoted, variable, plain"""
    variable: re.Pattern[str]
    """a variable in a quoted or plain part"""
    assigns: re.Pattern[str] | None = None
    """an assignment, with groups name, adds and value; without a group value, the value follows. None: variables are
    not replaced"""

    changes: tuple[re.Pattern[str], ...] = ()
    """all texts that may assign to the names in their groups"""

    folds: bool = False
    """True if names ignore case"""


POSIX = Dialect(
    piece=re.compile(
        r"(?P<blank>(?:[ \t]|\\[ \t]*\n)+|(?<![^\s;&|()])#[^\n]*"
        r"|\d?(?:<<<|<<-?|<&|<>|<|>>|>\||>&|&>>|&>|>)[ \t]*[^\s;&|()<>]*)"
        r"|(?P<end>&&|\|\||;;|[;&|()\n])|'(?P<literal>[^']*)'|\"(?P<quoted>(?:[^\"\\]|\\[\s\S])*)\""
        r"|(?P<unknown>\$\((?:[^()\n]|\((?:[^()\n]|\([^()\n]*\))*\))*\)|\$\[[^\]\n]*\]|`[^`\n]*`)"
        r"|(?P<variable>\$\{(?:[^{}\n]|\$\{[^{}\n]*\})*\}|\$(?:[A-Za-z_]\w*|[0-9@*#?$!-]))"
        r"|(?P<plain>(?:\\[^\n]|[^\s'\"\\$`;&|()<>])+|[\\$<>`\r\f\v])"
    ),
    variable=re.compile(
        r"\\[$`\"\\\n]|\$\{(?:[^{}\n]|\$\{[^{}\n]*\})*\}|\$(?:[A-Za-z_]\w*|[0-9@*#?$!-]|\([^()\n]*\))|`[^`\n]*`"
    ),
    assigns=re.compile(
        r"(?:(?:export|declare|readonly|typeset)[ \t]+(?:-\w+[ \t]+)*)?(?P<name>[A-Za-z_]\w*)(?P<adds>\+?)="
    ),
    changes=(
        re.compile(r"(?:^|[;&|({\s])(?<!\blocal[ \t])([A-Za-z_]\w*)(?:\[[^\]\s]{0,80}\])?\+?=", re.MULTILINE),
        re.compile(r"\$\{([A-Za-z_]\w*):?="),
        re.compile(r"\b(?:for|select|unset|printf[ \t]+-v)[ \t]+(\w+)"),
        re.compile(r"\b(?:read|mapfile|readarray|getopts|let|unset)[ \t]([^\n;|&]*)"),
        re.compile(r"\b(\w{1,80})[ \t]{0,20}(?:\+\+|--(?=[ \t)])|(?:[-*/%&|^]|<<|>>)=)"),
    ),
)
CMD = Dialect(
    piece=re.compile(
        r"(?P<blank>(?:[ \t]|\^[ \t]*\n)+|\d?>{1,2}(?:&\d|[ \t]*[^\s&|()]*)|<[ \t]*[^\s&|()]*)|(?P<end>[&|()\n])"
        r"|(?P<literal>(?!))|\"(?P<quoted>[^\"\n]*)\"|(?P<unknown>(?!))|(?P<variable>(?!))"
        r"|(?P<plain>(?:\^[^\n]|[^\s\"&|<>^()])+|[\^\r\f\v])"
    ),
    variable=re.compile(r"\^.|%%~?[A-Za-z]+|%~[A-Za-z$:]*[0-9*]|%[0-9*]|%[^%\s=:!]+(?::[^%\n]*)?%|![^!\s=:]+!"),
    assigns=re.compile(
        r"@?set[ \t]+(?!/)(?:\"(?P<name>[^=\"\n]+)=(?P<value>[^\"\n]*)\""
        r"|(?P<bare>[^=\"&|<>\n]+)=(?P<text>[^&|\n)]*))",
        re.IGNORECASE,
    ),
    changes=(re.compile(r"\bset[ \t]+(?:/[ap][ \t]+)?\"?([^=\"&|<>\n]{1,80}?)[-+*/%]?=", re.IGNORECASE),),
    folds=True,
)
POWERSHELL = Dialect(
    piece=re.compile(
        r"(?P<blank>(?:[ \t]|`[ \t]*\n)+|\#[^\n]*)|(?P<end>[*\d]?>+(?:&\d)?|[;|{}()\n])|'(?P<literal>[^'\n]*)'"
        r"|\"(?P<quoted>[^\"\n]*)\"|(?P<unknown>(?!))|(?P<variable>(?!))|(?P<plain>(?:`[^\n]|[^\s'\"`;|{}()>])+|['\"`\r\f\v])"
    ),
    variable=re.compile(r"\$(?:\{[^}]*\}|[\w:.]+)|^@\w+"),
)

_DOCUMENT = re.compile(r"<<-?[ \t]*['\"\\]?([^\s;&|<>()'\"]+)")
_FALLBACK = re.compile(
    r"\bif[ \t]+(?:not[ \t]+defined[ \t]+(?P<one>\w+)|\"?%(?P<two>\w+)%\"?[ \t]{0,20}==[ \t]{0,20}\"\")[ \t(]{0,20}"
    r"set[ \t]+\"?(?P<name>\w+)=(?P<value>[^\"&|<>\n)]*)\"?\)?",
    re.IGNORECASE,
)
"""an assignment of a default, if the caller has not set the variable"""
_LEAPS = re.compile(r"\bgoto[ \t:]{0,20}(?!eof)[\w.-]|\bcall[ \t]+:(?!eof)", re.IGNORECASE)


def prepared(text: str, dialect: Dialect) -> tuple[str, bool]:
    """Returns a script without comments and here-documents, and whether it has no jumps (`goto`)."""
    if dialect is POSIX:
        return _without_documents(text), True
    if dialect is POWERSHELL:
        return text, False
    leaps = _LEAPS.search(text) is not None
    text = re.sub(r"^[ \t@]*(?:rem\b|:)[^\n]*", "", text, flags=re.MULTILINE | re.IGNORECASE)
    counts = Counter(said.strip().lower() for said in CMD.changes[0].findall(text))

    def plain(found: re.Match[str]) -> str:
        name = found["name"].lower()
        is_fallback = name == (found["one"] or found["two"]).lower() and counts[name] == 1
        return f'set "{name}={found["value"]}"' if is_fallback else found[0]

    return _FALLBACK.sub(plain, text), not leaps


def _without_documents(text: str) -> str:
    """Removes comment lines and here-documents."""
    lines, kept, at, documents = text.split("\n"), list[str](), 0, 0
    while at < len(lines):
        line, at = lines[at], at + 1
        if line.lstrip().startswith("#"):
            kept.append("#")
            continue
        kept.append(line)
        found = _DOCUMENT.search(line) if "<<" in line and "<<<" not in line else None
        if found and documents < _MOST_DOCUMENTS:
            documents += 1
            at = next((n + 1 for n in range(at, len(lines)) if lines[n].strip() == found[1]), at)
    return "\n".join(kept)
