"""Runs that only a page knows: answers of the routes under /wan_trainer/, made up by a test."""

from __future__ import annotations

import json
import math
import re
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from tests.support.odd_videos import grey, write_clip
from wan_core.words import with_sentences

PAGE_LINES = 5000


@cache
def calm_clip() -> bytes:
    """Ten seconds of 176 x 144 in 20 frames: what plays in a page is drawn in software, frame by frame."""
    with TemporaryDirectory() as folder:
        file = Path(folder) / "calm.mp4"
        write_clip(file, grey(width=176, height=144), fps=2)
        return file.read_bytes()


def step_line(step: int, steps: int, **facts: Any) -> dict[str, Any]:
    """A step as metrics.jsonl has it: a falling loss with noise, every number made from the step alone."""
    noise = math.sin(step * 12.9898) * 43758.5453 % 1
    return {
        "event": "step",
        "step": step,
        "steps": steps,
        "loss": 0.05 + 0.3 * math.exp(-3 * step / steps) * (0.6 + 0.8 * noise),
        "lr": 1e-4,
        "grad_norm": 0.4 + noise / 4,
        "seconds": 2.5,
        "expert": "auto",
        "timestep_mean": 1000 * (0.15 + 0.8 * (step * 0.618034 % 1)),
        "memory": {"cuda:0": {"now": 9 << 30, "peak": 11 << 30, "predicted": 12 << 30}},
        "tflops": 212.5 + 10 * noise,
        "tokens": 14040,
        "clips": 1,
        **facts,
    }


def whole_run(last: int, steps: int, save_every: int) -> list[dict[str, Any]]:
    """The lines of a run up to step `last`."""
    lines: list[dict[str, Any]] = [
        {"event": "stage_ended", "stage": "cache", "seconds": 74.0, "step": 0},
        {"event": "stage_ended", "stage": "load", "seconds": 21.5, "step": 0},
        {"event": "stage_ended", "stage": "sample", "seconds": 40.0, "step": 0},
        {"event": "sample", "sample_id": "s0", "step": 0, "file": "x"},
    ]
    for step in range(1, last + 1):
        lines.append(step_line(step, steps))
        if step % save_every == 0:
            loss = 0.06 + 0.2 * math.exp(-2 * step / steps)
            levels = {str(level): loss * (0.6 + level / 1200) for level in (200, 400, 600, 800)}
            lines.append({"event": "evaluated", "step": step, "eval_loss": loss, "per_timestep": levels})
            lines.append({"event": "stage_ended", "stage": "save", "seconds": 1.5, "step": step})
            lines.append({"event": "saved", "step": step, "folder": "x"})
            lines.append({"event": "sample", "sample_id": f"s{step}", "step": step, "file": "x"})
    return lines


