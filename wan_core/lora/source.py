"""A LoRA file of any trainer: content by its header, adapters read one linear at a time.

names.py knows the keys, changes.py the maths, start.py how a run uses it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import torch
from torch import Tensor

from ..checkpoint import CheckpointHeader, TensorFile, read_header
from ..checkpoint.catalogue import HIGH
from ..errors import CheckpointError
from ..model import block_of
from .changes import Change, change_of, scale_of
from .names import LoraKey, parse_key
from .peft_settings import declared_scale

_LINEAR = re.compile(r"(self_attn|cross_attn|ffn)\.\w+")
_WIDEST = 1 << 17
"""width of the widest Wan linear; a larger size in a header is refused before memory is allocated"""
_NUMBERS = {"F64", "F32", "F16", "BF16", "F8_E4M3", "F8_E5M2"}
_REFUSED = {
    "dora_scale": "a DoRA, whose magnitudes belong to the base weights it was trained on",
    "lora_magnitude_vector": "a DoRA, whose magnitudes belong to the base weights it was trained on",
    "lokr_t2": "a LoKr of convolutions",
    "hada_t1": "a LoHa of convolutions",
    "hada_t2": "a LoHa of convolutions",
    "lora_mid": "a LoRA of convolutions",
    "oft_": "an OFT",
    "lora_B": "a LoRA with biases of its own",
    "reshape_weight": "a LoRA that changes the model's sizes",
    **dict.fromkeys(("diff", "set_weight", "w_norm", "b_norm"), "a LoRA with full weights or biases besides the pairs"),
    **dict.fromkeys(("a1.", "a2.", "b1.", "b2."), "a GLoRA"),
}
_BOTH = (("transformer.", "transformer_2."), ("pipe.dit.", "pipe.dit2."))
"""prefixes of the high_noise and low_noise expert in a file with both"""
_OF_A_TEXT_ENCODER = re.compile(
    r"(lora_te\d?_|lycoris_te|text_encoders?(_\d)?\.|te\d?\.|lora_text_encoder_|conditioner\.)"
)


@dataclass(frozen=True)
class LoraSource:
    """A LoRA file, its keys grouped by linear. Tensors are read on request."""

    header: CheckpointHeader
    keys: tuple[LoraKey, ...]
    modules: Mapping[str, Mapping[str, str]]
    """original module name -> part -> key in the file"""
    left_out: tuple[str, ...] = ()
    """skipped keys, which belong to no Wan LoRA"""

    @property
    def name(self) -> str:
        return self.header.path.name

    def kind(self, module: str) -> str:
        """Returns LoRA, LoKr or LoHa; raises CheckpointError for a kind that cannot start a run."""
        return self._change_of(module).kind

    def _change_of(self, module: str) -> type[Change]:
        if what := self.unlike_a_pair(module):
            raise CheckpointError(
                f"{self.name} is {what} ({module}); a plain LoRA cannot start from it. "
                "Merge it into the base model first, or start from none."
            )
        change = change_of(self.modules[module])
        if change is None:
            parts = sorted(self.modules[module].keys() - {"alpha"})
            raise CheckpointError(
                f"{self.name} holds only {', '.join(parts) or 'alpha'} for {module}: incomplete. "
                "Use an undamaged LoRA file."
            )
        return change

    def unlike_a_pair(self, module: str) -> str:
        """Returns the kind of a module that is not LoRA, LoKr or LoHa, in words; else ""."""
        marks = ((part, mark) for part in sorted(self.modules[module]) for mark in _REFUSED)
        return next((_REFUSED[mark] for part, mark in marks if part.startswith(mark)), "")

    def values(self, module: str, part: str) -> Tensor:
        """Returns one tensor of a module, float32."""
        return self._read({part: self.modules[module][part]})[part]

    def shape(self, module: str) -> tuple[int, int]:
        """Returns (out, in) of the linear by the header; CheckpointError for inconsistent parts."""
        change, sizes = self._change_of(module), self.sizes(module)
        found = change.shape(sizes)
        if found is None or not all(0 < side <= _WIDEST for side in found):
            raise CheckpointError(
                f"{self.name}: the parts of {module} do not fit together: "
                f"{', '.join(f'{part} {size}' for part, size in sorted(sizes.items()))}. Use an undamaged LoRA file."
            )
        return cast("tuple[int, int]", found)

    def rank(self, module: str) -> int:
        """Returns the rank of a pair, the inner size of a LoHa or decomposed LoKr, else 0."""
        self.shape(module)
        return self._change_of(module).rank(self.sizes(module))

    def alpha(self, module: str) -> float | None:
        key = self.modules[module].get("alpha")
        if key is None:
            return None
        value = self._read({"alpha": key})["alpha"]
        if value.numel() != 1:
            raise CheckpointError(f"{self.name}: {key[:80]} is not one number. Use an undamaged LoRA file.")
        return float(value)

    def scale(self, module: str) -> float:
        """Returns the factor its trainer applies: alpha / rank, or the scale PEFT states, else 1 as in ComfyUI."""
        rank, alpha = self.rank(module), self.alpha(module)
        if alpha is None:
            return declared_scale(self.header, self.keys[0].wrapping, module, rank)
        return scale_of(alpha, rank)

    def change(self, module: str) -> Change:
        """Returns the change of one linear, float32, in new memory."""
        self.shape(module)
        parts = self._read({part: key for part, key in self.modules[module].items() if part != "alpha"})
        return self._change_of(module).of(parts, self.scale(module))

    def sizes(self, module: str) -> dict[str, tuple[int, ...]]:
        """Returns the shapes of a linear's parts, without alpha; CheckpointError for a part that is not a matrix."""
        keys = {part: key for part, key in self.modules[module].items() if part != "alpha"}
        for key in keys.values():
            info = self.header.tensors[key]
            if len(info.shape) != 2 or 0 in info.shape:
                raise CheckpointError(
                    f"{self.name}: {key[:80]} has shape {info.shape}; a matrix was expected. "
                    "Use a LoRA of linear layers."
                )
        return {part: self.header.tensors[key].shape for part, key in keys.items()}

    def _read(self, keys: Mapping[str, str]) -> dict[str, Tensor]:
        """Returns tensors by part, float32."""
        # The file is opened for each read, because an open file cannot be replaced on Windows.
        with TensorFile(self.header.path, self.header) as file:
            values = {part: file.read_as(key, torch.float32) for part, key in keys.items()}
        for part, value in values.items():
            if not value.isfinite().all():
                key = keys[part]
                raise CheckpointError(f"{self.name}: {key[:80]} is not finite. Use an earlier file of that LoRA.")
        return values


