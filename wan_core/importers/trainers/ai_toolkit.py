"""Dataset settings of ai-toolkit: a YAML job whose processes have `datasets` (ai-toolkit's config/examples)."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

from ...dataset.captions import checked_line
from ...dataset.files import MediaFile, SourcePart, files_of_folder
from ...errors import DatasetError
from ..source import SourceFile
from .ledger import MOST_FRAMES, Ledger, area_of, found_place, only_kind, parts_of, rounded_frames, with_beside

_CACHE = "latents and texts are always cached"
_CONTROL = "control_path takes one folder"
_WITHOUT = {
    "": "type token_dropout_rate network_weight random_scale augments augmentations shuffle_augmentations inpaint_path "
    "alpha_mask invert_mask mask_min_value scale num_workers prefetch_factor debug random_triggers random_triggers_max "
    "use_short_captions standardize_images",
    "caption_dropout of Wan Train Settings": "caption_dropout_rate",
    "its clips are trained like others; see prior_preservation of Wan Dataset Settings": "is_reg",
    "weight scales how often files are trained instead": "loss_multiplier",
    "clips upside down teach nothing": "flip_y",
    "control files are not generated here": "controls",
    _CONTROL: "control_path_1 control_path_2 control_path_3",
    "the model's own grid is used": "bucket_tolerance",
    _CACHE: "cache_latents cache_latents_to_disk cache_text_embeddings cache_clip_vision_to_disk",
    "batch_size of Wan Train Settings": "batch_size",
    "the trained model determines it": "do_i2v",
    "Wan makes no sound": "do_audio audio_normalize audio_preserve_pitch",
}


def read_ai_toolkit(data: Mapping[str, Any], source: SourceFile) -> list[SourcePart]:
    """Returns one part per process, dataset and resolution."""
    parts: list[SourcePart] = []
    for process in processes_of(data):
        datasets: list[Any] = process.get("datasets") or []
        for number, section in enumerate(datasets, 1):
            if not isinstance(section, dict):
                raise DatasetError(f"{source.path.name}: dataset {number} is not a table of settings.")
            ledger = Ledger(f"{source.path.name}, dataset {number}", cast("dict[str, Any]", section))
            parts += _parts(ledger, str(process.get("trigger_word") or ""), process.get("train"), source)
        others = sorted(str(key)[:40] for key in process if key not in ("datasets", "trigger_word"))
        if parts and others:
            note = f"{source.path.name}: settings of the training, not of the dataset, not read: {', '.join(others)}"
            parts[-1] = replace(parts[-1], notes=[*parts[-1].notes, note])
    if not parts:
        raise DatasetError(f"{source.path.name} names no datasets. They are expected under config, process, datasets.")
    return parts


def processes_of(data: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Returns the processes of a job; [] if the data is not a job."""
    config: Any = data.get("config")
    entries: Any = cast("dict[str, Any]", config).get("process") if isinstance(config, dict) else None
    return (
        [entry for entry in cast("list[Any]", entries) if isinstance(entry, dict)] if isinstance(entries, list) else []
    )


def _of_class(ledger: Ledger, train: object, trigger_word: str) -> dict[str, Any]:
    """Returns preservation by a class word, which ai-toolkit has among the settings of the training."""
    section = Ledger(ledger.where, cast("dict[str, Any]", train) if isinstance(train, dict) else {})
    for name in ("diff_output_preservation", "blank_prompt_preservation"):
        if section.get(name, bool, False) and trigger_word.strip():
            weight = section.get(f"{name}_multiplier", float, 1.0)
            word = section.get(f"{name}_class", str, "")
            ledger.take(f"{name}: class_preservation {weight:g}, class_word {word!r:.40}")
            return {"class_preservation": weight, "class_word": word}
    return {}


def _parts(ledger: Ledger, trigger_word: str, train: object, source: SourceFile) -> list[SourcePart]:
    frames = ledger.get("num_frames", int, 1)
    place = found_place(_folder(ledger), source, ledger)
    found = files_of_folder(place, recursive=True, allowed=source.allowed, named_repeats=False)
    automatic = ledger.get("auto_frame_count", bool, False)
    files = found.files if frames > 1 or automatic else only_kind(found.files, "still", ledger)
    ledger.take(f"folder_path {place.name}: {len(files)} files, subfolders included")
    settings = {**_frames(ledger, frames, source), **_picture(ledger), **_captions(ledger, trigger_word)}
    files = _with_default(files, settings["caption_extension"], ledger)
    controls = ledger.texts("control_path")
    for extra in controls[1:]:
        ledger.change(f"control_path {extra!r:.60} is not used: {_CONTROL}")
    places = {"control": next(iter(controls), ""), "mask": ledger.get("mask_path", str, "")}
    files, rejected, watched = with_beside(files, places, ledger, source)
    if "mask" in watched:
        settings["mask_use"] = "loss"
    repeats = ledger.get("num_repeats", int, 1)
    settings["num_repeats"] = repeats
    if ledger.get("prior_reg", bool, False):
        settings["prior_preservation"] = 1.0
        ledger.take("prior_reg: trained towards what the base model predicts (prior_preservation)")
    else:
        settings |= _of_class(ledger, train, settings.get("trigger_word", ""))
    sizes = _sizes(ledger, source)
    ledger.drop_all(_WITHOUT)
    pieces = [(f"{size['width']}x{size['height']}", files, {**settings, **size}) for size in sizes]
    return parts_of(ledger, pieces, (*found.rejected, *rejected), (place, *watched.values()))


