"""Caption features from the tests' text encoder, built by ComfyUI's own classes."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

TINY = Path(__file__).resolve().parents[2] / "tiny"


def encode_texts(comfyui: Path, texts: Sequence[str]) -> list[Tensor]:
    """One (n, 4096) per text, without the zero rows. Puts the ComfyUI tree on sys.path of this process."""
    sys.path[:0] = [str(comfyui), str(TINY)]
    argv, sys.argv = sys.argv, [sys.argv[0], "--cpu"]
    try:
        import comfy.options

        comfy.options.enable_args_parsing()
        import comfy_pack

        (encoder,) = comfy_pack.TinyWanCLIPLoader().load()
    finally:
        sys.argv = argv
    features = []
    for text in texts:
        tokens = encoder.tokenize(text)
        rows = encoder.encode_from_tokens(tokens)[0].float()
        kept = int(rows.abs().sum(-1).count_nonzero())
        features.append(rows[:kept].clone())
    torch.set_grad_enabled(True)  # whatever ComfyUI left it at: training follows
    return features
