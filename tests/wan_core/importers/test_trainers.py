"""Dataset settings of four other trainers: what each becomes here, and that no key is ignored in silence.

The settings in tests/fixtures/trainers are ours, written from the documented keys of each trainer.
"""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
from PIL import Image

from wan_core.dataset import DatasetConfig, ScanContext, read_sample, scan_parts
from wan_core.dataset.report import scan_report
from wan_core.errors import DatasetError
from wan_core.importers import open_source, parse_document
from wan_core.importers.source import SourceFile

_clip: list[bytes] = []
"""one clip of 80 frames, written once"""


@pytest.fixture
def mira(tmp_path, make_clip, fixtures_dir):
    """The folders the settings speak of, beside them: 2 portraits, 2 clips of 80 frames with pose and mask."""
    root = tmp_path / "mira"
    _clip[:] = _clip or [make_clip("clip.mp4", num_frames=80).read_bytes()]
    for number in range(2):
        for folder in ("walking", "walking_pose", "turning_pose"):
            (root / folder).mkdir(parents=True, exist_ok=True)
            (root / folder / f"w{number}.mp4").write_bytes(_clip[0])
        (root / "walking" / f"w{number}.txt").write_text(f"mira, walks, take {number}, outdoors")
        for folder in ("portraits", "walking_masks"):
            (root / folder).mkdir(exist_ok=True)
        Image.new("RGB", (96, 64)).save(root / "portraits" / f"p{number}.png")
        Image.new("L", (64, 48)).save(root / "walking_masks" / f"w{number}.png")
    (root / "portraits" / "p0.txt").write_text("mira smiles")
    (root / "walking" / "cover.jpg").write_bytes((root / "portraits" / "p0.png").read_bytes())
    (root / "turning.jsonl").write_text('{"video_path": "walking/w0.mp4", "caption": "mira turns"}\n')
    for file in (fixtures_dir / "trainers").iterdir():
        shutil.copy(file, root)
    return root


def parts_of(mira, name, **options):
    return open_source(SourceFile(path=mira / name, allowed=[mira], **options))


def account(parts):
    return "\n".join(line for part in parts for line in part.notes)


