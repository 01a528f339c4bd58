"""What a run leaves to its model: the training shift of experts and single models; and what a preview of one is."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from safetensors import safe_open

from tests.support.sessions import train_here
from tests.support.tiny_run import TinyRun, make_run
from wan_core.events import Note, StepDone
from wan_core.job.checks import with_expert, with_model_values
from wan_core.job.choose import choose_run, prepare_run
from wan_core.load import inspect_model
from wan_core.lora import LoraConfig
from wan_core.sampler import SampleConfig
from wan_core.train import TrainConfig

QUICK = TrainConfig(steps=1, save_every_n_steps=1, preview_every_n_steps=1, learning_rate=1e-3, eval_items=0)
ONE_STEP = SampleConfig(sampling="custom", steps=1, cfg=1.0)


def expert_run(root: Path, name: str, train: TrainConfig = QUICK) -> TinyRun:
    """A run on the tiny model under a file name of its own."""
    run = make_run(root, train=train, lora=LoraConfig(rank=2), preview=ONE_STEP)
    base = run.roots.resolve(run.config.model.base_file)
    shutil.copyfile(base, base.with_name(f"{name}.safetensors"))
    model = replace(run.config.model, base_file=f"diffusion_models:{name}.safetensors")
    config = replace(run.config, run_name=name, model=model).with_digests(run.roots)
    decision = choose_run(root / "runs", config)
    return TinyRun(decision.directory, run.roots, prepare_run(decision, config), run.roots_file)


@pytest.mark.parametrize(
    ("name", "shift"),
    [("tiny", 3.0), ("tiny_high_noise", 12.0), pytest.param("tiny_low_noise", 12.0, marks=pytest.mark.soak)],
)
def test_a_shift_that_is_left_to_the_model_is_trained_and_written_into_the_lora(
    tmp_path: Path, name: str, shift: float
) -> None:
    drawn: dict[float, list[float]] = {}
    for asked in (0.0, shift):
        run = expert_run(tmp_path / str(asked), name, replace(QUICK, discrete_flow_shift=asked))
        heard = train_here(run)
        drawn[asked] = [event.timestep_mean for event in heard if isinstance(event, StepDone)]
        with safe_open(run.directory / "saves" / "step-000001" / "lora.safetensors", "pt") as file:
            said = {key: value for key, value in file.metadata().items() if "shift" in key}
        assert list(said.values()) == [str(shift)], said
    assert drawn[0.0] == drawn[shift]
    notes = [event.text for event in heard if isinstance(event, Note) and "expert alone" in event.text]
    assert len(notes) == (0 if name == "tiny" else 1)
    assert all(name.removeprefix("tiny_").replace("_", "-") in note for note in notes)


def test_a_file_that_only_the_settings_call_an_expert_gets_the_shift_of_its_pair(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    single = replace(
        inspect_model(run.config.model, run.roots).variant,
        candidates=("2.2 T2V-A14B high noise", "2.2 T2V-A14B low noise"),
    )
    usual, explicit = TrainConfig(), TrainConfig(discrete_flow_shift=7.0)
    assert usual.discrete_flow_shift == 0.0
    assert with_model_values(usual, single).discrete_flow_shift == 3.0
    assert with_model_values(usual, with_expert(single, "high")).discrete_flow_shift == 12.0
    assert with_model_values(explicit, with_expert(single, "high")) == explicit


def test_a_run_that_says_nothing_of_the_shift_keeps_its_identity_as_it_is_written(tmp_path: Path) -> None:
    """The number is resolved when a run starts; an explicit one is the job it always was."""
    run = make_run(tmp_path, train=replace(QUICK, discrete_flow_shift=3.0))
    stored = json.loads((run.directory / "run.json").read_text(encoding="utf-8"))
    assert stored["train"]["discrete_flow_shift"] == 3.0
    again = replace(run.config, train=replace(run.config.train, discrete_flow_shift=0.0))
    assert again.job_id != run.config.job_id
    assert replace(again, train=replace(again.train, discrete_flow_shift=3.0)).job_id == run.config.job_id
