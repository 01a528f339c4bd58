"""ComfyUI's VAE, CLIP and CLIP_VISION sockets as the engine's LatentCodec, TextEncoder and ImageEncoder.

Tensors leave these classes as plain ones: nodes run under torch.inference_mode, and an inference tensor could not be
written into later. Which weights are behind a socket is told from the graph where possible, so none is loaded; the two
prompts that every cache set needs are encoded by a lazy CLIP socket, once.
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

from ...wan_core.cache import TEXT_LENGTH, TEXT_WIDTH, LatentCache, text_key
from ...wan_core.dataset import DEFAULT_NEGATIVE_PROMPT
from ...wan_core.errors import ConfigError
from ...wan_core.model import LatentSpace

_VAE_FILES = {"wan2.1": "wan_2.1_vae.safetensors", "wan2.2": "wan2.2_vae.safetensors"}
_VAE_CLASSES = {"wan2.1": (wan21.WanVAE, 96), "wan2.2": (wan22.WanVAE, 160)}
"""ComfyUI's class of each, and the width of its first layer"""
_IMAGE_TOKENS = (257, 1280)
_END_TOKEN = 1  # umT5's </s>; 0 is padding


class ComfyVae:
    """A VAE socket. Encodes one clip at a time: a batch of videos would lose frames (ComfyUI crops the wrong axis)."""

    def __init__(self, vae: Any, identity: str, space: LatentSpace) -> None:
        channels = getattr(vae, "latent_channels", None)
        if getattr(vae, "latent_dim", None) != 3 or channels != space.channels:
            raise ConfigError(
                "The VAE makes latents of {channels} channels, the model needs {needed} ({kind}). Choose "
                "{vae} in Load VAE.",
                channels=channels,
                needed=space.channels,
                kind=space.name,
                vae=_VAE_FILES.get(space.name, space.name),
            )
        if problem := _unlike_wans(vae, space):
            raise ConfigError(
                f"The VAE {problem}, so its latents are not those the model knows. Choose "
                f"{_VAE_FILES[space.name]} in Load VAE."
            )
        self._vae = vae
        self.identity = identity
        self.space = space

    def encode(self, pixels: Tensor) -> Tensor:
        """One clip (F, H, W, 3) float32 in [0, 1], F = 4n+1, to its normalised latent (C, F', h, w) float32, CPU."""
        raw = self._vae.encode(pixels[:, :, :, :3])
        return _plain(self.space.normalise(raw[0].cpu()))

    def decode(self, latent: Tensor) -> Tensor:
        """A normalised latent (C, F', h, w) to pixels (F, H, W, 3) float32 in [0, 1] on the CPU."""
        pixels = self._vae.decode(self.space.denormalise(latent)[None])
        return _plain(pixels.reshape(-1, *pixels.shape[-3:]).float().cpu().clamp(0, 1))

    def fits(self, latent: Tensor) -> bool:
        """Returns whether decoding `latent` fits beside what is on the VAE's device now, with a tenth to spare."""
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
        """The features (L, 4096) float32 of one prompt, trimmed to its real tokens (L <= 512), on the CPU."""
        tokens = self._tokens(text)
        length = len(next(iter(tokens.values()))[0])
        features = self._clip.encode_from_tokens_scheduled(_padded(tokens))[0][0]
        if features.ndim != 3 or features.shape[-1] != TEXT_WIDTH:
            raise _not_umt5()
        return _plain(features[0, :length].float().cpu())

    def count_tokens(self, text: str) -> int:
        """Counts the tokens of `text` before it is cut, its end token included."""
        return len(self._row(text))

    def _tokens(self, text: str) -> dict[str, Any]:
        """The real tokens, cut to Wan's 512 as the official tokenizer does: the end token stays."""
        row = self._row(text)
        if len(row) > TEXT_LENGTH:
            row = [*row[: TEXT_LENGTH - 1], (_END_TOKEN, 1.0)]
        return {"umt5xxl": [row]}

    def _row(self, text: str) -> list[Any]:
        # Captions are prose: a bracket is a bracket, not ComfyUI's emphasis.
        literal = text.replace("(", "\\(").replace(")", "\\)")
        found = self._clip.tokenize(literal)
        if list(found) != ["umt5xxl"]:
            raise _not_umt5()
        row = found["umt5xxl"][0]
        length = max((i + 1 for i, token in enumerate(row) if not _is_padding(token[0])), default=1)
        return row[:length]


