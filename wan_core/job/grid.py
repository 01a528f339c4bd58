"""The grid of a rendering: rows are prompts x seeds, columns the base model and each step or LoRA at each strength."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field

from ..config import Config, internal
from ..errors import ConfigError
from ..load import ModelPlan
from ..lora import FrozenLora
from ..sampler import SampleConfig, file_name_of

_MOST_CELLS = 100
"""per job: a day of sampling for a large model"""
_BASE = "baseline"


@dataclass(frozen=True)
class Column:
    """A saved step or a LoRA file at a strength; with neither, the base model."""

    name: str
    """prefix of its clips' ids"""
    step: int | None = None
    """saved step"""
    strength: float | None = None
    lora: FrozenLora | None = None
    """LoRA file in place of the run's own, with `strength` multiplied in"""

    @property
    def is_base(self) -> bool:
        """Whether it is the base model."""
        return self.step is None and self.lora is None


@dataclass(frozen=True)
class Row:
    """The prompt and seed of a row."""

    prompt: int
    """index of the prompt"""
    seed: int | None = None
    """None = the seed of the settings"""


@dataclass(frozen=True)
class Cell:
    """One clip."""

    name: str
    """id and file name"""
    row: Row
    column: Column


@dataclass(frozen=True, kw_only=True)
class SampleJob(Config):
    """Validation clips of a run: base model and saved steps x strengths, for every prompt and seed."""

    saved_steps: tuple[int, ...] = ()
    """steps to render; () = the latest"""
    strengths: tuple[float, ...] = (1.0,)
    baseline: bool = True
    """whether to render the base model without LoRA too"""
    preview: SampleConfig = field(default_factory=SampleConfig)
    seeds: tuple[int, ...] = ()
    """seeds of the noise; () = the seeds of `preview`"""
    loras: tuple[FrozenLora, ...] = ()
    """LoRA files, each at every strength; with these, empty `saved_steps` means no saved step"""
    partner: ModelPlan | None = internal(None, "changed")
    """the untrained expert, if a run of one expert is rendered with both"""
    partner_digest: str = internal("", "changed")

    @property
    def columns(self) -> list[Column]:
        """The base model if `baseline`, then every saved step and LoRA file at every strength."""
        loras = [
            Column(f"step-{step:06d}_s{strength}", step, strength)
            for step in self.saved_steps
            for strength in self.strengths
        ] + [
            Column(f"lora-{_name_of(lora)}_s{strength}", None, strength, lora.stronger(strength))
            for lora in self.loras
            for strength in self.strengths
        ]
        return [Column(_BASE), *loras] if self.baseline else loras

    @property
    def rows(self) -> list[Row]:
        """Every prompt with every seed; without prompts one row, for the first caption."""
        prompts = range(max(1, len(self.preview.prompt_keys)))
        return [Row(prompt, seed) for prompt in prompts for seed in self.seeds or (None,)]

    def cell(self, row: Row, column: Column) -> Cell:
        """Returns the clip of a row in a column: step-000250_s1.0_p0, or step-000250_s1.0_d7_p0_nickname."""
        variant = column.name if row.seed is None else f"{column.name}_d{row.seed}"
        name = f"{variant}_p{row.prompt}"
        return Cell(self.preview.clip_name(variant, row.prompt) if self.preview.prompt_keys else name, row, column)

    def cells(self) -> list[Cell]:
        """Returns the clips row by row, so that each is soon comparable with its base model.

        Raises ConfigError for more than `_MOST_CELLS`.
        """
        rows, columns = self.rows, self.columns
        refuse_too_many(len(rows), len(columns))
        return [self.cell(row, column) for row in rows for column in columns]


def refuse_too_many(rows: int, columns: int) -> None:
    """Raises ConfigError for more clips than `_MOST_CELLS`."""
    if rows * columns > _MOST_CELLS:
        raise ConfigError(
            f"{rows} rows (prompts x seeds) of {columns} clips (steps or LoRAs x strengths, base model) "
            f"are {rows * columns} clips; at most {_MOST_CELLS} are rendered at once. Choose fewer."
        )


def _name_of(lora: FrozenLora) -> str:
    """Returns the name of a LoRA file for ids, with a hash of its content and strengths."""
    mark = hashlib.sha256(json.dumps(lora.acts()).encode()).hexdigest()[:6]
    return f"{file_name_of(lora.name)[:24]}-{mark}"
