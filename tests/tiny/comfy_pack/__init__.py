"""Test-only node pack: a tiny umT5 text encoder, CLIP vision encoder and Wan 2.2 VAE, of ComfyUI's own classes.

CLIPLoader needs the real 256384 x 4096 embedding table. This node builds the same `CLIP` object around one layer and a
tokenizer of some 150 entries: text width 4096 and 512 tokens as the real one, weights the same every time. Words of the
small world (tests/shapeworld) are one token each; any other word is spelled, one token per character.
"""

from __future__ import annotations

import gc
import io
import math
import os
import string
import sys
from typing import Any, ClassVar

from .card import add_card_route
from .flood import add_routes

gc.freeze()
_imported = len(sys.modules)


def _leave_out_what_was_imported(phase: str, info: dict[str, int]) -> None:
    """Leaves out of later searches for garbage, three of which begin a training, what the first prompts import."""
    global _imported
    if phase == "stop" and info["generation"] == 2 and len(sys.modules) > _imported + 200:
        gc.freeze()
        _imported = len(sys.modules)


gc.callbacks.append(_leave_out_what_was_imported)
gc.enable()  # after quick_main.py

CHARACTERS = string.ascii_letters + string.digits + string.punctuation
# The order is part of the shipped demo models: a word's place is its row in the embedding table. Only append.
WORDS = (  # noqa: SIM905
    "a an moving red green blue yellow purple white circle square triangle ring left right up down "
    "orange cyan pink grey black star cross heart moon arrow diamond bouncing circling spinning shaking falling rising "
    "zigzag loop small large slow fast"
).split()
VOCABULARY = 4 + len(WORDS) + len(CHARACTERS)


def _tokenizer() -> Any:
    """A SentencePiece model with umT5's special ids (pad 0, end 1, unknown 2), as a byte tensor."""
    import sentencepiece
    import torch

    written = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([" ".join(CHARACTERS)] * 4),
        model_writer=written,
        model_type="char",
        vocab_size=VOCABULARY,
        user_defined_symbols=["\u2581" + word for word in WORDS],
        hard_vocab_limit=False,
        character_coverage=1.0,
        pad_id=0,
        eos_id=1,
        unk_id=2,
        bos_id=-1,
        num_threads=1,
        minloglevel=2,
    )
    return torch.frombuffer(bytearray(written.getvalue()), dtype=torch.uint8)


def _tiny_clip(seed: int) -> Any:
    import comfy.sd
    import comfy.text_encoders.wan
    import torch

    size = {"num_layers": 1, "num_heads": 1, "d_kv": 16, "d_ff": 32, "vocab_size": VOCABULARY}

    class Target:
        params: ClassVar[dict[str, Any]] = {}
        clip = comfy.text_encoders.wan.te()
        tokenizer = comfy.text_encoders.wan.WanT5Tokenizer

    clip = comfy.sd.CLIP(
        Target,
        tokenizer_data={"spiece_model": _tokenizer()},
        model_options={"umt5xxl_model_config": size, "dtype": torch.float32},
    )
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, value in sorted(clip.cond_stage_model.named_parameters()):
            values = torch.randn(value.shape, generator=generator)
            if "layer_norm" in name:
                values = 1 + 0.2 * values
            elif value.ndim == 2 and "shared" not in name:
                values = values / math.sqrt(value.shape[1])
            value.copy_(values)
    return clip


