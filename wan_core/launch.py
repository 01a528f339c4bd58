"""The door through which every child process enters: `python -X utf8 <pack>/wan_core/launch.py COMMAND ...`.

The only file of the pack that edits sys.path: its own folder goes out (so that `config`, `cache` or `events` of ours
never shadow a library) and the pack root comes in (so that `import wan_core` works under isolated Pythons, where
PYTHONPATH is ignored). Runs nothing at import.
"""

from __future__ import annotations

import os
import sys


def main() -> int:
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [p for p in sys.path if os.path.abspath(p or os.curdir) != here]
    sys.path.insert(0, os.path.dirname(here))
    if sys.argv[1:2] == ["video"]:
        from wan_core.video.child import serve

        return serve()
    from wan_core.__main__ import main as command_line

    return command_line(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
