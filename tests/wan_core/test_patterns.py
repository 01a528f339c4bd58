"""A regular expression of a user is refused in good time, before a folder is made, and never hangs a process."""

from __future__ import annotations

import re
import sys
import time

import pytest
import torch

import wan_core.patterns as patterns
from tests.support.tiny_run import TINY
from wan_core.errors import ConfigError
from wan_core.lora import TARGET_PRESETS, LoraConfig, check_targets
from wan_core.model import WanTransformer
from wan_core.patterns import matching
from wan_core.precision import QuantizeConfig
from wan_core.train import TrainConfig, check_rates

ENDLESS = (r"(([a-z0-9_.])+)+!", r"(?:.*.*)*!", r"(\w+\.?)+!", r".*.*.*.*.*.*.*.*.*!")


def names() -> list[str]:
    with torch.device("meta"):
        return [name for name, _ in WanTransformer(TINY).named_modules()]


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patterns, "LIMIT_S", 0.2)


# minutes for a name of 16 characters, or hours; the third without a single repeat, the last one past a blank
@pytest.mark.lasts(1)
@pytest.mark.parametrize(
    "pattern",
    [
        r"(?:.*.*)*!",
        pytest.param(r"(?:\w*\w*)*!", marks=pytest.mark.soak),
        pytest.param("(?:.|[^!]|..)" * 20 + "!", marks=pytest.mark.soak),
        pytest.param("(?x)(?:.|.|.|.) +!", marks=pytest.mark.soak),
    ],
)
def test_a_pattern_that_would_never_end_is_refused_for_targets_and_for_quantizing(
    impatient: None, pattern: str
) -> None:
    with torch.device("meta"):
        model = WanTransformer(TINY)
    began = time.thread_time()
    with pytest.raises(
        ConfigError, match=r"LoRA target .* takes more than 0 s to be matched with \d+ names.*\. Write it"
    ):
        check_targets(model, LoraConfig(targets=(r"blocks\.\d+\.ffn\.0", pattern)))
    with pytest.raises(ConfigError, match=r"exclude .* takes more than"):
        QuantizeConfig(exclude=pattern).check_names(names())
    with pytest.raises(ConfigError, match=r"lr_patterns .* takes more than"):
        check_rates(TrainConfig(lr_patterns=(f"{pattern} = 2",)), names())
    with pytest.raises(ConfigError, match=r"rank_patterns .* takes more than"):
        check_targets(model, LoraConfig(rank_patterns=(f"{ENDLESS[0]} = 4",)))
    assert time.thread_time() - began < 5, "nobody matches in this process"


