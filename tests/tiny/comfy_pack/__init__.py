"""Test-only node pack: a tiny umT5 text encoder, built from ComfyUI's own classes.

CLIPLoader needs the real 256384 x 4096 embedding table. This node builds the same `CLIP` object around one layer and a
tokenizer of some 150 entries: text width 4096 and 512 tokens as the real one, weights the same every time. Words of the
small world (tests/shapeworld) are one token each; any other word is spelled, one token per character.
"""

from __future__ import annotations

import io
import math
import string
from typing import Any, ClassVar

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
        return {"optional": {"seed": ("INT", {"default": 22, "min": 0, "max": 2**31})}}

    def load(self, seed: int = 22) -> tuple[Any]:
        return (_tiny_clip(seed),)


NODE_CLASS_MAPPINGS = {"TinyWanCLIPLoader": TinyWanCLIPLoader}
NODE_DISPLAY_NAME_MAPPINGS = {"TinyWanCLIPLoader": "Tiny Wan CLIP (tests)"}
