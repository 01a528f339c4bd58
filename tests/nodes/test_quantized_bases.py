"""LoRAs on every kind of quantized base, through POST /prompt of a genuine ComfyUI, and their way into its sampler."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
import torch
from comfy_server import ComfyServer
from graphs import TRAIN, run_of, training_graph
from safetensors.torch import load_file
from world import MODEL, sampling_graph

from tests.support.containers import write_codes, write_gguf, write_int8, write_mxfp8, write_scaled_fp8

pytestmark = [pytest.mark.comfy, pytest.mark.slow, pytest.mark.lasts(2)]

MADE_HERE = "Fp8Quantize"
WRITERS: dict[str, Callable[[Path, dict[str, torch.Tensor]], object]] = {
    "fp8": write_scaled_fp8,
    "int8_convrot": partial(write_int8, group=64),
    "Q8_0": partial(write_gguf, kind="Q8_0"),
    "mxfp8": write_mxfp8,
    "int8": write_int8,
    "convrot_w4a4": partial(write_int8, group=64, bits=4),
    "w4a8_int8": partial(write_codes, group=64),
    "Q4_0": partial(write_gguf, kind="Q4_0"),
}
LONG = (MADE_HERE, "fp8", "int8_convrot", "mxfp8", "int8", "convrot_w4a4", "w4a8_int8", "Q4_0")
"""They take the way of Q8_0; what they unpack to stands in tests/wan_core/checkpoint, and test_queue.py trains on int8
made here. The tiny model's rows are too short for a block of GGUF's K kinds, 256 values."""


@pytest.fixture(params=[pytest.param(k, marks=[pytest.mark.soak] * (k in LONG)) for k in (MADE_HERE, *WRITERS)])
def base(request: pytest.FixtureRequest, comfy: ComfyServer) -> Iterator[str]:
    """The file of a kind of base, which lies among the server's models while the test runs."""
    folder, kind = comfy.base / "models" / "diffusion_models", str(request.param)
    if kind == MADE_HERE:
        yield MODEL
        return
    file = folder / f"wan_tiny_t2v_{kind}.{'gguf' if kind.startswith('Q') else 'safetensors'}"
    WRITERS[kind](file, load_file(folder / MODEL))
    yield file.name
    file.unlink()


def sampled(comfy: ComfyServer, lora: str) -> torch.Tensor:
    (saved,) = comfy.outputs(comfy.run(sampling_graph(lora=lora, prefix="quantized")), "10")["latents"]
    return load_file(comfy.base / saved["type"] / saved["subfolder"] / saved["filename"])["latent_tensor"]


@pytest.fixture(scope="module")
def without_lora(comfy: ComfyServer) -> torch.Tensor:
    return sampled(comfy, "")


def test_a_lora_trains_on_a_quantized_base_and_loads_into_the_model_it_was_made_from(
    comfy: ComfyServer, without_lora: torch.Tensor, base: str
) -> None:
    graph = training_graph("on_" + base.replace(".", "_"), learning_rate=0.05)
    graph["model"]["inputs"]["diffusion_model"] = base
    if base == MODEL:
        graph["q"] = {"class_type": "Fp8Quantize", "inputs": {"model": ["model", 0]}}
        graph[TRAIN]["inputs"]["model"] = ["q", 0]
    run = run_of(comfy, comfy.run(graph))
    assert (run["status"], run["step"]) == ("done", 4)
    logged = len(comfy.log_text())
    found = sampled(comfy, run["lora_name"])
    assert "lora key not loaded" not in comfy.log_text()[logged:]
    assert torch.isfinite(found).all()
    assert not torch.equal(found, without_lora)
