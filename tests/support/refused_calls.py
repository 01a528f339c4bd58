"""Which calls of the C library are refused, with which errors, and the table of what came of each."""

from __future__ import annotations

import errno
import json
import os
import re
import textwrap
from pathlib import Path

from tests.support.refusing import Outcome

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "use" / "file_systems.md"
KEPT = ROOT / ".cache" / "file_systems.json"
_LONGEST = 170
"""letters of a sentence that the page quotes"""
_NOT_CALLED = "is not called"
_NO_SENTENCE = re.compile("A bug|Traceback|Errno")
_MARKS = ("<!-- begin: calls -->", "<!-- end: calls -->")


def _numbers(names: str) -> tuple[int, ...]:
    return tuple(getattr(errno, name) for name in names.split())


_OF_PATHS = "EACCES ELOOP ENAMETOOLONG ENOENT ENOMEM ENOTDIR EROFS EPERM EIO ENOSYS"
REFUSALS: dict[str, tuple[int, ...]] = {
    # Python asks again after EINTR; EAGAIN is of files that may wait, as these never do.
    "flock": _numbers("ENOTSUP ENOLCK ENOSYS EINVAL EBADF EACCES EWOULDBLOCK"),
    "fsync.folder": _numbers("EINVAL EBADF EROFS ENOTSUP ENOSYS EIO ENOSPC EDQUOT"),
    "fsync.file": _numbers("EINVAL EBADF EROFS ENOTSUP ENOSYS EIO ENOSPC EDQUOT"),
    "fdatasync": _numbers("EINVAL EIO"),
    "mmap": _numbers("ENODEV EACCES EAGAIN EBADF EINVAL ENFILE ENOMEM EOVERFLOW EPERM ETXTBSY"),
    "open.new": _numbers(f"{_OF_PATHS} EEXIST EINVAL ENOSPC EDQUOT EMFILE ENFILE EOPNOTSUPP EBUSY"),
    "open.append": _numbers(f"{_OF_PATHS} EINVAL ENOSPC EDQUOT EOPNOTSUPP ETXTBSY"),
    "open.write": _numbers(f"{_OF_PATHS} EINVAL ENOSPC EDQUOT EOPNOTSUPP"),
    "open.read": _numbers(f"{_OF_PATHS} EINVAL EMFILE EOVERFLOW ENXIO EBUSY"),
    "open.folder": _numbers(f"{_OF_PATHS} EINVAL EMFILE EOPNOTSUPP"),
    "open.nofollow": _numbers("EINVAL ENOSYS EOPNOTSUPP ELOOP"),
    "open.tmpfile": _numbers("EOPNOTSUPP EISDIR EINVAL"),
    "rename": _numbers(f"{_OF_PATHS} EBUSY EDQUOT EEXIST EINVAL EISDIR EMLINK ENOSPC ENOTEMPTY EXDEV ENOTSUP"),
    "mkdir": _numbers(f"{_OF_PATHS} EDQUOT EEXIST EINVAL EMLINK ENOSPC"),
    "unlink": _numbers(f"{_OF_PATHS} EBUSY EISDIR"),
    "rmdir": _numbers(f"{_OF_PATHS} EBUSY EINVAL ENOTEMPTY"),
    "write": _numbers("EBADF EDQUOT EFBIG EINVAL EIO ENOSPC EPERM"),
    "read": _numbers("EBADF EINVAL EIO EISDIR"),
    "pread": _numbers("EINVAL EIO"),
    "lseek": _numbers("EBADF EINVAL ENXIO EOVERFLOW"),
    "close": _numbers("EIO ENOSPC EDQUOT"),
    "stat": _numbers("EACCES EIO ENOMEM EOVERFLOW"),
    "lstat": _numbers("EACCES EIO ENOMEM EOVERFLOW"),
    "fstat": _numbers("EIO ENOMEM EOVERFLOW"),
    "fstatat": _numbers("EACCES EIO ENOMEM EOVERFLOW EINVAL"),
    "statvfs": (0, *_numbers("EACCES EIO ENOSYS EOVERFLOW")),
    "readdir": (0, *_numbers("EIO")),
    "access": _numbers("EACCES EIO EROFS"),
    "utime": (0, *_numbers("EACCES EPERM EROFS ENOSYS ENOTSUP")),
    "chmod": (0, *_numbers("EPERM EROFS EIO ENOSYS ENOTSUP")),
    "link": _numbers("EPERM EXDEV EMLINK EOPNOTSUPP ENOSYS"),
    "symlink": _numbers("EPERM EIO ENOSYS"),
    "ftruncate": _numbers("EPERM EINVAL EFBIG EIO"),
    "fallocate": _numbers("EOPNOTSUPP ENOSYS ENOSPC"),
    "posix_fallocate": _numbers("EOPNOTSUPP EINVAL ENOSPC"),
    "posix_fadvise": _numbers("EINVAL ESPIPE"),
    "copy_file_range": _numbers("EXDEV EOPNOTSUPP EINVAL EIO"),
    "sendfile": _numbers("EINVAL EIO ENOSYS"),
    "splice": _numbers("EINVAL"),
    "xattr": _numbers("ENOTSUP EPERM"),
}
"""by call, the errors that its manual page names, and those that file systems have besides; 0: it succeeds in vain"""


def said_well(outcome: Outcome) -> bool:
    """Returns whether it ended in one sentence, or two, that say what to do; 0 and 1 are no words."""
    said = outcome.said
    vague = said.endswith(" Check the disk and folder.") and "(" not in said  # names no file
    return re.fullmatch(r"[.A-Za-z].* .*\.", said) is not None and not vague and not _NO_SENTENCE.search(said)


class Table:
    """What came of each error of a call. Kept beside those of other calls, which are tried one by one."""

    def __init__(self, call: str) -> None:
        self._rows: dict[str, dict[str, str]] = json.loads(KEPT.read_text("utf-8")) if KEPT.exists() else {}
        self._here = self._rows[call] = {}

    def add(self, number: int, outcome: Outcome, trains: bool) -> None:
        if trains:
            came = "trains, resumes, is deleted" if outcome.calls else _NOT_CALLED
        else:
            said = textwrap.shorten(outcome.said.replace(os.strerror(number), "*error*"), _LONGEST, placeholder=" ...")
            came = f"{', '.join((*outcome.trained, ''))}“{said}”"
        self._here[errno.errorcode.get(number, "in vain")] = came.replace("|", "/")

    def write(self) -> None:
        """Keep it, and put it into the page where that is asked for."""
        KEPT.write_text(json.dumps(self._rows, indent=1), encoding="utf-8")
        if os.environ.get("WAN_TRAINER_UPDATE") and set(REFUSALS) <= set(self._rows):
            before, _, after = PAGE.read_text(encoding="utf-8").partition(_MARKS[0])
            text = f"{before}{_MARKS[0]}\n{self._text()}\n{_MARKS[1]}{after.partition(_MARKS[1])[2]}"
            PAGE.write_text(text, encoding="utf-8")

    def _text(self) -> str:
        lines = ["| call | error | result |", "| --- | --- | --- |"]
        for call in REFUSALS:
            for came in dict.fromkeys(self._rows[call].values()):
                names = ", ".join(name for name, other in self._rows[call].items() if other == came)
                lines.append(f"| `{call}` | {'any' if came == _NOT_CALLED else names} | {came} |")
        return "\n".join(lines)
