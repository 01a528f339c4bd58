"""Previews of a run that trains one expert of a pair go through both, and change nothing that it learns."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.support.containers import write_gguf, write_scaled_fp8
from tests.support.forked import ForkServer
from tests.support.sessions import latents, newest_files, train_here, warnings
from tests.support.tiny_run import HIGH_FILE, LOW_FILE, PAIR, TinyRun, make_pair_run, random_weights, train_on_two
from tests.wan_core.job.test_partner import rendered
from tests.wan_core.plan.test_planning import limit_with
from tests.wan_core.session.test_frozen_loras import write_lora
from wan_core.cache import LatentCache, pad_text
from wan_core.errors import CheckpointError, OutOfMemory
from wan_core.events import Event, Note, StepDone
from wan_core.files import atomic_write_json
from wan_core.job import SampleJob, with_partner_digest
from wan_core.job.choose import choose_run, prepare_run
from wan_core.job.config import read_run, read_status
from wan_core.load import ModelPlan, materialize
from wan_core.lora import FrozenLora, LoraConfig
from wan_core.model import WanTransformer
from wan_core.plan import report_run
from wan_core.sampler import SampleConfig
from wan_core.session import devices, loading
from wan_core.train import EXPERTS, SaveStore

pytestmark = pytest.mark.lasts(2)

STEPS, CFG, SEED = 3, 2.0, 42
CLIP = SampleConfig(sampling="custom", sampler_name="euler", scheduler="simple", steps=4, cfg=CFG, shift=5.0)
LEVELS = [5 * t / (1 + 4 * t) for t in (1.0, 0.75, 0.5, 0.25)]
"""1, 0.9375, 0.8333, 0.625: two for each expert"""
SETTINGS = {
    "steps": STEPS,
    "save_every_n_steps": 2,
    "preview_every_n_steps": 1,
    "caption_dropout": 0.3,
    "eval_items": 0,
}
FILES = {"high": HIGH_FILE, "low": LOW_FILE}
OTHER = {"high": "low", "low": "high"}


def partner_of(expert: str, *loras: FrozenLora) -> ModelPlan:
    return ModelPlan(base_file=f"diffusion_models:{FILES[OTHER[expert]]}", loras=loras)


def made(root: Path, expert: str = "high", *loras: FrozenLora, **train: object) -> TinyRun:
    plan = partner_of(expert, *loras)
    run = make_pair_run(root, expert=expert, preview=CLIP, partner=plan, **{**SETTINGS, **train})
    write_lora(root / "another.safetensors", 5)
    return run


def texts(heard: list[Event]) -> list[str]:
    return [event.text for event in heard if isinstance(event, Note)]


@pytest.fixture(scope="module")
def without(tmp_path_factory: pytest.TempPathFactory) -> TinyRun:
    """The same run of the high noise expert without previews."""
    run = made(tmp_path_factory.mktemp("without"), preview_every_n_steps=0)
    train_here(run)
    assert latents(run) == {}
    return run


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> TinyRun:
    """The same run with previews."""
    run = made(tmp_path_factory.mktemp("shown"))
    train_here(run)
    return run


@pytest.mark.parametrize("expert", ["high", pytest.param("low", marks=pytest.mark.soak)])
def test_previews_are_what_validate_video_makes_with_that_partner(expert: str, tmp_path: Path) -> None:
    lora = FrozenLora(file="loras:another.safetensors", strength=0.5)
    run = made(tmp_path, expert, lora)
    heard = train_here(run)
    assert warnings(heard) == []
    assert [text for text in texts(heard) if "both experts" in text or "alone" in text] == [
        f"Previews use both experts. The {OTHER[expert]} noise expert, which this run does not train, is "
        f"{FILES[OTHER[expert]]}; LoRAs on it: another.safetensors at 0.5."
    ]
    shown = latents(run)
    assert sorted(shown) == [f"step-{step:06d}_p0" for step in range(STEPS + 1)]
    assert len(set(shown.values())) == STEPS + 1
    clips, _ = rendered(run, SampleJob(preview=CLIP, partner=partner_of(expert, lora), saved_steps=(2, 3)))
    assert shown["step-000000_p0"] == clips["baseline_p0"]
    assert shown["step-000002_p0"] == clips["step-000002_s1.0_p0"]
    assert shown["step-000003_p0"] == clips["step-000003_s1.0_p0"]


def test_they_are_what_two_models_in_turns_make_of_the_saved_lora(tmp_path: Path) -> None:
    run = made(tmp_path, learning_rate=0.1, save_dtype="fp32")
    assert [text.endswith("LoRAs on it: none.") for text in texts(train_here(run)) if "both experts" in text] == [True]
    saved = SaveStore(run.directory).latest()
    assert saved is not None
    (run.roots.first("loras") / "learnt.safetensors").write_bytes(saved.lora_file.read_bytes())
    lora = LoraConfig(rank=4, start_from="loras:learnt.safetensors")
    by_hand = {0: in_turns(run, None), STEPS: in_turns(run, lora)}
    for step, expected in by_hand.items():
        shown = load_file(run.directory / "samples" / f"step-{step:06d}_p0.latent")["latent"][None]
        torch.testing.assert_close(shown, expected, atol=1e-4, rtol=1e-4)
    assert not torch.allclose(by_hand[0], by_hand[STEPS], atol=1e-2)


@torch.no_grad()
def in_turns(run: TinyRun, on_high: LoraConfig | None) -> torch.Tensor:
    """Euler through four levels by hand: the high noise model takes two, with a LoRA or none, the low noise one two."""
    models = [
        materialize(PAIR.half(name), run.roots, lora) for name, lora in zip(EXPERTS, (on_high, None), strict=True)
    ]
    cache = LatentCache(run.roots.first("cache"))
    cached = cache.read_set(run.config.data.fingerprint)
    words = [pad_text(cache.read_text(key))[None] for key in (cached.items[0].text_key, cached.negative_text_key)]
    x = torch.randn(1, 16, 2, 4, 4, generator=torch.Generator().manual_seed(SEED))
    for number, (here, there) in enumerate(zip(LEVELS, [*LEVELS[1:], 0.0], strict=True)):
        model = models[number // 2].train(False)
        told, untold = (model(x, torch.tensor([1000 * here]), text) for text in words)
        x = x + (there - here) * (untold + CFG * (told - untold))
    return x


@pytest.mark.soak
def test_what_is_learnt_is_the_same_whether_the_models_rest_or_are_read_again(
    without: TinyRun, shown: TinyRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices, "host_bytes", lambda: 0)
    read_again = made(tmp_path)
    heard = train_here(read_again)
    assert [event.step for event in heard if isinstance(event, StepDone)] == list(range(1, STEPS + 1)), "each once"
    assert latents(read_again) == latents(shown)
    assert newest_files(read_again) == newest_files(shown) == newest_files(without)


@pytest.mark.soak
def test_stopped_and_resumed_it_shows_and_learns_the_same(without: TinyRun, shown: TinyRun, tmp_path: Path) -> None:
    in_parts = made(tmp_path)
    for steps in (1, 1, 0):
        train_here(in_parts, max_steps=steps)
    assert latents(in_parts) == latents(shown)
    assert newest_files(in_parts) == newest_files(without)


READ_AGAIN = "import wan_core.session.devices as place\nplace.host_bytes = lambda: 0\n"


@pytest.fixture(scope="module")
def unseen_on_two(server: ForkServer, tmp_path_factory: pytest.TempPathFactory) -> TinyRun:
    """The run without previews, trained by two ranks."""
    return train_on_two(server, made(tmp_path_factory.mktemp("on two"), preview_every_n_steps=0), 0)


@pytest.mark.lasts(4)
@pytest.mark.parametrize(
    ("first", "pieces"),
    [pytest.param("", (1, 0), marks=pytest.mark.soak), (READ_AGAIN, (0,))],
    ids=["resting", "read again"],
)
@pytest.mark.soak
def test_of_two_ranks_one_shows_the_pair_and_both_learn_the_same(
    first: str, pieces: tuple[int, ...], server: ForkServer, unseen_on_two: TinyRun, shown: TinyRun, tmp_path: Path
) -> None:
    """The leading rank leaves its trainer for the clips and comes back, while the other one waits in the next step;
    where its models rest also once it was stopped and resumed."""
    run = train_on_two(server, made(tmp_path), *pieces, first=first)
    assert newest_files(run) == newest_files(unseen_on_two)
    assert sorted(latents(run)) == [f"step-{step:06d}_p0" for step in range(STEPS + 1)]
    assert latents(run)["step-000000_p0"] == latents(shown)["step-000000_p0"]


@pytest.mark.parametrize(
    ("where", "error"),
    [
        pytest.param("loading", torch.OutOfMemoryError, marks=pytest.mark.soak),
        pytest.param("loading", OutOfMemory, marks=pytest.mark.soak),
        pytest.param("rendering", torch.OutOfMemoryError, marks=pytest.mark.soak),
        pytest.param("rendering", RuntimeError, marks=pytest.mark.soak),
    ],
)
def test_memory_that_ends_in_the_partners_steps_costs_clips_and_no_step(
    where: str, error: type[Exception], without: TinyRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed: list[int] = []

    def failing(*_args: object, **_named: object) -> WanTransformer:
        failed.append(1)
        raise error("no room")

    def load(*given: object, **named: object) -> WanTransformer:
        model = _load(*given, **named)
        monkeypatch.setattr(model, "forward", failing)
        return model

    _load: Callable[..., WanTransformer] = loading.read_weights
    monkeypatch.setattr("wan_core.session.experts.read_weights", failing if where == "loading" else load)
    run = made(tmp_path)
    heard = train_here(run)
    assert len(failed) == STEPS + 1
    assert warnings(heard) == [f"Preview at step {step} was skipped: no room" for step in range(STEPS + 1)]
    assert latents(run) == {}
    assert newest_files(run) == newest_files(without)


@pytest.mark.soak
def test_a_trained_model_that_cannot_be_read_again_costs_no_step(
    without: TinyRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where the folder of models is on another computer that is switched off meanwhile."""
    reads: list[int] = []

    def load(*given: Any, **named: Any) -> Any:
        reads.append(1)
        if len(reads) == 3:  # after the clips of steps 0 and 1
            raise CheckpointError("The model is gone.")
        return _load(*given, **named)

    _load = loading.load_model
    monkeypatch.setattr("wan_core.session.expert.load_model", load)
    monkeypatch.setattr(devices, "host_bytes", lambda: 0)
    run = made(tmp_path)
    with pytest.raises(CheckpointError, match=r"The model is gone\."):
        train_here(run)
    saved = SaveStore(run.directory).latest()
    assert saved is not None
    assert saved.step == 1, "nothing was due yet"
    assert read_status(run.directory).state == "failed"
    train_here(run)
    assert newest_files(run) == newest_files(without)


