"""Both experts of a pair in one run: each learns, bit for bit, what a run of its own would, wherever it stops."""

from __future__ import annotations

import random
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.support.sessions import rendered, train_here
from tests.support.tiny_run import HIGH_FILE, LOW_FILE, TinyRun, make_pair_run
from wan_core.control import SignalControl
from wan_core.errors import ConfigError
from wan_core.events import Evaluated, Event, Finished, Note, StepDone
from wan_core.files import atomic_write_json
from wan_core.job.choose import choose_run
from wan_core.job.config import RunConfig, read_run, read_status
from wan_core.lora import LoraConfig
from wan_core.sampler import SampleConfig
from wan_core.session import devices
from wan_core.train import EXPERTS, SaveStore, TrainConfig, next_turn, settings_of_expert
from wan_core.train.pair import expert_steps

pytestmark = pytest.mark.lasts(1)

STEPS = 10
HIGH, LOW = 6, 4
SETTINGS = {
    "steps": STEPS,
    "high_noise_share": 0.6,
    "save_every_n_steps": 4,
    "eval_items": 0,
    "caption_dropout": 0.3,
    "lr_scheduler": "cosine",
    "lr_warmup_steps": 1,
}
PREVIEW = SampleConfig(sampling="custom", steps=6, cfg=5.0, shift=5.0)
"""three steps of each expert"""
FIRST, SECOND = EXPERTS
ALTERNATING = {"expert_order": "alternating", "expert_turn_steps": 1}
Files = tuple[bytes, dict[str, torch.Tensor]]


def weights(run: TinyRun, step: int = STEPS) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """The LoRAs of the high and the low noise expert, as numbers."""
    saved = SaveStore(run.directory).read(step)
    assert saved is not None
    assert saved.low_noise_lora_file is not None
    return load_file(saved.lora_file), load_file(saved.low_noise_lora_file)


