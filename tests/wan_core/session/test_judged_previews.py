"""A clip of a saved step shows the weights of its LoRA file, also where others are trained beside them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.sessions import rendered, train_here
from tests.support.tiny_run import make_run
from wan_core.packages import version_of
from wan_core.train import TrainConfig

pytestmark = pytest.mark.lasts(1)


@pytest.mark.soak
@pytest.mark.parametrize(
    "beside",
    [
        pytest.param({"ema_decay": 0.9}, marks=pytest.mark.soak),
        {"optimizer": "schedule_free", "lr_scheduler": "constant"},
    ],
)
def test_a_validation_clip_is_the_last_preview_of_the_run(tmp_path: Path, beside: dict[str, object]) -> None:
    if "optimizer" in beside and not version_of("pytorch-optimizer"):
        pytest.skip("pytorch-optimizer is not installed")
    usual = {"steps": 3, "learning_rate": 1e-2, "eval_items": 0, "preview_every_n_steps": 3}
    run = make_run(tmp_path, train=TrainConfig(**{**usual, **beside}))  # type: ignore[arg-type]
    train_here(run)
    clips = rendered(run, "again")
    shown = (run.directory / "samples" / "step-000003_p0.latent").read_bytes()
    assert clips["step-000003_s1.0_p0"] == shown != clips["baseline_p0"]
