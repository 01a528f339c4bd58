"""Clips measured in the video process: kept by file, resumed after a stop, and reported."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.support.footage import clean, faulty, write
from wan_core.advice import advice_on, measured_clips, remark_facts
from wan_core.dataset import Dataset, DatasetConfig, KnownFiles, ScanContext, dataset_review, scan_folder
from wan_core.errors import Stopped
from wan_core.files import digest_file
from wan_core.model import WAN21_LATENTS
from wan_core.video import VideoProcess

SIZE = (160, 96)
CONFIG = DatasetConfig(folder="clips", width=160, height=96, num_frames=17, trigger_word="ohwx")
CAPTIONS = {
    "barred": "ohwx, a red dog runs on a beach",
    "started": "ohwx, a red dog sleeps",
    "plain": "ohwx, the dog in red grass",
    "twin": "ohwx, a red dog jumps",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("clips")
    drawn = {
        "barred": faulty("letterbox", "pan", 5, 1.3, SIZE),
        "started": faulty("still start", "pan", 5, 2.0, SIZE),  # still for 1.13 s
        "plain": clean("pan", 5, 1.3, SIZE),
        "twin": clean("static camera", 6, 1.3, SIZE),
    }
    for name, clip in drawn.items():
        write(clip, made / f"{name}.mp4")
        (made / f"{name}.txt").write_text(CAPTIONS[name], encoding="utf-8")
    return made


def scanned(folder: Path, context: ScanContext) -> Dataset:
    return Dataset((scan_folder(CONFIG, folder, context),))


def test_findings_and_advice_name_the_clips(folder: Path, tmp_path: Path, video: VideoProcess) -> None:
    context = ScanContext(video, known=KnownFiles(tmp_path))
    dataset = scanned(folder, context)
    measured = measured_clips(dataset, context)
    review = dataset_review(dataset, video=video, digest_of=digest_file, space=WAN21_LATENTS)
    found = {fact["kind"]: fact["names"] for fact in remark_facts(advice_on(review, measured, step_s=2.0))}
    assert found["bars"] == ["barred.mp4"]
    assert found["still"] == ["started.mp4"]  # for all of the 17 frames that are trained; later it moves
    assert found["every_caption"] == ["red", "dog"]  # without the trigger word and words such as "a"
    assert "few_files" in found
    assert not {"cuts", "combed", "flicker", "repeated"} & found.keys()
    text = "\n".join(remark.text for remark in advice_on(review, measured, step_s=2.0))
    assert "an epoch of 4 steps takes about 8 s on this card, at 2 s a step" in text
    assert "1,500 steps, as in a new run, train each 375 times" in text  # 1500 / 4 clips
    assert "barred.mp4: ffmpeg -vf crop=160:" in text


def test_a_stopped_measuring_goes_on_where_it_was(folder: Path, tmp_path: Path, video: VideoProcess) -> None:
    known = KnownFiles(tmp_path)
    stop = False

    def progress(done: int, total: int, name: str) -> None:
        nonlocal stop
        stop = done == 2

    dataset = scanned(folder, ScanContext(video, known=known))
    with pytest.raises(Stopped):
        measured_clips(dataset, ScanContext(video, progress=progress, should_stop=lambda: stop, known=known))
    known.save()
    again = KnownFiles(tmp_path)
    with VideoProcess() as unused:
        # No time at all: only what is kept is known.
        kept = measured_clips(dataset, ScanContext(unused, known=again), allowed_s=-1)
        assert unused.pid is None
    assert (len(kept.shots), kept.left) == (2, 2)
    complete = measured_clips(dataset, ScanContext(video, known=again))
    assert (len(complete.shots), complete.left) == (4, 0)


def measured_again_and_again(video: VideoProcess, path: Path, duration_s: float) -> None:
    """A clip may be measured before the stop is seen."""
    while True:
        video.measure(path, duration_s=duration_s)


def test_a_stop_inside_a_clip_ends_within_a_second(tmp_path: Path) -> None:
    began = 0.0
    with VideoProcess(lambda: bool(began) and time.monotonic() > began + 0.05) as video:
        long = tmp_path / "long.mp4"
        write(clean("static camera", 1, 40.0, (64, 48)), long)
        info = video.probe(long)
        began = time.monotonic()
        with pytest.raises(Stopped):
            measured_again_and_again(video, long, info.duration_s)
        assert time.monotonic() - began < 1.0
        assert video.pid is None


def test_shots_are_measured_between_their_cuts(tmp_path: Path, video: VideoProcess) -> None:
    clip = faulty("cuts", "pan", 5, 2.0, SIZE)
    path = write(clip, tmp_path / "cuts.mp4")
    cuts_s = clip.about["cuts"]
    (complete,) = video.measure(path, duration_s=2.0)
    shots = video.measure(path, duration_s=2.0, cuts_s=cuts_s)
    assert complete.cuts_s == pytest.approx(tuple(cuts_s), abs=0.001)
    assert [shot.start_s for shot in shots] == pytest.approx([0.0, *cuts_s], abs=0.001)
    assert all(shot.cuts_s == () for shot in shots)


@pytest.mark.parametrize("mirrored", [False, True])
def test_bars_of_a_turned_clip_are_where_they_are_shown(mirrored: bool) -> None:
    from wan_core.video.measuring import as_shown
    from wan_core.video.picture import Orientation

    # Left of the stored picture is at the bottom after a quarter counter-clockwise.
    assert as_shown((0.1, 0.0, 1.0, 0.8), Orientation(1, mirrored)) == pytest.approx(
        (0.2, 0.0, 1.0, 0.9) if mirrored else (0.0, 0.0, 0.8, 0.9)
    )
