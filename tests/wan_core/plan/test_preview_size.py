"""Previews as large as ComfyUI's template makes clips, with as many frames as fit beside what training takes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from tests.support.tiny_run import FAMILY, make_run
from wan_core.job import is_free_of_clips, sized_as_template
from wan_core.job.open import open_run
from wan_core.placement import FreeMemory, StepShape
from wan_core.plan import plan_memory, report_of
from wan_core.plan.here import with_fitting_preview
from wan_core.plan.workload import Workload, workload_of_run
from wan_core.sampler import AS_TEMPLATE, SampleConfig
from wan_core.train import TrainConfig

GIB = 1 << 30
TASKS: tuple[tuple[str, float | None], ...] = (("t2v", None), ("t2v", 0.875), ("i2v", None), ("ti2v", None))


def job(tmp_path: Path) -> Workload:
    """A tiny training with a preview far larger than its clips."""
    run = make_run(tmp_path, train=TrainConfig(steps=2, memory="manual", eval_items=0))
    found = workload_of_run(open_run(run.directory, run.roots))
    preview = StepShape(batch_size=1, latent_frames=21, latent_height=80, latent_width=80)
    return replace(found, preview=preview, preview_gives_way=True)


def test_a_preview_has_as_many_frames_as_fit_with_the_measures_training_takes_without_it(tmp_path: Path) -> None:
    asked = job(tmp_path)
    shape = asked.shape()
    measures = plan_memory(replace(asked, preview=None), FreeMemory(devices={})).measures

    def needs(frames: int) -> int:
        one = replace(asked, preview=StepShape(batch_size=1, latent_frames=frames, latent_height=80, latent_width=80))
        return one.estimate(shape, measures).devices["cpu"].peak

    assert needs(1) < needs(8) < needs(21)
    for room, frames in ((needs(21), 21), (needs(8), 8), (needs(8) - 1, 7), (needs(1), 1)):
        found = with_fitting_preview(asked, FreeMemory(devices={"cpu": room})).preview
        assert found is not None
        assert (found.latent_frames, found.latent_height) == (frames, 80)
    less = with_fitting_preview(asked, FreeMemory(devices={"cpu": needs(1) - 1})).preview
    assert less == replace(asked.step, batch_size=1), "where no frame fits it is as a clip"
    one = plan_memory(replace(asked, preview=replace(asked.preview, latent_frames=1)), FreeMemory(devices={}))
    assert report_of(one, None)["preview"] == "640x640x1"


def test_what_is_left_open_is_that_of_the_template_where_the_clip_need_not_start_from_a_training_clip(
    tmp_path: Path,
) -> None:
    known = job(tmp_path).file.variant
    one, pair, image, both = (replace(known, family=FAMILY[task], boundary=boundary) for task, boundary in TASKS)
    asked = SampleConfig(preview_size=AS_TEMPLATE)
    sizes = [sized_as_template(asked, variant) for variant in (one, pair, image, both)]
    assert [(size.width, size.height, size.num_frames) for size in sizes] == [
        *((832, 480, 33), (640, 640, 81), (512, 512, 33)),
        (1280, 704, 121),
    ]
    own = sized_as_template(SampleConfig(width=480, preview_size=AS_TEMPLATE), one)
    assert (own.width, own.height) == (480, 480)
    assert sized_as_template(SampleConfig(), one) == SampleConfig(), "runs of before mean the first clip"
    for variant, pictured, free in (
        *((one, False, True), (pair, False, True), (image, False, False), (image, True, True), (both, False, True)),
        (replace(known, family=FAMILY["control"]), True, False),
    ):
        assert is_free_of_clips(variant, pictured=pictured) is free, (variant.family.task, pictured)
    assert not is_free_of_clips(both, pictured=False, starts_from_clip=True)
