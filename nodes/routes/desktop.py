"""Opens a folder in the file manager of the server's computer."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path

from .guard import Refused

_NO_DESKTOP = "The computer that runs ComfyUI has no desktop to open a folder on. The run is in output/wan_trainer."


def open_folder(folder: Path) -> None:
    """Opens `folder`, an absolute path, without waiting. Raises Refused(409) on a computer without a desktop."""
    if sys.platform == "win32":
        os.startfile(folder)  # opens Explorer; only a file could be executed
        return
    command = shutil.which("open" if sys.platform == "darwin" else "xdg-open")
    shown = sys.platform == "darwin" or any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY"))
    if command is None or not shown:
        raise Refused(409, _NO_DESKTOP)
    quiet = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
    run = partial(subprocess.run, [command, str(folder)], check=False, **quiet)
    threading.Thread(target=run, daemon=True, name="wan-trainer-open").start()
