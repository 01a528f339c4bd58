"""Predicts two cards of a split model that work at once, with the order recorded from the engine. No GPU is needed.

    python benchmarks/cards_at_once.py        # writes results/cards_at_once_<yyyy-mm>.md

A tiny model is trained on the CPU by the schedule of each row; what its threads issued is replayed by the event model
(`wan_core/parallel/timeline.py`) with the block times of the real model (`wan_core/plan/split_time.py`).
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import torch
from torch import Tensor

from benchmarks.predicted_steps import Row, job_of
from benchmarks.result_files import write_page
from tests.support.tiny_run import TINY, random_weights
from wan_core.lora import LoraConfig, inject_lora
from wan_core.model import WanTransformer
from wan_core.model.walk import StayHere, Walk
from wan_core.parallel.pipeline import Pipeline, stages_of
from wan_core.parallel.schedule import Schedule, in_turn, pipelined
from wan_core.parallel.timeline import PEER_BYTES_PER_S, STAGED_BYTES_PER_S, StageCost, replay
from wan_core.placement import MemoryMeasures, Placement
from wan_core.placement.config import INTERLEAVED
from wan_core.placement.plan import split_blocks
from wan_core.plan.cards import Card, card_named
from wan_core.plan.split_time import split_step

CPU = (torch.device("cpu"), torch.device("cpu", 0))
"""two names of one device: two cards to the engine"""
CUDA = [torch.device("cuda", 0), torch.device("cuda", 1)]


class Pair(NamedTuple):
    """Two cards, how the blocks of a 14B model lie on them, and what they are called in the table."""

    cards: tuple[str, str]
    split_at: str
    said: str


class Micro:
    """Micro-batches of one still image of a tiny model."""

    def __init__(self, model: WanTransformer) -> None:
        self._model = model

    def begin(self, micro: int) -> Walk:
        return self._model.walk(torch.ones(1, 16, 1, 4, 4), torch.ones(1), torch.ones(1, 4, 4096), carrier=StayHere())

    def end(self, micro: int, predicted: Tensor) -> Tensor:
        return predicted.square().mean()

    def check(self) -> None:
        pass

    def seed(self, micro: int) -> None:
        pass


def tiny(layers: int) -> WanTransformer:
    shape = replace(TINY, num_layers=layers)
    model = WanTransformer(shape)
    model.load_state_dict(random_weights(shape))
    model.requires_grad_(False)
    inject_lora(model, LoraConfig(rank=2), seed=0)
    model.checkpoint_blocks = True
    return model


def recorded(homes: Sequence[int], schedule: Schedule) -> Schedule:
    """Returns what the threads of the engine issued when they ran `schedule`."""
    pipeline = Pipeline(tiny(len(homes)), stages_of(Placement(tuple(CPU[home] for home in homes))))
    pipeline.run(schedule, Micro(pipeline.model))
    lines = [[work for work in pipeline.issued if homes[work.stage] == card] for card in (0, 1)]
    return Schedule(tuple(map(tuple, lines)))


def costs_of(pair: Pair, folder: Path) -> tuple[tuple[StageCost, ...], tuple[int, ...]]:
    """Returns the costs of the stages of a 14B job at 832x480x49, rank 32, every block checkpointed."""
    job = job_of(Row(pair.cards[0], "wan2.1-t2v-14B", (832, 480, 49), 32, "", "", "fp8_e4m3fn"), folder)
    placement = split_blocks(CUDA, job.file.variant.shape.num_layers, pair.split_at)
    job = replace(job, placement=placement)
    shape = job.shape()
    cards = [card for name in pair.cards if isinstance(card := card_named(name), Card)]
    found = split_step(shape, job.step, job.estimate(shape, MemoryMeasures()), cards, 1)
    return found.costs, found.homes


def bound(homes: Sequence[int], micro_batches: int) -> float:
    """Returns the gain of cards that lose nothing: 2m / (m + 1) of two equal ones, with runs of blocks m + 1 / runs."""
    return 2 * micro_batches / (micro_batches + 2 / len(homes))


def rows_of_equal_cards(folder: Path) -> list[str]:
    lines: list[str] = []
    for split_at in ("midpoint", INTERLEAVED):
        costs, homes = costs_of(Pair(("RTX 5090", "RTX 5090"), split_at, ""), folder)
        for count in (2, 4, 8):
            order = recorded(homes, pipelined(homes, count))
            naive = recorded(homes, in_turn(homes, count))
            cells = [split_at, str(count)]
            for link in (PEER_BYTES_PER_S, STAGED_BYTES_PER_S):
                before = replay(naive, costs, bytes_per_s=link).seconds
                cells.append(f"{before / replay(order, costs, bytes_per_s=link).seconds:.2f}")
            kept = [order.kept(card, dict.fromkeys(range(len(homes)), 2 / len(homes))) for card in (0, 1)]
            cells += [f"{bound(homes, count):.2f}", f"{kept[0]:g}, {kept[1]:g}"]
            lines.append(f"| {' | '.join(cells)} |")
    return lines


PAIRS = (
    Pair(("RTX 4090", "RTX 4070"), "28", "24 + 12 GB, by memory (auto)"),
    Pair(("RTX 4090", "RTX 4070"), "30", "24 + 12 GB, by time"),
    Pair(("RTX 3090", "RTX 4070"), "22", "24 + 12 GB, by time"),
)


def rows_of_unequal_cards(folder: Path) -> list[str]:
    """Returns the seconds of a step on cards of two kinds, and the ideal ones."""
    lines: list[str] = []
    for pair in PAIRS:
        costs, homes = costs_of(pair, folder)
        for count in (4, 8):
            order = recorded(homes, pipelined(homes, count))
            seconds = replay(order, costs, bytes_per_s=STAGED_BYTES_PER_S).seconds
            ideal = ideal_seconds(pair, folder, count)
            cells = [" + ".join(pair.cards), f"{pair.said}, {pair.split_at}", str(count)]
            lines.append(f"| {' | '.join(cells)} | {seconds:.0f} | {ideal:.0f} | {ideal / seconds:.2f} |")
    return lines


def ideal_seconds(pair: Pair, folder: Path, micro_batches: int) -> float:
    """Returns the seconds of a pipeline whose work is divided by speed to a hair, with no copies and no waits."""
    alone = [costs_of(Pair((name, name), "20", ""), folder)[0] for name in pair.cards]
    of_all = [sum(cost.forward_s + cost.backward_s for cost in costs) for costs in alone]
    together = 1 / sum(1 / seconds for seconds in of_all)
    return together * (micro_batches + 1)


def page(folder: Path) -> str:
    return "\n".join(
        [
            "# Cards at once",
            "",
            "Written by `python benchmarks/cards_at_once.py`. Nothing here was measured on a GPU: orders are recorded",
            "from the engine's threads (a tiny model on the CPU), and replayed by the event model with the predicted",
            "block times of Wan 2.1 14B in fp8 on an RTX 5090, 832x480x49, rank 32, every block checkpointed. Times as",
            "fast as one card after the other (plain accumulation), by links between the cards of 25 GB/s, and of 10",
            "GB/s (staged through host memory).",
            "",
            "| split_at | micro-batches | 25 GB/s | 10 GB/s | loses nothing | micro-batches kept, card 0, 1 |",
            f"|{' --- |' * 6}",
            *rows_of_equal_cards(folder),
            "",
            "Loses nothing: 2m / (m + 1), or 2m / (m + 1/2) with two runs of blocks a card. A step of 4 micro-batches:",
            "",
            "```",
            str(pipelined((0, 1), 4)),
            "",
            str(pipelined((0, 1, 0, 1), 4)),
            "```",
            "",
            "## Unequal cards",
            "",
            "Ideal: the work divided by speed to a hair, two stages of equal time, m + 1 of them, no copies. A split",
            "by blocks can be a little faster where its first stage is the shorter one. Links of 10 GB/s.",
            "",
            "| cards | split | micro-batches | predicted s | ideal s | ideal / predicted |",
            f"|{' --- |' * 6}",
            *rows_of_unequal_cards(folder),
            "",
        ]
    )


if __name__ == "__main__":
    write_page("cards_at_once", page)
