"""What an audit compares and what its report says: ranking, blocks, timesteps, table and data."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from tests.support.audits import BF16_PLAN as PLAN
from tests.support.audits import audit_of
from tests.support.tiny_run import TINY, TinyRun, make_run
from wan_core.audit import REPORT_FILE, AuditConfig, AuditReport, read_report
from wan_core.audit.candidates import candidates
from wan_core.model import Numerics, WanShape
from wan_core.precision import SWITCHES, PrecisionPolicy

BF16, FP32 = torch.bfloat16, torch.float32
DEEPER = WanShape(dim=128, ffn_dim=256, num_heads=1, num_layers=6)

ROWS = (
    *((kind, part) for kind in ("change", "alone") for part in ("residual", "rope")),
    *(("alone", "head"), ("preset", "balanced"), ("preset", "fast"), ("floor", "reference again")),
)
"""a server measures every row: tests/nodes/test_precision_audit.py"""

pytestmark = pytest.mark.lasts(0.7)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> TinyRun:
    return make_run(tmp_path_factory.mktemp("audit"), plan=PLAN, size=(3, 8, 8))


@pytest.fixture(scope="module")
def report(run: TinyRun) -> AuditReport:
    audit_of(run, ROWS, AuditConfig(timesteps=2, alone=True))
    return read_report(run.directory)


def test_every_part_is_changed_alone_and_never_to_what_it_is() -> None:
    rows = candidates(PrecisionPolicy(), BF16, alone=True)
    plan = PrecisionPolicy().numerics(BF16)
    for row in rows:
        if row.kind == "change" and row.part != "compute":
            differing = [n for n in Numerics.__dataclass_fields__ if getattr(row.numerics, n) != getattr(plan, n)]
            assert differing == [row.part]
            assert row.before != row.after
    assert {r.part for r in rows if r.kind == "change"} == {"compute", *SWITCHES}
    assert {r.part for r in rows if r.kind == "alone"} == {"compute", *SWITCHES}
    assert [r.part for r in rows if r.kind == "preset"] == ["reference", "balanced", "fast"]


def test_without_alone_there_is_none() -> None:
    assert not [r for r in candidates(PrecisionPolicy(), BF16, alone=False) if r.kind == "alone"]


def test_products_in_8_bits_are_compared_where_the_base_has_weights_for_them() -> None:
    assert not [r for r in candidates(PrecisionPolicy(), BF16, alone=True) if r.part == "matmul"]
    policy, fp8 = PrecisionPolicy(matmul="fp8"), torch.float8_e4m3fn
    found = [r for r in candidates(policy, BF16, alone=True, products=[fp8]) if r.part == "matmul"]
    assert [(r.kind, r.before, r.after) for r in found] == [("change", "fp8", "compute"), ("alone", "compute", "fp8")]


def test_a_plan_in_float32_is_asked_what_bf16_would_cost() -> None:
    changes = {(r.part, r.after) for r in candidates(PrecisionPolicy(), FP32, alone=False) if r.kind == "change"}
    assert {("compute", "bf16"), ("compute", "fp16"), ("residual", "bf16"), ("adapter", "bf16")} <= changes


@pytest.mark.soak
def test_the_ranking_has_the_residual_far_above_the_rope_product(report: AuditReport) -> None:
    order = [row.label for row in report.ranked("change")]
    assert order.index("residual fp32 -> bf16") < order.index("rope fp32 -> bf16")
    assert order.index("residual fp32 -> bf16") < order.index("rope fp32 -> fp64")
    alone = {row.label: row for row in report.ranked("alone")}
    residual, rope = alone["residual fp32 -> bf16"], alone["rope fp64 -> fp32"]
    assert residual.output_error is not None
    assert rope.output_error is not None
    assert residual.output_error > 1000 * rope.output_error > 0
    assert residual.gradient_error is not None
    assert rope.gradient_error is not None
    assert residual.gradient_error > 1000 * rope.gradient_error > 0


def test_the_ranking_falls(report: AuditReport) -> None:
    for kind in ("change", "alone"):
        found = [row.output_error or 0.0 for row in report.ranked(kind)]
        assert len(found) > 2
        assert found == sorted(found, reverse=True)


def test_the_preset_of_the_plan_measures_as_the_plan(report: AuditReport) -> None:
    same = next(row for row in report.rows if row.kind == "preset" and row.part == "balanced")
    assert (same.output_error, same.gradient_error) == (report.plan.output_error, report.plan.gradient_error)
    floor = next(row for row in report.rows if row.kind == "floor")
    assert (floor.output_error, floor.gradient_error) == (0.0, 0.0)


def test_errors_are_kept_per_timestep_and_per_block(report: AuditReport) -> None:
    assert report.timesteps == (250.0, 750.0)
    for row in report.rows:
        assert len(row.output_errors) == len(row.gradient_errors) == 2
        assert len(row.block_output_errors) == len(row.block_gradient_errors) == TINY.num_layers
        squares = [e * e for e in row.output_errors if e is not None]
        assert row.output_error == pytest.approx((sum(squares) / 2) ** 0.5)


def test_a_head_in_bf16_leaves_the_blocks_alone(report: AuditReport) -> None:
    """Nothing before the head knows of it in the forward pass; gradients come back through it."""
    row = next(row for row in report.rows if row.kind == "alone" and row.part == "head")
    assert row.block_output_errors == (0.0,) * TINY.num_layers
    assert all(error and error > 0 for error in row.block_gradient_errors)


@pytest.mark.soak
def test_a_narrow_residual_hurts_more_with_every_block(tmp_path: Path) -> None:
    deep = make_run(tmp_path, plan=PLAN, shape=DEEPER, size=(1, 8, 8))
    audit_of(deep, [("alone", "residual")], AuditConfig(timesteps=1, alone=True))
    row = next(r for r in read_report(deep.directory).rows if r.kind == "alone" and r.part == "residual")
    blocks = [error or 0.0 for error in row.block_output_errors]
    assert blocks[-1] > 1.3 * blocks[0] > 0


def test_the_report_survives_json(report: AuditReport) -> None:
    assert AuditReport.from_dict(json.loads(json.dumps(report.to_dict(), allow_nan=False))) == report


def test_the_prediction_knows_that_a_wide_residual_takes_memory(report: AuditReport) -> None:
    presets = {row.part: row.predicted_bytes or 0 for row in report.rows if row.kind == "preset"}
    assert presets["fast"] < presets["balanced"]
    assert all(row.predicted_bytes is None for row in report.rows if row.kind in ("alone", "floor"))


def test_table_and_data_lie_beside_the_run_and_hold_no_path(run: TinyRun, report: AuditReport) -> None:
    table = (run.directory / "precision_audit.txt").read_text(encoding="utf-8")
    assert table == report.table() + "\n"
    for name in (REPORT_FILE, "precision_audit.txt"):
        assert str(run.directory.parent) not in (run.directory / name).read_text(encoding="utf-8")
