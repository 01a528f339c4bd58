"""Every optimizer trains the tiny model, is resumed to the last bit, and is counted; what cannot be is refused."""

from __future__ import annotations

import signal
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from unittest.mock import Mock

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from tests.support.forked import ForkServer, Worker
from tests.support.libraries import Library
from tests.support.sessions import same, train_here
from tests.support.tiny_run import TINY, TinyRun, make_run
from wan_core.config import arguments_of, settings_of
from wan_core.errors import ConfigError, DependencyError
from wan_core.events import StepDone
from wan_core.lora import LoraConfig
from wan_core.migrate.learning import _BETAS
from wan_core.packages import version_of
from wan_core.train import TrainConfig, state_bytes
from wan_core.train.optimizer_bytes import _counted
from wan_core.train.optimizer_classes import _CATALOGUE
from wan_core.train.optimizer_state import AdapterOptimizer
from wan_core.train.weight_copies import MeanWeights

pytestmark = [
    pytest.mark.lasts(2),
    pytest.mark.filterwarnings("ignore:Paged optimizers are not supported on CPU"),
]

NAMED = [name for name in settings_of(TrainConfig)["optimizer"].choices if name != "custom"]
IN_CI = [pytest.param(name, marks=pytest.mark.soak) if name in ("adamw4bit", "adamwfp8") else name for name in NAMED]
"""of torchao's three one: the others save codes and scales of the same form"""
PACKAGE = dict.fromkeys(("lion", "prodigy", "schedule_free", "came"), "pytorch-optimizer") | dict.fromkeys(
    ("adamw8bit", "adamw4bit", "adamwfp8"), "torchao"
)
PACKAGE |= dict.fromkeys(("bnb_adamw8bit", "bnb_paged_adamw8bit", "bnb_lion8bit"), "bitsandbytes")
BYTES = {
    "adamw": 8,
    "adamw8bit": 2.16,
    "adamw4bit": 1.07,
    "adamwfp8": 2.03,
    "adafactor": 0.25,
    "muon": 4,
    "lion": 4,
    "prodigy": 16,
    "schedule_free": 8,
    "came": 4.51,
    "bnb_adamw8bit": 2.16,
    "bnb_paged_adamw8bit": 2.16,
    "bnb_lion8bit": 1.08,
}


def need(name: str) -> None:
    """Skip where the package of an optimizer is missing, saying which."""
    package = PACKAGE.get(name, "")
    if package and not version_of(package):
        pytest.skip(f"{package} is not installed")
    if name == "muon" and not hasattr(torch.optim, "Muon"):
        pytest.skip(f"torch {torch.__version__} has no Muon")


def settings(name: str, **changes: object) -> TrainConfig:
    usual = {
        "steps": 4,
        "save_every_n_steps": 2,
        "preview_every_n_steps": 0,
        "eval_items": 0,
        "save_dtype": "fp32",
        "gradient_accumulation_steps": 2,
        "optimizer": name,
        "learning_rate": 1.0 if name == "prodigy" else 1e-3,
        "lr_scheduler": "constant" if name == "schedule_free" else "cosine",
    }
    return TrainConfig(**{**usual, **changes})  # type: ignore[arg-type]


def test_what_takes_betas_is_known_to_the_importers_too() -> None:
    assert {name for name, known in _CATALOGUE.items() if known.betas} == set(_BETAS)


def saved(run: TinyRun, file: str) -> dict[str, Tensor]:
    return load_file(run.directory / "saves" / f"step-{run.config.train.steps:06d}" / f"{file}.safetensors")


SMALL = replace(TINY, num_layers=1)
"""an optimizer of another package updates each of its matrices by a dozen operators"""


