"""A folder of odd and broken files: each is used with exactly the frames and the size stated here, or named with its
reason. No file holds the scan up, takes much memory, or ends the process that reads it.
"""

from __future__ import annotations

import os
import struct
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from support.odd_videos import (
    content,
    cover_only,
    edited,
    enormous,
    grey,
    huge_box,
    link_to,
    loop,
    many_boxes,
    noisy,
    patched,
    pipe,
    random_bytes,
    sound_only,
    still,
    truncated,
    two_sizes,
    with_alpha,
    without_key_frame,
    without_times,
    write_clip,
)

from wan_core.dataset import DatasetConfig, ScanContext, ScanResult, read_sample, scan_folder
from wan_core.dataset.report import scan_report
from wan_core.errors import DatasetError

POSIX = os.name == "posix"
HEAD = struct.pack(">I4s4sI4s", 20, b"ftyp", b"isom", 512, b"isom")
FOREIGN = "cannot be read as a video (Invalid data found when processing input)"
OUTSIDE = "is a link that leads outside the allowed folders"


def clip(pictures: Any = None, **options: Any) -> partial[None]:
    return partial(write_clip, pictures=pictures, **options)


class Used(NamedTuple):
    """What a usable file gives: size as shown, frames at 16 fps, and the source frames behind the first six."""

    width: int = 64
    height: int = 48
    frames: int = 20
    first: tuple[int, ...] = (0, 1, 2, 3, 4, 5)


class DamagedInside(NamedTuple):
    """A scan reads what a file says, not its pixels: this one is named when its frames are wanted, before they are
    encoded.
    """

    reason: str


PLAIN = Used()

