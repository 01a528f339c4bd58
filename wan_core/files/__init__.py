"""File access: safe names, confined paths, regular files only, atomic writes, locks."""

from __future__ import annotations

from .inside import (
    freed_by,
    fsync_folder,
    is_held,
    make_folder,
    open_inside,
    open_new,
    opened_folder,
    own_folder,
    remove_empty,
    remove_file,
    replace_patiently,
    sync_file,
)
from .locks import is_locked, locked
from .memo import Memo, mark_of
from .names import name_key, safe_name, with_safe_letters
from .reading import (
    FileError,
    confine,
    digest_file,
    file_mark,
    is_touched,
    lies_under,
    open_regular,
    read_json,
    sampled_digest,
    shown_folder,
    size_text,
)
from .roots import Roots
from .writing import (
    DISK_FULL,
    atomic_write,
    atomic_write_bytes,
    atomic_write_json,
    clean_partials,
    is_partial,
    new_partial,
    open_append,
)
