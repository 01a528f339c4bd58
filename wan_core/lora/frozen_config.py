"""Settings of a frozen LoRA: file and strength."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..checkpoint import LOW
from ..config import Config, internal
from ..errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class FrozenLora(Config):
    """A frozen LoRA: one file, or one per expert of a Wan 2.2 pair."""

    file: str = ""
    """root:relative, for the model or the high_noise expert; empty: none"""
    strength: float = 1.0
    low_noise_file: str = ""
    """for the low_noise expert; empty: none"""
    low_noise_strength: float = 1.0
    digest: str = ""
    """sampled digest of the file: another file of the same name is another job"""
    low_noise_digest: str = ""
    only_what_fits: bool = internal(False, "changed")
    """skip modules that the model lacks or has in another size, instead of refusing the file"""
    preview_strength: float = internal(1.0, "changed")
    """strength in previews and validation clips, as a multiple of that in training; 0: training adapter"""

    def __post_init__(self) -> None:
        super().__post_init__()
        for strength in (self.strength, self.low_noise_strength, self.preview_strength):
            if not -100 <= strength <= 100:
                raise ConfigError(f"strength {strength} of a LoRA is out of range. Use -100 to 100; 1 is as trained.")

    def of_expert(self, expert: str) -> FrozenLora:
        """Returns the settings of one expert, as for a model of its own."""
        if expert == LOW:
            own = FrozenLora(file=self.low_noise_file, strength=self.low_noise_strength, digest=self.low_noise_digest)
        else:
            own = FrozenLora(file=self.file, strength=self.strength, digest=self.digest)
        return replace(own, only_what_fits=self.only_what_fits, preview_strength=self.preview_strength)

    def on_model(self, expert: str, *, pair: bool) -> FrozenLora:
        """Returns the settings for the model of a run; for one expert of a `pair` with its file, or the only file."""
        return self.of_expert(expert) if pair or (expert == LOW and self.low_noise_file) else self

    @property
    def name(self) -> str:
        """The file name without folder and ending; of a pair the first file's."""
        return (self.file or self.low_noise_file).rpartition(":")[2].rpartition("/")[2].removesuffix(".safetensors")

    def stronger(self, times: float) -> FrozenLora:
        """Returns the settings with both strengths multiplied."""
        return replace(self, strength=self.strength * times, low_noise_strength=self.low_noise_strength * times)

    def in_previews(self) -> FrozenLora:
        """Returns the settings with the strengths in previews."""
        return self.stronger(self.preview_strength)

    def acts(self) -> list[list[object]]:
        """Returns (digest, strength) of each model: the identity of its effect."""
        acts = ((self.digest, self.strength), (self.low_noise_digest, self.low_noise_strength))
        found: list[list[object]] = [list(one) for one in acts]
        return [*found, ["only what fits"]] if self.only_what_fits else found
