"""The arithmetic of a step by formula, against torch's own counter on tiny models of every kind."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from tests.support.animate import face_inputs, quick
from tests.support.tiny_run import (
    TINY,
    TINY_CAMERA,
    TINY_FLF2V,
    TINY_HUMO,
    TINY_I2V_21,
    TINY_S2V,
    TINY_SCAIL2,
    TINY_TI2V,
    TINY_VACE,
)
from wan_core.lora import LoraConfig, inject_lora, without_adapters
from wan_core.model import Conditioning, Route, WanShape, WanTransformer, draw_passages
from wan_core.precision import PrecisionPolicy
from wan_core.train import FlopCount

Size = tuple[int, int, int]
SIZE = (2, 3, 8, 12)  # clips, latent frames, height, width
KINDS = {
    "text to video": TINY,
    "wider and deeper": WanShape(dim=256, ffn_dim=640, num_heads=2, num_layers=3),
    "with CLIP tokens": TINY_I2V_21,
    "first and last frame": TINY_FLF2V,
    "a timestep per frame": TINY_TI2V,
    "control stream": TINY_VACE,
    "camera": TINY_CAMERA,
    "SCAIL-2": TINY_SCAIL2,
    "sound and a reference image": TINY_S2V,
    "face": replace(TINY_I2V_21, pose_channels=16, face_layers=(0,)),
    "HuMo": TINY_HUMO,
}
TARGETS = {
    "queries only": r"blocks\.\d+\.self_attn\.q",
    "the last linear": r"blocks\.1\.ffn\.2",
    "keys of the text": r"blocks\.\d+\.cross_attn\.k",
    "outputs": r"blocks\.\d+\.(self|cross)_attn\.o",
    "control stream only": r"vace_blocks\.0\.ffn\.0",
}


def model_of(shape: WanShape, targets: tuple[str, ...] = ()) -> WanTransformer:
    model = WanTransformer(shape, PrecisionPolicy().numerics(torch.float32))
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.02)
    inject_lora(model, LoraConfig(rank=4, targets=targets) if targets else LoraConfig(rank=4), seed=0)
    if shape.face_layers:  # its encoders are left out of the formula
        model.face_encoder.forward = lambda motion, frames: torch.zeros(len(motion), frames, 5, shape.dim)
    return quick(model)


def counted(
    model: WanTransformer, routes: tuple[Route, ...] = (), text_rows: int = 512, context: Sequence[Size] = ()
) -> tuple[int, int]:
    """(forward, forward and backward) as torch counts them, attention in its plain form: nothing is computed twice."""
    passages = draw_passages(routes, SIZE[1], SIZE[2] * SIZE[3] // 4, [torch.Generator() for _ in routes])
    shape, (clips, frames, height, width) = model.shape, SIZE
    given = Conditioning(
        channels=torch.randn(clips, shape.condition_channels, *SIZE[1:]) if shape.condition_channels else None,
        image_tokens=torch.randn(clips, image_rows(shape), shape.image_dim) if shape.image_dim else None,
        vace=torch.randn(clips, shape.vace_channels, *SIZE[1:]) if shape.vace_layers else None,
        camera=torch.randn(clips, 24, frames, 8 * height, 8 * width) if shape.camera_channels else None,
        context=tuple(torch.randn(clips, 16, *size) for size in context),
        **(face_inputs(clips, frames, height, width) if shape.face_layers else {}),
    )
    if shape.identity_channels:
        one, small = (1, height, width), (frames, height // 2, width // 2)
        given = replace(
            given,
            references=torch.randn(clips, 16, *one),
            pose_stream=torch.randn(clips, 16, *small),
            reference_masks=torch.randn(clips, 28, *one),
            pose_masks=torch.randn(clips, 28, *small),
        )
    if shape.whisper_channels:
        sound = torch.randn(clips, frames, 8, 5, shape.whisper_channels)
        given = replace(given, references=torch.randn(clips, 16, 1, height, width), whisper=sound)
    if shape.sound_layers:  # its encoder is left out of the formula
        model.casual_audio_encoder.forward = lambda _: torch.zeros(clips, frames, 6, shape.dim)
        sound = torch.randn(clips, shape.sound_depth, shape.sound_channels, 4 * frames)
        reference = torch.randn(clips, 16, height, width)
        given = Conditioning(sound=sound, pose_video=torch.randn(clips, 16, *SIZE[1:]), reference=reference)
    timestep = torch.rand(clips, 1 if shape.sound_layers else time_rows(shape)).squeeze(1) * 1000
    latent = torch.randn(clips, shape.out_channels, *SIZE[1:])
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        output = model(latent, timestep, torch.randn(clips, text_rows, shape.text_dim), given, passages)
        forward = counter.get_total_flops()
        if output.requires_grad:  # adapters act
            output.sum().backward()
        return forward, counter.get_total_flops()


def image_rows(shape: WanShape) -> int:
    return (shape.image_positions or 257) if shape.image_dim else 0


def time_rows(shape: WanShape) -> int:
    return {TINY_TI2V: SIZE[1], TINY_S2V: SIZE[1] + 1}.get(shape, 1)


def by_formula(
    model: WanTransformer, routes: tuple[Route, ...] = (), text_rows: int = 512
) -> tuple[float, float, float]:
    """(forward, forward and backward, recomputed)."""
    shape = model.shape
    latent = torch.Size((SIZE[0], shape.out_channels, *SIZE[1:]))
    rows = {"time_rows": time_rows(shape), "image_rows": image_rows(shape), "text_rows": text_rows}
    rows["context_tokens"] = SIZE[2] * SIZE[3] // 4 * bool(shape.sound_layers)
    found = FlopCount(model).of(latent, **rows, routes=routes)
    return found.forward, found.useful, found.recomputed


@pytest.mark.parametrize("kind", ["a timestep per frame", "control stream", "with CLIP tokens"])
def test_the_formula_counts_the_tokens_that_go_through(kind: str) -> None:
    model, route = model_of(KINDS[kind]), Route(selection_ratio=0.5, start_layer_idx=0, end_layer_idx=0)
    forward, useful, _ = by_formula(model, (route,))
    measured_forward, measured = counted(model, (route,))
    assert forward == pytest.approx(measured_forward, rel=0.002)
    assert useful == pytest.approx(measured, rel=0.002)
    assert useful < by_formula(model)[1]


ELSEWHERE = ("wider and deeper", "with CLIP tokens", "first and last frame", "a timestep per frame", "control stream")
"""kinds that CI counts in other tests"""


@pytest.mark.parametrize("kind", [pytest.param(k, marks=pytest.mark.soak) if k in ELSEWHERE else k for k in KINDS])
def test_the_formula_counts_what_torch_counts(kind: str) -> None:
    model = model_of(KINDS[kind])
    forward, both, _ = by_formula(model)
    assert (forward, both) == pytest.approx(counted(model), rel=2e-3)
    assert forward < both < 3 * forward, "a frozen base has no weight gradients"


def test_the_formula_counts_the_tokens_of_a_context() -> None:
    model = model_of(TINY)
    latent = torch.Size((SIZE[0], 16, *SIZE[1:]))
    tokens = 3 * 4 * 6 + 4 * 5
    found = FlopCount(model).of(latent, time_rows=1, image_rows=0, context_tokens=tokens)
    measured = counted(model, context=((3, 8, 12), (1, 8, 10)))
    assert (found.forward, found.useful) == pytest.approx(measured, rel=4e-3)
    assert found.useful > 1.3 * by_formula(model)[1]


@pytest.mark.parametrize("rows_differ", [pytest.param(False, marks=pytest.mark.soak), True])
@pytest.mark.parametrize(
    "kind",
    ["text to video", *(pytest.param(k, marks=pytest.mark.soak) for k in ("control stream", "with CLIP tokens"))],
)
def test_rows_of_text_that_are_equal_count_once_but_for_attention(kind: str, rows_differ: bool) -> None:
    model = model_of(KINDS[kind])
    all_of_them = counted(model)
    model.read_texts(512, rows_differ=rows_differ)
    measured = counted(model, text_rows=16)
    assert by_formula(model, text_rows=16)[:2] == pytest.approx(measured, rel=2e-3)
    assert measured[1] < all_of_them[1]


def test_our_count_is_that_of_maxdiffusion_for_a_14b_step_at_720p() -> None:
    """It prints 4893.27 TFLOPs for 1280x720, 81 frames, batch 0.25: three forward passes, as every weight is trained.

    Ours has the embeddings and the head besides, and theirs one more projection of the text.
    """
    with torch.device("meta"):
        model = WanTransformer(WanShape(dim=5120, ffn_dim=13824, num_heads=40, num_layers=40)).requires_grad_(False)
    found = FlopCount(model).of(torch.Size((1, 16, 21, 90, 160)), time_rows=1, image_rows=0)
    assert 3 * 0.25 * found.forward / 1e12 == pytest.approx(4893.27, rel=0.003)


@pytest.mark.parametrize("kind", [pytest.param("text to video", marks=pytest.mark.soak), "control stream"])
def test_a_target_that_the_base_makes_counts_one_pass_without_adapters(kind: str) -> None:
    model = model_of(KINDS[kind])
    latent = torch.Size((SIZE[0], model.shape.out_channels, *SIZE[1:]))
    count = FlopCount(model)
    found = count.of(latent, time_rows=1, image_rows=0)
    with without_adapters(model):
        assert found.base == pytest.approx(counted(model)[0], rel=2e-3)
    assert found.base < found.forward
    none, both = (count.work_of(latent, time_rows=1, image_rows=0, more_forward=clips) for clips in (0, 2))
    assert both.flops - none.flops == pytest.approx(found.base)


@pytest.mark.parametrize(
    "targets",
    [pytest.param(one, marks=pytest.mark.soak) if "of" in one or one == "outputs" else one for one in TARGETS],
)
def test_only_gradients_that_are_needed_are_counted(targets: str) -> None:
    model = model_of(TINY_VACE if "control" in targets else TINY, (TARGETS[targets],))
    assert by_formula(model)[:2] == pytest.approx(counted(model), rel=2e-3)


def test_what_checkpointing_does_again_is_no_useful_work() -> None:
    model = model_of(replace(TINY, num_layers=3))
    plain = counted(model)[1]
    model.checkpoint_blocks = True
    _, useful, recomputed = by_formula(model)
    assert useful == pytest.approx(plain, rel=2e-3)
    assert useful + recomputed == pytest.approx(counted(model)[1], rel=2e-3)


def test_a_batch_of_two_takes_twice_as_much_and_twice_the_tokens_more_than_that() -> None:
    count = FlopCount(model_of(TINY))

    def useful(*latent: int) -> float:
        return count.of(torch.Size(latent), time_rows=1, image_rows=0).useful

    one = useful(1, 16, 3, 8, 12)
    assert useful(2, 16, 3, 8, 12) == 2 * one
    long, longer = useful(1, 16, 300, 8, 12), useful(1, 16, 600, 8, 12)
    assert longer > 2 * long
