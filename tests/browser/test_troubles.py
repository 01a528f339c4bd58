"""What a user sees when something breaks, forced one after the other on a real run: a worker that the system kills, a
server that is gone, a run that somebody deletes. What each sentence of a run that failed looks like, and clips that
cannot be read.

With WAN_TRAINER_UPDATE=1 the pictures of the shipped frontend become docs/journey/trouble_*.jpg.
"""

from __future__ import annotations

import dataclasses
import errno
import io
import os
import shutil
import signal
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import psutil
import pytest
import torch
from environment import CACHE, ROOT
from PIL import Image
from shapeworld.files import write_world

from tests.browser.conftest import shows, tiny_canvas
from tests.browser.runs_on_page import Runs, whole_run
from tests.browser.test_captions import GRAPH as DATASET_GRAPH
from tests.browser.test_cards import PICTURES, queue
from tests.browser.test_panel import PANEL, TAB, open_run
from tests.browser.test_panel_trains import wait_for_points
from wan_core.errors import OutOfMemory
from wan_core.files import atomic_write_json
from wan_core.job import DataConfig, RunConfig, disk_sentence
from wan_core.job.remarks import not_finite_error
from wan_core.load import ModelPlan
from wan_core.session.full_memory import memory_named
from wan_core.train import NotFinite, SaveStore, TrainConfig

pytestmark = [pytest.mark.browser, pytest.mark.soak]

RUN = ".wan-run"
"""the card of a run in the tab"""
SAID = ".wan-runs .wan-said"
"""what the tab says of what was done"""


FULL_CARD = {
    "cuda:0": {
        "now": int(13.2 * 2**30),
        "peak": int(13.2 * 2**30),
        "predicted": int(14.2 * 2**30),
        "total": int(15.7 * 2**30),
    }
}
"""of a card of 15.70 GiB of which other programs took two meanwhile"""


def keep(canvas: Any, frontend: str, name: str, last: str = ".wan-panel .wan-legend", of: str = ".wan-panel") -> None:
    """Take a picture of the page, and one of the panel, or card, down to its part `last`."""
    if of not in (RUN, SAID):
        canvas.show(last)
    canvas.page.mouse.move(5, 5)
    canvas.page.wait_for_timeout(500)
    canvas.screenshot(f"trouble-{name}")
    if frontend != "shipped" or not os.environ.get("WAN_TRAINER_UPDATE"):
        return
    whole, part = (canvas.page.locator(one).first.bounding_box() for one in (of, last))
    shot = canvas.page.screenshot(clip={**whole, "height": part["y"] + part["height"] + 4 - whole["y"]})
    with Image.open(io.BytesIO(shot)) as picture:
        picture.convert("RGB").save(ROOT / "docs" / "journey" / f"trouble_{name}.jpg", quality=92, optimize=True)


