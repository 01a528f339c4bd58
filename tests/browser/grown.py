"""Shipped graphs as they stand after a run: every node shows all it has, and how much room it takes."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tests.browser.runs_on_page import Runs, whole_run
from wan_core.parallel.schedule import pipelined
from wan_core.parallel.timeline import StageCost, replay
from wan_core.plan.cards_of_step import CardsOfStep

GIB = 1 << 30
# (title, left, top, width, height) of every node, title bar included, in pixels of the canvas.
ROOM = """() => {
  const view = window.app.canvas, zoom = view.ds.scale, edge = view.canvas.getBoundingClientRect();
  return window.app.graph._nodes.map(node => {
    const drawn = document.querySelector(`[data-node-id="${node.id}"]`)?.getBoundingClientRect();
    const box = drawn
      ? [(drawn.left - edge.left) / zoom - view.ds.offset[0], (drawn.top - edge.top) / zoom - view.ds.offset[1],
         drawn.width / zoom, drawn.height / zoom]
      : [node.pos[0], node.pos[1] - 30, node.size[0], node.size[1] + 30];
    return [node.title, ...box.map(Math.round)];
  });
}"""
TELL = """outputs => {
  const tell = (kind, detail) =>
    window.app.api.dispatchEvent(new CustomEvent(kind, { detail: { prompt_id: "grown", ...detail } }));
  tell("execution_start", {});
  for (const node of window.app.graph._nodes) {
    const output = outputs[node.type], id = String(node.id);
    if (output) tell("executed", { node: id, display_node: id, output: structuredClone(output) });
  }
}"""
FILE = {"filename": "none.mp4", "subfolder": "", "type": "temp"}
CELL = {"kind": "clip", "frames": 33, "width": 832, "height": 480, "caption": "a caption"}
OUTPUTS = {
    "WanVideoDataset": {
        "wan_dataset": [
            {
                "clips": 9,
                "stills": 0,
                "buckets": [
                    {"frames": 33, "width": 832, "height": 480, "clips": 9, "samples": 9, "batches": [9, 5, 3]},
                    {"frames": 33, "width": 480, "height": 832, "clips": 3, "samples": 3, "batches": [3, 2, 1]},
                ],
                "findings": [{"kind": "unlike_rate", "count": 2, "names": ["a.mp4", "b.mp4"]}],
                "left_out": {"count": 1, "files": [{"name": "x.mp4", "reason": "too short"}]},
                "sheet": {
                    "columns": 3,
                    "rows": 3,
                    "cell_width": 160,
                    "cell_height": 92,
                    "name_height": 14,
                    "cells": [{**CELL, "name": f"clip_{number}.mp4"} for number in range(9)],
                },
                "asked": {},
            }
        ]
    },
    "ValidateVideo": {
        "wan_clips": [
            {
                "version": 1,
                "width": 832,
                "height": 480,
                "asked": {},
                "rows": [
                    {
                        "prompt": "a man talks in a driving car",
                        "clips": [
                            {"step": step, "strength": step and 1.0, "file": FILE, "still": FILE}
                            for step in (None, 10, 20)
                        ],
                    }
                ],
            }
        ]
    },
    "SplitAcrossGPUs": {
        "wan_split": [
            {
                "version": 1,
                "model": "wan2.1-t2v-14B",
                "mode": "split blocks",
                "control_blocks": 0,
                "devices": [{"name": f"cuda:{n}", "title": "A card of 24 GB"} for n in range(2)],
                "copies": [[int(block >= 20) for block in range(40)]],
                "memory": {f"cuda:{n}": {"weights": 7 * GIB, "total": 24 * GIB} for n in range(2)},
            }
        ]
    },
}


REASON = "Both cards work at once on 4 micro-batches: predicted 1.60x. With split_at interleaved: 1.78x."
TWO_CARDS = CardsOfStep(
    "split blocks",
    REASON,
    ("cuda:0", "cuda:1"),
    replay(pipelined((0, 1), 4), [StageCost(2.9, 6.0, sent_bytes=1 << 27), StageCost(2.7, 6.1, sent_bytes=1 << 27)]),
).to_dict()
TOO_LARGE = {
    "version": 1,
    "fits": False,
    "size": "832x480x33",
    "rank": 16,
    "devices": [{"name": f"cuda:{n}", "needed": 30 * GIB, "room": 23 * GIB, "total": 24 * GIB} for n in range(2)],
    "host": {"needed": 60 * GIB, "room": 50 * GIB},
    "measures": {"offload_inputs": True, "blocks_to_swap": 40, "gradient_checkpointing": True},
    "card": "RTX 4090",
    "cards": TWO_CARDS,
    "step_seconds": 12.5,
    "seconds": 18750,
    "suggestions": [{"scheme": "fp8_e4m3fn"}, {"num_frames": 17}, {"rank": 8}],
}
"""what every training is answered to take"""


def finished_runs(canvas: Any, workflows: Iterable[dict[str, Any]], clip: Path | None = None) -> Runs:
    """The runs the trainers of these graphs lead to are over, with saves, previews and the memory of two devices."""
    runs = Runs(clip)
    memory = {f"cuda:{n}": {"now": 9 * GIB, "peak": 11 * GIB, "predicted": 12 * GIB} for n in range(2)}
    for node in (node for workflow in workflows for node in workflow["nodes"]):
        if node["type"] == "TrainLoRA":
            named = node["widgets_values_named"]
            runs.add(named["run_name"], whole_run(40, 40, 20), state="done", expert=named["expert"], memory=memory)
    runs.serve(canvas.page)
    canvas.page.route("**/wan_trainer/plan", lambda route: route.fulfill(json=TOO_LARGE))
    return runs


def overlaps(boxes: list[list[Any]]) -> list[str]:
    """Pairs of nodes that lie on each other."""
    found = []
    for at, (title, left, top, width, height) in enumerate(boxes):
        for other, x, y, wide, high in boxes[at + 1 :]:
            if left < x + wide and x < left + width and top < y + high and y < top + height:
                found.append(f"{title} / {other}")
    return found
