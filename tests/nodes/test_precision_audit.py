"""Precision on the canvas, through POST /prompt of a genuine ComfyUI: switches reach the job, the audit ranks them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from comfy_server import ComfyServer, PromptRefused
from graphs import CACHE, TRAIN, Graph, folder_of, is_no_choice, run_of, training_graph
from test_cancel import assert_nothing_runs, cancel_when

pytestmark = [pytest.mark.comfy, pytest.mark.slow, pytest.mark.lasts(3)]

AUDIT, POLICY = "audit", "policy"


def audit_graph(policy: dict[str, str] | None = None, **audit: Any) -> Graph:
    """Model, clips and cache as for training; PrecisionAudit instead of TrainLoRA."""
    graph = training_graph("none")
    del graph[TRAIN]
    graph["model"]["inputs"]["base_precision"] = "bf16"
    model = "model"
    if policy is not None:
        model = POLICY
        graph[POLICY] = {"class_type": "WanPrecisionPolicy", "inputs": {"model": ["model", 0], **policy}}
    graph[AUDIT] = {
        "class_type": "PrecisionAudit",
        "inputs": {"model": [model, 0], "cache": [CACHE, 0], "timesteps": 1, **audit},
    }
    return graph


def report_of(comfy: ComfyServer) -> Path:
    """The newest report."""
    reports = (comfy.output / "wan_trainer" / "_audits").glob("*/precision_audit.json")
    return max(reports, key=lambda file: file.stat().st_mtime_ns)


def test_the_audit_ranks_switches_and_asks_the_engine_only_once(comfy: ComfyServer) -> None:
    with comfy.events() as seen:
        entry = comfy.run(audit_graph())
    output = comfy.outputs(entry, AUDIT)
    table, report = output["text"][0], report_of(comfy)
    order = [line for line in table.splitlines() if "->" in line]
    residual, rope = (
        next(i for i, line in enumerate(order) if name in line) for name in ("residual fp32", "rope fp32")
    )
    assert residual < rope
    data = json.loads(report.read_text(encoding="utf-8"))
    assert data["policy"] == "balanced"
    assert data["compute"] == "bf16"
    assert [row["output_error"] for row in data["rows"] if row["kind"] == "floor"] == [0.0]
    assert str(comfy.base) not in json.dumps(data)
    assert [data for data in seen.of("progress") if data["node"] == AUDIT]
    assert_nothing_runs(comfy)

    comfy.free()
    written = report.stat().st_mtime_ns
    again = comfy.outputs(comfy.run(audit_graph()), AUDIT)
    assert again["text"] == output["text"]
    assert report.stat().st_mtime_ns == written


@pytest.mark.soak
def test_switches_set_on_the_canvas_reach_the_audit_and_the_run(comfy: ComfyServer) -> None:
    graph = audit_graph({"preset": "fast", "residual": "fp32", "attention": "fp32"})
    train = training_graph("switched")[TRAIN]
    graph[TRAIN] = {**train, "inputs": {**train["inputs"], "model": [POLICY, 0]}}
    entry = comfy.run(graph)
    assert (
        "policy fast, but residual fp32, attention fp32, linear layers in bf16"
        in comfy.outputs(entry, AUDIT)["text"][0]
    )
    assert run_of(comfy, entry)["status"] == "done"
    written = json.loads((folder_of(comfy, "switched") / "run.json").read_text(encoding="utf-8"))["model"]["precision"]
    assert {name: value for name, value in written.items() if value} == {
        "preset": "fast",
        "residual": "fp32",
        "attention": "fp32",
        "matmul": "compute",
    }


@pytest.mark.soak
def test_cancel_ends_the_audit_and_leaves_no_report(comfy: ComfyServer) -> None:
    graph = audit_graph(timesteps=100, clips=3, alone=True)
    entry, seconds = cancel_when(comfy, graph, "measuring precision")
    assert entry["status"]["status_str"] == "error"
    assert [message for message in entry["status"]["messages"] if message[0] == "execution_interrupted"]
    assert seconds < 20
    assert_nothing_runs(comfy)
    audits = comfy.output / "wan_trainer" / "_audits"
    unfinished = [folder for folder in audits.iterdir() if not (folder / "precision_audit.json").exists()]
    assert len(unfinished) == 1
    shutil.rmtree(unfinished[0])


def test_a_switch_value_that_is_no_choice_is_refused(comfy: ComfyServer) -> None:
    try:
        said = comfy.error(comfy.run(audit_graph({"residual": "fp64"}), check=False))
    except PromptRefused as refused:
        said = str(refused)
    assert is_no_choice(said, "residual", "fp64", "fp")
