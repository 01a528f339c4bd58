"""What a text of anyone costs grows with its length and no faster, so that no request, workflow or file holds a server.

Counted is the processor time of this thread, the least of several tries. A text ten times as long may cost ten times as
much, and three times that for the noise of a busy machine; what takes less than FLOOR_S is not judged. Only what holds
for HELD_S fails whatever came before. A function that takes text from outside gets rows in COSTS.
"""

from __future__ import annotations

import contextlib
import functools
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from route_server import our_module

from wan_core.checkpoint import CheckpointHeader
from wan_core.checkpoint.foreign_files import recognise
from wan_core.checkpoint.header import TensorInfo, parse_header
from wan_core.checkpoint.keys import canonical_names, to_original
from wan_core.dataset import DatasetConfig
from wan_core.dataset.captions import caption_with_trigger, estimated_tokens, tag_orders
from wan_core.errors import WanTrainerError
from wan_core.export.secrets import announces_a_secret, without_secrets
from wan_core.files import safe_name, with_safe_letters
from wan_core.lora import LoraConfig
from wan_core.lora.describe import is_lora
from wan_core.lora.names import parse_key
from wan_core.model.routing import read_routes
from wan_core.model.shape import block_of
from wan_core.sampler import read_prompts
from wan_core.sampler.prompts import file_name_of
from wan_core.train import TrainConfig
from wan_core.words import first_line, plain, shortened

FLOOR_S = 0.03
"""of a cost that is not judged: a line of Python takes as long on a machine that does something else meanwhile"""
HELD_S = 5.0
Pack = Callable[[str], Any]
GROWTH = 3.0
TIMES = (1, 10, 100)


@dataclass(frozen=True)
class Cost:
    """A function that takes text, and texts that may be dear for it."""

    what: Callable[[Any], object]
    begins: str = ""
    repeats: tuple[str, ...] = ()
    """each is repeated to the wanted length, between `begins` and `ends`"""
    ends: str = ""
    size: int = 300
    """characters of the smallest text"""
    made: Callable[[str], Any] = field(default=str)
    """what is given to the function, made of the text"""

    @property
    def name(self) -> str:
        return getattr(self.what, "__name__", str(self.what))


HOME = "/ho" + "me/x/"  # in two: no file of ours holds such a path
SIGNS = tuple(":/\\. a0-_=&\"'[{(\n@é\ud83d")
WORDS = (
    *("a/", "/a", "a.", "a ", "a@", "://", "http://", "https://a/", "/home/", "C:\\", "key=", "token ", "%41"),
    *("basic ", "bearer ", "](", " do not"),
)
MAKERS = (
    *("eyJaaaaaaaa.", "hf_", "sk-", "wandb ", "webhook.", "webhooks/", "a.b/", "discord.com/api/", "AIza", "SG."),
    *("20000000:AA", "-----BEGIN ", "PRIVATE KEY-----", "-----BEGIN PRIVATE KEY-----", "token-", "api_key-", "?sig"),
    *("password=\\", "secret:'", "secret_", "sig=", "https://a.webhook"),
)
MARKS = ("\u0301\u0316", "e\u0301", "界", "ß", "ﷺ")
NAMES = (
    *("blocks.0.", ".lora_A.", ".lora_A", ".lora_magnitude_vector", "model.", "lora_unet_", "_orig_mod.", "net."),
    *(".lora_B.a", ".lora_magnitude_vector.a", "_", "0", "_0", ".x", "a", "é", "\n", ".weight"),
)


def header_of(*names: str) -> CheckpointHeader:
    """Of a file with these tensors."""
    return CheckpointHeader(Path("a.safetensors"), {name: TensorInfo("F32", (1,), 4) for name in names}, {}, 4)


def names_in(text: str) -> list[str]:
    """The names that a file may have: as one, where it is not too long, and as many as there may be."""
    with contextlib.suppress(WanTrainerError):
        return list(header_of(text).tensors)
    return list(header_of(*(f"{text[start : start + 400]}{start}" for start in range(0, len(text), 400))).tensors)


def keys_of_a_lora(text: str) -> None:
    names = names_in(text)
    for name in names:
        parse_key(name)
    is_lora(header_of(*names))


def names_of_a_model(text: str) -> None:
    canonical_names(names_in(text))


def kind_of_a_model(text: str) -> None:
    recognise(names_in(text))


