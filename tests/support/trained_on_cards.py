"""Tiny runs of the engine on stand-in cards, with the same run on the CPU; run as a script.

Arguments: a folder, and names of RUNS, each alone or with a name of PLANTED: "fp8 + no wait". Prints one JSON object.
What a run is planted with shows in its faults: it is not compared.
"""

from __future__ import annotations

import gc
import json
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from safetensors.torch import load_file

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.support.stand_in_card import Book, open_cards, runtime
from tests.support.tiny_run import ONE_LOOK, TINY, make_run
from wan_core.control import SignalControl
from wan_core.errors import WanTrainerError
from wan_core.events import Event, StepDone
from wan_core.kernels import modulate
from wan_core.load import ModelPlan
from wan_core.lora import LoraConfig, one_pass
from wan_core.model import block
from wan_core.parallel import exchange, handover
from wan_core.parallel.exchange import Exchange
from wan_core.parallel.handover import Bridge
from wan_core.placement import DeviceCarrier, PlacementConfig, copies, kept
from wan_core.plan import choices, here
from wan_core.precision import QuantizeConfig
from wan_core.session.train_job import run_job
from wan_core.train import TrainConfig

STEPS = 2
SHAPE = replace(TINY, num_layers=4)
TWO_HEADS = replace(TINY, dim=256, num_heads=2, num_layers=3)
TRAIN: dict[str, Any] = {
    "eval_items": 0,
    "steps": STEPS,
    "save_every_n_steps": STEPS,
    "preview_every_n_steps": 0,
    "learning_rate": 1e-3,
    "memory": "manual",
    "max_bad_steps": 1,
}
Found = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Run:
    """How the base is stored, over how many cards it lies, and what is offloaded."""

    scheme: str = ""
    cards: int = 1
    once: bool = True
    locked: bool = True
    """whether the system page-locks memory"""
    memory: int = 1 << 34
    """bytes of a card"""
    train: dict[str, Any] = field(default_factory=dict)
    mode: str = "split blocks"
    """of several cards"""
    shares: str = "auto"
    """of the tokens"""
    context: tuple[tuple[int, int, int], ...] = ()
    """sizes of context streams (Bernini-R)"""

    def alike(self) -> Run:
        """The run whose numbers these are: plain, on the CPU; of split tokens with as many parts."""
        names = ("gradient_accumulation_steps", "tread_routes")
        train = {name: self.train[name] for name in names if name in self.train}
        cards = self.cards if self.parts > 1 else 1
        alike = Run(self.scheme, train=train, context=self.context)
        return replace(alike, mode=self.mode, cards=cards, shares=self.shares)

    @property
    def parts(self) -> int:
        """Of the tokens of a clip."""
        return self.cards if self.mode == "split tokens" else 1


