"""The grid of a rendering: which clips there are, in which order, and that none is made twice."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from tests.support.sessions import train_here
from tests.support.tiny_run import TinyRun, make_run
from tests.wan_core.session.test_frozen_loras import write_lora
from wan_core.control import SignalControl
from wan_core.errors import CheckpointError, ConfigError
from wan_core.events import DecodeWanted, Event
from wan_core.files import atomic_write_json
from wan_core.job import SampleJob
from wan_core.lora import FrozenLora
from wan_core.sampler import PreviewPrompt, SampleConfig
from wan_core.session import sample_job
from wan_core.train import TrainConfig

PREVIEW = SampleConfig(num_frames=5, width=32, height=32, steps=1, cfg=1.0, seed=7)


def test_a_row_is_a_prompt_with_a_seed_and_begins_with_the_base_model() -> None:
    prompts = SampleConfig(
        prompts=("a", "b"), prompt_keys=("0", "1"), prompt_settings=(PreviewPrompt(name="Red Ball!"), PreviewPrompt())
    )
    job = SampleJob(saved_steps=(2, 10), strengths=(0.5, 1.0), preview=prompts, seeds=(3, 4))
    names = [cell.name for cell in job.cells()]
    assert len(names) == len(set(names)) == 20
    assert names[:6] == [
        "baseline_d3_p0_Red-Ball", "step-000002_s0.5_d3_p0_Red-Ball", "step-000002_s1.0_d3_p0_Red-Ball",
        "step-000010_s0.5_d3_p0_Red-Ball", "step-000010_s1.0_d3_p0_Red-Ball", "baseline_d4_p0_Red-Ball",
    ]  # fmt: skip
    assert names[-1] == "step-000010_s1.0_d4_p1"
    foreign = FrozenLora(file="loras:kohya/My style (v2).safetensors", strength=0.5, digest="abc")
    files = SampleJob(loras=(foreign,), strengths=(1.0, 2.0), baseline=False)
    assert [cell.name for cell in files.cells()] == [
        "lora-My-style-v2-99b62a_s1.0_p0",
        "lora-My-style-v2-99b62a_s2.0_p0",
    ]
    assert [cell.column.lora.strength for cell in files.cells() if cell.column.lora] == [0.5, 1.0]
    plain = SampleJob(saved_steps=(2,), preview=SampleConfig())
    assert [cell.name for cell in plain.cells()] == ["baseline_p0", "step-000002_s1.0_p0"]


def test_more_clips_than_anybody_compares_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"26 rows .* of 4 clips .* are 104 clips; at most 100"):
        SampleJob(saved_steps=(1, 2, 3), seeds=tuple(range(26))).cells()


def test_clips_that_are_there_are_not_made_again_and_a_seed_is_that_of_the_noise(tmp_path: Path) -> None:
    steps = TrainConfig(steps=1, save_every_n_steps=1, preview_every_n_steps=0, learning_rate=1e-3, eval_items=0)
    run = make_run(tmp_path, train=steps)
    train_here(run)
    job = SampleJob(saved_steps=(1,), preview=PREVIEW, seeds=(7, 8))
    assert made(run, job) == [cell.name for cell in job.cells()]
    (run.directory / "samples" / "asked" / "baseline_d8_p0.mp4").unlink()
    assert made(run, job) == ["baseline_d8_p0"]
    more = SampleJob(saved_steps=(1,), preview=PREVIEW)
    assert made(run, more) == ["baseline_p0", "step-000001_s1.0_p0"]
    latents = {file.stem: file.read_bytes() for file in (run.directory / "samples" / "asked").glob("*.latent")}
    assert latents["baseline_d7_p0"] == latents["baseline_p0"] != latents["baseline_d8_p0"]
    assert latents["step-000001_s1.0_d7_p0"] == latents["step-000001_s1.0_p0"] != latents["baseline_p0"]


def test_a_file_that_fits_no_model_of_the_grid_is_refused_before_the_first_clip(tmp_path: Path) -> None:
    """It would be the last column of many, and hours of clips would come before it."""
    steps = TrainConfig(steps=1, save_every_n_steps=1, preview_every_n_steps=0, learning_rate=1e-3, eval_items=0)
    run = make_run(tmp_path, train=steps)
    train_here(run)
    write_lora(tmp_path / "good.safetensors", 1)
    save_file({"lora_unet_blocks_0_ffn_2.lora_down.weight": torch.ones(4, 3)}, tmp_path / "odd.safetensors")
    good, odd = (FrozenLora(file=f"loras:{name}.safetensors", digest=name) for name in ("good", "odd"))
    for job in (
        SampleJob(saved_steps=(1,), preview=PREVIEW, loras=(good, odd)),
        SampleJob(saved_steps=(1,), preview=replace(PREVIEW, loras=(odd,))),
    ):
        with pytest.raises(CheckpointError, match=r"odd\.safetensors"):
            made(run, job)
        assert not list((run.directory / "samples" / "asked").glob("*.mp4"))


def test_a_file_for_the_other_expert_alone_is_refused_where_there_is_one_model(tmp_path: Path) -> None:
    """Its column would show the base model under the name of the LoRA."""
    write_lora(tmp_path / "good.safetensors", 1)
    low = FrozenLora(low_noise_file="loras:good.safetensors", low_noise_digest="good")
    steps = TrainConfig(steps=1, save_every_n_steps=1, preview_every_n_steps=0, learning_rate=1e-3, eval_items=0)
    run = make_run(tmp_path, train=steps)
    train_here(run)
    for job in (
        SampleJob(saved_steps=(1,), preview=PREVIEW, loras=(low,)),
        SampleJob(saved_steps=(1,), preview=replace(PREVIEW, loras=(low,))),
    ):
        with pytest.raises(ConfigError, match=r"the LoRA good\.safetensors is for the low noise expert of a pair"):
            made(run, job)


def made(run: TinyRun, job: SampleJob) -> list[str]:
    """Returns the clips that a job makes, in order; whoever decodes them writes a file."""
    folder = run.directory / "samples" / "asked"
    folder.mkdir(parents=True, exist_ok=True)
    atomic_write_json(folder / "job.json", job.to_dict())
    wanted: list[str] = []

    class Decoding(SignalControl):
        def wait_decoded(self, sample_id: str, timeout_s: float) -> dict[str, object]:
            (folder / f"{sample_id}.mp4").touch()
            return {"file": f"samples/asked/{sample_id}.mp4"}

    def hear(event: Event) -> None:
        if isinstance(event, DecodeWanted):
            wanted.append(event.sample_id)

    sample_job(run.directory, folder / "job.json", run.roots, emit=hear, control=Decoding(signals=False))
    return wanted