ONE_OF_EACH = ("adamw8bit", "adafactor", "muon", "prodigy", "schedule_free")
"""codes with scales, sums of rows, one moment of a matrix, a distance that is found, a mean; adamw trains elsewhere"""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in ONE_OF_EACH else pytest.mark.soak) for name in NAMED]
)
def test_each_optimizer_trains_and_is_resumed_to_the_last_bit(tmp_path: Path, name: str) -> None:
    need(name)
    short = settings(name, steps=3)
    straight, stopped = (make_run(tmp_path / key, shape=SMALL, train=short) for key in "ab")
    events = train_here(straight)
    train_here(stopped, max_steps=2)
    train_here(stopped)
    state = saved(straight, "state")
    assert same(saved(stopped, "state"), state)
    assert same(saved(stopped, "lora"), saved(straight, "lora"))
    done = [event for event in events if isinstance(event, StepDone)]
    assert [event.step for event in done] == [1, 2, 3]
    assert all(event.lr > 0 for event in done)
    up = [value for key, value in state.items() if key.startswith("lora.") and ".lora_B." in key]
    assert up
    assert all(bool(value.any()) for value in up), "every pair learnt something"


@pytest.mark.soak
@pytest.mark.parametrize("scheduler", settings_of(TrainConfig)["lr_scheduler"].choices)
@pytest.mark.parametrize("name", NAMED)
def test_each_optimizer_with_each_schedule_is_resumed_to_the_last_bit(
    tmp_path: Path, name: str, scheduler: str
) -> None:
    need(name)
    if name == "schedule_free" and scheduler != "constant":
        pytest.skip("schedule_free replaces the schedule")
    config = settings(name, lr_scheduler=scheduler, lr_warmup_steps=1)
    straight, stopped = make_run(tmp_path / "a", train=config), make_run(tmp_path / "b", train=config)
    train_here(straight)
    train_here(stopped, max_steps=2)
    train_here(stopped)
    assert same(saved(stopped, "state"), saved(straight, "state"))


@pytest.mark.soak
@pytest.mark.parametrize("name", NAMED)
def test_killed_at_five_steps_and_resumed_equals_never_killed(server: ForkServer, tmp_path: Path, name: str) -> None:
    """With dropped captions and LoRA inputs, two micro-batches a step and, where it goes with it, a mean of weights."""
    need(name)
    mean = 0.0 if name == "schedule_free" else 0.9
    config = settings(name, steps=12, ema_decay=mean, caption_dropout=0.3, lr_warmup_share=0.2)
    lora = LoraConfig(rank=4, dropout=0.1)
    straight = make_run(tmp_path / "straight", train=config, lora=lora)

    def start(run: TinyRun) -> Worker:
        words = ["train", str(run.directory), "--roots", str(run.roots_file)]
        return server.start(words, run.directory / "out.jsonl")

    def files(run: TinyRun) -> list[bytes]:
        folder = run.directory / "saves" / "step-000012"
        return [(folder / f"{file}.safetensors").read_bytes() for file in ("lora", "state")]

    assert start(straight).wait() == 0
    for step in (1, 3, 4, 7, 11):
        killed = make_run(tmp_path / f"killed-{step}", train=config, lora=lora)
        worker = start(killed)
        worker.wait_for("step", step)
        assert worker.kill() == -signal.SIGKILL
        assert start(killed).wait() == 0
        assert files(killed) == files(straight), f"killed after step {step}"


@pytest.mark.parametrize("name", NAMED)
def test_each_optimizer_is_counted_in_the_inference_mode_that_comfyui_runs_nodes_in(name: str) -> None:
    need(name)
    _counted.cache_clear()
    with torch.inference_mode():
        assert state_bytes(settings(name)) == pytest.approx(BYTES[name], abs=0.01)


@pytest.mark.parametrize("name", NAMED)
def test_the_bytes_of_an_optimizer_are_counted_and_not_listed(name: str) -> None:
    need(name)
    config = settings(name)
    assert state_bytes(config) == pytest.approx(BYTES[name], abs=0.01)
    if name == "adamw":  # the one figure that is written down
        assert _counted(config)[0] == state_bytes(config)


def test_a_save_of_schedule_free_holds_the_mean_and_the_state_what_is_trained(tmp_path: Path) -> None:
    need("schedule_free")
    run = make_run(tmp_path, shape=SMALL, train=settings("schedule_free"))
    train_here(run)
    state, lora = saved(run, "state"), saved(run, "lora")
    trained = torch.cat([v.flatten() for k, v in state.items() if k.startswith("lora.") and ".lora_B." in k])
    mean = torch.cat([v.flatten() for k, v in lora.items() if "lora_B" in k or "lora_up" in k])
    assert mean.shape == trained.shape
    assert not torch.equal(mean.sort()[0], trained.sort()[0])


