"""Files, safely: names that cannot escape, confined paths, regular files only, commits whole or absent.

Owns every write that must survive a crash. Never writes to a path that was opened for reading: a new file is staged
beside the target, synced, and renamed over it (safetensors' own `save_file` does not sync; some versions tear).
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import re
import secrets
import shutil
import stat
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from .errors import ConfigError, WanTrainerError

__all__ = [
    "DISK_FULL",
    "FileError",
    "Roots",
    "atomic_write",
    "atomic_write_bytes",
    "atomic_write_json",
    "clean_partials",
    "confine",
    "digest_file",
    "file_identity",
    "fsync_folder",
    "is_locked",
    "lies_under",
    "locked",
    "new_partial",
    "open_append",
    "open_regular",
    "own_folder",
    "read_json",
    "replace_patiently",
    "safe_name",
    "sampled_digest",
    "size_text",
]

DISK_FULL = tuple(getattr(errno, name) for name in ("ENOSPC", "EDQUOT") if hasattr(errno, name))
"""no room, or none for this account"""

_WHOLE_BYTES = 64 << 20
_LOCK_ATTEMPTS = 3
_PARTIAL = re.compile(r"\..+\.(?:\d+|[0-9a-f]{16})\.partial")
"""what a killed write leaves; earlier versions put the process id into the name"""
_HELD = (5, 32, 33, 1224)
"""Windows: access denied, sharing violation, lock violation, mapped into a process"""
_DEVICE_NAMES = re.compile(r"(con|prn|aux|nul|com\d|lpt\d) *(\.|$)", re.IGNORECASE)  # Windows: "NUL .txt" too
_OPENING_FIXES: tuple[tuple[type[OSError], str], ...] = (
    (FileNotFoundError, "Put it there, or choose another."),
    (PermissionError, "Give the account that runs this the right to read it."),
)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._ -]{0,99}")


class FileError(WanTrainerError):
    """A path that may not be used, or a file that is not what it must be."""


def safe_name(name: str, what: str) -> str:
    """`name` if it can be a file name on every system, else ConfigError. `what` names the setting in the message.

    Letters, digits, dot, underscore, dash and space; 1-100 characters; no leading dot, no trailing dot or space,
    no Windows device name (rule S1).
    """
    if not _NAME.fullmatch(name) or name[-1] in ". " or ".." in name or _DEVICE_NAMES.match(name):
        raise ConfigError(
            f"{what} {name[:120]!r} cannot be a file name. Use 1-100 letters, digits, dots, dashes, underscores "
            "or spaces, starting with a letter or digit and not ending with a dot or space."
        )
    return name


def confine(root: Path, relative: str, what: str) -> Path:
    """The real path of `relative` under `root`; FileError when links or '..' would lead outside (rules S1, S2)."""
    base = Path(os.path.realpath(root))
    path = Path(os.path.realpath(base / relative))
    if path != base and base not in path.parents:
        raise FileError(
            f"{what} {relative[:200]!r} leads outside its folder. Use a name inside it, without '..' or links."
        )
    return path


def lies_under(path: Path | str, roots: Iterable[Path | str]) -> bool:
    """Whether `path` is one of `roots` or below one, judged by where links lead (rules S2, S16)."""
    real = Path(os.path.realpath(path))
    bases = [Path(os.path.realpath(root)) for root in roots]
    return any(real == base or base in real.parents for base in bases)


def open_regular(path: Path | str, *, follow_links: bool = True) -> BinaryIO:
    """Open for reading only if it is a regular file: no pipe, device or folder, and never a URL (rules S3, S16)."""
    flags = os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)
    if not follow_links:
        flags |= getattr(os, "O_NOFOLLOW", 0)
    try:
        descriptor = os.open(path, flags)
    except OSError as error:
        fix = next((fix for kind, fix in _OPENING_FIXES if isinstance(error, kind)), "Put a readable file there.")
        raise FileError(f"{os.path.basename(path)} cannot be opened: {error.strerror}. {fix}") from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise FileError(f"{os.path.basename(path)} is not a regular file. Put the file itself there.")
    return os.fdopen(descriptor, "rb")


def open_append(path: Path | str) -> BinaryIO:
    """Open for appending, unbuffered, making the file; FileError unless it is a regular file.

    A folder may come from a stranger: what is written there must not go through a link into another file, and no pipe
    may make the writer wait (rule S16). A file with other names too (hard links, as `cp -al` and programs that look for
    copies make them) becomes a copy of its own first; what the others name stays as it is.
    """
    file = os.fdopen(_open_to_write(path), "ab", buffering=0)
    if os.fstat(file.fileno()).st_nlink > 1:
        file.close()
        with atomic_write(Path(path)) as copy, open_regular(path, follow_links=False) as shared:
            shutil.copyfileobj(shared, copy, 4 << 20)
        file = os.fdopen(_open_to_write(path), "ab", buffering=0)
    if os.fstat(file.fileno()).st_nlink > 1:  # somebody makes links faster than they are broken
        file.close()
        raise FileError(
            f"{os.path.basename(path)} is also another file's name (a hard link), which writing would change. Put a "
            "copy in its place, or move it away."
        )
    return file


def _open_to_write(path: Path | str, flags: int = os.O_APPEND) -> int:
    """The descriptor of a regular file, made if needed; FileError for anything else, without waiting for a pipe."""
    flags |= os.O_WRONLY | os.O_CREAT
    for name in ("O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC", "O_BINARY"):
        flags |= getattr(os, name, 0)
    refusal = FileError(f"{os.path.basename(path)} is a link or no regular file. Move it away, then try again.")
    if os.path.lexists(path) and not stat.S_ISREG(os.lstat(path).st_mode):  # Windows has no O_NOFOLLOW
        raise refusal
    descriptor = os.open(path, flags, 0o666)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise refusal
    return descriptor


def own_folder(parent: Path, name: str) -> Path:
    """The folder `name` of `parent`, made if needed; FileError when a link or another file has that name (rule S16)."""
    folder = parent / name
    with contextlib.suppress(FileExistsError):
        folder.mkdir(parents=True)
    if not folder.is_dir() or Path(os.path.realpath(folder)) != Path(os.path.realpath(parent), name):
        raise FileError(
            f"{parent.name}/{name} is a link or no folder. Move it away: what is saved would not lie in {parent.name}."
        )
    return folder


def fsync_folder(folder: Path) -> None:
    """Make renames inside `folder` durable; a no-op where folders cannot be opened (Windows)."""
    if os.name == "nt":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def atomic_write(path: Path) -> Iterator[BinaryIO]:
    """Write a file that appears whole under `path`, or not at all; mode follows the umask.

    The staged name ends in '.partial', an extension no loader lists. Refuses to replace a link, folder or device.
    """
    if os.path.lexists(path) and not stat.S_ISREG(os.lstat(path).st_mode):
        raise FileError(f"{path.name} exists and is not a regular file. Move it away, then try again.")
    if not path.parent.is_dir():
        missing = next(p for p in (*reversed(path.parent.parents), path.parent) if not p.is_dir())
        problem = "is not a folder" if os.path.lexists(missing) else "does not exist"
        raise FileError(f"Folder {missing} {problem}, so {path.name} cannot be written. Make it, or choose another.")
    staged = new_partial(path)
    try:
        with open(staged, "xb") as file:
            _hold(file)
            yield file
            file.flush()
            os.fsync(file.fileno())
        replace_patiently(staged, path)
    except BaseException as error:
        with contextlib.suppress(OSError):
            staged.unlink()
        if isinstance(error, OSError) and error.errno is not None and error.filename is None:
            error.filename = os.fspath(path)  # a failed write does not say what it wrote
        raise
    fsync_folder(path.parent)


def new_partial(path: Path) -> Path:
    """A name beside `path` for what is not yet whole; nobody else has it, in whatever container or machine."""
    return path.with_name(f".{path.name}.{secrets.token_hex(8)}.partial")


def _hold(file: BinaryIO) -> None:
    """Mark a staged file as being written, for `clean_partials`. Windows lets nobody delete an open file anyway."""
    if os.name != "nt":
        with contextlib.suppress(OSError):  # a file system without locks: its age protects it
            _lock(file)


def clean_partials(folder: Path, older_than_s: float = 3600.0) -> int:
    """Delete what killed writes left in `folder`, once it is so old that nobody writes it; how many files.

    What a living process still writes stays, however old.
    """
    limit, removed = time.time() - older_than_s, 0
    for name in os.listdir(folder) if folder.is_dir() else ():
        path = folder / name
        if _PARTIAL.fullmatch(name):
            with contextlib.suppress(OSError):
                facts = os.lstat(path)
                if stat.S_ISREG(facts.st_mode) and facts.st_mtime <= limit and not is_locked(path):
                    os.unlink(path)
                    removed += 1
    return removed


def replace_patiently(source: Path, target: Path, attempts: int = 10) -> None:
    """os.replace of a file or folder: on Windows a reader, or a virus scanner, makes it fail for a moment."""
    for attempt in range(attempts):
        try:
            os.replace(source, target)
            return
        except OSError as error:
            held = isinstance(error, PermissionError) or getattr(error, "winerror", None) in _HELD
            if not held or attempt == attempts - 1:
                raise
            time.sleep(0.05 * (attempt + 1))


def atomic_write_bytes(path: Path, data: bytes) -> None:
    """`atomic_write` of bytes at hand."""
    with atomic_write(path) as file:
        file.write(data)


def atomic_write_json(path: Path, data: Any) -> None:
    """`atomic_write` of JSON, readable and stable in order."""
    # Half of a character, as in a note that was cut in an emoji, has no UTF-8; JSON spells it as this very escape.
    atomic_write_bytes(
        path, (json.dumps(data, indent=2, ensure_ascii=False) + "\n").encode("utf-8", "backslashreplace")
    )


def read_json(path: Path, *, limit_bytes: int = 64 << 20) -> Any:
    """Parsed JSON of a regular file; FileError when it is missing, too large or not JSON."""
    with open_regular(path) as file:
        data = file.read(limit_bytes + 1)
    if len(data) > limit_bytes:
        raise FileError(f"{path.name} is larger than {limit_bytes >> 20} MiB; it is not a file of ours.")
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise FileError(f"{path.name} is not valid JSON ({error}). Restore it or delete it.") from error


def digest_file(path: Path, should_stop: Callable[[], bool] | None = None) -> str:
    """SHA-256 of all bytes, hex; reads 4 MiB at a time. Raises FileError when `should_stop` answers True."""
    digest = hashlib.sha256()
    with open_regular(path) as file:
        while chunk := file.read(4 << 20):
            digest.update(chunk)
            if should_stop is not None and should_stop():
                raise FileError(f"Reading {path.name} was stopped.")
    return digest.hexdigest()


def sampled_digest(path: Path, *, windows: int = 64, window_bytes: int = 64 << 10) -> str:
    """SHA-256 over size, the first MiB and `windows` evenly spaced windows: names a 28 GB file in milliseconds.

    Up to 64 MiB the whole file counts. Above, two files that differ only between the windows are taken for the same; a
    fine-tune changes all of them.
    """
    digest = hashlib.sha256()
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size <= _WHOLE_BYTES:
            return digest_file(path)
        digest.update(str(size).encode())
        digest.update(file.read(1 << 20))
        for index in range(windows):  # the last one ends where the file ends
            file.seek(max(size - window_bytes, 0) * index // max(windows - 1, 1))
            digest.update(file.read(window_bytes))
    return digest.hexdigest()


def size_text(size: int) -> str:
    """Bytes as people read them: 1.5 GiB, 0.4 MiB."""
    return f"{size / 2**30:.1f} GiB" if size >= 1 << 30 else f"{size / 2**20:.1f} MiB"


def file_identity(path: Path) -> tuple[str, int, int, int]:
    """(path, size, mtime_ns, inode): changes whenever the file is edited or replaced."""
    info = os.stat(path)
    return (str(path), info.st_size, info.st_mtime_ns, info.st_ino)


@contextlib.contextmanager
def locked(path: Path, busy: str) -> Iterator[None]:
    """Hold an exclusive lock on `path` (made if needed); FileError(`busy`) when another process holds it.

    The system releases it with the process, so a crash leaves no stale lock.
    """
    with os.fdopen(_open_to_write(path), "ab") as file:
        for attempt in range(_LOCK_ATTEMPTS):
            try:
                _lock(file)
                break
            except OSError as error:
                if attempt == _LOCK_ATTEMPTS - 1:
                    raise FileError(busy) from error
                time.sleep(0.05)  # somebody may only be looking
        yield


def is_locked(path: Path) -> bool:
    """Whether a process holds `locked(path)` now. Writes nothing, and makes no file."""
    try:
        with open_regular(path, follow_links=False) as file:
            _lock(file)  # given back when the file is closed
    except FileError:
        return False
    except OSError:
        return True
    return False


def _lock(file: BinaryIO) -> None:
    if os.name == "nt":
        import msvcrt

        file.seek(0)
        msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined]
    else:
        import fcntl

        fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)


@dataclass(frozen=True)
class Roots:
    """Named folders, so that run files say `diffusion_models:wan/x.safetensors` and hold no path of one machine."""

    folders: dict[str, tuple[str, ...]]
    """root name -> absolute folders, searched in order"""

    @classmethod
    def read(cls, path: Path) -> Roots:
        """From a roots file: a JSON object of lists of folders."""
        data = read_json(path)
        if not isinstance(data, dict) or not all(isinstance(v, list) for v in data.values()):
            raise ConfigError(f'{path.name} must look like {{"diffusion_models": ["/models/diffusion_models"], ...}}.')
        return cls({name: tuple(str(f) for f in folders) for name, folders in data.items()})

    def write(self, path: Path) -> None:
        atomic_write_json(path, {name: list(folders) for name, folders in self.folders.items()})

    def first(self, name: str) -> Path:
        """The first folder of a root, where new files go."""
        folders = self.folders.get(name)
        if not folders:
            raise ConfigError(f'No folder is known for root "{name}". Add it to the file given with --roots.')
        return Path(folders[0])

    def resolve(self, reference: str) -> Path:
        """The existing file or folder that `root:relative` names, confined to its root."""
        name, separator, relative = reference.partition(":")
        if not separator:
            raise ConfigError(
                f'{reference!r} is not of the form root:path, for example "diffusion_models:wan.safetensors".'
            )
        if name not in self.folders:
            raise ConfigError(f'Root "{name}" of {reference!r} is unknown. Add it to the file given with --roots.')
        # Links inside a model folder are the user's own (shared drives); only '..' and absolute parts are refused.
        if os.path.isabs(relative) or ".." in Path(relative).parts:
            raise FileError(f"{reference!r} leads outside its folder. Use a name inside it.")
        for folder in self.folders[name]:
            path = Path(folder) / relative
            if path.exists():
                return path
        raise FileError(
            f"{reference!r} was not found in: {', '.join(self.folders[name])}. Put the file there, or choose another."
        )
