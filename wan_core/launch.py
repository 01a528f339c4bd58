"""Entry point of every child process: `python -X utf8 <pack>/wan_core/launch.py COMMAND ...`.

The only file that edits sys.path. Its own folder is removed, so that `config`, `cache` or `events` never shadow a
library; the pack root is added, because isolated Pythons ignore PYTHONPATH. The working directory and ComfyUI's folder
are removed, because they hold untrusted files (S20); for a Python started by a library (torch.compile) this holds from
Python 3.11 on. Runs nothing at import.
"""

from __future__ import annotations

import os
import sys


def main() -> int:
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [p for p in sys.path if os.path.abspath(p or os.curdir) != here and not _holds_data(p)]
    sys.path.insert(0, os.path.dirname(here))
    # For Pythons that libraries start; read from 3.11 on.
    os.environ["PYTHONSAFEPATH"] = "1"
    if sys.argv[1:2] == ["video"]:
        from wan_core.video.child import serve

        return serve()
    if sys.argv[1:2] == ["parse"]:
        from wan_core.parsers.child import serve

        return serve()
    from wan_core.__main__ import main as command_line

    return command_line(sys.argv[1:])


def _holds_data(entry: str) -> bool:
    """Returns whether an entry of sys.path is the working directory, or ComfyUI (its Windows package adds it)."""
    folder = os.path.realpath(entry or os.curdir)
    own = (sys.prefix, sys.base_prefix, os.path.dirname(sys.executable), os.path.dirname(os.__file__))
    if folder in map(os.path.realpath, own) or os.path.basename(folder) in ("site-packages", "dist-packages"):
        return False  # Python itself may be started from its own folder
    return folder == os.path.realpath(os.curdir) or os.path.isfile(os.path.join(folder, "folder_paths.py"))


if __name__ == "__main__":
    sys.exit(main())
