"""Converts a job to a graph for the queue API, or to a workflow for the canvas."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from .. import __version__
from ..canvas import note_node, workflow_document, workflow_node
from ..words import filled
from .foreign_job import CUTTING, DATA, FROZEN, LOADER, PREVIEW, QUANTIZE, SETTINGS, SLIDER, SPLIT, TRAINER, ForeignJob
from .models import base_name

CACHE, VISION = "CacheLatents", "CLIPVisionLoader"
Link = tuple[str, int]
Node = tuple[dict[str, str], list[tuple[str, str]]]

_MODEL, _VAE, _CLIP, _SEEN = "WAN_TRAIN_MODEL", "VAE", "CLIP", "CLIP_VISION"
_CUTTING = "WAN_DATASET_SETTINGS"
NODES: dict[str, Node] = {
    LOADER: ({}, [("model", _MODEL), ("info", "STRING")]),
    QUANTIZE: ({"model": _MODEL}, [("model", _MODEL)]),
    SPLIT: ({"model": _MODEL}, [("model", _MODEL)]),
    FROZEN: ({"model": _MODEL}, [("model", _MODEL)]),
    CUTTING: ({}, [("settings", _CUTTING)]),
    DATA: (
        {"model": _MODEL, "settings": _CUTTING},
        [("dataset", "WAN_DATASET"), ("report", "STRING"), ("contact_sheet", "IMAGE")],
    ),
    "VAELoader": ({}, [("VAE", _VAE)]),
    "CLIPLoader": ({}, [("CLIP", _CLIP)]),
    VISION: ({}, [("CLIP_VISION", _SEEN)]),
    CACHE: (
        {"dataset": "WAN_DATASET", "vae": _VAE, "clip": _CLIP, "clip_vision": _SEEN},
        [("cache", "WAN_CACHE"), ("report", "STRING")],
    ),
    SLIDER: ({"model": _MODEL, "clip": _CLIP}, [("cache", "WAN_CACHE"), ("report", "STRING")]),
    SETTINGS: ({}, [("settings", "WAN_SETTINGS")]),
    PREVIEW: ({"clip": _CLIP, "clip_vision": _SEEN}, [("validation", "WAN_VALIDATION")]),
    TRAINER: (
        {
            "model": _MODEL,
            "cache": "WAN_CACHE",
            "vae": _VAE,
            "settings": "WAN_SETTINGS",
            "validation": "WAN_VALIDATION",
        },
        [
            *(("run", "WAN_RUN"), ("lora", "LORA_MODEL"), ("loss_map", "LOSS_MAP"), ("steps", "INT")),
            *(("lora_name", "STRING"), ("lora_low_noise", "LORA_MODEL"), ("lora_name_low_noise", "STRING")),
        ],
    ),
}
"""node id -> (linked inputs, outputs), as the nodes define them"""
_CORE: dict[str, dict[str, Any]] = {
    "VAELoader": {"vae_name": ""},
    "CLIPLoader": {"clip_name": "", "type": "wan", "device": "default"},
    VISION: {"clip_name": "clip_vision_h.safetensors"},
}
"""widgets of core nodes, in order"""
_COLUMNS = (
    (LOADER, "VAELoader", "CLIPLoader", VISION),
    (FROZEN, QUANTIZE, SPLIT, CUTTING, DATA),
    (CACHE, SLIDER, PREVIEW),
    (SETTINGS,),
    (TRAINER,),
)
_SIZES = {
    LOADER: (400, 330), FROZEN: (400, 200), QUANTIZE: (400, 220), SPLIT: (400, 545), DATA: (400, 910),
    CUTTING: (400, 700), SLIDER: (400, 420),
    "VAELoader": (400, 120), "CLIPLoader": (400, 170), VISION: (400, 120), CACHE: (400, 215), PREVIEW: (400, 900),
    SETTINGS: (420, 1900), TRAINER: (420, 700),
}  # fmt: skip
"""size on the canvas"""
_GAP = 40


def note_lines(job: ForeignJob) -> list[str]:
    """Returns the account as lines of Markdown, for the note next to the graph; the page translates each line."""
    lines: list[str] = [filled("## {source} of {trainer}", source=job.source, trainer=job.trainer), ""]
    if job.data and SLIDER not in job.values:
        put = "Put `{name}` and the folders it names into ComfyUI's `input` folder."
        lines += [filled(put, name=base_name(job.data)), ""]
    for title, sentences in job.account().items():
        lines += [filled("**{title}**", title=title), ""]
        lines += [*(filled("- {sentence}", sentence=sentence) for sentence in sentences), ""]
    return lines


def api_graph(job: ForeignJob) -> dict[str, Any]:
    """Returns the graph in API form, with the widgets that the job sets; others keep their defaults."""
    values = _values(job)
    links = _links(values)
    ids = {node: str(number) for number, node in enumerate(values, 1)}
    return {
        ids[node]: {
            "class_type": _kind(node),
            "inputs": {**widgets, **{name: [ids[source], slot] for name, (source, slot) in links[node].items()}},
        }
        for node, widgets in values.items()
    }


def canvas_graph(job: ForeignJob) -> dict[str, Any]:
    """Returns a workflow for the canvas, with the account in a note."""
    values = _values(job)
    links = _links(values)
    ids = {node: number for number, node in enumerate(values, 1)}
    drawn: list[list[Any]] = []
    nodes = [_canvas_node(node, widgets, links[node], ids, drawn) for node, widgets in values.items()]
    _place(nodes)
    nodes.append(
        note_node(len(nodes) + 1, "What happened to your settings", "\n".join(note_lines(job)), (-560, 30), (520, 900))
    )
    return workflow_document(json.dumps(values, sort_keys=True, ensure_ascii=True), nodes, drawn)


def _values(job: ForeignJob) -> dict[str, dict[str, Any]]:
    """Returns the graph's nodes in order, with their widgets."""
    given = {node: dict(widgets) for node, widgets in job.values.items() if node in NODES}
    given.setdefault(DATA, {})["other_file"] = base_name(job.data)
    for number, (file, strength) in enumerate(job.frozen, 1):
        low = {"low_noise_lora": file, "strength_low_noise": strength} if job.is_pair else {}
        share = {"preview_strength": job.in_previews[file]} if file in job.in_previews else {}
        given[f"{FROZEN} {number}"] = {"lora": file, "strength": strength, **low, **share}
    frozen = [node for node in given if _kind(node) == FROZEN]
    clips = (CUTTING, DATA, "VAELoader", "CLIPLoader", VISION, CACHE)
    if SLIDER in given:  # A slider has pairs of prompts in place of clips.
        clips = ("VAELoader", "CLIPLoader", SLIDER)
    wanted = [LOADER, *clips, *frozen, QUANTIZE, SPLIT, SETTINGS, PREVIEW, TRAINER]
    optional = {QUANTIZE, SPLIT, CUTTING, PREVIEW, VISION} - given.keys()
    if job.kind is not None and job.kind.reads_clip:
        optional.discard(VISION)
    return {node: {**_CORE.get(node, {}), **given.get(node, {})} for node in wanted if node not in optional}