def same_keys(text: str) -> dict[str, str]:
    """A graph with a path as each key, as many as there are characters."""
    return {f"/home/{number}": "" for number in range(len(text))}


def many_titles(text: str) -> dict[str, Any]:
    return {"nodes": [{"title": part} for part in text.split(" ")]}


COSTS = (
    Cost(without_secrets, "https://", (*SIGNS, *WORDS), "!", size=100),
    Cost(without_secrets, "wandb token", SIGNS, "\n", size=100),
    Cost(without_secrets, "basic https://h/?", ("A", "a=%41&", "%25"), size=100),
    Cost(announces_a_secret, "", (*SIGNS, *WORDS, *MAKERS)),
    Cost(keys_of_a_lora, "", NAMES, "!"),
    Cost(keys_of_a_lora, "blocks.0.ffn.0", NAMES, ".alpha"),
    Cost(keys_of_a_lora, "lora_unet_blocks_0_", NAMES, "\n"),
    Cost(to_original, "blocks.0.", (*SIGNS, ".weight", "a.", "blocks.0."), ".weigh"),
    Cost(block_of, "blocks.0.", (*SIGNS, "blocks.0."), "\n"),
    Cost(names_of_a_model, "", ("model.", "net.", "a.", "base_model.model."), "head.modulation"),
    Cost(kind_of_a_model, "", NAMES),
    Cost(read_prompts, "", (*SIGNS, "--w ", " --n", "--a--", "[trigger] ", "# \n", "a\n", '{"', "[[")),
    Cost(lambda text: read_prompts(text, text), "", ("[trigger]", "[trigger] a\n", "a ")),
    Cost(file_name_of, "", SIGNS),
    Cost(lambda text: safe_name(text, "run_name"), "a", (*SIGNS, *MARKS)),
    Cost(with_safe_letters, "", (*SIGNS, *MARKS)),
    Cost(read_routes, "0", (*SIGNS, "0", "0;", "0.5: 2..-2;", "e", " : ", "..")),
    Cost(read_routes, "0.5:", (*SIGNS, "1"), "..-2"),
    Cost(read_routes, "", ("[", '[{"a":', "{", "1")),
    Cost(lambda text: LoraConfig(rank_patterns=tuple(text.split("\n"))), "", (*SIGNS, "a = 4\n", "=", "1,"), " = 4"),
    Cost(lambda text: LoraConfig(rank_patterns=(text,)), "a = 1", (" ", "0", ",", ". ")),
    Cost(lambda text: TrainConfig(lr_patterns=tuple(text.split("\n"))), "", (*SIGNS, "a = 4\n", "="), " = 4"),
    Cost(lambda text: TrainConfig(lr_patterns=(text,)), "a = 1", (" ", "0", "e", "-")),
    Cost(lambda text: TrainConfig.from_dict({text: 1}), "", ("steps", "s", "ste")),
    Cost(lambda text: TrainConfig.from_dict({"optimizer": text}), "", ("adamw", "a", "mada")),
    Cost(lambda text: TrainConfig(optimizer_args=text), "", (*SIGNS, "a=1 ", "a=(", "a=1,")),
    Cost(estimated_tokens, "", (*SIGNS, "界", "a_")),
    Cost(lambda text: tag_orders(text, 1), "", ("a,", ",", "a, b")),
    Cost(lambda text: caption_with_trigger(text, "a" * 1000), "", ("[trigger]", "a")),
    Cost(plain, "", (*SIGNS, "\x1b", "\u202e")),
    Cost(lambda text: shortened(text, 300), "", SIGNS),
    Cost(lambda text: first_line(ValueError(text)), "", SIGNS),
    Cost(lambda text: str(WanTrainerError(text)), "", SIGNS),
    Cost(parse_header, "", ("{", "[", '{"a":', "1"), made=str.encode),
)
"""in the engine"""


def scrubbed(pack: Pack, given: Any) -> object:
    return pack("runs.scrub").scrubbed(given)


def asked_by_a_page(pack: Pack, given: Any) -> object:
    return pack("bridge.ahead")._own_sizes((48, 48, 5), [given, ""])


def given_to_a_node(pack: Pack, given: Any) -> object:
    return pack("bridge.door")._check_texts(given)


