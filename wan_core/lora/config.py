"""Settings of the adapter: targets, kind, size and scale."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from ..config import Config, counted, internal, setting
from ..errors import ConfigError
from ..patterns import matching

KINDS = {
    "LoRA": "two thin matrices beside each layer",
    "rsLoRA": "a LoRA scaled by alpha / sqrt(rank)",
    "DoRA": "a LoRA, and the length of each row of the weight",
    "LoKr": "a Kronecker product of small matrices",
    "LoHa": "an elementwise product of two low-rank matrices",
    "OFT": "outputs rotated in blocks of rank",
    "peft": "a tuner of the package peft, by name",
}
"""kind -> its description"""
PAIRS = ("LoRA", "rsLoRA", "DoRA")
"""kinds that train a pair A, B per linear"""
PEFT = "peft"
STARTS_IN_THE_WEIGHT = ("PiSSA", "OLoRA")
"""inits that compute A and B from the weight; the LoRA's change is the difference from these first values"""
_ALSO = ("nothing", "biases", "norms", "norms and biases")
_INITS = ("default", "gaussian", *STARTS_IN_THE_WEIGHT)

_DEFAULT_TARGETS = (
    r"blocks\.\d+\.(self_attn|cross_attn)\.(q|k|v|o)",
    r"blocks\.\d+\.cross_attn\.(k_img|v_img)",
    r"blocks\.\d+\.ffn\.(0|2)",
)
"""Every linear of every block, as in musubi and diffusion-pipe: ten, twelve with CLIP image tokens.

VACE's second stream (vace_blocks) is excluded, so the LoRA also fits the text-to-video model of the same size.
"""

_SELF_ATTENTION = r"blocks\.\d+\.self_attn\.(q|k|v|o)"
TARGET_PRESETS = {
    "attention and ffn": _DEFAULT_TARGETS,
    "attention": _DEFAULT_TARGETS[:2],
    "self-attention": (_SELF_ATTENTION,),
    "feed-forward": _DEFAULT_TARGETS[2:],
    "all linears": (
        *_DEFAULT_TARGETS,
        *(f"vace_{target}" for target in _DEFAULT_TARGETS),
        r"vace_blocks\.\d+\.(before|after)_proj",
    ),
    "motion": (r"blocks\.\d+\.self_attn\.(q|k)",),
}
"""Preset name -> targets. Wan has no temporal layers; the queries and keys of self-attention decide which frames attend
to each other, so "motion" trains these alone."""
_OURS = frozenset(target for targets in TARGET_PRESETS.values() for target in targets)


