"""Regular expressions that never end, on a real server: it answers others meanwhile, and refuses them."""

from __future__ import annotations

import sys
import threading
import time
import urllib.error
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from comfy_server import ComfyServer
from graphs import TRAIN, Graph, training_graph
from route_server import CHANGE
from world import MODEL

ENDLESS = "(?x)(?:.|.|.|.) +!"
"""for the matcher, past one blank; with whole names it needs blanks of its own"""
ON_WHOLE_NAMES = "(?x)(?:.|.|.|.) * !"
PLACES = ("lora_targets", "rank_patterns", "lr_patterns", "include", "exclude")

EXPRESSIONS = (
    ENDLESS,
    ON_WHOLE_NAMES,
    r"(?:.*.*)*!",
    r"(?:\w*\w*)*!",
    r"(.+)+!",
    r"(a|b|.)*?(a|b|.)*?(a|b|.)*?(a|b|.)*?\d!",
    r"(?:.|[^!]|..)" * 20 + "!",
    r"(([a-z0-9_.])+)+!",
    r"(\w+\.?)+!",
    r".*.*.*.*.*.*.*.*.*!",
    r"(.*)\1\1\1(.*)\2\2!",
    r"(?P<a>.*)(?P=a)(?P<b>.*)(?P=b)(.*)\3!",
    r"(?=(.*.*)*!).*",
    r"(?!(.*.*)*!)(?!(.*.*)*\?).*",
    r"(?:(?:.?){30}){30}!",
    r"(?<=.{200})(.*.*)*!",
    r"(?<!b)(?:.*.*)*!",
    r"(.)?(?(1)(.*.*)*!|.)",
    r"(?i)(?:ſ|s|S|K|.)*(?:.|.)*!",
    "(?s:.|\n|.)*!",
    r"(?i:[\x00-\U0010ffff]|.)*!",
    "(?i)" + r"[\x00-\U0010ffff]" * 100,
    "(?i)" + r"[^\x00-\U0001ffff]" * 100,
    "(" * 990 + ")" * 990,
    "(?:" * 500 + ")" * 500,
    "(" * 10_000 + ")" * 10_000,
    "[" * 2000,
    "[[:" * 600,
    "((((" + "a" * 1990,
    "a{1,4294967295}",
    "a{4294967294}",
    "a{99999999999}",
    "(?:a{1,65535}){1,65535}",
    "((a{0,999}){0,999}){0,999}",
    r"(?:(?:(?:.{0,9}){0,9}){0,9}){0,9}!",
    "|".join(f"b{n}" for n in range(490)),
    "|" * 2000,
    "(?:a|" * 400 + ")" * 400,
    "(?P<a>x)(?P<a>y)",
    r"(?P<a>x)|\2",
    "a(?i)b",
    "(?i-i:a)",
    "(?a)(?L)a",
    "(?>(?:.*.*)*)!",
    "(?:.*+.*+)*+!",
    "a{2}{3}",
    "(?#" + "x" * 1990,
    r"\U00110000",
    r"\N{NOT A NAME}",
    "(?P<" + "a" * 1900 + ">x)",
    r"\1",
    r"(?<=a*)b",
    "*",
    "\ud800",
    "\x00*",
    "é" * 2000,
    "🎬+" * 900,
    r"\b" * 900 + "!",
    r"(?:\b|\B)*!",
    r"(?:^|$)*!",
    "(?m)" + "^*" * 900,
    r"(?:()|())*" * 100 + "!",
)


class Others:
    """Asks a server for small answers all the time, as other pages do."""

    def __init__(self, comfy: ComfyServer) -> None:
        self.longest, self.answers, self._comfy, self._over = 0.0, 0, comfy, threading.Event()

    @contextmanager
    def asking(self) -> Iterator[None]:
        thread = threading.Thread(target=self._ask)
        thread.start()
        try:
            yield
        finally:
            self._over.set()
            thread.join()

    def _ask(self) -> None:
        while not self._over.wait(0.02):
            began = time.monotonic()
            self._comfy.get("/queue", timeout=120)
            self.longest, self.answers = max(self.longest, time.monotonic() - began), self.answers + 1


