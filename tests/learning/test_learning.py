"""The short form of benchmarks/learning/concept_test.py: core nodes draw what a LoRA was shown.

WAN_TRAINER_DEMO_MODELS names another folder of demo models.
"""

from __future__ import annotations

import io

import demo
import numpy as np
import pytest
from comfy_server import ComfyServer
from PIL import Image
from shapeworld.comfy_graphs import MODELS, Recipe, Sampling, Shot, sampling_graph
from shapeworld.concept import load_concept
from shapeworld.learning import (
    CONCEPTS,
    DEFAULT_CONCEPT,
    SHORT,
    SHORT_RECIPE,
    fill_models,
    missing_models,
    teach_and_measure,
)
from shapeworld.learning_report import tables
from world import tiny_graph

pytestmark = [pytest.mark.comfy, pytest.mark.slow, pytest.mark.lasts(25)]


@pytest.mark.soak
def test_equal_experts_of_a_pair_sample_what_the_one_model_samples(comfy: ComfyServer) -> None:
    """Two samplers in series change hands without losing noise or a step; tiny random models are enough for that."""
    sampling = Sampling(steps=8, frames=5)
    clips = {}
    for name in ("t2v", "pair"):
        graph = sampling_graph(MODELS[name], [Shot("a red ring moving up", 3, 2)], f"equal_{name}", sampling=sampling)
        images = comfy.outputs(comfy.run(tiny_graph(graph)), "save0")["images"]
        clips[name] = np.stack([np.asarray(Image.open(io.BytesIO(comfy.view(image)))) for image in images]).astype(int)
    assert clips["t2v"].shape == (10, 64, 64, 3)
    assert abs(clips["t2v"] - clips["pair"]).max() <= 1  # of 255
    assert abs(clips["t2v"][:5] - clips["t2v"][5:]).mean() > 5, "the clips of a shot have noise of their own"


def test_a_lora_learns_a_new_concept_and_keeps_the_old_ones(
    comfy: ComfyServer, capsys: pytest.CaptureFixture[str]
) -> None:
    """And scripts/demo.py would call this run what it should be: the same graph, fewer steps, one training for both."""
    model = MODELS["t2v"]
    if absent := missing_models(model):
        pytest.skip(absent)
    fill_models(comfy.base, model)
    said: list[str] = []
    concept = load_concept(CONCEPTS / f"{DEFAULT_CONCEPT}.json")
    recipe = Recipe(**{**demo.RECIPE, **SHORT_RECIPE})
    found = teach_and_measure(comfy, model, concept, recipe, SHORT, said.append)
    assert not found.failed(), "\n".join([tables(found), *said])
    verdict = demo.Findings()
    demo.about_training(verdict, found.run, comfy.base)
    demo.about_use(verdict, comfy, found.run, comfy.base)
    assert not verdict.failed, capsys.readouterr().out
