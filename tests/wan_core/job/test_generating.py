"""The graph that generates with a run's LoRA: nodes, files and sampling of each kind of model, in both forms."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from wan_core.families import family_called
from wan_core.job import Generation, api_form, can_generate, canvas_form, note_lines
from wan_core.sampler import SampleConfig, steps_above

ONE = Generation(
    run="cat",
    variant="2.1 T2V-1.3B",
    models=("wan2.1_t2v_1.3B_fp16.safetensors",),
    loras=((("wan_trainer/cat.safetensors", 1.0),),),
    size=(832, 480, 33),
    prompt="a cat",
    negative="blurry",
    sampling=SampleConfig().resolved(family_called("2.1 T2V-1.3B")[2]),
    seed=42,
    vae=("VAELoader", {"vae_name": "v.safetensors"}),
    clip=("CLIPLoader", {"clip_name": "t.safetensors", "type": "wan", "device": "default"}),
)
PAIR_SAMPLING = SampleConfig().resolved(family_called("2.2 I2V-A14B high noise")[2])
PAIR = replace(
    ONE,
    variant="2.2 I2V-A14B high noise",
    models=("high.safetensors", "low.gguf"),
    loras=(
        (("wan_trainer/cat_high_noise.safetensors", 1.0),),
        (("speed.safetensors", 0.5), ("cat_low.safetensors", 1.0)),
    ),
    sampling=PAIR_SAMPLING,
    high_steps=steps_above(PAIR_SAMPLING, 0.9),
    picture="cat.png",
)
GRAPHS = {
    "t2v": ONE,
    "i2v": replace(ONE, variant="2.1 I2V-14B-480P", picture="cat.png"),
    "pair": PAIR,
    "5b": replace(ONE, variant="2.2 TI2V-5B"),
    "still": replace(ONE, size=(832, 480, 1)),
    "bernini": replace(ONE, context=True),
    "animate": replace(ONE, variant="2.2 Animate-14B", picture="cat.png"),
    "scail": replace(ONE, variant="2.1 SCAIL-14B", picture="cat.png"),
    "camera": replace(PAIR, variant="2.2 Fun-A14B-Control-Camera high noise"),
    "humo": replace(ONE, variant="2.1 HuMo-17B", picture="cat.png"),
}


def of(graph: dict[str, Any], kind: str) -> list[dict[str, Any]]:
    return [body["inputs"] for body in graph.values() if body["class_type"] == kind]


@pytest.mark.parametrize("kind", GRAPHS)
def test_both_forms_have_the_same_nodes_links_and_values(kind: str) -> None:
    api, canvas = api_form(GRAPHS[kind]), canvas_form(GRAPHS[kind])
    nodes = {node["id"]: node for node in canvas["nodes"] if node["type"] != "MarkdownNote"}
    ids = dict(zip(api, nodes, strict=True))
    assert [node["type"] for node in nodes.values()] == [body["class_type"] for body in api.values()]
    linked = {(ids[key], name): (ids[value[0]], value[1]) for key, name, value in links_of(api)}
    drawn = {
        (target, nodes[target]["inputs"][slot]["name"]): (source, output)
        for _, source, output, target, slot, _ in canvas["links"]
    }
    assert drawn == linked
    for _, source, output, target, slot, kind_of_link in canvas["links"]:
        types = nodes[source]["outputs"][output]["type"], nodes[target]["inputs"][slot]["type"]
        assert types == (kind_of_link, kind_of_link)
    for key, body in api.items():
        values = [value for value in body["inputs"].values() if not isinstance(value, list)]
        assert [one for one in nodes[ids[key]]["widgets_values"] if one != "randomize"] == values


def links_of(api: dict[str, Any]) -> list[tuple[str, str, list[Any]]]:
    return [
        (key, name, value)
        for key, body in api.items()
        for name, value in body["inputs"].items()
        if isinstance(value, list)
    ]


def test_one_model_samples_as_its_previews_did() -> None:
    graph = api_form(ONE)
    assert of(graph, "KSampler") == [
        {
            "model": ["shift_0", 0],
            "positive": ["positive", 0],
            "negative": ["negative", 0],
            "latent_image": ["start", 0],
            "seed": 42,
            "steps": 30,
            "cfg": 6.0,
            "sampler_name": "uni_pc",
            "scheduler": "simple",
            "denoise": 1.0,
        }
    ]
    assert of(graph, "ModelSamplingSD3") == [{"model": ["lora_0_0", 0], "shift": 8.0}]
    assert of(graph, "EmptyHunyuanLatentVideo") == [{"width": 832, "height": 480, "length": 33, "batch_size": 1}]
    assert of(graph, "CreateVideo") == [{"images": ["decoded", 0], "fps": 16.0}]
    assert of(api_form(GRAPHS["still"]), "SaveImage")
    assert not of(api_form(GRAPHS["still"]), "SaveVideo")


def test_a_pair_samples_in_turn_from_a_picture_each_expert_with_its_loras() -> None:
    graph = api_form(PAIR)
    high, low = of(graph, "KSamplerAdvanced")
    # Of 20 steps of "simple" with shift 5, 8 begin at a sigma of 0.9 or above (t of 0.643).
    assert [(s["start_at_step"], s["end_at_step"], s["add_noise"]) for s in (high, low)] == [
        (0, 8, "enable"),
        (8, 10000, "disable"),
    ]
    assert (high["positive"], high["negative"], high["latent_image"]) == (["start", 0], ["start", 1], ["start", 2])
    assert low["latent_image"] == ["sample_0", 0]
    assert of(graph, "UnetLoaderGGUF") == [{"unet_name": "low.gguf"}]
    assert [lora["model"] for lora in of(graph, "LoraLoaderModelOnly")] == [
        ["model_0", 0],
        ["model_1", 0],
        ["lora_1_0", 0],
    ]
    assert [lora["strength_model"] for lora in of(graph, "LoraLoaderModelOnly")] == [1.0, 0.5, 1.0]
    assert not of(graph, "CLIPVisionLoader")
    assert [line for line in note_lines(PAIR) if "GGUF" in line]


def test_an_older_image_model_sees_the_picture_and_the_5b_model_has_24_frames_a_second() -> None:
    assert of(api_form(GRAPHS["i2v"]), "WanImageToVideo")[0]["clip_vision_output"] == ["seen", 0]
    graph = api_form(GRAPHS["5b"])
    assert of(graph, "Wan22ImageToVideoLatent")[0]["vae"] == ["vae", 0]
    assert of(graph, "CreateVideo")[0]["fps"] == 24.0


@pytest.mark.parametrize(
    ("kind", "node", "loaded", "fps"),
    [
        ("bernini", "BerniniConditioning", {"source_video": "source_video_frames"}, 16.0),
        (
            "animate",
            "WanAnimateToVideo",
            {
                "reference_image": "picture",
                "clip_vision_output": "seen",
                "pose_video": "pose_video_frames",
                "face_video": "face_video_frames",
            },
            30.0,
        ),
        (
            "scail",
            "WanSCAILToVideo",
            {"reference_image": "picture", "clip_vision_output": "seen", "pose_video": "pose_video_frames"},
            16.0,
        ),
        ("camera", "WanCameraImageToVideo", {"start_image": "picture", "camera_conditions": "path"}, 16.0),
        ("humo", "WanHuMoImageToVideo", {"ref_image": "picture", "audio_encoder_output": "heard"}, 25.0),
    ],
)
def test_further_inputs_go_through_cores_node_of_the_model(
    kind: str, node: str, loaded: dict[str, str], fps: float
) -> None:
    graph = api_form(GRAPHS[kind])
    (start,) = of(graph, node)
    common = {"positive": ["positive", 0], "negative": ["negative", 0], "vae": ["vae", 0]}
    links = {name: value for name, value in start.items() if isinstance(value, list)}
    assert links == common | {name: [source, 0] for name, source in loaded.items()}
    sampled = [body["inputs"] for body in graph.values() if body["class_type"].startswith("KSampler")]
    assert all((one["positive"], one["negative"]) == (["start", 0], ["start", 1]) for one in sampled)
    assert sampled[0]["latent_image"] == ["start", 2]
    (video,) = of(graph, "CreateVideo")
    assert (video["fps"], video.get("audio")) == (fps, ["sound", 0] if kind == "humo" else None)
    (decoded,) = of(graph, "VAEDecode")
    assert decoded["samples"] == (["trimmed", 0] if kind == "animate" else [f"sample_{len(sampled) - 1}", 0])
    assert any("your own files" in line for line in note_lines(GRAPHS[kind])) == (kind != "camera")


def test_graphs_are_known_for_models_whose_inputs_are_text_and_files() -> None:
    known = ["2.1 T2V-14B", "2.2 T2V-A14B low noise", "2.1 I2V-128 wide", "2.2 TI2V-5B", "2.1 Fun-14B-InP"]
    known += ["2.2 Animate-14B", "2.1 SCAIL-14B", "2.1 HuMo-1.7B", "2.2 Fun-A14B-Control-Camera low noise"]
    others = ["2.1 VACE-1.3B", "2.2 Fun-5B-InP", "", "2.1 Fun-14B-Control", "2.1 SCAIL2-14B"]
    assert [name for name in [*known, *others] if can_generate(name)] == known