class ComfyImageEncoder:
    """A CLIP_VISION socket that holds ViT-H/14, the image encoder of Wan 2.1."""

    def __init__(self, clip_vision: Any, identity: str) -> None:
        self._vision = clip_vision
        self.identity = identity

    def encode(self, pixels: Tensor) -> Tensor:
        """The tokens (257, 1280) float32 of one image (H, W, 3) float32 in [0, 1], on the CPU."""
        output = self._vision.encode_image(pixels[None], crop=False)
        tokens = output["penultimate_hidden_states"]
        if tuple(tokens.shape) != (1, *_IMAGE_TOKENS):
            size = " x ".join(map(str, tokens.shape[1:]))
            raise ConfigError(
                "The CLIP vision encoder gives {size} values per image; Wan 2.1 needs 257 x 1280. Choose "
                "clip_vision_h.safetensors in Load CLIP Vision.",
                size=size,
            )
        return _plain(tokens[0].float().cpu())


def _unlike_wans(vae: Any, space: LatentSpace) -> str:
    """Returns in which way a VAE with the channels of Wan's is not Wan's; empty: it is.

    Tiny autoencoders and VAEs of other models have latents of the same shape, and frames out of step in time.
    """
    part = getattr(vae, "first_stage_model", None)
    for holder in ("_orig_mod", "module"):  # torch.compile and DataParallel hold it so
        part = getattr(part, holder, part)
    kind, width = _VAE_CLASSES[space.name]
    if isinstance(part, TAEHV):
        return "is a tiny autoencoder for quick looks (TAEHV)"
    if not isinstance(part, kind):
        return f"is of another model ({type(vae if part is None else part).__name__})"
    if part.dim in (width // 4, width // 2, width * 3 // 4):
        return f"is pruned: {part.dim} of Wan's {width} channels are left"
    colours = getattr(vae, "output_channels", 3)
    return "" if colours == 3 else f"reads pictures of {colours} channels"


def _is_padding(token: Any) -> bool:
    return isinstance(token, int) and token == 0


def _padded(tokens: dict[str, Any]) -> dict[str, Any]:
    row = tokens["umt5xxl"][0]
    return {"umt5xxl": [[*row, *[(0, 1.0)] * (TEXT_LENGTH - len(row))]]}


def _not_umt5() -> ConfigError:
    return ConfigError(
        "The CLIP is not umt5, the text encoder of Wan. Choose umt5_xxl in Load CLIP and set its type to wan."
    )


def _plain(tensor: Tensor) -> Tensor:
    with torch.inference_mode(False):
        plain = tensor.clone()
    assert not plain.is_inference()
    return plain


_hashed: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()
_loaded_as: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()
"""the identity of the file an encoder object came from, when it was first seen"""


def encoder_identity(dynprompt: Any, node_id: str, socket: str, loaded: Any, cache: LatentCache) -> str | None:
    """The identity of the encoder linked to `socket`, or None when only the loaded object could tell and is not there.

    Core loaders name a file: its content is hashed once and remembered. Anything else is hashed weight by weight.
    ConfigError for a file that was replaced since its loader read it: ComfyUI keeps what it loaded.
    """
    found = _from_graph(dynprompt, node_id, socket, cache)
    if found is not None:
        if loaded is not None and _loaded_as.setdefault(loaded, found) != found:
            raise ConfigError(
                f"The file of {socket} was replaced after ComfyUI had loaded it, so the one before would "
                "encode. Free ComfyUI's node cache or start it again, then press Run."
            )
        return found
    return _socket_identity(loaded) if loaded is not None else None


def _socket_identity(encoder: Any) -> str:
    """A hash of everything an encoder object computes with; remembered for as long as the object lives."""
    known = _hashed.get(encoder)
    if known is None:
        known = _hashed[encoder] = _hash_weights(encoder)
    return known


def is_linked(dynprompt: Any, node_id: str, socket: str) -> bool:
    """Returns whether something is wired to an optional socket."""
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


_PROMPTS = {"empty": "", "negative": DEFAULT_NEGATIVE_PROMPT}


def wants_clip(hidden: Any, clip: Any, names: list[str], cache: LatentCache) -> bool:
    """Returns whether the encoder wired to `clip` must be loaded for the prompts of those names (empty, negative)."""
    if clip is not None or not names or not _is_wired(hidden):
        return False
    identity = _identity(hidden, None, cache)
    return identity is None or not all(cache.is_sound("text", text_key(_PROMPTS[name], identity)) for name in names)


def prompt_key(hidden: Any, clip: Any, name: str, cache: LatentCache) -> str:
    """The cache entry of one of the two prompts, encoded now if it is not there; ConfigError without a CLIP."""
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
    """Returns the identity, or None where nothing is wired or only the loaded object could tell."""
    if not _is_wired(hidden):
        return None
    return encoder_identity(hidden.dynprompt, hidden.unique_id, "clip", clip, cache)


def _is_wired(hidden: Any) -> bool:
    return is_linked(hidden.dynprompt, hidden.unique_id, "clip")