def keys_of(value):
    """Every key of every table in settings."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield key
            yield from keys_of(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from keys_of(inner)


SECTIONS = {"general", "datasets", "directory", "process"}


@pytest.mark.parametrize("name", ["musubi.toml", "diffusion_pipe.toml", "multidatabackend.json", "ai_toolkit.yaml"])
def test_every_key_of_the_settings_is_spoken_of(mira, name):
    data = parse_document(name, (mira / name).read_text())
    if name == "ai_toolkit.yaml":  # the training itself is no part of a dataset: its sections are named, not their keys
        data = {"process": data["config"]["process"][0]["datasets"], **dict.fromkeys(data["config"]["process"][0])}
    if name == "multidatabackend.json":  # backends that are not used are named as a whole
        data = [data[0], data[2]]
    spoken = account(parts_of(mira, name))
    assert [key for key in keys_of(data) if key not in SECTIONS and not re.search(rf"\b{key}\b", spoken)] == []


def test_musubi(mira):
    parts = parts_of(mira, "musubi.toml")
    print("\nmusubi-tuner:", [(len(p.files), dict(p.settings)) for p in parts])  # noqa: T201
    assert [(p.name.split(", ", 1)[1], len(p.files)) for p in parts] == [
        ("dataset 1", 2),
        ("dataset 2, 1 frames", 2),
        ("dataset 2, 25 frames", 2),
        ("dataset 2, 73 frames", 2),
        ("dataset 3", 1),
    ]
    portraits, _one, middle, long, turning = (p.settings for p in parts)
    common = {"enable_bucket": True, "caption_extension": ".txt"}
    stills = {"num_frames": 1, "missing_captions": "skip the file"}
    assert portraits == {"width": 960, "height": 544, "num_repeats": 2, **stills, **common}
    uniform = {"frame_extraction": "uniform", "frame_sample": 3}
    assert middle == {"width": 480, "height": 272, "num_repeats": 1, "num_frames": 25, **uniform, **common}
    assert long["num_frames"] == 73
    assert turning["num_frames"] == 17
    assert parts[4].files[0].caption == "mira turns"
    lines = account(parts).splitlines()
    assert (
        'musubi.toml, dataset 2: changed: "D:\\training\\mira\\walking" -> "walking" beside the settings; '
        "1 files of the folder are no clips and belong to no part of this dataset; "
        "resolution 480x270 -> 480x272 (sides are multiples of 16); target_frames 75 -> 73 frames (Wan needs 4n+1)"
    ) in lines
    assert "musubi.toml, dataset 2: unknown, so not used: flow_hint of a fork" in lines
    assert "source_fps 30.0 (not needed: the rate is read from the time stamps of each clip)" in account(parts)


def test_diffusion_pipe(mira):
    parts = parts_of(mira, "diffusion_pipe.toml")
    print("\ndiffusion-pipe:", [(len(p.files), dict(p.settings)) for p in parts])  # noqa: T201
    assert [(p.name.split(", ", 1)[1], len(p.files)) for p in parts] == [
        ("directory 1, 256x256", 3),
        ("directory 1, 640x352", 3),
        ("directory 2, 256x256", 2),
        ("directory 2, 640x352", 2),
    ]
    assert parts[0].settings == {
        "missing_captions": "skip the file",
        "caption_prefix": "mira, ",
        "caption_shuffles": 4,
        "num_repeats": 3,
        "num_frames": 17,
        "frame_buckets": (17, 33),
        "mask_use": "loss",
        "enable_bucket": True,
        "width": 256,
        "height": 256,
    }
    assert {"weight": 0.5, "num_frames": 1, "missing_captions": "empty caption"}.items() <= parts[2].settings.items()
    masks = {f.path.name: f.mask and f.mask.name for f in parts[0].files}
    assert masks == {"cover.jpg": None, "w0.mp4": "w0.png", "w1.mp4": "w1.png"}
    text = account(parts)
    assert "frame_buckets 34 -> 33 frames (Wan needs 4n+1)" in text
    assert "resolutions 640x360 -> 640x352 (sides are multiples of 16)" in text
    assert "1 files without a mask file are trained without one" in text
    assert "no counterpart here: group stills" in text


def test_simpletuner(mira):
    parts = parts_of(mira, "multidatabackend.json")
    print("\nSimpleTuner:", [(len(p.files), dict(p.settings)) for p in parts])  # noqa: T201
    walking, portraits = parts
    assert walking.settings == {
        "enable_bucket": True,
        "width": 480,
        "height": 480,
        "num_frames": 73,
        "every_frame": True,
        "num_repeats": 5,
        "weight": 0.7,
        "missing_captions": "skip the file",
        "caption_shuffles": 3,
        "keep_tokens": 1,
    }
    assert [f.control.parent.name for f in walking.files] == ["walking_pose", "walking_pose"]
    assert portraits.settings == {
        "enable_bucket": False,
        "crop": "random",
        "width": 496,  # sqrt(0.25 megapixels) = 500
        "height": 496,
        "num_frames": 1,
        "num_repeats": 1,
        "missing_captions": "skip the file",
    }
    assert {f.caption for f in portraits.files} == {"a portrait of mira"}
    text = account(parts)
    assert "video.num_frames 75 -> 73 frames (Wan needs 4n+1)" in text
    assert "caption_shuffle.count 2: 3 orders that take turns" in text
    assert "repeats 4: every file 5 times in an epoch" in text
    assert "backend 'far-away': not used: type aws: only files on this machine are read" in text
    assert "backend 'text-embeds': not used: text_embeds" in text


def test_ai_toolkit(mira):
    parts = parts_of(mira, "ai_toolkit.yaml", fps=16.0)
    print("\nai-toolkit:", [(len(p.files), dict(p.settings)) for p in parts])  # noqa: T201
    small, large, portraits = parts
    assert small.settings == {
        "num_frames": 73,
        "enable_bucket": True,
        "horizontal_flip": "turns",
        "caption_extension": ".txt",
        "missing_captions": "empty caption",
        "trigger_word": "m1ra",
        "caption_shuffles": 8,
        "keep_tokens": 1,
        "mask_use": "loss",
        "num_repeats": 2,
        "width": 512,
        "height": 512,
    }
    assert (large.settings["width"], large.settings["height"]) == (768, 768)
    assert {f.path.name: f.caption for f in portraits.files} == {
        "p0.png": None,
        "p1.png": "a portrait of [trigger]",
    }
    text = account(parts)
    assert "num_frames 75 -> 73 frames (Wan needs 4n+1)" in text
    assert "resolution 500x500 -> 496x496 (sides are multiples of 16)" in text
    assert "caption_dropout_rate 0.05 (caption_dropout of Wan Train Settings)" in text
    assert "settings of the training, not of the dataset, not read: device, model, network, train" in text


@pytest.mark.parametrize(
    ("name", "kinds", "captions"),
    [
        ("musubi.toml", {"still": 2, "clip": 7}, {"mira smiles", "mira turns"}),
        ("ai_toolkit.yaml", {"still": 4, "clip": 4}, {"m1ra, mira smiles", "a portrait of m1ra"}),
    ],
)
def test_the_files_of_the_settings_are_scanned_with_them(mira, name, kinds, captions, video):
    (mira / "portraits" / "p1.txt").write_text("mira laughs") if name == "musubi.toml" else None
    base = DatasetConfig(width=64, height=48, num_frames=9)
    results = scan_parts(base, parts_of(mira, name), ScanContext(video, allowed=[mira]))
    files = {(number, s.path, s.bucket): s.kind for number, r in enumerate(results) for s in r.samples}
    whole = {(number, path): kind for (number, path, _bucket), kind in files.items()}
    assert {kind: list(whole.values()).count(kind) for kind in kinds} == kinds
    assert captions <= {s.caption for r in results for s in r.samples}
    assert scan_report(results[0]).count(f"{name}, ") >= 3


def settings_file(mira, name, text):
    (mira / name).write_text(text)
    return parts_of(mira, name, fps=16.0)


def scanned(mira, video, parts, **base):
    return scan_parts(DatasetConfig(**{"trigger_word": "mira", **base}), parts, ScanContext(video, allowed=[mira]))


JOB = "config:\n  process:\n    - datasets:\n        - folder_path: walking\n          resolution: [64]\n"


def test_ai_toolkit_takes_each_clip_whole_at_its_own_24_fps_where_frames_are_counted_automatically(mira, video):
    for stated in ("          auto_frame_count: true\n", "          auto_frame_count: true\n          num_frames: 1\n"):
        parts = settings_file(mira, "auto.yaml", JOB + stated)
        result = scanned(mira, video, parts)[0]
        # 80 frames at 16 fps are 5.0 s: int(5 * 24) = 120 frames, snapped to 4n+1; the still is a still
        assert {s.name: s.bucket.num_frames for s in result.samples} == {"w0.mp4": 117, "w1.mp4": 117, "cover.jpg": 1}
        assert "no fps is stated: 24, ai-toolkit's own" in account(parts)
    stated = settings_file(mira, "auto.yaml", JOB + "          auto_frame_count: true\n          fps: 16\n")
    assert {s.bucket.num_frames for s in scanned(mira, video, stated)[0].samples if s.kind == "clip"} == {77}


def test_ai_toolkit_reads_clips_at_the_rate_of_the_settings(mira, video):
    text = JOB + "          num_frames: 33\n          shrink_video_to_frames: false\n"
    parts = settings_file(mira, "rate.yaml", text)
    assert {"read_fps": 24.0, "frame_extraction": "random"}.items() <= parts[0].settings.items()
    [sample, *_] = [s for s in scanned(mira, video, parts)[0].samples if s.kind == "clip"]
    assert sample.cut.fps == 24
    assert "read_fps" not in settings_file(mira, "rate.yaml", text + "          fps: 16\n")[0].settings


def test_diffusion_pipe_puts_no_clip_into_the_bucket_of_stills(mira, video):
    for buckets in ("", "frame_buckets = [1]\n"):
        parts = settings_file(mira, "d.toml", f"resolutions = [64]\n{buckets}[[directory]]\npath = 'walking'\n")
        [result] = scanned(mira, video, parts)
        assert [s.name for s in result.samples] == ["cover.jpg"]
        assert {r.name for r in result.rejected} == {"w0.mp4", "w1.mp4"}
        assert result.rejected[0].reason.startswith("is a clip, and no bucket is longer than 1 frame; add one")


def test_diffusion_pipe_size_buckets_are_sizes_of_clips_and_of_stills(mira, video):
    directory = "[[directory]]\npath = 'walking'\n"
    clips = settings_file(mira, "d.toml", f"size_buckets = [[64, 48, 33], [48, 64, 33]]\n{directory}")
    [result] = scanned(mira, video, clips, width=640, height=640, num_frames=9)
    assert {str(s.bucket) for s in result.samples} == {"64x48x33"}
    assert {r.name: r.reason.split(",")[0] for r in result.rejected} == {"cover.jpg": "is a still"}
    both = settings_file(mira, "d.toml", f"size_buckets = [[64, 64, 17], [64, 64, 33], [96, 64, 1]]\n{directory}")
    first, second = scanned(mira, video, both)
    assert {str(s.bucket) for s in first.samples} == {"64x64x33"}, "the longest a clip fills"
    assert {str(s.bucket) for s in second.samples} == {"96x64x1"}
    assert first.rejected == ()
    with pytest.raises(DatasetError, match=r"of size_buckets is no \[width, height, frames\]"):
        settings_file(mira, "d.toml", f"size_buckets = [[64, 64]]\n{directory}")


def test_a_folder_of_videos_may_hold_nothing_but_pictures_that_move(mira, video):
    (mira / "moving").mkdir()
    for name in ("a.webp", "b.apng"):
        frames = [Image.new("RGB", (64, 64), (9 * number, 0, 0)) for number in range(20)]
        kind = {"lossless": True} if name.endswith("webp") else {"format": "PNG"}
        frames[0].save(mira / "moving" / name, save_all=True, append_images=frames[1:], duration=62, **kind)
    common = (
        "[[datasets]]\nvideo_directory = 'moving'\nresolution = [64, 64]\ntarget_frames = [17]\nsource_fps = 16.0\n"
    )
    found = scanned(mira, video, settings_file(mira, "m.toml", common))[0]
    assert [(s.name, s.kind, s.bucket.num_frames) for s in found.samples] == [
        ("a.webp", "clip", 17),
        ("b.apng", "clip", 17),
    ]


@pytest.mark.lasts(1)
def test_musubi_takes_a_single_side_and_every_frame_where_no_rate_is_stated(mira, make_clip, video):
    clip = make_clip("clip20.mp4", num_frames=80, fps=20)
    (mira / "walking" / "w0.mp4").write_bytes(clip.read_bytes())
    common = "[[datasets]]\nvideo_directory = 'walking'\nresolution = 64\ntarget_frames = [81]\n"
    parts = settings_file(mira, "m.toml", common)
    assert {"width": 64, "height": 64, "every_frame": True}.items() <= parts[0].settings.items()
    assert "no source_fps is stated: each frame of a clip is used once, as in musubi" in account(parts)
    result = scanned(mira, video, parts)[0]
    [slow, plain] = result.samples
    assert (slow.name, slow.cut.fps, slow.cut.held, plain.cut.fps) == ("w0.mp4", pytest.approx(20), 1, 0)
    frames = read_sample(video, slow, 16.0)
    levels = [round(int(frame[32, 32, 1]) / 8) % 32 for frame in frames]
    assert levels == [*(k % 32 for k in range(80)), 79 % 32], "each frame once, the last one held"
    with_rate = settings_file(mira, "m.toml", common + "source_fps = 20.0\n")
    assert [s.name for s in scanned(mira, video, with_rate)[0].samples] == ["w1.mp4"], "4 s at 16 fps are 64 frames"


def test_musubi_skips_stills_without_a_caption(mira, video):
    parts = settings_file(mira, "m.toml", "[[datasets]]\nimage_directory = 'portraits'\nresolution = 64\n")
    [result] = scanned(mira, video, parts, trigger_word="")
    assert [s.name for s in result.samples] == ["p0.png"]
    assert [r.name for r in result.rejected] == ["p1.png"]


def test_a_part_of_which_nothing_can_be_used_is_named_and_the_others_are_trained(mira, video):
    text = (mira / "musubi.toml").read_text().replace("[1, 25, 75]", "[25, 101]")
    (mira / "musubi.toml").write_text(text)
    (mira / "portraits" / "p1.txt").write_text("mira laughs")
    results = scan_parts(DatasetConfig(), parts_of(mira, "musubi.toml"), ScanContext(video, allowed=[mira]))
    assert len(results) == 3
    assert "musubi.toml, dataset 2, 101 frames: not used: No file of dataset folder" in scan_report(results[0])


def test_the_widgets_decide_when_the_settings_are_not_wanted(mira, video):
    config = DatasetConfig(width=64, height=48, num_frames=9, trigger_word="x")
    results = scan_parts(config, parts_of(mira, "musubi.toml"), ScanContext(video, allowed=[mira]), use_settings=False)
    assert {s.bucket.num_frames for r in results for s in r.samples if s.kind == "clip"} == {9}


BAD = {
    "unknown.toml": ("[model]\nx = 1\n", "has an unknown format. Known formats: musubi-tuner"),
    "broken.toml": ("[[datasets", "is not valid TOML"),
    "main.toml": ("dataset = 'x.toml'\n", "training settings of diffusion-pipe. Choose its dataset file, x.toml"),
    "nothing.toml": ("[[datasets]]\nresolution = [64, 64]\n", "must name one of video_directory"),
    "outside.toml": ("[[datasets]]\nvideo_directory = '/etc'\n", "'/etc' is outside the allowed folders"),
    "gone.toml": ("[[directory]]\npath = '/mnt/nowhere/xyz'\n", "is outside the allowed folders"),
    "beside.toml": ("[[directory]]\npath = 'xyz'\n", "'xyz' does not exist. Put it next to beside.toml"),
    "type.toml": (
        "[[directory]]\npath = 'walking'\nnum_repeats = 'ten'\n",
        "num_repeats is 'ten'; it must be a number",
    ),
    "broken.yaml": ("config: [", "is not valid YAML"),
    "alias.yaml": ("a: &a [1]\nb: [*a, *a]\n", "holds YAML references"),
    "code.yaml": ("!!python/object/apply:os.system ['true']\n", "is not valid YAML"),
    "empty.yaml": ("config:\n  process:\n    - type: sd_trainer\n", "names no datasets"),
    "aws.json": ('[{"dataset_type": "image", "type": "aws"}]', "names no clips and no stills that can be used"),
}


@pytest.mark.parametrize("name", BAD)
def test_settings_that_cannot_be_used_are_refused_in_one_sentence(mira, name):
    content, message = BAD[name]
    (mira / name).write_text(content)
    with pytest.raises(DatasetError, match=re.escape(message)) as caught:
        parts_of(mira, name)
    assert "\n" not in str(caught.value) or "YAML" in message


def test_a_listed_folder_that_exists_outside_is_refused_like_one_that_does_not(mira, tmp_path):
    (tmp_path / "secret").mkdir()
    (mira / "x.toml").write_text(f"[[directory]]\npath = {json.dumps(str(tmp_path / 'secret'))}\n")
    with pytest.raises(DatasetError, match="is outside the allowed folders"):
        parts_of(mira, "x.toml")
    assert Path(tmp_path / "secret").is_dir()


def test_ai_toolkit_preserves_the_class_with_a_trigger_word(mira):
    kept = {"diff_output_preservation": True, "diff_output_preservation_class": "dog"}
    blank = {"blank_prompt_preservation": True, "blank_prompt_preservation_multiplier": 0.5}
    for train, trigger, wanted in ((kept, "sks", (1.0, "dog")), (blank, "sks", (0.5, "")), (kept, "", (0.0, ""))):
        datasets = [{"folder_path": "walking", "num_frames": 9}]
        job = {"config": {"process": [{"trigger_word": trigger, "train": train, "datasets": datasets}]}}
        (part,) = settings_file(mira, "job.json", json.dumps(job))[:1]
        assert (part.settings.get("class_preservation", 0.0), part.settings.get("class_word", "")) == wanted
