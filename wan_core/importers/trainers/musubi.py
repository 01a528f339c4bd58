"""Dataset settings of musubi-tuner: a TOML file with [general] and [[datasets]] (musubi-tuner's
docs/dataset_config.md)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ...dataset.files import MediaFile, Rejected, SourcePart, folder_files
from ...errors import DatasetError
from ..listing import read_listing
from ..source import Columns, SourceFile
from .ledger import Ledger, area_of, found_place, only_kind, parts_of, rounded_frames, with_beside

_WITHOUT = {
    "all datasets share one cache, keyed by content": "cache_directory",
    "batch_size of Wan Train Settings": "batch_size",
    "smaller files are enlarged, and the report names them": "bucket_no_upscale",
    "control files get the size of their clip": "no_resize_control control_resolution",
    "FramePack only": "fp_latent_window_size fp_1f_clean_indices fp_1f_target_index fp_1f_no_post",
    "": "multiple_target",
}
_EXTRACTIONS = {"head", "chunk", "slide", "uniform", "full"}


def read_musubi(data: Mapping[str, Any], source: SourceFile) -> list[SourcePart]:
    """Returns one part per dataset and length of target_frames."""
    parts: list[SourcePart] = []
    general: dict[str, Any] = data.get("general") or {}
    datasets: list[dict[str, Any]] = data.get("datasets") or []
    for number, section in enumerate(datasets, 1):
        ledger = Ledger(f"{source.path.name}, dataset {number}", section, general)
        parts += _parts(ledger, source)
    return parts


def _parts(ledger: Ledger, source: SourceFile) -> list[SourcePart]:
    kind, files, rejected, listed = _files(ledger, source)
    settings = {**_size(ledger, source), **_common(ledger), **_by_kind(ledger, kind, source)}
    frames = _frames(ledger, kind)
    ledger.drop_all(_WITHOUT)
    pieces = [(f"{own['num_frames']} frames", files, {**settings, **own}) for own in frames]
    return parts_of(ledger, pieces, rejected, listed)


def _files(
    ledger: Ledger, source: SourceFile
) -> tuple[str, tuple[MediaFile, ...], tuple[Rejected, ...], tuple[Any, ...]]:
    """Returns ("clip" or "still", files, rejected files, other watched files)."""
    keys = [f"{what}_{form}" for what in ("video", "image") for form in ("directory", "jsonl_file")]
    named = [key for key in keys if key in ledger]
    if len(named) != 1:
        raise DatasetError(f"{ledger.where} must name one of {', '.join(keys)}; it names {len(named)}.")
    kind = "clip" if named[0].startswith("video") else "still"
    place = found_place(ledger.get(named[0], str, ""), source, ledger)
    if named[0].endswith("jsonl_file"):
        listing = read_listing(replace(source, path=place, columns=Columns()))
        ledger.take(f"{named[0]}: {len(listing.files)} rows of {place.name}")
        ledger.drop("control_directory", "the rows of a list name their control files")
        return kind, listing.files, listing.rejected, (place, *listing.watched)
    files = only_kind(folder_files(place), kind, ledger)
    control = ledger.get("control_directory", str, "")
    files, rejected, _ = with_beside(files, {"control": control}, ledger, source)
    ledger.take(f"{named[0]} {place.name}: {len(files)} {kind}s")
    return kind, tuple(replace(file, name="") for file in files), rejected, (place,)


def _size(ledger: Ledger, source: SourceFile) -> dict[str, int]:
    if "resolution" not in ledger:
        ledger.get("resolution", list, [])
        ledger.change("no resolution is stated: 960x544, musubi's own")
        return {"width": 960, "height": 544}
    sides = ledger.whole_numbers("resolution", ())
    if len(sides) > 2:
        raise DatasetError(f"{ledger.where}: resolution is {sides!r:.60}; it must be a side or [width, height].")
    return area_of(sides[0], sides[-1], source, ledger, "resolution")


def _by_kind(ledger: Ledger, kind: str, source: SourceFile) -> dict[str, Any]:
    """Returns the settings that treat stills without a caption and clips without source_fps as musubi does."""
    if kind == "still":
        ledger.drop("source_fps", "stills have no rate")
        ledger.take("stills without a caption file are skipped")
        return {"missing_captions": "skip the file"}
    if "source_fps" in ledger:
        ledger.drop("source_fps", "not needed: the rate is read from the time stamps of each clip")
        return {}
    ledger.change(
        f"no source_fps is stated: each frame of a clip is used once, as in musubi, whatever its rate, and plays at "
        f"{source.fps:g} fps. With source_fps clips keep their speed"
    )
    return {"every_frame": True}


def _common(ledger: Ledger) -> dict[str, Any]:
    settings = {
        "enable_bucket": ledger.get("enable_bucket", bool, False),
        "num_repeats": ledger.get("num_repeats", int, 1),
        "caption_extension": ledger.get("caption_extension", str, ""),
    }
    return {name: value for name, value in settings.items() if name == "enable_bucket" or value}


def _frames(ledger: Ledger, kind: str) -> list[dict[str, Any]]:
    mode = ledger.get("frame_extraction", str, "head")
    targets = ledger.whole_numbers("target_frames", (1,))
    stride, count = ledger.get("frame_stride", int, 10), ledger.get("frame_sample", int, 1)
    most = ledger.get("max_frames", int, 129)
    if kind == "still":
        for key in ("frame_extraction", "target_frames", "frame_stride", "frame_sample", "max_frames"):
            ledger.drop(key, "stills have one frame")
        return [{"num_frames": 1}]
    for key, only in (("frame_stride", "slide"), ("frame_sample", "uniform"), ("max_frames", "full")):
        if mode != only:
            ledger.drop(key, f"only for {only}")
    if mode not in _EXTRACTIONS:
        raise DatasetError(
            f"{ledger.where}: frame_extraction is {mode[:40]!r}. Known: {', '.join(sorted(_EXTRACTIONS))}."
        )
    more: dict[str, Any] = {} if mode == "head" else {"frame_extraction": mode}
    more |= {"frame_stride": stride} if mode == "slide" else {"frame_sample": count} if mode == "uniform" else {}
    if mode == "full":
        return [{"num_frames": rounded_frames(most, ledger, "max_frames"), **more}]
    if "target_frames" not in ledger:
        ledger.change(
            "no target_frames is stated: only the first frame of each clip is trained, as in musubi-tuner, so no "
            "motion is learned. Write target_frames = [33] for 33 frames"
        )
        return [{"num_frames": 1, **more}]
    lengths = dict.fromkeys(rounded_frames(target, ledger, "target_frames") for target in targets)
    ledger.take(f"target_frames {', '.join(map(str, lengths))}: each a dataset of its own")
    return [{"num_frames": frames, **more} for frames in lengths]
