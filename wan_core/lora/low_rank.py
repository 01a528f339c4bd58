"""LoRA and rsLoRA: a pair of matrices next to a linear; DoRA: such a pair and a length per row.

A is (r, in), B (out, r). LoRA: W + scale * B @ A. DoRA: each row of that sum with a trained length.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from ..flow import seeded_generator
from ..precision import product_without_bias, row_squares, values_of
from .changes import LowRank
from .config import STARTS_IN_THE_WEIGHT, LoraConfig
from .factors import EXACT_UP_TO, range_of
from .linear_adapter import LinearAdapter, uniform
from .module_adapter import Weight, named
from .one_pass import OneLora, fits

_DOWN, _UP, _LENGTHS = "lora_A.weight", "lora_B.weight", "lora_magnitude_vector.weight"


class LoraAdapter(LinearAdapter):
    """W + (alpha / rank) * B @ A."""

    parts = (_DOWN, _UP)

    @staticmethod
    def layer_parts(linear: nn.Linear, config: LoraConfig, rank: int) -> dict[str, nn.Module]:
        down, up = (linear.in_features, rank), (rank, linear.out_features)
        return {
            _holder(part): named(nn.Linear(*size, bias=False, device="meta", dtype=torch.float32))
            for part, size in ((_DOWN, down), (_UP, up))
        }

    def start(self, seed: int) -> None:
        """A is Kaiming-uniform with a = sqrt(5), within 1 / sqrt(in), as in PEFT and the LoRA paper's code; B is zero.

        gaussian: A is normal with deviation 1 / rank, as in PEFT. OLoRA: columns of Q and rows of R of the weight's QR
        decomposition.
        """
        down, up, init = self.parameter(_DOWN).detach(), None, self.config.init
        if self.base.weight.device.type == "meta":  # a meta model has no values
            down = torch.empty_like(down, device="meta")
        elif init == "PiSSA":
            directions = seeded_generator(seed, "PiSSA", self.name)
            down, up = _principal_pair(self.base, self.rank, self.scale, directions)
        elif init == "OLoRA":
            weight = values_of(self.base)
            up = torch.linalg.qr(weight[:, : self.rank]).Q
            down = up.T @ weight
        elif init == "gaussian":
            down = gaussian(down.shape, 1 / self.rank, seed, self.name)
        else:
            down = uniform(down.shape, 1 / math.sqrt(down.shape[1]), seed, "lora", self.name)
        self.set_values(_DOWN, down)
        if up is None:
            self.begin(_UP, seed, None)
        else:
            self.set_values(_UP, up)
        if init in STARTS_IN_THE_WEIGHT:
            self.constants = {f"start_{part}": self.parameter(part).detach().clone() for part in (_DOWN, _UP)}

    def pair(self) -> tuple[Tensor, Tensor]:
        """Returns A (r, in) and B (out, r): B @ A is the change of the weight.

        With an init of STARTS_IN_THE_WEIGHT they have 2 r rows and columns in place of r.
        """
        down, up = self.parameter(_DOWN), self.parameter(_UP)
        if not self.constants:
            return down, up
        # B @ A - B0 @ A0 = (B - B0) @ A + B0 @ (A - A0): a pair of rank 2 r without cancellation of large rounded
        # terms.
        first_down, first_up = self.constants.values()
        return torch.cat([down, down - first_down]), torch.cat([up - first_up, first_up], 1)

    def in_one_pass(self, x: Tensor) -> OneLora | None:
        layer, config, base = self.layer, self.config, self.base
        draws = (config.dropout or config.rank_dropout or config.module_dropout) and layer.training
        if draws or self.compute_dtype(x) != x.dtype or not fits(base, x.device, x.dtype):
            return None
        return OneLora(base, layer.narrowed.matrices or self.pair(), self.scale * self.strength, layer.held)

    def to_narrow(self, dtype: torch.dtype) -> list[nn.Parameter]:
        pair = [self.parameter(part) for part in (_DOWN, _UP)]
        trained = all(type(p) is nn.Parameter and p.requires_grad and p.dtype != dtype for p in pair)
        if self.bypassed or self.constants or not trained or (self.dtype or dtype) != dtype:
            return []
        return pair if fits(self.base, pair[0].device, dtype) else []

    def change(self, x: Tensor, base: Tensor) -> Tensor:
        return self._added(x, base, *self.pair(), self.scale * self.strength)

    def _added(self, x: Tensor, result: Tensor, down: Tensor, up: Tensor, scale: float) -> Tensor:
        """Returns result + scale * up @ down @ x."""
        inside = self.compute_dtype(x)
        hidden = functional.linear(self.dropped(x.to(inside)), down.to(inside))
        if (kept := self.kept(self.rank)) is not None:
            hidden = hidden * kept.to(inside).repeat(len(down) // self.rank)
        if inside == result.dtype:
            # addmm adds the product while it computes it: one pass over the wide result instead of three.
            rows = torch.addmm(result.flatten(0, -2), hidden.flatten(0, -2), up.to(inside).t(), alpha=scale)
            return rows.view(result.shape)
        return result + (functional.linear(hidden, up.to(inside)) * scale).to(result.dtype)

    def learnt(self) -> LowRank:
        return LowRank(*self.pair(), scale=self.scale)

    def exported(self) -> dict[str, Tensor]:
        """Returns both matrices, and an alpha with which alpha / rank gives our scale."""
        down, up = self.pair()
        return {_DOWN: down, _UP: up, "alpha": torch.tensor(self.scale * len(down))}


class RsLoraAdapter(LoraAdapter):
    """W + (alpha / sqrt(rank)) * B @ A: larger ranks keep their learning speed."""

    @property
    def scale(self) -> float:
        return self.alpha / math.sqrt(self.rank)


class DoraAdapter(LoraAdapter):
    """Each row of W + scale * B @ A with a trained length; no gradient through the norm.

    Strength interpolates between W and that weight, as in ComfyUI.
    """

    parts = (_DOWN, _UP, _LENGTHS)
    reads_output = True

    def in_one_pass(self, x: Tensor) -> OneLora | None:
        return None

    def to_narrow(self, dtype: torch.dtype) -> list[nn.Parameter]:
        return []

    @staticmethod
    def layer_parts(linear: nn.Linear, config: LoraConfig, rank: int) -> dict[str, nn.Module]:
        pair = LoraAdapter.layer_parts(linear, config, rank)
        return pair | {_holder(_LENGTHS): named(Weight((linear.out_features,)))}

    def start(self, seed: int) -> None:
        """Initialises the pair, and the lengths with the row lengths of W, so that the first change is zero."""
        super().start(seed)
        self._base_squares = row_squares(self.base)
        self.set_values(_LENGTHS, self._base_squares.sqrt())

    def move(self, device: torch.device) -> None:
        super().move(device)
        self._base_squares = self._base_squares.to(device)

    @torch.no_grad()
    def row_norms(self) -> Tensor:
        """Returns the row lengths of W + scale * B @ A, (out,) float32, without building the sum."""
        down, up = self.parameter(_DOWN), self.parameter(_UP)
        against_base = product_without_bias(self.base, down).T.to(up.device, torch.float32)  # W @ A.T, (out, r)
        crossed = (against_base * up).sum(1)
        own = ((up @ (down @ down.T)) * up).sum(1)
        squares = self._base_squares + 2 * self.scale * crossed + self.scale**2 * own
        return squares.clamp(min=0).sqrt().clamp(min=torch.finfo(torch.float32).tiny)

    def change(self, x: Tensor, base: Tensor) -> Tensor:
        gain = self.parameter(_LENGTHS) / self.row_norms()
        longer = (gain - 1) * self.strength
        if self.config.module_dropout and (kept := self.kept(self.rank)) is not None:
            longer = longer * (kept.amax() > 0)  # 0 if the complete adapter is dropped
        result = torch.addcmul(base, self.without_bias(base), longer.to(base.dtype))
        longer_up = self.parameter(_UP) * (gain * self.strength)[:, None]
        return self._added(x, result, self.parameter(_DOWN), longer_up, self.scale)

    def exported(self) -> dict[str, Tensor]:
        """Returns the pair and dora_scale (out, 1)."""
        # ComfyUI divides by the row lengths of W alone, not of the sum, so the quotient of both is multiplied in.
        lengths = self.parameter(_LENGTHS).detach() * (self._base_squares.sqrt() / self.row_norms())
        return super().exported() | {"dora_scale": lengths[:, None]}

    def shrink(self, ratio: Tensor) -> None:
        """Scales the pair by `ratio` (); the row lengths do not change."""
        for part in (_DOWN, _UP):
            self.parameter(part).mul_(ratio.sqrt())


def _holder(part: str) -> str:
    return part.partition(".")[0]


def _principal_pair(linear: nn.Linear, rank: int, scale: float, directions: torch.Generator) -> tuple[Tensor, Tensor]:
    """Returns A (r, in), B (out, r): scale * B @ A is the weight's best approximation of that rank (PiSSA)."""
    weight = values_of(linear)
    if min(weight.shape) <= EXACT_UP_TO:
        left, values, right = torch.linalg.svd(weight, full_matrices=False)
    else:
        found = range_of(weight, rank, directions)
        left, values, right = torch.linalg.svd(found.T @ weight, full_matrices=False)
        left = found @ left
    roots = (values[:rank] / scale).sqrt()
    return roots[:, None] * right[:rank], left[:, :rank] * roots


def gaussian(shape: torch.Size, deviation: float, seed: int, name: str) -> Tensor:
    """Returns normal CPU values, decided by seed and name."""
    return torch.randn(shape, generator=seeded_generator(seed, "lora", name)) * deviation
