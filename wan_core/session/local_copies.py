"""Copies the base weights and cache entries of a run to a local disk of each machine."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from ..cache import CacheSet, Entry, LatentCache, is_synthetic
from ..checkpoint import checkpoint_digest, checkpoint_files
from ..errors import WanTrainerError
from ..files import (
    FileError,
    Roots,
    atomic_write,
    clean_partials,
    open_regular,
    opened_folder,
    remove_file,
    size_text,
)
from ..job.config import RunConfig
from ..sampler import SampleConfig
from .session import Session

_LOCAL = "WAN_TRAINER_LOCAL"
"""environment variable: folder on a local disk for the copies; unset: nothing is copied"""
_PIECE_BYTES = 8 << 20


def local_roots(session: Session) -> Roots:
    """Returns the roots of a session, with the copies of this machine first. Every rank calls it.

    The first process of each machine copies, and the others wait. Where copying fails, the machine reads the shared
    files, and a warning says why.
    """
    group, folder = session.group, os.environ.get(_LOCAL, "")
    found = group.gather(_copied(session, Path(folder)) if folder and group.local_rank == 0 else ({}, ""))
    for rank, (_, why) in enumerate(found):
        if why:
            session.warn(f"Rank {rank} could not copy base and cache to its disk, and reads them where they lie: {why}")
    copies, _ = found[group.rank - group.local_rank]
    if copies:
        session.note(f"Base and cache are read from their copies in {folder}.")
    known = session.roots.folders
    return Roots(known | {name: (*copied, *known.get(name, ())) for name, copied in copies.items()})


def _copied(session: Session, folder: Path) -> tuple[dict[str, tuple[str, ...]], str]:
    """Copies missing files; returns the folders of the copies by root, or ({}, the error)."""
    try:
        copies: dict[str, tuple[str, ...]] = {}
        for reference in filter(None, (session.config.model.base_file, session.config.model.low_noise_file)):
            root, relative = reference.split(":", 1)
            base = _copied_base(session.roots.resolve(reference), relative, folder / "models")
            copies[root] = (*copies.get(root, ()), str(base))
        cache = folder / "cache"
        _copy_entries(LatentCache(session.roots.first("cache")), LatentCache(cache), session.config)
        return copies | {"cache": (str(cache),)}, ""
    except (OSError, WanTrainerError) as error:
        return {}, str(error)


def _copied_base(source: Path, relative: str, folder: Path) -> Path:
    """Copies a model file or folder, unless an intact copy exists; returns the folder of the copy.

    The folder is named by the digest of the model, and contains `relative`. Raises OSError and FileError.
    """
    digest = checkpoint_digest(source)
    made = folder / digest[:32]
    target = made / relative
    files = [*checkpoint_files(source), *(source.rglob("*.json") if source.is_dir() else ())]
    pairs = [(file, target / file.relative_to(source) if source.is_dir() else target) for file in files]
    if not _is_copied(pairs) or checkpoint_digest(target) != digest:
        _copy(pairs, folder)
        if checkpoint_digest(target) != digest:
            raise FileError(f"The copy of {source.name} differs from the file. Check the disk of {folder.name}.")
    return made


def _entries_of(config: RunConfig, clips: CacheSet) -> Iterator[Entry]:
    """Yields the cache entries that a run reads, for its clips and for its previews."""
    yield from clips.entries()
    preview = config.preview or SampleConfig()
    yield from (Entry("text", key, None) for key in preview.prompt_keys)
    for own in (preview, *preview.prompt_settings):
        keys = {"text": own.negative_key, "condition": own.condition_key, "latent": own.first_frame_key}
        yield from (Entry(kind, key, None) for kind, key in keys.items() if key)


def _copy_entries(shared: LatentCache, local: LatentCache, config: RunConfig) -> None:
    """Copies the cache set and the entries of a run.

    Raises OSError, and FileError for an entry whose copy does not match the digest in it; that copy is removed.
    """
    fingerprint = config.data.fingerprint
    found = {(one.kind, one.key): one for one in _entries_of(config, shared.read_set(fingerprint))}
    entries = [one for one in found.values() if not is_synthetic(one.key)]
    places = [(one, *(cache.entry_path(one.kind, one.key) for cache in (shared, local))) for one in entries]
    missing = [(one, here, there) for one, here, there in places if not _is_copied([(here, there)])]
    its_set = (shared.set_file(fingerprint), local.set_file(fingerprint))
    files = [(here, there) for _, here, there in missing] + ([] if _is_copied([its_set]) else [its_set])
    _copy(files, local.root)
    for one, _, there in missing:
        if not local.is_sound(one.kind, one.key, one.shape):
            remove_file(there, local.root)
            raise FileError(f"The entry {one.key[:12]} of the cache is damaged. Queue Cache Latents + Captions again.")


def _is_copied(pairs: list[tuple[Path, Path]]) -> bool:
    """Returns whether each copy exists, with the size of its source."""
    return all(there.is_file() and there.stat().st_size == here.stat().st_size for here, there in pairs)


def _copy(pairs: list[tuple[Path, Path]], below: Path) -> None:
    """Copies files into folders below `below`, each atomically. Raises FileError if its disk lacks the space."""
    if not pairs:
        return
    with opened_folder(below, make=True):
        for folder in {there.parent for _, there in pairs}:
            clean_partials(folder, 0.0, below)
    need, free = sum(here.stat().st_size for here, _ in pairs), shutil.disk_usage(below).free
    if need > free:
        raise FileError(f"The copies need {size_text(need)}, and {size_text(free)} are free there. Free disk space.")
    for here, there in pairs:
        with open_regular(here) as source, atomic_write(there, below) as copy:
            shutil.copyfileobj(source, copy, _PIECE_BYTES)
