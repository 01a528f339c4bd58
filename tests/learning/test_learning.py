"""The short form of scripts/learning_test.py: a LoRA trained through the queue makes core nodes draw what it was shown.

With the demo models, a minute on two idle cores. WAN_TRAINER_DEMO_MODELS names another folder of models.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from comfy_server import ComfyServer, make_base
from shapeworld.comfy_graphs import MODELS, Recipe
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
from world import TINY_PACK

pytestmark = [pytest.mark.comfy, pytest.mark.slow]


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
