"""Settings from JSON: unknown ones are named with the nearest known one, wrong ones with the value and the place."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support.tiny_run import TinyRun, make_run
from wan_core.config import Config, nearest
from wan_core.errors import ConfigError, WanTrainerError
from wan_core.job.config import read_run
from wan_core.load import ModelPlan
from wan_core.lora import LoraConfig
from wan_core.placement import PlacementConfig
from wan_core.precision import PrecisionPolicy, QuantizeConfig
from wan_core.sampler import SampleConfig
from wan_core.train import TrainConfig


@dataclass(frozen=True, kw_only=True)
class Inner(Config):
    size: int = 3


@dataclass(frozen=True, kw_only=True)
class Outer(Config):
    name: str
    share: float = 0.5
    on: bool = True
    inner: Inner = Inner()
    maybe: Inner | None = None
    words: tuple[str, ...] = ()
    parts: tuple[Inner, ...] = ()


def test_a_config_survives_json_unchanged() -> None:
    outer = Outer(name="x", share=0.1, on=False, maybe=Inner(size=4), words=("a", "b"), parts=(Inner(), Inner(size=9)))
    assert Outer.from_dict(json.loads(json.dumps(outer.to_dict()))) == outer


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        ({"name": "x", "shar": 1.0}, 'Unknown setting "shar" in Outer. Did you mean "share"?'),
        ({"name": "x", "zzzz": 1}, 'Unknown setting "zzzz" in Outer. Known: inner, maybe, name, on'),
        ({"name": "x", "inner": {"sise": 1}}, 'Unknown setting "sise" in inner. Did you mean "size"?'),
        ({"name": "x", "parts": [{}, {"sizes": 1}]}, 'Unknown setting "sizes" in parts[1]. Did you mean "size"?'),
        ({"share": 1.0}, "Outer lacks: name."),
        ({"name": 3}, "name must be text, not the number 3."),
        ({"name": None}, "name must be text, not null."),
        ({"name": "x", "share": "much"}, "share must be a number, not text."),
        ({"name": "x", "share": True}, "share must be a number, not true/false."),
        ({"name": "x", "on": 1}, "on must be true or false, not the number 1."),
        ({"name": "x", "inner": {"size": 1.5}}, "inner.size must be a whole number, not the number 1.5."),
        ({"name": "x", "inner": {"size": True}}, "inner.size must be a whole number, not true/false."),
        ({"name": "x", "inner": []}, "inner must be an object with named settings, not a list."),
        ({"name": "x", "words": "ab"}, "words must be a list, not text."),
        ({"name": "x", "words": ["a", 2]}, "words[1] must be text, not the number 2."),
        ({"name": "x", "maybe": "no"}, "maybe must be an object with named settings, not text."),
        ([], "Outer must be an object with named settings, not a list."),
        (None, "Outer must be an object with named settings, not null."),
    ],
    ids=lambda value: str(value)[:60] if isinstance(value, str) else "",
)
def test_wrong_data_is_named_with_place_and_value(data: Any, sentence: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        Outer.from_dict(data)
    assert str(refusal.value).startswith(sentence)


def test_whole_numbers_are_numbers_but_not_the_other_way() -> None:
    share = Outer.from_dict({"name": "x", "share": 1}).share
    assert share == 1.0
    assert type(share) is float


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("name", ["learning_rate", "discrete_flow_shift", "adam_epsilon", "caption_dropout"])
def test_a_number_that_is_no_number_is_refused(name: str, number: float) -> None:
    """Python's JSON reader takes NaN and Infinity."""
    data = json.loads(json.dumps({name: number}))
    with pytest.raises(ConfigError, match=name):
        TrainConfig.from_dict(data, "train")


