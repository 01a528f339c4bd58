"""What queueing a job would come to is known before its clips are encoded, from what lies there under its name."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.tiny_run import TinyRun, make_run
from wan_core.job import DataConfig, RunConfig, choose_run, foresee, prepare_run
from wan_core.job.foresee import Foreseen

OTHER_CLIPS = DataConfig(fingerprint="f" * 64, num_items=9)


@pytest.fixture
def run(tmp_path: Path) -> TinyRun:
    return make_run(tmp_path)


def asked(run: TinyRun, **changes: object) -> RunConfig:
    """As a page asks: of the clips nothing is known."""
    lora = replace(run.config.lora, rank=changes.pop("rank", run.config.lora.rank))  # type: ignore[arg-type]
    train = replace(run.config.train, **changes)  # type: ignore[arg-type]
    return replace(run.config, data=OTHER_CLIPS, lora=lora, train=train)


def seen(run: TinyRun, config: RunConfig, **how: str) -> Foreseen:
    found = foresee(run.directory.parent, config, **how)
    assert found is not None
    return found


def save(run: TinyRun, step: int) -> Path:
    folder = run.directory / "saves" / f"step-{step:06d}"
    folder.mkdir(parents=True)
    return folder


def test_the_same_settings_go_on_or_have_nothing_to_do_and_more_steps_go_on(run: TinyRun) -> None:
    steps = run.config.train.steps
    begun = seen(run, asked(run))
    assert (begun.directory, begun.action, begun.new, begun.steps) == (run.directory, "resume", "tiny_002", steps)
    save(run, steps)
    assert seen(run, asked(run)).action == "done"
    assert seen(run, asked(run, steps=steps + 1)).action == "resume"
    assert seen(run, asked(run), resume="require") == Foreseen(run.directory, "done", "", steps)
    (save(run, steps + 5) / "suspect.txt").touch()
    assert seen(run, asked(run, steps=steps + 1)).action == "resume", "nobody goes on with a suspect step"


def test_other_settings_begin_a_new_run_and_are_named(run: TinyRun) -> None:
    found = seen(run, asked(run, rank=8, seed=5))
    assert (found.action, found.new) == ("start", "tiny_002")
    assert [(one.setting, one.there, one.here) for one in found.changes] == [("lora.rank", 4, 8), ("train.seed", 0, 5)]
    assert seen(run, asked(run, rank=8), resume="require").action == "refuse"
    fresh = seen(run, asked(run), resume="new")
    assert (fresh.action, fresh.new, fresh.changes) == ("start", "tiny_002", ())
    elsewhere = [asked(run)]
    today = asked(run, seed=5)
    found = foresee(run.directory.parent, today, elsewhere=elsewhere)
    assert found is not None
    assert found.action == "resume", "begun as another card computes the same job"


def test_of_several_runs_of_that_name_the_newest_of_this_job_counts_else_the_newest(run: TinyRun) -> None:
    runs = run.directory.parent
    (runs / "tiny_002").mkdir()  # no run of ours
    (runs / "tiny_002" / "notes.txt").write_text("somebody's")
    other = replace(asked(run, rank=8), data=OTHER_CLIPS)
    prepare_run(choose_run(runs, other), other)
    assert seen(run, asked(run)).directory.name == "tiny"
    assert seen(run, asked(run, rank=8)).directory.name == "tiny_003"
    third = seen(run, asked(run, rank=2))
    assert (third.directory.name, third.new, third.changes[0].there) == ("tiny_003", "tiny_004", 8)
    assert foresee(runs, replace(asked(run), run_name="free")) is None


def test_epochs_say_as_many_steps_as_they_said_there(run: TinyRun) -> None:
    epochs = asked(run, max_train_epochs=4)
    assert seen(run, epochs).steps is None, "that run was asked for steps"
    config = replace(run.config, train=replace(run.config.train, max_train_epochs=4, steps=12))
    prepare_run(choose_run(run.directory.parent, config), config)
    assert seen(run, epochs).steps == 12
    assert seen(run, epochs).action == "resume"