def test_a_partner_that_is_gone_leaves_the_previews_to_the_trained_one(without: TinyRun, tmp_path: Path) -> None:
    run = made(tmp_path)
    (run.roots.first("diffusion_models") / LOW_FILE).unlink()
    heard = train_here(run)
    (said,) = warnings(heard)
    assert said.startswith("Previews cannot use both experts, so the trained expert makes them alone: ")
    assert LOW_FILE in said
    assert [text for text in texts(heard) if "The high-noise expert alone makes the previews of this run" in text]
    assert len(latents(run)) == STEPS + 1
    assert newest_files(run) == newest_files(without)


def test_a_partner_that_was_exchanged_under_its_name_is_told(without: TinyRun, tmp_path: Path) -> None:
    run = made(tmp_path)
    atomic_write_json(run.directory / "run.json", with_partner_digest(run.config, run.roots).to_dict())
    assert warnings(train_here(run, max_steps=1)) == []
    save_file(random_weights(seed=9), run.roots.first("diffusion_models") / LOW_FILE)
    asked = with_partner_digest(run.config, run.roots)
    assert asked.job_id == run.config.job_id
    decision = choose_run(run.directory.parent, asked)
    assert decision.action == "resume"
    prepare_run(decision, decision.job)  # as the node does before each session
    (said,) = warnings(train_here(run))
    assert said == (
        f"{LOW_FILE} is not the file that earlier previews of this run used: new previews are not comparable with them."
    )
    assert newest_files(run) == newest_files(without)


