"""Every Wan kind that ComfyUI 0.33 detects, by a header that its own class wrote (tests/tiny/wan_headers.py)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.headers import Shapes
from wan_core.checkpoint import CheckpointHeader, detect_variant
from wan_core.checkpoint.header import TensorInfo
from wan_core.errors import CheckpointError

WRITTEN: dict[str, Any] = json.loads(
    (Path(__file__).parents[2] / "fixtures" / "wan_headers.json").read_text(encoding="utf-8")
)
PLAIN = {1536: "t2v 1.3B", 3072: "t2v 5B", 5120: "t2v 14B"}
NAMED = {
    "t2v 1.3B": ("WAN21_T2V", "t2v", "2.1 T2V-1.3B", True),
    "t2v 14B": ("WAN21_T2V", "t2v", "2.1 T2V-14B", True),
    "t2v 5B": ("WAN22_T2V", "ti2v", "2.2 TI2V-5B", True),
    "i2v 2.1": ("WAN21_I2V", "i2v", "2.1 I2V-14B-480P", True),
    "i2v 2.2": ("WAN21_T2V", "i2v", "2.2 I2V-A14B", True),
    "flf2v": ("WAN21_I2V", "flf2v", "2.1 FLF2V-14B", True),
    "fun control 2.1": ("WAN21_FunControl2V", "control", "2.1 Fun-1.3B-Control", True),
    "fun control 2.1 V1.1": ("WAN21_FunControl2V", "control", "2.1 Fun-V1.1-14B-Control", True),
    "fun control 2.2": ("WAN21_T2V", "control", "2.2 Fun-A14B-Control", True),
    "vace 1.3B": ("WAN21_Vace", "vace", "2.1 VACE-1.3B", True),
    "vace 14B": ("WAN21_Vace", "vace", "2.1 VACE-14B", True),
    "camera": ("WAN21_Camera", "camera", "2.1 Fun-V1.1-1.3B-Control-Camera", True),
    "camera 2.2": ("WAN22_Camera", "camera", "2.2 Fun-A14B-Control-Camera", True),
    "s2v": ("WAN22_S2V", "s2v", "2.2 S2V-14B", True),
    "humo": ("WAN21_HuMo", "humo", "2.1 HuMo-17B", True),
    "humo 1.7B": ("WAN21_HuMo", "humo", "2.1 HuMo-1.7B", True),
    "animate": ("WAN22_Animate", "animate", "2.2 Animate-14B", False),
    "animate2": ("WAN_Animate2", "animate2", "Wan-Animate 2", False),
    "dancer": ("WAN22_WanDancer", "dancer", "2.1 Wan-Dancer-14B", False),
    "scail": ("WAN21_SCAIL", "scail", "", True),
    "scail2": ("WAN21_SCAIL2", "scail2", "", True),
    "causal ar": ("WAN21_CausalAR_T2V", "causal_ar", "causal (autoregressive) Wan", False),
    "flow rvs": ("WAN21_FlowRVS", "flow_rvs", "FlowRVS", False),
}


def written(shapes: Shapes, metadata: dict[str, str]) -> CheckpointHeader:
    tensors = {name: TensorInfo("BF16", tuple(shape), 0) for name, shape in shapes.items()}
    return CheckpointHeader(Path("model.safetensors"), tensors, metadata, 0)


def header_of(kind: str) -> CheckpointHeader:
    found = WRITTEN["kinds"][kind]
    plain = WRITTEN["kinds"][PLAIN[found["dim"]]]["shapes"]
    shapes = {name: shape for name, shape in plain.items() if name not in found["without"]} | found["shapes"]
    return written(shapes, found["metadata"])


def test_every_kind_that_was_written_is_expected() -> None:
    assert WRITTEN["kinds"].keys() == NAMED.keys()
    assert WRITTEN["comfyui"].startswith("0.33")


@pytest.mark.parametrize("kind", NAMED)
def test_a_header_of_comfyuis_class_is_named_as_what_it_is(kind: str) -> None:
    chosen, task, name, trained = NAMED[kind]
    found = detect_variant(header_of(kind))
    assert (WRITTEN["kinds"][kind]["comfyui"], found.family.task) == (chosen, task)
    assert found.name == (name or found.name)
    assert found.family.trained or not trained


@pytest.mark.parametrize("patch", WRITTEN["patches"])
def test_a_patch_for_a_model_is_no_model(patch: str) -> None:
    with pytest.raises(CheckpointError, match="not a Wan diffusion model"):
        detect_variant(written(WRITTEN["patches"][patch], {}))
