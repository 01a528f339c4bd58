"""Python as it is on Windows, as far as our code asks it: folders cannot be opened, and nothing tells links apart."""

import os

os.supports_dir_fd.discard(os.open)
del os.O_NOFOLLOW
_replace = os.rename


def _rename(source, target, **options):
    """As on Windows, which replaces nothing that way."""
    if os.path.lexists(target):
        raise FileExistsError(17, os.strerror(17), source, None, target)
    _replace(source, target, **options)


os.rename = _rename
