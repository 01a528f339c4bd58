"""One usable file and the part of it that is trained on; what a scan gives; and the datasets of one job together.

A Dataset is the value on a WAN_DATASET wire.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from ..errors import DatasetError
from ..model import ConditionKind
from ..video import ClipInfo, Framing
from ..words import filled
from .bucket import Bucket
from .config import DatasetConfig, kind_of
from .files import Rejected


@dataclass(frozen=True, kw_only=True)
class Cut:
    """The part of a file that a sample is.

    The defaults are what every sample was before there was a choice; they leave no trace in the names of cache entries.
    """

    start_s: float = 0.0
    """seconds from the first frame of the file"""
    framing: Framing = Framing()
    """which part of the picture, and whether it is mirrored"""
    fps: float = 0.0
    """frames per second it is read at; 0 = those of the dataset"""
    held: int = 0
    """frames at the end that the file lacks: its last one is shown instead. No part of the name of a cache entry: the
    same window of a longer file has another content digest
    """


@dataclass(frozen=True, kw_only=True)
class Companion:
    """A control or mask video that is cut exactly like the sample it goes with."""

    path: Path
    mark: tuple[int, ...]
    """its `file_mark` when it was scanned"""
    deep_still: bool = False
    """True for a picture of more than 8 bits; older versions read those as white"""


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One usable file."""

    path: Path
    name: str
    """file name, for messages"""
    caption: str
    caption_from: str
    """"file", "file+trigger", "list", "list+trigger", "trigger" or "none" """
    info: ClipInfo
    bucket: Bucket
    mark: tuple[int, ...]
    """its `file_mark` when it was scanned"""
    cut: Cut = Cut()
    repeats: int = 1
    """how often it is seen in one epoch"""
    turn: int = 0
    """of samples that take turns (random windows or crops of one file), the number of this one"""
    turns: int = 1
    """how many take turns: this one is trained in epochs whose number modulo `turns` is `turn`"""
    scenes: int = 1
    """how many its file has; more than one only where cuts were looked for"""
    weight: float = 1.0
    """scales how often it is seen"""
    control: Companion | None = None
    mask: Companion | None = None
    listed: bool = False
    """whether a list says its caption, and no file beside it does"""

    @property
    def kind(self) -> str:
        """Clip or still, as in ClipInfo."""
        return self.info.kind

    @property
    def upscaled(self) -> bool:
        """True when the source is smaller than its bucket."""
        return self.info.width < self.bucket.width or self.info.height < self.bucket.height


def one_per_file(samples: Iterable[Sample]) -> list[Sample]:
    """Returns the first sample of every file, in order.

    A file may give many samples: windows, crops, turns, and rows of a list with other captions or masks. Whatever is
    said of files counts each of them once, and holds of a file when it holds of one of its samples: filter first.
    """
    found: dict[Path, Sample] = {}
    for sample in samples:
        found.setdefault(sample.path, sample)
    return list(found.values())


def caption_remedies(config: DatasetConfig, sample: Sample, hint: str = "") -> str:
    """Returns what to do about files without a caption, of which `sample` is one; `hint` as in ScanResult."""
    remedies = _caption_remedies(sample.path.with_suffix(config.caption_extension).name)
    return f"{hint}. {remedies}" if hint else remedies


def _caption_remedies(example: str) -> str:
    return filled(
        "Write {example} with what is seen, set trigger_word, or say in Wan Dataset Settings what "
        'missing_captions means: "skip the file" or "empty caption"',
        example=example,
    )


@dataclass(frozen=True, kw_only=True)
class ScanResult:
    """The samples of one folder, and the files that are none."""

    config: DatasetConfig
    samples: tuple[Sample, ...]
    rejected: tuple[Rejected, ...] = ()
    notes: tuple[str, ...] = ()
    """sentences about where it came from: repeats of subfolders, what settings of another trainer became"""
    caption_hint: str = ""
    """where the captions may stand that some files lack, as a clause; "" where nobody knows"""

    def __repr__(self) -> str:
        return f"ScanResult({len(self.samples)} of {len(self.samples) + len(self.rejected)} files)"

    @property
    def captionless(self) -> tuple[Sample, ...]:
        """The first sample of every file that needs a caption and has none, where the config refuses such files."""
        if self.config.missing_captions != "refuse":
            return ()
        return tuple(one_per_file(sample for sample in self.samples if sample.caption_from == "none"))


@dataclass(frozen=True)
class Dataset:
    """Scanned folders that go together: same frame rate, same size grid, same conditioning."""

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
        """The condition that the model reads beside the latent and the caption of each sample."""
        return kind_of(self.parts[0].config)

    @property
    def given_whole(self) -> list[Sample]:
        """One sample of each file where the model is given all of every sample, so that it predicts nothing."""
        whole = all(self.kind.given_whole(sample.bucket.num_frames) for sample in self.samples)
        return one_per_file(self.samples) if whole else []

    @property
    def masks_loss(self) -> bool:
        """True when masks beside the clips weigh the loss."""
        return any(part.config.masks_loss for part in self.parts)

    @property
    def trigger_words(self) -> tuple[str, ...]:
        """The trigger words that were set, each once, in order."""
        words = (part.config.trigger_word.strip() for part in self.parts)
        return tuple(dict.fromkeys(word for word in words if word))

    @property
    def fps(self) -> float:
        """Frames per second of all clips."""
        return self.parts[0].config.fps

    def require_captions(self) -> None:
        """DatasetError, which names every remedy, when files have no caption and the config refuses such files."""
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
