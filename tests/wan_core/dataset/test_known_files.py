"""What a scan learned of a file is not asked again until the file changes; captions are read each time."""

from __future__ import annotations

import dataclasses
import os
import shutil
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from wan_core.dataset import DatasetConfig, KnownFiles, ScanContext, ScanResult, known_files, scan_folder
from wan_core.dataset.near_copies import near_twins
from wan_core.video import VideoProcess
from wan_core.video.sources import TooSlowError

TICK_S = 0.02
"""Systems count the time of a file in steps of up to ten milliseconds."""
REQUESTS = ("probe", "cuts", "read")


class Folder:
    """A folder that is scanned by one process after the other, with a cache folder between them."""

    def __init__(self, folder: Path, cache: Path, video: VideoProcess, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.cache, self.video = folder, cache, video
        self.asked: list[str] = []
        for name in REQUESTS:
            monkeypatch.setattr(VideoProcess, name, self._counting(name, getattr(VideoProcess, name)))

    def _counting(self, name: str, real):
        def ask(video: VideoProcess, path: Path, **options: object):
            self.asked.append(f"{name} {path.name}")
            return real(video, path, **options)

        return ask

    def scan(self, **changes: object) -> tuple[ScanResult, list[str]]:
        """What is found, and what the video child was asked."""
        time.sleep(TICK_S)
        config = DatasetConfig(**{"width": 64, "height": 48, "num_frames": 9, "trigger_word": "x", **changes})
        known = KnownFiles(self.cache)
        found = scan_folder(config, self.folder, ScanContext(self.video, known=known))
        known.save()
        asked, self.asked = self.asked, []
        return found, asked


@pytest.fixture
def folder(tmp_path, make_clip, video, monkeypatch) -> Folder:
    """Two clips, a still and a file that is no clip."""
    for number, name in enumerate("ab"):
        make_clip(f"clips/{name}.mp4", num_frames=12 + number)
    ramp = np.linspace(0, 255, 64 * 48 * 3).reshape(48, 64, 3)
    Image.fromarray(ramp.astype(np.uint8)).save(tmp_path / "clips" / "c.png")
    (tmp_path / "clips" / "d.mp4").write_bytes(b"no clip")
    return Folder(tmp_path / "clips", tmp_path / "cache", video, monkeypatch)


def test_nothing_is_opened_again_and_the_same_is_found_the_unreadable_too(folder):
    first, asked = folder.scan()
    assert asked == ["probe a.mp4", "probe b.mp4", "probe c.png", "probe d.mp4"]
    again, asked = folder.scan()
    assert asked == []
    assert again == first
    assert [sample.info.look for sample in again.samples] == [sample.info.look for sample in first.samples]
    assert [dataclasses.astuple(sample.info) for sample in again.samples] == [
        dataclasses.astuple(sample.info) for sample in first.samples
    ]
    assert [rejected.name for rejected in again.rejected] == ["d.mp4"]


def test_an_edited_caption_is_read_and_no_clip_is_opened(folder):
    folder.scan()
    (folder.folder / "a.txt").write_text("another caption")
    found, asked = folder.scan()
    assert asked == []
    assert found.samples[0].caption == "x, another caption"


def test_other_settings_ask_nothing_new_of_a_file(folder):
    folder.scan()
    found, asked = folder.scan(num_frames=5, width=32, height=32)
    assert asked == []
    assert found.samples[0].bucket.num_frames == 5


@pytest.mark.skipif(os.name == "nt", reason="Windows keeps no time of the last change")
def test_a_file_in_the_place_of_another_is_opened_even_with_its_times(folder, make_clip):
    folder.scan()
    path, before = folder.folder / "a.mp4", (folder.folder / "a.mp4").stat()
    shutil.copyfile(folder.folder / "b.mp4", path)  # the same inode
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    found, asked = folder.scan()
    assert asked == ["probe a.mp4"]
    assert found.samples[0].info.num_frames == 13


def test_a_clip_that_was_mended_is_used(folder, make_clip):
    folder.scan()
    make_clip("clips/d.mp4", num_frames=14)
    found, asked = folder.scan()
    assert asked == ["probe d.mp4"]
    assert found.rejected == ()


def test_a_clip_that_took_too_long_is_asked_again(folder, monkeypatch):
    def slow(_video: VideoProcess, path: Path) -> None:
        raise TooSlowError(f"{path.name} took more than 10 s to read.")

    with monkeypatch.context() as busy:
        busy.setattr(VideoProcess, "probe", slow)
        with pytest.raises(Exception, match="took more than 10 s"):
            folder.scan()
    _, asked = folder.scan()
    assert len(asked) == 4


def test_another_reader_and_another_version_look_at_everything_again(folder, monkeypatch):
    folder.scan()
    with monkeypatch.context() as later:
        later.setattr(known_files, "version_of", lambda _name: "99.0")
        assert len(folder.scan()[1]) == 4
    folder.scan()
    monkeypatch.setattr(known_files, "SCAN_VERSION", 99)
    assert len(folder.scan()[1]) == 4


@pytest.mark.parametrize("damage", ["[", "[]", '{"version": 1}', "null"])
def test_a_damaged_memo_is_forgotten(folder, damage):
    first, _ = folder.scan()
    (folder.cache / "files.json").write_text(damage)
    again, asked = folder.scan()
    assert (len(asked), again) == (4, first)


def test_cuts_are_found_once_for_each_threshold_and_draws_read_a_file_once(folder, monkeypatch):
    folder.scan(split_scenes=True)
    _, asked = folder.scan(split_scenes=True)
    assert asked == []
    _, asked = folder.scan(split_scenes=True, scene_threshold=12.0)
    assert asked == ["cuts a.mp4", "cuts b.mp4"]
    drawn, _ = folder.scan(crop="random")
    monkeypatch.setattr("wan_core.dataset.cutting.sampled_digest", lambda _path: pytest.fail("read again"))
    again, _ = folder.scan(crop="random")
    assert again == drawn


def test_copies_are_looked_for_once_among_the_same_files(folder, make_clip):
    y, x = np.mgrid[0:48, 0:64]
    picture = (127 + 120 * np.sin(x / 9) * np.cos(y / 7)).astype(np.uint8)[..., None].repeat(3, -1)
    for name, crf in (("e", "20"), ("f", "32")):
        make_clip(f"clips/{name}.mp4", frames=[picture] * 12, options={"crf": crf})

    def copies(allowed_s: float = 60.0) -> tuple[list[list[str]], list[str]]:
        found, _ = folder.scan()
        known = KnownFiles(folder.cache)
        twins = near_twins(found.samples, folder.video, allowed_s=allowed_s, known=known)
        known.save()
        asked, folder.asked = folder.asked, []
        return [sorted(sample.name for sample in group) for group in twins.groups], asked

    groups, asked = copies()
    assert asked
    assert ["e.mp4", "f.mp4"] in groups
    assert copies() == (groups, [])
    make_clip("clips/g.mp4", frames=[picture] * 12, options={"crf": "26"})
    more, asked = copies()
    assert ["e.mp4", "f.mp4", "g.mp4"] in more
    assert "read c.png" not in asked, "the look of a still is remembered too"


def test_a_digest_is_computed_once_and_again_after_an_edit(tmp_path, monkeypatch):
    path = tmp_path / "clip.mp4"
    path.write_bytes(b"one")
    known = KnownFiles(tmp_path / "cache")
    first = known.digest(path)
    known.save()
    hashed, real = [], known_files.digest_file
    monkeypatch.setattr(known_files, "digest_file", lambda p, stop=None: hashed.append(p.name) or real(p, stop))
    again = KnownFiles(tmp_path / "cache")
    assert (again.digest(path), hashed) == (first, [])
    times = os.stat(path)
    with open(path, "r+b") as file:
        file.write(b"two")
    if os.name == "posix":  # there the time of the last change gives it away even so
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert again.digest(path) != first
    assert hashed == ["clip.mp4"]
