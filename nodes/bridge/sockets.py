"""ComfyUI's VAE, CLIP and CLIP_VISION sockets as the engine's LatentCodec, TextEncoder and ImageEncoder.

Nodes run under torch.inference_mode, but returned tensors are no inference tensors, which could not be written later.
The identity of an encoder comes from the graph if possible, so that the encoder need not be loaded. The two prompts of
every cache set (empty and negative) are encoded once, through a lazy CLIP socket.
"""

from __future__ import annotations

import hashlib
import weakref
from pathlib import Path
from typing import Any

import folder_paths
import torch
from comfy import model_management as mm
from comfy.ldm.wan import vae as wan21
from comfy.ldm.wan import vae2_2 as wan22
from comfy.taesd.taehv import TAEHV
from torch import Tensor

from ...wan_core.cache import TEXT_WIDTH, LatentCache, text_key
from ...wan_core.dataset import DEFAULT_NEGATIVE_PROMPT
from ...wan_core.errors import ConfigError
from ...wan_core.model import TEXT_LENGTH, LatentSpace

_VAE_FILES = {"wan2.1": "wan_2.1_vae.safetensors", "wan2.2": "wan2.2_vae.safetensors"}
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
                vae=_VAE_FILES.get(space.name, space.name),
            )
        if problem := _unlike_wans(vae, space):
            raise ConfigError(
                f"The VAE {problem}, so its latents do not match the model. Choose "
                f"{_VAE_FILES[space.name]} in Load VAE."
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


def encoder_identity(dynprompt: Any, node_id: str, socket: str, loaded: Any, cache: LatentCache) -> str | None:
    """Returns the identity of the encoder linked to `socket`; None if that needs the loaded object, and it is None.

    Raises ConfigError for a file that was replaced after its loader had read it, because ComfyUI keeps the old object.
    """
    found = _from_graph(dynprompt, node_id, socket, cache)
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


def is_linked(dynprompt: Any, node_id: str, socket: str) -> bool:
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
            raise ConfigError(
                "Load CLIP has type {inputs}; Wan needs umt5: set its type to wan.", inputs=inputs["type"]
            )
        return _file_identity("text_encoders", inputs.get("clip_name"), cache)
    if node["class_type"] == "CLIPVisionLoader":
        return _file_identity("clip_vision", inputs.get("clip_name"), cache)
    return None


def _file_identity(kind: str, name: object, cache: LatentCache) -> str | None:
    path = folder_paths.get_full_path(kind, name) if isinstance(name, str) else None
    if path is None:
        return None
    digest = cache.files.digest(Path(path), mm.processing_interrupted)
    cache.files.save()
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
        mm.throw_exception_if_processing_interrupted()
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
        digest.update(value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return f"weights:{digest.hexdigest()}"


_PROMPTS = {"empty": "", "negative": DEFAULT_NEGATIVE_PROMPT}


def wants_clip(hidden: Any, clip: Any, names: list[str], cache: LatentCache) -> bool:
    """Returns whether the encoder at `clip` must be loaded to encode the prompts `names` ("empty", "negative")."""
    if clip is not None or not names or not _is_wired(hidden):
        return False
    identity = _identity(hidden, None, cache)
    return identity is None or not all(cache.is_sound("text", text_key(_PROMPTS[name], identity)) for name in names)


def prompt_key(hidden: Any, clip: Any, name: str, cache: LatentCache) -> str:
    """Returns the cache key of the prompt `name`, which is encoded on a miss. Raises ConfigError without a CLIP."""
    identity = _identity(hidden, clip, cache)
    if identity is None:
        raise ConfigError(
            "Training also needs the empty and the negative prompt. Connect clip (Load CLIP, umt5_xxl, type wan), "
            "or both empty and negative (CLIPTextEncode)."
        )
    key = text_key(_PROMPTS[name], identity)
    if not cache.is_sound("text", key):
        cache.write_text(key, ComfyTextEncoder(clip, identity).encode(_PROMPTS[name]), f"the {name} prompt")
    return key


def _identity(hidden: Any, clip: Any, cache: LatentCache) -> str | None:
    """Returns the identity of the linked CLIP; None without a link, or if `encoder_identity` is None."""
    if not _is_wired(hidden):
        return None
    return encoder_identity(hidden.dynprompt, hidden.unique_id, "clip", clip, cache)


def _is_wired(hidden: Any) -> bool:
    return is_linked(hidden.dynprompt, hidden.unique_id, "clip")
