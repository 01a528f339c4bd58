"""The two prompts every cache set needs, where captions come as tensors: encoded by a lazy CLIP socket, once."""

from __future__ import annotations

from typing import Any

from ..wan_core.data import DEFAULT_NEGATIVE_PROMPT, LatentCache, text_key
from ..wan_core.errors import ConfigError
from .codecs import ComfyTextEncoder
from .encoders import encoder_identity, is_linked

__all__ = ["prompt_key", "wants_clip"]

_PROMPTS = {"empty": "", "negative": DEFAULT_NEGATIVE_PROMPT}


def wants_clip(hidden: Any, clip: Any, names: list[str], cache: LatentCache) -> bool:
    """Whether the encoder wired to `clip` has to be loaded for the prompts of those names ("empty", "negative")."""
    if clip is not None or not names or not _is_wired(hidden):
        return False
    identity = _identity(hidden, None, cache)
    return identity is None or not all(cache.is_sound("text", text_key(_PROMPTS[name], identity)) for name in names)


def prompt_key(hidden: Any, clip: Any, name: str, cache: LatentCache) -> str:
    """The cache entry of one of the two prompts, encoded now if it is not there; ConfigError without a CLIP."""
    identity = _identity(hidden, clip, cache)
    if identity is None:
        raise ConfigError(
            "Training also needs the empty and the negative prompt. Connect clip (CLIPLoader, umt5_xxl, type wan), "
            "or both empty and negative (CLIPTextEncode)."
        )
    key = text_key(_PROMPTS[name], identity)
    if not cache.is_sound("text", key):
        cache.write_text(key, ComfyTextEncoder(clip, identity).encode(_PROMPTS[name]), f"the {name} prompt")
    return key


def _identity(hidden: Any, clip: Any, cache: LatentCache) -> str | None:
    """None where nothing is wired, or only the loaded object could tell."""
    if not _is_wired(hidden):
        return None
    return encoder_identity(hidden.dynprompt, hidden.unique_id, "clip", clip, cache)


def _is_wired(hidden: Any) -> bool:
    return is_linked(hidden.dynprompt, hidden.unique_id, "clip")
