"""Measures of drawn shots: each planted fault is found with its numbers, and shots without a fault have none.

benchmarks/footage.py draws many, encodes them as H.264, and counts what is found, missed and false.
"""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.footage import CLEAN, Clip, clean, faulty
from wan_core.footage import Luma, Measures, Meter

SIZE = (320, 192)
BLACK = 16


def measured(clip: Clip) -> Measures:
    """Measures the pictures of a clip that is as wide as the small picture."""
    meter, end_s = Meter(), 0.0
    for number, picture in enumerate(clip.frames()):
        full = np.clip(picture, 0, 255)
        plane = (full * (219 / 255) + BLACK).round().astype(np.uint8)
        meter.add(Luma(number / clip.fps, plane, full.astype(np.uint8), BLACK))
        end_s = (number + 1) / clip.fps
    return meter.result(end_s)


def planted(fault: str, kind: str, seed: int = 5, seconds: float = 2.0) -> tuple[Clip, Measures]:
    clip = faulty(fault, kind, seed, seconds, SIZE)
    return clip, measured(clip)


@pytest.mark.parametrize("kind", ["pan", "static camera", "black background", "fade in", "flash"])
def test_a_shot_without_a_fault_has_no_findings(kind: str) -> None:
    assert kind in CLEAN
    shot = measured(clean(kind, 3, 1.6, SIZE))
    assert (shot.cuts_s, shot.combed, shot.bars, shot.overlay) == ((), 0.0, None, None)
    assert shot.repeated < 0.08
    assert shot.flicker < 0.02
    assert shot.still_start_s < 0.2
    assert shot.still_end_s < 0.2
    assert 0 < shot.blur_px < 1.4
    assert shot.end_s == pytest.approx(1.6, abs=0.03)


def test_more_motion_has_the_larger_measure() -> None:
    slow, fast = (measured(clean(kind, 3, 1.2, SIZE)).motion for kind in ("static camera", "pan"))
    assert 0 < slow < 0.2 < fast


@pytest.mark.parametrize(("fault", "start", "end"), [("letterbox", 1, 3), ("pillars", 0, 2)])
def test_bars_are_found_to_a_pixel(fault: str, start: int, end: int) -> None:
    clip, shot = planted(fault, "static camera", seconds=1.0)
    assert shot.bars is not None
    side = SIZE[0] if fault == "pillars" else SIZE[1]
    assert shot.bars[start] == pytest.approx(clip.about["bar"], abs=1 / side)
    assert shot.bars[end] == pytest.approx(1 - clip.about["bar"], abs=1 / side)


def test_a_logo_over_a_pan_is_found_in_its_place() -> None:
    clip, shot = planted("logo", "pan")
    assert shot.overlay is not None
    assert shot.overlay == pytest.approx(clip.about["place"], abs=0.06)
    assert shot.overlay_share == 1.0


def test_flicker_has_its_amplitude() -> None:
    clip, shot = planted("flicker", "pan")
    assert shot.flicker == pytest.approx(clip.about["size"], rel=0.5)


def test_film_shown_as_television_is_combed_in_two_of_five_frames() -> None:
    _, shot = planted("telecine", "fast pan")
    assert shot.combed == pytest.approx(0.4, abs=0.03)
    assert shot.pulldown


def test_interlaced_frames_are_all_combed() -> None:
    _, shot = planted("interlaced", "fast pan")
    assert shot.combed == 1.0
    assert not shot.pulldown


def test_so_are_those_whose_fields_are_less_than_a_pixel_apart_and_noise_is_not() -> None:
    _, slow = planted("interlaced", "talking head")
    assert slow.combed > 0.8
    _, noisy = planted("24 in 30", "grain")
    assert noisy.combed < 0.05


@pytest.mark.parametrize(("fault", "share"), [("24 in 30", 1 / 5), ("12 in 24", 1 / 2)])
def test_repeated_frames_are_counted(fault: str, share: float) -> None:
    _, shot = planted(fault, "pan")
    assert shot.repeated == pytest.approx(share, abs=0.04)


def test_blur_has_its_width() -> None:
    clip, shot = planted("blur", "static camera", seconds=1.0)
    assert shot.blur_px == pytest.approx(clip.about["sigma"], rel=0.35)


@pytest.mark.parametrize("kind", [pytest.param("pan", marks=pytest.mark.soak), "grain"])
def test_stillness_at_start_and_end_is_timed(kind: str) -> None:
    started, begins = planted("still start", kind)
    ended, ends = planted("still end", kind)
    assert begins.still_start_s == pytest.approx(started.about["seconds"], abs=0.15)
    assert ends.still_end_s == pytest.approx(ended.about["seconds"], abs=0.15)
    assert not begins.still
    assert planted("still", kind, seconds=1.0)[1].still


def test_hard_cuts_are_found_at_their_frames() -> None:
    clip, shot = planted("cuts", "pan")
    assert shot.cuts_s == pytest.approx(tuple(clip.about["cuts"]), abs=0.001)


def test_measures_survive_a_json_file() -> None:
    import json

    _, shot = planted("letterbox", "pan", seconds=0.6)
    assert Measures.from_dict(json.loads(json.dumps(shot.to_dict()))) == shot
