"""What may teach better than our defaults: candidates of the learning bench, and optimizers at three rates each.

A candidate is our recipe with one change. Rates that a change is known to move (rank, batch, another parametrisation)
are tried in its place; every other candidate runs at our rate. Changes that the engine has no setting for are in
bench_tricks.py. `together` merges candidates.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from learning.bench_recipes import RECIPES, BenchRecipe

OURS = RECIPES["ours"]
_RATE = OURS.own_rate
AND = " + "
"""between the candidates in the name of a recipe that merges them"""


def _train(name: str, *factors: float, share: float = 1.0, **train: Any) -> BenchRecipe:
    """A candidate by settings of TrainConfig, at our rate or at `factors` times our rate."""
    return replace(OURS, name=name, rates=_rates(factors), train=train, share=share)


def _lora(name: str, *factors: float, **lora: Any) -> BenchRecipe:
    """The same by settings of LoraConfig."""
    return replace(OURS, name=name, rates=_rates(factors), lora=lora)


def _trick(name: str, *factors: float, share: float = 1.0, train: dict[str, Any] | None = None, **trick: Any) -> Any:
    return replace(OURS, name=name, rates=_rates(factors), share=share, train=train or {}, trick=trick)


def _rates(factors: Sequence[float]) -> tuple[float, ...]:
    return tuple(_RATE * factor for factor in factors) or (_RATE,)


_ATTENTION = r"blocks\.\d+\.(self_attn|cross_attn)\..*"
_FFN = r"blocks\.\d+\.ffn\..*"
_CROSS = r"blocks\.\d+\.cross_attn\..*"

CANDIDATES = (
    # noise levels
    _train("uniform levels", timestep_sampling="uniform"),
    _train("levels without shift", timestep_sampling="sigmoid"),
    _train("shift 2", discrete_flow_shift=2.0),
    _train("shift 5", discrete_flow_shift=5.0),
    _train("shift 8", discrete_flow_shift=8.0),
    _train("wide levels", sigmoid_scale=1.5),
    _train("strata over 4 steps", timestep_strata=4),
    _train("strata over 16 steps", timestep_strata=16),
    _train("strata over the run", timestep_strata=400),
    # the loss
    _train("bell", loss_weighting="bell"),
    _train("min_snr", loss_weighting="min_snr"),
    _train("pseudo huber 0.3", loss_type="pseudo_huber", huber_delta=0.3),
    _trick("contrastive target 0.05", 1.4, share=0.5, train={"batch_size": 2}, contrastive=0.05),
    _trick("guidance target 0.3", guidance=0.3),
    # noise, and clips of a step
    _trick("antithetic noise", antithetic=True),
    _trick("immiscible noise of 8", immiscible=8),
    _trick("2 draws a clip, half the steps", 1.4, share=0.5, draws=2),
    _trick("4 antithetic draws a clip, a quarter of the steps", 2.0, share=0.25, draws=4, antithetic=True),
    _trick("2 draws a clip", draws=2),
    _train("batch 2, half the steps", 1.4, share=0.5, batch_size=2),
    _train("batch 2", 1.4, batch_size=2),
    _train("batch 4, a quarter of the steps", 2.0, share=0.25, batch_size=4),
    _train("accumulation 2 with strata", 1.4, share=0.5, gradient_accumulation_steps=2, timestep_strata=2),
    _train("caption dropout 0.1", caption_dropout=0.1),
    # the update
    _train("LoRA+ 4", 0.5, loraplus_lr_ratio=4.0),
    _train("LoRA+ 16", 0.25, loraplus_lr_ratio=16.0),
    _train("attention at half the rate", lr_patterns=(rf"{_ATTENTION} = 0.5",)),
    _train("ffn at half the rate", lr_patterns=(rf"{_FFN} = 0.5",)),
    _train("cross attention at twice the rate", lr_patterns=(rf"{_CROSS} = 2",)),
    _train("beta2 0.99", adam_beta2=0.99),
    _train("beta2 0.95", adam_beta2=0.95),
    _train("no weight decay", weight_decay=0.0),
    _train("weight decay 0.1", weight_decay=0.1),
    _train("no clipping", max_grad_norm=0.0),
    # schedule and average
    _train("constant", 0.5, lr_scheduler="constant"),
    _train("linear", lr_scheduler="linear"),
    _train("rex", lr_scheduler="rex"),
    _train("wsd", lr_scheduler="wsd"),
    _train("warm-up 20", 1.0, 2.0, lr_warmup_steps=20),
    _train("EMA 0.98", ema_decay=0.98),
    _train("constant with EMA 0.98", lr_scheduler="constant", ema_decay=0.98),
    # the adapter
    _lora("rank 4", 2.0, rank=4),
    _lora("rank 8", 1.0, 1.4, rank=8),
    _lora("rank 32", 0.7, 1.0, rank=32),
    _lora("rank 64", 0.5, rank=64),
    _lora("alpha a half of the rank", 2.0, alpha=8.0),
    _lora("alpha twice the rank", 0.5, alpha=32.0),
    _lora("rsLoRA", 0.25, kind="rsLoRA"),
    _lora("gaussian start", init="gaussian"),
    _lora("PiSSA", 0.5, init="PiSSA"),
    _lora("OLoRA", 0.25, init="OLoRA"),
    _lora("dropout 0.1", dropout=0.1),
    _lora("rank dropout 0.1", rank_dropout=0.1),
    _lora("DoRA", 1.0, kind="DoRA"),
    _lora("LoKr 4", 2.0, kind="LoKr", lokr_factor=4),
    _lora("LoHa", 2.0, kind="LoHa"),
    _lora("biases and norms too", also_train="norms and biases"),
    _lora("attention alone", targets=(r"blocks\.\d+\.(self_attn|cross_attn)\.(q|k|v|o)",)),
    _lora("self attention and ffn", targets=(r"blocks\.\d+\.self_attn\.(q|k|v|o)", r"blocks\.\d+\.ffn\.(0|2)")),
)


def _optimizer(name: str, rate: float, **train: Any) -> BenchRecipe:
    """An optimizer at the rate that our rules give for it, and at a half and twice of it."""
    settings = {"optimizer": name} if name in _OFFERED else {"optimizer": "custom", "optimizer_class": name}
    return replace(OURS, name=name, rates=(rate / 2, rate, 2 * rate), train=settings | train)


_OFFERED = ("adamw8bit", "adamw4bit", "adamwfp8", "adafactor", "muon", "lion", "prodigy", "schedule_free", "came")
OPTIMIZERS = (
    _optimizer("adamw8bit", _RATE),
    _optimizer("adamw4bit", _RATE),
    _optimizer("adamwfp8", _RATE),
    _optimizer("adafactor", 100 * _RATE),
    _optimizer("muon", _RATE),
    _optimizer("lion", _RATE / 3),
    _optimizer("prodigy", 1.0),
    _optimizer("schedule_free", 2 * _RATE, lr_scheduler="constant"),
    _optimizer("came", _RATE / 10),
    _optimizer(
        "pytorch_optimizer.AdaFactor",
        _RATE,
        optimizer_args="scale_parameter=False, relative_step=False, warmup_init=False",
    ),
)
"""without the three of bitsandbytes, which keep 8-bit state on GPUs alone: they compute as adamw8bit and lion do"""

_ALONE = {recipe.name: recipe for recipe in (*RECIPES.values(), *CANDIDATES, *OPTIMIZERS)}


@cache
def recipe_of(name: str) -> BenchRecipe:
    """The recipe of a name, also of one that merges candidates."""
    return _ALONE[name] if name in _ALONE else together([_ALONE[part] for part in name.split(AND)])


def collide(one: BenchRecipe, other: BenchRecipe) -> bool:
    """Whether two candidates change one setting, or both the clips of a step."""
    both = any(getattr(one, kind).keys() & getattr(other, kind).keys() for kind in ("train", "lora", "trick"))
    return both or (_changes_clips(one) and _changes_clips(other))


def _changes_clips(recipe: BenchRecipe) -> bool:
    return not {"batch_size", "gradient_accumulation_steps", "draws"}.isdisjoint({**recipe.train, **recipe.trick})


def together(parts: Sequence[BenchRecipe]) -> BenchRecipe:
    """Candidates that do not collide as one recipe; its rate is set by `merged_rate`."""
    changes: dict[str, dict[str, Any]] = {"train": {}, "lora": {}, "trick": {}}
    for kind, merged in changes.items():
        for part in parts:
            merged.update(getattr(part, kind))
    return replace(
        OURS, name=AND.join(part.name for part in parts), share=math.prod(part.share for part in parts), **changes
    )


def merged_rate(rates: Sequence[float]) -> float:
    """Our rate times what each candidate's is of it, to four digits."""
    return float(f"{_RATE * math.prod(rate / _RATE for rate in rates):.4g}")