@pytest.fixture
def high(canvas: Any) -> Any:
    """A page in which a whole panel is seen."""
    canvas.page.set_viewport_size({"width": 1280, "height": 1700})
    return canvas


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such signal")
def test_each_trouble_is_seen_and_overcome(high: Any, workflows: dict[str, Any], frontend: str) -> None:
    canvas = high
    facts = {"run_name": "troubles", "steps": 4000, "save_every_n_steps": 10, "preview_every_n_steps": 0}
    canvas.load(tiny_canvas(workflows["08_smoke_test"], TrainLoRA=facts))
    canvas.watch()
    canvas.focus("TrainLoRA")
    canvas.page.get_by_role("button", name="Run", exact=True).first.click()
    wait_for_points(canvas, 24)

    for worker in psutil.Process(canvas.server.pid).children():
        worker.send_signal(signal.SIGKILL)
    box = canvas.page.locator(".wan-trouble")
    shows(
        box,
        "Failed after step",
        "The training process was killed from outside, for an unknown reason.",
        "were free at the last measurement",
        "Retry from step",
    )
    assert len(box.locator("li").all()) == 4, "what helps is a list"
    dialogs = canvas.page.get_by_role("dialog")
    if dialogs.count():
        canvas.page.keyboard.press("Escape")  # ComfyUI's own, about the same
    canvas.focus("TrainLoRA")
    box.get_by_role("button", name="Show log").click()
    shows(box.locator(".wan-log"), "saved step 10", "the training process was ended by signal 9")
    assert not canvas.page.get_by_text("left", exact=True).is_visible(), "nothing is left of a run that ended"
    keep(canvas, frontend, "killed")

    reached = canvas.script(f"() => {PANEL}.history.newest.step")
    box.get_by_role("button", name="Retry from step").click()
    canvas.page.wait_for_function(f"step => {PANEL}.history.newest?.step > step", arg=reached)
    assert not box.is_visible(), "it goes on"

    canvas.server.stop()
    shows(box, "ComfyUI does not answer.", "is kept.", "If ComfyUI ended, training ended with it", "Check now")
    assert not canvas.page.locator(".wan-status").is_visible(), "the box says it"
    assert not canvas.page.get_by_text("left", exact=True).is_visible(), "nobody knows how long it takes"
    keep(canvas, frontend, "server")
    canvas.server.start(canvas.server.port)
    # It looks by itself. A box that is hidden, as beside a worker that had time to stop, keeps its last words.
    shown = f"{PANEL}.trouble.element"
    canvas.page.wait_for_function(f"() => {shown}.hidden || !{shown}.innerText.includes('does not answer')")
    canvas.page.reload(wait_until="domcontentloaded")
    canvas.wait_until_ready()
    wait_for_points(canvas, 24)
    canvas.focus("TrainLoRA")
    canvas.screenshot("trouble-server-back")

    # Whether the worker had time to stop by itself decides which of the two it is.
    how = canvas.page.locator(".wan-panel").inner_text()
    assert "the parent process ended" in how or "Its process ended unexpectedly." in how
    canvas.page.get_by_role("button", name="Run", exact=True).first.click()
    canvas.page.wait_for_function(f"step => {PANEL}.history.newest?.step > step", arg=reached + 10)
    canvas.page.locator(".wan-panel").get_by_role("button", name="Stop and keep").click()
    shows(canvas.page.locator(".wan-status"), "stopped")
    while canvas.server.get("/queue")["queue_running"]:  # the graph goes on with a clip of the run
        canvas.page.wait_for_timeout(200)
    canvas.page.locator(TAB).first.click()
    card = open_run(canvas.page, "troubles")
    chip = card.locator(".wan-run-head .wan-chip")
    assert chip.evaluate("one => one.scrollWidth <= one.clientWidth"), f"{chip.inner_text()} is cut off"
    card.get_by_role("button", name="Delete …").click()
    question = card.get_by_role("alertdialog")
    shows(question, "What is kept: cached clips, your own files, and LoRAs in the loader lists.")
    shows(question, "Delete the run “troubles”", "This cannot be undone")
    for_good = question.get_by_role("button", name="Delete", exact=True)
    assert for_good.evaluate("one => getComputedStyle(one).backgroundColor") == "rgb(220, 38, 38)"
    keep(canvas, frontend, "deleted", f"{RUN} [role=alertdialog]", RUN)
    for_good.click()
    canvas.page.wait_for_function(f"() => !{PANEL}.run")
    canvas.page.locator(TAB).first.click()
    shows(canvas.page.locator(".wan-status"), "Starts with Run.")
    canvas.page.locator(TAB).first.click()
    said = canvas.page.locator(SAID)
    shows(
        said,
        "Deleted “troubles”. Its saved steps are deleted",
        "its LoRAs in the loader lists and the cached clips are kept",
    )
    left = [path.name for path in (canvas.server.base / "models" / "loras" / "wan_trainer").glob("troubles*")]
    assert "troubles_000010.safetensors" in left, "a new run can begin with what was trained"
    keep(canvas, frontend, "deleted_after", SAID, SAID)


def sentence_of(error: BaseException, config: RunConfig) -> str:
    """What the engine says of a device that is full."""
    with pytest.raises(OutOfMemory) as said, memory_named(config, gpus=1, predicted=lambda: int(14.2 * 2**30)):
        raise error
    return str(said.value)


def saved_at(step: int) -> SaveStore:
    """Returns what stands for the saved steps of a run whose last good one is of `step`."""
    return cast(SaveStore, SimpleNamespace(latest=lambda _job: SimpleNamespace(step=step)))


def full_disk(path: Path, config: RunConfig, monkeypatch: pytest.MonkeyPatch) -> str:
    """What the command line says of a disk with 40 MiB left, beside a saved step of 60."""
    save = path.parent / "saves" / "step-000060"
    save.mkdir(parents=True)
    with open(save / "lora.safetensors", "wb") as file:
        file.truncate(60 << 20)
    whole = dataclasses.replace(config, train=TrainConfig(steps=150, save_every_n_steps=10))
    atomic_write_json(path.parent / "run.json", whole.to_dict())
    with monkeypatch.context() as full:
        full.setattr(shutil, "disk_usage", lambda _folder: shutil._ntuple_diskusage(1 << 40, (1 << 40) - 1, 40 << 20))  # type: ignore[attr-defined]
        return disk_sentence(OSError(errno.ENOSPC, "No space left on device", str(path)))


def first_words(reason: str) -> str:
    """Returns the first sentence of a failure, which no button says."""
    return reason.split(". ", maxsplit=1)[0]