@dataclass(frozen=True, kw_only=True)
class LoraConfig(Config):
    """An adapter on every linear whose complete name matches one of `targets`."""

    rank: int = counted(
        16,
        "Size of the LoRA (network_dim). Raise it for fine detail or several subjects: it can learn more, and the file "
        "is larger. 16 or 32 is usual.",
        within=(1, 1024),
        refusal="{name} {value} is out of range. Use {low} to {high}; 16 or 32 is usual.",
    )
    alpha: float = counted(
        0.0,
        "Scale of the LoRA: alpha / rank (network_alpha). 0 = the same as rank, a scale of 1. Change it to match "
        "settings of another trainer.",
        low=0,
        offered=(0.0, 1024.0),
        step=1.0,
        refusal="{name} {value} is negative. Use 0 for alpha = rank.",
    )
    dropout: float = counted(
        0.0,
        "Share of the LoRA's inputs (0 to 1) set to 0 in training. 0 = none. Raise it when the LoRA overfits.",
        within=(0, math.nextafter(1, 0)),  # With 1, nothing would be trained.
        offered=(0.0, 0.99),
        refusal="lora {name} {value} is out of range. Use 0 up to 0.9.",
        called="lora_dropout",
    )
    targets: tuple[str, ...] = counted(
        _DEFAULT_TARGETS,
        "Layers that get a LoRA: regular expressions for their names, one per line. Empty: attention and feed-forward. "
        "Set it to adapt other layers.",
        called="lora_targets",
    )
    """regular expressions for original Wan names"""
    start_from: str = internal("", "never")
    """a LoRA file (root:relative) to start from"""
    low_noise_start_from: str = internal("", "never")
    """the LoRA file for the low_noise expert of a trained pair; empty: `start_from` is used for both"""

    kind: str = setting(
        "LoRA",
        "Type of adapter. LoRA: two thin matrices. rsLoRA: scaled by alpha / sqrt(rank). DoRA: also trains row "
        "lengths. LoKr, LoHa: other matrix products. OFT: rotates outputs in blocks of size rank. peft: the tuner in "
        "peft_tuner, of the package peft. Change it when a LoRA learns too little or its file is too large.",
        choices=tuple(KINDS),
        called="adapter",
    )
    init: str = setting(
        "default",
        "Initial values of the adapter. default: the usual ones of its type. gaussian: normally distributed values "
        "in matrix A of a LoRA, rsLoRA or DoRA. PiSSA: the largest directions of the weight; OLoRA: its QR form; "
        "both for LoRA and rsLoRA, with a file of twice the rank. Change it when the loss falls too slowly.",
        choices=_INITS,
        called="adapter_init",
    )
    rank_patterns: tuple[str, ...] = setting(
        (),
        "Other ranks for some layers, one per line: expression = rank, or = rank, alpha. The first match counts. "
        "Empty: one rank for all. Set it to give some layers more room.",
    )
    rank_dropout: float = setting(
        0.0,
        "Share of the ranks (LoKr, LoHa: outputs; OFT: blocks) that a training step skips. 0 = none. Raise it when the "
        "LoRA overfits.",
        within=(0, math.nextafter(1, 0)),
        offered=(0.0, 0.99),
        refusal="{name} {value} is out of range. Use 0 up to 0.9.",
    )
    module_dropout: float = setting(
        0.0,
        "Share of the layers whose adapter a training step skips. 0 = none. Raise it when the LoRA overfits.",
        within=(0, math.nextafter(1, 0)),
        offered=(0.0, 0.99),
        refusal="{name} {value} is out of range. Use 0 up to 0.9.",
    )
    max_norm: float = setting(
        0.0,
        "Largest norm of a layer's change; a larger change is scaled down after each step. 0 = none. Set it when the "
        "LoRA becomes too strong.",
        low=0,
        offered=(0.0, 1000.0),
        step=0.1,
        called="scale_weight_norms",
    )
    lokr_factor: int = setting(
        0,
        "LoKr: size of its first matrix, where it divides the layer's size. 0 = near the square root, the smallest "
        "file. Set it to 8 or 16 to learn more.",
        within=(0, 1024),
    )

    also_train: str = setting(
        "nothing",
        "More weights to train, stored as full differences that ComfyUI loads. biases: of the adapted layers. norms: "
        "scales and shifts of the norms in their blocks. nothing: neither. Change it when a LoRA alone learns too "
        "little.",
        choices=_ALSO,
    )
    peft_tuner: str = setting(
        "",
        "Tuner of the package peft, by its name there: VERA, BOFT, HRA, RANDLORA, MISS ... Set it with adapter peft.",
    )
    peft_args: str = setting(
        "",
        "Options of the tuner by PEFT's names, such as r=64, d_initial=0.1. Set it when its defaults do not fit.",
    )
    peft_file: str = setting(
        "LoRA",
        "For adapter peft: what the saved file holds. LoRA: the LoRA of this rank that is closest to the trained "
        "change; the log says how much it misses. differences: the exact change, in a file as large as the adapted "
        "weights. Choose differences when the LoRA misses too much.",
        choices=("LoRA", "differences"),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self._ranks  # raises for a line without a rank
        self._check_kind()

    def _check_kind(self) -> None:
        if self.kind == PEFT:
            self._check_tuner()
        elif self.peft_tuner or self.peft_args:
            raise ConfigError(f'peft_tuner "{self.peft_tuner}" is for adapter peft, and this is a {self.kind}.')
        if self.kind not in PAIRS and self.init != "default":
            raise ConfigError(
                f'adapter_init "{self.init}" is for LoRA, rsLoRA and DoRA, and this is a {self.kind}. Use default.'
            )
        if self.init in STARTS_IN_THE_WEIGHT:
            self._check_start_in_the_weight()
        if self.kind not in ("LoRA", "rsLoRA") and (self.start_from or self.low_noise_start_from):
            raise ConfigError(
                f"A {self.kind} cannot start from a LoRA file. Set start_from_lora to none, or the adapter to LoRA."
            )
        if self.kind == "OFT" and (self.alpha or self.dropout):
            raise ConfigError(
                f"An OFT rotates outputs, so it has neither alpha ({self.alpha:g}) nor lora_dropout "
                f"({self.dropout:g}). Set both to 0; rank_dropout and module_dropout are for it too."
            )

    def _check_tuner(self) -> None:
        if not self.peft_tuner:
            raise ConfigError("adapter peft needs a peft_tuner, such as VERA, BOFT, HRA or RANDLORA. Set it.")
        given = {
            "lora_dropout": self.dropout,
            "rank_dropout": self.rank_dropout,
            "module_dropout": self.module_dropout,
            "scale_weight_norms": self.max_norm,
            "lora_alpha": self.alpha,
            "rank_patterns": self.rank_patterns,
            "also_train": self.trains_biases or self.trains_norms,
        }
        if found := [name for name, value in given.items() if value]:
            raise ConfigError(
                f"A tuner of PEFT has options of its own, and {', '.join(found)} is for the other adapters. Leave it "
                "at its default, and set peft_args."
            )

    def _check_start_in_the_weight(self) -> None:
        if self.kind == "DoRA":
            raise ConfigError(
                f'adapter_init "{self.init}" is for LoRA and rsLoRA, and this is a DoRA. Use default or gaussian.'
            )
        if self.start_from or self.low_noise_start_from:
            raise ConfigError(
                f'adapter_init "{self.init}" and start_from_lora both set the first values of a LoRA. Set one to none.'
            )
        if self.max_norm:
            raise ConfigError(
                f'adapter_init "{self.init}" starts with a part of the weight, which scale_weight_norms '
                f"({self.max_norm:g}) would shrink. Set it to 0."
            )

    def identity(self) -> dict[str, Any]:
        """Returns the settings that decide the weights; alpha = rank is written as 0, the same scale of 1."""
        return super().identity() | ({"alpha": 0.0} if self.scale == 1 else {})

    @property
    def effective_alpha(self) -> float:
        return self.alpha or float(self.rank)

    @property
    def scale(self) -> float:
        return self.effective_alpha / self.rank

    @property
    def trains_biases(self) -> bool:
        return self.also_train.endswith("biases")

    @property
    def trains_norms(self) -> bool:
        return self.also_train.startswith("norms")

    @property
    def draws(self) -> bool:
        """Whether training steps draw dropout masks."""
        return bool(self.dropout or self.rank_dropout or self.module_dropout or self.kind == PEFT)

    @property
    def drops_inputs(self) -> bool:
        """Whether a training step may drop inputs of an adapter."""
        return self.dropout > 0 or "dropout" in self.peft_args

    @property
    def planned(self) -> LoraConfig:
        """Returns the adapter that plans assume before training: for a tuner of PEFT, a LoRA of the same rank.

        The server must not construct a tuner that a graph names.
        """
        if self.kind != PEFT:
            return self
        return replace(self, kind="LoRA", peft_tuner="", peft_args="", peft_file="LoRA")

    @property
    def name(self) -> str:
        """The name of the kind; for a tuner, its name in PEFT."""
        return self.peft_tuner if self.kind == PEFT else self.kind

    def with_rank(self, rank: int) -> LoraConfig:
        """Returns the same settings with another rank and the same scale."""
        return replace(self, rank=rank, alpha=self.alpha * rank / self.rank)

    def check_grammar(self) -> None:
        """Raises ConfigError for a target or pattern that is not a regular expression.

        Not part of __post_init__: listing runs builds their configs, and must not compile expressions from foreign
        files.
        """
        self.targeted(())
        self.ranks_of(())

    def targeted(self, names: Sequence[str]) -> list[str]:
        """Returns the names that a target matches. Raises ConfigError as `matching` does."""
        found = frozenset[str]().union(*matching(self.targets, names, "LoRA target", whole=True, ours=_OURS))
        return [name for name in names if name in found]

    def ranks_of(self, names: Sequence[str]) -> dict[str, tuple[int, float]]:
        """Returns (rank, alpha) of each linear: by the first matching line of `rank_patterns`, else the LoRA's own.

        Without an alpha in the line the scale stays; for rsLoRA the scale of the LoRA's own rank. Raises ConfigError as
        `matching` does.
        """
        found = matching([pattern for pattern, _, _ in self._ranks], names, "rank_patterns", whole=True)
        ranks = dict.fromkeys(names, (self.rank, self.effective_alpha))
        for (_, rank, alpha), matched in reversed([*zip(self._ranks, found, strict=True)]):
            ranks.update(dict.fromkeys(matched, (rank, self.scale * rank if alpha is None else alpha)))
        return ranks

    @cached_property
    def _ranks(self) -> list[tuple[str, int, float | None]]:
        return [_ranked(line) for line in self.rank_patterns]

    def describe(self) -> str:
        """Returns the adapter in a few words; for a plain LoRA its rank."""
        if self.kind == PEFT:
            return f"PEFT {self.peft_tuner}"
        kind = "" if self.kind == "LoRA" else f"{self.kind}, "
        init = "" if self.init == "default" else f", {self.init}"
        also = "" if self.also_train == "nothing" else f", {self.also_train}"
        return f"{kind}rank {self.rank}{init}{', other ranks for some layers' if self.rank_patterns else ''}{also}"


def _ranked(line: str) -> tuple[str, int, float | None]:
    """Parses a line such as `blocks\\.0\\..* = 32, 16` into pattern, rank and alpha."""
    pattern, _, numbers = line.rpartition("=")
    found = re.fullmatch(r"\s*(\d{1,4})\s*(?:,\s*(\d+(?:\.\d*)?)\s*)?", numbers)
    rank = int(found[1]) if found else 0
    alpha = float(found[2]) if found and found[2] else None
    if not pattern.strip() or not 1 <= rank <= 1024 or alpha == 0:
        raise ConfigError(
            rf'rank_patterns "{line[:80]}" is not an expression = rank. Example: blocks\.\d+\.ffn\..* = 32, or = 32, '
            "16 for an alpha of 16; ranks are 1 to 1024."
        )
    return pattern.strip(), rank, alpha
