"""Samples (a file and the part of it that is trained), the result of a scan, and the datasets of a job.

A Dataset is the value of a WAN_DATASET link in a graph.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ..choices import PLAIN, Choice
from ..errors import DatasetError
from ..model import ConditionKind
from ..video import ClipInfo, Framing
from ..words import filled
from .bucket import Bucket
from .config import DatasetConfig, kind_of
from .files import Rejected


@dataclass(frozen=True, kw_only=True)
class Cut:
    """The part of a file that a sample uses. Cache keys omit default values."""

    start_s: float = 0.0
    """seconds from the first frame"""
    framing: Framing = Framing()
    """crop and mirroring"""
    fps: float = 0.0
    """frame rate at which the file is read; 0: the dataset's"""
    held: int = 0
    """number of missing frames at the end, for which the last frame is repeated; not part of cache keys"""


@dataclass(frozen=True, kw_only=True)
class Companion:
    """A control or mask video, a file of camera poses, or a file of ROLES, cut like the sample."""

    path: Path
    mark: tuple[int, ...]
    """the `file_mark` during the scan"""
    deep_still: bool = False
    """True for a still of more than 8 bits per channel, whose cache keys differ: older versions read such stills as
    white"""
    role: str = ""
    """one of ROLES, or "control" or "mask" """
    size: Bucket | None = None
    """size to which the file is scaled and cropped at the centre; None: the sample's size and crop"""

    def of_sample(self, sample: Sample) -> Bucket:
        """Returns the size at which the companion is read."""
        return self.size or sample.bucket


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One usable file, or one cut of a file."""

    path: Path
    name: str
    caption: str
    caption_from: str
    """"shot", "shot+trigger", "file", "file+trigger", "list", "list+trigger", "trigger" or "none" """
    info: ClipInfo
    bucket: Bucket
    mark: tuple[int, ...]
    """the `file_mark` during the scan"""
    cut: Cut = Cut()
    repeats: int = 1
    """how often an epoch trains it"""
    turn: int = 0
    """index among the samples of a file that take turns by epoch (random windows or crops)"""
    turns: int = 1
    """number of samples that take turns; this one is trained in epochs with epoch % turns == turn"""
    scenes: int = 1
    """number of scenes in the file; 1 without split_scenes"""
    shot_s: float | None = None
    """start of its scene in the file in seconds; None without a cut in the file or without split_scenes"""
    weight: float = 1.0
    """factor of how often the sample is trained"""

    control: Companion | None = None
    mask: Companion | None = None
    camera: Companion | None = None
    """camera poses"""
    context: tuple[Companion, ...] = ()
    """companions by role, in the order of ROLES"""
    listed: bool = False
    """True if the caption comes from a list, not from a caption file"""
    choice: Choice = PLAIN
    """the choice about the file, which `cut` follows"""

    @property
    def kind(self) -> str:
        """The kind, "clip" or "still", as in ClipInfo."""
        return self.info.kind

    @property
    def captioned_shot_s(self) -> float | None:
        """`shot_s`; None if the caption is that of the complete file."""
        return None if self.caption_from.startswith("file") or self.listed else self.shot_s

    @property
    def clip_name(self) -> str:
        """The name, with the start of the shot if the shot has a caption of its own, or none."""
        shot_s = self.captioned_shot_s
        return self.name if shot_s is None else f"{self.name}@{shot_s:.2f}s"

    @property
    def upscaled(self) -> bool:
        """True if the source is smaller than its bucket."""
        return self.info.width < self.bucket.width or self.info.height < self.bucket.height


def one_per_file(samples: Iterable[Sample]) -> list[Sample]:
    """Returns the first sample of every file, in order; a file may have many (windows, crops, turns, captions)."""
    found: dict[Path, Sample] = {}
    for sample in samples:
        found.setdefault(sample.path, sample)
    return list(found.values())


def one_per_clip(samples: Iterable[Sample]) -> list[Sample]:
    """Returns the first sample of every file, or of every shot that has, or wants, a caption of its own; in order."""
    found: dict[tuple[Path, float | None], Sample] = {}
    for sample in samples:
        found.setdefault((sample.path, sample.captioned_shot_s), sample)
    return list(found.values())


def with_captions(samples: Sequence[Sample], captions: Sequence[str]) -> list[Sample]:
    """Returns each sample of a file with each of the captions, which take turns: the caption changes every epoch."""
    if len(captions) == 1:
        return [replace(sample, caption=captions[0]) for sample in samples]
    return [
        replace(
            sample,
            # The turn shifts the captions, so that consecutive epochs have different captions.
            caption=captions[(round_ + sample.turn) % len(captions)],
            turn=round_ * sample.turns + sample.turn,
            turns=len(captions) * sample.turns,
        )
        for round_ in range(len(captions))
        for sample in samples
    ]


def caption_remedies(config: DatasetConfig, sample: Sample, hint: str = "") -> str:
    """Returns the advice for files without a caption; `hint`: ScanResult.caption_hint."""
    remedies = filled(
        "Write {example} with a description of the clip, set trigger_word, or set missing_captions in Wan Dataset "
        'Settings to "skip the file" or "empty caption"',
        example=sample.path.with_suffix(config.caption_extension).name,
    )
    return f"{hint}. {remedies}" if hint else remedies


@dataclass(frozen=True, kw_only=True)
class ScanResult:
    """The samples of one folder, and its rejected files."""

    config: DatasetConfig
    samples: tuple[Sample, ...]
    rejected: tuple[Rejected, ...] = ()
    notes: tuple[str, ...] = ()
    """sentences about the source, such as repeats of subfolders"""
    caption_hint: str = ""
    """a clause that names files which may be the missing captions"""
    excluded: tuple[Sample, ...] = ()
    """one sample of each file that is excluded by choice"""
    skipped: tuple[Sample, ...] = ()
    """samples that missing_captions skips"""
    again: Callable[[Any], ScanResult] | None = field(default=None, compare=False)
    """function: ScanContext -> new scan of the same files; None where no caller needs one"""

    def __repr__(self) -> str:
        return f"ScanResult({len(self.samples)} of {len(self.samples) + len(self.rejected)} files)"

    @property
    def captionless(self) -> tuple[Sample, ...]:
        """One sample per file without a caption, if the config refuses such files."""
        if self.config.missing_captions != "refuse":
            return ()
        return tuple(one_per_file(sample for sample in self.samples if sample.caption_from == "none"))


@dataclass(frozen=True)
class Dataset:
    """Scanned folders trained together: same fps, size multiple and conditioning."""

    parts: tuple[ScanResult, ...]

    def __post_init__(self) -> None:
        for part in self.parts[1:]:
            for name in ("fps", "size_multiple", "conditioning"):
                here, first = getattr(part.config, name), getattr(self.parts[0].config, name)
                if here != first:
                    both = f"{self.parts[0].config.folder!r} and {part.config.folder!r}"
                    raise DatasetError(
                        f"Datasets {both} differ in {name} ({first} and {here}). "
                        "Connect the same model to both dataset nodes."
                        if "context" not in (here, first)
                        else f"Of datasets {both} one has context files (clip_source.mp4, clip_ref1.png) and one has "
                        "none. Train them in two runs."
                    )
            if kind_of(part.config) != self.kind:
                raise DatasetError(
                    f"Datasets {self.parts[0].config.folder!r} and {part.config.folder!r} differ in whether the model "
                    "reads masks. Set mask_use of both to the same."
                )

    def __repr__(self) -> str:
        kinds = [sample.kind for sample in self.samples]
        return f"Dataset({kinds.count('clip')} clips, {kinds.count('still')} stills)"

    @property
    def samples(self) -> tuple[Sample, ...]:
        """The samples of all parts, in order."""
        return tuple(sample for part in self.parts for sample in part.samples)

    @property
    def kind(self) -> ConditionKind:
        """The conditioning of each sample."""
        return kind_of(self.parts[0].config)

    @property
    def given_whole(self) -> list[Sample]:
        """One sample per file if the model is given every frame of every sample, so there is nothing to predict."""
        given = all(self.kind.given_whole(sample.bucket.num_frames) for sample in self.samples)
        return one_per_file(self.samples) if given else []

    @property
    def masks_loss(self) -> bool:
        """True if masks weight the loss."""
        return any(part.config.masks_loss for part in self.parts)

    @property
    def trigger_words(self) -> tuple[str, ...]:
        """The trigger words, each once, in order."""
        words = (part.config.trigger_word.strip() for part in self.parts)
        return tuple(dict.fromkeys(word for word in words if word))

    @property
    def fps(self) -> float:
        """Frames per second of all clips."""
        return self.parts[0].config.fps

    def require_captions(self) -> None:
        """Raises DatasetError, with all remedies, if files lack a caption and the config refuses such files."""
        for part in self.parts:
            missing = list(part.captionless)
            if not missing:
                continue
            files = len(one_per_file(part.samples))
            names = ", ".join(sample.name for sample in missing[:5])
            more = filled(" and {n} more", n=len(missing) - 5) if len(missing) > 5 else ""
            raise DatasetError(
                "{missing} of {files} files have no caption: {names}{more}. {remedies}.",
                missing=len(missing),
                files=files,
                names=names,
                more=more,
                remedies=caption_remedies(part.config, missing[0], part.caption_hint),
            )
