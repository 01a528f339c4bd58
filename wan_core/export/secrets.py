"""Secrets in texts: how one is told, and the text without it (rule S13).

A text is damaged rather than a secret told. Tokens are known by how their makers begin them, hooks by their address,
and everything else by the word that announces it.
"""

from __future__ import annotations

import base64
import re
from urllib.parse import unquote

__all__ = ["SECRET", "announces_a_secret", "without_secrets"]

SECRET = "[secret removed]"

_TOKEN = re.compile(
    r"(?<![A-Za-z0-9])(?:hf_|gh[pousr]_|github_pat_|glpat-|sk-|gsk_|xox[abeprs]-|xapp-|r8_|npm_|wandb_|pypi-|dop_v1_"
    r"|nvapi-|tskey-|civitai_|[rs]k_(?:live|test)_|whsec_|rpa_)[A-Za-z0-9_-]{16,}"
    r"|(?<![A-Za-z0-9])AIza[A-Za-z0-9_-]{30,}"
    r"|(?<![A-Za-z0-9])A[KS]IA[0-9A-Z]{16}(?![A-Za-z0-9])"
    r"|(?<![A-Za-z0-9])eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]+"
    r"|(?<![A-Za-z0-9])SG\.[A-Za-z0-9_-]{16,}\.[A-Za-z0-9_-]{16,}"
    r"|(?<![0-9])[0-9]{8,10}:AA[A-Za-z0-9_-]{33}(?![A-Za-z0-9])"  # a bot of Telegram
    r"|(?i:\bbearer\s+)[A-Za-z0-9._~+/-]{16,}"
    r"|-----BEGIN [A-Z ]{0,30}PRIVATE KEY-----[A-Za-z0-9+/=\s\\]{0,20000}(?:-----END [A-Z ]{0,30}PRIVATE KEY-----)?"
)
_WANDB = re.compile(
    r"(?P<said>wandb(?:\.ai)?\W{0,3}(?:(?:api[ _-]?)?(?:key|token)|login|relogin)?\W{0,5})[0-9a-f]{40}(?![0-9a-f])",
    re.IGNORECASE,
)
"""its older keys look like any checksum"""
_HOOK = re.compile(
    r"""(?P<place>https?://(?:hooks\.[\w.-]+/|(?=[\w.-]*webhook)[\w.-]+/|[\w.-]+/(?:[\w.-]+/){0,4}webhooks?/"""
    r"""|open\.(?:feishu|larksuite)\.[a-z]+/(?:[\w.-]+/){0,4}hook/|maker\.ifttt\.com/(?:[\w.-]+/){0,4}key/)"""
    r"""|(?<![\w./-])(?:[\w-]+\.)?discord(?:app)?\.com/api/(?:v\d+/)?webhooks/)"""
    r"""(?!\[secret)[^\s"'<>`\\,;]+""",
    re.IGNORECASE,
)
"""an address whoever knows it may write to: its path is the password"""
_ANNOUNCED = (
    r"(?:token|(?:api|access|private|secret|wandb|civitai)[_-]?key|secret|password|passwd|passphrase|authorization"
    r"|credentials?"
    r"|webhook(?:[_-]?url)?)(?:[_-][A-Za-z0-9_-]{0,40})?"
)
_NAME = re.compile(rf"[\w-]{{0,60}}{_ANNOUNCED}", re.IGNORECASE)
_GIVEN = re.compile(
    rf"""(?P<name>[?&](?:[\w-]{{0,60}}{_ANNOUNCED}|key|sig|(?:[\w-]{{0,60}})signature)=)(?!\[secret)"""
    r"""[^\s&#"'<>)]+"""  # of a link, whose rest stays
    rf"""|(?P<word>{_ANNOUNCED}\\*["']?\s{{0,4}}[=:]\s{{0,4}})(?!\[secret)"""
    r"""(?:(?:bearer|basic|token)\s+(?!\[secret))?(?:\\*"[^"\n]*"|\\*'[^'\n]*'|\S+)""",
    re.IGNORECASE,
)
_USER_INFO = re.compile(r"""(?<=://)[^\s/"'<>`]+@""")


_BASIC = re.compile(r"(?P<said>\bbasic\s+)(?P<given>[A-Za-z0-9+/_-]{8,}={0,2})(?![A-Za-z0-9+/=_-])", re.IGNORECASE)
_WORD = re.compile(r"""[^\s"'<>`]+""")
_ESCAPED = re.compile(r"%[0-9A-Fa-f]{2}")
_MOST_DECODED = 3
"""times: a link inside of a link inside of a link"""


def without_secrets(text: str) -> str:
    """Returns `text` with every secret replaced, those in links written with %XX too; twice is as once."""
    text = _BASIC.sub(_without_login, _as_written(text))
    return _WORD.sub(lambda found: _without_escaped(found[0]), text) if _ESCAPED.search(text) else text


def _without_login(found: re.Match[str]) -> str:
    """Takes out what `Basic` announces where it is a login: a name, a colon and a password in base64."""
    given = found["given"].rstrip("=").translate(str.maketrans("-_", "+/"))
    try:
        login = base64.b64decode(given + "=" * (-len(given) % 4)).decode()
    except ValueError:
        return found[0]
    return found["said"] + SECRET if ":" in login and login.isprintable() else found[0]


def _without_escaped(word: str) -> str:
    """Returns a word without those parts of its link that hold a secret once they are decoded."""
    if not _ESCAPED.search(word):
        return word
    return "".join(_part_without_secret(part) for part in re.split(r"([?&#;])", word))


def _part_without_secret(part: str) -> str:
    read = part
    for _ in range(_MOST_DECODED):
        if (read := unquote(read)) != _as_written(read):
            name, equals, _value = part.partition("=")
            return f"{name}={SECRET}" if equals and not _ESCAPED.search(unquote(name)) else SECRET
    return part


def _as_written(text: str) -> str:
    text = _HOOK.sub(lambda found: found["place"] + SECRET, text)
    text = _WANDB.sub(lambda found: found["said"] + SECRET, text)
    text = _USER_INFO.sub(f"{SECRET}@", _TOKEN.sub(SECRET, text))
    return _GIVEN.sub(lambda found: (found["name"] or found["word"]) + SECRET, text)


def announces_a_secret(key: str) -> bool:
    """Returns whether what stands under `key` is one, whatever it looks like."""
    return _NAME.fullmatch(key) is not None