class TinyWanCLIPLoader:
    """Output: a CLIP as core CLIPLoader with type `wan` gives it, in miniature."""

    CATEGORY = "tests"
    FUNCTION = "load"
    RETURN_TYPES = ("CLIP",)

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        seed, mib = ({"default": value, "min": 0, "max": 2**31} for value in (22, 0))
        return {"optional": {"seed": ("INT", seed), "ballast_mib": ("INT", mib)}}

    def load(self, seed: int = 22, ballast_mib: int = 0) -> tuple[Any]:
        """`ballast_mib`: as much more in RAM, in pieces as large as those of the real one's fp8 file."""
        import torch

        clip = _tiny_clip(seed)
        for piece in range(ballast_mib // 16):
            ballast = torch.ones(16 << 20, dtype=torch.uint8)
            clip.cond_stage_model.register_buffer(f"ballast_{piece}", ballast, persistent=False)
        return (clip,)


def _fill(model: Any, seed: int) -> None:
    """Random weights, scaled so that activations stay near one."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, value in sorted(model.named_parameters()):
            values = torch.randn(value.shape, generator=generator)
            if value.ndim == 1 or name.endswith("gamma"):
                values = 0.1 * values if name.endswith("bias") else 1 + 0.2 * values
            else:
                values = values / math.sqrt(math.prod(value.shape[1:]))
            value.copy_(values)


class TinyWanCLIPVisionLoader:
    """Output: a CLIP_VISION with the 257 tokens of 1280 values of ViT-H, from two layers. (CLIPVisionLoader tells a
    ViT-H by its 31st layer.)"""

    CATEGORY = "tests"
    FUNCTION = "load"
    RETURN_TYPES = ("CLIP_VISION",)

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        return {"optional": {"seed": ("INT", {"default": 23, "min": 0, "max": 2**31})}}

    def load(self, seed: int = 23) -> tuple[Any]:
        import json
        import tempfile
        from pathlib import Path

        import comfy.clip_vision

        shipped = Path(comfy.clip_vision.__file__).with_name("clip_vision_config_h.json")
        tiny = json.loads(shipped.read_text()) | {"num_hidden_layers": 2, "intermediate_size": 64, "projection_dim": 16}
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "tiny.json"
            file.write_text(json.dumps(tiny))
            vision = comfy.clip_vision.ClipVisionModel(str(file))
        _fill(vision.model, seed)
        return (vision,)


class TinyWan22VAELoader:
    """Output: a VAE of 48 channels as VAELoader makes it from wan2.2_vae, but narrow. (VAELoader knows one width.)"""

    CATEGORY = "tests"
    FUNCTION = "load"
    RETURN_TYPES = ("VAE",)

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        return {"optional": {"seed": ("INT", {"default": 24, "min": 0, "max": 2**31})}}

    def load(self, seed: int = 24) -> tuple[Any]:
        import comfy.ldm.wan.vae2_2
        import comfy.sd

        wide = comfy.ldm.wan.vae2_2.WanVAE

        def narrow(**size: Any) -> Any:
            return wide(**{**size, "dim": 8, "dec_dim": 8})

        shape = {"dim_mult": [1, 2, 4, 4], "num_res_blocks": 2, "attn_scales": [], "dropout": 0.0}
        model = narrow(z_dim=48, temperal_downsample=[False, True, True], **shape)
        _fill(model, seed)
        comfy.ldm.wan.vae2_2.WanVAE = narrow
        try:
            return (comfy.sd.VAE(sd=dict(model.state_dict())),)
        finally:
            comfy.ldm.wan.vae2_2.WanVAE = wide


class TinyWanAudioEncoderLoader:
    """Output: an AUDIO_ENCODER with the 33 outputs of 1280 values of Whisper large v3. Only its first layer changes
    anything: 32 take minutes."""

    CATEGORY = "tests"
    FUNCTION = "load"
    RETURN_TYPES = ("AUDIO_ENCODER",)

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        return {"optional": {"seed": ("INT", {"default": 25, "min": 0, "max": 2**31})}}

    def load(self, seed: int = 25) -> tuple[Any]:
        import torch
        from comfy.audio_encoders.audio_encoders import AudioEncoderModel

        encoder = AudioEncoderModel({"model_type": "whisper3", "n_audio_layer": 1})
        _fill(encoder.model, seed)
        encoder.model.encoder.layers.extend(torch.nn.Identity() for _ in range(31))
        return (encoder,)


class TinyWanSpeechEncoderLoader:
    """Output: an AUDIO_ENCODER with the 25 layers of wav2vec2 large, of 64 values each."""

    CATEGORY = "tests"
    FUNCTION = "load"
    RETURN_TYPES = ("AUDIO_ENCODER",)

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        return {"optional": {"seed": ("INT", {"default": 26, "min": 0, "max": 2**31})}}

    def load(self, seed: int = 26) -> tuple[Any]:
        from comfy.audio_encoders.audio_encoders import AudioEncoderModel

        encoder = AudioEncoderModel({"model_type": "wav2vec2", "embed_dim": 64, "num_heads": 4})
        _fill(encoder.model, seed)
        return (encoder,)


NODE_CLASS_MAPPINGS = {
    "TinyWanAudioEncoderLoader": TinyWanAudioEncoderLoader,
    "TinyWanCLIPLoader": TinyWanCLIPLoader,
    "TinyWanCLIPVisionLoader": TinyWanCLIPVisionLoader,
    "TinyWan22VAELoader": TinyWan22VAELoader,
    "TinyWanSpeechEncoderLoader": TinyWanSpeechEncoderLoader,
}
NODE_DISPLAY_NAME_MAPPINGS = {
    "TinyWanAudioEncoderLoader": "Tiny Wan Audio Encoder (tests)",
    "TinyWanCLIPLoader": "Tiny Wan CLIP (tests)",
    "TinyWanCLIPVisionLoader": "Tiny Wan CLIP Vision (tests)",
    "TinyWan22VAELoader": "Tiny Wan 2.2 VAE (tests)",
    "TinyWanSpeechEncoderLoader": "Tiny Wan Speech Encoder (tests)",
}

add_routes()
add_card_route()
# Workers that need no five seconds of imports; see tests/support/preforked.py.
sys.executable = os.environ.get("TINY_ENGINE_PYTHON", sys.executable)
# Nothing of a test outlives the machine, so nobody waits for its disk.
os.fsync = lambda _: None
