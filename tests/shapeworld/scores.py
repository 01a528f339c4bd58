"""From judgements to counts, and from counts to what must hold and the tables people read."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from .judge import ConceptMatch, WordMatch

SURE = 0.98  # a model exactly at a limit passes a sample with this probability


@dataclass(frozen=True)
class Count:
    """`right` of `of` clips."""

    right: int
    of: int

    @property
    def share(self) -> float:
        return self.right / self.of if self.of else 0.0

    @classmethod
    def over(cls, found: Iterable[bool]) -> Count:
        every = list(found)
        return cls(sum(every), len(every))

    def __str__(self) -> str:
        return f"{self.right} of {self.of} ({self.share:.0%})"


def _counts(score: type[WordScore] | type[ConceptScore], found: Sequence[Any]) -> dict[str, Count]:
    """A count for every field of a score, over the matches' fields of the same name."""
    return {part.name: Count.over(getattr(one, part.name) for one in found) for part in fields(score)}


@dataclass(frozen=True)
class WordScore:
    """How often clips show what their captions say."""

    colour: Count
    shape: Count
    direction: Count
    all: Count

    @classmethod
    def over(cls, found: Sequence[WordMatch]) -> WordScore:
        return cls(**_counts(cls, found))

    def kept(self, before: WordScore) -> dict[str, float]:
        """Each share as a part of what it was; 1.0 where there was nothing to lose."""
        out: dict[str, float] = {}
        for part in fields(self):
            was, now = getattr(before, part.name).share, getattr(self, part.name).share
            out[part.name] = now / was if was else 1.0
        return out


@dataclass(frozen=True)
class ConceptScore:
    """How often clips show the concept; `all`: its shape on its path in its colour."""

    shape: Count
    path: Count
    colour: Count
    all: Count

    @classmethod
    def over(cls, found: Sequence[ConceptMatch]) -> ConceptScore:
        return cls(**_counts(cls, found))


@dataclass(frozen=True)
class Check:
    """One thing that must hold, with what was measured and what was asked for."""

    name: str
    measured: str
    wanted: str
    holds: bool

    @classmethod
    def least(cls, name: str, count: Count, share: float, *, exact: bool) -> Check:
        """At least `share`; in a small sample (not `exact`) what a model at that share still reaches, but not none."""
        need = math.ceil(share * count.of - 1e-9) if exact else max(least_right(share, count.of), math.ceil(share))
        return cls(name, str(count), f">= {need} of {count.of}", count.right >= need)

    @classmethod
    def most(cls, name: str, count: Count, share: float, *, exact: bool) -> Check:
        limit = math.floor(share * count.of + 1e-9) if exact else most_right(share, count.of)
        return cls(name, str(count), f"<= {limit} of {count.of}", count.right <= limit)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def least_right(share: float, of: int) -> int:
    """The largest number that `of` clips, each right with probability `share`, reach with probability SURE."""
    below = 0.0
    for right in range(of + 1):
        below += math.comb(of, right) * share**right * (1 - share) ** (of - right)
        if below > 1 - SURE:
            return right
    return of


def most_right(share: float, of: int) -> int:
    """The smallest number that `of` clips, each right with probability `share`, stay at or below so surely."""
    return of - least_right(1 - share, of)


def markdown_table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "| " + " | ".join("---" for _ in head) + " |"]
    lines += ["| " + " | ".join(str(cell) for cell in row) + " |" for row in rows]
    return "\n".join(lines)
