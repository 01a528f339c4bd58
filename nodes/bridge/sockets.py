"""ComfyUI's VAE, CLIP and CLIP_VISION sockets as the engine's LatentCodec, TextEncoder and ImageEncoder.

Nodes run under torch.inference_mode, but returned tensors are no inference tensors, which could not be written later.
The identity of an encoder comes from the graph if possible, so that the encoder need not be loaded.
"""

from __future__ import annotations

import hashlib
import weakref
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import folder_paths
import torch
from comfy import model_management as mm
from comfy.ldm.wan import vae as wan21
from comfy.ldm.wan import vae2_2 as wan22
from comfy.taesd.taehv import TAEHV
from torch import Tensor

from ...wan_core.cache import TEXT_WIDTH, text_key
from ...wan_core.errors import ConfigError
from ...wan_core.model import TEXT_LENGTH, LatentSpace
from . import folders
from .interrupts import raise_if_cancelled
from .progress import NodeProgress

VAE_FILES = {"wan2.1": "wan_2.1_vae.safetensors", "wan2.2": "wan2.2_vae.safetensors"}
_VAE_CLASSES = {"wan2.1": (wan21.WanVAE, 96), "wan2.2": (wan22.WanVAE, 160)}
"""latent space -> ComfyUI's class of its VAE, and the width of its first layer"""
_IMAGE_TOKENS = (257, 1280)
_END_TOKEN, _PADDING = 1, 0  # of umT5; the end token is </s>


class ComfyVae:
    """A VAE socket. Raises ConfigError for a VAE that does not belong to the model."""

    def __init__(self, vae: Any, identity: str, space: LatentSpace) -> None:
        channels = getattr(vae, "latent_channels", None)
        if getattr(vae, "latent_dim", None) != 3 or channels != space.channels:
            raise ConfigError(
                "The VAE makes latents of {channels} channels, the model needs {needed} ({kind}). Choose {vae} in "
                "Load VAE.",
                channels=channels,
                needed=space.channels,
                kind=space.name,
                vae=VAE_FILES.get(space.name, space.name),
            )
        if problem := _unlike_wans(vae, space):
            raise ConfigError(
                f"The VAE {problem}, so its latents do not match the model. Choose {VAE_FILES[space.name]} in Load VAE."
            )
        self._vae = vae
        self.identity = identity
        self.space = space

    def encode(self, pixels: Tensor) -> Tensor:
        """Returns the normalised latent (C, F', h, w) float32 on the CPU of a clip (F, H, W, 3) float32 in [0, 1],
        F = 4n+1."""
        # One clip at a time, because ComfyUI crops the wrong axis of a batch of videos, and loses frames.
        raw = self._vae.encode(pixels[:, :, :, :3])
        return ordinary(self.space.normalise(raw[0].cpu()))

    def decode(self, latent: Tensor) -> Tensor:
        """Returns the pixels (F, H, W, 3) float32 in [0, 1] on the CPU of a normalised latent (C, F', h, w)."""
        pixels = self._vae.decode(self.space.denormalise(latent)[None])
        return ordinary(pixels.reshape(-1, *pixels.shape[-3:]).clamp(0, 1))

    def fits(self, latent: Tensor) -> bool:
        """Returns whether decoding `latent` fits into the free memory of the VAE's device, with a margin of 10 %."""
        device = self._vae.device
        if mm.is_device_cpu(device):
            return True
        needed = self._vae.memory_used_decode((1, *latent.shape), self._vae.vae_dtype)
        needed += 0 if self._vae.patcher.loaded_size() else self._vae.patcher.model_size()
        return mm.get_free_memory(device) > 1.1 * needed


