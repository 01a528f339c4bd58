"""The graphs of the learning test: what they hold, and where a pair changes hands."""

from __future__ import annotations

import pytest

from shapeworld.comfy_graphs import (
    BOUNDARY,
    MODELS,
    TRAIN,
    Graph,
    Recipe,
    Sampling,
    Shot,
    sampling_graph,
    sigmas,
    switch_step,
    training_graph,
)

SHOTS = [Shot("a red ring moving up", 1, 2), Shot("a red ring moving up", 2, 2), Shot("a blue ring moving up", 1)]


def of_kind(graph: Graph, kind: str) -> list[str]:
    return [name for name, node in graph.items() if node["class_type"] == kind]


def links(graph: Graph) -> list[str]:
    return [value[0] for node in graph.values() for value in node["inputs"].values() if isinstance(value, list)]


def test_the_experts_change_where_sigma_falls_below_the_boundary() -> None:
    levels = sigmas()
    assert levels[0] == 1.0
    assert len(levels) == 20
    switch = switch_step()
    assert levels[switch - 1] == pytest.approx(BOUNDARY)  # the level at the boundary is still the high expert's
    assert levels[switch] < BOUNDARY
    assert switch == 7
    assert switch_step(Sampling(steps=10)) == 4


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("with_lora", [False, True])
def test_loaders_and_captions_are_shared_and_every_link_has_an_end(name: str, with_lora: bool) -> None:
    model = MODELS[name]
    loras = [f"{file}.lora" for file in model.files] if with_lora else []
    graph = sampling_graph(model, SHOTS, "x", loras)
    assert set(links(graph)) <= set(graph)
    assert len(of_kind(graph, "UNETLoader")) == len(model.files)
    assert len(of_kind(graph, "LoraLoaderModelOnly")) == len(loras)
    assert len(of_kind(graph, "VAELoader")) == len(of_kind(graph, "TinyWanCLIPLoader")) == 1
    assert len(of_kind(graph, "CLIPTextEncode")) == 3  # two captions and the empty one
    assert [f"save{index}" for index in range(3)] == of_kind(graph, "SaveImage")


def test_every_shot_of_an_image_model_starts_from_its_image() -> None:
    shots = [Shot("a", 1, image="one.png"), Shot("b", 2, 3, image="two.png")]
    graph = sampling_graph(MODELS["i2v"], shots, "x")
    assert [graph[name]["inputs"]["image"] for name in of_kind(graph, "LoadImage")] == ["one.png", "two.png"]
    first, sampler = graph["first1"]["inputs"], graph["sample1"]["inputs"]
    assert (first["start_image"], first["batch_size"], first["length"]) == (["image1", 0], 3, 9)
    assert (sampler["positive"], sampler["negative"], sampler["latent_image"]) == (
        ["first1", 0],
        ["first1", 1],
        ["first1", 2],
    )
    assert not of_kind(graph, "EmptyHunyuanLatentVideo")


def test_each_lora_goes_on_its_own_expert() -> None:
    graph = sampling_graph(MODELS["pair"], SHOTS[:1], "x", ["high_lora", "low_lora"])
    high, low = graph["start0"]["inputs"], graph["sample0"]["inputs"]
    for sampler, lora, file in ((high, "high_lora", "high_noise"), (low, "low_lora", "low_noise")):
        applied = graph[graph[sampler["model"][0]]["inputs"]["model"][0]]
        assert applied["inputs"]["lora_name"] == lora
        assert file in graph[applied["inputs"]["model"][0]]["inputs"]["unet_name"]
    assert (high["start_at_step"], high["end_at_step"], low["start_at_step"], low["end_at_step"]) == (0, 7, 7, 20)
    assert (high["add_noise"], low["add_noise"]) == ("enable", "disable")
    assert low["latent_image"] == ["start0", 0]


def test_what_is_held_out_is_evaluated_and_never_trained() -> None:
    graph = training_graph(MODELS["t2v"], Recipe(held_out=2), "run", "concept", "old", ["a.mp4", "b.mp4"])
    assert graph["held_out"]["inputs"] == {"held_out": "a.mp4\nb.mp4"}
    assert graph["data"]["inputs"]["settings"] == ["held_out", 0]
    assert "settings" not in graph["prior"]["inputs"]
    assert "held_out" not in training_graph(MODELS["t2v"], Recipe(), "run", "concept", "old")


def test_the_shift_is_left_to_the_model_and_previews_need_a_vae() -> None:
    plain, shown = (training_graph(MODELS["t2v"], Recipe(steps=9, previews=on), "r", "c") for on in (False, True))
    assert plain["settings"]["inputs"]["discrete_flow_shift"] == 0.0
    assert "vae" not in plain[TRAIN]["inputs"]
    assert (shown[TRAIN]["inputs"]["vae"], shown[TRAIN]["inputs"]["preview_every_n_steps"]) == (["vae", 0], 9)


def test_both_experts_of_a_pair_are_trained_by_one_node() -> None:
    graph = training_graph(MODELS["pair"], Recipe(steps=50), "run", "concept")
    loaded = graph["model"]["inputs"]
    assert (loaded["diffusion_model"], loaded["low_noise_model"]) == MODELS["pair"].files
    assert of_kind(graph, "TrainLoRA") == [TRAIN]
    assert graph[TRAIN]["inputs"]["steps"] == 50


def test_training_saves_once_and_previews_nothing() -> None:
    graph = training_graph(MODELS["t2v"], Recipe(steps=50), "run", "concept", "old")
    assert set(links(graph)) <= set(graph)
    assert graph[TRAIN]["inputs"]["save_every_n_steps"] == 50
    assert graph[TRAIN]["inputs"]["preview_every_n_steps"] == 0
    assert graph["settings"]["inputs"]["gradient_checkpointing"] is False
    assert graph["data"]["inputs"]["append_to"] == ["prior", 0]
    kept = training_graph(MODELS["t2v"], Recipe(prior_preservation=5.0), "run", "concept", "world")
    assert kept[kept["prior"]["inputs"]["settings"][0]]["inputs"] == {"prior_preservation": 5.0}
    assert "settings" not in graph["prior"]["inputs"]
    assert "prior" not in training_graph(MODELS["t2v"], Recipe(), "run", "concept")


def test_quantized_weights_and_switches_reach_the_training_node() -> None:
    plain = training_graph(MODELS["t2v"], Recipe(), "run", "clips")
    assert plain[TRAIN]["inputs"]["model"] == ["model", 0]
    recipe = Recipe(quantize="int8", switches=("residual=bf16", "norm=bf16"))
    graph = training_graph(MODELS["t2v"], recipe, "run", "clips")
    assert graph["quantized"]["inputs"] == {"model": ["model", 0], "scheme": "int8"}
    assert graph["policy"]["inputs"] == {"model": ["quantized", 0], "residual": "bf16", "norm": "bf16"}
    assert graph[TRAIN]["inputs"]["model"] == ["policy", 0]
