"""Previews of a run: what is asked for and indexed, and that none of their troubles changes what is trained."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import wan_core.train.preview as preview
from tests.support.sessions import Steered, Straight, of, same, state, train_here, warnings
from tests.support.tiny_run import make_run, steady
from tests.wan_core.kernels.test_backends import sage
from wan_core.cache import LatentCache
from wan_core.errors import ConfigError, OutOfMemory
from wan_core.events import DecodeWanted, Event, Note, SampleReady
from wan_core.job.config import read_status
from wan_core.lora import LoraConfig
from wan_core.sampler import PreviewPrompt, SampleConfig

pytestmark = pytest.mark.lasts(0.3)


PREVIEW = SampleConfig(steps=2, prompts=("a", "b"))


@pytest.mark.soak
@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("the decoder broke"),
        torch.OutOfMemoryError("CUDA out of memory"),
        OSError(28, "disk full"),
    ],
)
def test_a_preview_that_fails_is_a_note_and_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, straight: Straight, error: Exception
) -> None:
    undisturbed = straight(steady())

    def fail(*_: Any, **__: Any) -> torch.Tensor:
        raise error

    monkeypatch.setattr(preview, "generate", fail)
    run = make_run(tmp_path / "run", train=steady(preview_every_n_steps=3), preview=PREVIEW)
    events = train_here(run)
    notes = warnings(events)
    assert [n.split(" was")[0] for n in notes] == [f"Preview at step {step}" for step in (0, 3, 6)]
    assert read_status(run.directory).state == "done"
    assert same(state(run, 6), undisturbed)


def test_previews_change_nothing_of_what_is_trained(tmp_path: Path, straight: Straight) -> None:
    lora = LoraConfig(rank=4, dropout=0.2)
    run = make_run(tmp_path / "run", train=steady(preview_every_n_steps=3), preview=PREVIEW, lora=lora)
    train_here(run)
    assert same(state(run, 6), straight(steady(), lora=lora))


def test_sage_is_used_by_previews_alone_and_changes_nothing_of_what_is_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, straight: Straight
) -> None:
    calls = sage(monkeypatch)
    config = replace(PREVIEW, attention="sage")
    refused = make_run(tmp_path / "refused", train=steady(preview_every_n_steps=3), preview=config)
    with pytest.raises(ConfigError, match="runs on CUDA devices and this job uses cpu"):
        train_here(refused)
    monkeypatch.setattr("wan_core.session.train_job.check_preview_kernel", lambda *_: None)
    run = make_run(tmp_path / "run", train=steady(preview_every_n_steps=3), preview=config)
    train_here(run)
    assert calls
    assert not any(calls)
    assert same(state(run, 6), straight(steady()))


def test_a_stop_while_denoising_ends_after_one_more_step_of_it(tmp_path: Path) -> None:
    run = make_run(tmp_path, train=steady(preview_every_n_steps=2), preview=SampleConfig(steps=50))
    control = Steered()
    events: list[Event] = []

    def emit(event: Event) -> None:
        events.append(event)
        if event.name == "stage" and event.stage == "sample" and event.done == 3:  # type: ignore[attr-defined]
            control.reason = "stopped by the user"

    train_here(run, control, emit=emit)
    assert max(e.done for e in events if e.name == "stage" and getattr(e, "stage", "") == "sample") == 3
    assert read_status(run.directory).state == "stopped"


def test_decoded_clips_are_indexed_and_errors_are_notes(tmp_path: Path) -> None:
    run = make_run(tmp_path, train=steady(steps=1, preview_every_n_steps=1), preview=SampleConfig(steps=2))
    control = Steered()
    control.answers = {
        "step-000000_p0": {"file": "samples/step-000000_p0.mp4"},
        "step-000001_p0": {"error": "no VAE is connected"},
    }
    events = train_here(run, control)
    (ready,) = of(events, SampleReady)
    assert (ready.step, ready.file) == (0, "samples/step-000000_p0.mp4")
    assert json.loads((run.directory / "samples" / "index.json").read_text()) == [
        {"id": "step-000000_p0", "step": 0, "file": "samples/step-000000_p0.mp4"}
    ]
    assert "Preview step-000001_p0 was not decoded: no VAE is connected" in [e.text for e in of(events, Note)]


def test_every_prompt_of_a_library_has_its_size_steps_and_name(tmp_path: Path) -> None:
    """The clip of a prompt is the one that its settings give when they are those of all."""
    own = {"width": 64, "num_frames": 9, "steps": 3, "cfg": 1.0, "seed": 7}

    def previews(name: str, **asked: Any) -> Path:
        first = make_run(tmp_path / name, train=steady(preview_every_n_steps=6))
        items = LatentCache(first.roots.first("cache")).read_set(first.config.data.fingerprint).items
        keys = tuple(item.text_key for item in items[: len(asked["prompts"])])
        config = replace(first.config, preview=SampleConfig(sampling="custom", prompt_keys=keys, **asked))
        (first.directory / "run.json").write_text(json.dumps(config.to_dict()), encoding="utf-8")
        control = Steered()
        control.answers = {clip: {"file": f"samples/{clip}.mp4"} for clip in clips}
        train_here(first, control, max_steps=1)
        return first.directory / "samples"

    clips = ("step-000000_p0_red-ball", "step-000000_p1")
    library = previews(
        "library", prompts=("a red ball", "a cube"), steps=2,
        prompt_settings=(PreviewPrompt(name="red ball!", **own), PreviewPrompt()),
    )  # fmt: skip
    ball, cube = (load_file(library / f"{clip}.latent")["latent"] for clip in clips)
    assert (tuple(ball.shape), tuple(cube.shape)) == ((16, 3, 4, 8), (16, 2, 4, 4))
    alone = previews("alone", prompts=("a red ball",), **own)
    assert torch.equal(ball, load_file(alone / "step-000000_p0.latent")["latent"])
    entries = json.loads((library / "index.json").read_text())
    assert [entry["id"] for entry in entries] == list(clips)
    assert [entry["prompt"] for entry in entries] == ["a red ball", "a cube"]


@pytest.mark.parametrize(
    "damaged", [b'[{"id": "step-0', *(pytest.param(one, marks=pytest.mark.soak) for one in (b"{}", b"[1]", b"\xff"))]
)
def test_a_damaged_index_of_clips_stops_no_preview_and_is_made_anew(tmp_path: Path, damaged: bytes) -> None:
    run = make_run(tmp_path, train=steady(steps=1, preview_every_n_steps=1), preview=SampleConfig(steps=2))
    samples = run.directory / "samples"
    samples.mkdir()
    (samples / "step-000000_p0.mp4").write_bytes(b"a clip of before")
    (samples / "index.json").write_bytes(damaged)
    control = Steered()
    control.answers = {"step-000001_p0": {"file": "samples/step-000001_p0.mp4"}}
    (ready,) = of(train_here(run, control), SampleReady)
    assert ready.step == 1
    assert json.loads((samples / "index.json").read_text()) == [
        {"id": f"step-00000{step}_p0", "step": step, "file": f"samples/step-00000{step}_p0.mp4"} for step in (0, 1)
    ]


def test_a_parent_that_needs_room_is_asked_again_once_there_is_room(tmp_path: Path) -> None:
    run = make_run(tmp_path, train=steady(steps=1, preview_every_n_steps=1), preview=SampleConfig(steps=2))
    control = Steered()
    control.answers = {name: {"needs_room": True} for name in ("step-000000_p0", "step-000001_p0")}
    wanted = of(train_here(run, control), DecodeWanted)
    assert [w.made_room for w in wanted] == [False, True, False, True]
    assert read_status(run.directory).state == "done"


def test_no_room_is_made_where_the_computer_has_none_for_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A computer whose own memory is full ends processes, or crawls; a preview is not worth that."""
    reserve = 2 << 30
    monkeypatch.setattr(preview, "bytes_to_offload", lambda _model: 14 << 30)
    monkeypatch.setattr(preview, "host_bytes", lambda: (14 << 30) + reserve - 1)
    run = make_run(tmp_path, train=steady(steps=1, preview_every_n_steps=1), preview=SampleConfig(steps=2))
    control = Steered()
    control.answers = {name: {"needs_room": True} for name in ("step-000000_p0", "step-000001_p0")}
    events = train_here(run, control)
    assert [wanted.made_room for wanted in of(events, DecodeWanted)] == [False, False]
    said = [note.text for note in of(events, Note) if "was not decoded" in note.text]
    assert said == [f"Preview step-00000{step}_p0 was not decoded: {preview.NO_ROOM}" for step in (0, 1)]
    assert read_status(run.directory).state == "done"
    monkeypatch.setattr(preview, "host_bytes", lambda: (14 << 30) + reserve)
    other = make_run(tmp_path / "other", train=steady(steps=1, preview_every_n_steps=1), preview=SampleConfig(steps=2))
    assert [wanted.made_room for wanted in of(train_here(other, control), DecodeWanted)] == [False, True, False, True]