FP8, INT8 = "fp8_e4m3fn", "int8"
OPTIMIZER = {"offload_optimizer": True}
RUNS = {
    "plain": Run(train=dict(ONE_LOOK)),
    "fp8": Run(FP8),
    "int8": Run(INT8),
    "inputs offloaded": Run(train={"offload_activations": "on"}),
    "two blocks swapped": Run(train={"blocks_to_swap": 2}),
    "fp8, swapped and offloaded": Run(FP8, train={"blocks_to_swap": 2, "offload_activations": "on"}),
    "int8, all swapped": Run(INT8, train={"blocks_to_swap": 99, **ONE_LOOK}),
    "attention kept": Run(train={"checkpointing_policy": "attn_output"}),
    "attention offloaded": Run(
        train={"checkpointing_policy": "custom", "checkpointing_names_offloaded": ("attn_output",)}
    ),
    "products offloaded": Run(train={"checkpointing_policy": "offload_matmul_without_batch"}),
    "unchecked blocks": Run(train={"unchecked_blocks": 2}),
    "nothing checked": Run(train={"gradient_checkpointing": False}),
    "optimizer offloaded": Run(train=OPTIMIZER),
    "fp8, dequantized by chunk": Run(FP8, once=False, train={"blocks_to_swap": 2}),
    "nothing locked": Run(INT8, locked=False, train={"blocks_to_swap": 3, "offload_activations": "on", **OPTIMIZER}),
    "a full card": Run(memory=3 << 20),
    "two micro-batches": Run(
        FP8, train={"gradient_accumulation_steps": 2, "blocks_to_swap": 3, "offload_activations": "on"}
    ),
    "two cards": Run(cards=2),
    "split tokens": Run(cards=2, mode="split tokens", train={"gradient_accumulation_steps": 2}),
    "split tokens, attention kept": Run(
        cards=2,
        mode="split tokens",
        shares="2,1",
        train={"checkpointing_policy": "attn_output", "unchecked_blocks": 1, "tread_routes": "0.5: 0..0; 0.5: 1..1"},
    ),
    "split tokens, everything": Run(
        INT8,
        2,
        mode="split tokens",
        shares="1,4",  # the first one has no head
        train={"blocks_to_swap": 2, "offload_activations": "on", "offload_optimizer": True},
    ),
    "two cards at once": Run(cards=2, train={"gradient_accumulation_steps": 2}),
    "two cards at once, fp8, swapped": Run(
        FP8,
        2,
        train={
            "gradient_accumulation_steps": 2,
            "blocks_to_swap": 4,
            "offload_activations": "on",
            "checkpointing_policy": "attn_output",
        },
    ),
    "context, two cards at once, int8, swapped": Run(
        INT8,
        2,
        train={"gradient_accumulation_steps": 2, "blocks_to_swap": 4, "offload_activations": "on"},
        context=((2, 4, 6), (1, 2, 4)),
    ),
    "two cards, fp8, everything": Run(
        FP8,
        2,
        train={
            "blocks_to_swap": 4,
            "offload_activations": "on",
            "offload_optimizer": True,
            "checkpointing_policy": "custom",
            "checkpointing_names_offloaded": ("attn_output",),
        },
    ),
}


def _copies_at_once(self: copies.CudaCopies, source: torch.Tensor, target: torch.Tensor) -> Any:
    """`CudaCopies.start`, without its first line."""
    stream = self._in if target.is_cuda else self._out
    with torch.cuda.stream(stream):
        target.copy_(source, non_blocking=True)
        return stream.record_event()


def _stays(_self: DeviceCarrier, _index: int, tokens: Any, constants: Any) -> Any:
    return tokens, constants


def _nothing(*_: Any, **__: Any) -> None:
    pass


def _arrived(_self: copies.CudaPeers) -> Any:
    return torch.cuda.Event()


@contextmanager
def _freed_at_once() -> Iterator[None]:
    def settle(self: Exchange, me: int) -> None:
        self._sent[me].popleft()

    with mock.patch.object(exchange, "_KEPT", 0), mock.patch.object(Exchange, "_free_oldest", settle):
        yield


def _no_mark(_self: Bridge, _device: torch.device) -> Any:
    return torch.cuda.Event()


def _holds_nothing() -> deque[Any]:
    return deque(maxlen=0)


PLANTED: dict[str, Callable[[], Any]] = {
    "no wait": lambda: mock.patch.object(copies.CudaCopies, "wait", _nothing),
    "no wait before leaving": lambda: mock.patch.object(kept.KeptTensors, "_wait", _nothing),
    "no order": lambda: mock.patch.object(copies.CudaCopies, "start", _copies_at_once),
    "no wait for the other": lambda: mock.patch.object(copies.CudaPeers, "wait", _nothing),
    "nothing is ready": lambda: mock.patch.object(copies.CudaPeers, "mark", _arrived),
    "nothing is held": _freed_at_once,
    "no mark": lambda: mock.patch.object(Bridge, "mark", _no_mark),
    "let go": lambda: mock.patch.object(handover, "deque", _holds_nothing),
    "no bridge": lambda: mock.patch.object(DeviceCarrier, "to_block", _stays),
}
"""what one line less would be: nobody waits for a copy; what is kept leaves before it is copied; a copy does not wait
for what is computed before it; of split tokens, nobody waits for what arrives, and a copy not for what the other card
computes, nor does what is sent stay until it is copied; of cards at once, a copy does not wait for what it copies, or
nobody waits for it before its source is freed; tokens do not come to the next card"""


