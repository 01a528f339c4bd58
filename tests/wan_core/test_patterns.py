"""A regular expression of a user is refused in good time, before a folder is made, and never hangs a process."""

from __future__ import annotations

import time

import pytest
import torch

import wan_core.patterns as patterns
from tests.support.tiny_run import TINY
from wan_core.errors import ConfigError
from wan_core.lora import LoraConfig, check_targets
from wan_core.model import WanTransformer
from wan_core.precision import QuantizeConfig

ENDLESS = (r"(([a-z0-9_.])+)+!", r"(?:.*.*)*!", r"(\w+\.?)+!", r".*.*.*.*.*.*.*.*.*!")


def names() -> list[str]:
    with torch.device("meta"):
        return [name for name, _ in WanTransformer(TINY).named_modules()]


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patterns, "LIMIT_S", 0.2)


# minutes for a name of 16 characters, or hours; the last one without a single repeat
@pytest.mark.lasts(1)
@pytest.mark.parametrize("pattern", [r"(?:.*.*)*!", r"(?:\w*\w*)*!", "(?:.|[^!]|..)" * 20 + "!"])
def test_a_pattern_that_would_never_end_is_refused_for_targets_and_for_quantizing(
    impatient: None, pattern: str
) -> None:
    with torch.device("meta"):
        model = WanTransformer(TINY)
    began = time.monotonic()
    with pytest.raises(
        ConfigError, match=r"LoRA target .* takes more than 0 s to be matched with \d+ names\. Write it"
    ):
        check_targets(model, LoraConfig(targets=(r"blocks\.\d+\.ffn\.0", pattern)))
    with pytest.raises(ConfigError, match=r"exclude .* takes more than"):
        QuantizeConfig(exclude=pattern).check_names(names())
    assert time.monotonic() - began < 20


@pytest.mark.lasts(2)
def test_many_slow_patterns_share_one_limit_and_the_one_that_is_too_slow_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each had the limit for itself, and forty of them forty times that."""
    fine = [rf"(blocks|b{number})(\.\w+)+" for number in range(20)]
    endless = [rf"(?:\w*\w*)*!{number}" for number in range(20)]
    monkeypatch.setattr(patterns, "LIMIT_S", 1.5)
    began = time.monotonic()
    with pytest.raises(ConfigError, match=r"!0' takes more than 2 s .*, with 20 before it\."):
        patterns.check_patterns([*fine, *endless], names(), "LoRA target", whole=True)
    assert time.monotonic() - began < 15
    assert patterns.check_patterns(fine, names(), "LoRA target", whole=True) is None


@pytest.mark.soak
@pytest.mark.parametrize("pattern", ENDLESS)
def test_every_kind_of_endless_pattern_ends(impatient: None, pattern: str) -> None:
    with pytest.raises(ConfigError, match="takes more than"):
        patterns.check_patterns([pattern], [name * 2 for name in names()], "exclude", whole=False)


@pytest.mark.parametrize(
    "pattern",
    [
        *LoraConfig().targets,
        "",
        "ffn|self_attn",
        r"blocks\.(0|1)\.",
        r"blocks\.\d+\..*",
        "blocks.[0-9]+.cross_attn.(q|k)",
    ],
)
def test_an_ordinary_pattern_is_not_worth_a_process(monkeypatch: pytest.MonkeyPatch, pattern: str) -> None:
    monkeypatch.setattr(patterns.subprocess, "run", None)
    patterns.check_patterns([pattern], names(), "include", whole=False)


def test_a_repeated_group_that_ends_is_taken() -> None:
    patterns.check_patterns([r"(blocks|vace_blocks)(\.\w+)+"], names(), "LoRA target", whole=True)


@pytest.mark.parametrize(
    ("pattern", "reason"), [("(", "missing"), ("x" * 3000, "has 3000 characters"), ("a{99999999999}", "too large")]
)
def test_what_is_no_pattern_is_refused(pattern: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        patterns.check_patterns([pattern], (), "include", whole=False)


def test_targets_that_are_no_pattern_together_are_refused() -> None:
    with pytest.raises(ConfigError, match="is not a regular expression"):
        LoraConfig(targets=("(?P<a>x)", "(?P<a>y)"))
