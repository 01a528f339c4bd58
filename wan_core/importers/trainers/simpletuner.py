"""Dataset settings of SimpleTuner: multidatabackend.json, a list of backends (SimpleTuner's
documentation/DATALOADER.md)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from ...dataset.files import MediaFile, Rejected, SourcePart, files_of_folder
from ...errors import DatasetError
from ..source import SourceFile
from .ledger import Ledger, area_of, found_place, only_kind, rounded_frames, with_beside

_EMBEDS = ("text_embeds", "image_embeds", "conditioning_image_embeds")
_ROLES = {"mask": "mask", "controlnet": "control"}
_SIZES = "files keep their aspect ratio; smaller ones are enlarged and named in the report"
_CACHE = "there is one cache for everything, by content"
_WITHOUT = {
    "a name only": "id",
    "": "type default metadata_update_interval max_num_samples start_epoch start_step end_epoch end_step "
    "hash_filenames",
    _CACHE: "cache_dir cache_dir_vae cache_dir_conditioning_image_embeds text_embeds image_embeds write_batch_size "
    "vae_cache_clear_each_epoch",
    "every file is looked at": "metadata_backend skip_file_discovery",
    _SIZES: "minimum_image_size maximum_image_size target_downsample_size minimum_aspect_ratio maximum_aspect_ratio "
    "max_upscale_threshold crop_aspect_buckets",
    "a caption file is one caption": "disable_multiline_split",
    "no counterpart in LoRA training here": "slider_strength",
    "nothing is ever deleted": "delete_unwanted_images delete_problematic_images",
    "nothing makes control files here": "conditioning",
    "choose the parquet file itself": "parquet",
}


def read_simpletuner(data: Sequence[Any], source: SourceFile) -> list[SourcePart]:
    """Returns one part per backend with clips or stills; the first part has the notes about the other backends."""
    parts: list[SourcePart] = []
    aside: list[str] = []
    sections = [cast("dict[str, Any]", entry) for entry in data if isinstance(entry, dict)]
    by_id = {str(section.get("id", "")): section for section in sections}
    for number, section in enumerate(sections, 1):
        name = str(section.get("id") or number)[:60]
        ledger = Ledger(f"{source.path.name}, backend {name!r}", section)
        if why := _not_used(ledger):
            aside.append(f"{ledger.where}: not used: {why}")
        else:
            parts.append(_part(ledger, by_id, source))
    if not parts:
        raise DatasetError(
            f"{source.path.name} names no clips and no stills that can be used: {'; '.join(aside)[:600]}."
        )
    return [replace(parts[0], notes=[*parts[0].notes, *aside]), *parts[1:]]


def _not_used(ledger: Ledger) -> str:
    """Returns why a backend has no files for training; "" if it has some."""
    kind, place = ledger.get("dataset_type", str, "image"), ledger.get("type", str, "local")
    if ledger.get("disabled", bool, False) or ledger.get("disable", bool, False):
        return "it is disabled"
    if kind in _EMBEDS:
        return f"{kind}: {_CACHE}"
    if kind == "conditioning":
        return "it belongs to the dataset whose conditioning_data names it"
    if kind not in ("image", "video"):
        return f"dataset_type {kind}"
    return "" if place == "local" else f"type {place}: only files on this machine are read"


def _part(ledger: Ledger, by_id: Mapping[str, dict[str, Any]], source: SourceFile) -> SourcePart:
    kind = "clip" if ledger.get("dataset_type", str, "image") == "video" else "still"
    place = found_place(ledger.get("instance_data_dir", str, ""), source, ledger)
    found = files_of_folder(place, recursive=True, allowed=source.allowed, named_repeats=False)
    files = only_kind(found.files, kind, ledger)
    ledger.take(f"instance_data_dir {place.name}: {len(files)} {kind}s, subfolders included")
    files, rejected, watched = _conditioning(files, ledger, by_id, source)
    files, caption_settings = _captions(files, ledger)
    settings = {
        **_size(ledger, source),
        **_frames(ledger, kind),
        **_seen(ledger),
        **caption_settings,
        **_shuffle(ledger),
        **_prior(ledger),
    }
    if "mask" in watched:
        settings["mask_use"] = "loss"
    ledger.drop_all(_WITHOUT)
    return SourcePart(
        name=ledger.where,
        files=files,
        rejected=(*found.rejected, *rejected),
        notes=ledger.sentences(),
        settings=settings,
        watched=(place, *watched.values()),
    )


def _prior(ledger: Ledger) -> dict[str, Any]:
    spellings = ("is_regularisation_data", "is_regularization_data")
    if not any([ledger.get(name, bool, False) for name in spellings]):
        return {}
    ledger.take("is_regularisation_data: trained towards what the base model predicts (prior_preservation)")
    return {"prior_preservation": 1.0}


def _size(ledger: Ledger, source: SourceFile) -> dict[str, Any]:
    value, kind = ledger.get("resolution", float, 1024.0), ledger.get("resolution_type", str, "pixel_area")
    side = 1000 * math.sqrt(value) if kind == "area" else value
    if kind not in ("area", "pixel_area", "pixel"):
        raise DatasetError(f"{ledger.where}: resolution_type is {kind[:40]!r}. Known: area, pixel_area, pixel.")
    if kind == "pixel":
        ledger.change(f"resolution {value:g} as the shorter side -> the area of {value:g}x{value:g}")
    crop = ledger.get("crop", bool, False)
    square = crop and ledger.get("crop_aspect", str, "square") == "square"
    ledger.take(
        f"crop {str(crop).lower()}: {'everything to one aspect ratio' if square else 'each file keeps its own'}"
    )
    style = ledger.get("crop_style", str, "center")
    settings: dict[str, Any] = {"enable_bucket": not square}
    if crop and style == "random":
        settings["crop"] = "random"
    elif style not in ("center", "centre"):
        ledger.change(f"crop_style {style} -> center")
    ledger.get("crop_aspect", str, "")
    return {**settings, **area_of(side, side, source, ledger, "resolution")}


def _frames(ledger: Ledger, kind: str) -> dict[str, Any]:
    video = Ledger(f"{ledger.where}, video", ledger.get("video", dict, {}))
    if kind == "still":
        ledger.drop("video", "stills have one frame")
        return {"num_frames": 1}
    least, most = video.get("min_frames", int, 0), video.get("max_frames", int, 0)
    frames = rounded_frames(video.get("num_frames", int, 0) or least or 125, video, "num_frames")
    if least and (least - 1) // 4 * 4 + 1 < frames:
        video.change(f"min_frames {least} -> {frames}: shorter clips are skipped and named")
    if most:
        video.change(f"max_frames {most}: of longer clips the first {frames} frames are used")
    strategy = video.get("bucket_strategy", str, "aspect_ratio")
    if strategy != "aspect_ratio":
        video.change(f"bucket_strategy {strategy} -> one length of {frames} frames")
    video.drop_all({"one length": "frame_interval", "the model that is trained decides": "is_i2v"})
    ledger.absorb(video, "video")
    ledger.change("each frame of a clip is used once, as in SimpleTuner, whatever its rate")
    return {"num_frames": frames, "every_frame": True}


def _seen(ledger: Ledger) -> dict[str, Any]:
    repeats = ledger.get("repeats", int, 0)
    settings: dict[str, Any] = {"num_repeats": repeats + 1}
    ledger.take(f"repeats {repeats}: every file {repeats + 1} times in an epoch (SimpleTuner counts the repetitions)")
    if "probability" in ledger:
        settings["weight"] = ledger.get("probability", float, 1.0)
        ledger.change(f"probability {settings['weight']:g} -> weight, relative to the other datasets")
    return settings


def _captions(files: tuple[MediaFile, ...], ledger: Ledger) -> tuple[tuple[MediaFile, ...], dict[str, Any]]:
    strategy = ledger.get("caption_strategy", str, "filename")
    prompt = ledger.get("instance_prompt", str, "")
    settings: dict[str, Any] = {"missing_captions": "skip the file"}
    in_front = ledger.get("prepend_instance_prompt", bool, False)
    if ledger.get("only_instance_prompt", bool, False):
        strategy = "instanceprompt"
    if in_front and prompt and strategy != "instanceprompt":
        settings["caption_prefix"] = prompt
        ledger.take(f"prepend_instance_prompt: {prompt!r:.60}")
    ledger.take(f"caption_strategy {strategy}")
    if strategy == "textfile":
        ledger.change("lines of a caption file are one caption (in SimpleTuner each line is one)")
        return files, settings
    if strategy == "filename":
        return tuple(replace(file, caption=_spoken(file.path)) for file in files), settings
    if strategy == "instanceprompt":
        if not prompt:
            raise DatasetError(f"{ledger.where}: caption_strategy is instanceprompt, but instance_prompt is empty.")
        ledger.take(f"instance_prompt {prompt!r:.60}")
        return tuple(replace(file, caption=prompt) for file in files), settings
    raise DatasetError(
        f"{ledger.where}: captions by caption_strategy {strategy[:40]!r} are not read from these settings. Choose the "
        "parquet or jsonl file itself."
    )


def _spoken(path: Path) -> str:
    return " ".join(path.stem.replace("_", " ").replace("-", " ").split())


def _shuffle(ledger: Ledger) -> dict[str, Any]:
    shuffle = Ledger(f"{ledger.where}, caption_shuffle", ledger.get("caption_shuffle", dict, {}))
    enabled = shuffle.get("enable", bool, False)
    count, kept = shuffle.get("count", int, 1), shuffle.get("position_start", int, 0)
    separator = shuffle.get("split_on", str, "comma")
    original = shuffle.get("include_original", bool, True)
    shuffle.drop("seed", "the orders follow from the caption")
    settings: dict[str, Any] = {}
    if enabled and separator == "comma":
        settings = {"caption_shuffles": min(64, count + original), "keep_tokens": kept}
        shuffle.take(f"count {count}: {settings['caption_shuffles']} orders that take turns")
    elif enabled:
        shuffle.change(f"split_on {separator} -> captions stay as written: tags are separated by commas")
    ledger.absorb(shuffle, "caption_shuffle")
    return settings


def _conditioning(
    files: tuple[MediaFile, ...], ledger: Ledger, by_id: Mapping[str, dict[str, Any]], source: SourceFile
) -> tuple[tuple[MediaFile, ...], tuple[Rejected, ...], dict[str, Path]]:
    """Returns `files` with the control files and masks of the backends that `conditioning_data` names."""
    places: dict[str, str] = {}
    for name in ledger.texts("conditioning_data"):
        other = Ledger(f"{ledger.where}, {name!r:.60}", by_id.get(name, {}))
        kind = other.get("conditioning_type", str, "")
        role, folder = _ROLES.get(kind), other.get("instance_data_dir", str, "")
        if role is None or role in places or not folder:
            ledger.change(f"conditioning_data {name!r:.60} of type {kind or 'unknown'!r} is not used")
        else:
            places[role] = folder
    return with_beside(files, places, ledger, source)
