"""Detects secrets in texts and removes them (rule S13).

Removing harmless text is preferred over keeping a secret. Tokens are recognised by their makers' prefixes, webhooks by
their address, other secrets by the key or word before them.
"""

from __future__ import annotations

import base64
import re
from urllib.parse import unquote

SECRET = "[secret removed]"

_SLASH = r"\\{0,4}/"
"""a slash, which JSON may escape with a backslash, and nested JSON with several"""
_SITE = rf"https?:(?:{_SLASH}){{2}}"
_MAKERS = (
    r"hf_|api_org_|gh[pousr]_|github_pat_|gl(?:pat|dt|rt|cbt|ptt|ft|soat|imt|agent|oas)-|sk-|gsk_|xox[abcdeprs]-"
    r"|xoxe\.xox[bp]-|xapp-|r8_|npm_|wandb_|pypi-|do[opr]_v1_|nvapi-|tskey-|civitai_|[rs]k_(?:live|test)_|whsec_|rpa_"
    r"|syt_|ya29\.|GOCSPX-|shp(?:at|ss|ca|pa)_|lin_api_|tgp_v1_|nfp_|sbp_|hv[sbr]\.|dp\.(?:st|pt|ct|sa)\.|dckr_pat_"
    r"|fm[12]_|AGE-SECRET-KEY-1"
)
"""prefixes of tokens"""
_TOKEN = re.compile(
    rf"(?<![A-Za-z0-9])(?:{_MAKERS})"
    # Programs that wrap lines break long tokens: the part in the next line goes too.
    r"(?:[A-Za-z0-9_-]{16,}(?:\r?\n(?=[A-Za-z_-]{0,40}[0-9])[A-Za-z0-9_-]{6,})?"
    r"|[A-Za-z0-9_-]{3,15}\r?\n(?=[A-Za-z_-]{0,40}[0-9])[A-Za-z0-9_-]{12,})"
    r"|(?<![A-Za-z0-9])(?:fw_[A-Za-z0-9]{20,}|ntn_[A-Za-z0-9]{30,}|(?:xai|pplx)-[A-Za-z0-9]{30,}|tk_[A-Za-z0-9]{29})"
    r"|(?<![A-Za-z0-9])AIza[A-Za-z0-9_-]{30,}"
    r"|(?<![A-Za-z0-9])A[KS]IA[0-9A-Z]{16}(?![A-Za-z0-9])"
    r"|(?<![A-Za-z0-9])eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]+"
    r"|(?<![A-Za-z0-9])SG\.[A-Za-z0-9_-]{16,}\.[A-Za-z0-9_-]{16,}"
    r"|(?<![A-Za-z0-9])(?:SK|key-|dapi)[0-9a-f]{32}(?![0-9A-Za-z])"
    r"|(?<![A-Za-z0-9.])o\.[A-Za-z0-9]{32}(?![A-Za-z0-9])"
    rf"|(?<![A-Za-z0-9])1(?:{_SLASH}){{2}}0[A-Za-z0-9_-]{{30,}}"  # Google refresh tokens
    r"|(?<![0-9])[0-9]{6,12}:[A-Za-z0-9_-]{33,37}(?![A-Za-z0-9_-])"  # Telegram bots
    r"|(?<![A-Za-z0-9_-])[MNO][A-Za-z0-9_-]{22,27}\.[A-Za-z0-9_-]{6}\.[A-Za-z0-9_-]{27,40}"  # Discord tokens
    r"|(?i:\bbearer\s+)[A-Za-z0-9._~+/-]{16,}"
    r"|-----BEGIN [A-Z ]{0,30}PRIVATE KEY-----[A-Za-z0-9+/=\s\\]{0,20000}(?:-----END [A-Z ]{0,30}PRIVATE KEY-----)?"
)
_WANDB = re.compile(
    r"(?P<said>wandb(?:\.ai)?\W{0,3}(?:(?:api[ _-]?)?(?:key|token)|login|relogin)?\W{0,5})[0-9a-f]{40}(?![0-9a-f])",
    re.IGNORECASE,
)
"""older W&B keys, which look like a checksum, so the word before them is needed"""
_INNER = rf"(?::\d{{1,5}})?{_SLASH}(?:[\w.-]{{1,60}}{_SLASH}){{0,4}}"
_HOOK = re.compile(
    rf"(?P<place>{_SITE}(?:hooks?\.[\w.-]{{1,100}}{_SLASH}|[\w.-]{{0,100}}webhook[\w.-]{{0,100}}{_SLASH}"
    rf"|[\w.-]{{1,100}}{_INNER}(?:webhooks?{_SLASH}|hooks{_SLASH}(?=[A-Za-z0-9]{{17}}))"
    rf"|open\.(?:feishu|larksuite)\.[a-z]{{2,10}}{_INNER}hook{_SLASH}"
    rf"|maker\.ifttt\.com{_INNER}key{_SLASH}|(?=[\w-]{{1,63}}\.m\.pipedream\.net)"
    rf"|(?:[\w-]{{1,60}}\.)?ntfy\.[\w.-]{{1,60}}{_SLASH}"
    rf"|(?:api\.(?:pushover\.net|day\.app)|hc-ping\.com|sctapi\.ftqq\.com){_SLASH})"
    rf"|(?<![\w./-])(?:[\w-]{{1,60}}\.)?discord(?:app)?\.com{_SLASH}api{_SLASH}(?:v\d{{1,3}}{_SLASH})?webhooks{_SLASH})"
    # The end may be in the next line.
    r"""(?!\[secret)(?:[^\s"'<>`\\,;]|\\{1,4}(?:/|u0026)|(?<=&amp);)+(?:\r?\n(?=\S{0,60}[0-9/])[^\s"'<>`\\,;]{8,})?""",
    re.IGNORECASE,
)
"""webhook addresses: the path is the password"""
_BOT = re.compile(
    rf"""(?P<place>{_SLASH}bot)\d{{5,12}}(?::|%3A)[^\s/\\"'<>`?#]{{8,}}(?:\r?\n[A-Za-z0-9_-]{{1,40}}(?={_SLASH}))?""",
    re.IGNORECASE,
)
"""Telegram bot API addresses"""
_ANNOUNCED = (
    r"(?:token|(?:api|access|account|app|auth|gotify|master|private|pushover|secret|signing|user|wandb|civitai)[_-]?key"
    r"|secret|password|passwd|passphrase|authorization"
    r"|credentials?"
    r"|webhook(?:[_-]?url)?)(?:[_-][A-Za-z0-9_-]{0,40})?"
)
_NAME = re.compile(rf"[\w-]{{0,60}}{_ANNOUNCED}", re.IGNORECASE)
_GIVEN = re.compile(
    rf"""(?P<name>(?:[?&]|&amp;|\\{{1,4}}u0026)(?:[\w-]{{0,60}}{_ANNOUNCED}|key|sig|(?:[\w-]{{0,60}})signature)=)(?!\[secret)"""
    r"""[^\s&#"'<>)]+"""  # in a link, whose other parts are kept
    rf"""|(?P<word>{_ANNOUNCED}\\*["']?\s{{0,4}}[=:]\s{{0,4}})(?!\[secret)"""
    r"""(?:(?:bearer|basic|token)\s+(?!\[secret))?(?:\\*"[^"\n]*"|\\*'[^'\n]*'|\S+)""",
    re.IGNORECASE,
)
_USER_INFO = re.compile(rf"""(?P<place>:(?:{_SLASH}){{2}})(?:[^\s/\\"'<>`]|\\(?!/))+@""")
_LOGIN = re.compile(r"""(?P<place>(?<!\S)(?:-u|--user)[= ]\s{0,4}["']?)(?!\[secret)[^\s:"']{1,100}:[^\s"']{1,200}""")
"""the login in a curl command"""
_BASIC = re.compile(r"(?P<said>\bbasic\s+)(?P<given>[A-Za-z0-9+/_-]{8,}={0,2})(?![A-Za-z0-9+/=_-])", re.IGNORECASE)
_WORD = re.compile(r"""[^\s"'<>`]+""")
_ESCAPED = re.compile(r"%[0-9A-Fa-f]{2}")
_MOST_DECODED = 3
"""largest number of times that a link inside a link is decoded"""


