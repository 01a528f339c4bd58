"""From a folder to samples: what each file is, what it says, and the size it will be trained at.

Reads headers, packets and captions, never pixels or weights: everything wrong with a dataset is
told before any model is loaded. Which folder may be scanned is decided in `folders`.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..config import Config
from ..errors import ConfigError, DatasetError, Stopped
from ..files import file_identity, lies_under
from ..video import ClipInfo, VideoProcess, shown
from .bucket import Bucket, assign_bucket, frames_sentence, is_frame_count, nearest_frames
from .captions import LINK_OUTSIDE, caption_with_trigger, read_caption
from .conditioning import condition_named

__all__ = [
    "CLIP_SUFFIXES",
    "STILL_SUFFIXES",
    "DatasetConfig",
    "Progress",
    "Rejected",
    "Sample",
    "ScanResult",
    "folder_fingerprint",
    "scan_folder",
]

CLIP_SUFFIXES = frozenset({".mp4", ".m4v", ".mov", ".mkv", ".webm", ".avi", ".gif"})
STILL_SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".webp", ".bmp"})
_OTHER_SUFFIXES = frozenset(
    [
        ".wmv",
        ".flv",
        ".ts",
        ".mts",
        ".m2ts",
        ".mpg",
        ".mpeg",
        ".3gp",
        ".ogv",
        ".vob",
        ".heic",
        ".heif",
        ".avif",
        ".tif",
        ".tiff",
        ".jxl",
        ".svg",
    ]
)
"""Media that is not read: named in the report instead of ignored."""

MIN_SOURCE_PIXELS = 16
"""per side"""

Progress = Callable[[int, int, str], None]
"""called with (done, total, name)"""


@dataclass(frozen=True, kw_only=True)
class DatasetConfig(Config):
    """One folder of clips or stills, and how it is cut."""

    folder: str = ""
    """root:relative, such as "input:clips" """
    trigger_word: str = ""
    """put in front of captions that lack it; the whole caption of files that have none"""
    caption_extension: str = ".txt"
    """of the caption file beside clip.mp4: clip.txt"""
    width: int = 832
    """pixels"""
    height: int = 480
    """pixels"""
    num_frames: int = 33
    """frames taken from the start of each clip, 4n+1; stills are always 1"""
    fps: float = 16.0
    """frames per second clips are resampled to: 16, or 24 for TI2V-5B"""
    num_repeats: int = 1
    """how often each file is seen in one epoch"""
    enable_bucket: bool = True
    """keep each clip's shape in the same number of pixels; otherwise everything is cropped to width
    x height
    """
    size_multiple: int = 16
    """both sides are multiples of this: 16, or 32 for TI2V-5B"""
    conditioning: str = "none"
    """what the model reads beside latent and caption: ConditionKind.name"""

    def __post_init__(self) -> None:
        condition_named(self.conditioning)
        if not is_frame_count(self.num_frames):
            raise ConfigError(f"num_frames is {self.num_frames}; Wan needs 4n+1. {frames_sentence(self.num_frames)}")
        if self.num_frames > 1001:
            raise ConfigError(f"num_frames is {self.num_frames}; the most is 1001. Set num_frames to 81 or less.")
        for name in ("width", "height"):
            self._check_side(name, getattr(self, name))
        if not 1 <= self.fps <= 120:
            raise ConfigError(f"fps is {self.fps:g}. Set it between 1 and 120; Wan was trained at 16, TI2V-5B at 24.")
        if not 1 <= self.num_repeats <= 10_000:
            raise ConfigError(f"num_repeats is {self.num_repeats}. Set it between 1 and 10000.")
        if not re.fullmatch(r"\.[A-Za-z0-9_.-]{1,20}", self.caption_extension):
            raise ConfigError(f'caption_extension is {self.caption_extension[:40]!r}. Use one such as ".txt".')

    def _check_side(self, name: str, value: int) -> None:
        multiple = self.size_multiple
        if not multiple <= value <= 4096:
            raise ConfigError(f"{name} is {value}. Set it between {multiple} and 4096.")
        if value % multiple:
            below = value // multiple * multiple
            raise ConfigError(
                f"{name} is {value}; the model needs multiples of {multiple}. "
                f"Set {name} to {below} or {below + multiple}."
            )


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One usable file."""

    path: Path
    name: str
    """file name, for messages"""
    caption: str
    caption_from: str
    """"file", "file+trigger" or "trigger" """
    info: ClipInfo
    bucket: Bucket
    identity: tuple[str, int, int, int]
    """path, size, mtime_ns and inode when it was scanned"""

    @property
    def kind(self) -> str:
        """Clip or still, as in ClipInfo."""
        return self.info.kind

    @property
    def upscaled(self) -> bool:
        """True when the source is smaller than its bucket."""
        return self.info.width < self.bucket.width or self.info.height < self.bucket.height


@dataclass(frozen=True, kw_only=True)
class Rejected:
    """A file that is not trained on, and why."""

    name: str
    reason: str
    frames: int = 0
    """frames it would give, where that is the reason"""


@dataclass(frozen=True, kw_only=True)
class ScanResult:
    """What one folder gives."""

    config: DatasetConfig
    samples: tuple[Sample, ...]
    rejected: tuple[Rejected, ...] = ()

    def __repr__(self) -> str:
        return f"ScanResult({len(self.samples)} of {len(self.samples) + len(self.rejected)} files)"

    def report(self) -> str:
        """Plain text for the node: counts, frames, buckets, captions, and every rejected file with
        its reason.
        """
        from .report import scan_report

        return scan_report(self)


