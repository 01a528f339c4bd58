"""Remarks on a run: warnings and notes for the user."""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path

import torch

from ..abilities import abilities_of, all_have_bf16
from ..accelerator import backend_of, has_float64
from ..checkpoint import WanVariant
from ..checkpoint.catalogue import HIGH
from ..errors import TrainingError, failure, in_a_new_run
from ..files import Roots, size_text
from ..footprint import weights_once_loaded
from ..load import ModelPlan, WanFile, attention_kernels, unpacked_kinds
from ..lora import KINDS, LoraConfig, holds_both_experts
from ..placement import StepShape
from ..precision import torch_dtype
from ..train import TIMES_ADAMW, NotFinite, PreviewInputs, SaveStore, TrainConfig
from ..words import filled, logger, shortened
from .config import RunConfig

_log = logger(__name__)
LOCKLESS = (
    "The file system of the runs has no file locks, so only this machine knows that the run is in use. Do not train it "
    "on another machine or in another container at the same time."
)
"""emitted once a session"""


def remarks_on_base(plan: ModelPlan, found: WanFile) -> list[str]:
    """Returns warnings on a base that takes more memory or time than its file suggests."""
    remarks: list[str] = []
    loaded = f"{weights_once_loaded(plan, found) / 2**30:.3g} GiB"
    if kinds := ", ".join(unpacked_kinds(plan, found)):
        remarks.append(
            f"{found.header.path.name} ({kinds}) is dequantized when it is loaded: its weights take {loaded}."
        )
    on_gpu = any(name != "cpu" for name in plan.placement.device_names())
    if on_gpu and found.compute_dtype == torch.float32 and plan.base_precision == "as in file":
        remarks.append(
            f"{found.header.path.name} is fp32, and this run computes in fp32: its weights take {loaded}, and "
            "attention has no fast kernel. A new run, with resume set to new, uses bf16."
        )
    return remarks


def remarks_on_cards(plan: ModelPlan, compute: torch.dtype) -> list[str]:
    """Returns a warning for each kind of card without hardware for `compute`, and for a token stream in float16."""
    remarks: list[str] = []
    if plan.precision.numerics(compute).residual == torch.float16:
        remarks.append(
            "The token stream is kept in fp16, whose largest value is 65504, and values of a Wan model may come close "
            "to it. Set precision_policy to balanced, which keeps it in fp32."
        )
    for card in map(abilities_of, plan.placement.device_names()):
        again = f"A new run, with base_precision as in file and resume set to new, uses {card.compute}."
        if compute == torch.bfloat16 and not card.bf16:
            remarks.append(
                f"{card.what} has no native bf16: torch emulates it slowly, and only with plain attention, whose "
                f"memory grows with the square of the tokens. {again}"
            )
        elif compute == torch.float16 and not card.fp16:
            remarks.append(f"{card.what} is known to give NaN in fp16, or to be slow in it. {again}")
    return list(dict.fromkeys(remarks))


def notes_on_cards(plan: ModelPlan, compute: torch.dtype) -> list[str]:
    """Returns notes on the kinds of card of `plan`.

    They name cards without bf16 that the run suits with `compute`, cards of a backend that was never tested, and cards
    without the float64 of the plan's rotary embedding.
    """
    said: list[str] = []
    rope = plan.precision.numerics(compute).rope
    for device in map(torch.device, plan.placement.device_names()):
        card = abilities_of(device)
        without_bf16 = not card.bf16 and torch_dtype(card.compute) == compute
        if without_bf16 or not backend_of(device).proven:
            said.append(card.sentence())
        if rope == torch.float64 and not has_float64(device):
            said.append(
                f"{card.what} has no float64, so queries and keys are rotated in fp32 there, by tables that the CPU "
                "computes in fp64."
            )
    return list(dict.fromkeys(said))


def remarks_on_attention(plan: ModelPlan, found: WanFile, step: StepShape) -> list[str]:
    """Logs the attention kernel of each device for `step`; returns a warning for each GPU with torch's math kernel."""
    remarks: list[str] = []
    heads = step.batch_size * found.variant.shape.num_heads
    scores = f"{4 * heads * step.tokens**2 / 2**30:.3g} GiB of scores"
    for device, kernel in attention_kernels(plan, found, step.tokens).items():
        _log.info("attention on %s, %d tokens: %s", device, step.tokens, kernel or "chosen by torch")
        if kernel == "math" and device != "cpu":
            fastest = abilities_of(device).compute
            has_it = fastest != "bf16" and found.compute_dtype == torch_dtype(fastest)
            fix = "Install" if has_it else f"Set base_precision to {fastest}, or install"
            remarks.append(
                f"torch has no fast attention for this model on {device} and computes it the plain way, with {scores} "
                f"for {step.tokens:,} tokens, several times slower. {fix} a torch built for this GPU."
            )
    return remarks


