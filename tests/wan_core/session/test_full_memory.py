"""A full GPU: the sentence names what would help this run, and nothing it does already."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from tests.support.sessions import train_here
from tests.support.tiny_run import make_run, steady
from wan_core.errors import OutOfMemory
from wan_core.job.config import DataConfig, RunConfig, read_status
from wan_core.job.remarks import not_finite_error
from wan_core.load import ModelPlan
from wan_core.lora import LoraConfig
from wan_core.placement import PlacementConfig
from wan_core.precision import QuantizeConfig
from wan_core.session.full_memory import memory_named
from wan_core.train import NotFinite, SaveStore, TrainConfig

PLAIN = RunConfig(
    run_name="r",
    model=ModelPlan(base_file="diffusion_models:wan.safetensors"),
    data=DataConfig(fingerprint="0" * 64),
)
FULL = "CUDA out of memory. Tried to allocate 2.00 GiB.\nmore lines"


def said(config: RunConfig, gpus: int = 1, **about: Any) -> str:
    with pytest.raises(OutOfMemory) as refused, memory_named(config, gpus=gpus, **about):
        raise torch.OutOfMemoryError(FULL)
    return str(refused.value)


def test_the_measures_come_in_order_of_what_they_bring() -> None:
    config = replace(
        PLAIN, train=TrainConfig(gradient_checkpointing=False, batch_size=4, steps=9), lora=LoraConfig(rank=64)
    )
    assert said(config, gpus=2) == (
        "The GPU ran out of memory: it requested 2.00 GiB more. What helps most, in this order: other programs off the "
        "GPU; gradient_checkpointing in Wan Train Settings; batch_size 1 instead of 4, with more "
        "gradient_accumulation_steps (begins a new run); fewer num_frames or a smaller width and height in the dataset "
        "node (begins a new run); the node Fp8 / Int8 Quantize (Wan) between Load Wan Model and Train Wan LoRA (begins "
        "a new run); split blocks in Split Across GPUs, over the 2 cards here; a rank "
        "below 64 (begins a new run). Saved steps are kept."
    )


def test_processes_that_share_a_clip_are_told_to_be_more() -> None:
    """One of them cannot try a step again alone, so the run ends with this."""
    placement = PlacementConfig(mode="copy per GPU", devices="cpu", copies=4, context_parallel=2)
    text = said(replace(PLAIN, model=PLAIN.model.with_placement(placement)))
    assert "; model.placement.context_parallel above 2. Saved steps are kept." in text


def test_what_was_asked_for_and_what_there_was_are_said() -> None:
    full = (
        "CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 15.70 GiB of which 4.50 MiB is "
        "free. Including non-PyTorch memory, this process has 15.1 GiB memory in use."
    )
    with pytest.raises(OutOfMemory) as refused, memory_named(PLAIN, gpus=1, predicted=lambda: 30 << 30):
        raise torch.OutOfMemoryError(full)
    assert str(refused.value).startswith(
        "The GPU ran out of memory: it requested 20.00 MiB more, 4.50 MiB of 15.70 GiB were free, a step was predicted "
        "to take 30.0 GiB, other programs held 0.6 GiB. What helps most"
    )
    exceeded = (
        "4.50 MiB of 15.70 GiB were free, it held 15.1 GiB, more than the 14.0 GiB that were predicted, other programs "
        "held 0.6 GiB. What"
    )
    with pytest.raises(OutOfMemory, match=re.escape(exceeded)), memory_named(PLAIN, gpus=1, predicted=lambda: 14 << 30):
        raise torch.OutOfMemoryError(full)
    figures = r"\(RAM\) ran out at that moment; now [\d.]+ of [\d.]+ GiB are free again\. What helps"
    with pytest.raises(OutOfMemory, match=figures), memory_named(PLAIN):
        raise MemoryError


@pytest.mark.parametrize(("held", "helps"), [("15.10 GiB", False), ("13.20 GiB", True)])
def test_other_programs_are_named_where_what_they_hold_would_be_enough(held: str, helps: bool) -> None:
    full = (
        "CUDA out of memory. Tried to allocate 1024.00 MiB. GPU 0 has a total capacity of 15.70 GiB of which 204.5 MiB "
        f"is free. Including non-PyTorch memory, this process has {held} memory in use."
    )
    with pytest.raises(OutOfMemory) as refused, memory_named(PLAIN, gpus=1):
        raise torch.OutOfMemoryError(full)
    assert ("other programs off the GPU" in str(refused.value)) is helps


def test_what_begins_a_new_run_says_so_and_nothing_else_does() -> None:
    """As the identity of the job says it, which decides where Run goes on."""
    cards = PlacementConfig(mode="split blocks", devices="cuda:0,cuda:1")
    by_hand = TrainConfig(gradient_checkpointing=False, memory="manual", blocks_to_swap=0, batch_size=4)
    before = replace(PLAIN, train=by_hand, lora=LoraConfig(rank=64))
    changed = {
        "other programs": before,
        "gradient_checkpointing": replace(before, train=replace(by_hand, gradient_checkpointing=True)),
        "memory": replace(before, train=replace(by_hand, memory="auto")),
        "batch_size": replace(before, train=replace(by_hand, batch_size=1)),
        "fewer": replace(before, data=DataConfig(fingerprint="1" * 64)),
        "the node": replace(before, model=before.model.with_quantize(QuantizeConfig(scheme="int8"))),
        "split blocks": replace(before, model=before.model.with_placement(cards)),
        "a rank": replace(before, lora=LoraConfig(rank=32)),
    }
    helps = said(before, gpus=2).split("this order: ")[1].removesuffix(". Saved steps are kept.").split("; ")
    assert len(helps) == len(changed)
    for one, (begins, after) in zip(helps, changed.items(), strict=True):
        assert one.startswith(begins)
        assert one.endswith(" (begins a new run)") is (after.job_id != before.job_id), one


@pytest.mark.parametrize(("rate", "lower"), [(1e-4, "0.00005 instead of 0.0001"), (1.0, "0.0003 instead of 1")])
def test_the_lower_of_a_learning_rate_that_was_too_high_is_written_as_its_widget_writes_it(
    rate: float, lower: str
) -> None:
    store = cast(SaveStore, SimpleNamespace(latest=lambda _job: None))
    config = replace(PLAIN, train=TrainConfig(learning_rate=rate))
    helps = str(not_finite_error(NotFinite("No."), 3, store, config)).split("this order: ")[1].split("; ")
    assert helps[0] == f"learning_rate {lower} (begins a new run)"
    bf16 = replace(config, model=replace(PLAIN.model, base_precision="bf16"))
    halved = replace(config, train=TrainConfig(learning_rate=rate / 2))
    assert len({one.job_id for one in (config, bf16, halved)}) == 3, "each is another job"


def test_memory_that_was_managed_by_hand_may_be_managed_again() -> None:
    by_hand = TrainConfig(memory="manual", blocks_to_swap=0, steps=9)
    assert "memory set to auto in Wan Train Settings" in said(replace(PLAIN, train=by_hand))
    assert "memory set to auto" not in said(PLAIN)


def test_what_is_on_already_is_not_advised() -> None:
    spread = PlacementConfig(mode="split blocks", devices="cuda:0,cuda:1")
    plan = PLAIN.model.with_placement(spread).with_quantize(QuantizeConfig(scheme="int8"))
    text = said(replace(PLAIN, model=plan), gpus=2)
    for word in ("Quantize", "Split", "gradient_checkpointing", "batch_size", "rank"):
        assert word not in text
    assert "fewer num_frames" in text


def test_a_file_that_is_8_bit_gains_nothing_by_quantizing() -> None:
    assert "Quantize" in said(PLAIN)
    assert "Quantize" not in said(PLAIN, stored_small=lambda: True)
    unpacked = replace(PLAIN, model=replace(PLAIN.model, base_precision="bf16"))
    assert "Quantize" in said(unpacked, stored_small=lambda: True)


def test_one_card_cannot_be_split_over() -> None:
    assert "Split" not in said(PLAIN, gpus=1)


@pytest.mark.parametrize(
    "said",
    [
        "CUDA error: out of memory\nmore lines",
        "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate`",
        "Triton Error [CUDA]: out of memory",
    ],
)
def test_a_gpu_is_full_whoever_says_so(said: str) -> None:
    """torch's type for it is of its own allocator; libraries ask the driver themselves."""
    sentence = re.escape(f"ran out of memory ({said.splitlines()[0]}). What helps")
    with pytest.raises(OutOfMemory, match=sentence), memory_named(PLAIN, gpus=1):
        raise RuntimeError(said)


