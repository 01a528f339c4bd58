"""Entry point of every child process: `python -X utf8 <pack>/wan_core/launch.py COMMAND ...`.

The only file that edits sys.path. It removes its own folder, so that `config`, `cache` or `events` never shadow a
library, and adds the pack root, because isolated Pythons ignore PYTHONPATH. It removes the working directory and
ComfyUI's folder, because they hold untrusted files (S20). In Pythons that libraries start (torch.compile),
PYTHONSAFEPATH keeps the working directory out, from Python 3.11 on. Importing this file runs nothing.
"""

from __future__ import annotations

import os
import sys
import threading


def main() -> int:
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [p for p in sys.path if os.path.abspath(p or os.curdir) != here and not _is_untrusted(p)]
    sys.path.insert(0, os.path.dirname(here))
    # Python 3.11 and newer reads it, also in processes that libraries start.
    os.environ["PYTHONSAFEPATH"] = "1"
    if sys.argv[1:2] == ["video"]:
        from wan_core.video.child import serve

        return serve()
    if sys.argv[1:2] == ["parse"]:
        from wan_core.parsers.child import serve

        return serve()
    from wan_core.__main__ import main as command_line

    code = command_line(sys.argv[1:])
    if any(thread.name.startswith("tracker ") for thread in threading.enumerate()):
        sys.stderr.flush()
        os._exit(code)  # a library of a tracker that hangs would hold the end of the process
    return code


def _is_untrusted(entry: str) -> bool:
    """Returns whether an entry of sys.path is the working directory, or ComfyUI, which its Windows package adds."""
    folder = os.path.realpath(entry or os.curdir)
    own = (sys.prefix, sys.base_prefix, os.path.dirname(sys.executable), os.path.dirname(os.__file__))
    if folder in map(os.path.realpath, own) or os.path.basename(folder) in ("site-packages", "dist-packages"):
        return False  # Python itself may be started from its own folder
    return folder == os.path.realpath(os.curdir) or os.path.isfile(os.path.join(folder, "folder_paths.py"))


if __name__ == "__main__":
    sys.exit(main())
