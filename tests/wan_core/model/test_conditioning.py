"""What a variant must be given, and the sentence when it is not."""

from __future__ import annotations

import pytest
import torch

from wan_core.errors import ConfigError
from wan_core.model import Conditioning, WanShape, WanTransformer
from wan_core.model.conditioning import check_conditioning

FRAMES, HEIGHT, WIDTH = 3, 4, 6


def shape(**changes: object) -> WanShape:
    return WanShape(dim=48, ffn_dim=64, num_heads=2, num_layers=2, text_dim=8, **changes)  # type: ignore[arg-type]


SHAPES = {
    "t2v": shape(),
    "i2v 2.1": shape(in_channels=36, image_dim=20),
    "i2v 2.2": shape(in_channels=36),
    "flf2v": shape(in_channels=36, image_dim=20, image_positions=514),
    "vace": shape(vace_layers=(0,)),
    "fun control": shape(in_channels=52, reference_channels=16),
    "camera": shape(in_channels=32, camera_channels=24),
}


def zeros(*sizes: int) -> torch.Tensor:
    return torch.zeros(2, *sizes)


VIDEO = (FRAMES, HEIGHT, WIDTH)
GIVEN = {
    "channels": zeros(20, *VIDEO),
    "image_tokens": zeros(257, 20),
    "vace": zeros(96, *VIDEO),
    "reference": zeros(16, HEIGHT, WIDTH),
    "camera": zeros(24, FRAMES, 8 * HEIGHT, 8 * WIDTH),
}


def check(variant: str, **given: torch.Tensor) -> None:
    latent, timestep, text = zeros(16, *VIDEO), torch.zeros(2), zeros(512, 8)
    check_conditioning(SHAPES[variant], latent, timestep, text, Conditioning(**given))


@pytest.mark.parametrize(
    ("variant", "names"),
    [
        ("t2v", []),
        ("i2v 2.1", ["channels", "image_tokens"]),
        ("i2v 2.2", ["channels"]),
        ("vace", ["vace"]),
    ],
)
def test_a_variant_takes_exactly_its_own_conditioning(variant: str, names: list[str]) -> None:
    given = {name: GIVEN[name] for name in names}
    check(variant, **given)
    for missing in names:
        with pytest.raises(ConfigError, match=r"This model needs .* and the data has none"):
            check(variant, **{name: tensor for name, tensor in given.items() if name != missing})
    for extra in GIVEN.keys() - given.keys():
        if (variant, extra) == ("i2v 2.2", "image_tokens"):
            continue
        with pytest.raises(ConfigError, match="which this model does not read"):
            check(variant, **given, **{extra: GIVEN[extra]})


def test_image_to_video_2_2_ignores_clip_tokens() -> None:
    model = WanTransformer(SHAPES["i2v 2.2"])
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.1, generator=torch.Generator().manual_seed(0))
    inputs = zeros(16, *VIDEO) + 1, torch.full((2,), 500.0), zeros(512, 8)
    channels = zeros(20, *VIDEO)
    without = model(*inputs, Conditioning(channels=channels))
    assert torch.equal(model(*inputs, Conditioning(channels=channels, image_tokens=zeros(257, 20))), without)


def test_a_reference_image_is_optional() -> None:
    channels = zeros(36, *VIDEO)
    check("fun control", channels=channels)
    check("fun control", channels=channels, reference=GIVEN["reference"])


def test_camera_rays_have_the_size_of_the_pixels() -> None:
    channels = zeros(16, *VIDEO)
    check("camera", channels=channels, camera=GIVEN["camera"])
    with pytest.raises(ConfigError, match=r"camera is \(2, 24, 3, 4, 6\); .* need \(2, 24, 3, 32, 48\)"):
        check("camera", channels=channels, camera=zeros(24, *VIDEO))


@pytest.mark.parametrize("rows", [257, 514])
def test_the_number_of_image_tokens_comes_from_the_input(rows: int) -> None:
    check("flf2v", channels=GIVEN["channels"], image_tokens=zeros(rows, 20))


@pytest.mark.parametrize(
    ("tokens", "sentence"),
    [
        (zeros(257, 24), r"\(2, 257, 24\); this model needs \(2, rows, 20\)"),
        (zeros(0, 20), r"needs \(2, rows, 20\)"),
        (torch.zeros(1, 257, 20), r"needs \(2, rows, 20\)"),
        (zeros(771, 20), "771 image tokens and this model knows 514 positions"),
    ],
)
def test_image_tokens_of_the_wrong_size_are_refused(tokens: torch.Tensor, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        check("flf2v", channels=GIVEN["channels"], image_tokens=tokens)


@pytest.mark.parametrize(
    ("latent", "timestep", "text", "sentence"),
    [
        (zeros(48, *VIDEO), torch.zeros(2), zeros(512, 8), "needs .B, 16, F, H, W. with even H and W"),
        (zeros(16, 3, 5, 6), torch.zeros(2), zeros(512, 8), "even H and W"),
        (zeros(16, *VIDEO), torch.zeros(2, 18), zeros(512, 8), r"one per clip, \(2,\), or one per latent frame"),
        (zeros(16, *VIDEO), torch.zeros(3), zeros(512, 8), "one per clip"),
        (zeros(16, *VIDEO), torch.zeros(2), torch.zeros(1, 512, 8), r"text is \(1, 512, 8\); this model needs \(2,"),
    ],
)
def test_inputs_of_the_wrong_size_are_refused(
    latent: torch.Tensor, timestep: torch.Tensor, text: torch.Tensor, sentence: str
) -> None:
    with pytest.raises(ConfigError, match=sentence):
        check_conditioning(SHAPES["t2v"], latent, timestep, text, Conditioning())
