"""Tuners of PEFT by name: what they compute, their file, and what is refused before training."""

from __future__ import annotations

import signal
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch.nn import functional

from tests.support.adapters import filled
from tests.support.forked import ForkServer, Worker
from tests.support.sessions import train_here
from tests.support.tiny_run import PLAN, TinyRun, make_run
from tests.wan_core.export.test_readers import SHAPES, inputs_of, random_model, run
from wan_core.errors import CheckpointError, ConfigError
from wan_core.lora import (
    LoraConfig,
    LoraWeights,
    acting_parts,
    adapters_of,
    check_targets,
    check_tuner,
    exported,
    inject_lora,
    without_adapters,
)
from wan_core.lora.tuners import TunerAdapter
from wan_core.model import WanTransformer, model_without_values
from wan_core.precision import QuantizeConfig, quantize_block
from wan_core.train import TrainConfig

TUNERS = {"VERA": "r=16", "BOFT": "boft_block_size=4", "HRA": "r=4", "RANDLORA": "r=8", "MISS": "r=4"}
TARGETS = (r"blocks\.0\.self_attn\.(q|k)", r"blocks\.1\.ffn\.0")
SHAPE = SHAPES["t2v"]
_SAID = (
    "The LoRA file lacks {:.2g} % of the trained change, because a pair of this rank cannot hold all of it. A higher "
    "rank loses less, and peft_file differences loses nothing."
)


def config(tuner: str, **more: object) -> LoraConfig:
    given = {"kind": "peft", "peft_tuner": tuner, "peft_args": TUNERS.get(tuner, ""), "targets": TARGETS, "rank": 4}
    return LoraConfig(**(given | more))  # type: ignore[arg-type]


def trained(tuner: str, *, quantized: bool = False, **more: object) -> tuple[WanTransformer, list[TunerAdapter]]:
    """A model under a tuner with values as if trained."""
    model = random_model(SHAPE, torch.Generator().manual_seed(3))
    if quantized:
        quantize_block(model, "", QuantizeConfig(scheme="int8"))
    inject_lora(model, config(tuner, **more), seed=5)
    filled(model, 0.05)
    return model, [one for one in adapters_of(model) if isinstance(one, TunerAdapter)]


@pytest.mark.parametrize("quantized", [False, True])
@pytest.mark.parametrize("tuner", TUNERS)
def test_the_change_in_a_file_is_what_the_tuner_computes(tuner: str, quantized: bool) -> None:
    model, adapters = trained(tuner, quantized=quantized, peft_file="differences")
    assert len(adapters) == 3
    parts = exported(model)
    for one in adapters:
        base, change = one.layer.base_layer, parts[f"{one.name}.diff"]
        x = torch.randn(5, base.in_features, generator=torch.Generator().manual_seed(1), requires_grad=True)
        out = one.layer(x)
        expected = base(x) + functional.linear(x, change)
        assert float((out - expected).detach().abs().max()) < 5e-6 * float(expected.detach().abs().max())
        assert float(change.norm()) > 0.01
        (gradient,), (wanted,) = (torch.autograd.grad(y.square().sum(), x) for y in (out, expected))
        assert float((gradient - wanted).abs().max()) < 5e-6 * float(wanted.abs().max())


@pytest.mark.parametrize("tuner", TUNERS)
def test_a_lora_file_has_the_best_form_and_says_what_is_left_out(tuner: str, caplog: pytest.LogCaptureFixture) -> None:
    """As PEFT's low-rank kinds have it: VeRA's change has the rank of its r, which is above this file's."""
    model, adapters = trained(tuner)
    with caplog.at_level("WARNING"):
        parts = exported(model)
    lost = total = 0.0
    for one in adapters:
        down, up = (parts[f"{one.name}.{part}"] for part in ("lora_A.weight", "lora_B.weight"))
        assert float(parts[f"{one.name}.alpha"]) == len(down) == 4
        change = one.change()
        best = torch.linalg.svdvals(change)[4:].square().sum()
        left = (change - up @ down).square().sum()
        assert float(left) == pytest.approx(float(best), rel=1e-3, abs=1e-6)
        lost, total = lost + float(left), total + float(change.square().sum())
    said = [line for line in caplog.messages if "of the trained change" in line]
    share = (lost / total) ** 0.5
    assert (share > 0.3) == (tuner in ("VERA", "BOFT", "RANDLORA"))  # HRA and MISS change a weight by this rank
    assert said == ([] if share < 1e-4 else [_SAID.format(100 * share)])


def test_a_file_acts_as_the_tuner_and_a_resume_has_its_values() -> None:
    model, adapters = trained("VERA", peft_file="differences")
    inputs = inputs_of(SHAPE, torch.Generator().manual_seed(4))
    ours, parts = run(model, inputs), exported(model)
    with without_adapters(model):
        base = run(model, inputs)
    assert torch.equal(base, run(random_model(SHAPE, torch.Generator().manual_seed(3)), inputs))
    for one in adapters:
        linear, key = one.layer.base_layer, f"{one.name}.diff"
        (applied,) = acting_parts({f"diffusion_model.{key}": parts[key]}, 1).values()
        x = torch.randn(3, linear.in_features, generator=torch.Generator().manual_seed(2))
        with torch.no_grad():
            assert float((applied(linear, x, linear(x), 0) - one.layer(x)).abs().max()) < 1e-5
    again = random_model(SHAPE, torch.Generator().manual_seed(3))
    inject_lora(again, config("VERA"), seed=5)
    LoraWeights.of(model).load_into(again, "the state")
    assert torch.equal(run(again, inputs), ours)
    other = random_model(SHAPE, torch.Generator().manual_seed(3))
    inject_lora(other, config("VERA", peft_args="r=16, projection_prng_key=7"), seed=5)
    with pytest.raises(
        CheckpointError, match=r"does not fit this LoRA: 1 weights are missing and 1 unknown .*untrained_"
    ):
        LoraWeights.of(model).load_into(other, "the state")


