"""A sweep gives a training one set of settings for each value, and each is a run of its own."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest
from comfy_server import ComfyServer
from graphs import TRAIN, folder_of, training_graph

from wan_core.errors import WanTrainerError

pytestmark = pytest.mark.comfy


def swept(pack_nodes: dict[str, Any], **inputs: Any) -> list[Any]:
    return pack_nodes["WanSweepSettings"].execute(**inputs).result[0]


def trained_with(pack_nodes: dict[str, Any], settings: Any, **widgets: Any) -> Any:
    """The TrainConfig of a run with the widgets of TrainLoRA."""
    return sys.modules[pack_nodes["TrainLoRA"].__module__].train_config(settings, True, widgets)


def test_each_value_makes_settings_that_lead_over_the_widgets(pack_nodes: dict[str, Any]) -> None:
    assert pack_nodes["WanSweepSettings"].GET_NODE_INFO_V1()["output_is_list"] == [True]
    made = swept(pack_nodes, setting="learning_rate", values="5e-5, 2e-4\n1e-3, 5e-5")
    assert [one.run_name("a") for one in made] == [
        *("a_learning_rate_5e-05", "a_learning_rate_0.0002", "a_learning_rate_0.001"),
    ]
    train = trained_with(pack_nodes, made[1], learning_rate=1.0, steps=5)
    assert (train.learning_rate, train.steps) == (2e-4, 5)


def test_two_sweeps_in_a_row_make_every_pair(pack_nodes: dict[str, Any]) -> None:
    ranks = swept(pack_nodes, setting="rank", values="4, 8")
    pairs = [
        one for base in ranks for one in swept(pack_nodes, settings=base, setting="optimizer", values="lion, adamw")
    ]
    names = [one.run_name("a") for one in pairs]
    assert names == [f"a_rank_{rank}_optimizer_{name}" for rank in (4, 8) for name in ("lion", "adamw")]
    assert [one.lora.rank for one in pairs] == [4, 4, 8, 8]


@pytest.mark.parametrize(
    ("setting", "values", "said"),
    [
        ("rank", "", "values has 0 values"),
        ("rank", "4, many", '"many" is not a number for rank'),
        ("rank", "0", "rank 0 is out of range"),
        ("rank", "4.5", "must be a whole number"),
        ("optimizer", "adamx", 'Did you mean "adamw"'),
        ("speed", "1", "setting"),
    ],
)
def test_values_that_cannot_be_are_refused(pack_nodes: dict[str, Any], setting: str, values: str, said: str) -> None:
    with pytest.raises(Exception, match=said) as caught:
        swept(pack_nodes, setting=setting, values=values)
    assert WanTrainerError.__name__ in [kind.__name__ for kind in type(caught.value).__mro__]


def test_a_large_seed_is_the_one_that_is_trained(pack_nodes: dict[str, Any]) -> None:
    made = swept(pack_nodes, setting="seed", values="9223372036854775807, 9007199254740993, 1e3")
    assert [trained_with(pack_nodes, one).seed for one in made] == [9223372036854775807, 9007199254740993, 1000]


def test_a_setting_is_swept_once(pack_nodes: dict[str, Any]) -> None:
    (base,) = swept(pack_nodes, setting="rank", values="4")
    with pytest.raises(Exception, match="rank is swept by two nodes"):
        swept(pack_nodes, settings=base, setting="rank", values="8")


@pytest.mark.parametrize(
    ("setting", "values", "given"),
    [
        ("steps", "10, 20", {"max_train_epochs": 3}),
        ("steps", "10, 20", {"max_train_hours": 0.5}),
        ("gradient_accumulation_steps", "1, 2", {"global_batch_size": 8}),
    ],
)
def test_a_sweep_that_would_change_no_run_is_refused_with_the_fix(
    pack_nodes: dict[str, Any], setting: str, values: str, given: dict[str, Any]
) -> None:
    def settings(**widgets: Any) -> Any:
        return pack_nodes["WanTrainSettings"].execute(**widgets).result[0]

    ((name, value),) = given.items()
    fix = f"{name} is {value}, .* Set {name} of Wan Train Settings to 0, or sweep another setting"
    with pytest.raises(Exception, match=fix):
        swept(pack_nodes, settings=settings(**given), setting=setting, values=values)
    (base,) = swept(pack_nodes, settings=settings(**given), setting="rank", values="4")
    with pytest.raises(Exception, match=fix):
        swept(pack_nodes, settings=base, setting=setting, values=values)
    assert len(swept(pack_nodes, settings=settings(), setting=setting, values=values)) == 2


@pytest.mark.soak
def test_a_queue_trains_a_run_for_each_value_and_a_second_one_nothing(comfy: ComfyServer) -> None:
    graph = training_graph("sweep", steps=2)
    graph["sweep"] = {"class_type": "WanSweepSettings", "inputs": {"setting": "rank", "values": "2, 3"}}
    graph[TRAIN]["inputs"]["settings"] = ["sweep", 0]
    reports = comfy.outputs(comfy.run(graph), TRAIN)["wan_run"]
    assert [(one["run"], one["status"], one["step"]) for one in reports] == [
        *(("sweep_rank_2", "done", 2), ("sweep_rank_3", "done", 2)),
    ]
    for rank in (2, 3):
        job = json.loads((folder_of(comfy, f"sweep_rank_{rank}") / "run.json").read_text())
        assert job["lora"]["rank"] == rank
    graph["sweep"]["inputs"]["values"] = "2, 3, 4"
    again = comfy.outputs(comfy.run(graph), TRAIN)["wan_run"]
    assert [one["run"] for one in again] == ["sweep_rank_2", "sweep_rank_3", "sweep_rank_4"]
    assert (
        again[0]["note"].startswith("sweep_rank_2 is finished") or "done" in again[0]["note"] or again[0]["step"] == 2
    )