def test_weights_are_the_trained_ones_again_after_they_were_judged() -> None:
    need("schedule_free")
    weights = {"x.lora_A.weight": nn.Parameter(torch.randn(3, 5)), "x.lora_B.weight": nn.Parameter(torch.randn(5, 3))}
    optimizer = AdapterOptimizer(weights, settings("schedule_free"))
    for _ in range(3):
        for weight in weights.values():
            weight.grad = torch.randn_like(weight)
        optimizer.step(1e-3)
    before = {name: weight.detach().clone() for name, weight in weights.items()}
    with optimizer.evaluated_weights():
        assert not same(weights, before)
    assert same(weights, before)


def test_the_mean_of_the_weights_is_saved_and_resumed_to_the_last_bit(tmp_path: Path) -> None:
    config = settings("adamw", ema_decay=0.9)
    straight, stopped = (make_run(tmp_path / key, shape=SMALL, train=config) for key in "ab")
    train_here(straight)
    train_here(stopped, max_steps=2)
    train_here(stopped)
    state = saved(straight, "state")
    assert same(saved(stopped, "state"), state)
    mean = {key.removeprefix("ema."): value for key, value in state.items() if key.startswith("ema.")}
    trained = {key.removeprefix("lora."): value for key, value in state.items() if key.startswith("lora.")}
    assert mean.keys() == trained.keys()
    lora = torch.cat([value.flatten() for value in saved(straight, "lora").values() if value.ndim == 2]).sort()[0]
    assert torch.equal(lora, torch.cat([value.flatten() for value in mean.values()]).sort()[0])
    assert not torch.equal(lora, torch.cat([value.flatten() for value in trained.values()]).sort()[0])
    assert state_bytes(config) == 12.0


def test_the_mean_follows_its_formula() -> None:
    weight = nn.Parameter(torch.zeros(3))
    mean = MeanWeights({"a": weight}, 0.3)
    expected = torch.zeros(3)
    for number in range(1, 6):
        weight.data.fill_(float(number))
        mean.update()
        decay = min(0.3, (1 + number) / (10 + number))
        expected = decay * expected + (1 - decay) * number
    torch.testing.assert_close(mean.values["a"], expected)


def test_lora_plus_moves_the_second_matrix_so_many_times_as_far() -> None:
    weights = {"x.lora_A.weight": nn.Parameter(torch.zeros(3, 5)), "x.lora_B.weight": nn.Parameter(torch.zeros(5, 3))}
    optimizer = AdapterOptimizer(weights, settings("adamw", loraplus_lr_ratio=16.0, weight_decay=0.0))
    for weight in weights.values():
        weight.grad = torch.ones_like(weight)
    optimizer.step(1e-4)
    down, up = (weight.detach().abs() for weight in weights.values())
    torch.testing.assert_close(down, torch.full_like(down, 1e-4))
    torch.testing.assert_close(up, torch.full_like(up, 16e-4))


def test_the_reported_rate_of_prodigy_is_the_one_it_found() -> None:
    need("prodigy")
    weights = {"x.lora_B.weight": nn.Parameter(torch.ones(4, 4))}
    optimizer = AdapterOptimizer(weights, settings("prodigy", optimizer_args="d0=1e-4"))
    weights["x.lora_B.weight"].grad = torch.ones(4, 4)
    assert optimizer.step(0.5) == pytest.approx(0.5e-4)