def is_wan_linear(module: str) -> bool:
    found = block_of(module)
    return found is not None and _LINEAR.fullmatch(found.inside) is not None


def read_lora(path: Path, expert: str | None = None, *, leave_out: Callable[[str], bool] | None = None) -> LoraSource:
    """Parses the keys of a LoRA file; CheckpointError unless it is for Wan and unambiguous.

    Whether a kind can start a run is checked per module (`LoraSource.shape`). `expert`: high_noise or low_noise;
    selects that half of a file with both. `leave_out`: which unknown keys to skip; None: refuse each.
    """
    header = read_header(path)
    other = _of_the_other(header, expert)
    modules: dict[str, dict[str, str]] = {}
    keys: list[LoraKey] = []
    left_out: list[str] = []
    for key, info in header.tensors.items():
        found = None if is_of_a_text_encoder(key) else parse_key(key)
        if found is None:
            if leave_out is None or not leave_out(key):
                raise _no_key(path, key, header)
            left_out.append(key)
            continue
        if found.wrapping in other:
            continue
        if info.dtype not in _NUMBERS and found.part != "alpha":
            raise CheckpointError(f"{path.name}: {key[:80]} is stored as {info.dtype}. Use an undamaged LoRA file.")
        parts = modules.setdefault(found.module, {})
        if found.part in parts:
            raise CheckpointError(
                f'{path.name} has two tensors for {found.module}: "{parts[found.part][:80]}" and "{key[:80]}". '
                "Use a file with one LoRA in it."
            )
        parts[found.part] = key
        keys.append(found)
    wrappings = sorted({key.wrapping for key in keys})
    if len(wrappings) > 1:
        raise CheckpointError(
            f"{path.name} mixes keys of several programs ({', '.join(repr(w) for w in wrappings)}). "
            "Use a file with one LoRA in it."
        )
    if not any(map(is_wan_linear, modules)):
        raise CheckpointError(f"{path.name} holds no LoRA for a Wan model. Choose one trained for Wan 2.1 or 2.2.")
    return LoraSource(header, tuple(keys), modules, tuple(left_out))


def is_of_a_text_encoder(key: str) -> bool:
    return _OF_A_TEXT_ENCODER.match(key) is not None


def holds_both_experts(path: Path) -> bool:
    """Returns whether a file has LoRAs of both experts, as diffusers saves a pair."""
    return bool(_wrappings_of_both(read_header(path)))


def _wrappings_of_both(header: CheckpointHeader) -> tuple[str, str] | None:
    """Returns the prefixes of both experts, where a file has both."""
    found = {key.wrapping for name in header.tensors if (key := parse_key(name)) is not None}
    return next((both for both in _BOTH if found.issuperset(both)), None)


def _of_the_other(header: CheckpointHeader, expert: str | None) -> tuple[str, ...]:
    """Returns the prefixes to skip for `expert`; CheckpointError where a file of a pair is read for a single model."""
    both = _wrappings_of_both(header)
    if both is None:
        return ()
    if expert is None:
        raise CheckpointError(
            f"{header.path.name} holds the LoRAs of both experts of a Wan 2.2 pair ({' and '.join(both)}), and this "
            "model is not one expert of a pair. Choose the LoRA of this model."
        )
    return (both[1] if expert == HIGH else both[0],)


def _no_key(path: Path, key: str, header: CheckpointHeader) -> CheckpointError:
    texts = [name for name in header.tensors if is_of_a_text_encoder(name)]
    if key in texts:
        return CheckpointError(
            f"{path.name} adapts a text encoder too ({len(texts)} keys, for example {texts[0][:80]}), which is not "
            "supported here. Set only_what_fits of the node that reads it, or choose a LoRA of the Wan model alone."
        )
    return CheckpointError(
        f'{path.name}: "{key[:80]}" is not the key of a Wan LoRA. Choose a LoRA trained for Wan 2.1 or 2.2.'
    )