COSTS_OF_NODES = (
    (scrubbed, Cost(str, "", (*SIGNS, *WORDS, *MAKERS))),
    pytest.param(scrubbed, Cost(str, HOME, (*SIGNS, *WORDS, ").,;:!?]}"), "x"), marks=pytest.mark.soak),
    (scrubbed, Cost(str, "", ("a",), made=same_keys)),
    (scrubbed, Cost(str, "", ("a ", f"{HOME}a "), made=many_titles)),
    (asked_by_a_page, Cost(str, "", ("a\n", "--w 48 ", "a --w 48\n", "[", '{"', "# "))),
    (given_to_a_node, Cost(str, "", ("a ", "\ud83d"), made=many_titles)),
)
"""in the nodes: `pack` gives a module by its name"""


def spent(what: Callable[[Any], object], given: Any, tries: int) -> float:
    """The least processor time of several tries; a refusal is an answer too."""
    least = float("inf")
    for _ in range(tries):
        began = time.thread_time()
        with contextlib.suppress(WanTrainerError, ValueError, RecursionError):
            what(given)
        least = min(least, time.thread_time() - began)
    return least


def dear(cost: Cost) -> Iterator[str]:
    """Sentences about texts whose cost grows faster than they do."""
    for piece in cost.repeats:
        before, at_first = 0.0, ""
        for times in TIMES:
            count = cost.size * times // len(piece)
            given = cost.made(f"{cost.begins}{piece * count}{cost.ends}")
            now = spent(cost.what, given, 1)
            allowed = max(FLOOR_S, GROWTH * 10 * before)
            if times > 1 and now > allowed:  # a second look: something else may have had the processor
                now = min(now, spent(cost.what, given, 2 if now < HELD_S else 0))
            at_first += f" {now:.4f}"
            if now > HELD_S or (times > 1 and now > allowed):
                yield f"{cost.name}: {cost.begins[:40]!r} + {piece!r} x {count}: seconds{at_first}"
                break
            before = max(now, FLOOR_S / (GROWTH * 10) if times == 1 else now)


def test_a_cost_that_grows_faster_is_seen() -> None:
    """By a function that is quadratic, and one that is not."""
    found = list(dear(Cost(re.compile(r"[:;]+$").search, HOME, (":", "x", ";:"), "a", size=40)))
    assert [line.partition(" x ")[0] for line in found] == [f"search: {HOME!r} + ':'", f"search: {HOME!r} + ';:'"]
    assert list(dear(Cost(re.compile("xy").search, "", (":", "x", "a")))) == []


@pytest.mark.parametrize("cost", COSTS, ids=[f"{number}-{cost.name}" for number, cost in enumerate(COSTS)])
def test_what_a_text_costs_grows_as_it_does(cost: Cost) -> None:
    assert list(dear(cost)) == []


@pytest.mark.comfy
@pytest.mark.lasts(3)
@pytest.mark.parametrize(("what", "cost"), COSTS_OF_NODES)
def test_what_a_text_costs_a_node_grows_as_it_does(
    pack_nodes: dict[str, Any], what: Callable[[Pack, Any], object], cost: Cost
) -> None:
    whole = replace(cost, what=functools.partial(what, functools.partial(our_module, pack_nodes)))
    assert list(dear(whole)) == []


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        (lambda: header_of("a" * 501), r"a\.safetensors: the name of tensor a{80} has 501 characters; in a Wan file"),
        (lambda: read_prompts("[trigger]", "a" * 1001), r"trigger_word has 1,001 characters\. Use at most 1000\."),
        (lambda: DatasetConfig(trigger_word="a" * 1001), r"trigger_word has 1,001 characters\. Use at most 1000\."),
        (lambda: read_routes(f"0.5: {'1' * 5000}..2"), r'tread_routes has "0\.5: 1+", which is not a route\.'),
    ],
)
def test_what_is_longer_than_anybody_writes_is_refused(asked: Callable[[], object], sentence: str) -> None:
    with pytest.raises(WanTrainerError, match=sentence):
        asked()


def test_names_of_the_longest_known_kind_and_of_no_kind_are_read() -> None:
    assert len(header_of("a" * 500, "", "a\nb").tensors) == 3
    assert canonical_names(["", "a\nb", "condition_embedder.time_proj.weight"]) == {
        "": "",
        "a\nb": "a\nb",
        "condition_embedder.time_proj.weight": "time_projection.1.weight",
    }


def test_tags_are_shuffled_as_ever() -> None:
    """Runs go on with the orders they began with."""
    assert tag_orders("a, b, c, d, e", 3, 1) == ("a, e, d, b, c", "a, c, b, e, d", "a, e, d, c, b")
