"""Files, safely: names that cannot escape, confined paths, regular files only, commits whole or absent."""

from __future__ import annotations

from .reading import (
    FileError,
    confine,
    digest_file,
    file_identity,
    file_mark,
    lies_under,
    open_regular,
    own_folder,
    read_json,
    safe_name,
    sampled_digest,
    size_text,
)
from .roots import Roots
from .writing import (
    DISK_FULL,
    atomic_write,
    atomic_write_bytes,
    atomic_write_json,
    clean_partials,
    fsync_folder,
    is_locked,
    locked,
    new_partial,
    open_append,
    replace_patiently,
)

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
    "file_mark",
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