def without_secrets(text: str) -> str:
    """Returns `text` with every secret replaced, also in links with %XX; idempotent."""
    text = _BASIC.sub(_without_login, _as_written(text))
    return _WORD.sub(lambda found: _without_escaped(found[0]), text) if _ESCAPED.search(text) else text


def _without_login(found: re.Match[str]) -> str:
    """Removes the base64 "name:password" of a `Basic` header."""
    given = found["given"].rstrip("=").translate(str.maketrans("-_", "+/"))
    try:
        login = base64.b64decode(given + "=" * (-len(given) % 4)).decode()
    except ValueError:
        return found[0]
    return found["said"] + SECRET if ":" in login and login.isprintable() else found[0]


def _without_escaped(word: str) -> str:
    """Returns a word without the parts of its link that decode to a secret."""
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
    for address in (_HOOK, _BOT):
        text = address.sub(lambda found: found["place"] + SECRET, text)
    text = _WANDB.sub(lambda found: found["said"] + SECRET, text)
    text = _USER_INFO.sub(lambda found: f"{found['place']}{SECRET}@", _TOKEN.sub(SECRET, text))
    text = _LOGIN.sub(lambda found: found["place"] + SECRET, text)
    return _GIVEN.sub(lambda found: (found["name"] or found["word"]) + SECRET, text)


def announces_a_secret(key: str) -> bool:
    """Returns whether the value of `key` is a secret by its key alone."""
    return _NAME.fullmatch(key) is not None
