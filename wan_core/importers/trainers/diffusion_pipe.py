"""Dataset settings of diffusion-pipe: a TOML file with [[directory]] entries (diffusion-pipe's
examples/dataset.toml)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from ...dataset.captions import checked_line
from ...dataset.files import STILL_SUFFIXES, MediaFile, Rejected, SourcePart, folder_files
from ...errors import DatasetError
from ...files import read_json
from ..source import SourceFile
from .ledger import Ledger, area_of, found_place, parts_of, rounded_frames, with_beside

_WITHOUT = {
    "": "group default_mask_file online_captions subsample_ratio",
    "the order follows from the seed of the run": "shuffle_metadata",
    "each file keeps its own aspect ratio in the same number of pixels": "min_ar max_ar num_ar_buckets ar_buckets",
}


def read_diffusion_pipe(data: Mapping[str, Any], source: SourceFile) -> list[SourcePart]:
    """Returns one part per directory and resolution."""
    general = {key: value for key, value in data.items() if key != "directory"}
    directories: list[dict[str, Any]] = data.get("directory") or []
    parts: list[SourcePart] = []
    for number, section in enumerate(directories, 1):
        parts += _parts(Ledger(f"{source.path.name}, directory {number}", section, general), source)
    return parts


def _parts(ledger: Ledger, source: SourceFile) -> list[SourcePart]:
    place = found_place(ledger.get("path", str, ""), source, ledger)
    files = tuple(folder_files(place))
    ledger.take(f"path {place.name}: {len(files)} files")
    files = _captioned(files, place, ledger)
    places = {role: ledger.get(f"{role}_path", str, "") for role in ("mask", "control")}
    files, rejected, watched = with_beside(files, places, ledger, source)
    settings = {**_captions(ledger), **_repeats(ledger)}
    if watched.get("mask"):
        settings["mask_use"] = "loss"
    buckets = _size_buckets(ledger, source)
    groups = _groups(buckets, ledger) if buckets else _resolutions(ledger, source)
    ledger.drop_all(_WITHOUT)
    taken = [tuple(file for file in files if _kind_of(file) in group.kinds) for group in groups]
    pieces = [(group.name, own, {**settings, **group.settings}) for group, own in zip(groups, taken, strict=True)]
    return parts_of(ledger, pieces, (*rejected, *_in_no_bucket(files, groups)), (place, *watched.values()))


@dataclass(frozen=True)
class _Group:
    """Kinds of files that are trained at one size."""

    name: str
    kinds: tuple[str, ...]
    """"clip", "still" """
    settings: dict[str, Any]


def _kind_of(file: MediaFile) -> str:
    return "still" if file.path.suffix.lower() in STILL_SUFFIXES else "clip"


def _in_no_bucket(files: tuple[MediaFile, ...], groups: list[_Group]) -> list[Rejected]:
    """Returns the files that diffusion-pipe ignores: clips without a length above 1, stills without a bucket of 1."""
    kinds = {kind for group in groups for kind in group.kinds}
    reasons = {
        "clip": "is a clip, and no bucket is longer than 1 frame; add one, such as frame_buckets = [1, 33]",
        "still": "is a still, and size_buckets has no bucket of 1 frame; add one, such as [832, 480, 1]",
    }
    return [Rejected(name=f.shown_name, reason=reasons[_kind_of(f)]) for f in files if _kind_of(f) not in kinds]


def _resolutions(ledger: Ledger, source: SourceFile) -> list[_Group]:
    settings = _frames(ledger)
    kinds = ("clip", "still") if settings["num_frames"] > 1 else ("still",)
    settings["enable_bucket"] = ledger.get("enable_ar_bucket", bool, False)
    return [
        _Group(f"{size['width']}x{size['height']}" if size else "", kinds, {**settings, **size})
        for size in _sizes(ledger, source)
    ]


def _size_buckets(ledger: Ledger, source: SourceFile) -> list[tuple[int, int, int]]:
    """Returns (width, height, frames) of each of size_buckets, rounded for the model; [] without the key."""
    entries: list[Any] = ledger.get("size_buckets", list, [])
    found: list[tuple[int, int, int]] = []
    for entry in entries:
        sides = cast("list[Any]", entry) if isinstance(entry, list) else []
        if len(sides) != 3 or not all(isinstance(side, int) and not isinstance(side, bool) for side in sides):
            raise DatasetError(f"{ledger.where}: {str(entry)[:60]!r} of size_buckets is no [width, height, frames].")
        size = area_of(sides[0], sides[1], source, ledger, "size_buckets")
        found.append((size["width"], size["height"], rounded_frames(sides[2], ledger, "size_buckets")))
    return found


def _groups(buckets: list[tuple[int, int, int]], ledger: Ledger) -> list[_Group]:
    """Returns one group for all buckets of clips, and one for all buckets of stills, each with its largest size.
    diffusion-pipe assigns a file to the bucket nearest in shape; here each file keeps its shape, at the same area."""
    for key in ("resolutions", "frame_buckets", "enable_ar_bucket"):
        ledger.drop(key, "size_buckets says the sizes")
    groups: list[_Group] = []
    for kind in ("clip", "still"):
        own = [bucket for bucket in buckets if (bucket[2] > 1) == (kind == "clip")]
        if not own:
            continue
        width, height, _ = max(own, key=lambda bucket: bucket[0] * bucket[1])
        shapes = {bucket[:2] for bucket in own}
        lengths = tuple(sorted({bucket[2] for bucket in own}))
        settings: dict[str, Any] = {"width": width, "height": height, "num_frames": lengths[0]}
        settings["enable_bucket"] = len(shapes) > 1
        if len(lengths) > 1:
            settings["frame_buckets"] = lengths
        stated = ", ".join("x".join(map(str, bucket)) for bucket in own)
        if len(shapes) == 1:
            ledger.take(f"size_buckets {stated}: {kind}s are cropped to {width}x{height}")
        else:
            ledger.change(
                f"size_buckets {stated} -> {kind}s keep their aspect ratio in the number of pixels of {width}x{height}"
            )
        groups.append(_Group(f"{kind}s", (kind,), settings))
    return groups


def _sizes(ledger: Ledger, source: SourceFile) -> list[dict[str, int]]:
    entries: list[Any] = ledger.get("resolutions", list, [])
    sizes: list[dict[str, int]] = []
    for entry in entries:
        pair = cast("list[Any]", entry) if isinstance(entry, list) else [entry, entry]
        if len(pair) != 2 or not all(isinstance(side, (int, float)) for side in pair):
            raise DatasetError(f"{ledger.where}: {str(entry)[:60]!r} of resolutions is no side and no [width, height].")
        sizes.append(area_of(pair[0], pair[1], source, ledger, "resolutions"))
    if not sizes:
        ledger.change("no resolutions are stated: width and height of the node")
    return sizes or [{}]


def _frames(ledger: Ledger) -> dict[str, Any]:
    """Returns the settings of num_frames: a clip is cut to the longest length that fits, and length 1 is for stills."""
    stated = ledger.whole_numbers("frame_buckets", (1,))
    lengths = sorted({rounded_frames(length, ledger, "frame_buckets") for length in stated})
    clips = [length for length in lengths if length > 1]
    mode = _clip_mode(ledger)
    if not clips:
        return {"num_frames": 1}
    return {"num_frames": clips[0], **({"frame_buckets": tuple(clips)} if len(clips) > 1 else {}), **mode}


def _clip_mode(ledger: Ledger) -> dict[str, Any]:
    mode = ledger.get("video_clip_mode", str, "")
    if mode == "multiple_overlapping":
        ledger.change(f"video_clip_mode {mode} -> frame_extraction chunk: parts are consecutive and do not overlap")
        return {"frame_extraction": "chunk"}
    if mode not in ("", "single_beginning"):
        ledger.change(f"video_clip_mode {mode[:40]} -> frame_extraction head: clips are cut from their beginning")
    return {}


def _repeats(ledger: Ledger) -> dict[str, Any]:
    repeats = ledger.get("num_repeats", float, 1.0)
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
    count = ledger.get("cache_shuffle_num", int, 0)
    if ledger.get("shuffle_tags", bool, False) and not count:
        count = 1
    if count:
        settings["caption_shuffles"] = min(count, 64)
        ledger.take(f"cache_shuffle_num {settings['caption_shuffles']}: orders of tags that take turns")
    if (delimiter := ledger.get("cache_shuffle_delimiter", str, ", ")).strip() != ",":
        ledger.drop("cache_shuffle_delimiter", f"tags are separated by commas, not by {delimiter!r:.20}")
    return settings


def _captioned(files: tuple[MediaFile, ...], folder: Path, ledger: Ledger) -> tuple[MediaFile, ...]:
    """Returns `files` with the captions of captions.json (name -> caption or list of captions), if there is one."""
    path = folder / "captions.json"
    if not path.is_file():
        return files
    data: Any = read_json(path)
    known = cast("dict[str, Any]", data) if isinstance(data, dict) else {}
    captioned: list[MediaFile] = []
    for file in files:
        entry: Any = known.get(file.path.name, "")
        every = cast("list[Any]", entry) if isinstance(entry, list) else [entry]
        where = f"captions.json: the caption of {file.path.name[:80]}"
        texts = [checked_line(text, where) for text in every[:1000] if isinstance(text, str)]
        captioned.append(replace(file, caption=texts[0] if texts else "", more_captions=tuple(texts[1:])))
    ledger.take(f"captions.json: captions of {sum(bool(file.caption) for file in captioned)} of {len(files)} files")
    return tuple(captioned)
