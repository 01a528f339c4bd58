"""Variants from headers alone: every published model under every prefix, and what only the name can tell."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from tests.support.headers import TEMPLATES, Shapes, dancer, derived, header, humo, scail, shapes_of
from tests.support.tiny_run import random_weights
from wan_core.checkpoint import CheckpointHeader, detect_variant, read_header, to_file, variant
from wan_core.checkpoint.catalogue import AMBIGUOUS_NAMES
from wan_core.checkpoint.header import TensorInfo
from wan_core.errors import CheckpointError
from wan_core.model import WanShape, WanTransformer

PREFIXES = (
    "",
    "model.diffusion_model.",
    "diffusion_model.",
    "model.",
    "net.",
    "model.model.",
    "base_model.model.",
)
T2V, BIG, SMALL = "wan2.1-t2v-14B", "wan2.1-t2v-14B", "wan2.1-t2v-1.3B"
CLIP_14B = "wan2.1-i2v-14B-480p-or-720p"
FIVE_B = "wan2.2-ti2v-5B"

FAMILIES: dict[str, tuple[Shapes, str, str]] = {
    "t2v 1.3B": (shapes_of(SMALL), "wan2.1_t2v_1.3B_bf16", "2.1 T2V-1.3B"),
    "t2v 14B": (shapes_of(BIG), "wan2.1_t2v_14B_bf16", "2.1 T2V-14B"),
    "t2v A14B": (shapes_of("wan2.2-t2v-A14B-expert"), "wan2.2_t2v_high_noise_14B", "2.2 T2V-A14B high noise"),
    "i2v 480P": (shapes_of(CLIP_14B), "wan2.1_i2v_480p_14B_fp16", "2.1 I2V-14B-480P"),
    "i2v 720P": (shapes_of(CLIP_14B), "Wan2_1-I2V-14B-720P_fp16", "2.1 I2V-14B-720P"),
    "i2v Fun InP": (shapes_of(CLIP_14B), "Wan2.1-Fun-14B-InP", "2.1 Fun-14B-InP"),
    "i2v Fun InP 1.3B": (derived(SMALL, 36, clip=True), "Wan2.1-Fun-1.3B-InP", "2.1 Fun-1.3B-InP"),
    "i2v A14B": (shapes_of("wan2.2-i2v-A14B-expert"), "wan2.2_i2v_low_noise_14B", "2.2 I2V-A14B low noise"),
    "i2v Fun A14B": (derived(BIG, 36), "wan2.2_fun_inpaint_high_noise_14B", "2.2 Fun-A14B-InP high noise"),
    "i2v Fun 5B": (derived(FIVE_B, 100), "Wan2.2-Fun-5B-InP", "2.2 Fun-5B-InP"),
    "flf2v": (shapes_of("wan2.1-flf2v-14B"), "wan2.1_flf2v_720p_14B_fp16", "2.1 FLF2V-14B"),
    "ti2v": (shapes_of(FIVE_B), "wan2.2_ti2v_5B_fp16", "2.2 TI2V-5B"),
    "vace 1.3B": (shapes_of("wan2.1-vace-1.3B"), "wan2.1_vace_1.3B_fp16", "2.1 VACE-1.3B"),
    "vace 14B": (shapes_of("wan2.1-vace-14B"), "wan2.1_vace_14B_fp16", "2.1 VACE-14B"),
    "vace A14B": (shapes_of("wan2.1-vace-14B"), "wan2.2_fun_vace_low_noise_14B", "2.2 VACE-Fun-A14B low noise"),
    "control 1.3B": (derived(SMALL, 48, clip=True), "Wan2.1-Fun-1.3B-Control", "2.1 Fun-1.3B-Control"),
    "control 14B": (derived(BIG, 48, clip=True), "Wan2.1-Fun-14B-Control", "2.1 Fun-14B-Control"),
    "control V1.1 1.3B": (
        derived(SMALL, 48, clip=True, reference=16),
        "Wan2.1-Fun-V1.1-1.3B-Control",
        "2.1 Fun-V1.1-1.3B-Control",
    ),
    "control V1.1 14B": (
        derived(BIG, 48, clip=True, reference=16),
        "Wan2.1-Fun-V1.1-14B-Control",
        "2.1 Fun-V1.1-14B-Control",
    ),
    "control A14B": (
        derived(BIG, 52, reference=16),
        "wan2.2_fun_control_high_noise_14B",
        "2.2 Fun-A14B-Control high noise",
    ),
    "control 5B": (derived(FIVE_B, 148, reference=48), "Wan2.2-Fun-5B-Control", "2.2 Fun-5B-Control"),
    "camera 1.3B": (
        derived(SMALL, 32, clip=True, camera=24),
        "Wan2.1-Fun-V1.1-1.3B-Control-Camera",
        "2.1 Fun-V1.1-1.3B-Control-Camera",
    ),
    "camera 14B": (
        derived(BIG, 32, clip=True, camera=24),
        "Wan2.1-Fun-V1.1-14B-Control-Camera",
        "2.1 Fun-V1.1-14B-Control-Camera",
    ),
    "camera A14B": (
        derived(BIG, 36, camera=24),
        "wan2.2_fun_camera_low_noise_14B",
        "2.2 Fun-A14B-Control-Camera low noise",
    ),
    "scail": (scail(masks=False), "Wan21-14B-SCAIL-preview_fp16", "2.1 SCAIL-14B"),
    "scail2": (scail(masks=True), "SCAIL-2_14B_bf16", "2.1 SCAIL2-14B"),
    "s2v": (shapes_of("wan2.2-s2v-14B"), "wan2.2_s2v_14B_bf16", "2.2 S2V-14B"),
    "animate": (shapes_of("wan2.2-animate-14B"), "wan2.2_animate_14B_bf16", "2.2 Animate-14B"),
    "dancer": (dancer(), "global_model", "2.1 Wan-Dancer-14B"),
    "humo": (humo(), "humo_17B_fp16", "2.1 HuMo-17B"),
}
IN_DIFFUSERS = [name for name in FAMILIES if name.split()[0] in ("t2v", "i2v", "flf2v", "ti2v", "vace")]
NOT_TRAINED = {"dancer"}


def test_every_pinned_template_is_among_the_families() -> None:
    sizes = [set(shapes.items()) for shapes, *_ in FAMILIES.values()]
    assert all(set(shapes_of(template).items()) in sizes for template in TEMPLATES)


def each_once(families: Iterable[str]) -> list[Any]:
    """Every family under one of the prefixes, in turn, and every prefix before several; the others are soak. A prefix
    is taken off names before anybody asks what they are of."""
    return [
        pytest.param(
            family,
            prefix,
            id=f"{family}-{prefix or 'none'}",
            marks=[] if number % len(PREFIXES) == place else pytest.mark.soak,
        )
        for number, family in enumerate(families)
        for place, prefix in enumerate(PREFIXES)
    ]


@pytest.mark.parametrize(("family", "prefix"), each_once(FAMILIES))
def test_every_family_is_found_under_every_prefix(family: str, prefix: str) -> None:
    shapes, file_name, name = FAMILIES[family]
    found = detect_variant(header(shapes, f"{file_name}.safetensors", prefix))
    assert found.name == name
    assert found.family.task == family.split()[0]
    assert found.family.trained == (found.family.task not in NOT_TRAINED)
    blocks = {n.split(".")[1] for n in shapes if n.startswith("blocks.")}
    dim = shapes["patch_embedding.weight"][0]
    sizes = (found.shape.dim, found.shape.num_heads, found.shape.num_layers, found.shape.in_channels)
    assert sizes == (dim, dim // 128, len(blocks), shapes["patch_embedding.weight"][1])


@pytest.mark.parametrize(("family", "prefix"), each_once(IN_DIFFUSERS))
def test_diffusers_names_say_the_same(family: str, prefix: str) -> None:
    shapes, file_name, _ = FAMILIES[family]
    original = detect_variant(header(shapes, f"{file_name}.safetensors"))
    assert detect_variant(header(shapes, f"{file_name}.safetensors", prefix, diffusers=True)) == original


def test_a_full_checkpoint_is_judged_by_its_diffusion_model_alone() -> None:
    """Text encoder and VAE may have more tensors than the model itself."""
    whole = header(shapes_of(SMALL), "all_in_one.safetensors", "model.diffusion_model.")
    others = {f"text_encoders.umt5xxl.encoder.block.{i}.weight": TensorInfo("F16", (8, 8), 0) for i in range(2000)}
    found = detect_variant(CheckpointHeader(whole.path, {**others, **whole.tensors}, {}, 0))
    assert found.name == "2.1 T2V-1.3B"


# ---- what only names tell -----------------------------------------------------------------------

NAMES = [
    ("wan2.1_t2v_14B_bf16.safetensors", T2V, "2.1 T2V-14B"),
    ("anything.safetensors", T2V, "2.1 T2V-14B"),
    ("wan2.2_t2v_low_noise_14B_fp16.safetensors", T2V, "2.2 T2V-A14B low noise"),
    ("Wan2_2-T2V-A14B_HIGH_fp8_e4m3fn_scaled.safetensors", T2V, "2.2 T2V-A14B high noise"),
    ("Wan22-T2V-LOW.safetensors", T2V, "2.2 T2V-A14B low noise"),
    ("wan2.2-t2v-highnoise-Q4_K_M.gguf", T2V, "2.2 T2V-A14B high noise"),
    ("wan2.1_t2v_14B_high_quality.safetensors", T2V, "2.1 T2V-14B"),
    ("wan2.1_t2v_14B_low_lr.safetensors", T2V, "2.1 T2V-14B"),
    ("Wan2_1-T2V-14B-high_fp8.safetensors", T2V, "2.1 T2V-14B"),
    ("wan21_t2v_14B_low.safetensors", T2V, "2.1 T2V-14B"),
    ("wan2.2_t2v_14B.safetensors", T2V, "2.2 T2V-A14B"),
    ("Wan2.2-T2V-A14B/high_noise_model", T2V, "2.2 T2V-A14B high noise"),
    ("Wan2.2-T2V-A14B/low_noise_model/diffusion_pytorch_model.safetensors", T2V, "2.2 T2V-A14B low noise"),
    ("Wan2.2-T2V-A14B-Diffusers/transformer_2", T2V, "2.2 T2V-A14B low noise"),
    ("low/wan2.2_t2v_14B.safetensors", T2V, "2.2 T2V-A14B low noise"),
    ("low_noise/wan2.2_t2v_high_noise_14B.safetensors", T2V, "2.2 T2V-A14B high noise"),
    ("wan_i2v.safetensors", CLIP_14B, "2.1 I2V-14B-480P"),
    ("Wan2.1-I2V-14B-720P-Diffusers/transformer", CLIP_14B, "2.1 I2V-14B-720P"),
    ("wan_i2v.safetensors", "wan2.2-i2v-A14B-expert", "2.2 I2V-A14B"),
    ("i2v_low_noise.safetensors", "wan2.2-i2v-A14B-expert", "2.2 I2V-A14B low noise"),
]


@pytest.mark.parametrize(("path", "template", "name"), NAMES, ids=[path for path, *_ in NAMES])
def test_the_name_decides_where_shapes_cannot(path: str, template: str, name: str) -> None:
    assert detect_variant(header(shapes_of(template), path)).name == name


def test_the_first_transformer_of_a_pair_in_diffusers_is_the_high_noise_one(tmp_path: Path) -> None:
    for folder in ("pair/transformer", "pair/transformer_2", "single/transformer"):
        (tmp_path / folder).mkdir(parents=True)
    shapes = shapes_of("wan2.2-i2v-A14B-expert")
    found = {
        folder: detect_variant(header(shapes, tmp_path / folder)).expert
        for folder in ("pair/transformer", "pair/transformer_2", "single/transformer")
    }
    assert found == {"pair/transformer": "high_noise", "pair/transformer_2": "low_noise", "single/transformer": None}


@pytest.mark.parametrize(
    ("template", "names"),
    [
        (T2V, {"2.1 T2V-14B", "2.2 T2V-A14B high noise", "2.2 T2V-A14B low noise"}),
        (CLIP_14B, {"2.1 I2V-14B-480P", "2.1 I2V-14B-720P", "2.1 Fun-14B-InP"}),
        (
            "wan2.2-i2v-A14B-expert",
            {f"2.2 {kind} {expert} noise" for kind in ("I2V-A14B", "Fun-A14B-InP") for expert in ("high", "low")},
        ),
        (SMALL, set()),
    ],
)
def test_candidates_are_all_models_of_these_shapes_and_each_can_be_chosen(template: str, names: set[str]) -> None:
    head = header(shapes_of(template), "model.safetensors")
    found = detect_variant(head)
    assert {*found.candidates, found.name} >= names
    assert set(found.candidates) <= names
    for name in names:
        chosen = detect_variant(head, override=name)
        assert chosen.name == name
        assert set(chosen.candidates) == names - {name}
        assert names <= set(AMBIGUOUS_NAMES)


@pytest.mark.parametrize(
    ("override", "template", "sigmas"),
    [
        ("2.2 T2V-A14B high noise", T2V, (0.875, 1.0)),
        ("2.2 T2V-A14B low noise", T2V, (0.0, 0.875)),
        ("2.2 I2V-A14B high noise", "wan2.2-i2v-A14B-expert", (0.9, 1.0)),
        ("2.2 I2V-A14B low noise", "wan2.2-i2v-A14B-expert", (0.0, 0.9)),
        ("2.1 T2V-14B", T2V, (0.0, 1.0)),
    ],
)
def test_an_expert_covers_its_side_of_the_boundary(override: str, template: str, sigmas: tuple[float, float]) -> None:
    misnamed = header(shapes_of(template), "wan_low_noise.safetensors")
    assert detect_variant(misnamed, override=override).sigma_range() == sigmas


def test_a_variant_its_shapes_exclude_is_refused_with_what_they_allow() -> None:
    with pytest.raises(
        CheckpointError, match=r'x\.safetensors cannot be "2\.1 T2V-14B": its shapes are those of 2\.1 T2V-1\.3B'
    ):
        detect_variant(header(shapes_of(SMALL), "x.safetensors"), override="2.1 T2V-14B")


@pytest.mark.parametrize(
    ("family", "fps", "multiple", "latents"),
    [
        ("t2v 14B", 16.0, 16, "wan2.1"),
        ("i2v A14B", 16.0, 16, "wan2.1"),
        ("ti2v", 24.0, 32, "wan2.2"),
        ("control 5B", 24.0, 32, "wan2.2"),
        ("animate", 30.0, 16, "wan2.1"),
    ],
)
def test_frame_rate_size_and_latents_go_with_the_model(family: str, fps: float, multiple: int, latents: str) -> None:
    shapes, file_name, _ = FAMILIES[family]
    found = detect_variant(header(shapes, f"{file_name}.safetensors"))
    assert (found.fps, found.latents.size_multiple, found.latents.name) == (fps, multiple, latents)


def test_a_pair_of_no_published_size_is_told_apart_by_its_file_names(tmp_path: Path) -> None:
    found = {}
    for name in ("tiny_high_noise", "tiny_low_noise", "tiny"):
        save_file(random_weights(), tmp_path / f"{name}.safetensors")
        found[name] = detect_variant(read_header(tmp_path / f"{name}.safetensors"))
    assert {name: variant.sigma_range() for name, variant in found.items()} == {
        "tiny_high_noise": (0.875, 1.0),
        "tiny_low_noise": (0.0, 0.875),
        "tiny": (0.0, 1.0),
    }
    assert found["tiny_high_noise"].name.endswith("high noise")
    assert all(variant.family.trained for variant in found.values())


@pytest.mark.parametrize("sizes", [(), (1,), (1, 1, 1, 1), "a side of 0"], ids=str)
@pytest.mark.parametrize(
    "name",
    [
        "head.modulation",
        "blocks.0.ffn.0.weight",
        "patch_embedding.weight",
        "head.head.weight",
        "text_embedding.0.weight",
        "time_embedding.0.weight",
    ],
)
def test_a_weight_of_the_wrong_dimension_is_a_damaged_header(name: str, sizes: tuple[int, ...] | str) -> None:
    whole = header(shapes_of(T2V), "wan.safetensors")
    wrong = (*whole.tensors[name].shape[:-1], 0) if isinstance(sizes, str) else sizes
    tensors = {**whole.tensors, name: TensorInfo("BF16", wrong, 0)}
    with pytest.raises(CheckpointError, match=r"^wan\.safetensors has a damaged safetensors header\."):
        detect_variant(CheckpointHeader(whole.path, tensors, {}, 0))


def test_the_parts_of_a_variant_are_measured() -> None:
    def shape(family: str) -> WanShape:
        shapes, file_name, _ = FAMILIES[family]
        return detect_variant(header(shapes, f"{file_name}.safetensors")).shape

    plain = shape("t2v 14B")
    assert (plain.image_dim, plain.image_positions, plain.vace_layers) == (0, 0, ())
    assert (plain.reference_channels, plain.camera_channels) == (0, 0)
    assert (shape("i2v 480P").image_dim, shape("flf2v").image_positions) == (1280, 514)
    assert shape("vace 1.3B").vace_layers == tuple(range(0, 30, 2))
    assert shape("vace 14B").vace_layers == (0, 5, 10, 15, 20, 25, 30, 35)
    assert shape("vace 14B").vace_channels == 96
    assert (shape("control V1.1 14B").reference_channels, shape("control 5B").reference_channels) == (16, 48)
    assert (shape("camera A14B").camera_channels, shape("camera A14B").camera_stride) == (24, 8)


@pytest.mark.parametrize("family", [name for name in FAMILIES if name.split()[0] not in NOT_TRAINED])
def test_every_weight_our_transformer_has_is_in_the_file_with_its_shape_and_none_is_left_over(family: str) -> None:
    shapes, file_name, _ = FAMILIES[family]
    if not family.startswith(("vace", "animate", "s2v")):  # two blocks tell as much as forty, sooner
        shapes = {n: s for n, s in shapes.items() if not n.startswith("blocks.") or int(n.split(".")[1]) < 2}
    with torch.device("meta"):
        model = WanTransformer(detect_variant(header(shapes, f"{file_name}.safetensors")).shape)
    fixed = {name for name in shapes if name.endswith(".kernel")}  # of Animate's blur: numbers that never change
    assert {to_file(name): tuple(p.shape) for name, p in model.named_parameters()} == {
        name: sizes for name, sizes in shapes.items() if name not in fixed
    }


@pytest.mark.parametrize(
    ("said", "family", "task", "name"),
    [
        ({"model_type": "animate2"}, "i2v 480P", "animate2", "Wan-Animate 2"),
        ({"model_type": "flow_rvs"}, "t2v 14B", "flow_rvs", "FlowRVS"),
        ({"causal_ar": True}, "t2v 1.3B", "causal_ar", "causal (autoregressive) Wan"),
    ],
)
def test_a_model_that_only_its_metadata_tell_apart_is_named_and_not_trained(
    said: dict[str, Any], family: str, task: str, name: str
) -> None:
    shapes, file_name, _ = FAMILIES[family]
    plain = header(shapes, f"{file_name}.safetensors")
    found = detect_variant(replace(plain, metadata={"config": json.dumps({"transformer": said})}))
    assert (found.family.task, found.name, found.family.trained) == (task, name, False)


def test_channels_that_no_family_reads_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """As those of Fun-Control were, were its record not in the table."""
    monkeypatch.setattr(variant, "FAMILIES", tuple(family for family in variant.FAMILIES if not family.any_channels))
    shapes, file_name, _ = FAMILIES["control 14B"]
    with pytest.raises(CheckpointError, match="reads 32 channels besides the latent, which no supported model does"):
        detect_variant(header(shapes, f"{file_name}.safetensors"))


@pytest.mark.parametrize(
    "config", ['{"transformer": {"model_type": "t2v"}}', "", "[", "[1]", '"x"', '{"transformer": 3}', "[" * 100_000]
)
def test_other_words_in_the_metadata_change_nothing(config: str) -> None:
    shapes, file_name, name = FAMILIES["t2v 14B"]
    plain = header(shapes, f"{file_name}.safetensors")
    assert detect_variant(replace(plain, metadata={"config": config})).name == name


@pytest.mark.parametrize(
    ("beside", "says"),
    [
        ("_orig_mod.", r'two tensors for \S+: "\S+" and "_orig_mod\.\S+"'),
        ("dit.", r'a Wan model under "net\." and another under "dit\."'),
        ("transformer_2.", r'a Wan model under "net\." and another under "transformer_2\."'),
        ("module.", r'a Wan model under "net\." and another under "module\."'),
    ],
)
def test_one_of_two_models_in_a_file_is_never_taken_without_a_word(beside: str, says: str) -> None:
    first = "" if beside == "_orig_mod." else "net."
    both = [header(shapes_of(SMALL), "wan.safetensors", prefix).tensors for prefix in (first, beside)]
    with pytest.raises(CheckpointError, match=says):
        detect_variant(CheckpointHeader(Path("wan.safetensors"), {**both[0], **both[1]}, {}, 0))


def test_the_average_beside_a_distilled_model_is_left_out() -> None:
    both = [header(shapes_of(SMALL), "wan.safetensors", prefix).tensors for prefix in ("generator.", "generator_ema.")]
    found = detect_variant(CheckpointHeader(Path("wan.safetensors"), {**both[0], **both[1]}, {}, 0))
    assert (found.family.task, found.shape.num_layers) == ("t2v", 30)


def test_a_clip_of_s2v_that_is_not_known_yet_is_planned_with_a_reference_image() -> None:
    found = {
        name: detect_variant(header(FAMILIES[name][0], "wan.safetensors")).behind((20, 60, 104))
        for name in ("s2v", "scail")
    }
    assert found == {"s2v": ((1, 60, 104),), "scail": ()}