def turns_remark(lora: LoraConfig) -> str:
    """Returns why experts with a GPU each train in turn; "" if they train at the same time.

    Dropout uses torch's random generators, which all threads of a process share.
    """
    if not lora.draws:
        return ""
    return filled(
        "With dropout the experts train in turn, so one of two GPUs waits. Set lora_dropout, rank_dropout and "
        "module_dropout to 0, and both train at the same time."
    )


def routes_remark(train: TrainConfig) -> str:
    """Returns a warning that token routes raise the loss; "" if no token skips a layer."""
    if not any(route.selection_ratio for route in train.routes):
        return ""
    return (
        "With token routes the training loss starts higher, the more tokens skip layers, and a LoRA or LoKr may "
        "learn less in the same number of steps. Compare runs by the evaluation loss, which uses all tokens."
    )


_RATES = {
    "lion": (3e-7, 3e-3),
    "prodigy": (0.1, 10.0),
    "muon": (1e-6, 0.1),
    "schedule_free": (1e-6, 0.03),
    "came": (1e-7, 1e-3),
    "adafactor": (1e-3, 1.0),
}
_USUAL_RATES = (1e-6, 0.01)
"""range of learning rates of AdamW and of optimizers that are not in _RATES; outside of it, no LoRA learned
anything in our tests"""
_SENSIBLE_RATES = (5e-5, 3e-4)
"""sensible learning rates of AdamW, as in the tooltip of learning_rate"""
_STEPS_THAT_SHOW = 200
_NO_CHANGE = 1e-5
"""RMS update of a weight without effect; AdamW reaches 5e-4 in 200 steps at 1e-4 (calculated for rank 32, 14B)"""


def _sensible_rates(optimizer: str) -> tuple[float, float] | None:
    """Returns the usual learning rates for a released model; None for an optimizer without known ones."""
    times = TIMES_ADAMW.get(optimizer)
    return None if times is None else (_SENSIBLE_RATES[0] * times, _SENSIBLE_RATES[1] * times)


def rate_remark(config: TrainConfig, *, full_size: bool) -> str:
    """Returns a warning on a learning rate outside the known or the usual ones; "" otherwise.

    `full_size`: a released Wan, for which the usual rates hold; smaller models take higher ones.
    """
    rate, name = config.learning_rate, config.optimizer
    (low, high), sensible = _RATES.get(name, _USUAL_RATES), _sensible_rates(name) if full_size else None
    if name == "custom":
        return ""
    if rate > high:
        said = (
            "learning_rate {rate} is above {high}: with {optimizer} training often diverges at such rates. Lower it "
            "unless you mean it."
        )
    elif rate < low:
        said = "learning_rate {rate} is below {low}: with {optimizer} the LoRA will hardly change. Raise it."
    elif sensible is None or sensible[0] * 0.999 <= rate <= sensible[1] * 1.001:
        return ""
    elif rate > sensible[1]:
        said = (
            "learning_rate {rate} is outside the sensible range for {optimizer}, {ends}: the run may diverge. Watch "
            "the evaluation loss."
        )
    else:
        said = (
            "learning_rate {rate} is outside the sensible range for {optimizer}, {ends}: the run may need many more "
            "steps. Watch the evaluation loss."
        )
    ends = "" if sensible is None else _ends(sensible)
    return filled(said, rate=f"{rate:g}", high=f"{high:g}", low=f"{low:g}", optimizer=name, ends=ends)


def _ends(rates: tuple[float, float]) -> str:
    return f"{rates[0]:.2g} to {rates[1]:.2g}"


def still_remark(step: int, change: float, config: TrainConfig) -> str:
    """Returns a warning on a LoRA that hardly changes; "" if it does, and before step 200.

    `change`: RMS update over the weights that the LoRA adapts.
    """
    if step < _STEPS_THAT_SHOW or change >= _NO_CHANGE:
        return ""
    sensible = _sensible_rates(config.optimizer)
    low = sensible is not None and config.learning_rate < sensible[0]
    known = f": {_ends(sensible)} is usual with {config.optimizer}" if sensible and low else ""
    return (
        f"After {step} steps the LoRA changes a weight by {change:.1g} on average, which has no visible effect. Stop "
        f"the run and train with a higher learning_rate than {config.learning_rate:g}{known}."
    )


def remark_on_adapter(config: LoraConfig, values: int) -> str:
    """Returns a note on what an adapter other than a plain LoRA means for its user; "" for a plain LoRA."""
    if config.kind == "LoRA" and config.init == "default":
        return ""
    return f"Trains {config.describe()}: {KINDS[config.kind]}; {values:,} values."


