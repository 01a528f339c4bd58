"""Containers of a model: a safetensors or GGUF file, or a folder as diffusers or the official repositories have it."""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import Mapping
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import cast

from ..errors import CheckpointError
from ..files import FileError, read_json, sampled_digest
from .gguf_file import read_gguf_header
from .header import CheckpointHeader, TensorInfo, read_header
from .stated import METADATA, merged_words

_INDEX = ".safetensors.index.json"
_SHARD = re.compile(r"-(\d{5})-of-(\d{5})\.safetensors$")
_INDEX_BYTES, _MOST_TENSORS = 16 << 20, 100_000
_PATCHES = "patch_embedding.weight"
_INSIDE = ("transformer", "transformer_2")
"""folders of a diffusers pipeline that hold a denoiser"""


def read_checkpoint(path: Path) -> CheckpointHeader:
    """Returns the header of the model at `path`, a .safetensors or .gguf file or a folder; reads no weights.

    The patch embedding has five dimensions in any container, although GGUF stores at most four. Raises CheckpointError
    with the damage and a remedy.
    """
    header = _read(path)
    return replace(header, tensors={**header.tensors, **_unflattened(header.tensors)})


def _unflattened(tensors: Mapping[str, TensorInfo]) -> dict[str, TensorInfo]:
    """Returns the patch embeddings that are stored with fewer than five dimensions, as (dim, channels, 1, 2, 2)."""
    found: dict[str, TensorInfo] = {}
    for name, info in tensors.items():
        bias = tensors.get(f"{name.removesuffix('weight')}bias") if name.endswith(_PATCHES) else None
        if bias is None or len(info.shape) == 5:
            continue
        dim, values = prod(bias.shape), prod(info.shape)
        if dim and values and values % (4 * dim) == 0:
            found[name] = replace(info, shape=(dim, values // dim // 4, 1, 2, 2))
    return found


def _read(path: Path) -> CheckpointHeader:
    if path.is_dir():
        return _read_folder(path)
    if path.suffix.lower() == ".gguf":
        return read_gguf_header(path)
    if match := _SHARD.search(path.name):
        raise CheckpointError(
            f"{path.name} is part {int(match[1])} of {int(match[2])} of a model. Choose its folder, {path.parent.name}."
        )
    return read_header(path)


def _weights_folder(path: Path) -> Path | None:
    """Returns the folder at or just below `path` that holds one denoiser's weights; None without one."""
    for folder in (path, *(path / name for name in _INSIDE)):
        if folder.is_dir() and (_index_of(folder) or _plain_files(folder)):
            return folder
    return None


def checkpoint_files(path: Path) -> tuple[Path, ...]:
    """Returns every file of the model at `path`, in a fixed order."""
    if not path.is_dir():
        return (path,)
    folder = _chosen_folder(path)
    index = _index_of(folder)
    parts = sorted(set(_weight_map(index).values())) if index else [file.name for file in _plain_files(folder)]
    return tuple(folder / name for name in parts)


def checkpoint_digest(path: Path) -> str:
    """Returns `sampled_digest` of a file, or a digest over the weight files of a folder and their names."""
    files = checkpoint_files(path)
    if files == (path,):
        return sampled_digest(path)
    digest = hashlib.sha256()
    for file in files:
        digest.update(f"{file.name}:{sampled_digest(file)};".encode())
    return digest.hexdigest()


def _read_folder(path: Path) -> CheckpointHeader:
    folder = _chosen_folder(path)
    index = _index_of(folder)
    if index is None:
        files = _plain_files(folder)
        if any(_SHARD.search(file.name) for file in files):
            raise CheckpointError(
                f"{folder.name} holds parts of a model but not the index that names them all (*{_INDEX}). "
                "Download the folder again."
            )
        if len(files) > 1:
            listed = ", ".join(file.name for file in files[:4])
            raise CheckpointError(f"{folder.name} holds {len(files)} models ({listed}). Choose one of the files.")
        head = read_header(files[0])
        return replace(head, path=folder, container="folder", files=dict.fromkeys(head.tensors, files[0]))
    return _read_shards(folder, _weight_map(index), index.name)


def _read_shards(folder: Path, places: dict[str, str], index: str) -> CheckpointHeader:
    names = sorted(set(places.values()))
    missing = [name for name in names if not (folder / name).is_file()]
    if missing:
        raise CheckpointError(
            f"{folder.name} lacks {len(missing)} of its {len(names)} parts: {', '.join(missing[:3])}. Download them."
        )
    parts = {name: read_header(folder / name) for name in names}
    for key, name in places.items():
        if key not in parts[name].tensors:
            raise CheckpointError(
                f"{folder.name}: {name} lacks the weight {key[:80]}, which {index} lists. Download both again."
            )
    metadata = {k: v for part in parts.values() for k, v in part.metadata.items()}
    if METADATA in metadata:
        metadata[METADATA] = merged_words([p.metadata[METADATA] for p in parts.values() if METADATA in p.metadata])
    return CheckpointHeader(
        path=folder,
        tensors={key: parts[name].tensors[key] for key, name in places.items()},
        metadata=metadata,
        size_bytes=sum(part.size_bytes for part in parts.values()),
        container="sharded folder",
        files={key: folder / name for key, name in places.items()},
    )


def _weight_map(index: Path) -> dict[str, str]:
    """Returns tensor -> file name from the index; CheckpointError for a name that is a path out of the folder."""
    with contextlib.suppress(FileError, KeyError, TypeError, AttributeError, ValueError):
        places = cast("dict[str, str]", read_json(index, limit_bytes=_INDEX_BYTES)["weight_map"])
        inside = all(Path(name).name == name and "\\" not in name for name in places.values())
        if inside and 0 < len(places) <= _MOST_TENSORS:
            return places
    raise CheckpointError(f"{index.parent.name}/{index.name} is damaged. Download it again.")


def _chosen_folder(path: Path) -> Path:
    folder = _weights_folder(path)
    if folder is None:
        inside = sorted(p.name for p in path.iterdir() if p.is_dir() and _weights_folder(p) is not None)
        advice = f"Choose {' or '.join(f'{path.name}/{name}' for name in inside)}." if inside else "Choose another."
        raise CheckpointError(f"{path.name} is a folder without a .safetensors model in it. {advice}")
    return folder


def _index_of(folder: Path) -> Path | None:
    return next(iter(sorted(folder.glob(f"*{_INDEX}"))), None)


def _plain_files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.safetensors"))
