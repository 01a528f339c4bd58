"""Converts cache sets to MaxDiffusion's Wan training sets (TFRecords of latents and text features), and back.

Its Wan trainers (maxdiffusion, src/maxdiffusion/trainers/wan_trainer.py and
data_preprocessing/wan_pusav1_to_tfrecords.py, wan_txt2vid_data_preprocessing.py) read one Example per clip, with
`latents` (C, F, h, w) and `encoder_hidden_states` (512, 4096), each a serialized float32 tensor; evaluation sets also
have `timesteps`, an int64. Latents are normalised, as in the cache. So the conversion only changes bfloat16 to float32,
which is exact, and pads texts.

MaxDiffusion ignores other features, so exported records also have names, captions, repeats, turns and weights, and the
first record of a folder has the two prompts. Loss masks and held-out clips are not exported.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from ...cache import TEXT_LENGTH, TEXT_WIDTH, CacheItem, CacheSet, EncodingReport, LatentCache, pad_text, synthetic_note
from ...errors import CacheError, DatasetError, stop_if
from ...files import atomic_write
from ...model import condition_named
from ..graph_tensors import PromptKeys, TensorClip, space_of, store_clips, store_text
from .example import Example, decode_example, decode_tensor, encode_example, encode_tensor
from .records import read_records, record_bytes

LATENTS, TEXT, TIMESTEPS = "latents", "encoder_hidden_states", "timesteps"
_OURS = "wan_trainer/"
_EMPTY, _NEGATIVE = f"{_OURS}empty_prompt", f"{_OURS}negative_prompt"
_NAME, _CAPTION, _REPEATS, _FPS = (f"{_OURS}{word}" for word in ("name", "caption", "repeats", "fps"))
_TURN, _TURNS, _WEIGHT = (f"{_OURS}{word}" for word in ("turn", "turns", "weight"))
_FILES = re.compile(r"\.tfrec(ord)?s?(-\d+-of-\d+)?$")
_MOST_RECORDS = 100_000


@dataclass(frozen=True)
class ExportReport:
    """The result of an export."""

    folders: tuple[str, ...]
    """subfolders of the requested folder, one per clip size; "." for a single size"""
    files: int
    records: int
    size_bytes: int


@dataclass(frozen=True)
class ImportReport:
    """The result of an import."""

    fingerprint: str
    cache_set: CacheSet
    encoding: EncodingReport
    files: int
    timesteps: int
    """number of records with evaluation timesteps, which are ignored"""


def export_records(
    cache: LatentCache,
    fingerprint: str,
    folder: Path,
    *,
    records_per_shard: int = 10,
    eval_timesteps: Sequence[int] = (),
    should_stop: Callable[[], bool] | None = None,
) -> ExportReport:
    """Write a cache set as shards that MaxDiffusion trains on. `folder` must be empty or new.

    MaxDiffusion reads all files of a folder and stacks their records, so each clip size gets a folder of its own.
    `eval_timesteps`: each record has one of these timesteps, in equal shares and in this order.
    """
    cache_set = cache.read_set(fingerprint)
    _require_exportable(cache_set, folder, records_per_shard)
    groups: dict[str, list[CacheItem]] = {}
    for item in cache_set.items:
        groups.setdefault(str(item.bucket), []).append(item)
    names = dict.fromkeys(groups, ".") if len(groups) == 1 else {bucket: bucket for bucket in groups}
    of_the_set, files, size = _set_features(cache, cache_set), 0, 0
    for bucket, items in groups.items():
        below = folder / names[bucket]
        below.mkdir(parents=True, exist_ok=True)
        for start in range(0, len(items), records_per_shard):
            # File names as in MaxDiffusion's script: number of the shard, and number of records up to the shard's end.
            name = f"file_{start // records_per_shard:02d}-{start + records_per_shard}.tfrec"
            with atomic_write(below / name) as file:
                for number, item in enumerate(items[start : start + records_per_shard], start):
                    stop_if(should_stop, "writing TFRecords")
                    features = _features(cache, cache_set, item) | (of_the_set if number == 0 else {})
                    if eval_timesteps:
                        features[TIMESTEPS] = [eval_timesteps[number * len(eval_timesteps) // len(items)]]
                    size += file.write(record_bytes(encode_example(features)))
            files += 1
    return ExportReport(tuple(names.values()), files, len(cache_set.items), size)


def import_records(
    folder: Path,
    cache: LatentCache,
    *,
    prompts: PromptKeys | None = None,
    fps: float = 0.0,
    raw: bool = False,
    should_stop: Callable[[], bool] | None = None,
) -> ImportReport:
    """Store the TFRecords of `folder` and its direct subfolders as a cache set.

    `prompts`: keys of the empty and the negative prompt, for files of another program; None: those in the first record.
    `raw`: the latents are not normalised. `fps` 0: 16, or 24 for latents of 48 channels.
    """
    if fps and not 1 <= fps <= 120:
        raise DatasetError(f"fps is {fps:g}. Set it between 1 and 120; Wan was trained at 16, TI2V-5B at 24.")
    files = record_files(folder)
    first = next(_examples(files[:1]), None)
    if first is None:
        raise DatasetError(f"{files[0].name} holds no records. Write it again.")
    place, features = first
    latents = _tensor(features, LATENTS, place)
    space = space_of(_clip_axes(latents, place).shape[0], place)
    timesteps = 0

    def clips() -> Iterator[TensorClip]:
        nonlocal timesteps
        for place, features in _examples(files):
            timesteps += TIMESTEPS in features
            latent = _clip_axes(_tensor(features, LATENTS, place), place)
            yield TensorClip(
                latent=space.normalise(latent) if raw and len(latent) == space.channels else latent,
                text=_tensor(features, TEXT, place),
                name=_word(features, _NAME) or place,
                caption=_word(features, _CAPTION),
                repeats=int(_number(features, _REPEATS, 1, place, 1, 10_000)),
                turn=int(_number(features, _TURN, 0, place, 0, 10_000)),
                turns=int(_number(features, _TURNS, 1, place, 1, 10_000)),
                weight=_number(features, _WEIGHT, 1.0, place, 1e-4, 1e4),
            )

    cache_set, encoding = store_clips(
        clips(),
        cache,
        prompts=prompts or _prompts(features, cache, place),
        space=space,
        kind=condition_named("none"),
        fps=fps or _number(features, _FPS, space.fps, place, 1, 120),
        should_stop=should_stop,
    )
    return ImportReport(encoding.fingerprint, cache_set, encoding, len(files), timesteps)


def _require_exportable(cache_set: CacheSet, folder: Path, records_per_shard: int) -> None:
    cache_set.require_items()
    if not 1 <= records_per_shard <= _MOST_RECORDS:
        raise DatasetError(f"records_per_shard is {records_per_shard}. Set it between 1 and {_MOST_RECORDS}.")
    if note := synthetic_note(cache_set):
        raise DatasetError(f"This set is not exported: {note} MaxDiffusion has its own (dataset_type synthetic).")
    if cache_set.kind.tensors:
        raise DatasetError(
            f'The set is conditioned on "{cache_set.conditioning}"; MaxDiffusion trains Wan on latents and texts '
            "alone. Export a set made for a text-to-video model."
        )
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise DatasetError(f"{folder.name} is there and not empty. Choose a new folder: MaxDiffusion reads every file.")
    need = 4 * sum(_values(cache_set, item) for item in cache_set.items)
    above = next(place for place in (folder, *folder.parents) if place.is_dir())
    if need > (free := shutil.disk_usage(above).free):
        raise CacheError(f"The records take {need / 2**30:.1f} GiB, of {free / 2**30:.1f} GiB free. Free disk space.")


def _values(cache_set: CacheSet, item: CacheItem) -> int:
    channels, frames, height, width = cache_set.latent_shape(item)
    return channels * frames * height * width + TEXT_LENGTH * TEXT_WIDTH


def _features(cache: LatentCache, cache_set: CacheSet, item: CacheItem) -> Example:
    latent = cache.read_latent(item.latent_key, cache_set.latent_shape(item))
    return {
        LATENTS: [encode_tensor(latent)],
        TEXT: [encode_tensor(pad_text(cache.read_text(item.text_key)))],
        _NAME: [item.name.encode()],
        _CAPTION: [item.caption.encode()],
        _REPEATS: [item.repeats],
        **({_TURN: [item.turn], _TURNS: [item.turns]} if item.turns > 1 else {}),
        **({_WEIGHT: [float(item.weight)]} if item.weight != 1 else {}),
    }


def _set_features(cache: LatentCache, cache_set: CacheSet) -> Example:
    """Returns the features that only the first record of a folder has."""
    return {
        _EMPTY: [encode_tensor(cache.read_text(cache_set.empty_text_key))],
        _NEGATIVE: [encode_tensor(cache.read_text(cache_set.negative_text_key))],
        _FPS: [float(cache_set.fps)],
    }


def record_files(folder: Path) -> list[Path]:
    """Returns the TFRecord files of a folder and its direct subfolders, by number; DatasetError if there are none."""
    if not folder.is_dir():
        raise DatasetError(f"{folder.name} is no folder. Choose the one the .tfrec files are in.")
    found = [path for path in (*folder.glob("*"), *folder.glob("*/*")) if path.is_file() and _FILES.search(path.name)]
    if not found:
        raise DatasetError(f"{folder.name} holds no .tfrec or .tfrecord files. Choose the folder they are in.")
    return sorted(found, key=lambda path: (path.parent, _by_number(path.name)))


def _by_number(name: str) -> list[tuple[int, str]]:
    """Returns a sort key by which file_9 comes before file_10."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name)]


