"""Scans files into samples: probes each file, reads its caption, and chooses its cuts and buckets.

A scan reads headers, packets and captions, and decodes nothing, so it finds the problems of a dataset before a model is
loaded. `files.py` or an importer lists the files.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby
from pathlib import Path

from ..choices import CHOICES_FILE, Choice, Choices
from ..errors import ConfigError, DatasetError
from ..files import FileError, file_mark
from ..video import shown
from ..words import filled, listed
from .allowed import leads_outside
from .bucket import nearest_frames
from .caption_names import CaptionNames
from .captions import LINK_OUTSIDE, caption_with_prefix, caption_with_trigger, read_caption, tag_orders
from .config import DatasetConfig, wanted_companions
from .control_files import accompanied, with_companions, with_their_companions
from .cutting import cut_file, scene_cuts
from .files import OTHER_SUFFIXES, MediaFile, Rejected, SourcePart, UnfitError, files_of_folder
from .known_files import ScanContext
from .sample import Sample, ScanResult, with_captions


def _captions_of(written: Sequence[str], config: DatasetConfig) -> tuple[str, ...]:
    """Returns the training captions of a file. Several captions take turns, one per epoch."""
    trigger = config.trigger_word.strip()
    orders = [order for text in written for order in tag_orders(text, config.caption_shuffles, config.keep_tokens)]
    captions = (caption_with_trigger(caption_with_prefix(order, config.caption_prefix), trigger) for order in orders)
    return tuple(dict.fromkeys(captions))


def _source_of_caption(written: str, place: str, config: DatasetConfig) -> str:
    """Returns Sample.caption_from; `place` is "shot", "file" or "list"."""
    trigger = config.trigger_word.strip()
    if not written:
        return "trigger" if trigger else "none"
    added = bool(trigger) and trigger not in caption_with_prefix(written, config.caption_prefix)
    return f"{place}+trigger" if added else place


MIN_SOURCE_PIXELS = 16
"""per side"""


class NothingUsableError(DatasetError):
    """A dataset without a usable file; the message has the reasons for the first files."""


def scan_folder(config: DatasetConfig, folder: Path, context: ScanContext) -> ScanResult:
    """Scan the files of `folder`, and of its subfolders if the config is recursive."""
    return scan_files(config, files_of_folder(folder, recursive=config.recursive, allowed=context.allowed), context)


def scan_files(config: DatasetConfig, part: SourcePart, context: ScanContext) -> ScanResult:
    """Scan files; DatasetError if no file is usable.

    Files without a caption are samples, so that they can be shown, unless the config skips them;
    `Dataset.require_captions` refuses to encode them.
    """
    if config.class_preservation and not config.trigger_word.strip():
        raise DatasetError(
            "class_preservation needs a trigger_word, which class_word replaces in the captions. Set trigger_word of "
            "the dataset, or class_preservation to 0."
        )
    again, source, notes = partial(scan_files, config, part), part.name, part.notes
    samples: list[Sample] = []
    excluded: list[Sample] = []
    rejected = list(part.rejected)
    choices = Choices(context.allowed)
    files = with_companions(part.files, wanted_companions(config))
    out = {file.path for file in files if choices.of(file.path).excluded}
    if follow := with_their_companions(out, files) - out:
        files = [file for file in files if file.path not in follow]
        notes = (*notes, f"excluded with their clips: {listed(sorted(shown(path) for path in follow))}")
    if config.conditioning == "context" and not any(file.context for file in files):
        config = replace(config, conditioning="none")
    captions = CaptionNames(config.caption_extension, context.allowed)
    for number, file in enumerate(files):
        context.stop_if_asked(f"scanning {source}")
        choice = choices.of(file.path)
        try:
            found = accompanied(_look_at(file, config, context, captions, choice), file, config, context)
            if choice.excluded:
                excluded += found[:1]
            else:
                samples += found
        except UnfitError as error:
            left = Rejected(name=file.shown_name, reason=str(error), **error.more)
            if choice.excluded:
                left = replace(left, reason=f"is excluded, and {left.reason}", frames=0, wants_caption=None)
            rejected.append(left)
        context.tell(number + 1, len(files), file.shown_name)
    notes = (*notes, *_without_shot(config, samples, captions))
    bare = [sample.path for sample in samples if sample.caption_from in ("none", "trigger")]
    caption_hint = part.caption_hint or next((said for path in bare[:20] if (said := captions.unread(path))), "")
    skipped = [s for s in samples if s.caption_from == "none" and config.missing_captions == "skip the file"]
    if skipped:
        samples = [sample for sample in samples if sample.caption_from != "none"]
        text = f"{config.caption_extension} file"
        why = f"has no caption ({text} missing or empty), and missing_captions is skip the file"
        missing = {sample.clip_name: None if sample.listed else sample.path for sample in skipped}
        rejected += [Rejected(name=name, reason=why, wants_caption=path) for name, path in missing.items()]
    if not samples and config.missing_captions == "refuse" and not config.trigger_word.strip():
        samples, rejected, unread = _shown_without_captions(files, rejected, config, context, captions, choices)
        notes = (*notes, *unread)
    if not samples and excluded:
        raise NothingUsableError(
            "All {count} usable files of dataset folder {source} are excluded. Press Undo on the node, or "
            "delete {file} in the folder.",
            count=len(excluded),
            source=f"{source!r}",
            file=CHOICES_FILE,
        )
    if not samples:
        raise NothingUsableError(_nothing_left(source, config, rejected))
    return ScanResult(
        config=config,
        samples=tuple(samples),
        rejected=tuple(rejected),
        notes=tuple(notes),
        caption_hint=caption_hint,
        excluded=tuple(excluded),
        skipped=tuple(skipped),
        again=again,
    )


def _without_shot(config: DatasetConfig, samples: Sequence[Sample], captions: CaptionNames) -> list[str]:
    shots: dict[Path, list[float]] = {}
    for sample in samples:
        shots.setdefault(sample.path, []).extend([] if sample.shot_s is None else [sample.shot_s])
    lost = [shown(name) for path, starts in shots.items() for name in captions.without_shot(path, starts)]
    why = "no trained shot has their start" if config.split_scenes else "split_scenes is off"
    return [f"captions of shots that are not read, because {why}: {listed(lost)}"] if lost else []


def _shown_without_captions(
    files: Sequence[MediaFile],
    rejected: Sequence[Rejected],
    config: DatasetConfig,
    context: ScanContext,
    captions: CaptionNames,
    choices: Choices,
) -> tuple[list[Sample], list[Rejected], list[str]]:
    """Returns samples of the files with an unreadable caption, the other rejected files, and notes with the reasons.

    Used for a dataset without a usable file, so that the card shows the clips and can write their captions.
    """
    unread = {item.wants_caption: item for item in rejected if item.wants_caption is not None}
    samples: list[Sample] = []
    for file in files:
        if file.path in unread:
            # Probed with an empty caption, because the clip itself may be unusable too.
            with contextlib.suppress(UnfitError):
                looked = _look_at(replace(file, caption=""), config, context, captions, choices.of(file.path))
                found = accompanied(looked, file, config, context)
                samples += [replace(sample, listed=False) for sample in found]
    shown_now = {sample.path for sample in samples}
    left = [item for item in rejected if item.wants_caption not in shown_now]
    return samples, left, [f"{unread[path].name}: {unread[path].reason}" for path in sorted(shown_now)]


def _look_at(
    file: MediaFile, config: DatasetConfig, context: ScanContext, captions: CaptionNames, choice: Choice
) -> list[Sample]:
    path = file.path
    if leads_outside(path, context.allowed):
        raise UnfitError(LINK_OUTSIDE)
    if path.is_dir():
        raise UnfitError("is a folder; turn on recursive in Wan Dataset Settings to read its files")
    if path.suffix.lower() in OTHER_SUFFIXES:
        raise UnfitError(f"{path.suffix} files are not read; convert it to mp4 or png")
    try:
        info = context.probe(path)
        mark = tuple(file_mark(path))
        if min(info.width, info.height) < MIN_SOURCE_PIXELS:
            raise UnfitError(f"is only {info.width}x{info.height} pixels")
        cuts_s = scene_cuts(path, info, config, context) if config.split_scenes else ()
        # before the caption: `wants_caption` means that the clip itself is usable
        pieces = cut_file(path, info, config, context, cuts_s, choice)
    except (DatasetError, FileError, OSError) as error:
        raise UnfitError(str(error).removeprefix(f"{shown(path)} ").rstrip(".")) from error
    try:
        written = {shot_s: _caption_of(file, shot_s, context, captions) for shot_s in {p.shot_s for p in pieces}}
    except DatasetError as error:
        # A caption of the file would not replace that of a shot.
        wants_caption = None if captions.without_shot(path, ()) else path
        raise UnfitError(f"its caption {str(error).rstrip('.')}", wants_caption=wants_caption) from error
    samples = [
        Sample(
            path=path,
            name=file.shown_name,
            caption=written[piece.shot_s][0],
            caption_from=_source_of_caption(*written[piece.shot_s], config),
            info=info,
            mark=mark,
            repeats=config.num_repeats * file.repeats,
            weight=config.weight * file.weight,
            listed=file.caption is not None,
            choice=choice,
            **vars(piece),
        )
        for piece in pieces
    ]
    return [
        sample
        for caption, same in groupby(samples, lambda sample: sample.caption)
        for sample in with_captions(list(same), _captions_of((caption, *file.more_captions), config))
    ]


def _caption_of(file: MediaFile, shot_s: float | None, context: ScanContext, captions: CaptionNames) -> tuple[str, str]:
    """Returns the caption of a shot, or else of its file, and its place as in `_source_of_caption`."""
    if file.caption is not None:
        return file.caption, "list"
    if shot_s is not None and (own := read_caption(captions.of_shot(file.path, shot_s), allowed=context.allowed)):
        return own, "shot"
    return read_caption(captions.file_of(file.path), allowed=context.allowed), "file"


def _nothing_left(source: str, config: DatasetConfig, rejected: list[Rejected]) -> str:
    shown, more = _first_reasons(rejected)
    fix = "Add clips that can be read."
    if longest := max(r.frames for r in rejected):
        setting = "frame_buckets" if config.frame_buckets else "num_frames"
        frames = nearest_frames(longest)
        fix = filled("Set {setting} to {longest}, or add longer clips.", setting=setting, longest=frames)
    return filled(
        "No file of dataset folder {source} can be used ({shown}{more}). {fix}",
        source=f"{source!r}",
        shown=shown,
        more=more,
        fix=fix,
    )


def scan_parts(
    config: DatasetConfig, parts: Sequence[SourcePart], context: ScanContext, *, use_settings: bool = True
) -> tuple[ScanResult, ...]:
    """Scan each part of a source. Settings of a part override `config`, if `use_settings`.

    A part without a usable file becomes a note of the first usable part; DatasetError if no part is usable.
    """
    found: list[ScanResult] = []
    empty: list[tuple[SourcePart, NothingUsableError]] = []
    for part in parts:
        own = config
        if use_settings:
            titled = {"folder": part.name} if part.settings else {}
            try:
                own = DatasetConfig.from_dict({**config.to_dict(), **titled, **part.settings})
            except ConfigError as error:
                raise ConfigError(f"{part.name}: {error}") from error
        try:
            if not part.files:
                reasons, more = _first_reasons(part.rejected)
                raise NothingUsableError(f"No row of {part.name} can be used ({reasons}{more}). Correct the list.")
            found.append(scan_files(own, part, context))
        except NothingUsableError as error:
            empty.append((part, error))
    if not found:
        raise empty[0][1]
    lines = tuple(f"{part.name}: not used: {error}" for part, error in empty)
    return (replace(found[0], notes=(*found[0].notes, *lines)), *found[1:])


def _first_reasons(rejected: Sequence[Rejected]) -> tuple[str, str]:
    reasons = "; ".join(f"{item.name}: {item.reason}" for item in rejected[:5])
    return reasons, f"; and {len(rejected) - 5} more" if len(rejected) > 5 else ""
