"""Runs over frozen LoRAs: a job of their own, exact when they go on; and LoRAs that act in their previews alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from tests.support.sessions import train_here
from tests.support.tiny_run import HIGH_FILE, PLAN, TINY, TinyRun, make_pair_run, make_run, random_weights
from wan_core.control import SignalControl
from wan_core.errors import CheckpointError, ConfigError
from wan_core.files import atomic_write_json
from wan_core.footprint import weights_once_loaded
from wan_core.job import SampleJob
from wan_core.job.checks import check_files
from wan_core.job.open import open_experts
from wan_core.job.outcome import used_on
from wan_core.load import ModelPlan, inspect_model, inspect_pair, materialize
from wan_core.lora import FrozenLora
from wan_core.sampler import SampleConfig
from wan_core.session import sample_job
from wan_core.session.preview_loras import with_preview_loras
from wan_core.train import EXPERTS, SaveStore, TrainConfig

SETTINGS = TrainConfig(
    steps=4, save_every_n_steps=2, preview_every_n_steps=0, learning_rate=1e-3, eval_items=0, caption_dropout=0.3
)
UNDER, FEW = FrozenLora(file="loras:under.safetensors"), FrozenLora(file="loras:few.safetensors", strength=0.5)
CLIP = SampleConfig(num_frames=5, width=32, height=32, steps=2, cfg=1.0)


def write_lora(path: Path, seed: int, modules: tuple[str, ...] = ("self_attn.q", "ffn.2", "cross_attn.o")) -> None:
    """A LoRA of rank 4 on both blocks, with a bias and a norm, as distilled ones have."""
    generator, weights, tensors = torch.Generator().manual_seed(seed), random_weights(TINY), {}
    for name in (f"blocks.{block}.{module}" for block in range(2) for module in modules):
        tall, wide = weights[f"{name}.weight"].shape
        tensors[f"lora_unet_{name.replace('.', '_')}.lora_down.weight"] = torch.randn(4, wide, generator=generator) / 8
        tensors[f"lora_unet_{name.replace('.', '_')}.lora_up.weight"] = torch.randn(tall, 4, generator=generator) / 8
    tensors["lora_unet_blocks_0_ffn_0.diff_b"] = torch.randn(256, generator=generator) / 8
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file(tensors, path)


def lora_of(run: TinyRun) -> bytes:
    saved = SaveStore(run.directory).latest()
    assert saved is not None
    return saved.lora_file.read_bytes()


def test_a_run_over_a_frozen_lora_is_a_job_of_its_own_and_goes_on_exactly(tmp_path: Path) -> None:
    write_lora(tmp_path / "under.safetensors", 1)
    plan = replace(PLAN, loras=(UNDER,))
    whole, parts, plain = (
        make_run(tmp_path / name, train=SETTINGS, plan=p) if name == "plain" else over(tmp_path, name, p)
        for name, p in (("whole", plan), ("parts", plan), ("plain", PLAN))
    )
    train_here(whole)
    train_here(parts, max_steps=2)
    train_here(parts)
    train_here(plain)
    assert lora_of(whole) == lora_of(parts)
    assert lora_of(whole) != lora_of(plain)
    assert keys_of(whole) == keys_of(plain), "what is frozen is not in the file"
    jobs = [whole, over(tmp_path, "weak", replace(PLAN, loras=(replace(UNDER, strength=0.5),))), plain]
    assert len({run.config.job_id for run in jobs}) == 3
    assert "loras" not in plain.config.identity()["model"], "jobs of before keep their names"
    (tmp_path / "whole" / "under.safetensors").rename(tmp_path / "whole" / "renamed.safetensors")
    write_lora(tmp_path / "whole" / "under.safetensors", 2)
    with pytest.raises(CheckpointError, match=r"loras:under\.safetensors is not the file this run was made with"):
        check_files(whole.config, whole.roots, with_start=True)


def keys_of(run: TinyRun) -> set[str]:
    saved = SaveStore(run.directory).latest()
    assert saved is not None
    with safe_open(saved.lora_file, "pt") as file:
        return set(file.keys())


def over(root: Path, name: str, plan: ModelPlan) -> TinyRun:
    write_lora(root / name / "under.safetensors", 1)
    return make_run(root / name, train=SETTINGS, plan=plan)


def test_a_dora_is_refused_over_it(tmp_path: Path) -> None:
    run = over(tmp_path, "run", replace(PLAN, loras=(UNDER,)))
    with pytest.raises(ConfigError, match="A DoRA depends on the base weights"):
        replace(run.config, lora=replace(run.config.lora, kind="DoRA"))


def test_the_planner_counts_it_beside_the_weights(tmp_path: Path) -> None:
    run = over(tmp_path, "counted", replace(PLAN, loras=(UNDER, UNDER)))
    with_it, without = (weights_once_loaded(plan, inspect_model(plan, run.roots)) for plan in (run.config.model, PLAN))
    pairs = 2 * (4 * (128 + 128) + 4 * (256 + 128) + 4 * (128 + 128)) + 256
    assert with_it - without == 2 * pairs * 4


def test_previews_with_a_lora_of_their_own_change_nothing_that_is_learnt(tmp_path: Path) -> None:
    previewed = replace(SETTINGS, preview_every_n_steps=2)
    for name in ("with", "without"):
        write_lora(tmp_path / name / "few.safetensors", 3)
    away = replace(previewed, memory="manual", offload_activations="on", blocks_to_swap=2)  # both blocks in host memory
    run = make_run(tmp_path / "with", train=away, preview=replace(CLIP, loras=(FEW,)))
    bare = make_run(tmp_path / "without", train=previewed, preview=CLIP)
    for one in (run, bare):
        train_here(one, SignalControl(signals=False))
    assert lora_of(run) == lora_of(bare)
    clips = [{f.stem: f.read_bytes() for f in (one.directory / "samples").glob("*.latent")} for one in (run, bare)]
    assert clips[0].keys() == clips[1].keys() == {"step-000000_p0", "step-000002_p0", "step-000004_p0"}
    assert not set(clips[0].values()) & set(clips[1].values())
    # The same in a grid: with the previews' own LoRA, without it, and with it as a column.
    columns = rendered(bare, SampleJob(preview=CLIP, loras=(FEW,), strengths=(1.0,)))
    foreign = next(name for name in columns if name.startswith("lora-few-"))
    assert columns[foreign] == clips[0]["step-000000_p0"] != columns["baseline_p0"] == clips[1]["step-000000_p0"]
    assert set(columns) == {"baseline_p0", foreign}
    both = rendered(run, SampleJob(preview=replace(CLIP, loras=(FEW,)), saved_steps=(4,)))
    assert both["step-000004_s1.0_p0"] == clips[0]["step-000004_p0"]
    assert both["baseline_p0"] == clips[0]["step-000000_p0"]


SHARES, SHORT = {"as trained": 1.0, "adapter": 0.0}, (1, 16, 4096)


def test_a_training_adapter_acts_in_training_and_not_in_previews(tmp_path: Path) -> None:
    plans = {name: replace(PLAN, loras=(replace(UNDER, preview_strength=share),)) for name, share in SHARES.items()}
    runs = {name: over(tmp_path, name, plan) for name, plan in plans.items()}
    assert runs["adapter"].config.job_id == runs["as trained"].config.job_id, "previews change no weight"
    latent, text = (torch.randn(size, generator=torch.Generator().manual_seed(1)) for size in ((1, 16, 2, 4, 4), SHORT))
    given = (latent, torch.tensor([500.0]), text)
    seen = dict[str, tuple[Tensor, Tensor]]()
    for name, run in runs.items():
        (opened,) = open_experts(run.directory, run.roots)
        model = materialize(run.config.model, run.roots, None)
        trained = model(*given)
        with with_preview_loras(model, opened, ()):
            seen[name] = trained, model(*given)
        assert torch.equal(model(*given), trained)
    plain = materialize(PLAN, runs["adapter"].roots, None)(*given)
    assert torch.equal(*seen["as trained"])
    torch.testing.assert_close(seen["adapter"][1], plain, atol=1e-4, rtol=1e-4)
    assert float((seen["adapter"][0] - plain).abs().max()) > 0.01
    assert used_on(runs["adapter"].config, {"": "mine.safetensors"}) == [
        {"lora": "mine.safetensors", "model": "wan_tiny_t2v.safetensors"}
    ]


def rendered(run: TinyRun, job: SampleJob) -> dict[str, bytes]:
    folder = run.directory / "samples" / "asked"
    folder.mkdir(parents=True, exist_ok=True)
    atomic_write_json(folder / "job.json", job.to_dict())
    sample_job(run.directory, folder / "job.json", run.roots, emit=lambda _: None, control=SignalControl(signals=False))
    return {file.stem: file.read_bytes() for file in folder.glob("*.latent")}


def test_each_expert_of_a_pair_has_its_own(tmp_path: Path) -> None:
    for number, name in enumerate(("high", "low")):
        write_lora(tmp_path / f"{name}.safetensors", number)
    pair = FrozenLora(file="loras:high.safetensors", low_noise_file="loras:low.safetensors", low_noise_strength=0.5)
    run = make_pair_run(tmp_path, steps=2, save_every_n_steps=2, eval_items=0, preview_every_n_steps=0)
    plan = replace(run.config.model, loras=(pair,))
    config = replace(run.config, model=plan).with_digests(run.roots)
    high, low = (config.of_expert(expert, run.roots).model.loras for expert in EXPERTS)
    assert [(lora.file, lora.strength) for lora in (*high, *low)] == [
        ("loras:high.safetensors", 1.0),
        ("loras:low.safetensors", 0.5),
    ]
    assert all(lora.digest and not lora.low_noise_digest for lora in (*high, *low))
    assert all(file.beside for file in inspect_pair(plan, run.roots))
    assert config.job_id != run.config.job_id
    alone = ModelPlan(base_file=f"diffusion_models:{HIGH_FILE}", loras=(pair,))
    with pytest.raises(ConfigError, match=r"There is one model, and the LoRA low\.safetensors is for the low noise"):
        inspect_model(alone, run.roots)
    atomic_write_json(run.directory / "run.json", config.to_dict())
    train_here(run)
    columns = rendered(run, SampleJob(saved_steps=(2,), preview=replace(CLIP, steps=4, loras=(pair,))))
    bare = rendered(run, SampleJob(saved_steps=(2,), preview=replace(CLIP, steps=4)))
    assert columns["baseline_p0"] != bare["baseline_p0"]
