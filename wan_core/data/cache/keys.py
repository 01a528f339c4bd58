"""Names of cache entries: a digest of everything that decides what an entry holds."""

from __future__ import annotations

import hashlib
import json
from typing import Any

__all__ = ["CLIP_READER", "CODE_VERSION", "condition_key", "latent_key", "mask_key", "tensor_key", "text_key"]

CODE_VERSION = 1
"""Raise it when decoding, resizing or encoding changes what an entry holds: every old entry is then
unused.
"""

CLIP_READER = 2
"""Part of the transform of clips; raise it when only what is read of clips changes. 1, which no transform names, made
colours up to three levels of 255 too dark.
"""


def latent_key(*, content_digest: str, transform: dict[str, Any], encoder_identity: str) -> str:
    """Name of the latent of a media file with that SHA-256, cut and resized as `transform` (JSON
    data) says.
    """
    return _digest({"kind": "latent", "file": content_digest, "how": transform, "encoder": encoder_identity})


def text_key(text: str, encoder_identity: str) -> str:
    """Name of the features of one prompt."""
    return _digest({"kind": "text", "text": text, "encoder": encoder_identity})


def condition_key(
    *, content_digest: str, transform: dict[str, Any], encoder_identity: str, conditioning: str, vision_identity: str
) -> str:
    """Name of the conditioning of a media file: what its latent's key covers, the kind of conditioning
    (ConditionKind.name) and the CLIP vision encoder ("" where there is none).
    """
    made_by = {"encoder": encoder_identity, "vision": vision_identity}
    return _digest({"kind": "condition", "of": conditioning, "file": content_digest, "how": transform, **made_by})


def mask_key(*, content_digest: str, transform: dict[str, Any]) -> str:
    """Name of the loss weights that a mask file gives a clip cut as `transform` says; no encoder has a part in it."""
    return _digest({"kind": "mask", "file": content_digest, "how": transform})


def tensor_key(kind: str, content_digest: str) -> str:
    """Name of an entry whose tensors were made elsewhere: nothing but what they hold is known of them."""
    return _digest({"kind": f"given {kind}", "tensors": content_digest})


def _digest(parts: dict[str, Any]) -> str:
    text = json.dumps({"version": CODE_VERSION, **parts}, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()
