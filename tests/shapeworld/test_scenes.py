"""Scenes and their files: what a caption says is what is drawn, and what is drawn is what a file holds."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch

from shapeworld.__main__ import main
from shapeworld.concept import load_concept
from shapeworld.draw import COLOURS, DIRECTIONS, SHAPES, SIZE, cover, render, walk
from shapeworld.files import as_frames, balanced_words, drawn, read_clip, write_clip, write_concept, write_world
from shapeworld.scenes import CAPTIONS, Words, all_words, captioned_scene

CONCEPTS = Path(__file__).parent / "concepts"


def test_a_walk_has_equal_steps_and_both_ends() -> None:
    points = walk(((0.0, 0.0), (1.0, 0.0), (1.0, 3.0)), 5)
    assert points == [(0.0, 0.0), (1.0, 0.0), (1.0, 1.0), (1.0, 2.0), (1.0, 3.0)]


@pytest.mark.parametrize(("shape", "area"), [("circle", 2.54), ("square", 2.51), ("triangle", 1.72), ("ring", 2.35)])
def test_a_shape_covers_its_area_around_its_centre(shape: str, area: float) -> None:
    alpha = cover(SHAPES[shape], [(5.0, -3.0)], 12.0)[0]
    assert alpha.sum().item() / 12.0**2 == pytest.approx(area, rel=0.02)
    axis = torch.arange(SIZE) - (SIZE - 1) / 2
    assert (alpha.sum(0) @ axis / alpha.sum()).item() == pytest.approx(5.0, abs=0.1)
    middle = (alpha.sum(1) @ axis / alpha.sum()).item()
    assert middle == pytest.approx(-1.2 if shape == "triangle" else -3.0, abs=0.1)


def test_a_ring_has_a_hole() -> None:
    alpha = cover(SHAPES["ring"], [(0.5, 0.5)], 12.0)[0]
    assert (alpha[32, 32].item(), alpha[32, 41].item()) == (0.0, 1.0)


@pytest.mark.parametrize("words", all_words()[::5], ids=lambda words: words.caption)
def test_a_scene_shows_what_its_caption_says(words: Words) -> None:
    scene = captioned_scene(words, 1)
    assert scene.outline == SHAPES[words.shape]
    assert scene == captioned_scene(words, 1) != captioned_scene(words, 2)
    frames = render(scene)
    assert frames.shape == (9, SIZE, SIZE, 3)
    x, y = (round(value + (SIZE - 1) / 2) for value in scene.centres[4])
    seen = frames[4, y, x + round(0.75 * scene.radius) if words.shape == "ring" else x]
    torch.testing.assert_close(seen, torch.tensor(COLOURS[words.colour], dtype=torch.float32), atol=34, rtol=0)
    (x0, y0), (x1, y1) = DIRECTIONS[words.direction]
    went = np.subtract(scene.centres[-1], scene.centres[0])
    assert np.sign(went).tolist() == np.sign([x1 - x0, y1 - y0]).tolist()
    assert np.abs(went).max() > 15


def test_whatever_the_seed_nothing_leaves_the_picture() -> None:
    for seed, words in enumerate(all_words()):
        scene = captioned_scene(words, seed)
        assert max(abs(value) for centre in scene.centres for value in centre) + scene.radius <= SIZE / 2 - 1.9


@pytest.mark.parametrize("count", [24, 96, 120])
def test_each_word_is_drawn_about_equally_often(count: int) -> None:
    words = balanced_words(count, 3)
    assert len(words) == count
    for kind, names in (("colour", COLOURS), ("shape", SHAPES), ("direction", DIRECTIONS)):
        used = Counter(getattr(chosen, kind) for chosen in words)
        assert set(used) == set(names)
        assert max(used.values()) - min(used.values()) <= 1
    assert len({chosen.caption for chosen in words[:96]}) == min(count, 96)


def test_a_clip_comes_back_from_h264_nearly_as_drawn(tmp_path: Path) -> None:
    frames = drawn(captioned_scene(all_words()[0], 1, 17))
    file = tmp_path / "clip.mp4"
    write_clip(file, torch.from_numpy(frames))
    back = read_clip(file)
    assert (back.shape, back.dtype) == ((17, SIZE, SIZE, 3), np.uint8)
    assert np.abs(back.astype(float) - frames).mean() < 4

    import av

    with av.open(str(file)) as video:
        stream = video.streams.video[0]
        assert (stream.codec_context.name, stream.codec_context.pix_fmt) == ("h264", "yuv420p")
        assert stream.average_rate == 16
    content = file.read_bytes()
    assert content.index(b"moov") < content.index(b"mdat"), "the index comes first"


def test_a_clip_is_the_same_file_wherever_its_frames_lie_in_memory(tmp_path: Path) -> None:
    corners = np.random.default_rng(0).integers(0, 256, (9, 8, 8, 3), np.uint8)
    frames = np.kron(corners, np.ones((1, 8, 8, 1), np.uint8))
    files = set()
    for round_ in range(8):
        room = np.empty(frames.size + 64, np.uint8)[round_ : round_ + frames.size].reshape(frames.shape)
        room[:] = frames
        write_clip(tmp_path / "clip.mp4", room)
        files.add((tmp_path / "clip.mp4").read_bytes())
    assert len(files) == 1


@pytest.mark.parametrize(
    "frames",
    [np.zeros((9, 64, 64), np.uint8), np.zeros((9, 64, 64, 3), np.float32), np.zeros((0, 64, 64, 3), np.uint8)],
    ids=["no channels", "float", "empty"],
)
def test_what_is_not_a_clip_is_refused(frames: np.ndarray, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"Pass uint8 \(T, H, W, 3\)"):
        as_frames(frames)
    with pytest.raises(ValueError, match=r"Pass uint8"):
        write_clip(tmp_path / "clip.mp4", frames)


def test_an_odd_edge_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="even sizes"):
        write_clip(tmp_path / "clip.mp4", np.zeros((9, 63, 64, 3), np.uint8))


def test_a_folder_of_clips_is_a_dataset(tmp_path: Path) -> None:
    files = write_world(tmp_path / "a", 6, 1)
    captions = [file.with_suffix(".txt").read_text(encoding="utf-8").strip() for file in files]
    assert set(captions) <= set(CAPTIONS)
    assert sorted(path.suffix for path in (tmp_path / "a").iterdir()) == [".mp4"] * 6 + [".txt"] * 6
    again = write_world(tmp_path / "b", 6, 1)
    assert [file.name for file in again] == [file.name for file in files]
    # What is drawn is the same to the bit. On its way through a file FFmpeg's converter rounds a few values by one
    # otherwise, as its buffers happen to lie in memory.
    assert np.array_equal(*(drawn(captioned_scene(balanced_words(6, 1)[5], 7, 9)) for _ in "ab"))
    assert _largest_difference(again[5], files[5]) <= 2
    other = write_world(tmp_path / "c", 6, 2)
    assert _largest_difference(other[5], files[5]) > 20


def _largest_difference(one: Path, other: Path) -> int:
    return int(np.abs(read_clip(one).astype(int) - read_clip(other).astype(int)).max())


def test_a_concept_has_one_caption_and_many_clips(tmp_path: Path) -> None:
    star = load_concept(CONCEPTS / "bouncing_star.json")
    files = write_concept(tmp_path, star, count=3, frames=13)
    assert {file.with_suffix(".txt").read_text(encoding="utf-8") for file in files} == {"an orange star bouncing\n"}
    clips = [read_clip(file) for file in files]
    assert clips[0].shape == (13, SIZE, SIZE, 3)
    assert not np.array_equal(clips[0], clips[1])


def test_the_commands_write_clips_and_judge_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    star = str(CONCEPTS / "bouncing_star.json")
    assert main(["world", "--out", str(tmp_path / "world"), "--count", "2", "--seed", "4"]) == 0
    assert main(["concept", star, "--out", str(tmp_path / "star"), "--count", "1"]) == 0
    files = [*sorted((tmp_path / "world").glob("*.mp4")), *(tmp_path / "star").glob("*.mp4")]
    capsys.readouterr()
    assert main(["judge", *map(str, files), "--concept", star]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert rows[0][:5] == ["clip", "colour", "shape", "path", "sharpness"]
    for row, words in zip(rows[1:], balanced_words(2, 4), strict=False):
        assert row[1:4] == [words.colour, words.shape, words.direction]
    assert rows[3][1:4] == ["#fa8c1e", "bouncing_star", "bouncing_star"]