KINDS: dict[str, tuple[Any, Used | DamagedInside | str]] = {
    # What cameras, phones, editors and screens make
    "plain.mp4": (clip(), PLAIN),
    "UPPER.MP4": (clip(), PLAIN),
    "odd_size.mkv": (clip(grey(20, 65, 49), codec="ffv1", pix_fmt="bgr0"), Used(65, 49)),
    "wide.mp4": (clip(grey(20, 2048, 16)), Used(2048, 16)),
    "tall.mkv": (clip(grey(20, 16, 2048)), Used(16, 2048)),
    "enormous.mp4": (enormous, Used(8192, 4320, 16, (16, 16, 16, 16, 16, 16))),
    "turned_90.mp4": (clip(rotation=90), Used(48, 64)),
    "turned_180.mp4": (clip(rotation=180), PLAIN),
    "turned_270.mp4": (clip(rotation=-90), Used(48, 64)),
    "anamorphic.mp4": (clip(options={"x264-params": "sar=4/3"}), Used(85, 48)),
    "interlaced.mp4": (clip(options={"x264-params": "tff=1"}), PLAIN),
    "ten_bit.mp4": (clip(pix_fmt="yuv420p10le"), PLAIN),
    "see_through.mov": (clip(with_alpha(), codec="qtrle", pix_fmt="argb"), PLAIN),
    "see_through_10_bit.mov": (clip(with_alpha(), codec="prores_ks", pix_fmt="yuva444p10le"), PLAIN),
    "with_sound.mp4": (clip(sound=True), PLAIN),
    "fragments.mp4": (clip(muxer_options={"movflags": "frag_keyframe+empty_moov"}), PLAIN),
    "two_sizes.mkv": (two_sizes, Used(64, 48, 21)),  # Matroska: the last frame ends at 1.251 s
    "animation.gif": (clip(codec="gif", pix_fmt="gray", fps=10), Used(64, 48, 32, (0, 0, 1, 1, 2, 3))),
    "uncompressed.avi": (clip(codec="rawvideo", pix_fmt="bgr24"), PLAIN),
    # Times
    "variable.mkv": (clip(times_ms=[0, 40, 200, 300, 301, 500]), Used(64, 48, 9, (0, 1, 1, 1, 2, 4))),
    "starts_late.mp4": (clip(times_ms=[5000 + 125 * k for k in range(10)]), Used(64, 48, 20, (0, 0, 1, 1, 2, 2))),
    "starts_below_zero.mp4": (clip(times_ms=[-250 + 125 * k for k in range(10)]), Used(64, 48, 16, (2, 2, 3, 3, 4, 4))),
    "a_thousand_a_second.mp4": (clip(grey(20), fps=1000), "has 1 frames at 16 fps (20 at 1000 fps), fewer than"),
    "one_frame.mp4": (clip(grey(1)), "has 1 frames at 16 fps, fewer than num_frames 5"),
    "one_every_ten_seconds.mkv": (clip(grey(3), times_ms=[0, 10_000, 20_000]), Used(64, 48, 321, (0,) * 6)),
    "no_times.mkv": (without_times, "gives all its frames the same timestamp"),
    # Names
    "🎬 кино clip's “é” %20 #1.mp4": (clip(), PLAIN),
    f"{'long' * 50}.mp4": (clip(), PLAIN),
    "webm_named.mp4": (clip(codec="libvpx-vp9", muxer="webm"), PLAIN),
    "gif_named.mp4": (clip(codec="gif", pix_fmt="gray", fps=10, muxer="gif"), Used(64, 48, 32, (0, 0, 1, 1, 2, 3))),
    "png_named.mp4": (lambda path: still(path, "PNG"), "is of a container format that is not read"),
    "jpeg_named.mkv": (lambda path: still(path, "JPEG"), "is of a container format that is not read"),
    "mp4_named.png": (clip(muxer="mp4"), "cannot be read as a still"),
    # Damage
    "empty.mp4": (content(b""), "is empty"),
    "garbage.mp4": (content(random_bytes(50_000)), FOREIGN),
    "garbage_after_its_head.mp4": (content(HEAD + random_bytes(50_000)), FOREIGN),
    "huge_index.mp4": (huge_box, "holds no video"),
    "nested_boxes.mp4": (many_boxes, FOREIGN),
    "cut.mp4": (truncated(0.5, muxer_options={"movflags": "+faststart"}), "is cut off or damaged"),
    "cut_before_its_index.mp4": (truncated(0.9), FOREIGN),
    "cut.mkv": (truncated(0.5), "is cut off: it ends at 0.56 s of 1.25 s"),
    "cut.avi": (truncated(0.5, codec="mpeg4"), "is cut off or damaged"),
    "cut_fragments.mp4": (truncated(0.5, muxer_options={"movflags": "frag_every_frame+empty_moov"}), "is cut off"),
    "cut.gif": (truncated(0.5, codec="gif", pix_fmt="gray", fps=10), "is cut off: its end marker is missing"),
    "zeros_at_the_end.mp4": (edited(clip(), lambda data: data + bytes(100_000)), PLAIN),
    "zeros_inside.mp4": (
        edited(clip(noisy()), lambda data: data[:9000] + bytes(9000) + data[18_000:]),
        DamagedInside("cannot be read as a video"),
    ),
    "without_its_key_frame.mkv": (without_key_frame, "does not begin with a key frame"),
    "size_bomb.avi": (
        patched(clip(codec="ffv1"), struct.pack("<ii", 64, 48), struct.pack("<ii", 12_000, 12_000)),
        "has frames of 12000x12000 pixels",
    ),
    # Other things under such a name
    "page.mp4": (content(b"<!DOCTYPE html><html><body>404</body></html>"), FOREIGN),
    "pointer.mp4": (content(b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n"), FOREIGN),
    "sound.mp4": (sound_only, "holds no video"),
    "music_with_a_cover.mp4": (cover_only, "holds no video, only a cover picture"),
    "one_pixel.mkv": (clip(grey(20, 1, 1), codec="ffv1", pix_fmt="bgr0"), "is only 1x1 pixels"),
    "hdr.mp4": (clip(pix_fmt="yuv420p10le", transfer=16), "is HDR, with the brightness curve PQ"),
    "old_codec.avi": (clip(codec="msmpeg4v2", fps=25), "is encoded with msmpeg4v2, which is not supported"),
    "protected.mp4": (patched(clip(), b"avc1\0\0\0\0", b"encv\0\0\0\0"), "is encoded with an unknown codec"),
    "folder.mp4": (Path.mkdir, "is a folder"),
    **(
        {
            "pipe.mp4": (pipe, "is not a regular file"),
            "loop.mp4": (loop, "cannot be opened"),
            "nowhere.mp4": (link_to("gone.mp4"), "cannot be opened"),
            "outside.mp4": (link_to("../outside.mp4"), OUTSIDE),
            "device.mp4": (link_to("/dev/zero"), OUTSIDE),
            "line\nfeed\x1b[31m.mp4": (clip(), PLAIN),
        }
        if POSIX
        else {}
    ),
}


class Scan(NamedTuple):
    folder: Path
    result: ScanResult
    seconds: dict[str, float]
    child_growth_bytes: int
    own_growth_bytes: int


def peak_bytes(pid: int | str) -> int:
    """The most memory a process ever held; 0 where the system does not tell."""
    if sys.platform != "linux":
        return 0
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) * 1024


@pytest.fixture(scope="module")
def scan(video, tmp_path_factory) -> Scan:
    """One scan of all kinds together, by one child."""
    root = tmp_path_factory.mktemp("odd")
    write_clip(root / "outside.mp4")
    folder = root / "clips"
    folder.mkdir()
    for name, (make, _) in KINDS.items():
        make(folder / name)
    video.close()  # a child of its own, of which the most memory is known
    video.probe(root / "outside.mp4")
    child, before, own = video.pid, peak_bytes(video.pid), peak_bytes("self")
    seconds: dict[str, float] = {}
    last = time.monotonic()

    def note(done: int, total: int, name: str) -> None:
        nonlocal last
        seconds[name], last = time.monotonic() - last, time.monotonic()

    config = DatasetConfig(folder="input:clips", width=64, height=48, num_frames=5, trigger_word="x")
    result = scan_folder(config, folder, ScanContext(video, progress=note))
    assert video.pid == child  # it survived every one of them
    return Scan(folder, result, seconds, peak_bytes(child) - before, peak_bytes("self") - own)


@pytest.mark.lasts(2)
@pytest.mark.parametrize("name", KINDS)
def test_each_kind_is_used_exactly_or_named_with_its_reason(scan, video, name):
    expected = KINDS[name][1]
    printable = "".join(c if c.isprintable() else "?" for c in name)[:120]
    samples = [s for s in scan.result.samples if s.path.name == name]
    reasons = [r.reason for r in scan.result.rejected if r.name == printable]
    if isinstance(expected, str):
        assert samples == []
        assert [expected in reason for reason in reasons] == [True]
        return
    assert reasons == []
    (sample,) = samples
    if isinstance(expected, DamagedInside):
        with pytest.raises(DatasetError, match=f"^{name} {expected.reason}"):
            read_sample(video, sample, 16.0)
        return
    assert (sample.info.width, sample.info.height, sample.info.frames_at(16)) == expected[:3]
    frames = video.read(sample.path, fps=16, num_frames=6, width=64, height=48)
    assert tuple(round(int(level) / 8) for level in frames[:, 24, 32, 1]) == expected.first


def test_the_whole_of_a_usable_file_can_be_read(scan, video):
    for sample in scan.result.samples:
        available = sample.info.frames_at(16)
        sound = isinstance(KINDS[sample.path.name][1], Used)
        if sound and available <= 40 and sample.info.width < 8000:
            assert len(video.read(sample.path, fps=16, num_frames=available, width=32, height=32)) == available


def test_no_file_takes_long_or_much_memory(scan):
    slowest = max(scan.seconds, key=scan.seconds.__getitem__)
    sys.stdout.write(
        f"{len(scan.seconds)} files, {len(scan.result.samples)} used; {slowest} took {scan.seconds[slowest]:.2f} s; "
        f"grown: reader {scan.child_growth_bytes >> 20} MiB, this process {scan.own_growth_bytes >> 20} MiB\n"
    )
    assert len(scan.seconds) >= 50
    assert scan.seconds[slowest] < 10
    assert scan.child_growth_bytes < 1 << 30
    assert scan.own_growth_bytes < 1 << 30


def test_the_report_names_every_file_that_is_not_used(scan):
    report = scan_report(scan.result)
    for rejected in scan.result.rejected:
        assert f"  {rejected.name}: {rejected.reason}" in report
    assert "interlaced, so comb artefacts are learned (ffmpeg -vf yadif removes them): interlaced.mp4" in report
    assert "\x1b" not in report


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="this account may read every file")
def test_a_file_that_may_not_be_read_is_named(video, tmp_path):
    write_clip(tmp_path / "a.mp4")
    write_clip(tmp_path / "locked.mp4")
    (tmp_path / "locked.mp4").chmod(0)
    config = DatasetConfig(width=64, height=48, num_frames=5, trigger_word="x")
    rejected = scan_folder(config, tmp_path, ScanContext(video)).rejected
    assert [(r.name, "cannot be opened: Permission denied" in r.reason) for r in rejected] == [("locked.mp4", True)]


def test_a_jump_in_time_does_not_become_a_million_windows(video, tmp_path):
    """Two seconds of pictures, ten hours apart: 576,010 frames at 16 fps."""
    write_clip(tmp_path / "a.mp4")
    jump = [62 * k for k in range(10)] + [36_000_000 + 62 * k for k in range(10)]
    write_clip(tmp_path / "jump.mkv", times_ms=jump)
    settings = {"width": 64, "height": 48, "num_frames": 5, "trigger_word": "x"}
    chunks = scan_folder(DatasetConfig(frame_extraction="chunk", **settings), tmp_path, ScanContext(video))
    assert [r.reason for r in chunks.rejected] == [
        "lasts 36001 s and would give more than 10000 windows; cut it into clips"
    ]
    first = scan_folder(DatasetConfig(**settings), tmp_path, ScanContext(video))
    assert [s.name for s in first.samples] == ["a.mp4", "jump.mkv"]
