"""The scan report of a dataset node: files used and rejected, windows, captions, companions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from ..choices import CHOICES_FILE
from ..video import covered_size
from ..words import counted, listed, tallied
from .captions import TOKEN_LIMIT, estimated_tokens, lengths_of
from .config import ROLES, DatasetConfig, kind_of, wanted_companions
from .control_files import COMPANION_KINDS
from .files import COMPANION_FOLDERS
from .sample import Dataset, Sample, ScanResult, caption_remedies, one_per_clip, one_per_file
from .windows import round_frames


def _window_lines(config: DatasetConfig, samples: Sequence[Sample]) -> list[str]:
    """Returns lines about windows, crops, mirroring and turns; none for default settings."""
    clips = [sample for sample in samples if sample.kind == "clip"]
    lines: list[str] = []
    if clips and (config.frame_extraction != "head" or config.split_scenes):
        windows: dict[Path, set[tuple[float, int]]] = {}
        for sample in clips:
            windows.setdefault(sample.path, set()).add((sample.cut.start_s, sample.bucket.num_frames))
        counts = [len(found) for found in windows.values()]
        each = f"{min(counts)} to {max(counts)}" if min(counts) < max(counts) else str(counts[0])
        of = f"{sum(counts)} of {counted(len(counts), 'clip')}"
        lines.append(f"windows: {config.frame_extraction}, {of} ({each} of each)")
    if config.split_scenes and clips:
        scenes = {sample.path: sample.scenes for sample in clips}
        lines.append(f"scenes: {sum(scenes.values())} in {counted(len(scenes), 'clip')}; no window crosses a cut")
    if config.crop == "none":
        shrunk = len({sample.path for sample in samples if not sample.cut.framing.native})
        scaled = f"; {counted(shrunk, 'file')} scaled down to {config.width}x{config.height} in area" if shrunk else ""
        lines.append(f"crop: none, each at its own size{scaled}")
    if config.crop == "random":
        sizes = {s.path: ((s.info.width, s.info.height), (s.bucket.width, s.bucket.height)) for s in samples}
        still = sum(covered_size(size, wanted) == wanted for size, wanted in sizes.values())
        fits = f"; {counted(still, 'file')} of the bucket's own aspect ratio: nothing to move" if still else ""
        lines.append(f"crop: random{fits}")
    if config.horizontal_flip != "off":
        how = "sample also left to right" if config.horizontal_flip == "both" else "second epoch"
        lines.append(f"mirrored: every {how}")
    if (turns := max(sample.turns for sample in samples)) > 1:
        seen = sum(sample.turn == 0 for sample in samples)
        lines.append(f"turns: {len(samples)} samples cached, {seen} seen in one epoch; up to {turns} take turns")
    return lines


def _caption_lines(config: DatasetConfig, samples: Sequence[Sample], hint: str = "") -> list[str]:
    """Returns lines about captions, counted in files and in shots with their own; `hint`: ScanResult.caption_hint."""
    # A file lacks a caption if one of its captions is missing.
    lacks = dict[tuple[Path, float | None], int]()
    for sample in samples:
        key = sample.path, sample.captioned_shot_s
        lacks[key] = max(lacks.get(key, 0), _LACKS.get(sample.caption_from, 0))
    files = one_per_clip(s for s in samples if _LACKS.get(s.caption_from, 0) == lacks[s.path, s.captioned_shot_s])
    return [
        *_sources(config, files),
        *_missing(config, files, hint),
        *_turns(config, samples, files),
        *_lengths(samples),
    ]


_LACKS = {"none": 2, "trigger": 1}


def _sources(config: DatasetConfig, files: Sequence[Sample]) -> list[str]:
    counts = Counter(sample.caption_from for sample in files)
    from_list = counts["list"] + counts["list+trigger"]
    from_files = counts["file"] + counts["file+trigger"] + counts["shot"] + counts["shot+trigger"]
    places = [f"{from_list} of {len(files)} from the list"] if from_list else []
    if from_files or not from_list:
        places.append(f"{from_files} of {len(files)} from {config.caption_extension} files")
    lines = ["captions: " + ", ".join(places)]
    if config.caption_prefix.strip():
        lines.append(f"prefix {config.caption_prefix.strip()!r} put in front of every caption")
    if added := counts["file+trigger"] + counts["shot+trigger"] + counts["list+trigger"]:
        noun = "caption" if added == 1 else "captions"
        lines.append(f"trigger word {config.trigger_word.strip()!r} put in front of {added} {noun}")
    return lines


def _missing(config: DatasetConfig, files: Sequence[Sample], hint: str) -> list[str]:
    alone = [sample.clip_name for sample in files if sample.caption_from == "trigger"]
    empty = [sample.clip_name for sample in files if sample.caption_from == "none"]
    lines: list[str] = []
    if alone:
        lines.append(f"no caption, trigger word {config.trigger_word.strip()!r} used alone: {listed(alone)}")
    if empty and config.missing_captions == "refuse":
        first = next(sample for sample in files if sample.caption_from == "none")
        lines.append(f"no caption, so nothing is trained yet: {listed(empty)}. {caption_remedies(config, first, hint)}")
    elif empty:
        used = "the prefix alone" if config.caption_prefix.strip() else "the empty prompt"
        lines.append(f"no caption, trained with {used}: {listed(empty)}")
    if hint and (alone or empty) and not (empty and config.missing_captions == "refuse"):
        lines.append(hint)
    return lines


def _turns(config: DatasetConfig, samples: Sequence[Sample], files: Sequence[Sample]) -> list[str]:
    if not config.caption_shuffles:
        return []
    # Tag orders of one caption have the same words; several captions of a file have different words.
    orders: dict[tuple[tuple[Path, float | None], tuple[str, ...]], set[str]] = {}
    for sample in samples:
        words = tuple(sorted(sample.caption.replace(",", " ").split()))
        orders.setdefault(((sample.path, sample.captioned_shot_s), words), set()).add(sample.caption)
    shuffled = len({path for (path, _words), found in orders.items() if len(found) > 1})
    kept = f", the first {config.keep_tokens} tags in place" if config.keep_tokens else ""
    return [
        f"tags: {shuffled} of {len(files)} captions in up to {config.caption_shuffles} orders that take turns, "
        f"one per epoch{kept}"
    ]


def _lengths(samples: Sequence[Sample]) -> list[str]:
    known = {(sample.clip_name, sample.caption): estimated_tokens(sample.caption) for sample in samples}
    lengths = lengths_of((name, count) for (name, _caption), count in known.items())
    long = listed(dict.fromkeys(lengths.too_long))
    return [
        f"caption length: about {lengths.median} tokens (median), {lengths.longest} (longest), of at most "
        f"{TOKEN_LIMIT} (estimated from the letters; Cache Latents counts)",
        *([f"probably truncated at {TOKEN_LIMIT} tokens: {long}"] if long else []),
    ]


_HURTS = (
    "Masked loss makes Wan LoRAs worse more often than better, because areas outside of the masks drift: compare "
    "with a run without it."
)


def _companion_lines(result: ScanResult) -> list[str]:
    wanted, samples = wanted_companions(result.config), one_per_file(result.samples)
    bare = [sample.name for sample in one_per_file(s for s in result.samples if s.mask is None)]
    lines: list[str] = []
    if "control" in wanted:
        lines.append(f"control videos: {len(samples)} of {len(samples)}")
    if "camera" in wanted:
        lines.append(f"camera poses: {len(samples)} of {len(samples)}")
    if roles := tallied(ROLES[file.role].said for sample in samples for file in sample.context):
        what = "context for training as Bernini-R" if kind_of(result.config).in_context else "files next to clips"
        lines.append(f"{what}: {roles}")
    if "mask" in wanted:
        kind = "loss masks" if result.config.masks_loss else "masks"
        whole = "trained whole" if result.config.masks_loss else "painted whole"
        line = f"{kind}: {len(samples) - len(bare)} of {len(samples)}"
        lines.append(line + (f"; {whole}: {listed(bare)}" if bare else ""))
    if result.config.masks_loss:
        lines.append(_HURTS)
    return lines + _unused_lines(samples)


def _unused_lines(samples: list[Sample]) -> list[str]:
    """Returns a line about clips that are named like companions of another clip, but are trained."""
    stems = {(sample.path.parent, sample.path.stem) for sample in samples}
    found = listed(sample.name for sample in samples if _goes_with(sample.path) in stems)
    return [f"trained like every other file although the name says control or mask: {found}"] if found else []


def _goes_with(path: Path) -> tuple[Path, str]:
    """Returns folder and stem of the file that clip_mask.mp4 or mask/clip.mp4 belongs to."""
    if path.parent.name in COMPANION_FOLDERS:
        return path.parent.parent, path.stem
    base, _, kind = path.stem.rpartition("_")
    return path.parent, base if kind in COMPANION_KINDS else ""


def _choice_lines(result: ScanResult, samples: Sequence[Sample]) -> list[str]:
    found = {
        "excluded": [sample.name for sample in result.excluded],
        "a piece is chosen": [s.name for s in samples if s.choice.is_piece and s.kind == "clip"],
        "the crop is moved": [s.name for s in samples if s.choice.crop is not None],
    }
    return [f"{CHOICES_FILE}: {what}: {listed(names)}" for what, names in found.items() if names]


def scan_report(result: ScanResult) -> str:
    """Returns one line per fact; rejected files with reasons come last."""
    config, samples = result.config, one_per_file(result.samples)
    clips = [s for s in samples if s.kind == "clip"]
    stills = len(samples) - len(clips)
    title = config.folder or "dataset"
    lines = [f"{title}: {counted(len(clips), 'clip')}, {counted(stills, 'still')}"]
    if clips:
        lines.append(_frames_line(result, clips))
    if held := [s.name for s in one_per_file(s for s in result.samples if s.cut.held)]:
        lines.append(f"one frame short of {config.frame_lengths[0]}, so the last frame is repeated: {listed(held)}")
    lines += _window_lines(config, result.samples)
    lines.append("buckets: " + tallied(str(s.bucket) for s in result.samples))
    if paged := [s.name for s in samples if s.info.more_pages]:
        lines.append(f"several pages, of which the first is trained: {listed(paged)}")
    if any(s.upscaled for s in samples):
        lines.append("enlarged: " + listed(s.name for s in samples if s.upscaled))
    if any(s.info.interlaced for s in samples):
        combed = listed(s.name for s in samples if s.info.interlaced)
        lines.append(f"interlaced, so comb artefacts are learned (ffmpeg -vf yadif removes them): {combed}")
    lines += _caption_lines(config, result.samples, result.caption_hint)
    lines += _companion_lines(result)
    lines += _choice_lines(result, samples)
    if config.num_repeats > 1:
        lines.append(f"repeats: each {config.num_repeats} times in an epoch")
    if config.prior_preservation:
        weight = f"weight {config.prior_preservation:g} in the loss"
        lines.append(f"prior preservation: trained towards the base model's prediction, {weight}")
    if config.class_preservation:
        word = f'"{config.class_word}"' if config.class_word.strip() else "nothing"
        lines.append(
            f"class preservation: weight {config.class_preservation:g} in the loss; {word} in place of "
            f'"{config.trigger_word.strip()}"'
        )
    if config.weight != 1:
        lines.append(
            f"weight: {config.weight:g}, how often its files are trained compared with those of other datasets"
        )
    lines += result.notes
    if result.rejected:
        lines.append(f"not used: {counted(len(result.rejected), 'file')}")
        lines += [f"  {r.name}: {r.reason}" for r in result.rejected]
    return "\n".join(lines)


def _frames_line(result: ScanResult, clips: list[Sample]) -> str:
    """Returns the requested lengths with their rounding, such as "73 (75 rounded down)", and the frame rates."""
    config = result.config
    asked = sorted(set(config.frame_buckets)) or [config.num_frames]
    used = [(length, round_frames(length, config.frame_rounding)) for length in asked]
    lengths = ", ".join(
        str(n) if n == length else f"{n} ({length} rounded {'down' if n < length else 'up'})" for length, n in used
    )
    most = "up to " if config.frame_extraction == "full" else ""
    at = "their own rate, each frame once" if config.every_frame else f"{config.read_fps or config.fps:g} fps"
    line = f"frames: {most}{lengths} of each clip at {at}, from {tallied(f'{s.info.fps:.4g}' for s in clips)} fps"
    variable = [s.name for s in clips if s.info.variable_rate]
    return f"{line}; variable rate: {listed(variable)}" if variable else line


def dataset_report(dataset: Dataset) -> str:
    """Returns the reports of all parts."""
    return "\n\n".join(scan_report(part) for part in dataset.parts)