def _examples(files: Sequence[Path]) -> Iterator[tuple[str, Example]]:
    """Yields (place for messages, record)."""
    for path in files:
        for number, record in enumerate(read_records(path)):
            place = f"record {number} of {path.name}"
            try:
                yield place, decode_example(record)
            except ValueError as error:
                raise DatasetError(f"{_capital(place)} is no tf.train.Example: {error}. Write it again.") from error


def _tensor(features: Example, name: str, place: str) -> Tensor:
    values = features.get(name)
    if not values or not isinstance(values[0], bytes):
        known = ", ".join(sorted(feature[:40] for feature in features)[:20]) or "nothing"
        raise DatasetError(
            f"{_capital(place)} has no {name}; it has {known}. MaxDiffusion's Wan sets hold {LATENTS} and {TEXT}."
        )
    try:
        return decode_tensor(values[0])
    except ValueError as error:
        raise DatasetError(f"{name} of {place} cannot be used: {error}. Write it again.") from error


def _clip_axes(latent: Tensor, place: str) -> Tensor:
    """Returns the latent (C, F, h, w); some records have a batch axis of size 1."""
    clip = latent[0] if latent.ndim == 5 and len(latent) == 1 else latent
    if clip.ndim != 4:
        raise DatasetError(
            f"{LATENTS} of {place} have shape {list(latent.shape)}; (channels, frames, height, width) was expected."
        )
    return clip


def _prompts(features: Example, cache: LatentCache, place: str) -> PromptKeys:
    if _EMPTY not in features or _NEGATIVE not in features:
        raise DatasetError(
            f"{_capital(place)} does not carry the empty and the negative prompt, which training needs. Connect clip, "
            "or name a set of this cache whose prompts are to be used: --prompts-from SET."
        )
    empty, negative = (_tensor(features, name, place) for name in (_EMPTY, _NEGATIVE))
    return PromptKeys(store_text(cache, empty, "the empty prompt"), store_text(cache, negative, "the negative prompt"))


def _word(features: Example, name: str) -> str:
    values = features.get(name, [])
    return values[0][:4096].decode("utf-8", "replace") if values and isinstance(values[0], bytes) else ""


def _number(features: Example, name: str, default: float, place: str, least: float, most: float) -> float:
    values = features.get(name, [])
    # rounded, because TFRecords store float32
    value = round(values[0], 6) if values and isinstance(values[0], int | float) else default
    if not least <= value <= most:
        raise DatasetError(f"{_capital(place)} has {name} {value:g}. Write a number from {least:g} to {most:g}.")
    return value


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
