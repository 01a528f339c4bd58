"""Each preset's values fit the card it names, by prediction: presets x models."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.headers import write_empty_model
from wan_core.errors import OutOfMemory
from wan_core.files import Roots
from wan_core.load import ModelPlan, inspect_model
from wan_core.lora import LoraConfig
from wan_core.placement import FreeMemory, PlacementConfig, StepShape, free_memory_of_cards, resolve_placement
from wan_core.plan import PRESETS, MemoryPlan, Workload, plan_memory
from wan_core.plan.cards import card_of_size
from wan_core.plan.presets import fit_preset, preset_settings
from wan_core.precision import QuantizeConfig
from wan_core.train import TrainConfig

CLIPS = StepShape(batch_size=1, latent_frames=9, latent_height=60, latent_width=104)
A14B, SMALL, FIVE = "wan2.2-t2v-A14B-expert", "wan2.1-t2v-1.3B", "wan2.2-ti2v-5B"
NATIVE = {A14B: 832 * 480, SMALL: 832 * 480, FIVE: 1280 * 704}
WITHOUT_SEARCH = TrainConfig(checkpointing_policy="full")
"""no seconds pass in the search for what is faster"""


def training(folder: Path, template: str, train: TrainConfig = WITHOUT_SEARCH) -> Workload:
    """Clips of 33 frames with previews of their size; 14B in fp8."""
    file = write_empty_model(folder / f"{template}_high_noise.safetensors", template)
    plan = ModelPlan(base_file=f"diffusion_models:{file.name}", quantize=QuantizeConfig() if template == A14B else None)
    roots = Roots({"diffusion_models": (str(folder),)})
    found = inspect_model(plan, roots)
    step = replace(CLIPS, latent_height=44, latent_width=80) if template == FIVE else CLIPS
    placement = resolve_placement(PlacementConfig(devices="cpu"), found.variant.shape.num_layers)
    return Workload(
        model=plan,
        roots=roots,
        file=found,
        lora=LoraConfig(),
        train=train,
        step=step,
        preview=step,
        placement=placement,
    )


def planned(name: str, job: Workload, gibibytes: float = 0) -> MemoryPlan:
    """The plan of a preset on a card of the size in its name, or of another one."""
    preset = PRESETS[name]
    gib = gibibytes or preset.gibibytes
    room = FreeMemory(devices={"cpu": free_memory_of_cards([gib]).devices["cuda:0"]})
    found = fit_preset(preset, job, lambda one: plan_memory(one, room, card_of_size(gib)))
    assert found is not None
    return found


def check(name: str, job: Workload, native: int) -> dict[str, int]:
    """Plans a preset, and its values once more as the widgets have them; returns the values."""
    plan = planned(name, job)
    values = preset_settings(plan)
    assert plan.fits, name
    assert plan.job.preview == plan.job.step, "previews of the size of clips"
    filled = replace(plan.job, train=replace(plan.job.train, blocks_to_swap=values["blocks_to_swap"]))
    again = plan_memory(filled, plan.room)
    assert (again.fits, again.measures.blocks_to_swap) == (True, plan.measures.blocks_to_swap), name
    assert 0.3 * native < values["width"] * values["height"] <= 1.01 * native
    assert values["num_frames"] in (33, 49)
    return values


@pytest.fixture(scope="module")
def five(tmp_path_factory: pytest.TempPathFactory) -> Workload:
    return training(tmp_path_factory.mktemp("models"), FIVE)


@pytest.mark.lasts(1)
def test_presets_fit_the_card_in_their_names(five: Workload) -> None:
    names = ("8 GB, good", "24 GB, good")
    assert [[*check(name, five, NATIVE[FIVE]).values()] for name in names] == [
        [1280, 704, 49, 1500, 17],
        [1280, 704, 49, 1500, -1],
    ]


@pytest.mark.soak
@pytest.mark.lasts(30)
@pytest.mark.parametrize("model", [A14B, SMALL, FIVE])
def test_every_preset_fits_the_card_in_its_name(model: str, tmp_path: Path) -> None:
    job = training(tmp_path, model, TrainConfig())
    found = {name: [*check(name, job, NATIVE[model]).values()] for name in PRESETS}
    if model == A14B:
        assert found["16 GB, quick look"] == [496, 288, 33, 400, 6]
        assert found["24 GB, good"] == [832, 480, 49, 1500, 13]


def test_a_preset_keeps_stills_and_the_aspect_ratio_and_trains_both_experts_as_long(
    five: Workload, monkeypatch: pytest.MonkeyPatch
) -> None:
    portrait = replace(five.step, latent_frames=1, latent_height=80, latent_width=44)
    own = replace(portrait, latent_frames=3)
    plan = planned("24 GB, good", replace(five, step=portrait, preview=own, longer_share=0.5))
    assert preset_settings(plan) == {"width": 704, "height": 1280, "num_frames": 1, "steps": 3000, "blocks_to_swap": -1}
    assert plan.job.preview == own, "previews of another size stay"
    assert fit_preset(PRESETS["24 GB, good"], five, lambda _: None) is None
    short = replace(plan, room=FreeMemory(devices={"cpu": 0}, host=0))
    monkeypatch.setattr(MemoryPlan, "verdict", lambda own: f"{own.job.step.latent_width} does not fit")
    with pytest.raises(OutOfMemory, match="48 does not fit"):
        fit_preset(PRESETS["8 GB, good"], five, lambda one: replace(short, job=one))
