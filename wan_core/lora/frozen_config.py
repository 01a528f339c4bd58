"""A LoRA file that acts and is not trained: which one, and how strongly."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..checkpoint import LOW
from ..config import Config, internal
from ..errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class FrozenLora(Config):
    """A LoRA that acts and is not trained: one file, or of a Wan 2.2 pair one for each expert."""

    file: str = ""
    """root:relative, for the model or the high noise expert; empty: none for it"""
    strength: float = 1.0
    low_noise_file: str = ""
    """for the low noise expert of a pair; empty: none for it"""
    low_noise_strength: float = 1.0
    digest: str = ""
    """sampled digest of the file; another file under the same name is another job"""
    low_noise_digest: str = ""
    only_what_fits: bool = internal(False, "changed")
    """what the model has no place for, or of another size, is left out; else such a file is refused"""

    def __post_init__(self) -> None:
        super().__post_init__()
        for strength in (self.strength, self.low_noise_strength):
            if not -100 <= strength <= 100:
                raise ConfigError(f"strength {strength} of a LoRA is out of range. Use -100 to 100; 1 is as trained.")

    def of_expert(self, expert: str) -> FrozenLora:
        """Returns what acts on one expert of a pair, by name, as the LoRA of a model of its own."""
        if expert == LOW:
            own = FrozenLora(file=self.low_noise_file, strength=self.low_noise_strength, digest=self.low_noise_digest)
        else:
            own = FrozenLora(file=self.file, strength=self.strength, digest=self.digest)
        return replace(own, only_what_fits=self.only_what_fits)

    def on_model(self, expert: str, *, pair: bool) -> FrozenLora:
        """Returns what acts on the model of a run: of a `pair` what is for its expert.

        Where one expert is trained alone, its own, or the only one there is.
        """
        return self.of_expert(expert) if pair or (expert == LOW and self.low_noise_file) else self

    @property
    def name(self) -> str:
        """The name of its file, of a pair that of the first one, without folder and ending."""
        return (self.file or self.low_noise_file).rpartition(":")[2].rpartition("/")[2].removesuffix(".safetensors")

    def stronger(self, times: float) -> FrozenLora:
        """Returns the same with its strengths multiplied."""
        return replace(self, strength=self.strength * times, low_noise_strength=self.low_noise_strength * times)

    def acts(self) -> list[list[object]]:
        """Returns what decides how it acts: content and strength, for each model it acts on."""
        acts = ((self.digest, self.strength), (self.low_noise_digest, self.low_noise_strength))
        found: list[list[object]] = [list(one) for one in acts]
        return [*found, ["only what fits"]] if self.only_what_fits else found