def test_what_the_allocator_keeps_is_given_back_before_a_decode_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The parent judges by what the driver calls free, and memory cached by this process is not."""
    order: list[str] = []
    monkeypatch.setattr(preview, "empty_cache", lambda: order.append("released"))
    run = make_run(tmp_path, train=steady(steps=1, preview_every_n_steps=1), preview=SampleConfig(steps=2))
    train_here(run, Steered(), emit=lambda e: order.append("asked") if isinstance(e, DecodeWanted) else None)
    assert order == ["released", "asked"] * 2


def test_weights_that_cannot_come_home_end_the_run_with_its_last_step_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextmanager
    def filled_meanwhile(_model: object) -> Iterator[None]:
        yield
        raise OutOfMemory("The model does not fit again onto cuda:0.")

    monkeypatch.setattr(preview, "offloaded_model", filled_meanwhile)
    run = make_run(
        tmp_path, train=steady(save_every_n_steps=100, preview_every_n_steps=4), preview=SampleConfig(steps=2)
    )
    control = Steered()
    control.answers = {"step-000004_p0": {"needs_room": True}}
    with pytest.raises(OutOfMemory, match="does not fit again"):
        train_here(run, control)
    status = read_status(run.directory)
    assert (status.state, status.step) == ("failed", 4)
    monkeypatch.undo()
    train_here(run, Steered())
    assert read_status(run.directory).state == "done"