class ComfyTextEncoder:
    """A CLIP socket that holds umT5."""

    def __init__(self, clip: Any, identity: str) -> None:
        self._clip = clip
        self.identity = identity

    def encode(self, text: str) -> Tensor:
        """Returns the features (L, 4096) float32 on the CPU of one prompt, without padding, L <= 512."""
        tokens = self._row(text)
        if len(tokens) > TEXT_LENGTH:  # as the official tokenizer, which keeps the end token when it truncates
            tokens = [*tokens[: TEXT_LENGTH - 1], (_END_TOKEN, 1.0)]
        # The official pipeline encodes 512 tokens with masked padding; ComfyUI pads less.
        padded = [*tokens, *[(_PADDING, 1.0)] * (TEXT_LENGTH - len(tokens))]
        features = self._clip.encode_from_tokens_scheduled({"umt5xxl": [padded]})[0][0]
        if features.ndim != 3 or features.shape[-1] != TEXT_WIDTH:
            raise _not_umt5()
        return ordinary(features[0, : len(tokens)])

    def count_tokens(self, text: str) -> int:
        """Returns the number of tokens of `text` before truncation, with the end token."""
        return len(self._row(text))

    def _row(self, text: str) -> list[Any]:
        """Returns (token, weight) of every token, without padding."""
        # Parentheses in captions are literal, not ComfyUI's emphasis.
        literal = text.replace("(", "\\(").replace(")", "\\)")
        found = self._clip.tokenize(literal)
        if list(found) != ["umt5xxl"]:
            raise _not_umt5()
        row = found["umt5xxl"][0]
        # A token may be an embedding tensor, which cannot be compared with 0.
        real = (i + 1 for i, (token, *_) in enumerate(row) if not isinstance(token, int) or token != _PADDING)
        return row[: max(real, default=1)]


class ComfyImageEncoder:
    """A CLIP_VISION socket that holds ViT-H/14, the image encoder of Wan 2.1."""

    def __init__(self, clip_vision: Any, identity: str) -> None:
        self._vision = clip_vision
        self.identity = identity

    def encode(self, pixels: Tensor) -> Tensor:
        """Returns the tokens (257, 1280) float32 on the CPU of one image (H, W, 3) float32 in [0, 1]."""
        output = self._vision.encode_image(pixels[None], crop=False)
        tokens = output["penultimate_hidden_states"]
        if tuple(tokens.shape) != (1, *_IMAGE_TOKENS):
            size = " x ".join(map(str, tokens.shape[1:]))
            raise ConfigError(
                "The CLIP vision encoder gives {size} values per image; Wan 2.1 needs 257 x 1280. Choose "
                "clip_vision_h.safetensors in Load CLIP Vision.",
                size=size,
            )
        return ordinary(tokens[0])


