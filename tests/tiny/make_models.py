"""Write tiny but real Wan models: random weights in the official layout, loaded by ComfyUI's own loaders.

    python tests/tiny/make_models.py --comfyui TREE --out FOLDER [--dim 128] [--layers 2] [--seed 20]

FOLDER becomes a ComfyUI `models` folder: diffusion_models/wan_tiny_t2v.safetensors, vae/wan_tiny_vae.safetensors;
with --kinds 1 also diffusion_models/wan_tiny_i2v.safetensors and the others of KINDS.
The scales are those of tests/fixtures/README.md, so that activations stay near one. The VAE is an instance of
ComfyUI's own Wan 2.1 class, narrow; that is why this runs as a process of its own, with ComfyUI on sys.path.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file

HEAD_DIM = 128  # ComfyUI derives the number of heads from it
TEXT_DIM = 4096  # fixed in ComfyUI's detection, as is FREQ_DIM
FREQ_DIM = 256
CHANNELS = 16
IMAGE_DIM = 1280  # of CLIP ViT-H


@dataclass(frozen=True)
class Kind:
    """What a kind of model has more than text-to-video."""

    in_channels: int = CHANNELS
    out_channels: int = CHANNELS
    clip: bool = False
    """reads the tokens of a CLIP vision encoder"""
    positions: int = 0
    """learned positions of these tokens"""


KINDS = {
    "wan_tiny_i2v": Kind(in_channels=36),  # 2.2
    "wan_tiny_i2v_clip": Kind(in_channels=36, clip=True),  # 2.1
    "wan_tiny_flf2v": Kind(in_channels=36, clip=True, positions=514),
    "wan_tiny_ti2v": Kind(in_channels=48, out_channels=48),
}


def shapes(dim: int, ffn_dim: int, layers: int, kind: Kind) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Names and shapes of a Wan state dict in the official layout."""

    def linear(name: str, out: int, fan_in: int) -> Iterator[tuple[str, tuple[int, ...]]]:
        yield f"{name}.weight", (out, fan_in)
        yield f"{name}.bias", (out,)

    yield "patch_embedding.weight", (dim, kind.in_channels, 1, 2, 2)
    yield "patch_embedding.bias", (dim,)
    yield from linear("text_embedding.0", dim, TEXT_DIM)
    yield from linear("text_embedding.2", dim, dim)
    yield from linear("time_embedding.0", dim, FREQ_DIM)
    yield from linear("time_embedding.2", dim, dim)
    yield from linear("time_projection.1", 6 * dim, dim)
    for index in range(layers):
        block = f"blocks.{index}"
        for attention in ("self_attn", "cross_attn"):
            for part in ("q", "k", "v", "o"):
                yield from linear(f"{block}.{attention}.{part}", dim, dim)
            yield f"{block}.{attention}.norm_q.weight", (dim,)
            yield f"{block}.{attention}.norm_k.weight", (dim,)
        if kind.clip:
            yield from linear(f"{block}.cross_attn.k_img", dim, dim)
            yield from linear(f"{block}.cross_attn.v_img", dim, dim)
            yield f"{block}.cross_attn.norm_k_img.weight", (dim,)
        yield f"{block}.norm3.weight", (dim,)
        yield f"{block}.norm3.bias", (dim,)
        yield from linear(f"{block}.ffn.0", ffn_dim, dim)
        yield from linear(f"{block}.ffn.2", dim, ffn_dim)
        yield f"{block}.modulation", (1, 6, dim)
    yield from linear("head.head", kind.out_channels * 4, dim)
    yield "head.modulation", (1, 2, dim)
    if kind.clip:
        yield "img_emb.proj.0.weight", (IMAGE_DIM,)
        yield "img_emb.proj.0.bias", (IMAGE_DIM,)
        yield from linear("img_emb.proj.1", IMAGE_DIM, IMAGE_DIM)
        yield from linear("img_emb.proj.3", dim, IMAGE_DIM)
        yield "img_emb.proj.4.weight", (dim,)
        yield "img_emb.proj.4.bias", (dim,)
    if kind.positions:
        yield "img_emb.emb_pos", (1, kind.positions, IMAGE_DIM)


def random_weight(name: str, shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    """One tensor: matrices N(0, 1/fan_in), modulation N(0, 0.3^2), norm weights 1 + 0.2 N(0, 1), biases 0.1 N(0, 1)."""
    values = torch.randn(shape, generator=generator)
    if name.endswith("modulation"):
        return 0.3 * values
    if name.endswith("gamma") or (len(shape) == 1 and name.endswith(".weight")):
        return 1 + 0.2 * values
    if name.endswith("bias"):
        return 0.1 * values
    return values / math.sqrt(math.prod(shape[1:]))


def make_t2v(
    dim: int = 128, ffn_dim: int = 256, layers: int = 2, seed: int = 20, kind: Kind | None = None
) -> dict[str, torch.Tensor]:
    """State dict of a random Wan, text-to-video or of `kind`."""
    if dim % HEAD_DIM:
        raise ValueError(f"dim is {dim}; ComfyUI takes heads of {HEAD_DIM}, so use a multiple of it.")
    generator = torch.Generator().manual_seed(seed)
    return {name: random_weight(name, shape, generator) for name, shape in shapes(dim, ffn_dim, layers, kind or Kind())}


def make_vae(comfyui: Path, dim: int = 8, seed: int = 21) -> dict[str, torch.Tensor]:
    """State dict of a random, narrow Wan 2.1 VAE, of ComfyUI's own class."""
    sys.path.insert(0, str(comfyui))
    sys.argv = sys.argv[:1]  # ComfyUI's settings parser reads it
    from comfy.cli_args import args

    args.cpu = True
    from comfy.ldm.wan.vae import WanVAE

    model = WanVAE(
        dim=dim,
        z_dim=CHANNELS,
        dim_mult=[1, 2, 4, 4],
        num_res_blocks=2,
        attn_scales=[],
        temperal_downsample=[False, True, True],
    )
    generator = torch.Generator().manual_seed(seed)
    return {
        name: random_weight(name, tuple(value.shape), generator).contiguous()
        for name, value in sorted(model.state_dict().items())
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--comfyui", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--ffn-dim", type=int, default=256)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--seed", type=int, default=20)
    parser.add_argument("--name", default="wan_tiny_t2v")
    parser.add_argument("--kinds", type=int, default=0, help="1: also one model of each of KINDS")
    parser.add_argument("--no-vae", action="store_true")
    asked = parser.parse_args()
    for folder in ("diffusion_models", "vae"):
        (asked.out / folder).mkdir(parents=True, exist_ok=True)
    model = make_t2v(asked.dim, asked.ffn_dim, asked.layers, asked.seed)
    save_file(model, asked.out / "diffusion_models" / f"{asked.name}.safetensors")
    for name, kind in KINDS.items() if asked.kinds else ():
        other = make_t2v(asked.dim, asked.ffn_dim, asked.layers, asked.seed, kind)
        save_file(other, asked.out / "diffusion_models" / f"{name}.safetensors")
    if not asked.no_vae:
        save_file(make_vae(asked.comfyui), asked.out / "vae" / "wan_tiny_vae.safetensors")


if __name__ == "__main__":
    main()
