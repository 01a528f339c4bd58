"""Clips of LoRA files on a model that no run trained: the same as beside a run, for one model and for a pair."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from safetensors.torch import save_file

from tests.support.tiny_run import HIGH_FILE, LOW_FILE, PAIR, PLAN, TINY_CONTROL, TINY_I2V, make_roots, random_weights
from tests.wan_core.session.test_frozen_loras import CLIP, write_lora
from wan_core.cache import LatentCache
from wan_core.control import SignalControl
from wan_core.errors import ConfigError
from wan_core.files import Roots, atomic_write_json
from wan_core.job import RunConfig, SampleJob, preview_without_run, untrained_run
from wan_core.job.config import DataConfig
from wan_core.load import ModelPlan, inspect_model
from wan_core.lora import FrozenLora
from wan_core.sampler import SampleConfig
from wan_core.session import sample_job

PROMPT, NEGATIVE = f"{100:064x}", f"{201:064x}"
ASKED = replace(CLIP, cfg=2.0, prompts=("a ball",), prompt_keys=(PROMPT,), default_negative_key=NEGATIVE)
FILES = (FrozenLora(file="loras:one.safetensors", strength=0.5), FrozenLora(file="loras:two.safetensors"))


def rendered(root: Path, run: RunConfig, job: SampleJob, roots: Roots) -> dict[str, bytes]:
    folder = root / "samples" / "asked"
    folder.mkdir(parents=True)
    atomic_write_json(root / "run.json", run.to_dict())
    atomic_write_json(folder / "job.json", job.to_dict())
    sample_job(root, folder / "job.json", roots, emit=lambda _: None, control=SignalControl(signals=False))
    return {file.stem: file.read_bytes() for file in folder.glob("*.latent")}


@pytest.mark.parametrize("pair", [pytest.param(False, marks=pytest.mark.soak), True])
def test_lora_files_of_anybody_need_no_run(tmp_path: Path, pair: bool) -> None:
    roots, fingerprint = make_roots(tmp_path)
    cache = LatentCache(roots.first("cache"))
    plan, files = PLAN, FILES
    for seed, name in enumerate(("one", "two")):
        write_lora(tmp_path / f"{name}.safetensors", seed)
    if pair:
        for seed, name in ((1, HIGH_FILE), (2, LOW_FILE)):
            save_file(random_weights(seed=seed), tmp_path / "models" / name)
        plan, files = PAIR, (replace(FILES[0], low_noise_file=FILES[1].file), FILES[1])
    job = SampleJob(strengths=(1.0, 2.0), preview=replace(ASKED, steps=4), seeds=(3,), loras=files)
    alone = untrained_run(plan, ASKED, cache, roots, vae_identity="v")
    clips = rendered(tmp_path / "alone", alone, job, roots)
    assert set(clips) == {cell.name for cell in job.cells()}
    assert len(clips) == len(set(clips.values())) == 1 + 2 * 2, "each differs from each"
    trained = replace(alone, run_name="tiny", data=DataConfig(fingerprint=fingerprint, num_items=3))
    assert clips == rendered(tmp_path / "trained", trained, job, roots), "a run shows the same of them"


def test_what_no_clip_says_is_that_of_the_template(tmp_path: Path) -> None:
    roots, _ = make_roots(tmp_path)
    variant = inspect_model(PLAN, roots).variant
    asked = preview_without_run(replace(ASKED, width=0, height=0, num_frames=0), variant)
    assert (asked.width, asked.height, asked.num_frames) == (832, 480, 33)
    small = preview_without_run(ASKED, variant)
    assert (small.width, small.height, small.num_frames) == (32, 32, 5)
    for nothing in (None, SampleConfig()):
        with pytest.raises(ConfigError, match="Without a run there is no caption to render"):
            preview_without_run(nothing, variant)


def test_what_only_a_dataset_has_is_refused(tmp_path: Path) -> None:
    for shape, said in ((TINY_I2V, r"start from a picture.* Connect start_image"), (TINY_CONTROL, "Connect a run")):
        roots, _ = make_roots(tmp_path / str(shape.in_channels), shape)
        variant = inspect_model(PLAN, roots).variant
        with pytest.raises(ConfigError, match=said):
            preview_without_run(ASKED, variant)


def test_one_expert_of_a_pair_is_refused(tmp_path: Path) -> None:
    roots, _ = make_roots(tmp_path)
    save_file(random_weights(seed=1), tmp_path / "models" / LOW_FILE)
    plan = ModelPlan(base_file=f"diffusion_models:{LOW_FILE}")
    with pytest.raises(ConfigError, match=r"low_noise_14B\.safetensors is one expert of a pair.*Choose both files"):
        untrained_run(plan, ASKED, LatentCache(roots.first("cache")), roots, vae_identity="v")


def test_another_model_file_is_another_grid(tmp_path: Path) -> None:
    roots, _ = make_roots(tmp_path)
    cache = LatentCache(roots.first("cache"))

    def job_id(negative: str = NEGATIVE, vae: str = "v") -> str:
        asked = replace(ASKED, default_negative_key=negative)
        return untrained_run(PLAN, asked, cache, roots, vae_identity=vae).job_id

    before = job_id()
    assert before == job_id()
    assert len({before, job_id(f"{202:064x}"), job_id(vae="w")}) == 3
    save_file(random_weights(seed=5), tmp_path / "models" / "wan_tiny_t2v.safetensors")
    assert job_id() != before
