"""What a card can, with stand-ins for what torch says of cards: no such card is met here."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from tests.support.cards import AMPERE, GTX_1660, PASCAL, T4, V100, gpu, put_in
from tests.support.containers import cast, weights
from wan_core.abilities import abilities_of, all_have_bf16
from wan_core.errors import ConfigError, PlacementError
from wan_core.files import Roots
from wan_core.job import with_scaled_loss
from wan_core.job.remarks import notes_on_cards, remark_on_scaling, remarks_on_attention, remarks_on_cards
from wan_core.load import ModelPlan, check_plan_devices, inspect_model, resolved
from wan_core.lora import LoraConfig
from wan_core.model import check_compile
from wan_core.placement import FreeMemory, PlacementConfig, StepShape, resolve_placement
from wan_core.plan import Workload
from wan_core.plan.notes import notes_of
from wan_core.plan.planning import plan_memory
from wan_core.precision import PrecisionPolicy, check_matmul
from wan_core.selftest import machine
from wan_core.train import TrainConfig

ADA, HOPPER, MAXWELL = gpu("RTX 4090", (8, 9)), gpu("H100", (9, 0)), gpu("GTX 980", (5, 2))
STEP = StepShape(batch_size=1, latent_frames=1, latent_height=32, latent_width=32)


@pytest.mark.parametrize(
    ("card", "compute", "fp8", "int8", "compiles"),
    [
        (HOPPER, "bf16", True, True, True),
        (ADA, "bf16", True, True, True),
        (AMPERE, "bf16", False, True, True),
        (T4, "fp16", False, True, True),
        (gpu("NVIDIA GeForce RTX 2080 Ti", (7, 5)), "fp16", False, True, True),
        (GTX_1660, "fp32", False, True, True),
        (gpu("Quadro T1000", (7, 5)), "fp32", False, True, True),
        (V100, "fp16", False, True, True),
        (PASCAL, "fp16", False, False, False),
        (MAXWELL, "fp32", False, False, False),
    ],
    ids=lambda value: value.name if hasattr(value, "name") else "",
)
def test_what_a_card_can_follows_from_its_age(
    monkeypatch: pytest.MonkeyPatch, card: Any, compute: str, fp8: bool, int8: bool, compiles: bool
) -> None:
    put_in(monkeypatch, card)
    found = abilities_of("cuda:0")
    assert (found.compute, found.fp8_products, found.int8_products, found.compiles) == (compute, fp8, int8, compiles)
    assert (found.name, found.memory) == (card.name, card.total_memory)
    assert ("no native bf16" in found.sentence()) is (compute != "bf16")
    assert "computes in bf16" in found.sentence() or f"compute in {compute}" in found.sentence()


def test_a_sentence_says_what_a_t4_does_and_what_it_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    put_in(monkeypatch, T4)
    assert abilities_of("cuda:0").sentence() == (
        "Tesla T4 (compute capability 7.5) has no native bf16, so new runs compute in fp16 with a scaled loss, "
        "with torch's memory-efficient attention, which is slower than flash. Not available: fp8 products."
    )
    assert abilities_of("cpu").sentence() == ""


@pytest.mark.parametrize(
    ("kind", "bf16"), [("gfx1030", False), ("gfx906:sramecc+", False), ("gfx90a", True), ("gfx1100", True)]
)
def test_cards_of_amd_are_known_by_their_kind_and_what_else_they_can_is_tried(
    monkeypatch: pytest.MonkeyPatch, kind: str, bf16: bool
) -> None:
    monkeypatch.setattr(torch.version, "hip", "6.4")
    put_in(monkeypatch, gpu("AMD Radeon", (10, 3), gcnArchName=kind))
    found = abilities_of("cuda:0")
    assert (found.bf16, found.fp8_products, found.compiles) == (bf16, True, True)
    assert kind.partition(":")[0] in found.sentence()


@pytest.mark.parametrize(
    ("built", "card", "runs"),
    [
        (["sm_75", "sm_80", "sm_90", "sm_120", "compute_120"], V100, False),
        (["sm_75", "sm_80", "sm_90"], T4, True),
        (["sm_80", "sm_90"], ADA, True),
        (["sm_80", "sm_90a"], gpu("RTX 5090", (12, 0)), False),
        (["sm_80", "compute_90"], gpu("RTX 5090", (12, 0)), True),
        (["sm_50", "sm_60", "sm_70"], PASCAL, True),
    ],
)
def test_a_card_that_this_torch_has_no_code_for_is_refused_before_weights_are_read(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, built: list[str], card: Any, runs: bool
) -> None:
    put_in(monkeypatch, card)
    monkeypatch.setattr(torch.cuda, "get_arch_list", lambda: built)
    plan, found = a_file(tmp_path)
    given = (
        plan,
        found.variant.shape,
        PrecisionPolicy().numerics(torch.float16),
        found,
        resolve_placement(plan.placement, 2),
    )
    if runs:
        check_plan_devices(*given)
        return
    with pytest.raises(PlacementError, match=rf"has no code for {card.name}.*built for sm_.*Install a torch built for"):
        check_plan_devices(*given)


def a_file(folder: Path, stored: torch.dtype = torch.float16, **plan: Any) -> tuple[ModelPlan, Any]:
    if not (folder / "wan.safetensors").exists():
        save_file(cast(weights(), stored), folder / "wan.safetensors")
    asked = ModelPlan(base_file="diffusion_models:wan.safetensors", **plan)
    return asked, inspect_model(asked, Roots({"diffusion_models": (str(folder),)}))


@pytest.mark.parametrize("stored", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize(
    ("cards", "compute"),
    [((T4,), "fp16"), ((GTX_1660,), "fp32"), ((AMPERE,), ""), ((AMPERE, T4), "fp16"), ((T4, GTX_1660), "fp32")],
)
def test_a_new_run_computes_in_what_every_card_of_it_has(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, stored: torch.dtype, cards: tuple[Any, ...], compute: str
) -> None:
    put_in(monkeypatch, *cards)
    plan, file = a_file(tmp_path, stored, placement=PlacementConfig(mode="split blocks", devices="all"))
    found = resolved(plan, [file])
    assert found.compute == compute
    assert found.base_precision == ("bf16" if not compute and stored == torch.float32 else "as in file")
    wanted = {"fp16": torch.float16, "fp32": torch.float32, "": torch.bfloat16}[compute]
    assert inspect_model(found, Roots({"diffusion_models": (str(tmp_path),)})).compute_dtype == wanted
    assert with_scaled_loss(TrainConfig(), found).loss_scaling == ("dynamic" if compute == "fp16" else "off")


@pytest.mark.parametrize("asked", ["bf16", "fp16", "fp32"])
def test_what_was_asked_for_is_taken_on_any_card(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, asked: str) -> None:
    put_in(monkeypatch, T4)
    plan, file = a_file(tmp_path, base_precision=asked)
    assert resolved(plan, [file]) == plan


def test_a_card_without_bf16_is_never_advised_to_take_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    plan, found = a_file(tmp_path)
    monkeypatch.setattr("wan_core.job.remarks.attention_kernels", lambda *_: {"cuda:0": "math"})
    for card in (T4, AMPERE):
        put_in(monkeypatch, card)
        half = replace(found, compute_dtype=torch.float16)
        advice = [*remarks_on_attention(plan, half, STEP), *remark_on_scaling(plan, torch.float16, TrainConfig())]
        assert len(advice) == 2
        assert [("bf16" in one) for one in advice] == [card is AMPERE] * 2
        assert all_have_bf16(plan.placement.device_names()) is (card is AMPERE)
    put_in(monkeypatch, T4)
    (emulated,) = remarks_on_cards(plan, torch.bfloat16)
    assert emulated.startswith("Tesla T4 (compute capability 7.5) has no native bf16: torch emulates it")
    assert emulated.endswith("uses fp16.")
    (faster,) = remarks_on_attention(plan, found, STEP)
    assert "Set base_precision to fp16, or install" in faster
    assert remarks_on_cards(plan, torch.float16) == []
    assert notes_on_cards(plan, torch.float16) == [abilities_of("cuda:0").sentence()]
    fast = plan.with_precision(PrecisionPolicy(preset="fast"))
    (narrow,) = remarks_on_cards(fast, torch.float16)
    assert narrow.startswith("The token stream is kept in fp16")
    put_in(monkeypatch, GTX_1660)
    (wrong,) = remarks_on_cards(plan, torch.float16)
    assert "known to give NaN in fp16" in wrong


def test_what_an_old_card_cannot_run_is_refused_in_a_sentence_that_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    put_in(monkeypatch, T4, PASCAL)
    t4, pascal = torch.device("cuda", 0), torch.device("cuda", 1)
    with pytest.raises(ConfigError, match=r'"fp8" cannot run on cuda:0: .*8\.9.*Tesla T4.*Set matmul to compute'):
        check_matmul(torch.float8_e4m3fn, t4)
    with pytest.raises(ConfigError, match=r'"int8" cannot run on cuda:1: .*7\.0.*GTX 1080.*Set matmul to compute'):
        check_matmul(torch.int8, pascal)
    with pytest.raises(ConfigError, match=r"7\.0 or newer, and cuda:1 is NVIDIA GeForce GTX 1080.*Turn compile off"):
        check_compile(pascal)


def test_a_plan_says_what_its_cards_do_without(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for capability, compute, notes in (("7.5", torch.float16, 1), ("8.6", torch.bfloat16, 0)):
        monkeypatch.setenv("WAN_TRAINER_CARD_CAPABILITY", capability)
        plan, file = a_file(tmp_path, torch.bfloat16)
        plan, file = a_file(tmp_path, compute=resolved(plan, [file]).compute)
        assert file.compute_dtype == compute
        step = StepShape(batch_size=1, latent_frames=3, latent_height=8, latent_width=8)
        job = Workload(
            model=plan, roots=Roots({}), file=file, lora=LoraConfig(), train=TrainConfig(), step=step
        )  # fmt: skip
        found = notes_of(plan_memory(job, FreeMemory(devices={})), None)
        assert [one.partition(" has")[0] for one in found] == ["cpu (compute capability 7.5)"] * notes


def test_the_self_test_says_what_a_card_can_and_fails_where_torch_has_no_code_for_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert "the CPU trains (bf16, fp8 storage)" in machine.compute(tmp_path)
    monkeypatch.setenv("WAN_TRAINER_CARD_CAPABILITY", "7.5")
    said = machine.compute(tmp_path)
    assert "the CPU trains (fp16, fp8 storage). cpu (compute capability 7.5) has no native bf16" in said
    monkeypatch.delenv("WAN_TRAINER_CARD_CAPABILITY")
    put_in(monkeypatch, V100)
    monkeypatch.setattr(torch.cuda, "get_arch_list", lambda: ["sm_75", "sm_80"])
    with pytest.raises(PlacementError, match="has no code for Tesla V100"):
        machine.compute(tmp_path)


@pytest.mark.parametrize("said", ["T4", "75", "-7.5", "7.5.1"])
def test_a_capability_that_is_none_is_refused(monkeypatch: pytest.MonkeyPatch, said: str) -> None:
    monkeypatch.setenv("WAN_TRAINER_CARD_CAPABILITY", said)
    with pytest.raises(ConfigError, match=r"WAN_TRAINER_CARD_CAPABILITY is .*Set it to a number such as 7\.5"):
        abilities_of("cpu")
