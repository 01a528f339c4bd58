"""The mean of saved steps: its weights by hand, its file, and what is refused."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save

from tests.support.forked import ForkServer
from tests.support.tiny_run import make_run
from wan_core.errors import ConfigError
from wan_core.job import read_status
from wan_core.job.power_mean import export_power_mean, shares_of
from wan_core.metrics import read_measured
from wan_core.sampler import SampleConfig
from wan_core.train import SaveStore, TrainConfig


def test_the_widest_mean_counts_all_time_alike_and_a_narrow_one_the_end() -> None:
    assert shares_of((10, 20, 40), 12**-0.5) == pytest.approx((0.25, 0.25, 0.5), abs=1e-6)
    narrow = shares_of((10, 20, 40), 0.01)
    assert narrow[-1] > 0.999


@pytest.mark.parametrize("width", [0.05, 0.1, 0.2, 0.25])
def test_the_mean_is_as_wide_as_was_asked(width: float) -> None:
    steps = range(1, 2001)
    shares = torch.tensor(shares_of(steps, width)).double()
    times = torch.tensor([(one + other) / 2 for one, other in pairwise((0, *steps))]).double() / 2000
    assert float(shares.sum()) == pytest.approx(1)
    middle = (shares * times).sum()
    assert float((shares * (times - middle) ** 2).sum().sqrt()) == pytest.approx(width, rel=1e-3)


def test_a_width_that_no_power_has_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"width is 0.5. Use a share of the run above 0 and up to 0.2887"):
        shares_of((1, 2), 0.5)


def test_steps_after_which_nothing_was_finite_are_no_part_of_a_mean_unless_one_is_named(tmp_path: Path) -> None:
    store = SaveStore(tmp_path)
    for step in (2, 4, 6, 8):
        lora = save({"a": torch.full((2,), float(step))})
        store.commit(step, "job", lora, {"lora.a": torch.ones(2)}, {"step": step})
    store.suspect(6)
    for last, steps in ((None, (2, 4)), (8, (2, 4, 8))):
        assert export_power_mean(tmp_path, 0.2, last, tmp_path / "mean.safetensors").steps == steps


@pytest.mark.soak
@pytest.mark.lasts(2)
def test_the_command_makes_a_lora_of_any_width(server: ForkServer, tmp_path: Path) -> None:
    train = TrainConfig(steps=6, save_every_n_steps=2, preview_every_n_steps=0, learning_rate=1e-2, save_dtype="fp32")
    run = make_run(tmp_path, train=train)

    def told(*words: str) -> tuple[int, str]:
        worker = server.start([*words[:1], str(run.directory), *words[1:]], tmp_path / "out.jsonl")
        code = worker.wait()
        return code, (tmp_path / "out.jsonl").read_text(encoding="utf-8")

    assert told("ema")[0] == 5, "nothing is saved yet"
    assert told("train", "--roots", str(run.roots_file))[0] == 0
    code, said = told("ema", "--width", "0.2")
    assert code == 0
    answer = json.loads(said)
    assert answer["files"] == ["tiny_ema0.2.safetensors"]
    assert list(answer["steps"]) == ["2", "4", "6"]
    shares = shares_of((2, 4, 6), 0.2)
    saves = [load_file(run.directory / "saves" / f"step-00000{step}" / "lora.safetensors") for step in (2, 4, 6)]
    mean = load_file(run.directory / "tiny_ema0.2.safetensors")
    assert mean.keys() == saves[-1].keys()
    for name, value in mean.items():
        wanted = sum(share * save[name].double() for share, save in zip(shares, saves, strict=True))
        torch.testing.assert_close(value, wanted.float(), rtol=1e-6, atol=1e-9)  # type: ignore[union-attr]
    with safe_open(run.directory / "tiny_ema0.2.safetensors", framework="pt") as opened:
        assert json.loads(opened.metadata()["wan_trainer.power_mean"]) == {"width": 0.2, "steps": [2, 4, 6]}


@pytest.mark.lasts(4)
@pytest.mark.parametrize("decay", [0.0, pytest.param(0.5, marks=pytest.mark.soak)], ids=["", "of a run that keeps one"])
def test_a_mean_is_judged_as_a_saved_step_of_a_run_of_its_own(server: ForkServer, tmp_path: Path, decay: float) -> None:
    train = TrainConfig(
        steps=6, save_every_n_steps=2, preview_every_n_steps=6, learning_rate=1e-2, save_dtype="fp32", ema_decay=decay
    )
    run = make_run(tmp_path, train=train, preview=SampleConfig(steps=2))
    roots = ("--roots", str(run.roots_file))

    def told(*words: str) -> tuple[int, str]:
        worker = server.start([*words[:1], str(run.directory), *words[1:], *roots], tmp_path / "out.jsonl")
        code = worker.wait()
        return code, (tmp_path / "out.jsonl").read_text(encoding="utf-8")

    assert told("train")[0] == 0
    assert told("ema", "--judge", "--to", "x.safetensors")[0] == 5, "a run is no file"
    before = sorted(path.name for path in run.directory.rglob("*"))
    code, said = told("ema", "--judge", "--width", "0.2")
    assert code == 0, said
    assert sorted(path.name for path in run.directory.rglob("*")) == before, "the run itself stays as it is"
    made = run.directory.parent / "tiny_ema0.2"
    status = read_status(made)
    assert (status.state, status.step, status.reason) == ("done", 6, "the mean of 3 saved steps of tiny")

    # Judged are the mean weights: those of the file, whatever a run judges else.
    own = {point.step: point.loss for point in read_measured(run.directory / "metrics.jsonl")}
    found = {point.step: point.loss for point in read_measured(made / "metrics.jsonl")}
    assert found.keys() == {0, 6}
    assert found[0] == own[0], "with what was measured before training it is compared"
    assert found[6] != own[6]
    assert "Run tiny_ema0.2 is the mean of the saved steps of tiny (2: " in said
    assert (made / "samples" / "step-000006_p0.latent").is_file()
    saved = SaveStore(made).read(6)
    assert saved is not None
    assert told("ema", "--width", "0.2")[0] == 0
    mean, state = load_file(run.directory / "tiny_ema0.2.safetensors"), saved.read_state()
    assert load_file(saved.lora_file).keys() == mean.keys()
    for name, value in load_file(saved.lora_file).items():
        assert torch.equal(value, mean[name])
    trained = {name: value for name, value in state.items() if name.startswith("lora.")}
    newest = SaveStore(run.directory).read(6)
    assert newest is not None
    assert all(not torch.equal(value, newest.read_state()[name]) for name, value in trained.items())
    for name, value in trained.items():
        assert torch.equal(state.get(f"ema.{name.removeprefix('lora.')}", value), value)
    in_file = torch.cat([value.flatten() for name, value in sorted(mean.items()) if "alpha" not in name])
    in_state = torch.cat([value.flatten() for value in trained.values()])
    assert float(in_file.double().norm()) == pytest.approx(float(in_state.double().norm()), rel=1e-5)
