"""Random Wan VAEs in miniature, of diffusers' own class, and as the engine's LatentCodec."""

from __future__ import annotations

from typing import Any

import torch

from wan_core.model import WAN21_LATENTS, WAN22_LATENTS, LatentSpace


def tiny_vae(space: LatentSpace) -> Any:
    """An AutoencoderKLWan with random weights: 16 channels and stride 8, or 48 and 16 (TI2V-5B)."""
    from diffusers import AutoencoderKLWan

    patched = {
        "patch_size": 2,
        "is_residual": True,
        "in_channels": 12,
        "out_channels": 12,
        "scale_factor_spatial": 16,
        "latents_mean": list(WAN22_LATENTS.mean),
        "latents_std": list(WAN22_LATENTS.std),
    }
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        vae = AutoencoderKLWan(
            base_dim=8,
            decoder_base_dim=8,
            z_dim=space.channels,
            num_res_blocks=1,
            **({} if space is WAN21_LATENTS else patched),
        )
        # Fresh convolutions answer in the third decimal, and a wrong picture would go unseen.
        torch.nn.init.normal_(vae.quant_conv.weight, std=2.0)
    return vae.eval()


class DiffusersCodec:
    """What `nodes.bridge.sockets.ComfyVae` is to ComfyUI's VAE, for diffusers'."""

    identity = "tiny diffusers vae"

    def __init__(self, vae: Any, space: LatentSpace) -> None:
        self.vae, self.space = vae, space

    def encode(self, pixels: torch.Tensor) -> torch.Tensor:
        clip = pixels.permute(3, 0, 1, 2)[None] * 2 - 1
        with torch.no_grad():
            return self.space.normalise(self.vae.encode(clip).latent_dist.mode()[0])

    def decode(self, latent: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError
