"""Files and folders that vanish, change and become links between two looks of a request: no error of ours, and nothing
outside is written, deleted or sent."""

from __future__ import annotations

import collections
import contextlib
import itertools
import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from route_server import CANARY, SCAN, Answer, RouteServer, loose

from wan_core.cache import LatentCache
from wan_core.errors import WanTrainerError

pytestmark = [
    pytest.mark.comfy,
    pytest.mark.skipif(os.name == "nt", reason="Windows renames no folder in which a file is open"),
]

KEY = "ab" + "0" * 62
RUN = ("", "/metrics?since=0", "/metrics?since=0&thin=1", "/bytes", "/log", "/workflow",
       "/samples/step-000000_p0", "/samples/step-000002_p0")  # fmt: skip


def of_captions(routes: RouteServer, stop: Callable[[], bool]) -> Iterator[Answer]:
    """Writes, replaces and puts back captions, and looks at them and their clips."""
    place = f"/scans/{SCAN}"
    for number in itertools.takewhile(lambda _: not stop(), itertools.count()):
        told = routes.get(f"{place}/captions?clip=0")
        yield told
        if told.status == 200:
            said = {"clip": 0, "before": told.data["caption"]["caption"], "text": f"a red cat {number}"}
            done = routes.post(f"{place}/caption", said)
            yield done
            if done.status == 200 and done.data["change"]:
                yield routes.post(f"{place}/undo", {"change": done.data["change"]})
        found = routes.get(f"{place}/captions?text=red")
        yield found
        if found.status == 200:
            counted = {"captions": found.data["can_change"], "places": found.data["places"]}
            yield routes.post(f"{place}/replace", {"find": "red", "by": "blue red", **counted})
            yield routes.post(f"{place}/replace", {"find": "blue red", "by": "red", **counted})
        yield routes.get(f"{place}/clips/{number % 4}")


def of_runs(routes: RouteServer, stop: Callable[[], bool]) -> Iterator[Answer]:
    """Asks every route that reads files of runs, and those that change them."""
    for number in itertools.takewhile(lambda _: not stop(), itertools.count()):
        yield routes.get("/runs")
        for name in RUN:
            yield routes.get(f"/runs/cat{name}")
        yield routes.post("/runs/cat/use", {"step": 2 if number % 2 else 4})
        yield routes.get("/cache")
        if number % 5 == 0:
            with contextlib.suppress(WanTrainerError):
                LatentCache(routes.runs / "_cache").write_latent(KEY, torch.zeros(16, 1, 2, 2))
        yield routes.post("/cache/trim", {"confirm": True})
        yield routes.post("/runs/dog/delete", {"confirm": "dog"})


class Disturber:
    """Takes files and folders away for a moment, or puts a link in their place, and back.

    The folders of runs, LoRAs and the cache are only taken away: links of theirs are the owner's own.
    """

    def __init__(self, routes: RouteServer, outside: Path, seed: int) -> None:
        runs = routes.runs
        cat, self._outside, self._random = runs / "cat", outside, random.Random(seed)
        self._places = [
            *[routes.clips] * 8, routes.clips / "a0.txt", routes.clips / "a0.mp4", cat,
            *(cat / name for name in ("saves", "samples", "run.json", "status.json", "metrics.jsonl", "log.txt")),
            *(cat / "samples" / name for name in ("index.json", "step-000002_p0.mp4")), cat / "workflow.json",
            *(cat / "saves" / name for name in ("step-000002", "step-000002/manifest.json",
                                                "step-000004/lora.safetensors")),
            *(runs / "_cache" / name for name in ("latents", "latents/ab", "sets", ".removed")),
        ]  # fmt: skip
        self._owners = [routes.loras, runs, runs / "_cache"]
        self.swaps = 0

    def swap(self) -> None:
        """Once, with one of them."""
        place = self._random.choice(self._places + self._owners)
        aside = self._outside.parent / "aside" / "taken"
        try:
            os.rename(place, aside)
        except OSError:
            return
        try:
            kind = self._random.randrange(3) if place not in self._owners else 0
            if kind:
                os.symlink(self._outside if kind == 1 else self._outside / "nothing", place)
                time.sleep(self._random.choice((0, 0, 0.0005)))
                os.unlink(place)
        except OSError:  # a request made a file of that name meanwhile
            pass
        self._put_back(aside, place)
        self.swaps += 1

    @staticmethod
    def _put_back(aside: Path, place: Path) -> None:
        made = 0
        while True:
            try:
                place.parent.mkdir(parents=True, exist_ok=True)
                os.rename(aside, place)
                return
            except OSError:  # a folder that a request made anew
                made += 1
                with contextlib.suppress(OSError):
                    os.rename(place, aside.with_name(f"{aside.name}-{time.monotonic_ns()}-{made}"))


@pytest.mark.lasts(3)
@pytest.mark.parametrize(
    ("seconds", "least"), [(2.0, 20), pytest.param(300.0, 5_000, marks=pytest.mark.soak)], ids=["short", "long"]
)
def test_what_vanishes_between_two_looks_is_an_answer_and_nothing_outside_is_touched(
    routes: RouteServer, tmp_path: Path, seconds: float, least: int
) -> None:
    outside = tmp_path / "outside"
    (tmp_path / "aside").mkdir()
    (outside / "ab").mkdir(parents=True)
    (outside / "step-000002").mkdir()
    for name in ("a0.txt", "a1.txt", "a0.mp4", "run.json", "index.json", "lora.safetensors", "manifest.json",
                 ".removed", f"ab/{KEY}.safetensors", "step-000002/lora.safetensors", "cat.safetensors"):  # fmt: skip
        (outside / name).write_bytes(CANARY)
    before = loose(outside)
    end = time.monotonic() + seconds
    answers: collections.Counter[int] = collections.Counter()
    leaks: list[bytes] = []
    failures: list[BaseException] = []

    def over() -> bool:
        return time.monotonic() > end or bool(failures)

    def follow(requests: Callable[[RouteServer, Callable[[], bool]], Iterator[Answer]]) -> None:
        try:
            for answer in requests(routes, over):
                answers[answer.status] += 1
                if answer.status >= 500 or CANARY in answer.body:
                    leaks.append(b"%d: %s" % (answer.status, answer.body[:300]))
        except BaseException as error:
            failures.append(error)

    def disturb() -> None:
        try:
            while not over():
                disturber.swap()
                time.sleep(0.0002)
        except BaseException as error:
            failures.append(error)

    disturber = Disturber(routes, outside, seed=1)
    work = [threading.Thread(target=follow, args=(requests,)) for requests in (of_captions, of_captions, of_runs)]
    work.append(threading.Thread(target=disturb))
    for thread in work:
        thread.start()
    for thread in work:
        thread.join()
    print(f"{disturber.swaps} swaps, answers {dict(answers)}")  # noqa: T201
    assert failures == []
    assert leaks == []
    assert loose(outside) == before
    assert disturber.swaps >= least
    assert answers[200] >= least
    assert answers[404] + answers[409] > 0
