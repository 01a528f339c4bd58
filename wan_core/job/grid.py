"""The cells of a rendering: a row for each prompt and seed, a column for the base model and each step and strength."""

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
"""of one job: a day of sampling for a large model, and more than anybody compares"""
_BASE = "baseline"


@dataclass(frozen=True)
class Column:
    """The model that renders a column; without a step or a LoRA the base model."""

    name: str
    """how the ids of its clips begin"""
    step: int | None = None
    """of the saved step"""
    strength: float | None = None
    lora: FrozenLora | None = None
    """a LoRA file in place of the run's own; `strength` is counted in its strengths"""

    @property
    def is_base(self) -> bool:
        """Whether it shows the base model."""
        return self.step is None and self.lora is None


@dataclass(frozen=True)
class Row:
    """The prompt and seed of a row."""

    prompt: int
    """its number among the prompts"""
    seed: int | None = None
    """None: that of the settings"""


@dataclass(frozen=True)
class Cell:
    """One clip."""

    name: str
    """its id, and the name of its file"""
    row: Row
    column: Column


@dataclass(frozen=True, kw_only=True)
class SampleJob(Config):
    """Validation clips of a run: saved steps x strengths, beside the base model, of every prompt with every seed."""

    saved_steps: tuple[int, ...] = ()
    """empty: the latest"""
    strengths: tuple[float, ...] = (1.0,)
    baseline: bool = True
    """also the base model without LoRA"""
    preview: SampleConfig = field(default_factory=SampleConfig)
    seeds: tuple[int, ...] = ()
    """of the noise, in place of those of `preview`; empty: those"""
    loras: tuple[FrozenLora, ...] = ()
    """LoRA files to render too, each at every strength in columns of its own; with them no saved steps means none"""
    partner: ModelPlan | None = internal(None, "changed")
    """the other expert of a pair, where the run trains one alone: clips go through both; of both files the other one"""
    partner_digest: str = internal("", "changed")
    """of its files: clips of another one under the same name are others"""

    @property
    def columns(self) -> list[Column]:
        """The base model first, where it is asked for, then every saved step and LoRA file at every strength."""
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
        """Every prompt with every seed; without prompts, the first caption."""
        prompts = range(max(1, len(self.preview.prompt_keys)))
        return [Row(prompt, seed) for prompt in prompts for seed in self.seeds or (None,)]

    def cell(self, row: Row, column: Column) -> Cell:
        """Returns the clip of a row in a column: step-000250_s1.0_p0, or step-000250_s1.0_d7_p0_nickname."""
        variant = column.name if row.seed is None else f"{column.name}_d{row.seed}"
        name = f"{variant}_p{row.prompt}"
        return Cell(self.preview.clip_name(variant, row.prompt) if self.preview.prompt_keys else name, row, column)

    def cells(self) -> list[Cell]:
        """Lists the clips row by row, so that each stands beside its base model as soon as it is there.

        Raises ConfigError for more than anybody looks at.
        """
        rows, columns = self.rows, self.columns
        refuse_too_many(len(rows), len(columns))
        return [self.cell(row, column) for row in rows for column in columns]


def refuse_too_many(rows: int, columns: int) -> None:
    """Raises ConfigError for more clips than anybody looks at."""
    if rows * columns > _MOST_CELLS:
        raise ConfigError(
            f"{rows} rows (prompts x seeds) of {columns} clips (steps or LoRAs x strengths, base model) "
            f"are {rows * columns} clips; at most {_MOST_CELLS} are rendered in one go. Give fewer."
        )


def _name_of(lora: FrozenLora) -> str:
    """Returns the name of a LoRA file as a part of ids, with a mark of its content."""
    mark = hashlib.sha256(json.dumps(lora.acts()).encode()).hexdigest()[:6]
    return f"{file_name_of(lora.name)[:24]}-{mark}"
