"""Held-out files, which are evaluated and not trained on."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path, PurePath

from ..errors import DatasetError
from .caption_names import in_one_form
from .sample import Dataset, Sample, ScanResult

A_FEW = -1.0
"""value of `held_out_ratio` for an automatic number"""
_ENOUGH, _LEAST_HELD, _MOST_HELD = 20, 3, 8
"""for A_FEW: smallest number of files of a dataset with held-out files, and smallest and largest number of held-out
files"""


def held_out_digests(dataset: Dataset, digest_of: Callable[[Sample], str]) -> frozenset[str]:
    """Returns the SHA-256 of held-out files; copies under other names are held out too.

    `digest_of` is called only if the dataset holds files out.
    """
    found: set[str] = set()
    for part in dataset.parts:
        config = part.config
        if not (config.held_out or config.held_out_folder or config.held_out_ratio):
            continue
        below, names = _files_below(config.held_out_folder, part), frozenset(map(in_one_form, config.held_out))
        for sample in part.samples:
            digest = digest_of(sample)
            named = sample.path in below or not names.isdisjoint(file_names(sample))
            # The digest of a file decides, so adding or removing other files changes nothing.
            if named or int(digest[:8], 16) < config.held_out_ratio * 2**32:
                found.add(digest)
        digests = sorted({digest_of(sample) for sample in part.samples}) if config.held_out_ratio == A_FEW else []
        if len(digests) >= _ENOUGH:
            found.update(digests[: min(_MOST_HELD, max(_LEAST_HELD, len(digests) // 10))])
    return frozenset(found)


def file_names(sample: Sample) -> set[str]:
    """Returns the names by which `held_out` may name a file, in NFC: file name, stem, path in the dataset."""
    return {in_one_form(name) for name in (sample.path.name, sample.path.stem, sample.name)}


def _files_below(folder: str, part: ScanResult) -> set[Path]:
    paths = {sample.path for sample in part.samples} if folder else set[Path]()
    if not paths:
        return paths
    levels = zip(*(path.parent.parts for path in paths), strict=False)
    top = sum(1 for _ in itertools.takewhile(lambda names: len(set(names)) == 1, levels))
    inside = {path: path.parent.parts[top:] for path in paths}
    wanted = PurePath(folder).parts
    places = {path: [own[at : at + len(wanted)] for at in range(len(own))] for path, own in inside.items()}
    return {path for path in paths if path.parent.name == folder or wanted in places[path]}


def require_trained(dataset: Dataset, trained: int, held_out: int) -> None:
    """Raises DatasetError if all files are held out, or if a held-out name or folder of the settings matches no
    file."""
    if not trained:
        raise nothing_trained(held_out)
    for part in dataset.parts:
        paths = [sample.path for sample in part.samples]
        # The parts of another trainer's settings share one list; a name must match in one of the parts.
        alike = [p for p in dataset.parts if p.config.held_out == part.config.held_out]
        usable = [sample for other in alike for sample in (*other.samples, *other.excluded)]
        known = {name for sample in usable for name in file_names(sample)}
        if missing := [name for name in part.config.held_out if in_one_form(name) not in known]:
            raise DatasetError(
                f"held_out names {missing[0]!r}, which is not a usable file of {part.config.folder!r}. Use names as "
                "they "
                f"are in the folder, such as {paths[0].name!r}."
            )
        folder = part.config.held_out_folder
        alike = [p for p in dataset.parts if p.config.held_out_folder == folder]
        if folder and not any(_files_below(folder, other) for other in alike):
            raise DatasetError(
                f"held_out_folder {folder!r} holds no usable file of {part.config.folder!r}. Use the name of one of "
                "its subfolders and switch recursive on, or leave it empty."
            )


def nothing_trained(held_out: int) -> DatasetError:
    """Returns the refusal of a dataset whose files are all held out."""
    return DatasetError(
        "All {held_out} files are held out for evaluation, so nothing would be trained. Lower "
        "held_out_ratio, or name fewer files.",
        held_out=held_out,
    )
