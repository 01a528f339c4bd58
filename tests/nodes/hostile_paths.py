"""Strings a stranger might put where a run or a sample is named. Every one must be nobody's name."""

from __future__ import annotations

_UP = [
    "..",
    "../",
    "../..",
    "../../..",
    "..\\..",
    "..\\..\\..",
    "....//....//",
    "..;/..",
    "..%2f..",
    "..%5c..",
    "%2e%2e",
]
_TARGETS = ["canary.txt", "wan_trainer/canary.mp4", "_cache/canary.mp4", "etc/passwd", "cat/run.json"]

HOSTILE_PATHS = [
    *_UP,
    *(f"{up}{'' if up.endswith('/') else '/'}{target}" for up in _UP for target in _TARGETS),
    "/", "//", "\\", "/etc/passwd", "//etc/passwd", "/proc/self/environ", "/proc/self/cwd", "/dev/zero",
    "/dev/stdin", "C:\\Windows\\win.ini", "C:/Windows/win.ini", "C:", "C:canary.txt", "\\\\server\\share\\x",
    "\\\\?\\C:\\x", "\\\\.\\NUL", "file:///etc/passwd", "http://127.0.0.1:1/x.mp4", "concat:a|b",
    "subfile,,start,0,end,9,,:/etc/passwd", "pipe:0", "data:text/plain,x", "~", "~/.ssh/id_rsa", "~root",
    "$HOME", "${HOME}", "%TEMP%", "`id`", "$(id)", "; id", "| id", "& id", ".", "...", "cat.", "cat ", " cat",
    "cat/", "cat\\", "./cat", "cat/.", "cat/..", "cat/../cat", "CAT", "Cat", "cat\0", "\0", "cat\0.mp4",
    "cat\n", "cat\r\nX-Injected: 1", "cat\t", "cat\x1b[31m", "cat\x7f", "cat:stream", "cat::$DATA",
    "canary.txt", "canary.mp4", "_cache", "_audits", ".lock", ".hidden", "run.json", "saves", "samples",
    "log.txt", "samples/secret.mp4", "secret", "secret.mp4", "step-000000_p0.mp4", "step-000000_p0.latent",
    "step-000000_p0/..", "index.json", "CON", "nul", "COM1.mp4", "LPT1", "aux.txt", "x" * 101, "x" * 300,
    "x" * 4000, "é", "e\u0301", "名前", "\u202egpj.exe", "\ufeffcat", "c\u200bat", "ｃａｔ", "cat\u2028",
    "\uff0e\uff0e\uff0fcanary.txt", "..\u2215canary.txt", "<img src=x onerror=alert(1)>",
    "\"><script>alert(1)</script>", "{{7*7}}", "${7*7}", "%s%s%n", "%", "%zz", "%00", "*", "?", "cat*", "[c]at",
    "c?t", "None", "null", "true", "0", "-1", "NaN", "[]", "{}", "' OR 1=1 --", "__proto__",
]  # fmt: skip
