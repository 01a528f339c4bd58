"""Which weights are behind a VAE, CLIP or CLIP_VISION socket; told from the graph where possible, so none is loaded."""

from __future__ import annotations

import hashlib
import weakref
from pathlib import Path
from typing import Any

import folder_paths
import torch
from comfy import model_management as mm

from ..wan_core.data import LatentCache
from ..wan_core.errors import ConfigError

__all__ = ["encoder_identity", "is_linked", "socket_identity"]

_hashed: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()


def encoder_identity(dynprompt: Any, node_id: str, socket: str, loaded: Any, cache: LatentCache) -> str | None:
    """The identity of the encoder linked to `socket`, or None when only the loaded object could tell and is not there.

    Core loaders name a file: its content is hashed once and remembered. Anything else is hashed weight by weight.
    """
    found = _from_graph(dynprompt, node_id, socket, cache)
    if found is not None:
        return found
    return socket_identity(loaded) if loaded is not None else None


def socket_identity(encoder: Any) -> str:
    """A hash of everything an encoder object computes with; remembered for as long as the object lives."""
    known = _hashed.get(encoder)
    if known is None:
        known = _hashed[encoder] = _hash_weights(encoder)
    return known


def is_linked(dynprompt: Any, node_id: str, socket: str) -> bool:
    """Whether something is wired to an optional socket."""
    return isinstance(dynprompt.get_node(node_id)["inputs"].get(socket), list)


def _from_graph(dynprompt: Any, node_id: str, socket: str, cache: LatentCache) -> str | None:
    link = dynprompt.get_node(node_id)["inputs"].get(socket)
    if not isinstance(link, list):
        return None
    node = dynprompt.get_node(link[0])
    inputs = node["inputs"]
    if node["class_type"] == "VAELoader":
        return _file_identity("vae", inputs.get("vae_name"), cache)
    if node["class_type"] == "CLIPLoader":
        if isinstance(inputs.get("type", "wan"), str) and inputs.get("type", "wan") != "wan":
            raise ConfigError(f"CLIPLoader has type {inputs['type']}; Wan needs umt5: set CLIPLoader type to wan.")
        return _file_identity("text_encoders", inputs.get("clip_name"), cache)
    if node["class_type"] == "CLIPVisionLoader":
        return _file_identity("clip_vision", inputs.get("clip_name"), cache)
    return None


def _file_identity(kind: str, name: object, cache: LatentCache) -> str | None:
    path = folder_paths.get_full_path(kind, name) if isinstance(name, str) else None
    if path is None:
        return None
    digest = cache.digest_of(Path(path), mm.processing_interrupted)
    cache.save_digests()
    return f"file:{digest}"


def _hash_weights(encoder: Any) -> str:
    holders = ("first_stage_model", "cond_stage_model", "model")  # of a VAE, a CLIP, a CLIP vision encoder
    model = next(part for name in holders if (part := getattr(encoder, name, None)) is not None)
    digest = hashlib.sha256(type(model).__name__.encode())
    patcher = encoder.patcher
    if patcher.patches:
        digest.update(str(patcher.patches_uuid).encode())
    for name, value in sorted(model.state_dict().items()):
        mm.throw_exception_if_processing_interrupted()
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
        digest.update(value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return f"weights:{digest.hexdigest()}"