def _unlike_wans(vae: Any, space: LatentSpace) -> str:
    """Returns why a VAE is not Wan's, or "". Others may have latents of the same shape with other values."""
    part = getattr(vae, "first_stage_model", None)
    for holder in ("_orig_mod", "module"):  # wrappers of torch.compile and DataParallel
        part = getattr(part, holder, part)
    kind, width = _VAE_CLASSES[space.name]
    if isinstance(part, TAEHV):
        return "is a tiny autoencoder for quick previews (TAEHV)"
    if not isinstance(part, kind):
        return f"is the VAE of another model ({type(vae if part is None else part).__name__})"
    if part.dim in (width // 4, width // 2, width * 3 // 4):
        return f"is pruned: {part.dim} of Wan's {width} channels are left"
    colours = getattr(vae, "output_channels", 3)
    return "" if colours == 3 else f"reads pictures of {colours} channels"


def _not_umt5() -> ConfigError:
    return ConfigError(
        "The CLIP is not umt5, the text encoder of Wan. Choose umt5_xxl in Load CLIP and set its type to wan."
    )


def ordinary(tensor: Tensor) -> Tensor:
    """Returns a float32 copy on the CPU that is no inference tensor."""
    with torch.inference_mode(False):
        return tensor.float().cpu().clone()


_hashed: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()
_loaded_as: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()
"""encoder object -> identity of its file at first use"""


def encoder_identity(hidden: Any, socket: str, loaded: Any) -> str | None:
    """Returns the identity of the encoder linked to `socket`; None if that needs the loaded object, and it is None.

    Raises ConfigError for a file that was replaced after its loader had read it, because ComfyUI keeps the old object.
    """
    found = _from_graph(hidden, socket)
    if found is not None:
        if loaded is not None and _loaded_as.setdefault(loaded, found) != found:
            raise ConfigError(
                f"The file of {socket} was replaced after ComfyUI had loaded it, so the old file would be used. "
                "Free ComfyUI's node cache or restart ComfyUI, then press Run."
            )
        return found
    # Without a core loader, the weights are hashed, once for each object.
    if loaded is not None and loaded not in _hashed:
        _hashed[loaded] = _hash_weights(loaded)
    return _hashed[loaded] if loaded is not None else None


def is_linked(hidden: Any, socket: str) -> bool:
    return isinstance(hidden.dynprompt.get_node(hidden.unique_id)["inputs"].get(socket), list)


def needs_clip(hidden: Any, clip: Any, texts: Iterable[str]) -> bool:
    """Returns whether the encoder at `clip` must be loaded to encode texts that are not cached."""
    if clip is not None:
        return False
    identity, cache = encoder_identity(hidden, "clip", None), folders.cache()
    return identity is None or not all(cache.is_sound("text", text_key(text, identity)) for text in texts)


def text_keys(hidden: Any, clip: Any, texts: Iterable[str], progress: NodeProgress | None = None) -> dict[str, str]:
    """Returns text -> cache key, each encoded on a miss. `progress`: shows how many are done."""
    identity, cache = str(encoder_identity(hidden, "clip", clip)), folders.cache()
    keys = {text: text_key(text, identity) for text in texts}
    for done, (text, key) in enumerate(keys.items(), 1):
        raise_if_cancelled()
        if not cache.is_sound("text", key):
            cache.write_text(key, ComfyTextEncoder(clip, identity).encode(text), text[:60] or "the empty prompt")
        if progress is not None:
            progress.bar(done, len(keys))
    return keys


_LOADERS = {
    "VAELoader": ("vae", "vae_name"),
    "CLIPLoader": ("text_encoders", "clip_name"),
    "CLIPVisionLoader": ("clip_vision", "clip_name"),
}
"""core loader -> its folder of models, and its widget with the file"""


def _from_graph(hidden: Any, socket: str) -> str | None:
    """Returns the digest of the file that a core loader reads; None for an encoder of another node."""
    link = hidden.dynprompt.get_node(hidden.unique_id)["inputs"].get(socket)
    node = hidden.dynprompt.get_node(link[0]) if isinstance(link, list) else {"class_type": ""}
    if node["class_type"] not in _LOADERS:
        return None
    kind, widget = _LOADERS[node["class_type"]]
    made_for = node["inputs"].get("type", "wan") if kind == "text_encoders" else "wan"
    if isinstance(made_for, str) and made_for != "wan":
        raise ConfigError("Load CLIP has type {inputs}; Wan needs umt5: set its type to wan.", inputs=made_for)
    name = node["inputs"].get(widget)
    path = folder_paths.get_full_path(kind, name) if isinstance(name, str) else None
    if path is None:
        return None
    known = folders.cache().files
    digest = known.digest(Path(path), mm.processing_interrupted)
    known.save()
    return f"file:{digest}"


def _hash_weights(encoder: Any) -> str:
    """Returns a hash of weights and patches of an encoder object."""
    holders = ("first_stage_model", "cond_stage_model", "model")  # VAE, CLIP, CLIP vision encoder
    model = next(part for name in holders if (part := getattr(encoder, name, None)) is not None)
    digest = hashlib.sha256(type(model).__name__.encode())
    patcher = encoder.patcher
    if patcher.patches:
        digest.update(str(patcher.patches_uuid).encode())
    for name, value in sorted(model.state_dict().items()):
        raise_if_cancelled()
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
        digest.update(value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return f"weights:{digest.hexdigest()}"