def _kind(node: str) -> str:
    """Returns the id of a node without the number that distinguishes nodes of one kind."""
    return node.partition(" ")[0]


def _links(nodes: Iterable[str]) -> dict[str, dict[str, Link]]:
    """Returns node -> linked input -> source: the nearest node before it with an output of that type."""
    nearest: dict[str, Link] = {}
    found: dict[str, dict[str, Link]] = {}
    for node in nodes:
        sockets, outputs = NODES[_kind(node)]
        found[node] = {name: nearest[kind] for name, kind in sockets.items() if kind in nearest}
        nearest |= {kind: (node, slot) for slot, (_, kind) in enumerate(outputs)}
    return found


def _canvas_node(
    node: str, widgets: dict[str, Any], links: dict[str, Link], ids: dict[str, int], drawn: list[list[Any]]
) -> dict[str, Any]:
    kind_of_node = _kind(node)
    sockets, outputs = NODES[kind_of_node]
    sources = {name: (ids[links[name][0]], links[name][1]) if name in links else None for name in sockets}
    core = node in _CORE
    ours = {"cnr_id": "wan-trainer", "ver": __version__}
    return workflow_node(
        ids[node],
        kind_of_node,
        {name: (kind, sources[name]) for name, kind in sockets.items()},
        outputs,
        drawn,
        size=list(_SIZES[kind_of_node]),
        properties={"Node name for S&R": kind_of_node, **({"cnr_id": "comfy-core"} if core else ours)},
        # Our nodes read widget values by name, so that the order does not matter.
        **({"widgets_values": list(widgets.values())} if core else {"widgets_values_named": widgets}),
    )


def _place(nodes: list[dict[str, Any]]) -> None:
    left = 0
    for column in _COLUMNS:
        there = [node for kind in column for node in nodes if node["type"] == kind]
        top = 30
        for node in there:
            node["pos"] = [left, top]
            top += node["size"][1] + _GAP
        left += max((node["size"][0] for node in there), default=-_GAP) + _GAP