def with_pattern(place: str, pattern: str, name: str) -> Graph:
    graph = training_graph(name, steps=1, save_every_n_steps=1)
    graph["model"]["inputs"]["device"] = "cpu"
    if place in ("include", "exclude"):
        graph["quantize"] = {"class_type": "Fp8Quantize", "inputs": {"model": ["model", 0], place: pattern}}
        graph[TRAIN]["inputs"]["model"] = ["quantize", 0]
    else:
        graph["settings"] = {"class_type": "WanTrainSettings", "inputs": {place: lines(place, pattern)}}
        graph[TRAIN]["inputs"]["settings"] = ["settings", 0]
    return graph


def lines(place: str, pattern: str) -> str:
    return pattern if place == "lora_targets" else f"{pattern} = 2"


def planned(comfy: ComfyServer, place: str, pattern: str) -> dict[str, Any]:
    """What the page asks by itself, a moment after a graph is there."""
    chain: list[Any] = [["LoadWanModel", {"diffusion_model": MODEL, "device": "cpu"}]]
    if place in ("include", "exclude"):
        chain.append(["Fp8Quantize", {place: pattern}])
    settings = None if place in ("include", "exclude") else {place: lines(place, pattern)}
    train = {"rank": 4, "steps": 4, "preview_every_n_steps": 0}
    asked = {"chain": chain, "settings": settings, "train": train, "sizes": [[48, 48, 5]]}
    try:
        return comfy.post("/wan_trainer/plan", asked, timeout=120, headers=CHANGE)
    except urllib.error.HTTPError as error:
        if error.code not in (400, 413):  # half a character, or longer than any request of a page
            raise
        return {"reason": error.reason}


def cancelled(comfy: ComfyServer, place: str, pattern: str, name: str, after_s: float = 0.3) -> tuple[str, float]:
    """Queue, press Cancel while the pattern is matched; how the prompt ended, and seconds from press to end."""
    node = "quantize" if place in ("include", "exclude") else TRAIN
    with comfy.events() as seen:
        prompt = comfy.queue(with_pattern(place, pattern, name))
        deadline = time.monotonic() + 60
        while not any(said.get("node") == node for said in seen.of("executing")):
            if comfy.history(prompt) is not None or time.monotonic() > deadline:
                break
            time.sleep(0.02)
        time.sleep(after_s)
        comfy.interrupt()
        pressed = time.monotonic()
        entry = comfy.wait(prompt, timeout=60, check=False)
    return comfy.error(entry), time.monotonic() - pressed


@pytest.mark.comfy
@pytest.mark.lasts(6)
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.soak
def test_others_are_answered_while_a_pattern_is_matched(comfy: ComfyServer, place: str) -> None:
    """A server that matches it itself answers nobody; ours refuses the pattern after 5 s."""
    others = Others(comfy)
    pattern = ENDLESS if place in ("include", "exclude") else r"(?:.*.*)*!"
    with others.asking():
        assert cancelled(comfy, place, pattern, f"pattern_{place}")[1] < 30
    assert others.answers > 3
    assert not (comfy.output / "wan_trainer" / f"pattern_{place}").exists()


@pytest.mark.comfy
@pytest.mark.soak
def test_every_expression_in_every_place(own_comfy: Callable[..., ComfyServer]) -> None:
    """Six minutes on a busy machine with two cores."""
    comfy = own_comfy(env={"WAN_TRAINER_CARD_GIB": "16"})
    comfy.run(training_graph("usual", steps=1, save_every_n_steps=1), timeout=120)
    others, ends, refused = Others(comfy), dict[str, int](), 0
    slowest = (0.0, "", "", "")
    with others.asking():
        for number, pattern in enumerate(EXPRESSIONS):
            place = PLACES[number % len(PLACES)]
            refused += "reason" in planned(comfy, place, pattern)
            place = PLACES[(number + 2) % len(PLACES)]
            said, seconds = cancelled(comfy, place, pattern, f"soak_{number}")
            slowest = max(slowest, (seconds, said[:40], place, pattern[:40]))
            kind = said if said == "interrupted" else said.partition(": ")[0] or "done"
            ends[kind] = ends.get(kind, 0) + 1
    comfy.run(training_graph("usual_again", steps=1, save_every_n_steps=1), timeout=120)
    sys.stdout.write(
        f"{len(EXPRESSIONS)} expressions: {refused} plans refused; prompts with Cancel after 0.3 s ended so: {ends}, "
        f"the slowest after the press was {slowest}; {others.answers} answers to others, the latest after "
        f"{others.longest:.2f} s\n"
    )
    assert slowest[0] < 30
    assert others.longest < 5
