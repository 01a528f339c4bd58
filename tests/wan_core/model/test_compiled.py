"""Compiled blocks: few graphs, the same gradients, and a refusal where torch cannot compile."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.support.blocks import MIXED, SHAPE
from tests.support.cards import AMPERE, put_in
from tests.support.sessions import train_here
from tests.support.tiny_run import make_run
from wan_core.errors import DependencyError
from wan_core.events import StepDone
from wan_core.lora import LoraConfig, adapter_parameters, inject_lora
from wan_core.model import WanTransformer
from wan_core.model.compiled import check_compile
from wan_core.train import TrainConfig


def model() -> WanTransformer:
    torch.manual_seed(0)
    found = WanTransformer(SHAPE, MIXED)
    for name, p in found.named_parameters():
        torch.nn.init.normal_(p, std=0.2)
        if "norm" not in name and "modulation" not in name:
            p.data = p.data.bfloat16()
    inject_lora(found.requires_grad_(False), LoraConfig(rank=2), seed=1)
    for number, adapter in enumerate(adapter_parameters(found).values()):
        adapter.data = torch.randn(adapter.shape, generator=torch.Generator().manual_seed(number))
    for block in found.blocks:
        block.chunk_tokens = 16
    found.checkpoint_blocks = True
    return found


def step(found: WanTransformer, frames: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(frames)
    latent = torch.randn(1, 16, frames, 8, 6, generator=generator)
    output = found(latent, torch.full((1,), 500.0), torch.randn(1, 512, 8, generator=generator))
    output.square().mean().backward()
    gradients = [p.grad for p in adapter_parameters(found).values() if p.grad is not None]
    found.zero_grad()
    return [output.detach(), *gradients]


@pytest.mark.soak  # how few graphs; that a block compiles and computes the same is seen in test_block.py
@pytest.mark.lasts(8)
@pytest.mark.filterwarnings("ignore:The .grad attribute")  # torch looks at it while it compiles
def test_a_handful_of_graphs_serves_all_blocks_chunks_and_sizes() -> None:
    from torch._dynamo.testing import CompileCounterWithBackend

    torch.compiler.reset()
    counter, plain, compiled = CompileCounterWithBackend("eager"), model(), model()
    compiled.compile_blocks(counter)  # type: ignore[arg-type]
    graphs: list[int] = []
    for frames in (2, 3, 5):
        for eager, graph in zip(step(plain, frames), step(compiled, frames), strict=True):
            torch.testing.assert_close(graph, eager, atol=2e-2 * float(eager.abs().max()), rtol=2e-2)
        graphs.append(counter.frame_count)
    assert graphs[-1] == graphs[1] <= 8, "a size of clip costs a graph"


def test_without_triton_or_a_compiler_it_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    put_in(monkeypatch, AMPERE)
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    with pytest.raises(DependencyError, match=r"compile needs the package triton.*pip.*or turn compile off"):
        check_compile(torch.device("cuda"))
    monkeypatch.setattr(shutil, "which", lambda _name: None)
    with pytest.raises(DependencyError, match=r"C\+\+ compiler.*Turn compile off"):
        check_compile(torch.device("cpu"))


@pytest.mark.soak
@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
@pytest.mark.filterwarnings("ignore")
def test_a_run_of_compiled_blocks_learns_what_one_of_plain_blocks_learns(tmp_path: Path) -> None:
    """Through inductor, as on a GPU: the same losses within rounding."""
    torch.compiler.reset()
    losses = []
    for compile_them in (False, True):
        settings = TrainConfig(steps=3, save_every_n_steps=3, preview_every_n_steps=0, compile=compile_them)
        run = make_run(tmp_path / str(compile_them), train=settings)
        events = train_here(run)
        losses.append([event.loss for event in events if isinstance(event, StepDone)])
    assert len(losses[0]) == 3
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)
