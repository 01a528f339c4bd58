"""The dtype sets that an audit compares: the plan's, each preset, and the plan with one switch changed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch

from ..model import Numerics
from ..precision import PRESETS, SWITCHES, PrecisionPolicy, dtype_name

REFERENCE = Numerics(compute=torch.float32, rope=torch.float64, attention=torch.float32, adapter=torch.float32)
"""float32 throughout, with the rotary embedding in float64"""
PARTS = ("compute", *SWITCHES)
"""switches that an audit changes one by one; `compute` is the dtype of the linears (base_precision)"""
_WIDER = {"rope_table": torch.float64, "rope": torch.float64}


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """One set of dtypes to measure: a row of the report."""

    kind: str
    """"floor": a second float32 pass; "plan": the plan's dtypes; "preset": a preset's dtypes; "change": the plan's with
    one switch changed; "alone": float32 with one switch in a narrower dtype"""
    part: str
    """the changed switch, or the name of the preset"""
    before: str = ""
    after: str = ""
    numerics: Numerics


def candidates(
    policy: PrecisionPolicy, compute: torch.dtype, *, alone: bool, products: Sequence[torch.dtype] = ()
) -> tuple[Candidate, ...]:
    """Returns all rows for a plan with this policy and linears in `compute`.

    Each switch is set to float32 (the rotary embedding also to float64) and to the plan's 16-bit dtype (bf16 for a
    float32 plan). `alone` adds the "alone" rows. `products`: 8-bit dtypes in which matmuls with the plan's weights can
    run.
    """
    plan = policy.numerics(compute)
    low = compute if compute.itemsize == 2 else torch.bfloat16
    rows = [
        Candidate(kind="floor", part="reference again", numerics=REFERENCE),
        Candidate(kind="plan", part=policy.describe(), numerics=plan),
    ]
    rows += [
        Candidate(kind="preset", part=name, numerics=PrecisionPolicy(preset=name).numerics(compute)) for name in PRESETS
    ]
    for part in PARTS:
        for value in _values(part, low):
            if value != getattr(plan, part):
                changed = policy.numerics(value) if part == "compute" else replace(plan, **{part: value})
                rows.append(_change("change", part, plan, changed))
    for value in (None, *products):
        if value != plan.matmul:
            rows.append(_change("change", "matmul", plan, replace(plan, matmul=value)))
    if alone:
        lowered = [(part, value) for part in PARTS for value in _values(part, low)]
        rows += [
            _change("alone", part, REFERENCE, replace(REFERENCE, **{part: value}))
            for part, value in lowered
            if value.itemsize < getattr(REFERENCE, part).itemsize and (part != "compute" or value == low)
        ]
        rows += [_change("alone", "matmul", REFERENCE, replace(REFERENCE, matmul=value)) for value in products]
    return tuple(rows)


def _values(part: str, low: torch.dtype) -> Iterator[torch.dtype]:
    if part in _WIDER:
        yield _WIDER[part]
    yield torch.float32
    yield low
    if part == "compute":
        yield torch.float16 if low == torch.bfloat16 else torch.bfloat16


def _change(kind: str, part: str, before: Numerics, after: Numerics) -> Candidate:
    names = (dtype_name(getattr(numerics, part)) for numerics in (before, after))
    return Candidate(kind=kind, part=part, before=next(names), after=next(names), numerics=after)
