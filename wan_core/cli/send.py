"""`wan_core send`: copies what the mirror of a run lacks."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from ..errors import ConfigError
from ..events import Emit
from .output import done, run_directory

_OWN_COMFYUI = Path(__file__).resolve().parents[4]
"""the ComfyUI that has this pack in custom_nodes"""


def add_send_command(command: Callable[..., argparse.ArgumentParser]) -> None:
    sub = command("send", _send, "copy the saved steps, previews and clips of a run that the mirror lacks")
    sub.add_argument("run_path", type=Path, metavar="RUN", help="folder of a run, or its run.json")
    sub.add_argument(
        "--trackers", type=Path, metavar="FILE", help="their settings; default: those of this ComfyUI, for its own runs"
    )


def _send(options: argparse.Namespace, _emit: Emit, out: BinaryIO) -> int:
    from ..trackers.delivery import reason_of
    from ..trackers.mirror import Mirror
    from ..trackers.settings import ServerSettings

    directory = run_directory(options.run_path)
    settings = ServerSettings.read(settings_file(directory, options.trackers))
    if not settings.mirror.url:
        raise ConfigError("The settings name no mirror. Set mirror.url in trackers.json.")
    mirror = Mirror(settings.mirror, directory)
    try:
        mirror.begin()
        mirror.copy()
    except Exception as error:
        raise ConfigError(f"The mirror lacks files: {reason_of(error)}. Correct this, then try again.") from error
    return done(out, {"saved_steps": len(mirror.saved)})


def settings_file(directory: Path, named: Path | None) -> Path:
    """Returns the file of destinations: --trackers, or the file of the ComfyUI that contains this pack. Raises
    ConfigError without --trackers for a run outside of that ComfyUI."""
    usual = _OWN_COMFYUI / "user" / "wan_trainer" / "trackers.json"
    own = directory.parent == (_OWN_COMFYUI / "output" / "wan_trainer").resolve()
    if named is None and not (own and usual.is_file()):
        raise ConfigError("No trackers.json was found. Give its path: send RUN --trackers trackers.json.")
    return named or usual