def _folder(ledger: Ledger) -> str:
    older = ledger.get("dataset_path", str, "")
    return ledger.get("folder_path", str, older)


def _frames(ledger: Ledger, frames: int, source: SourceFile) -> dict[str, Any]:
    own, shrink = ledger.get("fps", float, 24.0), ledger.get("shrink_video_to_frames", bool, True)
    stated = f"fps {own:g}" if "fps" in ledger else f"no fps is stated: {own:g}, ai-toolkit's own"
    reads = {"read_fps": own} if own != source.fps else {}
    automatic = ledger.get("auto_frame_count", bool, False)
    if frames == 1 and not automatic:
        return {"num_frames": 1}
    if automatic:
        ledger.drop("num_frames", "auto_frame_count decides, as in ai-toolkit")
        ledger.drop("shrink_video_to_frames", "auto_frame_count takes each clip from its beginning")
        if ledger.get("trim_auto_frame_count_tail", bool, True) is False:
            ledger.change("trim_auto_frame_count_tail false -> true: clips keep their speed, their end is not used")
        ledger.take(f"auto_frame_count: each complete clip, as 4n+1 and at most {MOST_FRAMES} frames; {stated}")
        return {"num_frames": MOST_FRAMES, "frame_extraction": "full", **reads}
    frames = rounded_frames(frames, ledger, "num_frames")
    if shrink:
        ledger.drop("fps", "with shrink_video_to_frames ai-toolkit does not use it")
        ledger.change(
            f"shrink_video_to_frames -> the first {frames} frames at {source.fps:g} fps: clips keep their "
            "speed, they are not squeezed into num_frames"
        )
        return {"num_frames": frames}
    ledger.take(f"{stated}; frames are taken at that rate")
    ledger.take("shrink_video_to_frames false: a random window of each clip, another one in each epoch")
    return {"num_frames": frames, "frame_extraction": "random", **reads}


def _picture(ledger: Ledger) -> dict[str, Any]:
    buckets = ledger.get("buckets", bool, True) and not ledger.get("square_crop", bool, False)
    settings: dict[str, Any] = {"enable_bucket": buckets}
    ledger.take(
        "buckets: each file keeps its own aspect ratio" if buckets else "everything is cropped to one aspect ratio"
    )
    if ledger.get("random_crop", bool, False):
        settings["crop"] = "random"
    if ledger.get("flip_x", bool, False):
        settings["horizontal_flip"] = "turns"
        ledger.change("flip_x -> horizontal_flip turns: mirrored in every second epoch")
    return settings


def _captions(ledger: Ledger, general_trigger: str) -> dict[str, Any]:
    extension = ledger.get("caption_type", str, "") or ledger.get("caption_ext", str, ".txt")
    ledger.get("caption_ext", str, "")
    settings: dict[str, Any] = {
        "caption_extension": extension if extension.startswith(".") else f".{extension}",
        "missing_captions": "empty caption",
    }
    ledger.take(f"caption_ext {settings['caption_extension']}; files without a caption get an empty one")
    if trigger := ledger.get("trigger_word", str, general_trigger):
        settings["trigger_word"] = trigger
        ledger.take(f"trigger_word {trigger!r:.60}")
    if ledger.get("shuffle_tokens", bool, False):
        settings["caption_shuffles"] = 8
        settings["keep_tokens"] = ledger.get("keep_tokens", int, 0)
        ledger.change(
            f"shuffle_tokens -> 8 orders of the tags that take turns, the first {settings['keep_tokens']} in place"
        )
    ledger.get("keep_tokens", int, 0)
    for words in ledger.texts("replacements")[:20]:
        ledger.change(f"replacements {words!r:.60} -> captions stay as written")
    return settings


def _with_default(files: tuple[MediaFile, ...], extension: str, ledger: Ledger) -> tuple[MediaFile, ...]:
    """Returns `files`, with `default_caption` for files without a caption file."""
    default = checked_line(ledger.get("default_caption", str, ""), f"{ledger.where}: default_caption")
    if not default:
        return files
    bare = {file.path for file in files if not os.path.lexists(file.path.with_suffix(extension))}
    ledger.take(f"default_caption {default!r:.60} for {len(bare)} files without a caption file")
    return tuple(replace(file, caption=default) if file.path in bare else file for file in files)


def _sizes(ledger: Ledger, source: SourceFile) -> list[dict[str, int]]:
    sides = ledger.whole_numbers("resolution", (512,))
    return [area_of(side, side, source, ledger, "resolution") for side in sides]
