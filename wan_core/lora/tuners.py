"""Tuners of the package peft for linears, by their names in PEFT: VERA, BOFT, HRA, RANDLORA, MISS and later ones.

PEFT initialises a tuner and computes its forward pass. PEFT is imported only for adapter "peft", in the process that
trains. A tuner reads its linear with a float32 weight, in any storage dtype of the base, and trains float32 values.
A file for ComfyUI contains the change of each weight, measured by forward passes, so the change must be a matrix.
"""

from __future__ import annotations

import dataclasses
import hashlib
import typing
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from ..checkpoint import to_diffusers
from ..config import arguments_of, nearest
from ..errors import ConfigError, DependencyError
from ..flow import seeded_generator
from ..packages import check_place, imported, pip_line
from ..precision import values_of
from ..words import first_line, logger
from .config import PEFT, LoraConfig
from .factors import best_of_change
from .module_adapter import ModuleAdapter

_log = logger(__name__)
_NAME = "default"
_MOST_ROWS = 4096
"""rows of the identity per forward"""
_PROBED_ROWS, _ALIKE = 4, 1e-3
_EXACT = 1e-4
"""relative norm; a smaller loss counts as exact"""
_OURS = frozenset(
    {"target_modules", "exclude_modules", "modules_to_save", "layers_to_transform", "layers_pattern", "revision"}
    | {"layer_replication", "target_parameters", "bias", "fan_in_fan_out", "inference_mode", "peft_type", "task_type"}
    | {"peft_version", "base_model_name_or_path", "auto_mapping", "trainable_token_indices"}
)
"""options of PEFT that choose layers, as lora_targets does, or that change the base model"""


class TunedLinear(nn.Module):
    """Replaces a linear under a tuner; its parameters are the tuner's trained values."""

    adapter: TunerAdapter

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base_layer = base

    def forward(self, x: Tensor) -> Tensor:
        """x (..., in) -> (..., out)."""
        return self.adapter.forward(x)

    def train(self, mode: bool = True) -> TunedLinear:
        self.adapter.tuner.train(mode)
        return super().train(mode)


class _Seen(nn.Linear):
    """A linear as a tuner reads it: a float32 weight on the adapter's device, without a parameter of its own."""

    layer: TunedLinear

    def __init__(self, layer: TunedLinear) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features = layer.base_layer.in_features, layer.base_layer.out_features
        vars(self)["layer"] = layer  # outside of the modules that PEFT searches
        self.where = layer.base_layer.weight.device
        self.alone: Tensor | None = None
        """the weight (out, in) float32 inside `exact`, when the linear has no bias and no frozen LoRA"""

    @property
    def weight(self) -> Tensor:  # pyright: ignore[reportIncompatibleVariableOverride]
        """(out, in) float32."""
        return values_of(self.layer.base_layer).to(self.where) if self.alone is None else self.alone

    @property
    def bias(self) -> Tensor | None:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.layer.base_layer.bias if self.alone is None else None

    def forward(self, input: Tensor, *_args: Any, **_more: Any) -> Tensor:
        if self.alone is not None:
            return functional.linear(input, self.alone)
        base = self.layer.base_layer
        dtype = base.weight.dtype if type(base) is nn.Linear else input.dtype
        return base(input.to(dtype)).to(input.dtype)

    @contextmanager
    def exact(self) -> Iterator[Tensor]:
        """Inside, the linear computes with its float32 weight (out, in) only, without bias and frozen LoRAs."""
        self.alone = weight = self.weight
        try:
            yield weight
        finally:
            self.alone = None


