"""The pose and the face of Wan 2.2 Animate: gradients, what reaches which frame, and what does not fit."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tests.support.animate import FACED, face_inputs, without_motion_encoder
from tests.support.golden import FLOAT64, fill_at_random
from wan_core.errors import ConfigError
from wan_core.lora import LoraConfig, adapter_parameters, inject_lora
from wan_core.model import Conditioning, WanShape, WanTransformer

SIZE = (4, 4, 6)
SHAPE = WanShape(dim=24, ffn_dim=32, num_heads=2, num_layers=3, in_channels=36, text_dim=8, **FACED)
TARGETS = (r"blocks\.\d+\.(self_attn|cross_attn)\.(q|k|v|o)", r"blocks\.\d+\.ffn\.(0|2)", r"blocks\.\d+\.face\..*")


def model_of() -> WanTransformer:
    with without_motion_encoder():
        model = WanTransformer(SHAPE, FLOAT64)
    fill_at_random(model, torch.Generator().manual_seed(0))
    inject_lora(model.requires_grad_(False), LoraConfig(rank=2, targets=TARGETS), seed=1)
    for number, adapter in enumerate(adapter_parameters(model).values()):
        adapter.data = 0.3 * torch.randn(adapter.shape, generator=torch.Generator().manual_seed(number))
    return model.double()


def inputs() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, Conditioning]:
    torch.manual_seed(2)
    given = face_inputs(1, *SIZE, dtype=torch.float64)
    channels, latent = torch.randn(1, 20, *SIZE).double(), torch.randn(1, 16, *SIZE).double()
    return (
        latent,
        torch.tensor([500.0]).double(),
        torch.randn(1, 9, 8).double(),
        Conditioning(channels=channels, **given),
    )


def test_gradients_are_finite_differences() -> None:
    """Of a part at once, each adapter along a way on which its gradient says that the loss rises as fast."""
    model, given = model_of(), inputs()

    def loss() -> torch.Tensor:
        return model(*given).square().mean()

    loss().backward()
    adapters = adapter_parameters(model)
    assert sum(".face." in name for name in adapters) == 2 * 2 * 3
    with torch.no_grad():
        for part in ("blocks.0.face.", "blocks.0.ffn.2"):
            checked = [adapter for name, adapter in adapters.items() if part in name]
            draws = torch.Generator().manual_seed(3)
            along = [torch.randn(adapter.shape, generator=draws).double() for adapter in checked]
            along = [way / (adapter.grad * way).sum() for adapter, way in zip(checked, along, strict=True)]
            found = []
            for step in (1e-7, -2e-7, 1e-7):
                for adapter, way in zip(checked, along, strict=True):
                    adapter += step * way
                found.append(float(loss()))
            assert (found[0] - found[1]) / 2e-7 == pytest.approx(len(checked), rel=2e-5), part


def test_a_face_reaches_its_own_latent_frame_and_later_ones_and_a_pose_its_own() -> None:
    """By the embeddings: behind the first block every token has seen every other."""
    model, (latent, _, _, given) = model_of(), inputs()
    assert given.face is not None
    assert given.pose is not None
    with torch.no_grad():
        before = model._embed_frames(given, SIZE[0])
        assert before is not None
        assert not before[:, 0].any()  # of the reference image
        last = given.face.clone()
        last[:, :, 5:] += 1
        after = model._embed_frames(replace(given, face=last), SIZE[0])
        assert after is not None
        moved = (after - before).abs().amax(dim=(0, 2, 3)) > 1e-9
        assert moved.tolist() == [False, False, False, True]  # frame 0, then 1 to 4, then 5 to 8
        pose = given.pose.clone()
        pose[:, :, 1] += 1
        tokens = [model._embed_video(latent, one) for one in (given, replace(given, pose=pose))]
    different = (tokens[1] - tokens[0]).unflatten(1, (SIZE[0], -1)).abs().amax(dim=(0, 2, 3)) > 1e-9
    assert different.tolist() == [False, False, True, False]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"pose": None}, r"needs a pose video and the data has none. Give pose as \(1, 16, 3, 4, 6\)"),
        ({"face": torch.zeros(1, 3, 5, 512, 512)}, r"face is .* need \(1, 3, 9, 512, 512\)"),
        ({"vace": torch.zeros(1, 96, *SIZE)}, "does not read"),
    ],
)
def test_a_pose_or_face_of_another_clip_is_refused(change: dict[str, torch.Tensor | None], said: str) -> None:
    latent, timestep, text, given = inputs()
    with pytest.raises(ConfigError, match=said):
        model_of()(latent, timestep, text, replace(given, **change))
