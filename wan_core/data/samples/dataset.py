"""Everything one job is to be trained on: one or more scanned folders. The value on a WAN_DATASET
wire.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...errors import DatasetError
from ..conditioning import ConditionKind
from .caption_turns import caption_remedies
from .companion import kind_of
from .scan import Sample, ScanResult

__all__ = ["Dataset"]


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
        """What the model reads beside the latent and the caption of each sample."""
        return kind_of(self.parts[0].config)

    @property
    def masks_loss(self) -> bool:
        """True when masks beside the clips weigh the loss."""
        return any(part.config.masks_loss for part in self.parts)

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
            files = len({sample.path for sample in part.samples})
            names = ", ".join(sample.name for sample in missing[:5])
            more = f" and {len(missing) - 5} more" if len(missing) > 5 else ""
            raise DatasetError(
                f"{len(missing)} of {files} files have no caption: {names}{more}. "
                f"{caption_remedies(part.config, missing[0])}."
            )

    def report(self) -> str:
        """The reports of all parts."""
        return "\n\n".join(part.report() for part in self.parts)
