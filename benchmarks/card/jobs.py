"""Whole training jobs on random weights: what a step takes in time and memory, under the settings users have."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import torch
from measure import ROWS, SHAPES, Figures, Needs, Row, Size, Where, measure_row, write_base

from wan_core.errors import WanTrainerError
from wan_core.model import check_compile

from .case import Bench, Case
from .machine import dense_peak

TINY_SIZE = Size(64, 64, 5)


def memory(_: Bench) -> list[Case]:
    """Ten different configurations, two steps each: predicted peak against the measured one."""
    small, image, square = Size(480, 480, 17), Size(1024, 1024, 1), Size(832, 480, 49)
    off = {"gradient_checkpointing": False}
    rows = (
        Row("1.3B 832x480x49", "1.3B", square, 2),
        Row("1.3B 480x480x17 without checkpointing", "1.3B", small, 2, off),
        Row("1.3B 832x480x49 keeping attention", "1.3B", square, 2, {"checkpointing_policy": "attn_output"}),
        Row(
            "1.3B 832x480x49 float32, reference precision", "1.3B", square, 2, base_precision="fp32", preset="reference"
        ),
        Row("5B 832x480x49", "5B", square, 2),
        Row("5B 832x480x49, 4 blocks unchecked", "5B", square, 2, {"unchecked_blocks": 4}),
        Row("14B-12 832x480x81", "14B-12", Size(832, 480, 81), 2),
        Row("14B-12 832x480x49 fp8", "14B-12", square, 2, quantize="fp8_e4m3fn"),
        Row("14B-12 832x480x49 int8, fast precision", "14B-12", square, 2, quantize="int8", preset="fast"),
        Row("14B 1024x1024x1", "14B", image, 2),
    )
    return [_case("memory", row, about_s=60 if row.shape == "14B" else 20) for row in rows]


def speed(_: Bench) -> list[Case]:
    rows = (
        Row("1.3B 832x480x49", "1.3B", Size(832, 480, 49), 10),
        Row("5B 832x480x49", "5B", Size(832, 480, 49), 10),
        Row("5B 1280x704x121", "5B", Size(1280, 704, 121), 5),
        Row("14B 832x480x49", "14B", Size(832, 480, 49), 5),
        Row("14B 832x480x49 fp8", "14B", Size(832, 480, 49), 4, quantize="fp8_e4m3fn"),
        Row("14B 832x480x81", "14B", Size(832, 480, 81), 4),
    )
    return [_case("speed", row, about_s=80 if row.shape == "14B" else 40) for row in rows]


def switches(_: Bench) -> list[Case]:
    """One switch each, on twelve blocks of the 14B width: the first is what the others are held against."""
    alone: dict[str, dict[str, Any]] = {
        "full checkpointing alone": {},
        "without checkpointing": {"gradient_checkpointing": False},
        "keeping attention": {"checkpointing_policy": "attn_output"},
        "keeping every matrix product": {"checkpointing_policy": "matmul_without_batch"},
        "every matrix product in host memory": {
            "checkpointing_policy": "offload_matmul_without_batch",
            "offload_activations": "on",
        },
        "4 blocks unchecked": {"unchecked_blocks": 4},
        "block inputs in host memory": {"offload_activations": "on"},
        "6 blocks streamed": {"blocks_to_swap": 6},
        "both": {"offload_activations": "on", "blocks_to_swap": 6},
        "compiled blocks": {"compile": True},
    }
    size = Size(832, 480, 49)
    rows = [Row(name, "14B-12", size, 7, settings) for name, settings in alone.items()]
    rows += [
        Row("fp8 weights", "14B-12", size, 7, quantize="fp8_e4m3fn"),
        Row("fp8 weights, products in fp8", "14B-12", size, 7, quantize="fp8_e4m3fn", matmul="fp8"),
        Row("int8 weights", "14B-12", size, 7, quantize="int8"),
        Row("int8 weights, products in int8", "14B-12", size, 7, quantize="int8", matmul="int8"),
    ]
    return [_case("switches", row, about_s=120 if row.name == "compiled blocks" else 30) for row in rows]


def published(_: Bench) -> list[Case]:
    """The rows of `benchmarks/measure`."""
    return [_case("published", row, about_s=75 if row.shape == "14B" else 25) for row in ROWS]


def _case(part: str, row: Row, about_s: float) -> Case:
    return Case(part, row.name, partial(_measure, row), about_s, needs_gpu=False)


def _measure(row: Row, bench: Bench) -> Figures:
    """Runs a row; adds to its figures the shares of the card's peak, and the first published figure."""
    bench.work.mkdir(parents=True, exist_ok=True)
    figures = measure_row(row, Where(bench.work, tiny=bench.tiny))
    hardware, useful = figures["work"]["flop"] / figures["median_s"] / 1e12, figures["useful_tflops"]
    for one in figures["published"][:1]:
        figures |= {
            "their_s": one["seconds"], "their_gib": one["gib"], "their_card": one["card"], "their_way": one["way"]
        }  # fmt: skip
    if not bench.cuda:
        return figures
    peak = dense_peak(torch.cuda.get_device_name(0))
    return figures | {
        "hfu_tflops": hardware,
        "mfu_tflops": useful,
        "hfu": hardware / peak if peak else None,
        "mfu": useful / peak if peak else None,
    }


def can_compile(bench: Bench) -> None:
    """Raises Needs where blocks cannot be compiled."""
    try:
        check_compile(bench.device)
    except WanTrainerError as refusal:
        raise Needs(f"needs what torch.compile takes: {refusal}") from refusal


def weights_file(bench: Bench, name: str) -> Path:
    """Returns a model file of a shape, without values."""
    bench.work.mkdir(parents=True, exist_ok=True)
    return write_base(bench.work / name, SHAPES[name])