class TunerAdapter(ModuleAdapter):
    """Adapts one linear by a layer of PEFT."""

    def __init__(self, name: str, layer: TunedLinear, config: LoraConfig, tuner: nn.Module) -> None:
        super().__init__(name, layer, config)
        self.tuner = tuner
        self.left_out = (0.0, 0.0)
        """squared norms: of the part of the change that the last file lacks, and of the complete change"""
        self._values = {part: value for part, value in tuner.named_parameters() if value.requires_grad}
        self.parts = tuple(self._values)
        # Registered, so that a search for the parameters of a block finds them.
        for part, value in self._values.items():
            layer.register_parameter(part.replace(".", "_"), value)

    def forward(self, x: Tensor) -> Tensor:
        """x (..., in) -> (..., out)."""
        base = self.layer.base_layer
        if self.bypassed:
            return base(x)
        changed = self.tuner(x).to(x.dtype)
        return changed if self.strength == 1 else torch.lerp(base(x), changed, self.strength)

    def parameter(self, part: str) -> nn.Parameter:
        return self._values[part]

    def move(self, device: torch.device) -> None:
        super().move(device)
        self.tuner.to(device)
        self._seen.where = device

    @property
    def _seen(self) -> _Seen:
        return cast(Any, self.tuner).get_base_layer()

    @torch.no_grad()
    def change(self) -> Tensor:
        """Returns the change of the weight (out, in), float32, measured by the forward pass."""
        training, found = self.tuner.training, list[Tensor]()
        self.tuner.eval()
        with self._seen.exact() as weight:
            for start in range(0, weight.shape[1], _MOST_ROWS):
                rows = weight.new_zeros(min(_MOST_ROWS, weight.shape[1] - start), weight.shape[1])
                rows.diagonal(start).fill_(1)
                found.append(self.tuner(rows).float() - weight[:, start : start + len(rows)].T)
        self.tuner.train(training)
        return torch.cat(found).T

    def in_file(self) -> dict[str, Tensor]:
        if self.config.peft_file == "differences":
            return {"diff": self.change()}
        pair = best_of_change(self.config.rank, self.change(), seeded_generator("file", self.name))
        missing = self.config.rank - len(pair.down)
        self.left_out = (pair.lost, pair.total)
        down, up = functional.pad(pair.down, (0, 0, 0, missing)), functional.pad(pair.up, (0, missing))
        return {"lora_A.weight": down, "lora_B.weight": up, "alpha": torch.tensor(float(self.config.rank))}

    def norm(self) -> Tensor:
        return self.change().norm()

    def shrink(self, ratio: Tensor) -> None:
        raise NotImplementedError("LoraConfig refuses max_norm")


def say_left_out(adapters: Iterable[ModuleAdapter]) -> None:
    """Logs the share of the tuners' change that the file of pairs just written lacks."""
    pairs = [one.left_out for one in adapters if isinstance(one, TunerAdapter)]
    lost, total = sum(lost for lost, _ in pairs), sum(total for _, total in pairs)
    if lost > _EXACT**2 * total:
        _log.warning(
            "The LoRA file lacks %.2g %% of the trained change, because a pair of this rank cannot hold all of it. "
        "A higher rank loses less, and peft_file differences loses nothing.", 100 * (lost / total) ** 0.5,
        )  # fmt: skip


def tuned(linears: Mapping[str, nn.Linear], config: LoraConfig, seed: int) -> dict[str, TunedLinear]:
    """Returns the layer that replaces each linear. ConfigError for a tuner or option that PEFT does not have.

    First values depend on seed, targets and PEFT; a resume compares those that are not trained.
    """
    kind, settings = _tuner_of(config, [to_diffusers(name) for name in linears])
    layers = {name: TunedLinear(linear) for name, linear in linears.items()}
    holder = nn.Module()
    # PEFT reads dtype and device of the first parameter.
    holder.register_parameter("anchor", nn.Parameter(torch.zeros(1), requires_grad=False))
    for name, layer in layers.items():
        *path, leaf = to_diffusers(name).split(".")
        parent = holder
        for part in path:
            if part not in parent._modules:  # pyright: ignore[reportPrivateUsage]
                parent.add_module(part, nn.Module())
            parent = parent.get_submodule(part)
        parent.add_module(leaf, _Seen(layer))
    with torch.random.fork_rng(), torch.inference_mode(False), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # for example BOFT's warning on a machine without nvcc
        torch.manual_seed(seed)
        try:
            kind(holder, settings, _NAME)
        except Exception as error:  # Each tuner raises its own types of errors.
            raise _refused(config, f"PEFT says: {first_line(error).rstrip('.')}") from error
    made = [TunerAdapter(n, layer, config, holder.get_submodule(to_diffusers(n))) for n, layer in layers.items()]
    if empty := [one.name for one in made if not one.parts or not hasattr(one.tuner, "get_base_layer")]:
        raise _refused(config, f"it trains nothing in a linear such as {empty[0]}")
    # A constant named by the digest, so that a resume compares it.
    made[0].constants = {f"untrained_{_untrained(made)}": torch.zeros(1)}
    return layers


def check_tuner(linears: Mapping[str, nn.Linear], config: LoraConfig) -> None:
    """Raises ConfigError where a tuner cannot train linears of these sizes, or ComfyUI has no file for it.

    `linears` may be on meta: one of each size is tried on the CPU, with random weights. Other kinds pass.
    """
    if config.kind != PEFT:
        return
    sizes = {tuple(linear.weight.shape): name for name, linear in linears.items()}
    tried = {name: nn.Linear(wide, tall, bias=False) for (tall, wide), name in sizes.items()}
    for name, layer in tuned(tried, config, 0).items():
        if why := _unlike_a_matrix(layer, tried[name]):
            raise _refused(config, why)


