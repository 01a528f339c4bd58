"""Ranks that share out the tokens of a clip: the gradients of one model, by all-to-all and by a ring."""

from __future__ import annotations

import itertools
import json
import os
from pathlib import Path

import pytest

from tests.support.forked import ForkServer
from tests.wan_core.parallel.test_tokens import KINDS
from wan_core.errors import ConfigError
from wan_core.model import POLICIES
from wan_core.parallel import exchange_of, sent_bytes

SCRIPT = Path(__file__).parents[2] / "support" / "context_ranks.py"
FURTHEST = {"float64": 1e-11, "float32": 1e-6}
EVERY = ["/".join(one) for one in itertools.product(KINDS, ("-", "routed"), ("-", *POLICIES), ("float64",))]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="ranks are forked")
@pytest.mark.parametrize(
    ("ranks", "kinds"),
    [
        pytest.param(
            2,
            [
                "text to video/-/-/float32",
                "reference image/-/full/float64",
                "control stream/routed/attn_output/float64",
            ],
            marks=pytest.mark.lasts(2),
        ),
        *(pytest.param(ranks, EVERY, marks=[pytest.mark.soak, pytest.mark.lasts(60)]) for ranks in (2, 3, 4)),
    ],
    ids=("ci", "2", "3", "4"),
)
def test_gradients_are_those_of_one_model(server: ForkServer, tmp_path: Path, ranks: int, kinds: list[str]) -> None:
    """15 tokens of a frame and 5 heads, which none of these numbers divides but 3."""
    words = [str(tmp_path / "store"), str(ranks), *kinds]
    worker = server.start(words, tmp_path / "ranks", script=str(SCRIPT))
    assert worker.wait() == 0, worker.log()[-3000:]
    (line,) = [line for line in worker.out.read_text().splitlines() if line.startswith("{")]
    report = json.loads(line)
    assert list(report) == kinds
    for kind, by_exchange in report.items():
        for exchange, (far, sent) in by_exchange.items():
            assert far < FURTHEST[kind.rpartition("/")[2]], (kind, exchange)
            # What is sent again is known for a layer that is recomputed, and no layer of VACE is trained here.
            if not kind.startswith("control") and kind.split("/")[2] in ("-", "full"):
                assert sent == pytest.approx(1.0, abs=1e-9 if exchange == "ring" else 0.1), (kind, exchange)


def test_heads_that_divide_are_exchanged_and_others_go_round() -> None:
    found = {(heads, parts): exchange_of("auto", heads, parts) for heads in (12, 24, 40) for parts in (2, 4, 5, 8)}
    ring = {pair for pair, exchange in found.items() if exchange == "ring"}
    assert ring == {(12, 5), (12, 8), (24, 5)}
    assert (exchange_of("ring", 40, 2), exchange_of("all-to-all", 12, 8)) == ("ring", "all-to-all")
    with pytest.raises(ConfigError, match=r"some of the 12 heads of this model\. Set .* to ring\.$"):
        exchange_of("all-to-all", 12, 16)


def test_a_ring_sends_more_the_more_ranks_there_are_and_all_to_all_less() -> None:
    """14B at 832x480x49: 20,280 tokens of 5,120 values in bfloat16, 40 layers, each recomputed."""
    layers, again = [20_280] * 40, 40 * 20_280
    sent = {
        (exchange, cards): tuple(round(one / 1e9, 2) for one in sent_bytes(exchange, cards, layers, again, 5120, 2))
        for exchange in ("all-to-all", "ring")
        for cards in (1, 2, 4, 8)
    }
    assert sent == {
        ("all-to-all", 1): (0.0, 0.0),
        ("all-to-all", 2): (8.31, 16.61),
        ("all-to-all", 4): (6.23, 12.46),
        ("all-to-all", 8): (3.63, 7.27),
        ("ring", 1): (0.0, 0.0),
        ("ring", 2): (8.31, 33.23),
        ("ring", 4): (12.46, 49.84),
        ("ring", 8): (14.54, 58.15),
    }