def trained(folder: Path, run: Run, devices: str, hear: Callable[[Event], Any]) -> Found:
    """The LoRA and the optimizer's state of a run on these devices, and its losses."""
    plan = ModelPlan(
        base_file="diffusion_models:wan_tiny_t2v.safetensors",
        base_precision="bf16",
        quantize=QuantizeConfig(scheme=run.scheme) if run.scheme else None,
        placement=PlacementConfig(
            mode=run.mode if "," in devices else "one device", devices=devices, token_shares=run.shares
        ),
    )
    train = TrainConfig(**{**TRAIN, **run.train})
    made = make_run(
        folder,
        shape=SHAPE if run.parts == 1 else TWO_HEADS,
        plan=plan,
        lora=LoraConfig(rank=4),
        train=train,
        size=(6, 4, 6),
        text_rows=3,
        context=run.context,
    )  # six latent frames of 2x3 tokens
    losses: list[float] = []

    def emit(event: Event) -> None:
        if isinstance(event, StepDone):
            losses.append(event.loss)
        hear(event)

    run_job(made.directory, made.roots, emit=emit, control=SignalControl())
    saved = made.directory / "saves" / f"step-{STEPS:06d}"
    found = {name: value for file in sorted(saved.glob("*.safetensors")) for name, value in load_file(file).items()}
    return found | {"losses": torch.tensor(losses)}


def measured(folder: Path, run: Run, book: Book, expected: Found, plant: str) -> dict[str, Any]:
    """What happens on the cards in a run, and which of its tensors differ from `expected`."""
    pages: list[Counter[tuple[str, str]]] = []

    def hear(event: Event) -> None:
        if isinstance(event, StepDone):
            pages.append(book.counts.copy())

    def asked(train: TrainConfig) -> Any:
        return replace(choices.requested_measures(train), dequantize_once=run.once)

    book.clear()
    runtime.limit_locked((1 << 34) * run.locked)
    runtime.limit_memory(run.memory)
    began, found, said = time.monotonic(), Found(), ""
    devices = ",".join(f"cuda:{number}" for number in range(run.cards))
    with PLANTED[plant]() if plant else mock.patch.object(here, "requested_measures", asked):
        try:
            found = trained(folder, run, devices, hear)
        except (WanTrainerError, RuntimeError) as error:
            said = f"{type(error).__name__}: {error}"
    gc.collect()  # nothing may be freed while it is copied, at the end of a run neither
    alike = [n for n in expected if n in found and torch.equal(found[n], expected[n])]
    return {
        "said": said,
        "tensors": len(expected),
        "alike": len(alike),
        "differ": sorted(expected.keys() ^ {*alike})[:5],
        "on the way": [runtime.on_the_way(0), runtime.on_the_way(1)],
        "faults": book.faults(),
        "waits": book.waits(),
        "copies": book.copies(),
        "of_a_step": Book.waits_of(pages[-1] - pages[-2]) if len(pages) > 1 else {},
        "seconds": round(time.monotonic() - began, 2),
    }


def main(folder: Path, names: list[str]) -> None:
    block.WanBlock.chunk_tokens, kept.CHUNK_BYTES = 20, 1 << 16
    modulate._HAS_FUSED_RMS_NORM = False  # CUDA's kernel; its composite sums in another order than ours on the CPU
    one_pass._SEPARATE = frozenset()  # the CPU sums as cards do
    torch.set_num_threads(1)
    book, expected, report = open_cards(2), dict[str, Found](), {}
    for number, name in enumerate(names):
        run, plant = RUNS[name.partition(" + ")[0]], name.partition(" + ")[2]
        alike = repr(run.alike())
        if not plant and alike not in expected:
            expected[alike] = trained(folder / f"{number} cpu", run.alike(), ",".join(["cpu"] * run.parts), _nothing)
        report[name] = measured(folder / str(number), run, book, Found() if plant else expected[alike], plant)
    print(json.dumps(report))  # noqa: T201


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:] or list(RUNS))