class Runs:
    """The routes, answered from `lines` and `summaries`, which a test may change at any time. Previews are `clip`."""

    def __init__(self, clip: Path | None = None) -> None:
        self.lines: dict[str, list[dict[str, Any]]] = {}
        self.summaries: dict[str, dict[str, Any]] = {}
        self.workflows: dict[str, Any] = {}
        self.posted: list[tuple[str, dict[str, str], Any]] = []
        self.asked: list[str] = []
        self.deny: str = ""
        self._open: list[Any] = []
        self.log = "".join(f"step {n}/150{f'  {n} of its rows' * (n % 4) * 5}\n" for n in range(40, 64))
        self.log += "step 64/150  loss 0.4711"
        self._clip = clip.read_bytes() if clip else calm_clip()

    def add(self, run: str, lines: list[dict[str, Any]], **facts: Any) -> None:
        """A run with those lines; what its summary says follows from them."""
        steps = [line for line in lines if line["event"] == "step"]
        newest = steps[-1] if steps else {"step": 0, "steps": 0}
        self.lines[run] = lines
        self.summaries[run] = {
            "id": run,
            "state": "stopped",
            "step": newest["step"],
            "steps": newest["steps"],
            "reason": "",
            "updated": 1_700_000_000 + len(self.summaries),
            "loss": newest.get("loss"),
            "eval_loss": None,
            "seconds_per_step": 2.5,
            "seconds_left": None,
            "expert": "auto",
            "variant": "wan2.1-t2v-1.3B",
            "lora_names": [f"wan_trainer/{run}.safetensors"],
            "live": False,
            "can_preview": True,
            "node": None,
            "prompt_id": None,
            "memory": {"cuda:0": {"now": 9 << 30, "peak": 11 << 30, "predicted": 12 << 30}},
            **facts,
        }

    def serve(self, page: Any) -> None:
        """From now on this page's requests for runs come here."""
        page.on("request", self._sent)
        page.on("requestfinished", self._over)
        page.on("requestfailed", self._over)
        page.route(re.compile(r"/wan_trainer/runs"), self._answer)

    def leave(self, page: Any) -> None:
        """The page's graph is emptied, and what it had asked for is answered; then the server answers again."""
        page.evaluate("() => window.app.graph.clear()")
        for _ in range(600):
            page.wait_for_timeout(100)
            if not self._open:
                break
        assert not self._open, f"not answered in a minute: {[request.url for request in self._open]}"
        page.unroute_all(behavior="wait")
        page.remove_listener("request", self._sent)
        for event in ("requestfinished", "requestfailed"):
            page.remove_listener(event, self._over)

    def _sent(self, request: Any) -> None:
        if "/wan_trainer/" in request.url:
            self._open.append(request)

    def _over(self, request: Any) -> None:
        if request in self._open:
            self._open.remove(request)

    def _answer(self, route: Any) -> None:
        url = urlsplit(route.request.url)
        parts = [unquote(part) for part in url.path.partition("/wan_trainer/runs")[2].split("/") if part]
        self.asked.append("/".join(parts))
        if route.request.method == "POST":
            body = json.loads(route.request.post_data)
            self.posted.append(("/".join(parts), route.request.headers, body))
            if self.deny:
                route.fulfill(status=409, json={"error": self.deny})
                return
            if parts[1] == "delete":
                self.summaries.pop(parts[0])
            route.fulfill(status=202, json={"sent": True})
        elif not parts:
            newest = sorted(self.summaries.values(), key=lambda s: -s["updated"])
            route.fulfill(json=with_sentences({"version": 1, "runs": newest}))
        elif parts[0] not in self.summaries:
            route.fulfill(status=404, json={"error": "There is no such run."})
        elif len(parts) == 1:
            route.fulfill(json=with_sentences(self._detail(parts[0])))
        elif parts[1] == "metrics":
            since = int(parse_qs(url.query)["since"][0])
            lines = self.lines[parts[0]]
            following = lines[since : since + PAGE_LINES]
            end = since + len(following)
            route.fulfill(json={"version": 1, "next": end, "records": following, "more": end < len(lines)})
        elif parts[1] == "bytes":
            route.fulfill(json={"version": 1, "bytes": 300 << 20})
        elif parts[1] == "log":
            route.fulfill(json={"version": 1, "text": self.log})
        elif parts[1] == "workflow":
            route.fulfill(json=self.workflows[parts[0]])
        else:
            route.fulfill(body=self._clip, content_type="video/mp4")

    def _detail(self, run: str) -> dict[str, Any]:
        lines = self.lines[run]
        losses = {line["step"]: line["eval_loss"] for line in lines if line["event"] == "evaluated"}
        samples = [
            {"id": line["sample_id"], "step": line["step"], "label": line.get("label", ""), "url": "/elsewhere"}
            | {key: line[key] for key in ("prompt", "strength", "rendering", "text") if key in line}
            for line in lines
            if line["event"] == "sample"
        ]
        saves = [{"step": x["step"], "eval_loss": losses.get(x["step"])} for x in lines if x["event"] == "saved"]
        facts = {"settings": {}, "saves": saves, "samples": samples, "has_workflow": True}
        return {**self.summaries[run], **facts}