def _unlike_a_matrix(layer: TunedLinear, base: nn.Linear) -> str:
    """Returns why a layer with random values does not act like a changed weight; "" if it does."""
    generator = torch.Generator().manual_seed(0)
    layer.adapter.tuner.eval()
    for value in layer.adapter.parameters().values():
        value.data += 0.05 * torch.randn(value.shape, generator=generator)
    x, other, weight = (
        torch.randn(_PROBED_ROWS, size, generator=generator)
        for size in (base.in_features, base.in_features, base.out_features)
    )
    with torch.enable_grad(), torch.inference_mode(False):
        x.requires_grad_()
        of_x, of_other, of_both = (layer(rows) - base(rows) for rows in (x, other, 2 * x + other))
        if not (of_both - 2 * of_x - of_other).norm() < _ALIKE * of_x.norm():
            return "its change of a layer is not a matrix, so ComfyUI has no file for it"
        (gradient,) = torch.autograd.grad((of_x * weight).sum(), x)
    # If the layer is x @ M.T, the gradient is weight @ M, whose product with `other` equals that of weight and other @
    # M.T.
    off = ((gradient * other).sum(1) - (weight * of_other).sum(1)).abs()
    if not bool((off < _ALIKE * weight.norm(dim=1) * of_other.norm(dim=1)).all()):
        return "the gradient that PEFT computes for its inputs is not that of its forward"
    return ""


def _tuner_of(config: LoraConfig, names: list[str]) -> tuple[Any, Any]:
    """Returns the class of a tuner, and its settings for linears of these names."""
    try:
        check_place("peft")
        peft, mapping, utils = imported("peft"), imported("peft.mapping"), imported("peft.tuners.tuners_utils")
    except ImportError as error:
        raise DependencyError(
            f'adapter "peft" needs the package peft ({first_line(error)}). Install it: {pip_line("peft")}'
        ) from error
    known = {
        kind.value: kind
        for kind, tuner in mapping.PEFT_TYPE_TO_TUNER_MAPPING.items()
        # Which the training loop would have to call.
        if issubclass(tuner, utils.BaseTuner) and not hasattr(tuner, "update_and_allocate")
    }
    if config.peft_tuner.upper() not in known:
        raise ConfigError(f'peft_tuner "{config.peft_tuner}" is not a tuner of PEFT {peft.__version__} for linear '
        'layers.'
                          f"{nearest(config.peft_tuner.upper(), sorted(known))}")  # fmt: skip
    kind = known[config.peft_tuner.upper()]
    made_of = mapping.PEFT_TYPE_TO_CONFIG_MAPPING[kind]
    options = arguments_of(config.peft_args, "peft_args")
    hints = typing.get_type_hints(made_of)
    offered = {one.name for one in dataclasses.fields(made_of) if one.init} - _OURS
    for name, value in options.items():
        if name not in offered:
            raise ConfigError(f'peft_args: {kind.value} has no option "{name}".{nearest(name, sorted(offered))}')
        if not _is_plain(value) and value not in _words(hints.get(name)):
            raise ConfigError(f"peft_args: {name} takes a number, true, false, a list of numbers or a word of PEFT's.")
    try:
        return mapping.PEFT_TYPE_TO_TUNER_MAPPING[kind], made_of(target_modules=names, **options)
    except Exception as error:
        raise _refused(config, f"PEFT says: {first_line(error).rstrip('.')}") from error


def _refused(config: LoraConfig, why: str) -> ConfigError:
    return ConfigError(
        f"peft_tuner {config.peft_tuner} cannot be trained: {why}. Change peft_args, or choose another tuner, such as "
        "VERA, BOFT, HRA or RANDLORA."
    )


def _is_plain(value: object) -> bool:
    """Returns whether a value is a number, a bool, None, or a list of these, and so no name of a layer."""
    if isinstance(value, list | tuple):
        return all(map(_is_plain, cast("list[object]", value)))
    return value is None or isinstance(value, bool | int | float)


def _words(hint: Any) -> set[object]:
    """Returns the words that a field's annotation lists."""
    own = set(typing.get_args(hint)) if typing.get_origin(hint) is Literal else set[object]()
    return own.union(*map(_words, typing.get_args(hint))) if typing.get_origin(hint) is not Literal else own


def _untrained(adapters: Iterable[TunerAdapter]) -> str:
    """Returns a digest of the values that the tuners hold and do not train; layers may share them."""
    held = {
        id(value): value
        for one in adapters
        for value in (*one.tuner.buffers(), *one.tuner.parameters())
        if not value.requires_grad
    }
    digest = hashlib.sha256()
    for value in held.values():
        digest.update(value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:12]