def equal(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def files(run: TinyRun) -> tuple[bytes, ...]:
    folder = run.directory / "saves" / f"step-{STEPS:06d}"
    names = ("lora.safetensors", "lora_low_noise.safetensors", "state.safetensors", "manifest.json")
    return tuple((folder / name).read_bytes() for name in names)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> TinyRun:
    run = make_pair_run(tmp_path_factory.mktemp("high first"), **SETTINGS)
    train_here(run)
    return run


@pytest.fixture(scope="module")
def alternating(tmp_path_factory: pytest.TempPathFactory) -> TinyRun:
    run = make_pair_run(tmp_path_factory.mktemp("alternating"), **SETTINGS, **ALTERNATING)
    train_here(run)
    return run


# ---- whose turn it is


def turns(done: list[int], **settings: object) -> list[tuple[str, int]]:
    """The turns that are left, as (expert, steps of its own at their end)."""
    config = TrainConfig(expert="both", **settings)  # type: ignore[arg-type]
    found = []
    while (turn := next_turn(done, config)) is not None:
        found.append((config.experts[turn[0]], turn[1]))
        done[turn[0]] = turn[1]
    return found


def test_the_high_noise_expert_makes_its_share_first() -> None:
    assert turns([0, 0], steps=10, high_noise_share=0.7) == [(FIRST, 7), (SECOND, 3)]
    assert turns([7, 1], steps=10, high_noise_share=0.7) == [(SECOND, 3)]
    assert turns([0, 0], steps=2, high_noise_share=0.01) == [(FIRST, 1), (SECOND, 1)], "neither goes without"


def test_turns_alternate_by_the_share_and_go_on_from_anywhere() -> None:
    wanted = [
        (FIRST, 3),
        (SECOND, 1),
        (FIRST, 6),
        (SECOND, 2),
        (FIRST, 7),
        (SECOND, 3),
    ]
    settings = {"steps": 10, "high_noise_share": 0.74, "expert_order": "alternating", "expert_turn_steps": 2}
    assert turns([0, 0], **settings) == wanted
    assert turns([5, 1], **settings) == wanted[2:], "in the middle of a turn"
    assert turns([7, 3], **{**settings, "steps": 14}) == [(FIRST, 9), (FIRST, 10), (SECOND, 4)], "made longer"


def test_a_run_of_one_model_has_one_turn() -> None:
    assert next_turn([2], TrainConfig(steps=5)) == (0, 5)
    assert expert_steps(TrainConfig(steps=5, expert="high")) == (5,)
    with pytest.raises(ConfigError, match="steps 1 cannot train both experts"):
        expert_steps(TrainConfig(steps=1, expert="both"))
    with pytest.raises(ConfigError, match="lr_warmup_steps 5 is not below 5, the steps of the low noise expert"):
        settings_of_expert(TrainConfig(steps=10, expert="both", lr_warmup_steps=5), "low_noise")


# ---- what is learnt


def test_each_expert_learns_what_a_run_of_its_own_would_in_either_order(
    undisturbed: TinyRun, alternating: TinyRun, tmp_path: Path
) -> None:
    both = weights(undisturbed)
    for index, (expert, steps) in enumerate((("high", HIGH), ("low", LOW))):
        alone = make_pair_run(tmp_path / expert, expert=expert, **{**SETTINGS, "steps": steps})
        train_here(alone)
        saved = SaveStore(alone.directory).latest()
        assert saved is not None
        assert saved.step == steps
        assert equal(load_file(saved.lora_file), both[index]), expert
        assert equal(weights(alternating)[index], both[index]), expert
        assert any(value.abs().max() > 0 for name, value in both[index].items() if "lora_B" in name)
    assert not equal(both[0], both[1])


def test_steps_are_the_runs_and_name_their_expert(alternating: TinyRun, tmp_path: Path) -> None:
    run = make_pair_run(tmp_path, **{**SETTINGS, **ALTERNATING, "eval_items": 1, "eval_timesteps": (300.0, 900.0)})
    heard = train_here(run)
    steps = [(event.step, event.steps, event.expert) for event in heard if isinstance(event, StepDone)]
    order = ["high", "low"] * LOW + ["high"] * (HIGH - LOW)
    assert steps == [(index + 1, STEPS, expert) for index, expert in enumerate(order)]
    assert equal(weights(run)[0], weights(alternating)[0]), "measuring changes nothing"
    measured = [(event.step, event.expert) for event in heard if isinstance(event, Evaluated)]
    assert measured[:2] == [(0, "high"), (1, "low")], "each before it is trained"
    assert {expert for step, expert in measured if step in (8, STEPS)} == {"high", "low"}, "each after its last step"
    for event in heard:
        if isinstance(event, Evaluated):
            own = (875, 1000) if event.expert == "high" else (0, 875)
            assert all(own[0] <= float(timestep) <= own[1] for timestep in event.per_timestep)


def test_the_low_noise_expert_may_have_a_rank_and_a_learning_rate_of_its_own(tmp_path: Path) -> None:
    asked = {"steps": 5, "low_noise_rank": 2, "low_noise_learning_rate": 5e-4}
    run = make_pair_run(tmp_path, **{**SETTINGS, **asked})
    heard = train_here(run)
    high, low = weights(run, 5)
    ranks = [{value.shape[0] for name, value in lora.items() if "lora_A" in name} for lora in (high, low)]
    assert ranks == [{4}, {2}]
    rates = {e.expert: max(s.lr for s in heard if isinstance(s, StepDone) and s.expert == e.expert)
             for e in heard if isinstance(e, StepDone)}  # fmt: skip
    assert rates == {"high": 1e-3, "low": 5e-4}


# ---- where it stops


@pytest.mark.parametrize(
    ("tries", "order"),
    [(1, "alternating"), (1, "high first"), (10, "high first"), (10, "alternating")],
)
@pytest.mark.soak
def test_stopped_anywhere_and_resumed_equals_never_stopped(
    undisturbed: TinyRun, alternating: TinyRun, tmp_path: Path, order: str, tries: int
) -> None:
    chance = random.Random(order)
    for number in range(tries):
        run = make_pair_run(tmp_path / str(number), **SETTINGS, **(ALTERNATING if order == "alternating" else {}))
        while read_status(run.directory).state != "done":
            train_here(run, max_steps=chance.randint(1, 4))
        assert files(run) == files(alternating if order == "alternating" else undisturbed), number


@pytest.mark.soak
def test_without_room_in_host_memory_weights_are_read_again_and_nothing_else_changes(
    alternating: TinyRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices, "host_bytes", lambda: 0)
    run = make_pair_run(tmp_path, **SETTINGS, **ALTERNATING)
    train_here(run)
    assert files(run) == files(alternating)


@pytest.mark.soak
def test_previews_go_through_both_and_change_nothing(alternating: TinyRun, tmp_path: Path) -> None:
    run = make_pair_run(tmp_path, preview=PREVIEW, **{**SETTINGS, **ALTERNATING, "preview_every_n_steps": 3})
    seen: list[str] = []

    class Watching(SignalControl):
        def wait_decoded(self, sample_id: str, timeout_s: float) -> dict[str, object] | None:
            seen.append(sample_id)
            return None

    train_here(run, Watching(signals=False))
    assert files(run) == files(alternating)
    assert seen == [f"step-{step:06d}_p0" for step in (0, 3, 6, 9, 10)]


@pytest.mark.soak
def test_a_model_that_previews_put_out_of_memory_makes_each_step_once(
    undisturbed: TinyRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Previews in the middle of a turn: the one at work is read again, with a trainer of its own."""
    monkeypatch.setattr(devices, "host_bytes", lambda: 0)
    run = make_pair_run(tmp_path, preview=PREVIEW, **{**SETTINGS, "preview_every_n_steps": 4})
    heard = train_here(run)
    assert [event.step for event in heard if isinstance(event, StepDone)] == list(range(1, STEPS + 1))
    assert files(run) == files(undisturbed)
    assert len(list((run.directory / "samples").glob("*.latent"))) == 4, "of steps 0, 4, 8 and 10"


@pytest.mark.soak
def test_validation_clips_go_through_both_whether_one_rests_or_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_pair_run(tmp_path, preview=PREVIEW, **{**SETTINGS, "steps": 4, "preview_every_n_steps": 4})
    train_here(run)
    clips = rendered(run, "resting")
    base, without, trained = (clips[name] for name in ("baseline_p0", "step-000004_s0.0_p0", "step-000004_s1.0_p0"))
    assert base == without != trained
    preview = run.directory / "samples" / "step-000004_p0.latent"
    assert trained == preview.read_bytes(), "the last preview of the run"
    monkeypatch.setattr(devices, "host_bytes", lambda: 0)
    assert rendered(run, "read again") == clips


@pytest.mark.soak
def test_what_both_experts_start_from_is_said_where_there_is_one_file(tmp_path: Path) -> None:
    learnt = make_pair_run(tmp_path / "first", **{**SETTINGS, "lr_warmup_steps": 0, "steps": 2})
    train_here(learnt)
    names = ("lora.safetensors", "lora_low_noise.safetensors")
    high, low = (f"loras:{learnt.directory.relative_to(tmp_path / 'first')}/saves/step-000002/{name}" for name in names)
    name = high.removeprefix("loras:")
    said = f"Both experts start from {name}: no file with its name exists for the low noise one."
    for other, wanted in (("", [said]), (low, [])):
        lora = LoraConfig(rank=4, start_from=high, low_noise_start_from=other)
        run = make_pair_run(tmp_path / "first", lora=lora, **SETTINGS)
        heard = train_here(run, max_steps=1)
        assert [event.text for event in heard if isinstance(event, Note) and "start from" in event.text] == wanted
        assert [
            event for event in train_here(run, max_steps=1) if isinstance(event, Note) and "start from" in event.text
        ] == []


def test_a_run_ends_with_which_lora_goes_on_which_model(tmp_path: Path, undisturbed: TinyRun) -> None:
    """And a step that was saved before the low noise expert began holds one LoRA."""
    run, files_of = make_pair_run(tmp_path, **SETTINGS), (HIGH_FILE, LOW_FILE)

    def said(ended: Event, step: int, *names: str) -> None:
        assert isinstance(ended, Finished)
        folder = f"saves/step-{step:06d}"
        use = [{"lora": f"{folder}/{name}", "model": model} for name, model in zip(names, files_of, strict=False)]
        assert ended.result["use"] == use
        assert all((run.directory / one["lora"]).is_file() for one in use)

    first = train_here(run, max_steps=3)[-1]
    said(first, 3, "lora.safetensors")
    saved = SaveStore(run.directory).latest()
    assert saved is not None
    assert (saved.step, saved.low_noise_lora_file) == (3, None)
    assert saved.progress["expert_steps"] == [3, 0]
    assert isinstance(first, Finished)
    assert first.result["template"] == "video_wan2_2_14B_t2v"
    for _ in ("trained", "nothing left to train"):
        said(train_here(run)[-1], STEPS, "lora.safetensors", "lora_low_noise.safetensors")
    assert files(run) == files(undisturbed)


def test_a_damaged_low_noise_lora_makes_the_step_count_for_nothing(tmp_path: Path, undisturbed: TinyRun) -> None:
    copy = shutil.copytree(undisturbed.directory, tmp_path / "run")
    file = copy / "saves" / f"step-{STEPS:06d}" / "lora_low_noise.safetensors"
    file.write_bytes(file.read_bytes()[:-1] + b"x")
    latest = SaveStore(copy).latest()
    assert latest is not None
    assert latest.step == 8


# ---- which job it is


def longer(run: TinyRun, steps: int) -> RunConfig:
    return replace(run.config, train=replace(run.config.train, steps=steps))


@pytest.mark.soak
def test_a_finished_run_that_is_made_longer_trains_both_on(tmp_path: Path) -> None:
    """With a constant learning rate each expert ends where a run that was as long from the start ends."""
    constant = {**SETTINGS, "lr_scheduler": "constant", **ALTERNATING}
    run = make_pair_run(tmp_path / "short", **{**constant, "steps": 4})
    train_here(run)
    config = longer(run, 7)
    assert choose_run(run.directory.parent, config).action == "resume"
    atomic_write_json(run.directory / "run.json", config.to_dict())
    train_here(run)
    at_once = make_pair_run(tmp_path / "long", **{**constant, "steps": 7})
    train_here(at_once)
    assert all(equal(a, b) for a, b in zip(weights(run, 7), weights(at_once, 7), strict=True))


def test_a_run_made_shorter_than_its_first_expert_got_is_refused_and_not_called_finished(tmp_path: Path) -> None:
    """Else a pair would be done of which one model was never trained, or was cut short of its own steps."""
    run = make_pair_run(tmp_path, **SETTINGS)
    train_here(run, max_steps=5)
    for steps, share in ((5, 3), (7, 4)):  # 0.6 of them
        said = rf"steps {steps} is too short .* has made 5 steps, more than its share of {share}\. Set steps to 8"
        with pytest.raises(ConfigError, match=said):
            choose_run(run.directory.parent, longer(run, steps))
        atomic_write_json(run.directory / "run.json", longer(run, steps).to_dict())
        with pytest.raises(ConfigError, match=said):
            train_here(run)
    shorter = longer(run, 8)
    assert choose_run(run.directory.parent, shorter).action == "resume"
    atomic_write_json(run.directory / "run.json", shorter.to_dict())
    train_here(run)
    assert choose_run(run.directory.parent, longer(run, 4)).action == "done", "of both there is more than that"
    assert SaveStore(run.directory).steps()[-1] == 8


def test_both_is_a_job_of_its_own_and_settings_of_a_pair_mean_nothing_to_one_model(tmp_path: Path) -> None:
    run = make_pair_run(tmp_path, **SETTINGS)
    both, high = run.config, run.config.of_expert("high_noise", run.roots)
    assert read_run(run.directory) == both
    assert both.low_noise_digest
    assert both.job_id != high.job_id
    assert replace(both, low_noise_digest="x").job_id != both.job_id, "another file is another job"
    alone = make_pair_run(tmp_path / "alone", expert="high", **SETTINGS).config
    assert alone.job_id == high.job_id
    assert replace(alone, train=replace(alone.train, high_noise_share=0.3)).job_id == alone.job_id
    assert replace(both, train=replace(both.train, high_noise_share=0.3)).job_id != both.job_id
