"""How long a run is: epochs and a global batch become steps; hours end it at a save and are counted over sessions."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from safetensors.torch import load_file

from tests.support.sessions import train_here
from tests.support.tiny_run import TinyRun, make_run
from wan_core.cache import LatentCache
from wan_core.cli.settings import change_run
from wan_core.errors import ConfigError
from wan_core.events import CheckpointSaved, Finished, StepDone, Suggested, to_line
from wan_core.files import atomic_write_json
from wan_core.job import choose_run, read_run, read_status
from wan_core.job.length import TimeLimit, with_clip_values
from wan_core.train import TrainConfig, settings_of_expert

HOURS = TrainConfig(
    steps=5, save_every_n_steps=100, preview_every_n_steps=0, eval_items=0, learning_rate=1e-3, max_train_hours=1.0
)


def step(**more: object) -> StepDone:
    said = {"step": 1, "steps": 100, "loss": 1.0, "lr": 1.0, "grad_norm": 1.0, "seconds": 1.0, "expert": "auto"}
    return StepDone(**{**said, "timestep_mean": 500.0, **more})  # type: ignore[arg-type]


def worked(run: TinyRun, seconds: float) -> None:
    """As if an earlier session had worked so long on it."""
    with open(run.directory / "metrics.jsonl", "a", encoding="utf-8") as metrics:
        metrics.write(to_line(step(seconds=seconds)))


def with_settings(run: TinyRun, **train: object) -> TinyRun:
    config = replace(run.config, train=replace(run.config.train, **train))  # type: ignore[arg-type]
    atomic_write_json(run.directory / "run.json", config.to_dict())
    return replace(run, config=config)


@pytest.mark.parametrize(
    ("settings", "ranks", "steps", "accumulation"),
    [
        ({"max_train_epochs": 4}, 1, 12, 1),  # three clips
        ({"max_train_epochs": 4, "gradient_accumulation_steps": 2}, 1, 6, 2),
        ({"max_train_epochs": 4, "gradient_accumulation_steps": 2}, 2, 3, 2),
        ({"max_train_epochs": 3, "global_batch_size": 2}, 1, 5, 2),  # 9 clips by twos, the last step short of one
        ({"max_train_epochs": 4, "expert": "both"}, 1, 24, 1),
        ({"global_batch_size": 8, "batch_size": 2}, 2, 1500, 2),
        ({"global_batch_size": 8, "gradient_accumulation_steps": 3}, 1, 1500, 8),
        ({}, 4, 1500, 1),
    ],
)
def test_epochs_and_a_global_batch_say_steps_and_accumulation(
    tmp_path: Path, settings: dict[str, object], ranks: int, steps: int, accumulation: int
) -> None:
    run = make_run(tmp_path)
    clips = LatentCache(run.roots.first("cache")).read_set(run.config.data.fingerprint)
    found = with_clip_values(TrainConfig(**settings), clips, ranks)  # type: ignore[arg-type]
    assert (found.steps, found.gradient_accumulation_steps) == (steps, accumulation)
    assert with_clip_values(found, clips, ranks) == found, "what stands in run.json says the same again"


@pytest.mark.parametrize(
    ("optimizer", "rate"), [("adamw", 1e-4), ("lion", 3.33e-5), ("adafactor", 1e-2), ("prodigy", 1.0), ("custom", 0.0)]
)
def test_a_learning_rate_of_zero_becomes_the_optimizer_s_and_another_stays(
    tmp_path: Path, optimizer: str, rate: float
) -> None:
    run = make_run(tmp_path)
    clips = LatentCache(run.roots.first("cache")).read_set(run.config.data.fingerprint)
    config = TrainConfig(optimizer=optimizer, optimizer_class="torch.optim.SGD" if optimizer == "custom" else "")
    found = with_clip_values(replace(config, learning_rate=0.0), clips, 1)
    assert found.learning_rate == rate, "0 for a class without a known one, which choose_run refuses"
    assert with_clip_values(replace(config, learning_rate=5e-4), clips, 1).learning_rate == 5e-4


@pytest.mark.parametrize(
    ("asked", "batch", "ranks", "fits"), [(9, 2, 2, "8 or 12"), (3, 4, 1, "4"), (7, 2, 1, "6 or 8")]
)
def test_a_global_batch_that_cannot_be_is_refused_with_the_nearest_that_can(
    tmp_path: Path, asked: int, batch: int, ranks: int, fits: str
) -> None:
    run = make_run(tmp_path)
    clips = LatentCache(run.roots.first("cache")).read_set(run.config.data.fingerprint)
    with pytest.raises(ConfigError, match=rf"^global_batch_size {asked} is not a multiple of .* Set it to {fits}, or"):
        with_clip_values(TrainConfig(global_batch_size=asked, batch_size=batch), clips, ranks)


def test_epochs_between_saves_are_steps_and_minutes_come_in_addition(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    clips = LatentCache(run.roots.first("cache")).read_set(run.config.data.fingerprint)
    saved = with_clip_values(TrainConfig(save_every_n_epochs=2, gradient_accumulation_steps=2), clips, 1)
    assert (saved.save_every_n_steps, saved.steps) == (3, 1500)  # three clips
    run = make_run(tmp_path / "b", train=replace(HOURS, max_train_hours=0.0, steps=2, save_every_n_minutes=1e-9))
    assert [event.step for event in train_here(run) if isinstance(event, CheckpointSaved)] == [1, 2]


def test_warm_up_is_measured_by_the_steps_that_epochs_make(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    clips = LatentCache(run.roots.first("cache")).read_set(run.config.data.fingerprint)

    def found(warmup: int, expert: str = "auto") -> TrainConfig:
        asked = TrainConfig(steps=4, max_train_epochs=4, lr_warmup_steps=warmup, expert=expert)
        return with_clip_values(asked, clips, 1)

    assert (found(11).steps, found(11).warmup) == (12, 11), "more than steps says, which epochs lead over"
    with pytest.raises(ConfigError, match=r"^lr_warmup_steps 12 is not below steps 12, so"):
        found(12)
    assert settings_of_expert(found(11, "both"), "low_noise").warmup == 11
    with pytest.raises(ConfigError, match=r"^lr_warmup_steps 12 is not below 12, the steps of the high noise expert"):
        found(12, "both")


def test_epochs_set_on_the_command_line_are_steps_in_run_json(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    change_run(run.directory, run.roots, ["max_train_epochs=5"])
    assert read_run(run.directory).train.steps == 15
    assert read_run(run.directory).job_id == run.config.job_id, "a longer run is the same job"


def test_hours_end_a_run_at_a_save_and_more_of_them_go_on_as_if_it_had_never_ended(tmp_path: Path) -> None:
    straight = make_run(tmp_path / "straight", train=replace(HOURS, max_train_hours=0.0))
    train_here(straight)
    run = make_run(tmp_path / "timed", train=HOURS)
    worked(run, 3599.99)
    first = train_here(run)
    (finished,) = [event for event in first if isinstance(event, Finished)]
    steps = [event for event in first if isinstance(event, StepDone)]
    assert finished.state == "done"
    assert finished.step == len(steps) < 5
    saved = f"saves/step-{finished.step:06d}/lora.safetensors"
    assert finished.result == {
        "reason": "its 1 h of training (max_train_hours) are over",
        "saved_step": finished.step,
        "use": [{"lora": saved, "model": "wan_tiny_t2v.safetensors"}],
        "template": "text_to_video_wan",
    }
    assert all(0 <= (event.seconds_left or 0) < 0.1 for event in steps)
    assert read_status(run.directory).state == "done"
    assert choose_run(run.directory.parent, run.config).action == "done", "queued again, nothing is trained"
    assert [event.step for event in train_here(run) if isinstance(event, Finished)] == [finished.step]
    longer = with_settings(run, max_train_hours=2.0)
    assert choose_run(run.directory.parent, longer.config).action == "resume"
    second = train_here(longer)
    assert [event.step for event in second if isinstance(event, StepDone)] == list(range(finished.step + 1, 6))
    names = ("lora.safetensors", "state.safetensors")
    made, never = (
        [load_file(one.directory / "saves" / "step-000005" / name) for name in names] for one in (longer, straight)
    )
    assert all(a.keys() == b.keys() and all(a[k].equal(b[k]) for k in a) for a, b in zip(made, never, strict=True))


def test_early_stopping_ends_a_run_that_overfits_at_a_save_and_it_stays_ended(tmp_path: Path) -> None:
    run = make_run(tmp_path, train=replace(HOURS, max_train_hours=0.0, early_stopping=True))
    worse = Suggested(step=3, best=2, why="", overfits_from=2)
    with open(run.directory / "metrics.jsonl", "a", encoding="utf-8") as metrics:
        metrics.write(to_line(worse))
    (finished,) = [event for event in train_here(run) if isinstance(event, Finished)]
    assert (finished.state, finished.step) == ("done", 1)
    assert finished.result is not None
    assert finished.result["reason"] == "early_stopping: its held-out loss has risen since step 2"
    assert choose_run(run.directory.parent, run.config).action == "done"
    assert choose_run(run.directory.parent, with_settings(run, early_stopping=False).config).action == "resume"
    over = []
    for train in (TrainConfig(), TrainConfig(early_stopping=True)):
        limit = TimeLimit(tmp_path, train)
        for event in (worse, replace(worse, overfits_from=None)):
            limit.with_time_left(event)
            over.append(limit.is_over)
    assert over == [False, False, True, False]
    with pytest.raises(ConfigError, match=r"^early_stopping is on, and expert_order high first: the run could"):
        TrainConfig(expert="both", early_stopping=True)


def test_what_is_left_is_the_shorter_of_steps_and_hours() -> None:
    assert step().left(2.0) == 198
    assert step(seconds_left=50.0).left(2.0) == 50
    assert step(seconds_left=500.0).left(2.0) == 198


def test_a_schedule_that_the_hours_cut_off_is_said_once_with_the_steps_that_fit(tmp_path: Path) -> None:
    config = TrainConfig(steps=5000, max_train_hours=1.0)
    limit = TimeLimit(tmp_path, config)
    said = []
    for number in range(1, 60):
        event = step(step=number, steps=5000, seconds=3.0)
        assert isinstance(limit.with_time_left(event), StepDone)
        said.append(limit.remark(event))
    assert [number for number, text in enumerate(said, 1) if text] == [20]
    assert said[19].startswith("At 3 s a step, max_train_hours 1 ends the run near step 1200 of 5000, before its co")
    constant = TimeLimit(tmp_path, replace(config, lr_scheduler="constant"))
    assert not any(constant.remark(step(step=n, steps=5000, seconds=3.0)) for n in range(1, 60))


def test_hours_do_not_go_with_one_expert_after_the_other() -> None:
    with pytest.raises(ConfigError, match=r"before the low noise expert has begun\. Set expert_order to alternating"):
        TrainConfig(expert="both", max_train_hours=2.0)
    TrainConfig(expert="both", max_train_hours=2.0, expert_order="alternating")
