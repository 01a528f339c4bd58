"""FLOPs of a LoRA step, by formula.

Matrix products of linears, convolutions and attention, two operations per multiply-add. A linear of R rows and P
weights takes 2RP forward, 2RP for the gradient of its input if an earlier weight is trained, and 2RP for the gradient
of its own weight if trained. Attention of N queries to M keys takes 2NMD for each of its two forward products, and for
each gradient needed (scores, queries, keys, values).

Only useful FLOPs: recomputation (`recomputed` has it), norms, activations, optimizer, reference image and the encoders
of a face or of sound do not count.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from ..lora import adapters_of
from ..model import SOUND_TOKENS, TEXT_LENGTH, Route, WanTransformer, block_of, tokens_by_layer

_STAGES = (
    *("before_proj", "self_attn.q self_attn.k self_attn.v", "self_attn.o"),
    *("cross_attn.q cross_attn.k cross_attn.v cross_attn.k_img cross_attn.v_img", "cross_attn.o"),
    *("audio_cross_attn.q audio_cross_attn.k audio_cross_attn.v", "audio_cross_attn.o", "ffn.0", "ffn.2"),
    *("after_proj", "face.linear1_q face.linear1_kv", "face.linear2"),
    *("sound.adain", "sound.q sound.k sound.v", "sound.o"),
)
"""linears of a layer, in the order of the forward pass"""
_STAGE = {name: number for number, names in enumerate(_STAGES) for name in names.split()}
_LAST_STAGE = len(_STAGES)
_UNREAD = ("ffn.2", "ffn.2.base_layer", "ffn.2.lora_B.default")
"""last linear of a main block and its LoRA: recomputation skips their unused products (`kernels/backward_only.py`)"""

_LEFT_OUT = ("ref_conv", "face_encoder", "casual_audio_encoder", "frame_packer")
_FACE_ROWS = _SOUND_ROWS = 5
"""tokens of the face (Animate) or of the sound (S2V) in a latent frame"""
_WHISPER = "audio_cross_attn_wrapper."
"""prefix of attention to sound in a block of HuMo"""

Place = tuple[int, int]
"""(layer, stage) in the token stream"""
_NEVER: Place = (1 << 30, 0)
_OUTSIDE = -1
"""layer number of modules outside the blocks"""


@dataclass(frozen=True, kw_only=True)
class StepFlops:
    """FLOPs of a micro-batch."""

    forward: float
    backward: float
    base: float
    """forward pass without adapters, as for the target of a prior preservation clip"""
    recomputed: float
    """recomputation by activation checkpointing: forward pass of the layers with gradients, less unread products"""

    @property
    def useful(self) -> float:
        return self.forward + self.backward


@dataclass(frozen=True)
class Work:
    """The work of a step; `flops` without recomputation."""

    flops: float = 0.0
    tokens: int = 0
    clips: int = 0

    def __add__(self, other: Work) -> Work:
        return Work(self.flops + other.flops, self.tokens + other.tokens, self.clips + other.clips)


@dataclass
class _Term:
    """FLOPs per row, or per pair of query and key."""

    forward: float = 0.0
    backward: float = 0.0
    base: float = 0.0
    in_blocks: float = 0.0


class FlopCount:
    """FLOPs of one materialized model with its adapters: per row once, so a micro-batch of any size is cheap."""

    def __init__(self, model: WanTransformer) -> None:
        self._driven, self._hears = model.shape.pose_stream_channels > 0, model.shape.whisper_channels > 0
        self._layers, self._vace_layers = model.shape.num_layers, model.shape.vace_layers
        self._attending = set(model.shape.attending_layers)
        self._linears = {
            name: module
            for name, module in model.named_modules()
            if isinstance(module, nn.Linear | nn.Conv2d | nn.Conv3d) and not name.startswith(_LEFT_OUT)
        }
        # A parameter directly in an adapter's layer gives that layer's name, one in a submodule the submodule's.
        self._trained = {name.rpartition(".")[0] for name, value in model.named_parameters() if value.requires_grad}
        self._first = self._first_trained()
        self._text_rows, self._differ = model.text_rows, model.rows_differ  # 0 rows: as many as the text has
        self._terms: defaultdict[tuple[str, int], _Term] = defaultdict(_Term)
        for name, module in self._linears.items():
            self._add_linear(name, 2.0 * _weights(module))
        for adapter in adapters_of(model):  # products outside its linears; with gradients of input and parameters
            self._add_linear(f"{adapter.name}.adapter", 2.0 * adapter.multiplies, trains=True)
        for stream, layers in (("blocks", model.shape.num_layers), ("vace_blocks", len(self._vace_layers))):
            for number in range(layers):
                attends = stream == "blocks" and number in self._attending
                further = ("sound" if model.shape.sound_channels else "face") if attends else ""
                self._add_attention(f"{stream}.{number}", model.shape.dim, bool(model.shape.image_dim), further)

    def of(
        self,
        latent: torch.Size,
        *,
        time_rows: int,
        image_rows: int,
        text_rows: int = TEXT_LENGTH,
        routes: Sequence[Route] = (),
        context_tokens: int = 0,
    ) -> StepFlops:
        """Returns the FLOPs of a micro-batch: latent (B, C, F, H, W); rows of timesteps, CLIP tokens and text per clip.

        Text rows as for `WanTransformer.read_texts`; the layers of `routes` process fewer tokens, all layers
        `context_tokens` more.
        """
        clips, _, frames, height, width = latent
        in_frame = (height // 2) * (width // 2)
        # SCAIL and HuMo have tokens of one reference, SCAIL of a pose video of half the size.
        one, pose = in_frame * (self._driven or self._hears), in_frame * frames // 4 * self._driven
        embedded = in_frame * frames + one + context_tokens
        apart = {"embedded": embedded, "pose": pose, "identities": embedded + pose}
        more = one + pose + context_tokens
        in_layers = (tokens + more for tokens in tokens_by_layer(routes, self._layers, in_frame, frames))
        tokens_of = (*in_layers, in_frame * frames)  # the last entry is for index _OUTSIDE
        attended = max(text_rows, self._text_rows)
        texts = {"words": text_rows, "text": attended if self._differ else text_rows}
        units: dict[int, dict[str, int]] = {}
        for tokens in set(tokens_of):
            rows = {"tokens": tokens, **texts, **apart, "time": time_rows, "image": image_rows}
            rows |= {"face": _FACE_ROWS * frames, "sound": _SOUND_ROWS * frames, "sounds": frames}
            rows |= {"heard": in_frame * frames, "whisper": SOUND_TOKENS * (frames + 1), "whispers": frames + 1}
            pairs = {"self": tokens * tokens, "to_text": tokens * attended, "to_image": tokens * image_rows}
            pairs |= {"to_face": tokens * _FACE_ROWS, "to_sound": in_frame * frames * _SOUND_ROWS}
            pairs["to_whisper"] = tokens * SOUND_TOKENS
            units[tokens] = rows | pairs
        counted = [(units[tokens_of[layer]][kind], term) for (kind, layer), term in self._terms.items()]
        return StepFlops(
            forward=clips * sum(count * term.forward for count, term in counted),
            backward=clips * sum(count * term.backward for count, term in counted),
            base=clips * sum(count * term.base for count, term in counted),
            recomputed=clips * sum(count * term.in_blocks for count, term in counted),
        )

    def work_of(self, latent: torch.Size, *, more_forward: int = 0, context_tokens: int = 0, **more: Any) -> Work:
        """Returns the work of a micro-batch: latent (B, C, F, H, W), its tokens before routing, with its context.

        `more_forward`: clips in forward passes without gradients, for targets. `more`: other arguments of `of`.
        """
        clips, _, frames, height, width = latent
        flops = self.of(latent, context_tokens=context_tokens, **more)
        useful = flops.useful + flops.base * more_forward / clips
        return Work(useful, clips * (frames * (height // 2) * (width // 2) + context_tokens), clips)

    def _layer(self, name: str) -> int:
        """Returns the main-stream layer of a linear; for a VACE block, the layer that its hint is added to."""
        found = block_of(name)
        if found is None:
            return _OUTSIDE
        return found.number if found.stream == "blocks" else self._vace_layers[found.number]

    def _add_linear(self, name: str, operations: float, *, trains: bool = False) -> None:
        """`operations`: forward, per row. `trains`: counts it as trained even if its name is not in the list."""
        term = self._terms[_rows_of(name), self._layer(name)]
        term.forward += operations
        trained = trains or name in self._trained
        term.base += operations * (not trained)
        term.backward += operations * (trained + self._input_has_gradient(name))
        if self._is_recomputed(name):
            term.in_blocks += operations

    def _add_attention(self, layer: str, dim: int, reads_images: bool, further: str) -> None:
        pairs = {"self": ("self_attn", "q", "k", "v"), "to_text": ("cross_attn", "q", "k", "v")}
        if reads_images:
            pairs["to_image"] = ("cross_attn", "q", "k_img", "v_img")
        if self._hears:
            pairs["to_whisper"] = (f"{_WHISPER}audio_cross_attn", "q", "k", "v")
        if further:
            names = {"face": ("linear1_q", "linear1_kv", "linear1_kv"), "sound": ("q", "k", "v")}[further]
            pairs[f"to_{further}"] = (further, *names)
        for kind, (part, *names) in pairs.items():
            query, key, value = (self._output_has_gradient(f"{layer}.{part}.{name}") for name in names)
            term = self._terms[kind, self._layer(f"{layer}.{part}.{names[0]}")]
            term.forward += 4.0 * dim
            term.base += 4.0 * dim
            term.in_blocks += 4.0 * dim * self._is_recomputed(f"{layer}.{part}.{names[0]}")
            term.backward += 2.0 * dim * (query + key + value + (query or key))

    def _first_trained(self) -> dict[str, Place]:
        """Returns the first trained place of each stream; every later activation has a gradient."""
        first: dict[str, Place] = {"blocks": _NEVER, "vace_blocks": _NEVER}
        for name in self._trained:
            if (found := _place(name)) is not None:
                first[found[0]] = min(first[found[0]], found[1])
        layer, _ = first["vace_blocks"]
        if layer < len(self._vace_layers):  # the hint is added to the main stream after its block
            first["blocks"] = min(first["blocks"], (self._vace_layers[layer], _LAST_STAGE))
        return first

    def _is_recomputed(self, name: str) -> bool:
        found, module = _place(name), block_of(name)
        if found is None or module is None or found[1] < (self._first[found[0]][0], 0):
            return False
        unread = name not in self._trained or ".lora_B." in name
        ends = module.stream == "blocks" and module.number not in self._attending
        return not (ends and module.inside in _UNREAD and unread)

    def _input_has_gradient(self, name: str) -> bool:
        if ".lora_B." in name:
            return True
        if name == "head.head":
            return self._first["blocks"] < _NEVER
        found = _place(name)
        if found is None or _rows_of(name) not in ("tokens", "heard"):
            return False  # embeddings and cross-attention keys: no trained weight comes before them
        stream, place = found
        return place > self._first[stream]

    def _output_has_gradient(self, linear: str) -> bool:
        own = any(name == linear or name.startswith(f"{linear}.") for name in self._trained)
        inside = f"{linear}.base_layer" if f"{linear}.base_layer" in self._linears else linear
        return own or self._input_has_gradient(inside)


def _place(name: str) -> tuple[str, Place] | None:
    """Returns the block list and the place of a linear; None outside the blocks and for other modules."""
    found = block_of(name)
    stage = None if found is None else _STAGE.get(_linear_in(found.inside))
    return None if found is None or stage is None else (found.stream, (found.number, stage))


def _linear_in(inside: str) -> str:
    """Returns the linear that a name inside a block belongs to, such as `self_attn.q` for its adapter's weights."""
    linear = ".".join(inside.removeprefix(_WHISPER).split(".")[:2])
    return linear if linear in _STAGE else linear.partition(".")[0]


