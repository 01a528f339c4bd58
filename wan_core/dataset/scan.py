"""Scans files into samples: probes each file, reads its caption, and chooses its cuts and buckets.

A scan reads headers, packets and captions, and decodes nothing, so it finds the problems of a dataset before a model is
loaded. `files.py` or an importer lists the files.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby
from pathlib import Path

from ..choices import CHOICES_FILE, Choice, Choices
from ..errors import ConfigError, DatasetError
from ..files import FileError, file_mark
from ..video import ClipInfo, shown
from ..words import filled, listed
from .allowed import leads_outside
from .bucket import nearest_frames
from .caption_names import CaptionNames
from .captions import LINK_OUTSIDE, caption_with_prefix, caption_with_trigger, read_caption, tag_orders
from .config import DatasetConfig, wanted_companions
from .control_files import accompanied, with_companions, with_their_companions
from .cutting import MAX_PIECES, Piece, TooMany, TooShort, TooSmall, cut_file, reading_fps, scene_cuts
from .files import OTHER_SUFFIXES, MediaFile, Rejected, SourcePart, files_of_folder
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


def _without_captionless(
    config: DatasetConfig, samples: Sequence[Sample]
) -> tuple[list[Sample], list[Sample], list[Rejected]]:
    """Returns the samples that are trained, those that missing_captions skips, and the skipped files or shots."""
    if config.missing_captions != "skip the file":
        return list(samples), [], []
    skipped = [sample for sample in samples if sample.caption_from == "none"]
    missing = {sample.clip_name: sample for sample in skipped}
    reason = f"has no caption ({config.caption_extension} file missing or empty), and missing_captions is skip the file"
    kept = [sample for sample in samples if sample.caption_from != "none"]
    rejected = [
        Rejected(name=name, reason=reason, wants_caption=None if sample.listed else sample.path)
        for name, sample in missing.items()
    ]
    return kept, skipped, rejected


MIN_SOURCE_PIXELS = 16
"""per side"""


class NothingUsableError(DatasetError):
    """A dataset without a usable file; the message has the reasons for the first files."""


def scan_folder(config: DatasetConfig, folder: Path, context: ScanContext) -> ScanResult:
    """Scan the files of `folder`, and of its subfolders if the config is recursive."""
    found = files_of_folder(folder, recursive=config.recursive, allowed=context.allowed)
    return scan_files(config, folder.name, found.files, context, rejected=found.rejected, notes=found.notes)


def scan_files(
    config: DatasetConfig,
    source: str,
    files: Sequence[MediaFile],
    context: ScanContext,
    *,
    rejected: Sequence[Rejected] = (),
    notes: Sequence[str] = (),
    caption_hint: str = "",
) -> ScanResult:
    """Scan files; DatasetError if no file is usable.

    `source` names the dataset in messages; `rejected`, `notes` and `caption_hint`: see SourcePart. Files without a
    caption are samples, so that they can be shown, unless the config skips them; `Dataset.require_captions` refuses to
    encode them.
    """
    if config.class_preservation and not config.trigger_word.strip():
        raise DatasetError(
            "class_preservation needs a trigger_word, which class_word replaces in the captions. Set trigger_word of "
            "the dataset, or class_preservation to 0."
        )
    given = {"rejected": rejected, "notes": notes, "caption_hint": caption_hint}
    again = partial(scan_files, config, source, files, **given)
    samples: list[Sample] = []
    excluded: list[Sample] = []
    rejected = list(rejected)
    choices = Choices(context.allowed)
    files = with_companions(files, wanted_companions(config))
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
        found = accompanied(_look_at(file, config, context, captions, choice), file, config, context)
        if isinstance(found, Rejected):
            rejected.append(_left_out(found, choice))
        elif choice.excluded:
            excluded += found[:1]
        else:
            samples += found
        context.tell(number + 1, len(files), file.shown_name)
    notes = (*notes, *_read_of_several(files, captions), *_without_shot(config, samples, captions))
    caption_hint = caption_hint or _unread_caption(samples, captions)
    samples, skipped, without_caption = _without_captionless(config, samples)
    rejected += without_caption
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


def _left_out(found: Rejected, choice: Choice) -> Rejected:
    """Returns a rejected file; one that is excluded as well wants no caption."""
    if not choice.excluded:
        return found
    return replace(found, reason=f"is excluded, and {found.reason}", frames=0, wants_caption=None)


def _read_of_several(files: Sequence[MediaFile], captions: CaptionNames) -> list[str]:
    """Returns a note about media files with several caption files."""
    several = [found for file in files if file.caption is None and len(found := captions.files_of(file.path)) > 1]
    said = [f"{shown(found[0])} is read, not {shown(found[1])}" for found in several]
    more = f"; and {len(said) - 5} more" if len(said) > 5 else ""
    return [f"captions of one file: {'; '.join(said[:5])}{more}"] if said else []


def _without_shot(config: DatasetConfig, samples: Sequence[Sample], captions: CaptionNames) -> list[str]:
    """Returns a note about caption files of shots that are not among the samples."""
    shots: dict[Path, list[float]] = {}
    for sample in samples:
        shots.setdefault(sample.path, []).extend([] if sample.shot_s is None else [sample.shot_s])
    lost = [shown(name) for path, starts in shots.items() for name in captions.without_shot(path, starts)]
    why = "no trained shot has their start" if config.split_scenes else "split_scenes is off"
    return [f"captions of shots that are not read, because {why}: {listed(lost)}"] if lost else []


def _unread_caption(samples: Sequence[Sample], captions: CaptionNames) -> str:
    """Returns a clause about a file that may be a missing caption."""
    bare = [sample.path for sample in samples if sample.caption_from in ("none", "trigger")]
    return next((said for path in bare[:20] if (said := captions.unread(path))), "")


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
            looked = _look_at(replace(file, caption=""), config, context, captions, choices.of(file.path))
            found = accompanied(looked, file, config, context)
            samples += [replace(sample, listed=False) for sample in ([] if isinstance(found, Rejected) else found)]
    shown_now = {sample.path for sample in samples}
    left = [item for item in rejected if item.wants_caption not in shown_now]
    return samples, left, [f"{unread[path].name}: {unread[path].reason}" for path in sorted(shown_now)]


def _look_at(
    file: MediaFile, config: DatasetConfig, context: ScanContext, captions: CaptionNames, choice: Choice
) -> list[Sample] | Rejected:
    path, name = file.path, file.shown_name
    if leads_outside(path, context.allowed):
        return Rejected(name=name, reason=LINK_OUTSIDE)
    if path.is_dir():
        return Rejected(name=name, reason="is a folder; turn on recursive in Wan Dataset Settings to read its files")
    if path.suffix.lower() in OTHER_SUFFIXES:
        return Rejected(name=name, reason=f"{path.suffix} files are not read; convert it to mp4 or png")
    try:
        info = context.probe(path)
        mark = tuple(file_mark(path))
    except (DatasetError, OSError) as error:
        return Rejected(name=name, reason=str(error).removeprefix(f"{shown(path)} ").rstrip("."))
    pieces = _cut(path, info, config, context, choice)
    if isinstance(pieces, Rejected):  # before the caption: `wants_caption` means that the clip itself is usable
        return pieces
    try:
        written = {shot_s: _caption_of(file, shot_s, context, captions) for shot_s in {p.shot_s for p in pieces}}
    except DatasetError as error:
        # A caption of the file would not replace that of a shot.
        wants_caption = None if captions.without_shot(path, ()) else path
        return Rejected(name=name, reason=f"its caption {str(error).rstrip('.')}", wants_caption=wants_caption)
    samples = [
        Sample(
            path=path,
            name=name,
            caption=written[piece.shot_s][0],
            caption_from=_source_of_caption(*written[piece.shot_s], config),
            info=info,
            bucket=piece.bucket,
            mark=mark,
            cut=piece.cut,
            repeats=config.num_repeats * file.repeats,
            turn=piece.turn,
            turns=piece.turns,
            scenes=piece.scenes,
            shot_s=piece.shot_s,
            weight=config.weight * file.weight,
            listed=file.caption is not None,
            choice=choice,
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


def _cut(
    path: Path, info: ClipInfo, config: DatasetConfig, context: ScanContext, choice: Choice
) -> list[Piece] | Rejected:
    if min(info.width, info.height) < MIN_SOURCE_PIXELS:
        return Rejected(name=shown(path), reason=f"is only {info.width}x{info.height} pixels")
    cuts_s: Sequence[float] = ()
    try:
        if config.split_scenes:
            cuts_s = scene_cuts(path, info, config, context)
        return cut_file(path, info, config, context, cuts_s, choice)
    except (DatasetError, FileError) as error:
        return Rejected(name=shown(path), reason=str(error).removeprefix(f"{shown(path)} ").rstrip("."))
    except TooShort as short:
        reason = _too_short(info, config, short.frames, cuts_s, choice.is_piece)
        if choice.is_piece:
            reason = f"its chosen piece {reason}"
        return Rejected(name=path.name, reason=reason, frames=short.frames, too_short=path, is_piece=choice.is_piece)
    except TooMany:
        reason = f"lasts {info.duration_s:.0f} s and would give more than {MAX_PIECES} windows; cut it into clips"
        return Rejected(name=shown(path), reason=reason)
    except TooSmall:
        size, grid = f"{info.width}x{info.height}", config.size_multiple
        return Rejected(name=shown(path), reason=f"is only {size} pixels, and crop is none: each side needs {grid}")


def _too_short(info: ClipInfo, config: DatasetConfig, available: int, cuts_s: Sequence[float], is_piece: bool) -> str:
    whose = f"has {len(cuts_s) + 1} scenes, the longest of" if cuts_s else "has"
    rate = reading_fps(info, config)
    at = f" at {rate:.4g} fps"
    source = "" if is_piece or abs(info.fps - rate) < 0.01 else f" ({info.num_frames} at {info.fps:.4g} fps)"
    least = config.frame_lengths[0]
    needed = f"{least}, the shortest of frame_buckets" if config.frame_buckets else f"num_frames {least}"
    return f"{whose} {available} frames{at}{source}, fewer than {needed}"


def _nothing_left(source: str, config: DatasetConfig, rejected: list[Rejected]) -> str:
    shown, more = _first_reasons(rejected)
    longest = max(r.frames for r in rejected)
    fix = "Add clips that can be read."
    if longest:
        setting = "frame_buckets" if config.frame_buckets else "num_frames"
        fix = filled(
            "Set {setting} to {longest}, or add longer clips.", setting=setting, longest=nearest_frames(longest)
        )
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
        own = _config_of_part(config, part) if use_settings else config
        try:
            if not part.files:
                reasons, more = _first_reasons(part.rejected)
                raise NothingUsableError(f"No row of {part.name} can be used ({reasons}{more}). Correct the list.")
            scanned = scan_files(
                own,
                part.name,
                part.files,
                context,
                rejected=part.rejected,
                notes=part.notes,
                caption_hint=part.caption_hint,
            )
            found.append(scanned)
        except NothingUsableError as error:
            empty.append((part, error))
    if not found:
        raise empty[0][1]
    lines = tuple(f"{part.name}: not used: {error}" for part, error in empty)
    return (replace(found[0], notes=(*found[0].notes, *lines)), *found[1:])


def _config_of_part(config: DatasetConfig, part: SourcePart) -> DatasetConfig:
    """Returns `config` with the settings of a part; ConfigError names the part."""
    titled = {"folder": part.name} if part.settings else {}
    try:
        return DatasetConfig.from_dict({**config.to_dict(), **titled, **part.settings})
    except ConfigError as error:
        raise ConfigError(f"{part.name}: {error}") from error


def _first_reasons(rejected: Sequence[Rejected]) -> tuple[str, str]:
    reasons = "; ".join(f"{item.name}: {item.reason}" for item in rejected[:5])
    return reasons, f"; and {len(rejected) - 5} more" if len(rejected) > 5 else ""