def test_nearest_guesses_only_when_something_is_near() -> None:
    assert nearest("learing_rate", ["learning_rate", "steps"]) == ' Did you mean "learning_rate"?'
    assert nearest("qqq", ["b", "a"]) == " Known: a, b."


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: TrainConfig(steps=0), "steps 0 is out of range. Use 1 to"),
        (lambda: TrainConfig(learning_rate=-1.0), "learning_rate -1.0 is out of range"),
        (lambda: TrainConfig(optimizer="adamv"), 'optimizer "adamv" is unknown. Did you mean "adamw"?'),
        (lambda: TrainConfig(timestep_sampling="sigmod"), 'Did you mean "sigmoid"?'),
        (lambda: TrainConfig(steps=10, lr_warmup_steps=10), "lr_warmup_steps 10 is not below steps 10"),
        (lambda: TrainConfig(adam_beta1=1.0), "adam_beta1 1.0 is out of range"),
        (lambda: TrainConfig(adam_beta2=-0.1), "adam_beta2 -0.1 is out of range"),
        (lambda: TrainConfig(eval_timesteps=(2000.0,)), "eval_timesteps 2000.0 is out of range"),
        (lambda: LoraConfig(rank=0), "rank 0 is out of range"),
        (lambda: LoraConfig(alpha=-1.0), "alpha -1.0 is negative"),
        (lambda: LoraConfig(dropout=1.0), "lora dropout 1.0 is out of range"),
        (lambda: LoraConfig(targets=("ffn(",)).check_grammar(), "LoRA target 'ffn(' is not a regular expression"),
        (lambda: QuantizeConfig(scheme="fp8"), 'Quantization scheme "fp8" is unknown.'),
        (lambda: QuantizeConfig(include="[").check_names(()), "include '[' is not a regular expression"),
        (lambda: QuantizeConfig(exclude="*").check_names(()), "exclude '*' is not a regular expression"),
        (lambda: PrecisionPolicy(preset="balance"), 'precision_policy "balance" is unknown. Did you mean "balanced"?'),
        (lambda: PrecisionPolicy(norm="fp23"), 'precision of norm "fp23" is not a choice. Use one of: fp32, bf16'),
        (lambda: ModelPlan(base_file="m:x", base_precision="fp8"), 'base_precision "fp8" is unknown'),
        (lambda: ModelPlan(base_file="m:x", attention="sage"), "has no backward pass"),
        (lambda: ModelPlan(base_file="m:x", attention="sdpa_maths"), 'attention "sdpa_maths" is unknown'),
        (lambda: SampleConfig(num_frames=30), "num_frames 30 is not 4n+1. Set it to 29 or 33."),
        (lambda: SampleConfig(width=500), "width 500 is not a multiple of 16. Set it to 496."),
        (lambda: SampleConfig(sampling="offical"), 'sampling "offical" is unknown. Did you mean "official"?'),
        (lambda: SampleConfig(steps=-1), "steps -1 is out of range"),
        (lambda: SampleConfig(width=-16), "width -16 is out of range"),
        (lambda: SampleConfig(num_frames=-3), "num_frames -3 is out of range"),
        (lambda: SampleConfig(shift=-1.0), "shift -1.0 is out of range"),
        (lambda: SampleConfig(seed=-1), "seed -1 is out of range"),
    ],
    ids=range(28),
)
def test_an_impossible_setting_is_refused_with_its_value_and_a_way_out(make: Any, sentence: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        make()
    assert sentence in str(refusal.value)


@pytest.fixture
def run(tmp_path: Path) -> TinyRun:
    plan = ModelPlan(
        base_file="diffusion_models:wan_tiny_t2v.safetensors",
        quantize=QuantizeConfig(exclude="ffn"),
        placement=PlacementConfig(devices="cpu"),
    )
    return make_run(tmp_path, plan=plan, preview=SampleConfig(steps=2, prompts=("a ball",)))


def edit(run: TinyRun, change: Any) -> Path:
    path = run.directory / "run.json"
    data = json.loads(path.read_text(encoding="utf-8"))
    change(data)
    path.write_text(json.dumps(data), encoding="utf-8")
    return run.directory


def test_run_json_reads_back_as_the_job_it_was_written_from(run: TinyRun) -> None:
    assert read_run(run.directory) == run.config
    assert read_run(run.directory).job_id == run.config.job_id


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda d: d.update(trian={}), ['"trian"', '"train"']),
        (lambda d: d["train"].update(learning_rat=1.0), ['"learning_rat"', "train", '"learning_rate"']),
        (lambda d: d["lora"].update(ranks=4), ['"ranks"', "lora", '"rank"']),
        (lambda d: d["model"]["quantize"].update(shceme="int8"), ["model.quantize", '"scheme"']),
        (lambda d: d["train"].update(steps="many"), ["train.steps", "whole number", "text"]),
        (lambda d: d["train"].update(steps=-1), ["steps -1"]),
        (lambda d: d.update(version=2), ["version 2", "Update the pack"]),
        (lambda d: d.update(run_name="../x"), ["run_name", "../x"]),
        (lambda d: d.pop("model"), ["lacks: model"]),
    ],
    ids=range(9),
)
def test_a_bad_setting_in_run_json_names_the_file_and_the_nearest_setting(
    run: TinyRun, change: Any, words: list[str]
) -> None:
    with pytest.raises(ConfigError) as refusal:
        read_run(edit(run, change))
    for word in ["run.json", *words]:
        assert word in str(refusal.value)


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "\ufeff{}", '{"a": 1' * 10000])
def test_a_broken_run_json_is_one_sentence(run: TinyRun, text: str) -> None:
    (run.directory / "run.json").write_text(text, encoding="utf-8")
    with pytest.raises(WanTrainerError, match=r"run\.json"):
        read_run(run.directory)


def test_a_deeply_nested_run_json_is_one_sentence(run: TinyRun) -> None:
    (run.directory / "run.json").write_text("[" * 200_000, encoding="utf-8")
    with pytest.raises(WanTrainerError, match=r"run\.json"):
        read_run(run.directory)


def test_run_json_of_another_version_says_so_even_when_it_has_new_settings(run: TinyRun) -> None:
    def newer(data: dict[str, Any]) -> None:
        data["version"] = 2
        data["novelty"] = True

    with pytest.raises(ConfigError, match="version 2"):
        read_run(edit(run, newer))
