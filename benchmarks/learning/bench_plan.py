"""Which cells of the bench come next: a pure function of the finished lines, so that any process can go on from them.

Arms, a recipe at a rate, race: each round runs the arms that are left on more concepts and keeps the best of them.
Rounds of different races go on at once, in the order of `_ORDER`. Wanted are, once they are all finished:

- the field's recipes and ours at five rates, down to the best rate of each, on all concepts (ComfyUI's by --comfyui);
- the candidates, and each optimizer at its best of three rates, down to the best eight on all concepts;
- the two, three and four candidates that gained most alone and do not collide, together, on all concepts;
- ours, the best three of the above and the best of the field at 100, 200 and 800 steps;
- ours and the best of the field judged while they train (`bench_cell.BenchStudy.steps_cell`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from learning.bench_candidates import AND, CANDIDATES, OPTIMIZERS, OURS, collide, merged_rate, recipe_of
from learning.bench_file import CELL, FAILED, STEPS, Line, key_of
from learning.bench_recipes import RECIPES, BenchRecipe

LENGTH = 400
"""optimizer steps of every race"""
OTHER_LENGTHS = (100, 200, 800)
TOGETHER = (2, 3, 4)
"""candidates that are merged"""
BEST = 3
"""recipes that are run at other lengths"""


class Arm(NamedTuple):
    recipe: str
    rate: float


class Round(NamedTuple):
    concepts: int
    """the first of them"""
    arms: int
    """how many run, the best ones after the round before"""


RATES = (Round(3, 5), Round(6, 2), Round(20, 1))
RATES_OF_OPTIMIZERS = (Round(3, 3), Round(6, 1))
SCREENING = (Round(3, 1_000), Round(6, 16))
FINALS = (Round(12, 8), Round(20, 5))
_ORDER = (
    *("rates 0", "screening 0", "rates 1", "screening 1", "rates 2", "optimizers 0", "optimizers 1", "finals 0"),
    *("finals 1", "together 0", "while training", "lengths"),
)


@dataclass
class Plan:
    """Wanted cells by rounds, given the finished lines; `concepts` are the seeds for choosing, in order."""

    lines: Sequence[Line]
    concepts: Sequence[int]
    comfyui: bool = False
    """run ComfyUI's own trainer too"""
    wanted: dict[str, list[Line]] = field(default_factory=dict[str, list[Line]])
    last: list[Arm] = field(default_factory=list[Arm])
    """for the unseen concepts: every recipe of the field and ours at its best rate, and the best of the rest; empty
    until these are known"""

    def __post_init__(self) -> None:
        self._known = {key_of(line) for line in self.lines if line["kind"] in (CELL, STEPS)}
        self._shares = {
            key_of(line): line["all"] / line["clips"]
            for line in self.lines
            if line["kind"] == CELL and line["concept"] in self.concepts
        }
        self._failed = {Arm(line["recipe"], line["rate"]) for line in self.lines if line["kind"] == FAILED}
        self._set_up()

    def cells(self) -> list[Line]:
        """Every cell that can be decided on now, the next one first; of a round, the longest first."""

        def cost(cell: Line) -> float:
            return recipe_of(cell["recipe"]).cost * cell["steps"]

        found = [cell for stage in _ORDER for cell in sorted(self.wanted.get(stage, []), key=cost, reverse=True)]
        return list({key_of(cell): cell for cell in found}.values())

    def on_unseen(self, concepts: Sequence[int]) -> list[Line]:
        """The missing cells of `last` on the unseen concepts."""
        cells = [_cell(arm, concept, LENGTH) | {"unseen": True} for arm in self.last for concept in concepts]
        return [cell for cell in cells if key_of(cell) not in self._known]

    def _set_up(self) -> None:
        runnable = [recipe for recipe in RECIPES.values() if self.comfyui or recipe.trainer != "comfyui"]
        of_field = [self.race("rates", _arms(recipe), RATES) for recipe in runnable]
        of_optimizers = [self.race("optimizers", _arms(recipe), RATES_OF_OPTIMIZERS) for recipe in OPTIMIZERS]
        ours = Arm(OURS.name, OURS.own_rate)
        self._want("rates 1", ours, self.concepts)  # what candidates are compared with, whichever rate wins
        screened = self.race("screening", [arm for recipe in CANDIDATES for arm in _arms(recipe)], SCREENING)
        optimizers, rates = _flat(of_optimizers), _flat(of_field)
        if screened is None or optimizers is None:
            return
        finals = self.race("finals", [*screened, *optimizers], FINALS, seen=SCREENING[-1].concepts)
        if finals is None or rates is None:
            return
        others = rates[1:]
        merged = self.race("together", self.merged(ours), (Round(20, 3),))
        if merged is None:
            return
        count = len(self.concepts)
        self.last = list(dict.fromkeys((ours, *rates, *self.best([*finals, *merged], 1, count))))
        field_best = self.best(others, 1, count)
        for arm in (ours, *field_best):
            self._want("while training", arm, self.concepts, LENGTH, STEPS)
        for arm in dict.fromkeys((rates[0], *field_best, *self.best([*finals, *merged], BEST, count))):
            for steps in OTHER_LENGTHS:
                self._want("lengths", arm, self.concepts, steps)

    def race(self, name: str, arms: Sequence[Arm], rounds: Sequence[Round], seen: int = 0) -> list[Arm] | None:
        """Arms that are left after all rounds, best first; None, with the missing cells wanted, until then.

        `seen`: concepts that the arms were run on before; 0 = the first round takes all of them.
        """
        left = list(arms)
        for number, one in enumerate(rounds):
            left = self.best(left, one.arms, seen)
            if any([self._want(f"{name} {number}", arm, self.concepts[: one.concepts]) for arm in left]):
                return None
            seen = one.concepts
        return self.best(left, len(left), seen)

    def merged(self, ours: Arm) -> list[Arm]:
        """The candidates that gained most on the concepts that they were run on, by twos, threes and fours."""
        gains = {arm: self.gain(arm, ours) for recipe in (*CANDIDATES, *OPTIMIZERS) for arm in _arms(recipe)}
        parts: list[Arm] = []
        for arm in sorted(gains, key=lambda arm: -gains[arm]):
            recipe = recipe_of(arm.recipe)
            if gains[arm] > 0 and not any(collide(recipe, recipe_of(part.recipe)) for part in parts):
                parts.append(arm)
        return [
            Arm(AND.join(part.recipe for part in some), merged_rate([part.rate for part in some]))
            for some in (parts[:count] for count in TOGETHER if count <= len(parts))
        ]

    def gain(self, arm: Arm, ours: Arm, least: int = FINALS[0].concepts) -> float:
        """Mean difference to ours in shares, over the concepts of both; 0 on fewer than `least`."""
        mine, other = self._shares_of(arm), self._shares_of(ours)
        both = [mine[concept] - other[concept] for concept in mine if concept in other]
        return float(np.mean(both)) if len(both) >= least else 0.0

    def best(self, arms: Sequence[Arm], count: int, concepts: int) -> list[Arm]:
        """The arms that did not fail with the best mean over the first concepts, the best first."""
        among = self.concepts[:concepts]

        def mean(arm: Arm) -> float:
            own = self._shares_of(arm)
            return float(np.mean([own.get(concept, 0.0) for concept in among])) if among else 0.0

        return sorted((arm for arm in arms if arm not in self._failed), key=lambda arm: -mean(arm))[:count]

    def _shares_of(self, arm: Arm) -> dict[int, float]:
        found = {}
        for concept in self.concepts:
            key = key_of(_cell(arm, concept, LENGTH))
            if key in self._shares:
                found[concept] = self._shares[key]
        return found

    def _want(self, stage: str, arm: Arm, concepts: Sequence[int], steps: int = LENGTH, kind: str = CELL) -> bool:
        """Whether a cell is missing; it is wanted then."""
        cells = [_cell(arm, concept, steps) | {"kind": kind} for concept in concepts]
        missing = [cell for cell in cells if key_of(cell) not in self._known and arm not in self._failed]
        self.wanted.setdefault(stage, []).extend(missing)
        return bool(missing)


def _flat(races: Sequence[list[Arm] | None]) -> list[Arm] | None:
    """The winners of races in their order; None while one goes on."""
    done = [arms for arms in races if arms is not None]
    return [arm for arms in done for arm in arms] if len(done) == len(races) else None


def _arms(recipe: BenchRecipe) -> list[Arm]:
    return [Arm(recipe.name, rate) for rate in recipe.rates]


def _cell(arm: Arm, concept: int, steps: int) -> Line:
    return {"kind": CELL, "recipe": arm.recipe, "rate": arm.rate, "concept": concept, "seed": 0, "steps": steps}
