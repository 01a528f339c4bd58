"""Dataset settings of diffusion-pipe: a TOML file with [[directory]] entries (its examples/dataset.toml)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from ....errors import DatasetError
from ....files import read_json
from ..captions import one_line
from ..media_file import MediaFile, Rejected, folder_files
from ..part import SourcePart
from .context import Context, area_of, with_beside
from .ledger import Ledger, rounded_frames

__all__ = ["read_diffusion_pipe"]

_WITHOUT = {
    "group": "",
    "size_buckets": "width, height and num_frames say the size; chain several dataset nodes for several",
    "default_mask_file": "",
    "shuffle_metadata": "the order follows from the seed of the run",
    "online_captions": "",
    "subsample_ratio": "",
    "video_clip_mode": "",
}
_SHAPES = {
    key: "each file keeps its own shape in the same number of pixels"
    for key in ("min_ar", "max_ar", "num_ar_buckets", "ar_buckets")
}


def read_diffusion_pipe(data: Mapping[str, Any], context: Context) -> list[SourcePart]:
    """One part for each directory and each of its resolutions."""
    general = {key: value for key, value in data.items() if key != "directory"}
    directories: list[dict[str, Any]] = data.get("directory") or []
    parts: list[SourcePart] = []
    for number, section in enumerate(directories, 1):
        parts += _parts(Ledger(f"{context.path.name}, directory {number}", section, general), context)
    return parts


def _parts(ledger: Ledger, context: Context) -> list[SourcePart]:
    place = context.place(ledger.get("path", str, ""), ledger)
    files = tuple(folder_files(place))
    ledger.take(f"path {place.name}: {len(files)} files")
    files = _captioned(files, place, ledger)
    files, rejected, watched = _beside(files, ledger, context)
    settings = {**_captions(ledger), **_repeats(ledger), **_frames(ledger)}
    if watched.get("mask"):
        settings["mask_use"] = "loss"
    settings["enable_bucket"] = ledger.get("enable_ar_bucket", bool, False)
    ledger.take(f"enable_ar_bucket {str(settings['enable_bucket']).lower()}")
    sizes = _sizes(ledger, context)
    ledger.drop_all({**_WITHOUT, **_SHAPES})
    notes = ledger.sentences()
    return [
        SourcePart(
            name=ledger.where if len(sizes) == 1 else f"{ledger.where}, {size['width']}x{size['height']}",
            files=files,
            rejected=rejected if number == 0 else (),
            notes=notes if number == 0 else (),
            settings={**settings, **size},
            watched=(place, *watched.values()),
        )
        for number, size in enumerate(sizes)
    ]


def _sizes(ledger: Ledger, context: Context) -> list[dict[str, int]]:
    entries: list[Any] = ledger.get("resolutions", list, [])
    sizes: list[dict[str, int]] = []
    for entry in entries:
        pair = cast("list[Any]", entry) if isinstance(entry, list) else [entry, entry]
        if len(pair) != 2 or not all(isinstance(side, (int, float)) for side in pair):
            raise DatasetError(f"{ledger.where}: {str(entry)[:60]!r} of resolutions is no side and no [width, height].")
        sizes.append(area_of(pair[0], pair[1], context, ledger, "resolutions"))
    if not sizes:
        ledger.change("no resolutions are stated: width and height of the node")
    return sizes or [{}]


def _frames(ledger: Ledger) -> dict[str, Any]:
    """Clips go into the longest bucket they fill; 1 is the bucket of stills."""
    entries: list[Any] = ledger.get("frame_buckets", list, [1])
    if not all(isinstance(entry, int) and not isinstance(entry, bool) for entry in entries):
        raise DatasetError(f"{ledger.where}: frame_buckets is {entries!r:.60}; it must be a list of whole numbers.")
    lengths = sorted({rounded_frames(entry, ledger, "frame_buckets") for entry in entries})
    clips = [length for length in lengths if length > 1]
    ledger.take(f"frame_buckets {', '.join(map(str, lengths))}")
    if not clips:
        return {"num_frames": 1}
    return {"num_frames": clips[0], **({"frame_buckets": tuple(clips)} if len(clips) > 1 else {})}


def _repeats(ledger: Ledger) -> dict[str, Any]:
    repeats = ledger.get("num_repeats", float, 1.0)
    ledger.take(f"num_repeats {repeats:g}")
    if repeats == int(repeats):
        return {"num_repeats": int(repeats)}
    return {"weight": repeats}


def _captions(ledger: Ledger) -> dict[str, Any]:
    settings: dict[str, Any] = {}
    skip = ledger.get("skip_empty_caption", bool, True)
    settings["missing_captions"] = "skip the file" if skip else "empty caption"
    ledger.take(f"skip_empty_caption {str(skip).lower()}: {settings['missing_captions']}")
    if prefix := ledger.get("caption_prefix", str, ""):
        settings["caption_prefix"] = prefix
        ledger.take(f"caption_prefix {prefix!r:.60}")
    count = ledger.get("cache_shuffle_num", int, 0)
    if ledger.get("shuffle_tags", bool, False) and not count:
        count = 1
    if count:
        settings["caption_shuffles"] = min(count, 64)
        ledger.take(f"cache_shuffle_num {settings['caption_shuffles']}: orders of tags that take turns")
    if (delimiter := ledger.get("cache_shuffle_delimiter", str, ", ")).strip() != ",":
        ledger.drop("cache_shuffle_delimiter", f"tags are separated by commas, not by {delimiter!r:.20}")
    return settings


def _beside(
    files: tuple[MediaFile, ...], ledger: Ledger, context: Context
) -> tuple[tuple[MediaFile, ...], tuple[Rejected, ...], dict[str, Path]]:
    rejected: list[Rejected] = []
    watched: dict[str, Path] = {}
    for role, required in (("mask", False), ("control", True)):
        if text := ledger.get(f"{role}_path", str, ""):
            watched[role] = context.place(text, ledger)
            files, without = with_beside(files, watched[role], role, required=required, ledger=ledger)
            rejected += without
    return files, tuple(rejected), watched


def _captioned(files: tuple[MediaFile, ...], folder: Path, ledger: Ledger) -> tuple[MediaFile, ...]:
    """Captions of captions.json, where the directory has one: name -> a caption or a list of them."""
    path = folder / "captions.json"
    if not path.is_file():
        return files
    data: Any = read_json(path)
    known = cast("dict[str, Any]", data) if isinstance(data, dict) else {}
    captioned: list[MediaFile] = []
    for file in files:
        entry: Any = known.get(file.path.name, "")
        every = cast("list[Any]", entry) if isinstance(entry, list) else [entry]
        texts = [one_line(text) for text in every if isinstance(text, str)]
        captioned.append(replace(file, caption=texts[0] if texts else "", more_captions=tuple(texts[1:])))
    ledger.take(f"captions.json: captions of {sum(bool(file.caption) for file in captioned)} of {len(files)} files")
    return tuple(captioned)