def _rows_of(name: str) -> str:
    """Returns the kind of rows of a linear or convolution: tokens (of layers, or of the video), words, text, time,
    image (CLIP tokens), and those that an embedding of patches makes.

    Words are the embedded rows of text; blocks may process more text rows (`WanTransformer.rows_differ`).
    """
    if found := block_of(name):
        linear = _linear_in(found.inside)
        if linear in ("cross_attn.k_img", "cross_attn.v_img"):
            return "image"
        rows = {"cross_attn.k": "text", "cross_attn.v": "text", "face.linear1_kv": "face"}
        rows |= {"sound.k": "sound", "sound.v": "sound", "sound.adain": "sounds"}
        rows |= {"sound.q": "heard", "sound.o": "heard"}
        rows |= {"audio_cross_attn.k": "whisper", "audio_cross_attn.v": "whisper"}
        return rows.get(linear, "tokens")
    prefixes = {"text_embedding": "words", "time_": "time", "img_emb": "image", "patch_embedding_pose": "pose"}
    prefixes |= {"patch_embedding_mask": "identities", "patch_embedding": "embedded", "cond_encoder": "heard"}
    prefixes["audio_proj"] = "whispers"
    return next((rows for prefix, rows in prefixes.items() if name.startswith(prefix)), "tokens")


def _weights(module: nn.Linear | nn.Conv2d | nn.Conv3d) -> int:
    if isinstance(module, nn.Linear):
        return module.in_features * module.out_features  # a quantized weight may be stored in another shape
    return module.weight.numel()
