"""The order in which cards work, and what the event model makes of it."""

from __future__ import annotations

from itertools import product

import pytest

from wan_core.parallel.schedule import Work, forward_first, in_order, in_turn, pipelined
from wan_core.parallel.timeline import STAGED_BYTES_PER_S, StageCost, replay

PLAIN, INTERLEAVED = (0, 1), (0, 1, 0, 1)


def costs(stages: int) -> list[StageCost]:
    """A 14B step at 832x480x49 on a 5090: 8 s forward, 26 s backward, tokens of 415 MB."""
    cost = StageCost(8 / stages, 26 / stages, 415_000_000)
    return [cost] * stages


def test_two_cards_work_in_1f1b_order() -> None:
    assert str(pipelined(PLAIN, 4)) == (
        "card 0: F0.0 F0.1 B0.0 F0.2 B0.1 F0.3 B0.2 B0.3\ncard 1: F1.0 B1.0 F1.1 B1.1 F1.2 B1.2 F1.3 B1.3"
    )
    assert [pipelined(PLAIN, 8).kept(card) for card in (0, 1)] == [2, 1], "and not as many as there are micro-batches"
    assert [forward_first(PLAIN, 8).kept(card) for card in (0, 1)] == [8, 8]


@pytest.mark.parametrize("homes", [PLAIN, INTERLEAVED, (0, 1, 2), (0, 1, 2, 3), (0, 1, 2, 0, 1, 2)])
@pytest.mark.parametrize("micro_batches", [1, 2, 3, 5, 8])
def test_every_schedule_is_complete_and_waits_for_nothing_behind_it(homes: tuple[int, ...], micro_batches: int) -> None:
    for make in (pipelined, forward_first, in_turn):
        schedule = make(homes, micro_batches)
        listed = [work for line in schedule.cards for work in line]
        every = {Work(*one) for one in product((True, False), range(len(homes)), range(micro_batches))}
        assert len(listed) == len(every)
        assert set(listed) == set(in_order(schedule)) == every
        assert schedule.card_of == dict(enumerate(homes))
        for line in schedule.cards:  # else gradients would add up in another order
            for stage in range(len(homes)):
                for forward in (True, False):
                    micros = [work.micro for work in line if work[:2] == (forward, stage)]
                    assert micros == sorted(micros)


@pytest.mark.parametrize(
    ("homes", "micro_batches", "goal"),
    [(PLAIN, 4, 1.55), (PLAIN, 8, 1.7), (INTERLEAVED, 4, 1.65), (INTERLEAVED, 8, 1.8)],
)
@pytest.mark.parametrize("bytes_per_s", [25e9, STAGED_BYTES_PER_S])
def test_the_event_model_reaches_the_goals(
    homes: tuple[int, ...], micro_batches: int, goal: float, bytes_per_s: float
) -> None:
    cost = costs(len(homes))
    before = replay(in_turn(homes, micro_batches), cost, bytes_per_s=bytes_per_s)
    found = replay(pipelined(homes, micro_batches), cost, bytes_per_s=bytes_per_s)
    bound = 2 * micro_batches / (micro_batches + 2 / len(homes))
    every = 34 * micro_batches
    sent = 2 * (len(homes) - 1) * micro_batches * (415e6 / bytes_per_s + 50e-6)
    assert before.seconds == pytest.approx(every + sent), "plain accumulation works and sends one after the other"
    assert goal <= before.seconds / found.seconds <= bound + 0.01


def test_a_card_waits_for_the_work_and_the_link_before_its_own() -> None:
    found = replay(pipelined(PLAIN, 2), costs(2), bytes_per_s=415e6)
    begins = {str(span.work): round(span.begin) for line in found.cards for span in line}
    assert begins == {"F0.0": 0, "F0.1": 4, "B0.0": 23, "B0.1": 41, "F1.0": 5, "B1.0": 9, "F1.1": 23, "B1.1": 27}
    assert replay(pipelined(PLAIN, 2), costs(2)).idle == pytest.approx(1 / 3, abs=0.01)