def remark_on_scaling(plan: ModelPlan, compute: torch.dtype, config: TrainConfig) -> list[str]:
    """Returns a warning on float16 linears without loss scaling: small gradients underflow."""
    if compute != torch.float16 or config.loss_scaling != "off":
        return []
    vanish = "The base computes in fp16, in which small gradients vanish. Set loss_scaling to dynamic"
    if not all_have_bf16(plan.placement.device_names()):
        return [f"{vanish}."]
    return [f"{vanish}, or base_precision to bf16, whose range is that of fp32."]


def preview_note(variant: WanVariant, previews: PreviewInputs) -> str:
    """Returns a note on the limits of previews by one expert of a pair; "" for a single model."""
    if variant.boundary is None:
        return ""
    said = (
        "The high-noise expert alone makes the previews of this run: they end at noise level {level}, where the other "
        "expert starts, and show what this one predicts. Judge layout and motion, not detail. Compare steps with each "
        "other; to see both LoRAs together, use a sampler graph with both models."
    )
    if variant.expert != HIGH:
        said = (
            "The low-noise expert alone makes the previews of this run: they begin below noise level {level}, where it "
            "starts, from a training clip ({clips}) with noise of that level. Judge look and detail, not the layout, "
            "which is the clip's. Compare steps with each other; to see both LoRAs together, use a sampler graph with "
            "both models."
        )
    clips = shortened(", ".join(dict.fromkeys(clip.start_name for clip in previews.clips)), 100)
    return filled(said, level=f"{variant.boundary:g}", clips=clips)


def start_note(config: RunConfig, roots: Roots) -> str:
    """Returns the note on one start LoRA for both experts; "" for other runs."""
    lora = config.lora
    if config.train.expert != "both" or not lora.start_from or lora.low_noise_start_from:
        return ""
    file = lora.start_from.rpartition(":")[2]
    if holds_both_experts(roots.resolve(lora.start_from)):
        return f"Each expert starts from its own half of {file}."
    return filled("Both experts start from {file}: no file with its name exists for the low noise one.", file=file)


def set_aside_note(store: SaveStore) -> str:
    """Returns the note on damaged saved steps and their size, since nothing deletes them; "" without any."""
    folders, size = store.set_aside(), 0
    for file in (file for folder in folders if not folder.is_symlink() for file in folder.glob("*")):
        with contextlib.suppress(OSError):
            size += file.lstat().st_size
    if not folders:
        return ""
    names = ", ".join(folder.name for folder in folders[:3]) + (" and more" if len(folders) > 3 else "")
    steps, was = ("saved step", "was") if len(folders) == 1 else ("saved steps", "were")
    return (
        f"{len(folders)} damaged {steps} of {store.folder.parent.name} ({size_text(size)}) {was} moved aside in its "
        f"folder saves ({names}). Nothing reads them; delete them if you need the space."
    )


def disk_remark(directory: Path, bytes_of_a_save: int) -> str:
    """Returns a warning on a disk without room for two saved steps; "" with room, or if the size is unknown."""
    need = free = 2 * bytes_of_a_save
    with contextlib.suppress(OSError):
        free = shutil.disk_usage(directory).free
    said, gib = "Only {free} GiB are free; two saved steps need about {need} GiB.", 2**30
    return "" if free >= need else filled(said, free=f"{free / gib:.1f}", need=f"{need / gib:.1f}")


def not_finite_error(error: NotFinite, good_step: int, store: SaveStore, config: RunConfig) -> TrainingError:
    """Returns the error of a run without finite steps after `good_step`, with the last good save and remedies."""
    good, rate = store.latest(config.job_id), config.train.learning_rate
    last_good = "Saved step {step} is the last good one."
    stands = filled(last_good, step=good.step) if good else "No good step was saved."
    again = "Without a change, it would stop here again."
    lower, now = _written(lower_rate(rate, config.train.optimizer)), _written(rate)
    first = filled("learning_rate {lower} instead of {now}", lower=lower, now=now)
    if not good_step:
        again = "No step was finite: without a change, it would stop here again."
        first = "another LoRA to start from, or none" if config.lora.start_from else ""
    wider = "base_precision bf16 or fp32 in Load Wan Model"
    if not all_have_bf16(config.model.placement.device_names()):
        wider = "base_precision fp32 in Load Wan Model"
    helps = [in_a_new_run(one) for one in (first, wider) if one]
    return TrainingError(failure(error, stands=stands, again=again, helps=helps))


def lower_rate(rate: float, optimizer: str) -> float:
    """Returns half of a rate; for a far too high one, the upper usual rate."""
    high = _RATES.get(optimizer, _USUAL_RATES)[1]
    if rate / 2 <= high:
        return rate / 2
    sensible = _sensible_rates(optimizer)
    return high / 10 if sensible is None else sensible[1]


def _written(rate: float) -> str:
    """Returns a learning rate without an exponent, as its widget shows it."""
    return f"{rate:.12f}".rstrip("0").rstrip(".")
