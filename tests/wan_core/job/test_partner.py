"""Clips of a run that trained one expert alone go through the pair, where the other expert is given as its partner."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.sessions import train_here
from tests.support.tiny_run import HIGH_FILE, LOW_FILE, TinyRun, make_pair_run, make_run
from tests.wan_core.session.test_frozen_loras import write_lora
from wan_core.control import SignalControl
from wan_core.errors import CheckpointError, ConfigError
from wan_core.events import Event, Note
from wan_core.files import atomic_write_json
from wan_core.job import SampleJob
from wan_core.job.open import open_experts
from wan_core.job.partner import with_partner
from wan_core.load import ModelPlan
from wan_core.lora import FrozenLora
from wan_core.sampler import SampleConfig
from wan_core.session import sample_job

CLIP = SampleConfig(sampling="custom", num_frames=5, width=32, height=32, steps=2, cfg=1.0, shift=5.0)
FILES = {"high": f"diffusion_models:{HIGH_FILE}", "low": f"diffusion_models:{LOW_FILE}"}
PAIR = ModelPlan(base_file=FILES["high"], low_noise_file=FILES["low"])


def trained(root: Path, expert: str, **train: object) -> TinyRun:
    run = make_pair_run(root, expert=expert, eval_items=0, **{"steps": 1, **train})
    train_here(run)
    write_lora(root / "another.safetensors", 5)
    return run


def rendered(run: TinyRun, job: SampleJob) -> tuple[dict[str, bytes], list[str]]:
    """The latents of a job by the names of the clips, and what was said."""
    folder = run.directory / "samples" / f"asked-{len(list(run.directory.glob('samples/*')))}"
    folder.mkdir(parents=True)
    atomic_write_json(folder / "job.json", job.to_dict())
    heard: list[Event] = []
    sample_job(run.directory, folder / "job.json", run.roots, emit=heard.append, control=SignalControl(signals=False))
    notes = [event for event in heard if isinstance(event, Note)]
    assert [note.text for note in notes if note.level == "warning"] == []
    said = [note.text for note in notes if "sampled in" not in note.text]
    return {file.stem: file.read_bytes() for file in folder.glob("*.latent")}, said


@pytest.mark.parametrize(("expert", "other"), [("high", "low"), pytest.param("low", "high", marks=pytest.mark.soak)])
def test_the_pair_with_the_partner_is_that_of_two_loras(tmp_path: Path, expert: str, other: str) -> None:
    run = trained(tmp_path / "alone", expert)
    partner = ModelPlan(base_file=FILES[other])
    clips, notes = rendered(run, SampleJob(preview=CLIP, partner=partner))
    assert notes == [
        f"Previews use both experts. The {other} noise expert, which this run does not train, is "
        f"{FILES[other].partition(':')[2]}; LoRAs on it: none."
    ]
    # The base pair of another run, of both experts, with the file this run saved on the expert that it trained.
    both = trained(tmp_path / "both", "both", steps=2)
    base, _ = rendered(both, SampleJob(preview=CLIP, strengths=(0.0,)))
    assert clips["baseline_p0"] == base["baseline_p0"]
    assert clips["step-000001_s1.0_p0"] != clips["baseline_p0"]
    # With a LoRA of another run on the partner: a plan of its own, the pair's plan, and previews of both say the same.
    lora = FrozenLora(file="loras:another.safetensors", strength=0.5)
    on_other = FrozenLora(low_noise_file=lora.file, low_noise_strength=0.5) if other == "low" else lora
    with_it, said = rendered(run, SampleJob(preview=CLIP, partner=replace(partner, loras=(lora,))))
    assert said == [notes[0].replace("none", "another.safetensors at 0.5")]
    assert not set(with_it.values()) & set(clips.values())
    assert rendered(run, SampleJob(preview=CLIP, partner=replace(PAIR, loras=(on_other,)))) == (with_it, said)
    previewed = SampleJob(preview=replace(CLIP, loras=(on_other,)), partner=partner)
    assert rendered(run, previewed) == (with_it, said)
    pair, _ = rendered(both, SampleJob(preview=replace(CLIP, loras=(on_other,)), strengths=(0.0,)))
    assert with_it["baseline_p0"] == pair["baseline_p0"]


def test_a_partner_that_cannot_be_one_is_refused(tmp_path: Path) -> None:
    alone, both = make_pair_run(tmp_path / "alone", expert="high"), make_pair_run(tmp_path / "both")
    single = make_run(tmp_path / "single")
    high, pair, one = (open_experts(run.directory, run.roots)[0] for run in (alone, both, single))
    with pytest.raises(CheckpointError, match="high"):
        with_partner(high, ModelPlan(base_file=FILES["high"]))
    with pytest.raises(ConfigError, match="the run trains both experts already"):
        with_partner(pair, PAIR)
    with pytest.raises(ConfigError, match="which is one model"):
        with_partner(one, PAIR)
