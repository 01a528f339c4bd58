"""LoRAs on every kind of quantized base, through POST /prompt of a genuine ComfyUI, and their way into its sampler."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from comfy_server import ComfyServer
from graphs import TRAIN, run_of, training_graph
from safetensors.torch import load_file
from world import MODEL, sampling_graph

from tests.support.containers import write_gguf, write_scaled_fp8

pytestmark = [pytest.mark.comfy, pytest.mark.slow, pytest.mark.lasts(2)]

MADE_HERE = "Fp8Quantize"
BASES = {
    "an fp8 file": "wan_tiny_t2v_fp8_scaled.safetensors",
    MADE_HERE: MODEL,
    "GGUF Q8_0": "wan_tiny_t2v_Q8_0.gguf",
    "GGUF Q4_0": "wan_tiny_t2v_Q4_0.gguf",
}
"""The tiny model's rows are too short for a block of the K kinds, 256 values. Q4_0 takes the way of Q8_0; what it
unpacks to stands in tests/wan_core/checkpoint/test_containers.py."""


@pytest.fixture(params=[*list(BASES)[:-1], pytest.param(list(BASES)[-1], marks=pytest.mark.soak)])
def kind(request: pytest.FixtureRequest, comfy: ComfyServer) -> Iterator[str]:
    """A kind of base, whose file lies among the server's models while the test runs."""
    folder = comfy.base / "models" / "diffusion_models"
    kind, file = str(request.param), folder / BASES[request.param]
    whole = load_file(folder / MODEL)
    if kind == MADE_HERE:
        yield kind
        return
    if kind.startswith("GGUF"):
        write_gguf(file, whole, kind.removeprefix("GGUF "))
    else:
        write_scaled_fp8(file, whole)
    yield kind
    file.unlink()


def sampled(comfy: ComfyServer, lora: str) -> torch.Tensor:
    (saved,) = comfy.outputs(comfy.run(sampling_graph(lora=lora, prefix="quantized")), "10")["latents"]
    return load_file(comfy.base / saved["type"] / saved["subfolder"] / saved["filename"])["latent_tensor"]


@pytest.fixture(scope="module")
def without_lora(comfy: ComfyServer) -> torch.Tensor:
    return sampled(comfy, "")


def test_a_lora_trains_on_a_quantized_base_and_loads_into_the_model_it_was_made_from(
    comfy: ComfyServer, without_lora: torch.Tensor, kind: str
) -> None:
    graph = training_graph("on_" + kind.replace(" ", "_"), learning_rate=0.05)
    graph["model"]["inputs"]["diffusion_model"] = BASES[kind]
    if kind == MADE_HERE:
        graph["q"] = {"class_type": "Fp8Quantize", "inputs": {"model": ["model", 0]}}
        graph[TRAIN]["inputs"]["model"] = ["q", 0]
    run = run_of(comfy, comfy.run(graph))
    assert (run["status"], run["step"]) == ("done", 4)
    logged = len(comfy.log_text())
    found = sampled(comfy, run["lora_name"])
    assert "lora key not loaded" not in comfy.log_text()[logged:]
    assert torch.isfinite(found).all()
    assert not torch.equal(found, without_lora)
