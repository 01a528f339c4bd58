"""LATENT and CONDITIONING are read as ComfyUI's own sampler reads them."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from world import ensure_models

from tests.support.headers import header, humo, scail
from tests.support.tiny_run import TINY_CAMERA, random_weights
from wan_core.checkpoint import detect_variant
from wan_core.dataset.conditioning import condition_misfits

pytestmark = pytest.mark.comfy


@pytest.fixture(scope="module")
def core(pack_nodes: dict[str, Any]) -> Any:
    """nodes/bridge/core_tensors.py, as the pack loads it."""
    package = pack_nodes["WanCacheFromLatents"].__module__.rpartition(".")[0]
    return sys.modules[f"{package}.bridge.core_tensors"]


def variant_of(pack_nodes: dict[str, Any], file: Path) -> Any:
    package = pack_nodes["WanCacheFromLatents"].__module__.rpartition(".nodes.")[0]
    checkpoint = sys.modules[f"{package}.wan_core.checkpoint"]
    return checkpoint.detect_variant(checkpoint.read_checkpoint(file))


@pytest.fixture(scope="module")
def models(pack_nodes: dict[str, Any], comfyui_tree: Path) -> Any:
    """name -> (our variant, ComfyUI's model) of a tiny file."""
    import comfy.sd

    folder = ensure_models(comfyui_tree, kinds=1) / "diffusion_models"

    def load(name: str) -> tuple[Any, Any]:
        file = folder / f"{name}.safetensors"
        return variant_of(pack_nodes, file), comfy.sd.load_diffusion_model(str(file)).model

    return load


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def conditioning(length: int = 4, **values: Any) -> list[Any]:
    """As CLIPTextEncode with umT5 gives it: 512 rows, those behind the real tokens zero."""
    text = torch.zeros(1, 512, 4096)
    text[:, :length] = drawn(1, length, 4096, seed=length)
    return [[text, {"pooled_output": None, **values}]]


def test_raw_latents_are_normalised_once_as_the_sampler_does(core: Any, models: Any) -> None:
    for name, channels in (("wan_tiny_t2v", 16), ("wan_tiny_ti2v", 48)):
        variant, theirs = models(name)
        raw = drawn(2, channels, 3, 4, 6)
        clips = list(core.read_clips([{"samples": raw}], [conditioning()], variant))
        assert [clip.name for clip in clips] == ["latent 1", "latent 2"]
        for clip, sample in zip(clips, theirs.process_latent_in(raw), strict=True):
            torch.testing.assert_close(clip.latent, sample, atol=1e-6, rtol=1e-6)
            assert torch.equal(clip.text, drawn(1, 4, 4096, seed=4)[0])
            assert clip.condition == {}


@pytest.mark.parametrize("mask", ["one", "four", "short", "none"])
def test_given_frames_are_what_the_sampler_puts_behind_the_latent(core: Any, models: Any, mask: str) -> None:
    variant, theirs = models("wan_tiny_i2v")
    raw, image = drawn(1, 16, 3, 4, 6), drawn(1, 16, 3, 4, 6, seed=1)
    masks = {
        "one": torch.cat([torch.zeros(1, 1, 1, 4, 6), torch.ones(1, 1, 2, 4, 6)], 2),
        "four": drawn(1, 4, 3, 4, 6, seed=2).sigmoid(),
        "short": torch.zeros(1, 1, 1, 4, 6),
    }
    values: dict[str, Any] = {"concat_latent_image": image.clone()}
    if mask in masks:
        values["concat_mask"] = masks[mask].clone()
    (clip,) = core.read_clips([{"samples": raw}], [conditioning(**values)], variant)
    expected = theirs.concat_cond(noise=raw, device=torch.device("cpu"), **values)  # writes into its image
    torch.testing.assert_close(clip.condition["channels"], expected[0], atol=1e-6, rtol=1e-6)
    assert clip.condition["channels"].shape == (20, 3, 4, 6)


def test_image_tokens_are_read_for_the_models_that_have_them(core: Any, models: Any) -> None:
    variant, _ = models("wan_tiny_i2v_clip")
    tokens = drawn(1, 257, 1280)
    values = {"concat_latent_image": drawn(1, 16, 3, 4, 6), "clip_vision_output": {"penultimate_hidden_states": tokens}}
    (clip,) = core.read_clips([{"samples": drawn(1, 16, 3, 4, 6)}], [conditioning(**values)], variant)
    assert torch.equal(clip.condition["image_tokens"], tokens[0])
    del values["clip_vision_output"]
    with pytest.raises(ValueError, match=r"has no clip_vision_output, .* CLIPVisionEncode"):
        list(core.read_clips([{"samples": drawn(1, 16, 3, 4, 6)}], [conditioning(**values)], variant))


def test_what_core_animate_makes_is_read_by_the_names_of_the_model(core: Any, models: Any) -> None:
    variant, theirs = models("wan_tiny_i2v_clip")
    families = sys.modules[type(variant.family).__module__].FAMILIES
    variant = replace(variant, family=next(family for family in families if family.task == "animate"))
    raw, image, pose = drawn(1, 16, 3, 4, 6), drawn(1, 16, 4, 4, 6, seed=1), drawn(1, 16, 3, 4, 6, seed=2)
    mask = torch.cat([torch.zeros(1, 4, 1, 4, 6), torch.ones(1, 4, 3, 4, 6)], 2)
    values = {
        "concat_latent_image": image,
        "concat_mask": mask,
        "pose_video_latent": pose,
        "face_video_pixels": drawn(1, 3, 9, 8, 8),
        "clip_vision_output": {"penultimate_hidden_states": drawn(1, 257, 1280)},
    }
    (clip,) = core.read_clips([{"samples": raw}], [conditioning(**values)], variant)
    torch.testing.assert_close(clip.condition["pose"], theirs.process_latent_in(pose)[0], atol=1e-6, rtol=1e-6)
    assert clip.condition["channels"].shape == (20, 4, 4, 6)
    assert torch.equal(clip.condition["channels"][:4], 1 - mask[0])
    assert torch.equal(clip.condition["face"], values["face_video_pixels"][0])
    assert clip.latent.shape == (16, 3, 4, 6)
    del values["face_video_pixels"]
    with pytest.raises(ValueError, match=r"no face_video_pixels, .* Send it through WanAnimateToVideo with face"):
        list(core.read_clips([{"samples": raw}], [conditioning(**values)], variant))


def of_s2v(models: Any) -> tuple[Any, Any]:
    variant, theirs = models("wan_tiny_t2v")
    families = sys.modules[type(variant.family).__module__].FAMILIES
    shape = replace(variant.shape, sound_channels=6, sound_depth=2, sound_layers=(0,))
    return replace(variant, family=next(one for one in families if one.task == "s2v"), shape=shape), theirs


def test_what_core_s2v_makes_is_read_by_the_names_of_the_model(core: Any, models: Any) -> None:
    variant, theirs = of_s2v(models)
    raw, pose, motion = drawn(1, 16, 3, 8, 8), drawn(1, 16, 3, 8, 8, seed=2), drawn(1, 16, 5, 8, 8, seed=3)
    images = [drawn(1, 16, 1, 8, 8, seed=seed) for seed in (4, 5)]
    values = {"audio_embed": drawn(1, 2, 6, 16), "control_video": pose}
    (clip,) = core.read_clips([{"samples": raw}], [conditioning(**values)], variant)
    assert clip.condition.keys() == {"sound", "pose_video"}
    assert torch.equal(clip.condition["sound"], values["audio_embed"][0, :, :, :12])
    torch.testing.assert_close(clip.condition["pose_video"], theirs.process_latent_in(pose)[0], atol=1e-6, rtol=1e-6)
    more = values | {"reference_latents": images, "reference_motion": motion}
    (clip,) = core.read_clips([{"samples": raw}], [conditioning(**more)], variant)
    expected = theirs.process_latent_in(images[1])[0, :, 0]
    torch.testing.assert_close(clip.condition["reference"], expected, atol=1e-6, rtol=1e-6)
    before = clip.condition["frames_before"]
    assert before.shape == (16, 19, 8, 8)
    assert not before[:, :14].any()
    torch.testing.assert_close(before[:, 14:], theirs.process_latent_in(motion)[0], atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize(
    ("change", "side", "said"),
    [
        ({"audio_embed": None}, 8, "no audio_embed, .* Send it through WanSoundImageToVideo with audio_encoder_output"),
        ({"audio_embed": drawn(1, 2, 6, 11)}, 8, r"sound of latent 1 has shape \[2, 6, 11\]; .* reads \[2, 6, 12\]"),
        ({"control_video": None}, 8, "no control_video"),
        ({"reference_motion": drawn(1, 16, 5, 8, 6)}, 6, "must be multiples of 64"),
        ({"reference_latents": [drawn(1, 16, 2, 8, 8)]}, 8, "2 latent frames. Give one image as ref_image"),
    ],
)
def test_what_core_s2v_makes_of_another_clip_is_refused(
    core: Any, models: Any, change: dict[str, Any], side: int, said: str
) -> None:
    values = {"audio_embed": drawn(1, 2, 6, 12), "control_video": drawn(1, 16, 3, 8, side)} | change
    with pytest.raises(ValueError, match=said):
        list(core.read_clips([{"samples": drawn(1, 16, 3, 8, side)}], [conditioning(**values)], of_s2v(models)[0]))


@pytest.mark.filterwarnings("ignore:Using torch.cross without:UserWarning")  # core's own
def test_the_camera_path_of_core_is_cached_as_the_sampler_is_given_it(
    core: Any, pack_nodes: dict[str, Any], tmp_path: Path
) -> None:
    import comfy.sd
    from comfy_extras.nodes_camera_trajectory import WanCameraEmbedding
    from comfy_extras.nodes_wan import WanCameraImageToVideo

    file = tmp_path / "wan_tiny_camera.safetensors"
    save_file(random_weights(TINY_CAMERA), file)
    variant, theirs = variant_of(pack_nodes, file), comfy.sd.load_diffusion_model(str(file)).model
    rays = WanCameraEmbedding.execute("Zoom In", 64, 48, 9).result[0]
    vae = SimpleNamespace(encode=lambda pixels: drawn(1, 16, len(pixels), 6, 8))
    start = drawn(1, 48, 64, 3).sigmoid()
    made = WanCameraImageToVideo.execute(
        conditioning(), conditioning(), vae, 64, 48, 9, 1, start_image=start, camera_conditions=rays
    )
    (clip,) = core.read_clips([{"samples": drawn(1, 16, 3, 6, 8)}], [made.result[0]], variant)
    given = theirs.extra_conds(noise=drawn(1, 16, 3, 6, 8), device=torch.device("cpu"), **made.result[0][0][1])
    assert torch.equal(clip.condition["camera"], given["camera_conditions"].cond[0])
    torch.testing.assert_close(clip.condition["channels"], given["c_concat"].cond[0], atol=1e-6, rtol=1e-6)
    assert not bool(clip.condition["channels"][:, 1:].any())


def scail_values() -> dict[str, Any]:
    """What WanSCAILToVideo puts into a CONDITIONING: a clip of 3 latent frames, two references, to replace."""
    primary, further = drawn(1, 28, 8, 12, seed=5), drawn(1, 28, 8, 12, seed=6)
    return {
        "reference_latents": [drawn(1, 16, 1, 8, 12, seed=1), drawn(1, 16, 1, 8, 12, seed=2)],
        "pose_video_latent": drawn(1, 16, 3, 4, 6, seed=3),
        "clip_vision_output": {"penultimate_hidden_states": drawn(1, 257, 1280)},
        "ref_mask_28ch": torch.cat([further, primary, torch.zeros(3, 28, 8, 12)])[None],
        "driving_mask_28ch": drawn(1, 3, 28, 4, 6, seed=4),
        "ref_mask_flag": False,
    }


def test_streams_of_scail_are_read_as_its_node_gives_them(core: Any) -> None:
    """benchmarks/live_scail.py goes on from here to ComfyUI 0.33's own prediction."""
    variant, values = detect_variant(header(scail(masks=True), "scail2.safetensors")), scail_values()
    raw = {"samples": drawn(1, 16, 3, 8, 12)}
    (clip,) = core.read_clips([raw], [conditioning(**values)], variant)
    given, normalise = clip.condition, variant.latents.normalise
    assert list(given) == list(variant.conditioning.tensors)
    first, second = (normalise(one[0])[:, 0] for one in values["reference_latents"])
    assert torch.equal(given["references"], torch.stack([first, second], 1)), "the primary one first"
    assert torch.equal(given["pose_stream"], normalise(values["pose_video_latent"][0]))
    assert torch.equal(given["reference_masks"][:, 0], drawn(1, 28, 8, 12, seed=5)[0]), "the primary one first"
    assert torch.equal(given["reference_masks"][:, 1], drawn(1, 28, 8, 12, seed=6)[0])
    assert torch.equal(given["pose_masks"], values["driving_mask_28ch"][0].transpose(0, 1))
    assert given["replaces"].tolist() == [1.0]
    assert condition_misfits(given, tuple(clip.latent.shape)) == ""
    short = {**given, "pose_stream": given["pose_stream"][:, :2]}
    assert "pose_stream have shape [16, 2, 4, 6], the clip needs" in condition_misfits(short, tuple(clip.latent.shape))


@pytest.mark.parametrize(
    ("key", "wired"),
    [
        ("reference_latents", "reference_image"),
        ("pose_video_latent", "pose_video"),
        ("ref_mask_28ch", "reference_image_mask"),
        ("driving_mask_28ch", "pose_video_mask"),
    ],
)
def test_a_missing_stream_of_scail_is_refused_by_the_input_to_wire(core: Any, key: str, wired: str) -> None:
    variant, values = detect_variant(header(scail(masks=True), "scail2.safetensors")), scail_values()
    del values[key]
    with pytest.raises(ValueError, match=rf"has no {key}, and 2.1 SCAIL2-14B reads it. .* with {wired}\."):
        list(core.read_clips([{"samples": drawn(1, 16, 3, 8, 12)}], [conditioning(**values)], variant))


def humo_made(*, heard: bool = True) -> list[Any]:
    """What core's WanHuMoImageToVideo puts into the CONDITIONING of a clip of nine frames, 0.4 seconds of sound."""
    nodes_wan = pytest.importorskip("comfy_extras.nodes_wan")
    layers = [drawn(1, 25, 1280, seed=layer) for layer in range(33)]
    sound = {"encoded_audio_all_layers": layers, "audio_samples": 6400}
    vae = SimpleNamespace(encode=lambda pixels: drawn(1, 16, 1, pixels.shape[1] // 8, pixels.shape[2] // 8, seed=50))
    made = nodes_wan.WanHuMoImageToVideo.execute(
        *(conditioning(), conditioning(), vae, 96, 64, 9, 1),
        ref_image=drawn(1, 64, 96, 3).sigmoid(),
        audio_encoder_output=sound if heard else None,
    )
    return made.result[0]


def test_sound_and_reference_of_humo_are_read_as_its_node_gives_them(core: Any) -> None:
    """benchmarks/core_conditioning.py goes on from here to a run and core's own sampler."""
    variant, made = detect_variant(header(humo(), "humo_17B_fp16.safetensors")), humo_made()
    (clip,) = core.read_clips([{"samples": drawn(1, 16, 3, 8, 12)}], [made], variant)
    assert list(clip.condition) == ["references", "whisper"]
    assert torch.equal(clip.condition["references"], variant.latents.normalise(drawn(16, 1, 8, 12, seed=50)))
    assert torch.equal(clip.condition["whisper"], made[0][1]["audio_embed"][0])
    assert clip.condition["whisper"].shape == (3, 8, 5, 1280)
    assert condition_misfits(clip.condition, tuple(clip.latent.shape)) == ""
    (silent,) = core.read_clips([{"samples": drawn(1, 16, 3, 8, 12)}], [humo_made(heard=False)], variant)
    assert silent.condition["whisper"].shape == (3, 8, 5, 1280)
    assert not silent.condition["whisper"].any()


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ("reference_latents", r"has no reference_latents, .* through WanHuMoImageToVideo with ref_image\."),
        ("audio_embed", r"has no audio_embed, .* through WanHuMoImageToVideo with audio_encoder_output\."),
        ("", r"sound of latent 1 has shape \[3, 8, 5, 1280\]; 2.1 HuMo-17B reads \[2, 8, 5, 1280\]"),
    ],
)
def test_sound_of_humo_that_is_missing_or_of_another_clip_is_refused(core: Any, key: str, said: str) -> None:
    variant, made = detect_variant(header(humo(), "humo_17B_fp16.safetensors")), humo_made()
    made[0][1].pop(key, None)
    with pytest.raises(ValueError, match=said):
        list(core.read_clips([{"samples": drawn(1, 16, 3 if key else 2, 8, 12)}], [made], variant))


def test_context_streams_are_what_the_sampler_puts_behind_the_video(core: Any, models: Any) -> None:
    variant, theirs = models("wan_tiny_t2v")
    raw = {"samples": drawn(2, 16, 3, 4, 6)}
    streams = [drawn(1, 16, 3, 4, 6, seed=1), drawn(2, 16, 1, 4, 8, seed=2)]
    given = [conditioning(context_latents=streams)]
    clips = list(core.read_clips([raw], given, variant))
    assert core.kind_given(given, variant).name == "context"
    for place, clip in enumerate(clips):
        assert list(clip.condition) == ["context.1", "context.2"]
        for stream, found in zip(streams, clip.condition.values(), strict=True):
            expected = theirs.process_latent_in(stream)[min(place, len(stream) - 1)]
            torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-6)
    refused: list[tuple[str, list[Any], str]] = [
        ("wan_tiny_t2v", [given[0], conditioning()], "latent 2 has no context streams, but other clips have"),
        ("wan_tiny_t2v", [conditioning(context_latents=[drawn(1, 48, 1, 4, 6)])], r"reads \(batch, 16, frames"),
        ("wan_tiny_t2v", [conditioning(context_latents=streams * 6)], "12 context streams. Give at most 10"),
        ("wan_tiny_i2v", [conditioning(concat_latent_image=drawn(1, 16, 1, 4, 6), context_latents=streams)],
         "which 2.2 I2V.* does not read"),
    ]  # fmt: skip
    for name, texts, said in refused:
        latents = [{"samples": drawn(1, 16, 1, 4, 6)}] * len(texts)
        with pytest.raises(ValueError, match=said):
            list(core.read_clips(latents, texts, models(name)[0]))


def test_the_streams_of_bernini_conditioning_are_cached_as_the_sampler_is_given_them(core: Any, models: Any) -> None:
    """Of ComfyUI 0.33; references of a folder have the sizes that it chooses (tests/wan_core/dataset)."""
    bernini = pytest.importorskip("comfy_extras.nodes_bernini", reason="this ComfyUI has no BerniniConditioning")
    variant, theirs = models("wan_tiny_t2v")
    seen: list[tuple[int, ...]] = []

    def encode(pixels: torch.Tensor) -> torch.Tensor:
        seen.append(tuple(pixels.shape[:3]))
        frames, height, width = (len(pixels) + 3) // 4, pixels.shape[1] // 8, pixels.shape[2] // 8
        return drawn(1, 16, frames, height, width, seed=len(seen))

    made = bernini.BerniniConditioning.execute(
        *(conditioning(), conditioning(), SimpleNamespace(encode=encode), 48, 32, 9, 1),
        source_video=drawn(9, 64, 96, 3).sigmoid(),
        reference_video=drawn(7, 40, 96, 3).sigmoid(),
        reference_images={"reference_image_0": drawn(1, 848, 1696, 3).sigmoid()},
    )
    assert seen == [(9, 32, 48), (7, 32, 96), (1, 416, 848)]
    (clip,) = core.read_clips([{"samples": drawn(1, 16, 3, 4, 6)}], [made.result[0]], variant)
    given = theirs.extra_conds(noise=drawn(1, 16, 3, 4, 6), device=torch.device("cpu"), **made.result[0][0][1])
    for found, expected in zip(clip.condition.values(), given["context_latents"].cond, strict=True):
        torch.testing.assert_close(found, expected[0], atol=1e-6, rtol=1e-6)


def test_texts_go_with_latents_or_with_clips(core: Any, models: Any) -> None:
    variant, _ = models("wan_tiny_t2v")
    latents = [{"samples": drawn(2, 16, 1, 4, 6)}, {"samples": drawn(1, 16, 1, 4, 6, seed=1)}]

    def lengths(*counts: int) -> list[int]:
        return [len(clip.text) for clip in core.read_clips(latents, [conditioning(n) for n in counts], variant)]

    assert lengths(3, 5) == [3, 3, 5]
    assert lengths(3, 5, 7) == [3, 5, 7]
    for counts in ((3,), (3, 4, 5, 6), ()):
        with pytest.raises(ValueError, match=f"There are 3 latents and {len(counts)} texts"):
            lengths(*counts)


def test_the_buckets_of_core_resolution_bucket_hold_a_prompt_for_each_clip(core: Any, models: Any) -> None:
    """Its LATENT is the batch of one size, its CONDITIONING the prompts of that batch in a row."""
    variant, _ = models("wan_tiny_t2v")
    latents = [{"samples": drawn(2, 16, 1, 4, 6)}, {"samples": drawn(3, 16, 1, 6, 4, seed=1)}]
    buckets = [conditioning(3) + conditioning(5), conditioning(7) + conditioning(2) + conditioning(4)]
    clips = list(core.read_clips(latents, buckets, variant))
    assert [len(clip.text) for clip in clips] == [3, 5, 7, 2, 4]
    assert torch.equal(clips[3].text, drawn(1, 2, 4096, seed=2)[0])
    with pytest.raises(ValueError, match="latent 1 holds 3 prompts"):
        list(core.read_clips(latents[:1], [conditioning(1) * 3], variant))


REFUSED: list[tuple[str, dict[str, Any], Any, str]] = [
    ("wan_tiny_t2v", {"samples": drawn(1, 16, 4, 6)}, conditioning(), r"LATENT 1 has shape \[1, 16, 4, 6\]"),
    ("wan_tiny_t2v", {}, conditioning(), "LATENT 1 has shape none"),
    ("wan_tiny_t2v", {"samples": drawn(1, 48, 1, 4, 6)}, conditioning(), "latent 1 has 48 channels, .* needs 16"),
    ("wan_tiny_i2v", {"samples": drawn(1, 16, 1, 4, 6)}, conditioning(), "no concat_latent_image, .* WanImageToVideo"),
    (
        "wan_tiny_i2v",
        {"samples": drawn(1, 16, 1, 4, 6)},
        conditioning(concat_latent_image=drawn(1, 32, 1, 4, 6)),
        "have 32 channels, .* reads 20",
    ),
    ("wan_tiny_t2v", {"samples": drawn(1, 16, 1, 4, 6)}, conditioning() * 2, "holds 2 prompts"),
    (
        "wan_tiny_t2v",
        {"samples": drawn(1, 16, 1, 4, 6)},
        [[drawn(1, 77, 4096), {"pooled_output": drawn(1, 768)}]],
        "was not encoded by umT5",
    ),
    ("wan_tiny_t2v", {"samples": drawn(1, 16, 1, 4, 6)}, [[drawn(2, 3, 4096), {}]], "one prompt is"),
    ("wan_tiny_t2v", {"samples": drawn(1, 16, 1, 4, 6)}, [[drawn(1, 3, 768), {}]], "umT5 gives 4096"),
]


@pytest.mark.parametrize(("model", "latent", "text", "said"), REFUSED, ids=[said[:30] for *_, said in REFUSED])
def test_what_wan_cannot_read_is_refused(
    core: Any, models: Any, model: str, latent: dict[str, Any], text: Any, said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        list(core.read_clips([latent], [text], models(model)[0]))
