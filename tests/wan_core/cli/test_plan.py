"""`wan_core plan` of settings that never ran: from the real header of a 14B file whose values nobody has."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.forked import RunCommand
from tests.support.headers import write_empty_model
from wan_core.cli.commands import _parser
from wan_core.cli.plan import _runs_beside
from wan_core.errors import ExitCode, WanTrainerError

GIB = 1 << 30


def planned(run: RunCommand, *words: object) -> tuple[int, dict[str, Any], str]:
    done = run("plan", *map(str, words))
    return done.returncode, json.loads(done.stdout), done.stderr


@pytest.mark.soak
@pytest.mark.lasts(8)
def test_a_14b_expert_in_fp8_is_planned_for_a_card_of_16_gib(tmp_path: Path, wan_core_command: RunCommand) -> None:
    file = write_empty_model(tmp_path / "wan2.2_t2v_high_noise_14B_bf16.safetensors", "wan2.2-t2v-A14B-expert")
    job = ("--model", file, "--size", "832x480x33", "--rank", 32, "--quantize", "fp8")
    code, found, _ = planned(wan_core_command, *job, "--card", 16)
    assert code == ExitCode.DONE
    assert found["fits"]
    assert (found["variant"], found["size"], found["card"]) == ("2.2 T2V-A14B high noise", "832x480x33", "RTX 4080")
    needs = found["devices"]["cuda:0"]
    assert needs["peak_bytes"] == max(needs["phases"].values()) <= needs["room_bytes"] < 16 * GIB
    # Adapters of 153,354,240 values, each with its gradient and two moments.
    assert needs["adapters_bytes"] == 16 * 153_354_240
    assert found["measures"]["offload_inputs"]
    assert 1 <= found["measures"]["blocks_to_swap"] < 40
    # The arithmetic of the backward pass and what is computed again, three times the forward pass, at 58.5 TFLOP/s.
    assert 15 < found["step_seconds"] < 40

    code, found, said = planned(wan_core_command, *job, "--card", 6)
    assert code == ExitCode.DOES_NOT_FIT
    assert not found["fits"]
    assert said.strip() == found["verdict"]
    assert said.startswith("832x480x33 at rank 32 needs 6.")
    assert "5.0 GiB are free. Nearest that fits: 832x480x" in said


def test_a_preset_is_printed_with_the_values_that_the_node_fills_in(
    tmp_path: Path, wan_core_command: RunCommand
) -> None:
    """The values and the time of tests/nodes/test_plan_ahead.py."""
    file = write_empty_model(tmp_path / "wan2.1_t2v_1.3B_bf16.safetensors", "wan2.1-t2v-1.3B")
    words = (
        "--model",
        file,
        "--size",
        "832x480x1",
        "--preset",
        "16 GB, quick look",
        "--card",
        16,
        "--checkpointing",
        "full",
    )
    code, found, _ = planned(wan_core_command, *words)
    assert (code, found["fits"], found["card"]) == (ExitCode.DONE, True, "RTX 4080")
    assert found["settings"] == {"width": 832, "height": 480, "num_frames": 1, "steps": 400, "blocks_to_swap": -1}
    assert 40 < found["seconds"] < 600


def test_the_folder_of_runs_beside_the_models_is_found(tmp_path: Path) -> None:
    model = tmp_path / "models" / "diffusion_models" / "wan" / "file.safetensors"
    assert _runs_beside(model) == ()
    runs = tmp_path / "output" / "wan_trainer"
    runs.mkdir(parents=True)
    assert _runs_beside(model) == (str(runs),)


def plan_here(*words: str) -> None:
    options = _parser().parse_args(["plan", *words])
    options.run(options, lambda event: None, io.BytesIO())


def test_what_is_missing_or_wrong_on_the_line_is_said(tmp_path: Path) -> None:
    file = write_empty_model(tmp_path / "wan2.1_t2v_1.3B_bf16.safetensors", "wan2.1-t2v-1.3B")
    for words, said in (
        ([], "plan --model FILE"),
        (["--model", file], "plan --model FILE"),
        (["my_run", "--card", "24"], "For --card and --preset give --model and --size"),
        (["--model", file, "--preset", "16 GB, godo", "--card", 16], 'Did you mean "16 GB, good"?'),
        (["--model", file, "--preset", "16 GB, good", "--card", 12], "The GPU has 12.0 GiB"),
        (["--model", file, "--size", "832x480"], "WIDTHxHEIGHTxFRAMES"),
        (["--model", file, "--size", "830x480x33"], "multiples of 16"),
        (["--model", file, "--size", "832x480x34"], "4n+1"),
        (["--model", file, "--size", "832x480x33", "--card", "big"], "--card"),
        (["--model", file, "--size", "832x480x33", "--card", ","], "--card"),
    ):
        with pytest.raises(WanTrainerError) as refused:
            plan_here(*map(str, words))
        assert refused.value.exit_code == ExitCode.BAD_INPUT
        assert said in str(refused.value)
