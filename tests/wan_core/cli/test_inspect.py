"""`python -m wan_core inspect`: everything a header says, as JSON; what cannot be trained is named all the same."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.support.containers import cast, weights, write_comfy_quant, write_folder, write_scaled_fp8
from tests.support.forked import RunCommand
from tests.support.tiny_run import random_weights
from wan_core.errors import CheckpointError
from wan_core.files import Roots
from wan_core.load import ModelPlan, inspect_model


def told(done: subprocess.CompletedProcess[str]) -> dict:
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


def test_an_fp8_file_is_told_with_its_layout(wan_core_command: RunCommand, tmp_path: Path) -> None:
    whole = weights()
    path = write_scaled_fp8(tmp_path / "wan_low_noise.safetensors", whole)
    found = told(wan_core_command("inspect", str(path)))
    assert found["container"] == "safetensors"
    assert found["quantization"] == "scaled_fp8"
    assert found["dtypes"] == ["BF16", "F8_E4M3"]
    assert found["parameters"] == sum(value.numel() for value in whole.values())
    assert (found["task"], found["expert"], found["boundary"]) == ("t2v", "low_noise", 0.875)
    assert found["trainable"] is True


def test_a_sharded_folder_is_told_as_one_model(wan_core_command: RunCommand, tmp_path: Path) -> None:
    found = told(
        wan_core_command("inspect", str(write_folder(tmp_path / "Wan", cast(weights(), torch.bfloat16), shards=3)))
    )
    assert (found["container"], found["files"], found["quantization"]) == ("sharded folder", 3, "none")
    assert found["tensors"] == len(weights())


@pytest.mark.parametrize(
    ("mark", "task"),
    [
        ("music_projection.weight", "dancer"),
    ],
)
def test_what_is_not_trained_yet_is_refused_by_name(tmp_path: Path, mark: str, task: str) -> None:
    save_file(random_weights() | {mark: torch.ones(4)}, tmp_path / "wan.safetensors")
    with pytest.raises(
        CheckpointError, match=rf"wan\.safetensors is 2\.[12] {task.upper()}-128 wide; training it is not"
    ):
        inspect_model(
            ModelPlan(base_file="diffusion_models:wan.safetensors"), Roots({"diffusion_models": (str(tmp_path),)})
        )


def test_inspect_names_what_is_not_trained_yet(wan_core_command: RunCommand, tmp_path: Path) -> None:
    save_file(random_weights() | {"music_projection.weight": torch.ones(4)}, tmp_path / "a.safetensors")
    found = told(wan_core_command("inspect", str(tmp_path / "a.safetensors")))
    assert (found["task"], found["trainable"]) == ("dancer", False)


def test_a_file_whose_quantization_is_unknown_is_still_said_to_be_what_it_is(
    wan_core_command: RunCommand, tmp_path: Path
) -> None:
    path = write_comfy_quant(tmp_path / "wan.safetensors", weights())
    stored = load_file(path)
    said = torch.tensor(list(b'{"format": "int8_blockwise"}'), dtype=torch.uint8)
    save_file({name: said.clone() if name.endswith("comfy_quant") else v for name, v in stored.items()}, path)
    found = told(wan_core_command("inspect", str(path)))
    assert (found["task"], found["trainable"], found["quantization"]) == ("t2v", False, "unknown")
    assert "as int8_blockwise; training on that is not supported" in found["refused"]
