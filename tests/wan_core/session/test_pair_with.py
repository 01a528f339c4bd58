"""A run of both experts with what changes how weights are kept or computed: it trains, previews, resumes bitwise."""

from __future__ import annotations

from pathlib import Path

import pytest
from safetensors.torch import load

from tests.support.forked import ForkServer
from tests.support.sessions import train_here, warnings
from tests.support.tiny_run import TinyRun, make_pair_run, train_on_two
from wan_core.errors import ConfigError
from wan_core.events import StepDone
from wan_core.job.open import open_experts
from wan_core.sampler import SampleConfig
from wan_core.train import SaveStore

STEPS = 4
SETTINGS = {
    "steps": STEPS,
    "save_every_n_steps": 2,
    "preview_every_n_steps": 2,
    "expert_order": "alternating",
    "expert_turn_steps": 1,
    "eval_items": 1,
}
ONE = SampleConfig(sampling="custom", sampler_name="euler", scheduler="simple", steps=3, cfg=1.0)
WITH = {
    "ema": {"ema_decay": 0.9},
    "schedule-free": {"optimizer": "schedule_free", "lr_scheduler": "constant"},
    "compile": {"compile": True},
}
KEPT = {"ema": "ema.", "schedule-free": "judged."}
"""what a saved step holds of each expert beside its weights"""


def trained(run: TinyRun, max_steps: int = 0) -> None:
    heard = train_here(run, max_steps=max_steps)
    assert not warnings(heard)
    assert {event.expert for event in heard if isinstance(event, StepDone)} <= {"high", "low"}


def left(run: TinyRun) -> dict[str, bytes]:
    """What a run leaves that counts: both LoRAs, the state of both, and its previews."""
    saved = SaveStore(run.directory).read(STEPS)
    assert saved is not None
    files = [file for file in sorted(saved.folder.iterdir()) if file.suffix == ".safetensors"]
    clips = sorted((run.directory / "samples").glob("*.latent"))
    assert len(clips) == 3
    return {file.name: file.read_bytes() for file in (*files, *clips)}


@pytest.mark.soak
@pytest.mark.parametrize(
    "name",
    [
        pytest.param("ema", marks=pytest.mark.lasts(3)),
        pytest.param("schedule-free", marks=pytest.mark.soak),
        pytest.param(
            "compile",
            marks=[pytest.mark.soak, pytest.mark.filterwarnings("ignore:The .grad attribute")],  # torch looks at it
        ),
    ],
)
def test_a_pair_trains_previews_and_resumes_bitwise_with(name: str, tmp_path: Path) -> None:
    once, in_parts = (make_pair_run(tmp_path / kind, preview=ONE, **{**SETTINGS, **WITH[name]}) for kind in "ab")
    trained(once)
    for steps in (3, 0):
        trained(in_parts, steps)
    found = left(once)
    assert left(in_parts) == found
    if name in KEPT:
        names = list(load(found["state.safetensors"]))
        assert {one.split(KEPT[name])[0] for one in names if KEPT[name] in one} == {"", "low_noise."}


@pytest.mark.soak
def test_a_pair_trains_previews_and_resumes_bitwise_on_two_ranks(server: ForkServer, tmp_path: Path) -> None:
    def on_two(root: Path, *pieces: int) -> TinyRun:
        return train_on_two(server, make_pair_run(root, preview=ONE, **SETTINGS), *pieces)

    found = left(on_two(tmp_path / "once", 0))
    assert left(on_two(tmp_path / "parts", 1, 2, 0)) == found
    alone = make_pair_run(tmp_path / "alone", preview=ONE, **SETTINGS)
    trained(alone)
    names = ("lora.safetensors", "lora_low_noise.safetensors")
    assert all(found[name] != left(alone)[name] for name in names), "twice the clips a step"


@pytest.mark.parametrize(
    ("train", "refused"),
    [
        ({"timestep_sampling": "logsnr"}, "draws 0.00[0-9]+ % of its noise levels in 875 to 1000"),
        ({"timestep_sampling": "logsnr", "logit_mean": -4.0}, ""),
    ],
)
def test_noise_levels_that_an_expert_never_sees_are_refused_before_anything_is_loaded(
    train: dict[str, object], refused: str, tmp_path: Path
) -> None:
    run = make_pair_run(tmp_path, **train)
    high, low = open_experts(run.directory, run.roots)
    if not refused:
        return high.check(with_start=True)
    with pytest.raises(ConfigError, match=refused):
        high.check(with_start=True)
    low.check(with_start=True)