class EightBit(torch.optim.Optimizer):
    """Stands in for bitsandbytes' classes: their arguments, and moments in bytes with scales beside them."""

    def __init__(
        self, params, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=1e-2, amsgrad=False, optim_bits=32,
        args=None, min_8bit_size=4096, is_paged=False,
    ) -> None:  # fmt: skip
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})
        self.min_8bit_size = min_8bit_size

    @torch.no_grad()
    def step(self, closure=None) -> None:
        for group in self.param_groups:
            for weight in group["params"]:
                state = self.state[weight]
                if not state:
                    zeros = torch.zeros_like(weight, dtype=torch.uint8)
                    state |= {"step": 0, "state1": zeros, "absmax1": torch.zeros(weight.numel() // 256)}
                state["step"] += 1
                state["state1"] += (weight.grad > 0).to(torch.uint8)
                state["absmax1"] += weight.grad.abs().amax()
                weight.sub_(group["lr"] * (state["state1"] / state["step"] - 0.5))


def test_names_of_bitsandbytes_are_given_the_settings_and_what_its_classes_hold_is_saved(
    monkeypatch: pytest.MonkeyPatch, library: Library
) -> None:
    library("bitsandbytes", "")
    optim = ModuleType("bitsandbytes.optim")
    for name in ("AdamW8bit", "PagedAdamW8bit"):
        setattr(optim, name, EightBit)
    monkeypatch.setitem(sys.modules, "bitsandbytes.optim", optim)
    _counted.cache_clear()
    config = settings("bnb_paged_adamw8bit", adam_beta1=0.8, adam_epsilon=1e-6, optimizer_args="min_8bit_size=16384")
    weights = {"x.lora_A.weight": nn.Parameter(torch.zeros(16, 16))}
    made = AdapterOptimizer(weights, config).inner
    assert isinstance(made, EightBit)
    assert (made.defaults["betas"], made.defaults["eps"], made.min_8bit_size) == ((0.8, 0.999), 1e-6, 16384)
    assert state_bytes(config) == pytest.approx(1 + 4 / 256)
    with pytest.raises(DependencyError, match=r"Lion8bit, which bitsandbytes .*lacks"):
        state_bytes(settings("bnb_lion8bit"))


def test_bitsandbytes_that_is_not_there_is_named_with_its_pip_line(monkeypatch: pytest.MonkeyPatch) -> None:
    if version_of("bitsandbytes"):
        pytest.skip("bitsandbytes is installed")
    _counted.cache_clear()
    with pytest.raises(DependencyError, match=r'"bnb_adamw8bit" needs bitsandbytes, .* pip install "bitsandbytes>='):
        state_bytes(settings("bnb_adamw8bit"))


def test_an_optimizer_of_another_package_by_its_name() -> None:
    config = settings("custom", optimizer_class="torch.optim.SGD", optimizer_args="momentum=0.9, nesterov=true")
    assert state_bytes(config) == 4.0
    assert state_bytes(settings("adamw", optimizer_args="fused=true")) == 8.0, "and it is resumed to the last bit"


@pytest.mark.parametrize(
    "device",
    [
        "cpu",
        pytest.param(
            "cuda",
            marks=[
                pytest.mark.gpu,
                pytest.mark.skipif(not torch.cuda.is_available(), reason="needs one CUDA GPU; this machine has none"),
            ],
        ),
    ],
)
def test_adamw_updates_weights_by_one_call_and_as_torch_does(device: str) -> None:
    draw = torch.Generator().manual_seed(0)
    first = {f"{number}.weight": torch.randn(size, generator=draw) for number, size in enumerate([(8, 64), (64, 8)])}
    gradients = [{name: torch.randn(value.shape, generator=draw) for name, value in first.items()} for _ in range(20)]

    def trained(how: str) -> tuple[AdapterOptimizer, dict[str, nn.Parameter]]:
        weights = {name: nn.Parameter(value.to(device, copy=True)) for name, value in first.items()}
        config = TrainConfig(learning_rate=0.01, weight_decay=0.1, optimizer_args=how)
        optimizer = AdapterOptimizer(weights, config)
        for step in gradients:
            for name, weight in weights.items():
                weight.grad = step[name].to(device, copy=True)
            optimizer.step(0.01)
        return optimizer, weights

    (fused, found), (plain, wanted), (listed, _) = (trained(how) for how in ("", "fused=False", "foreach=True"))
    asked = [optimizer.inner.defaults["fused"] for optimizer in (fused, plain, listed)]
    assert asked == [True, False, None]
    for name, value in wanted.items():
        torch.testing.assert_close(found[name], value, atol=2e-6, rtol=1e-6)
    assert fused.state().keys() == plain.state().keys(), "a run goes on from saves of either"


@pytest.mark.parametrize(
    ("changes", "error", "says"),
    [
        (
            {"optimizer_class": "no_such_package.Adam"},
            ConfigError,
            "packages that optimizers are taken from: torch.optim",
        ),
        ({"optimizer_class": "torch.optim.lr_scheduler"}, ConfigError, "is not an optimizer class"),
        ({"optimizer_class": "torchao.optim.CPUOffloadOptimizer"}, ConfigError, "works only on CUDA, and uses grad"),
        ({"optimizer_class": "torch.optim.LBFGS"}, ConfigError, "cannot train a LoRA"),
        ({"optimizer_args": "momentm=0.9"}, ConfigError, 'takes no "momentm". Did you mean "momentum"?'),
        ({"optimizer_args": "lr=0.1"}, ConfigError, "Set learning_rate."),
        ({"optimizer_args": "momentum=-1"}, ConfigError, "Invalid momentum value: -1. Change optimizer_args"),
        ({"optimizer_args": "momentum 1"}, ConfigError, '"momentum 1" is not key=value'),
    ],
)
def test_what_cannot_train_is_refused_before_a_run(changes: dict[str, str], error: type[Exception], says: str) -> None:
    config = settings("custom", **{"optimizer_class": "torch.optim.SGD", **changes})
    with pytest.raises(error) as refused:
        state_bytes(config)
    assert says in str(refused.value)


_FORGETFUL = """
import torch

class Forgetful(torch.optim.SGD):
    count = 0

    def step(self, closure=None):
        self.count += 1
        for group in self.param_groups:
            group["lr"] = 1e-3 * self.count
        super().step()
"""


def test_a_class_that_keeps_a_counter_where_no_state_is_cannot_be_saved(library: Library) -> None:
    library("prodigyopt", _FORGETFUL)
    with pytest.raises(ConfigError, match="cannot be saved"):
        state_bytes(settings("custom", optimizer_class="prodigyopt.Forgetful"))


@pytest.mark.parametrize("full", [torch.OutOfMemoryError("CUDA out of memory"), MemoryError()])
def test_memory_that_runs_out_is_not_called_a_wrong_setting(monkeypatch: pytest.MonkeyPatch, full: Exception) -> None:
    monkeypatch.setattr(torch.optim.SGD, "add_param_group", Mock(side_effect=full))
    with pytest.raises(type(full)):
        state_bytes(settings("custom", optimizer_class="torch.optim.SGD"))


def test_contradicting_settings_are_refused_with_the_fix() -> None:
    for changes, fix in (
        ({"optimizer": "custom"}, "Name the class"),
        ({"optimizer_class": "torch.optim.SGD"}, "set optimizer to custom"),
        ({"optimizer": "schedule_free"}, "Set lr_scheduler to constant"),
        ({"optimizer": "schedule_free", "lr_scheduler": "constant", "ema_decay": 0.9}, "Set ema_decay to 0"),
        ({"optimizer": "prodigy", "loraplus_lr_ratio": 4.0}, "Set loraplus_lr_ratio to 1"),
    ):
        with pytest.raises(ConfigError, match=fix):
            TrainConfig(**changes)  # type: ignore[arg-type]


def test_a_whole_number_is_no_exponent_that_is_worked_out_for_hours() -> None:
    """Three to the power of 10^30 held the interpreter's lock for good, in the server too, where the plan is made."""
    need("schedule_free")
    with pytest.raises(ConfigError, match="cannot train a LoRA"):
        state_bytes(settings("schedule_free", optimizer_args=f"r=1{'0' * 30}"))
    for large in ("1" + "0" * 400, "0x" + "f" * 100_000):
        with pytest.raises(ConfigError, match="r is too large a number"):
            state_bytes(settings("schedule_free", optimizer_args=f"r={large}"))
    assert state_bytes(settings("schedule_free", optimizer_args="r=1")) == 8.0


def test_arguments_are_read_as_python_writes_them() -> None:
    text = "betas=(0.9, 0.99), eps=1e-8\nfixed_decay=true, mode=fast, beta3=None"
    assert arguments_of(text, "optimizer_args") == {
        "betas": (0.9, 0.99),
        "eps": 1e-8,
        "fixed_decay": True,
        "mode": "fast",
        "beta3": None,
    }