@pytest.mark.soak
@pytest.mark.parametrize(("expert", "kind"), [("high", "Q8_0"), ("low", "Q8_0"), ("low", "")])
@pytest.mark.parametrize("rests", [True, False])
def test_a_partner_that_is_stored_in_eight_bits_shows_itself_and_changes_nothing_that_is_learnt(
    expert: str, kind: str, rests: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """GGUF, or scaled fp8."""
    name = f"wan2.2_small_t2v_{OTHER[expert]}_noise_14B.{'gguf' if kind else 'safetensors'}"
    plan = ModelPlan(base_file=f"diffusion_models:{name}")
    if not rests:
        monkeypatch.setattr(devices, "host_bytes", lambda: 0)
    runs = []
    for every in (0, 1):
        settings = {**SETTINGS, "preview_every_n_steps": every}
        run = make_pair_run(tmp_path / str(every), expert=expert, preview=CLIP, partner=plan, **settings)
        file = run.roots.first("diffusion_models") / name
        _ = write_gguf(file, random_weights(seed=5), kind) if kind else write_scaled_fp8(file, random_weights(seed=5))
        assert warnings(train_here(run)) == []
        runs.append(run)
    plain, run = runs
    assert newest_files(run) == newest_files(plain)
    clips, _ = rendered(run, SampleJob(preview=CLIP, partner=plan, saved_steps=(STEPS,)))
    shown = latents(run)
    assert shown["step-000000_p0"] == clips["baseline_p0"] != clips["step-000003_s1.0_p0"]
    assert shown["step-000003_p0"] == clips["step-000003_s1.0_p0"]


@pytest.mark.soak
@pytest.mark.parametrize("expert", ["high", "low"])
def test_a_partner_whose_blocks_travel_shows_the_same(expert: str, tmp_path: Path) -> None:
    runs = [made(tmp_path / str(swap), expert, memory="manual", blocks_to_swap=swap) for swap in (0, 1)]
    assert [warnings(train_here(run)) for run in runs] == [[], []]
    still, travels = runs
    assert latents(travels) == latents(still)
    assert newest_files(travels) == newest_files(still)


def test_the_partner_is_no_part_of_the_job_and_runs_begun_without_go_on_so(tmp_path: Path) -> None:
    run = made(tmp_path)
    asked = run.config
    alone = replace(asked, partner=None)
    assert asked.partner is not None
    assert read_run(run.directory) == asked
    assert alone.job_id == asked.job_id
    train_here(run, max_steps=1)
    runs = run.directory.parent
    assert choose_run(runs, asked).job.partner == asked.partner
    changed = replace(asked, partner=replace(asked.partner, attention="sdpa_math"))
    assert choose_run(runs, changed).job.partner == changed.partner, "another partner is stated and taken"
    assert choose_run(runs, alone).job.partner is None, "one file is chosen now"
    atomic_write_json(run.directory / "run.json", alone.to_dict())
    assert choose_run(runs, asked).job.partner is None, "its previews began alone"
    unseen = replace(alone, train=replace(alone.train, preview_every_n_steps=0))
    atomic_write_json(run.directory / "run.json", unseen.to_dict())
    assert choose_run(runs, asked).job.partner == asked.partner, "it has shown nothing yet"


@pytest.mark.soak
def test_the_plan_counts_the_partner_and_without_room_for_it_the_trained_one_shows_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The card is this computer's CPU, with a limit; the partner is kept in twice as many bytes as the trained one."""
    large = replace(CLIP, steps=2, width=256, height=256, num_frames=13)
    run = make_pair_run(tmp_path, expert="high", preview=large, **{**SETTINGS, "steps": 1})
    alone = replace(run.config, model=replace(run.config.model, base_precision="bf16"))
    wide = replace(partner_of("high"), base_precision="fp32")

    def planned(partner: ModelPlan | None) -> tuple[int, int, dict[str, int]]:
        atomic_write_json(run.directory / "run.json", replace(alone, partner=partner).to_dict())
        report = report_run(run.directory, run.roots)
        phases = report["devices"]["cpu"]["phases"]
        assert phases["preview_bytes"] == max(phases.values())
        return phases.pop("preview_bytes"), report["host"].get("offloaded_bytes", 0), phases

    (peak, rests, others), (equal, beside, _), (more, twice, same) = map(planned, (None, partner_of("high"), wide))
    assert (rests, equal, others) == (0, peak, same), "a partner of the same size takes no more"
    assert beside > 1 << 20
    assert more - peak == twice - beside > 1 << 20
    monkeypatch.setenv("WAN_TRAINER_CARD_GIB", str(limit_with(run_room=(peak + more) // 2)))
    (said,) = warnings(train_here(run))
    assert said.startswith("Previews cannot use both experts, so the trained expert makes them alone: " + LOW_FILE)
    assert said.endswith("GiB are free.")
    shown = latents(run)
    for folder in ("saves", "samples"):
        shutil.rmtree(run.directory / folder)
    planned(None)
    assert warnings(train_here(run)) == []
    assert latents(run) == shown