@pytest.mark.lasts(2)
def test_many_slow_patterns_share_one_limit_and_the_one_that_is_too_slow_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each had the limit for itself, and forty of them forty times that."""
    fine = [rf"(blocks|b{number})(\.\w+)+" for number in range(20)]
    endless = [rf"(?:\w*\w*)*!{number}" for number in range(20)]
    monkeypatch.setattr(patterns, "LIMIT_S", 1.5)
    with pytest.raises(ConfigError, match=r"!0' takes more than 2 s .*, with 20 before it\."):
        matching([*fine, *endless], names(), "LoRA target", whole=True)
    assert len(matching(fine, names(), "LoRA target", whole=True)) == 20


@pytest.mark.soak
@pytest.mark.parametrize("pattern", ENDLESS)
def test_every_kind_of_endless_pattern_ends(impatient: None, pattern: str) -> None:
    with pytest.raises(ConfigError, match="takes more than"):
        matching([pattern], [name * 2 for name in names()], "exclude", whole=False)


def test_python_matches_as_it_does_in_this_process() -> None:
    asked = [
        r"(blocks|vace_blocks)(\.\w+)+",
        r"(?i)BLOCKS\.0\..*",
        r"blocks\.(\d)\.\w+\.(?!q).*",
        r"(?P<a>b).*",
        "",
        "é|🎬.*",
    ]
    known = [*names(), "é", "🎬x", "", "a\nb"]
    for whole in (True, False):
        found = matching(asked, known, "include", whole=whole)
        for pattern, matched in zip(asked, found, strict=True):
            how = re.fullmatch if whole else re.search
            assert matched == {name for name in known if how(pattern, name)}, pattern


def test_what_was_asked_once_needs_no_process_again(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = matching([r"blocks\.0\..*"], names(), "rank_patterns", whole=True)
    monkeypatch.setattr(patterns.subprocess, "run", None)
    assert matching([r"blocks\.0\..*"] * 2, names(), "lr_patterns", whole=True) == wanted * 2


def test_layers_and_presets_of_this_pack_need_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patterns.subprocess, "run", None)
    with torch.device("meta"):
        model = WanTransformer(TINY)
    for preset in TARGET_PRESETS.values():
        assert (preset == TARGET_PRESETS["all linears"]) or check_targets(model, LoraConfig(targets=preset))
    QuantizeConfig().check_names(names())
    check_rates(TrainConfig(), names())


def test_a_config_of_anyone_is_made_without_a_look_at_its_patterns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lists of runs make configs of every run.json that lies in their folder."""
    monkeypatch.setattr(patterns.subprocess, "run", None)
    monkeypatch.setattr(patterns.re, "compile", None)
    slow = tuple(f"(?i)[\\x00-\\U0010ffff]{{{number}}}" for number in range(300))
    lora = LoraConfig.from_dict({"targets": list(slow), "rank_patterns": [f"{one} = 4" for one in slow]})
    TrainConfig.from_dict({"lr_patterns": [f"{one} = 2" for one in slow]})
    QuantizeConfig.from_dict({"include": slow[0], "exclude": "("})
    assert lora.targets == slow


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [
        ("(", r"is not a regular expression: missing \), unterminated subpattern at position 0\."),
        ("x" * 3000, "has 3000 characters"),
        ("a{99999999999}", "too large"),
        ("(" * 1000 + ")" * 1000, "is not a regular expression"),
    ],
)
def test_what_is_no_pattern_is_refused(pattern: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        matching([pattern], (), "include", whole=False)


def test_more_patterns_than_anybody_writes_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"rank_patterns has 2001 patterns\. Use at most 2000\."):
        matching(["a"] * 2001, (), "rank_patterns", whole=True)


@pytest.mark.skipif(sys.platform != "linux", reason="no such limits of memory")
def test_a_pattern_that_takes_all_memory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    child = patterns._CHILD.replace("1 << 30", "40 << 20")
    monkeypatch.setattr(patterns, "_CHILD", child)
    with pytest.raises(ConfigError, match=r"include '.*' takes too much memory to be matched with 1 names\. Write it"):
        matching(["(?:(a)|b)*"], ["ab" * 5_000_000], "include", whole=True)


def test_each_target_is_matched_alone() -> None:
    """Their groups may have the same names and numbers."""
    lora = LoraConfig(targets=(r"(?P<a>blocks)\.0\..*", r"(?P<a>blocks)\.(\d)\.ffn\.\d", r"(?i)HEAD\.HEAD"))
    known = ["blocks.0.ffn.0", "blocks.1.ffn.0", "blocks.1.self_attn.q", "head.head"]
    assert lora.targeted(known) == ["blocks.0.ffn.0", "blocks.1.ffn.0", "head.head"]


def test_a_name_that_was_matched_before_starts_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model of 400 linears asks about each alone, after all at once."""
    linears = [f"blocks.{number}.ffn.0" for number in range(40)]
    config = QuantizeConfig(include=r"ffn\.0$", exclude=r"blocks\.1\d\.")
    config.check_names(linears)
    started, run = [], patterns.subprocess.run
    monkeypatch.setattr(patterns.subprocess, "run", lambda *words, **how: started.append(words) or run(*words, **how))
    assert [number for number, name in enumerate(linears) if config.selects(name)] == [*range(10), *range(20, 40)]
    assert started == []
    assert not config.selects("blocks.40.ffn.2")
    assert len(started) == 1, "a new name is matched, once"
    assert not config.selects("blocks.40.ffn.2")
    assert len(started) == 1


def test_names_that_are_forgotten_are_those_of_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread that reads what it knows of a pattern keeps it while another one makes room."""
    monkeypatch.setattr(patterns, "_REMEMBERED", 2)
    known = patterns._known("remembered", True)
    known.update(dict.fromkeys("abc", True))
    assert patterns._known("remembered", True) == {}
    assert [*known] == ["a", "b", "c"]