def test_of_the_computers_memory_what_is_cheap_comes_first_and_what_begins_a_new_run_says_so() -> None:
    with pytest.raises(OutOfMemory) as refused, memory_named(PLAIN):
        raise MemoryError
    helps = str(refused.value).split("this order: ")[1].removesuffix(". Saved steps are kept.").split("; ")
    assert [one.split()[0] for one in helps] == ["close", "give", "fewer", "an"]
    assert [one.endswith(" (begins a new run)") for one in helps] == [False, False, True, True]
    with pytest.raises(OutOfMemory) as refused, memory_named(PLAIN, rendering=True):
        raise MemoryError
    assert "begins a new run" not in str(refused.value)
    assert "num_frames in Wan Preview Settings" in str(refused.value)


def test_clips_of_a_finished_run_are_made_smaller_not_trained_otherwise() -> None:
    text = said(PLAIN, gpus=2, rendering=True)
    assert "width, height or num_frames in Wan Preview Settings" in text
    for word in ("dataset", "Quantize", "Split", "rank"):
        assert word not in text


@pytest.mark.parametrize("rendering", [False, True])
def test_what_comfyui_holds_is_the_first_remedy(rendering: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """It starts the process, and says so in its environment."""
    monkeypatch.setenv("WAN_TRAINER_HELD", "9.4 GiB (WanTEModel 6.7, WanVAE 0.5)")
    first = re.escape(
        "in this order: free the 9.4 GiB (WanTEModel 6.7, WanVAE 0.5) that ComfyUI itself holds: press Free model and "
        "node cache, and queue the nodes after this one as a separate graph; close other programs; give"
    )
    with pytest.raises(OutOfMemory, match=first), memory_named(PLAIN, rendering=rendering):
        raise MemoryError
    monkeypatch.setenv("WAN_TRAINER_HELD", "")
    with pytest.raises(OutOfMemory, match="in this order: close other programs"), memory_named(PLAIN):
        raise MemoryError


def test_other_errors_pass() -> None:
    with pytest.raises(RuntimeError, match="something else"), memory_named(PLAIN):
        raise RuntimeError("something else")
    with pytest.raises(OutOfMemory, match=r"memory \(RAM\)"), memory_named(PLAIN):
        raise MemoryError


def test_an_error_without_words_is_named_by_its_type() -> None:
    with (
        pytest.raises(OutOfMemory, match=r"^The GPU ran out of memory \(OutOfMemoryError\)\. W"),
        memory_named(PLAIN, gpus=1),
    ):
        raise torch.OutOfMemoryError


@pytest.mark.parametrize(
    "where", [*(pytest.param(one, marks=pytest.mark.soak) for one in ("load", "forward", "optimizer")), "backward"]
)
def test_running_out_of_gpu_memory_names_what_helps_and_keeps_saved_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    run = make_run(tmp_path, train=steady(steps=3, save_every_n_steps=1))
    train_here(run, max_steps=1)
    full = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nmore lines")

    def fail(*_: Any, **__: Any) -> Any:
        raise full

    if where == "load":
        monkeypatch.setattr("wan_core.session.loading.materialize", fail)
    elif where == "optimizer":
        full_adamw = type("FullAdamW", (torch.optim.AdamW,), {"step": fail})
        monkeypatch.setattr("wan_core.train.optimizers._without_compiler", lambda _: full_adamw)
    elif where == "backward":
        monkeypatch.setattr(torch.Tensor, "backward", fail)
    with pytest.raises(
        OutOfMemory,
        match=r"requested 2\.00 GiB more\. .*other programs off the GPU; fewer num_frames.*Fp8 / Int8 Quantize \(Wan\) "
        r"between Load Wan Model and Train Wan LoRA \(begins a new run\)\. Saved steps are kept\.$",
    ):
        train_here(run, target=fail if where == "forward" else None)
    assert read_status(run.directory).state == "failed"
    monkeypatch.undo()
    train_here(run)
    assert read_status(run.directory).state == "done"


@pytest.mark.parametrize(
    "where", ["load", *(pytest.param(one, marks=pytest.mark.soak) for one in ("forward", "backward"))]
)
def test_running_out_of_the_computers_own_memory_is_no_bug_and_keeps_saved_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """torch says so by a plain RuntimeError; the request is real, and larger than any machine."""
    run = make_run(tmp_path, train=steady(steps=3, save_every_n_steps=1))
    train_here(run, max_steps=1)

    def fail(*_: Any, **__: Any) -> Any:
        return torch.empty(1 << 60, dtype=torch.uint8)

    if where == "load":
        monkeypatch.setattr("wan_core.session.loading.materialize", fail)
    elif where == "backward":
        monkeypatch.setattr(torch.Tensor, "backward", fail)
    said = (
        r"memory \(RAM\) ran out at that moment; now [\d.]+ of [\d.]+ GiB are free again\. "
        r"What .*close other prog.*Saved steps are kept\.$"
    )
    with pytest.raises(OutOfMemory, match=said):
        train_here(run, target=fail if where == "forward" else None)
    assert read_status(run.directory).state == "failed"
    monkeypatch.undo()
    train_here(run)
    assert read_status(run.directory).state == "done"