def scan_folder(
    config: DatasetConfig,
    folder: Path,
    video: VideoProcess,
    *,
    allowed: Sequence[Path] = (),
    progress: Progress | None = None,
    should_stop: Callable[[], bool] | None = None,
) -> ScanResult:
    """Scan the files of `folder` (not its subfolders), sorted by name.

    Files that are links must lead below `folder` or below one of `allowed` (rules S2, S16).
    DatasetError when nothing can be used, or when captions are missing and there is no trigger
    word.
    """
    paths = _media_files(folder)
    samples: list[Sample] = []
    rejected: list[Rejected] = []
    for number, path in enumerate(paths):
        if should_stop is not None and should_stop():
            raise Stopped(f"Stopped while scanning {folder.name}.")
        found = _look_at(path, config, video, allowed)
        (samples if isinstance(found, Sample) else rejected).append(found)  # type: ignore[arg-type]
        if progress is not None:
            progress(number + 1, len(paths), shown(path))
    if not samples:
        raise DatasetError(_nothing_left(folder, config, rejected))
    _require_captions(config, samples)
    return ScanResult(config=config, samples=tuple(samples), rejected=tuple(rejected))


def folder_fingerprint(folder: Path) -> str:
    """Changes when a file of the folder is added, removed, edited or replaced; reads no content."""
    digest = hashlib.sha256()
    for entry in sorted(os.scandir(folder), key=lambda e: e.name):
        if entry.is_file():
            digest.update(repr(file_identity(Path(entry.path))).encode("utf-8", "surrogatepass"))
    return digest.hexdigest()


def _media_files(folder: Path) -> list[Path]:
    if not folder.is_dir():
        problem = "is a file, not a folder" if folder.exists() else "does not exist"
        raise DatasetError(f"Dataset folder {folder.name!r} {problem}. Choose a folder that holds clips.")
    known = CLIP_SUFFIXES | STILL_SUFFIXES | _OTHER_SUFFIXES
    with os.scandir(folder) as entries:
        names = sorted(
            entry.name
            for entry in entries
            if Path(entry.name).suffix.lower() in known
            and not entry.name.startswith(".")
            and not os.path.isdir(entry.path)
        )
    if not names:
        kinds = " ".join(sorted(suffix[1:] for suffix in CLIP_SUFFIXES | STILL_SUFFIXES))
        raise DatasetError(f"Dataset folder {folder.name!r} holds no clips or stills. Put files into it ({kinds}).")
    return [folder / name for name in names]


def _look_at(path: Path, config: DatasetConfig, video: VideoProcess, allowed: Sequence[Path]) -> Sample | Rejected:
    if not lies_under(path, (path.parent, *allowed)):
        return Rejected(name=shown(path), reason=LINK_OUTSIDE)
    if path.suffix.lower() in _OTHER_SUFFIXES:
        return Rejected(name=path.name, reason=f"{path.suffix} files are not read; convert it to mp4 or png")
    try:
        info = video.probe(path)
        identity = file_identity(path)
    except (DatasetError, OSError) as error:
        return Rejected(name=shown(path), reason=str(error).removeprefix(f"{shown(path)} ").rstrip("."))
    if min(info.width, info.height) < MIN_SOURCE_PIXELS:
        return Rejected(name=shown(path), reason=f"is only {info.width}x{info.height} pixels")
    num_frames = 1 if info.kind == "still" else config.num_frames
    available = info.frames_at(config.fps)
    if available < num_frames:
        return Rejected(name=path.name, reason=_too_short(info, config, available), frames=available)
    caption = read_caption(path.with_suffix(config.caption_extension), allowed=allowed)
    full = caption_with_trigger(caption, config.trigger_word.strip())
    return Sample(
        path=path,
        name=shown(path),
        caption=full,
        caption_from=("file" if full == caption else "file+trigger") if caption else "trigger",
        info=info,
        bucket=assign_bucket(
            info.width,
            info.height,
            num_frames=num_frames,
            width=config.width,
            height=config.height,
            multiple=config.size_multiple,
            enable_bucket=config.enable_bucket,
        ),
        identity=identity,
    )


def _too_short(info: ClipInfo, config: DatasetConfig, available: int) -> str:
    at = f" at {config.fps:g} fps"
    source = "" if abs(info.fps - config.fps) < 0.01 else f" ({info.num_frames} at {info.fps:.4g} fps)"
    return f"has {available} frames{at}{source}, fewer than num_frames {config.num_frames}"


def _nothing_left(folder: Path, config: DatasetConfig, rejected: list[Rejected]) -> str:
    shown = "; ".join(f"{r.name}: {r.reason}" for r in rejected[:5])
    more = f"; and {len(rejected) - 5} more" if len(rejected) > 5 else ""
    longest = max(r.frames for r in rejected)
    fix = "Add clips that can be read."
    if longest:
        fix = f"Set num_frames to {nearest_frames(longest)}, or add longer clips."
    return f"No file of dataset folder {folder.name!r} can be used ({shown}{more}). {fix}"


def _require_captions(config: DatasetConfig, samples: list[Sample]) -> None:
    missing = [sample for sample in samples if not sample.caption]
    if missing:
        names = ", ".join(sample.name for sample in missing[:5])
        more = f" and {len(missing) - 5} more" if len(missing) > 5 else ""
        example = missing[0].path.with_suffix(config.caption_extension).name
        raise DatasetError(
            f"{len(missing)} of {len(samples)} files have no caption: {names}{more}. "
            f"Write {example} with what is seen, or set trigger_word."
        )
