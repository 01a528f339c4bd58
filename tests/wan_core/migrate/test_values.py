"""Values that people write and the trainers' own examples do not: each becomes what it means there, or is named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.imported import TRAIN, job_of, model, said
from wan_core.errors import ConfigError
from wan_core.importers import SourceFile, open_source
from wan_core.migrate import api_graph, canvas_graph
from wan_core.migrate.foreign_job import UNKNOWN_MODEL
from wan_core.train import TrainConfig
from wan_core.train.optimizer_classes import class_of
from wan_core.train.optimizers import make_optimizer

PIPE = "[model]\ntype = 'wan'\nckpt_path = 'Wan2.1-T2V-1.3B'\n[adapter]\ntype = 'lora'\nrank = 8\n"


def toolkit(tmp_path: Path, **process: Any) -> Any:
    model_said = {"arch": "wan21:1b", "name_or_path": "Wan-AI/Wan2.1-T2V-1.3B-Diffusers"}
    document = {"config": {"name": "a", "process": [{"model": model_said, **process}]}}
    return job_of(tmp_path, json.dumps(document), "a.json")


@pytest.mark.parametrize(
    ("options", "rank", "alpha"),
    [
        ("--network_module lycoris.kohya --network_dim 10000 --network_alpha 1 --network_args algo=lokr", 1024, 0),
        ("--network_module networks.lokr --network_dim 100000 --network_alpha 1", 1024, 0),
        ("--network_module networks.loha --network_dim 2048 --network_alpha 512", 1024, 256),
        ("--network_module lycoris.kohya --network_dim 1024 --network_alpha 4 --network_args algo=lokr", 1024, 4),
    ],
)
def test_a_rank_for_whole_matrices_is_the_largest_here(tmp_path: Path, options: str, rank: int, alpha: float) -> None:
    job = job_of(tmp_path, f"{TRAIN} --task t2v-1.3B --dit x.safetensors {options}")
    assert (job.lora().rank, job.lora().alpha) == (rank, alpha)
    assert ("the largest value here" in said(job, "changed")) is ("1024 -" not in options and "dim 1024" not in options)


def test_whole_matrices_of_other_trainers_count_in_full_too(tmp_path: Path) -> None:
    job = toolkit(tmp_path, network={"type": "lokr", "linear": 9_999_999_999, "linear_alpha": 1})
    assert (job.lora().rank, job.lora().alpha) == (1024, 0)
    said_of_it = {"model_family": "wan", "lora_type": "lycoris", "model_flavour": "t2v-480p-1.3b-2.1"}
    (tmp_path / "lycoris_config.json").write_text('{"algo": "lokr", "linear_dim": 10000, "linear_alpha": 1}')
    job = job_of(tmp_path, json.dumps(said_of_it), "b.json")
    assert (job.lora().rank, job.lora().alpha) == (1024, 0)


def test_a_rank_of_a_lora_that_cannot_be_is_refused_still(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="rank 10000 is out of range"):
        job_of(tmp_path, f"{TRAIN} --dit x.safetensors --network_module networks.lora_wan --network_dim 10000")


@pytest.mark.parametrize("place", ["process", "model"])
def test_experts_are_chosen_where_ai_toolkit_reads_them_alone(tmp_path: Path, place: str) -> None:
    experts = {"model_kwargs": {"train_high_noise": False, "train_low_noise": True}}
    name = {"arch": "wan22_14b", "name_or_path": "ai-toolkit/Wan2.2-T2V-A14B-Diffusers-bf16"}
    inside = experts if place == "model" else {}
    job = toolkit(tmp_path, model={**name, **inside}, **(experts if place == "process" else {}))
    low = "wan2.2_t2v_low_noise_14B_fp16.safetensors"
    account = said(job)
    if place == "model":
        assert model(job) == (low, "none")
        assert "train_low_noise alone" in account
    else:
        assert model(job)[1] == low
        assert "model_kwargs {'train_high_noise'" in said(job, "unknown, so not used")
        assert "experts is not set: both" in said(job, "imported")


SECTIONS = """[model]
task = "t2v-A14B"
dit = "wan2.2_t2v_low_noise_14B_fp16.safetensors"
[network]
network_dim = 12
[{section}]
dataset_config = "d.toml"
[train]
learning_rate = 2e-4
max_train_steps = 70
"""


@pytest.mark.parametrize("section", ["dataset", "data", "paths", "general"])
def test_sections_of_a_config_file_are_for_the_eye(tmp_path: Path, section: str) -> None:
    job = job_of(tmp_path, SECTIONS.format(section=section), "a.toml")
    assert (job.trainer, job.data, job.lora().rank) == ("musubi-tuner", "d.toml", 12)
    assert (job.train().learning_rate, job.train().steps) == (2e-4, 70)
    assert "unknown, so not used" not in job.account()


@pytest.mark.parametrize("kind", ["''", "' '"])
def test_an_empty_type_is_said_to_be_empty(tmp_path: Path, kind: str) -> None:
    with pytest.raises(ConfigError, match=r"type of \[model\] is empty. Write wan there"):
        job_of(tmp_path, f"[model]\ntype = {kind}\nckpt_path = 'x'\n", "a.toml")


@pytest.mark.parametrize(
    ("key", "repository", "asks"),
    [
        ("pretrained_transformer_model_name_or_path", "somebody/AnyFlow-Wan2.1-T2V-1.3B", True),
        ("pretrained_model_name_or_path", "somebody/Wan2.1-T2V-1.3B-Diffusers", True),
        ("pretrained_model_name_or_path", "Wan-AI/Wan2.1-T2V-1.3B-Diffusers", False),
        ("pretrained_model_name_or_path", "models/Wan2.1-T2V-1.3B-Diffusers", False),
        ("pretrained_model_name_or_path", "/data/somebody/Wan2.1-T2V-1.3B-Diffusers", False),
    ],
)
def test_a_repository_of_somebody_else_is_not_the_original(
    tmp_path: Path, key: str, repository: str, asks: bool
) -> None:
    job = job_of(tmp_path, json.dumps({"model_family": "wan", key: repository}), "a.json")
    assert model(job)[0] == (UNKNOWN_MODEL if asks else "wan2.1_t2v_1.3B_fp16.safetensors")
    assert ("holds other weights than the original" in said(job, "to do")) is asks


def test_a_repository_of_somebody_else_of_ai_toolkit_is_asked_for(tmp_path: Path) -> None:
    job = toolkit(tmp_path, model={"arch": "wan21:1b", "name_or_path": "somebody/My-Wan2.1-T2V-1.3B"})
    assert model(job)[0] == UNKNOWN_MODEL


def test_names_that_nothing_sets_are_asked_for_in_documents_too(tmp_path: Path) -> None:
    job = toolkit(tmp_path, model={"arch": "wan22_14b", "name_or_path": "${MODEL}"})
    assert model(job) == (UNKNOWN_MODEL, UNKNOWN_MODEL)
    said_of_it = {"config": {"name": "$NAME", "process": [{"model": {"arch": "wan21:1b"}}]}}
    assert job_of(tmp_path, json.dumps(said_of_it), "b.json").of("TrainLoRA.run_name") == "imported"
    text = "[model]\ntype = 'wan'\ntransformer_path = '$LOW'\nckpt_path = '/m/Wan2.2-T2V-A14B'\n"
    job = job_of(tmp_path, text, "c.toml")
    assert (model(job)[0], job.of("TrainLoRA.expert")) == (UNKNOWN_MODEL, "low")
    prose = "1. Train:\n   `accelerate launch wan_train_network.py --dit x.safetensors --network_dim 5`\n"
    assert job_of(tmp_path, prose, "d.txt").lora().rank == 5


@pytest.mark.parametrize(
    ("mode", "ours"),
    [("single_beginning", "head"), ("multiple_overlapping", "chunk"), ("single_middle", "head"), ("else", "head")],
)
def test_the_part_of_a_clip_is_taken_over(tmp_path: Path, mode: str, ours: str) -> None:
    job = job_of(tmp_path, f"video_clip_mode = '{mode}'\ndataset = 'd.toml'\n{PIPE}", "a.toml")
    graph = api_graph(job)
    number, cutting = next((n, node) for n, node in graph.items() if node["class_type"] == "WanDatasetSettings")
    data = next(node for node in graph.values() if node["class_type"] == "WanDatasetFromFile")
    assert cutting["inputs"] == {"frame_extraction": ours}
    assert data["inputs"]["settings"] == [number, 0]
    assert f"video_clip_mode {mode}" in said(job)
    assert any(node["type"] == "WanDatasetSettings" for node in canvas_graph(job)["nodes"])


def parts_of(folder: Path, text: str) -> list[Any]:
    (folder / "clips").mkdir()
    (folder / "clips" / "a.mp4").write_bytes(b"")
    (folder / "clips" / "a.txt").write_text("a fox")
    (folder / "set.toml").write_text(text)
    return open_source(SourceFile(path=folder / "set.toml", allowed=[folder], beside=[], unpacked=None))


def test_the_part_of_a_clip_is_taken_over_from_the_data_half_too(tmp_path: Path) -> None:
    text = "frame_buckets = [1, 33]\nvideo_clip_mode = 'multiple_overlapping'\n[[directory]]\npath = 'clips'\n"
    (part,) = parts_of(tmp_path, text)
    assert part.settings["frame_extraction"] == "chunk"


def test_one_frame_of_each_clip_is_said_where_no_length_is_stated(tmp_path: Path) -> None:
    (part,) = parts_of(tmp_path, "[[datasets]]\nvideo_directory = 'clips'\nresolution = [64, 48]\n")
    assert part.settings["num_frames"] == 1
    notes = "\n".join(part.notes)
    assert "no target_frames is stated: only the first frame of each clip is trained" in notes
    assert "target_frames 1" not in notes


@pytest.mark.parametrize(
    ("optimizer", "stated", "rate"),
    [
        ({"type": "adamw8bit", "lr": 3e-4, "weight_decay": 0.02}, {}, 3e-4),
        ({"type": "adamw8bit", "lr": "3e-4", "params": {"weight_decay": 0.02}}, {}, 3e-4),
        ({"type": "adamw8bit", "lr": 3e-4, "weight_decay": 0.02}, {"lr": 1e-4}, 1e-4),
    ],
)
def test_an_optimizer_may_be_a_table(tmp_path: Path, optimizer: Any, stated: dict[str, Any], rate: float) -> None:
    train = toolkit(tmp_path, train={"optimizer": optimizer, **stated}).train()
    assert (train.optimizer, train.learning_rate, train.weight_decay) == ("adamw8bit", rate, 0.02)


RECIPE = "--optimizer_args scale_parameter=False relative_step=False warmup_init=False"


def test_the_adafactor_that_steps_like_adamw_is_that_class(tmp_path: Path) -> None:
    text = f"{TRAIN} --dit x.safetensors --learning_rate 1e-4 --optimizer_type Adafactor {RECIPE}"
    train = job_of(tmp_path, text).train()
    assert (train.optimizer, train.optimizer_class) == ("custom", "pytorch_optimizer.AdaFactor")
    pytest.importorskip("pytorch_optimizer")
    assert class_of(train)[0].__name__ == "AdaFactor"
    weight = torch.nn.Parameter(torch.zeros(8, 8))
    optimizer = make_optimizer({"a": weight}, train)
    for _ in range(10):
        weight.grad = torch.ones(8, 8)
        optimizer.step()
    assert float(-weight.detach().mean()) == pytest.approx(10 * 1e-4, rel=0.01), "as far as AdamW steps"
    assert not [name for state in optimizer.state.values() for name in state if name == "exp_avg"], "no momentum"


def test_the_usual_adafactor_stays_torchs(tmp_path: Path) -> None:
    train = job_of(tmp_path, f"{TRAIN} --dit x.safetensors --optimizer_type adafactor").train()
    assert (train.optimizer, train.optimizer_class) == ("adafactor", TrainConfig.optimizer_class)
