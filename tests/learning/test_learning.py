"""The short form of scripts/learning_test.py: a LoRA trained through the queue makes core nodes draw what it was shown.

With the demo models, a minute on two idle cores; not in CI until its samples are large enough to trust.
WAN_TRAINER_DEMO_MODELS names another folder of models.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from comfy_server import ComfyServer, make_base
from PIL import Image
from shapeworld.comfy_graphs import MODELS, Recipe, Sampling, Shot, sampling_graph
from shapeworld.concept import load_concept
from shapeworld.learning import (
    CONCEPTS,
    DEFAULT_CONCEPT,
    SERVER_FLAGS,
    SHORT,
    SHORT_RECIPE,
    fill_models,
    missing_models,
    teach_and_measure,
)
from shapeworld.learning_report import tables
from world import TINY_PACK, tiny_graph

pytestmark = [pytest.mark.comfy, pytest.mark.slow]


def test_equal_experts_of_a_pair_sample_what_the_one_model_samples(comfy: ComfyServer) -> None:
    """Two samplers in series change hands without losing noise or a step; tiny random models are enough for that."""
    sampling = Sampling(steps=8, frames=5)
    clips = {}
    for name, model in MODELS.items():
        graph = sampling_graph(model, [Shot("a red ring moving up", 3, 2)], f"equal_{name}", sampling=sampling)
        images = comfy.outputs(comfy.run(tiny_graph(graph)), "save0")["images"]
        clips[name] = np.stack([np.asarray(Image.open(io.BytesIO(comfy.view(image)))) for image in images]).astype(int)
    assert clips["t2v"].shape == (10, 64, 64, 3)
    assert abs(clips["t2v"] - clips["pair"]).max() <= 1  # of 255
    assert abs(clips["t2v"][:5] - clips["t2v"][5:]).mean() > 5, "the clips of a shot have noise of their own"


@pytest.mark.soak  # 300 steps learn too little for limits of six clips: one run kept 5 of 6 old shapes, another 3
def test_a_lora_learns_a_new_concept_and_keeps_the_old_ones(
    own_comfy: Callable[..., ComfyServer], tmp_path: Path
) -> None:
    model = MODELS["t2v"]
    if absent := missing_models(model):
        pytest.skip(absent)
    base = make_base(tmp_path / "comfyui", [TINY_PACK])
    fill_models(base, model)
    comfy = own_comfy(base, flags=SERVER_FLAGS)
    said: list[str] = []
    concept = load_concept(CONCEPTS / f"{DEFAULT_CONCEPT}.json")
    found = teach_and_measure(comfy, model, concept, Recipe(**SHORT_RECIPE), SHORT, said.append)
    assert not found.failed(), "\n".join([tables(found), *said])
