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
from wan_core.job.power_mean import export_power_mean, shares_of
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
