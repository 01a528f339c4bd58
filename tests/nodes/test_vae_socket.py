"""Which VAE encodes: one of Wan's own classes at its own width, whatever its latents' shape says."""

from __future__ import annotations

import re
import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from route_server import our_module

pytestmark = pytest.mark.comfy

_WAN = {"dim_mult": [1, 2, 4, 4], "num_res_blocks": 1, "attn_scales": [], "temperal_downsample": [False, True, True]}


def part(kind: str, width: int, channels: int) -> Any:
    """A first_stage_model of ComfyUI, without weights."""
    from comfy.ldm.cosmos.vae import CausalContinuousVideoTokenizer
    from comfy.ldm.models.autoencoder import AutoencodingEngine
    from comfy.ldm.wan import vae, vae2_2
    from comfy.taesd.taehv import TAEHV

    regularizer = {"target": "comfy.ldm.models.autoencoder.EmptyRegularizer"}
    identity = {"target": "torch.nn.Identity"}
    made = {
        "wan2.1": lambda: vae.WanVAE(dim=width, z_dim=channels, **_WAN),
        "wan2.2": lambda: vae2_2.WanVAE(dim=width, z_dim=channels, **_WAN),
        "tiny": lambda: TAEHV(latent_channels=channels),
        "cosmos": lambda: CausalContinuousVideoTokenizer.__new__(CausalContinuousVideoTokenizer),
        "hunyuan": lambda: AutoencodingEngine(
            encoder_config=identity, decoder_config=identity, regularizer_config=regularizer
        ),
    }
    with torch.device("meta"):
        return made[kind]()


def socket(kind: str, width: int, channels: int, dims: int = 3, colours: int = 3) -> Any:
    model = part(kind, width, channels)
    return SimpleNamespace(latent_channels=channels, latent_dim=dims, output_channels=colours, first_stage_model=model)


def made(pack_nodes: dict[str, Any], vae: Any, channels: int) -> Any:
    sockets = our_module(pack_nodes, "bridge.sockets")
    space = {16: "WAN21_LATENTS", 48: "WAN22_LATENTS"}[channels]
    model = sys.modules[sockets.__name__.removesuffix("nodes.bridge.sockets") + "wan_core.model"]
    return sockets.ComfyVae(vae, "identity", getattr(model, space))


@pytest.mark.parametrize(("kind", "width", "channels"), [("wan2.1", 96, 16), ("wan2.2", 160, 48), ("wan2.1", 8, 16)])
def test_wans_own_vae_encodes(pack_nodes: dict[str, Any], kind: str, width: int, channels: int) -> None:
    assert made(pack_nodes, socket(kind, width, channels), channels).identity == "identity"


@pytest.mark.parametrize("holder", ["_orig_mod", "module"])
def test_a_part_that_torch_has_wrapped_is_known_inside(pack_nodes: dict[str, Any], holder: str) -> None:
    own, tiny = socket("wan2.1", 96, 16), socket("tiny", 0, 16)
    for vae in (own, tiny):
        vae.first_stage_model = SimpleNamespace(**{holder: vae.first_stage_model})
    assert made(pack_nodes, own, 16).identity == "identity"
    with pytest.raises(Exception, match="is a tiny autoencoder for quick previews"):
        made(pack_nodes, tiny, 16)


@pytest.mark.parametrize(
    ("kind", "width", "channels", "said"),
    [
        ("tiny", 0, 16, "is a tiny autoencoder for quick previews (TAEHV)"),
        ("tiny", 0, 48, "is a tiny autoencoder for quick previews (TAEHV)"),
        ("hunyuan", 0, 16, "is the VAE of another model (AutoencodingEngine)"),
        ("cosmos", 0, 16, "is the VAE of another model (CausalContinuousVideoTokenizer)"),
        ("wan2.1", 24, 16, "is pruned: 24 of Wan's 96 channels are left"),
        ("wan2.2", 40, 48, "is pruned: 40 of Wan's 160 channels are left"),
        ("wan2.2", 160, 16, "is the VAE of another model (WanVAE)"),
    ],
)
def test_any_other_one_of_as_many_channels_is_refused_by_its_class(
    pack_nodes: dict[str, Any], kind: str, width: int, channels: int, said: str
) -> None:
    file = {16: "wan_2.1_vae.safetensors", 48: "wan2.2_vae.safetensors"}[channels]
    with pytest.raises(ValueError, match=re.escape(f"The VAE {said}") + f".*Choose {file} in Load VAE"):
        made(pack_nodes, socket(kind, width, channels), channels)


def test_a_vae_of_pictures_with_transparency_is_refused(pack_nodes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="reads pictures of 4 channels"):
        made(pack_nodes, socket("wan2.1", 96, 16, colours=4), 16)


def test_a_vae_of_other_channels_is_refused_as_before(pack_nodes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="makes latents of 3 channels, the model needs 16"):
        made(pack_nodes, SimpleNamespace(latent_channels=3, latent_dim=2, first_stage_model=None), 16)
