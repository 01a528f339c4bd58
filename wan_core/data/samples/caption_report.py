"""What the report of a scan says about captions: where they come from, what is missing, how long they are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from ..sources import TOKEN_LIMIT, estimated_tokens, lengths_of
from .caption_turns import caption_remedies
from .config import DatasetConfig
from .cut_report import one_per_file
from .sample import Sample

__all__ = ["caption_lines"]


def caption_lines(config: DatasetConfig, samples: Sequence[Sample]) -> list[str]:
    """One fact a line."""
    files = one_per_file(samples)
    return [*_sources(config, files), *_missing(config, files), *_turns(config, samples, files), *_lengths(samples)]


def _sources(config: DatasetConfig, files: Sequence[Sample]) -> list[str]:
    counts = Counter(sample.caption_from for sample in files)
    listed = counts["list"] + counts["list+trigger"]
    from_files = counts["file"] + counts["file+trigger"]
    places = [f"{listed} of {len(files)} from the list"] if listed else []
    if from_files or not listed:
        places.append(f"{from_files} of {len(files)} from {config.caption_extension} files")
    lines = ["captions: " + ", ".join(places)]
    if config.caption_prefix.strip():
        lines.append(f"prefix {config.caption_prefix.strip()!r} put in front of every caption")
    if added := counts["file+trigger"] + counts["list+trigger"]:
        noun = "caption" if added == 1 else "captions"
        lines.append(f"trigger word {config.trigger_word.strip()!r} put in front of {added} {noun}")
    return lines


def _missing(config: DatasetConfig, files: Sequence[Sample]) -> list[str]:
    alone = [sample.name for sample in files if sample.caption_from == "trigger"]
    empty = [sample.name for sample in files if sample.caption_from == "none"]
    lines: list[str] = []
    if alone:
        lines.append(f"no caption, trigger word {config.trigger_word.strip()!r} used alone: {_names(alone)}")
    if empty and config.missing_captions == "refuse":
        first = next(sample for sample in files if sample.caption_from == "none")
        lines.append(f"no caption, so nothing is trained yet: {_names(empty)}. {caption_remedies(config, first)}")
    elif empty:
        used = "the prefix alone" if config.caption_prefix.strip() else "the empty prompt"
        lines.append(f"no caption, trained with {used}: {_names(empty)}")
    return lines


def _turns(config: DatasetConfig, samples: Sequence[Sample], files: Sequence[Sample]) -> list[str]:
    if not config.caption_shuffles:
        return []
    texts: dict[tuple[str, float], set[str]] = {}
    for sample in samples:
        texts.setdefault((str(sample.path), sample.cut.start_s), set()).add(sample.caption)
    shuffled = sum(len(found) > 1 for found in texts.values())
    kept = f", the first {config.keep_tokens} tags in place" if config.keep_tokens else ""
    return [
        f"tags: {shuffled} of {len(files)} captions in up to {config.caption_shuffles} orders that take turns, "
        f"one an epoch{kept}"
    ]


def _lengths(samples: Sequence[Sample]) -> list[str]:
    known = {(sample.name, sample.caption): estimated_tokens(sample.caption) for sample in samples}
    lengths = lengths_of((name, count) for (name, _caption), count in known.items())
    line = (
        f"caption length: about {lengths.median} tokens in the middle, {lengths.longest} at most, of {TOKEN_LIMIT} "
        "(estimated from the letters; Cache Latents counts)"
    )
    if not lengths.too_long:
        return [line]
    return [line, f"probably cut at {TOKEN_LIMIT} tokens: {_names(dict.fromkeys(lengths.too_long))}"]


def _names(names: Iterable[str], limit: int = 8) -> str:
    every = list(names)
    rest = len(every) - limit
    return ", ".join(every[:limit]) + (f" and {rest} more" if rest > 0 else "")