def test_the_sentence_of_each_failure_is_whole(
    high: Any, smoke: dict[str, Any], frontend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    canvas = high
    model = ModelPlan(base_file="diffusion_models:wan.safetensors")
    config = RunConfig(run_name="r", model=model, data=DataConfig(fingerprint="0" * 64))
    full = (
        "CUDA out of memory. Tried to allocate 512.00 MiB. GPU 0 has a total capacity of 15.70 GiB of which 204.50 MiB "
        "is free. Including non-PyTorch memory, this process has 13.20 GiB memory in use."
    )
    not_finite = NotFinite("20 steps in a row gave no usable loss (NaN or infinity), the last one step 64.")
    reasons = {
        "memory": sentence_of(torch.OutOfMemoryError(full), config),
        "ram": sentence_of(MemoryError(), config),
        "not_finite": str(not_finite_error(not_finite, 44, saved_at(40), config)),
        "disk": full_disk(tmp_path / "output" / "wan_trainer" / "smoke_test" / "status.json", config, monkeypatch),
    }
    lines = whole_run(64, 150, 10)
    bad = [{"event": "skipped", "step": n, "reason": "the loss is not finite", "in_a_row": 1} for n in range(45, 65)]
    runs = Runs(CACHE / "clips" / "carphone.mp4")
    runs.serve(canvas.page)
    for name, reason in reasons.items():
        told = [*(line for line in lines if line["step"] <= 44), *bad] if name == "not_finite" else lines
        if name == "memory":  # of the card of 15.70 GiB in the sentence
            told = [{**line, "memory": FULL_CARD} for line in lines]
        step = 40 if name == "not_finite" else 60
        facts = {"updated": time.time() - 150, **({"memory": FULL_CARD} if name == "memory" else {})}
        runs.add("smoke_test", told, state="failed", step=step, reached=64, reason=reason, **facts)
        canvas.load(smoke)
        canvas.page.reload(wait_until="domcontentloaded")
        canvas.wait_until_ready()
        canvas.focus("TrainLoRA")
        box = canvas.page.locator(".wan-trouble")
        kept = f"Failed after step 64 of 150. Saved step {step} is "
        kept += "the last good one and is kept." if name == "not_finite" else "kept, later steps are lost."
        shows(box, first_words(reason), kept)
        assert not canvas.page.locator(".wan-status").is_visible(), "the box says that it failed, and after which step"
        assert not any(words in box.inner_text() for words in ("press Run again", "Saved steps are kept"))
        assert box.inner_text().count("last good") == (name == "not_finite"), "it is said once"
        helps = canvas.page.locator(".wan-trouble li").all_inner_texts()
        assert len(helps) >= 2 if "What helps" in reason else not helps
        assert box.get_by_role("button", name="Retry").is_visible() is (name != "not_finite")
        then = {
            "not_finite": "What helps, best first; then press Run, which starts a new run at step 0:",
            "memory": "Or change settings and press Run, which starts a new run at step 0:",
            "ram": "Or change settings and press Run, which starts a new run at step 0:",
            "disk": "What helps, best first; then press “Retry from step 60”:",
        }
        shows(box, then[name])
        if name != "disk":
            shows(box, f"A new run can start with the LoRA of saved step {step}")
        keep(canvas, frontend, name)
        if name == "memory":
            canvas.page.locator(TAB).first.click()
            card = open_run(canvas.page, "smoke_test")
            shows(card, kept, "Retry from step 60", "Or open its workflow, change settings there and press Run")
            keep(canvas, frontend, "tab", f"{RUN} .wan-trouble", RUN)
            canvas.page.locator(TAB).first.click()


def test_clips_that_cannot_be_read_are_marked(high: Any, frontend: str) -> None:
    """A damaged clip, one without a caption and one whose caption is not UTF-8, beside two good ones."""
    canvas = high
    folder = Path(canvas.server.base) / "input" / "troubled"
    try:
        drawn = write_world(folder, 5, seed=7)  # no face of anybody stands in a picture of the docs
        names = ("dawn", "dusk", "no_caption", "caption_not_utf8", "damaged")
        clips = [clip.rename(clip.with_stem(name)) for clip, name in zip(drawn, names, strict=True)]
        for clip, before in zip(clips, drawn, strict=True):
            before.with_suffix(".txt").rename(clip.with_suffix(".txt"))
        clips[2].with_suffix(".txt").unlink()
        clips[3].with_suffix(".txt").write_bytes(b"caf\xe9")
        clips[4].write_bytes(clips[4].read_bytes()[:300])
        dataset = DATASET_GRAPH["3"]
        canvas.load_api({**DATASET_GRAPH, "3": {**dataset, "inputs": {**dataset["inputs"], "folder": folder.name}}})
        canvas.script("() => window.app.graph._nodes.find(n => n.type === 'WanVideoDataset').setSize([420, 900])")
        queue(canvas)
        canvas.page.wait_for_function(PICTURES)
        card = canvas.page.locator('.wan-card[data-card="dataset"]')
        shows(
            card,
            "damaged.mp4",
            "no_caption",
            "caption_not_utf8",
            "Skip these files",
            "They are kept, and not trained.",
        )
        gap = (
            """sheet => sheet.getBoundingClientRect().bottom - sheet.lastElementChild.getBoundingClientRect().bottom"""
        )
        assert card.locator(".wan-sheet").evaluate(gap) < 8, "there is nothing below the pictures"
        keep(canvas, frontend, "bad_clips", '.wan-card[data-card="dataset"] .wan-buckets', ".wan-card")
    finally:
        shutil.rmtree(folder)