REFUSED = {
    "C3A": (
        "block_size=4",
        r"C3A cannot be trained: the gradient that PEFT computes for its inputs is not that of its",
    ),
    "LILY": ("", r"LILY cannot be trained: its change of a layer is not a matrix, so ComfyUI has no file for it"),
    "LN_TUNING": ("", r"LN_TUNING cannot be trained: it trains nothing in a linear such as blocks"),
    "VBLORA": ("", r"cannot be trained: PEFT says: `in_features` 56 must be divisible by `vector_length` 256\. Change"),
    "VERAS": ("", r'"VERAS" is not a tuner of PEFT [\d.]+ for linear layers\. Did you mean "VERA"\?'),
    "ADALORA": ("", r'"ADALORA" is not a tuner of PEFT [\d.]+ for linear layers'),
    "PREFIX_TUNING": ("", r'"PREFIX_TUNING" is not a tuner of PEFT [\d.]+ for linear layers'),
}


@pytest.mark.parametrize("tuner", REFUSED)
def test_what_has_no_file_for_comfyui_or_no_such_layer_is_refused_without_a_model(tuner: str) -> None:
    args, sentence = REFUSED[tuner]
    wanted = config(tuner, peft_args=args)
    with pytest.raises(ConfigError, match=sentence):
        check_tuner(check_targets(model_without_values(SHAPE), wanted), wanted)


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        ("rank=3", r'peft_args: VERA has no option "rank"\. (Did you mean|Known:)'),
        ("target_modules='.*'", 'peft_args: VERA has no option "target_modules"'),
        ("r='os.system'", r"peft_args: r takes a number, true, false, a list of numbers or a word of PEFT's"),
        ("r=3, r=4", 'peft_args names "r" twice'),
        ("r=-3", r"VERA cannot be trained: PEFT says: "),
    ],
)
def test_options_are_values_of_the_tuners_own_fields(args: str, sentence: str) -> None:
    wanted = config("VERA", peft_args=args)
    with pytest.raises(ConfigError, match=sentence):
        check_tuner(check_targets(model_without_values(SHAPE), wanted), wanted)


def test_settings_of_the_other_adapters_are_refused_with_a_tuner() -> None:
    with pytest.raises(ConfigError, match=r"options of its own, and lora_dropout, also_train is for the other"):
        config("VERA", dropout=0.1, also_train="norms")
    with pytest.raises(ConfigError, match=r'peft_tuner "HRA" is for adapter peft, and this is a LoRA'):
        LoraConfig(peft_tuner="HRA")
    with pytest.raises(ConfigError, match=r"adapter peft needs a peft_tuner"):
        LoraConfig(kind="peft")


BASES = ("bf16", "int8", "streamed")


def made(folder: Path, tuner: str, base: str) -> TinyRun:
    """A run of four steps under a tuner."""
    plan = (
        replace(PLAN, compute="bf16")
        if base == "bf16"
        else PLAN.with_quantize(QuantizeConfig(scheme="int8"))
        if base == "int8"
        else PLAN
    )
    train = TrainConfig(
        steps=4, save_every_n_steps=2, eval_items=0, preview_every_n_steps=0, learning_rate=1e-2,
        **({"memory": "manual", "blocks_to_swap": 2} if base == "streamed" else {}),
    )  # fmt: skip
    return make_run(folder, train=train, lora=config(tuner, targets=LoraConfig.targets), plan=plan)


def left(run: TinyRun) -> list[bytes]:
    folder = run.directory / "saves" / "step-000004"
    return [(folder / f"{file}.safetensors").read_bytes() for file in ("lora", "state")]


@pytest.mark.parametrize(
    ("tuner", "base"),
    [
        pytest.param(tuner, base, marks=() if (tuner, base) == ("VERA", "int8") else pytest.mark.soak)
        for tuner in TUNERS
        for base in BASES
    ],
)
def test_a_tuner_is_resumed_to_the_last_bit(tmp_path: Path, tuner: str, base: str) -> None:
    straight, stopped = made(tmp_path / "a", tuner, base), made(tmp_path / "b", tuner, base)
    train_here(straight)
    train_here(stopped, max_steps=2)
    train_here(stopped)
    assert left(stopped) == left(straight)
    state = load_file(straight.directory / "saves" / "step-000004" / "state.safetensors")
    assert any(name.startswith("lora.") and bool(value.any()) for name, value in state.items())


@pytest.mark.soak
@pytest.mark.parametrize("tuner", TUNERS)
def test_killed_under_a_tuner_and_resumed_equals_never_killed(server: ForkServer, tmp_path: Path, tuner: str) -> None:
    def start(run: TinyRun) -> Worker:
        words = ["train", str(run.directory), "--roots", str(run.roots_file)]
        return server.start(words, run.directory / "out.jsonl")

    straight, killed = made(tmp_path / "a", tuner, "bf16"), made(tmp_path / "b", tuner, "bf16")
    assert start(straight).wait() == 0
    worker = start(killed)
    worker.wait_for("step", 3, timeout_s=300)  # PEFT is imported
    assert worker.kill() == -signal.SIGKILL
    assert start(killed).wait() == 0
    assert left(killed) == left(straight)
