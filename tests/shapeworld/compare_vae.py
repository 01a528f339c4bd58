"""Our whole-clip VAE beside ComfyUI's chunked one, same weights: a process of its own, with ComfyUI on sys.path.

    python tests/shapeworld/compare_vae.py TREE

Prints JSON: per clip length the largest difference of the encoded and of the decoded clip.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch

sys.path[:0] = [sys.argv[1], str(Path(__file__).resolve().parents[1])]
sys.argv = [sys.argv[0], "--cpu"]

import comfy.options  # noqa: E402

comfy.options.enable_args_parsing()

from comfy.ldm.wan.vae import WanVAE  # noqa: E402

from shapeworld.training.vae import new_vae  # noqa: E402


def main() -> None:
    torch.manual_seed(0)
    ours = new_vae(8)
    theirs = WanVAE(
        dim=8,
        z_dim=16,
        dim_mult=[1, 2, 4, 4],
        num_res_blocks=2,
        attn_scales=[],
        temperal_downsample=[False, True, True],
    )
    theirs.load_state_dict(ours.state_dict())
    found = {}
    with torch.inference_mode():
        for frames in (1, 5, 9, 17):
            clip = torch.rand(1, 3, frames, 32, 48) * 2 - 1
            latent = ours.encode(clip)
            other = (theirs.encode(clip) - ours.mean) / ours.std
            decoded = ours.decode(latent), theirs.decode(latent * ours.std + ours.mean)
            found[frames] = [float((a - b).abs().max()) for a, b in ((latent, other), decoded)]
    print(json.dumps(found))


if __name__ == "__main__":
    main()
