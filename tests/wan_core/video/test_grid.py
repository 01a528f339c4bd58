"""Many clips side by side in one: each in its place and in step, with labels, and with the workflow inside."""

from __future__ import annotations

from pathlib import Path

import av
import numpy as np
import pytest

from wan_core.video import VideoProcess, grid_picture
from wan_core.video.grid_picture import GridPicture, Place

COLOURS = {"red": (200, 20, 20), "green": (20, 160, 20), "blue": (20, 20, 200), "grey": (120, 120, 120)}


def inside(frame: np.ndarray, place: Place) -> np.ndarray:
    """The middle of a place."""
    x, y = place.x + place.width // 4, place.y + place.height // 4
    return frame[y : y + place.height // 2, x : x + place.width // 2].reshape(-1, 3).mean(axis=0)


@pytest.mark.parametrize("kind", ["mp4", "webm"])
def test_each_clip_plays_in_its_place_and_the_shorter_one_keeps_its_last_frame(tmp_path: Path, kind: str) -> None:
    picture = grid_picture([(64, 48), (48, 64)], ["base model", "step 2\nstrength 1"], ["a\nseed 1", "b"], longest=500)
    files = [[tmp_path / f"{row}{column}.mp4" for column in range(2)] for row in range(2)]
    names = [["red", "green"], ["blue", "grey"]]
    with VideoProcess() as video:
        for row, (width, height) in enumerate([(64, 48), (48, 64)]):
            for column in range(2):
                clip = np.zeros((6 if row else 3, height, width, 3), np.uint8)
                clip[:2], clip[2:] = (0, 0, 0), COLOURS[names[row][column]]
                video.write(files[row][column], clip, 16.0, metadata={"prompt": '{"1": "one clip"}'})
        movie = tmp_path / f"grid.{kind}"
        video.write_grid(movie, picture, files, 16.0, 6, {"prompt": '{"1": {}}', "workflow": '{"nodes": []}'})
    with av.open(str(movie)) as opened:
        texts = {name.lower(): text for name, text in opened.metadata.items()}
        frames = [frame.to_ndarray(format="rgb24") for frame in opened.decode(video=0)]
        assert opened.streams.video[0].average_rate == 16
    with av.open(str(files[0][0])) as opened:
        assert opened.metadata["prompt"] == '{"1": "one clip"}'
    assert (texts["prompt"], texts["workflow"]) == ('{"1": {}}', '{"nodes": []}')
    assert len(frames) == 6
    assert frames[0].shape == picture.canvas.shape
    for row in range(2):
        for column in range(2):
            place, colour = picture.places[row][column], COLOURS[names[row][column]]
            assert np.abs(inside(frames[1], place)).max() < 12
            for frame in (frames[2], frames[5]):
                assert np.abs(inside(frame, place) - colour).max() < 12, (row, column)
    labels = frames[5].astype(int)[: picture.places[0][0].y].max(axis=(1, 2))
    assert labels.max() > 200, "the labels are there"


def test_no_grid_is_larger_than_asked_for_and_no_clip_than_it_is() -> None:
    sizes = [(832, 480)] * 3
    columns = ["base model", *(f"step {n}\nstrength 1" for n in range(250, 2500, 250))]
    rows = [f"a very long prompt that goes on and on about what the clip of row {n} shows\nseed {n}" for n in range(3)]
    large, small = (grid_picture(sizes, columns, rows, longest=longest) for longest in (20000, 2560))
    assert large.places[0][0].width == 832
    assert max(small.canvas.shape) <= 2560
    assert not any(side % 2 for side in small.canvas.shape[:2]), "yuv420p takes even sizes"
    for picture in (large, small):
        apart(picture)


def apart(picture: GridPicture) -> None:
    """No clip lies on another, on a label, or outside."""
    taken = np.zeros(picture.canvas.shape[:2], bool)
    taken |= picture.canvas.max(axis=2) > 100
    for place in (place for row in picture.places for place in row):
        spot = taken[place.y : place.y + place.height, place.x : place.x + place.width]
        assert spot.shape == (place.height, place.width)
        assert not spot.any()
        spot[:] = True
