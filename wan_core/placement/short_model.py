"""A model of few layers and a micro-batch, both of meta tensors, for traces."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from functools import lru_cache, partial
from threading import Lock

import torch
from torch import Tensor, nn

from ..errors import ConfigError
from ..kernels import attention_kernel
from ..model import (
    FACE_SIDE,
    FRAMES_BEFORE,
    TEXT_LENGTH,
    WHISPER_WINDOW,
    Conditioning,
    Numerics,
    Passage,
    Policy,
    WanShape,
    WanTransformer,
    given_behind,
)
from ..model.attention import WanAttention, WanSelfAttention
from ..model.face import FaceAttention
from ..model.heads import TO_HEADS, Arriving, TokenSeat, shares
from ..model.parts import parts_of, video_places
from ..model.transformer import grid_of

ALONE = Lock()
"""lock for models of `short_model`, which are cached, while the server plans in several threads"""


@dataclass(frozen=True, kw_only=True)
class Recomputing:
    """Activation checkpointing of a model: what the backward pass recomputes."""

    blocks: bool = True
    """whether blocks are checkpointed; False: every block keeps its activations"""
    policy: Policy = Policy()
    """activations that a checkpointed block keeps besides its input"""
    unchecked: int = 0
    """number of last blocks without checkpointing"""


@dataclass(frozen=True, kw_only=True)
class StepShape:
    """The shape of a micro-batch, and the part of its tokens on one card."""

    batch_size: int
    latent_frames: int
    latent_height: int
    latent_width: int
    text_rows: int = TEXT_LENGTH
    parts: tuple[int, ...] = (1,)
    """proportions in which cards split its tokens"""
    card: int = 0
    """index of this card in `parts`"""
    context: tuple[tuple[int, ...], ...] = ()
    """latent frames, height and width of each context stream of a clip; with these, one card has all tokens"""

    @property
    def in_frame(self) -> int:
        """Tokens of a latent frame of the video."""
        return (self.latent_height // 2) * (self.latent_width // 2)

    @property
    def context_tokens(self) -> int:
        """Tokens of the context streams of a clip."""
        return sum(frames * (height // 2) * (width // 2) for frames, height, width in self.context)

    @property
    def tokens(self) -> int:
        """Tokens of a clip, with its context."""
        return self.latent_frames * self.in_frame + self.context_tokens

    @property
    def own_tokens(self) -> int:
        """Tokens of a clip on this card, with its context."""
        return self.latent_frames * shares(self.in_frame, self.parts, least=1)[self.card] + self.context_tokens


class InFlight:
    """An `Offload` for traces, with the device memory of `placement/offload.py`.

    The forward pass holds the newest input while it is copied; the backward pass the current and the next one.
    """

    holds_values = True

    def __init__(self) -> None:
        self.put_bytes = 0
        """bytes offloaded so far"""
        self._kept: list[tuple[torch.Size, torch.dtype]] = []
        self._here: dict[int, Tensor] = {}

    def weights(self, block: str, *, again: bool) -> AbstractContextManager[None]:
        return nullcontext()

    def put(self, kept: Tensor) -> Callable[[], Tensor]:
        number = len(self._kept)
        self.put_bytes += kept.nbytes
        self._kept.append((kept.shape, kept.dtype))
        self._here = {number: kept}
        return lambda: self._take(number)

    def _take(self, number: int) -> Tensor:
        for wanted in (number, number - 1):
            if wanted >= 0 and wanted not in self._here:
                shape, dtype = self._kept[wanted]
                self._here[wanted] = torch.empty(shape, dtype=dtype, device="meta")
        return self._here.pop(number)


def as_it_is(_model: nn.Module) -> None:
    """Injects no adapters."""


@dataclass(frozen=True)
class AsBlock:
    """Adapts every block of a short model like block `main` of the job, and every block of VACE's second stream like
    block `second`.

    A block without targets stays unchanged. Equal instances share cached traces.
    """

    adapt: Callable[[nn.Module], None]
    main: int
    second: int = 0

    def __call__(self, model: nn.Module) -> None:
        for stream, number in (("blocks", self.main), ("vace_blocks", self.second)):
            for block in getattr(model, stream, ()):
                named = nn.Module()
                named.add_module(stream, nn.ModuleDict({str(number): block}))
                with suppress(ConfigError):
                    self.adapt(named)


@lru_cache(maxsize=32)
def short_model(shape: WanShape, numerics: Numerics, adapt: Callable[[nn.Module], None]) -> WanTransformer:
    """Returns a frozen meta model with adapters, like that of the loader.

    It is cached for all clip sizes and checkpointing settings (`set_up`), because building it takes as long as a trace.
    """
    with torch.inference_mode(False), torch.device("meta"):
        model = WanTransformer(shape, numerics).to(numerics.compute)
    model.requires_grad_(False)
    with torch.inference_mode(False):
        adapt(model)
    for module in model.modules():
        if isinstance(module, WanAttention | FaceAttention):
            module.kernel = _plain_attention if numerics.plain_attention else _flash_attention
    return model


def set_up(model: WanTransformer, recomputing: Recomputing, chunk_tokens: int) -> None:
    """Sets the checkpointing and the chunk length of a model of `short_model`."""
    model.checkpoint_blocks, model.checkpoint_policy = recomputing.blocks, recomputing.policy
    model.unchecked_blocks = recomputing.unchecked
    model.run_in_chunks(chunk_tokens)


def set_part(model: WanTransformer, step: StepShape) -> None:
    """Makes a model of `short_model` compute the part of one card, if cards split the tokens of `step`."""
    absent, several = _Absent(shares(model.shape.num_heads, step.parts)), len(step.parts) > 1
    model.team = _OneOfSeveral(model, step, absent) if several else None
    seat = TokenSeat(absent, step.card, step.parts, model.shape.num_heads)
    seat.joined = several
    for module in model.modules():
        if isinstance(module, WanSelfAttention):
            module.seat = seat


class _OneOfSeveral:
    """A `Team` for traces, of which only one copy exists."""

    copies: Sequence[WanTransformer] = ()
    watches = True

    def __init__(self, model: WanTransformer, step: StepShape, absent: _Absent) -> None:
        self._model, self._step, self._absent = model, step, absent

    def patches(
        self, latent: Tensor, timestep: Tensor, text: Tensor, given: Conditioning, passages: Sequence[Passage]
    ) -> Tensor:
        """Returns the tokens of all copies, with values only for those of this copy."""
        frames, height, width = grid_of(latent)
        more = int(given.reference is not None)
        devices = [latent.device] * len(self._step.parts)
        parts = parts_of(frames + more, height * width, devices, passages, self._step.parts)
        part, self._absent.tokens = parts[self._step.card], [len(one.numbers) for one in parts]
        own = self._model.patches(latent, timestep, text, given, part.passages, part)
        places = video_places(part, frames + more, height * width * more)
        return own.new_empty(own.shape[0], frames * height * width, own.shape[2]).index_copy(1, places, own)

    def watching(self) -> AbstractContextManager[None]:
        return nullcontext()

    def sum_gradients(self) -> None: ...

    def forget_gradients(self) -> None: ...


class _Absent:
    """An exchange with copies that do not exist; it returns tensors of the right shapes."""

    def __init__(self, heads: list[int]) -> None:
        self._heads = heads
        self.tokens: list[int] = []
        """number of tokens of each copy in the current pass"""

    def swap(self, me: int, what: str, parcels: Sequence[Tensor]) -> Arriving:
        batch, own, _, width = parcels[me].shape
        sizes = [(own, heads) for heads in self._heads]
        if what == TO_HEADS:
            sizes = [(tokens, self._heads[me]) for tokens in self.tokens]
        found = [parcels[me].new_empty(batch, *size, width) for size in sizes]
        found[me] = parcels[me]
        return Arriving(found, lambda: None)


def _plain_attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """The kernel sdpa_math with float32 scores. ComfyUI permits 16-bit scores in its process, but a worker, for which
    the plan is made, has float32 scores."""
    wide = torch.promote_types(query.dtype, torch.float32)
    return attention_kernel("sdpa_math")(query.to(wide), key.to(wide), value.to(wide)).to(query.dtype)


def _flash_attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """The FlashAttention of the CPU; for meta tensors, torch would choose a kernel with a full matrix of scores."""
    heads = (part.transpose(1, 2) for part in (query, key, value))
    return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(*heads)[0].transpose(1, 2)


def gradients_of(model: nn.Module) -> list[Tensor]:
    """Creates and returns the gradients of all trained parameters, whose bytes are counted with the optimizer."""
    for p in model.parameters():
        p.grad = torch.empty_like(p) if p.requires_grad else None
    return [p.grad for p in model.parameters() if p.grad is not None]


@dataclass(frozen=True)
class MetaBatch:
    """The tensors of a micro-batch on the first device (`train.NoisedBatch`)."""

    latent: Tensor
    noise: Tensor
    noised: Tensor
    timestep: Tensor
    text: Tensor
    conditioning: Conditioning

    @classmethod
    def of(cls, shape: WanShape, step: StepShape) -> MetaBatch:
        empty = partial(torch.empty, device="meta")
        count, grid = step.batch_size, (step.latent_frames, step.latent_height, step.latent_width)
        driven = shape.out_channels if shape.pose_stream_channels else 0  # SCAIL: one reference, a pose video
        referring = driven or (shape.out_channels if shape.whisper_channels else 0)  # HuMo: one reference, the sound
        one, small = (1, *grid[1:]), (grid[0], grid[1] // 2, grid[2] // 2)
        # S2V: sound, a pose video, and behind the video what step.context says.
        speaking = shape.out_channels if shape.sound_channels else 0
        reference, before = given_behind(step.context)
        rays = (step.latent_frames, *(shape.camera_stride * side for side in grid[1:]))

        def video(channels: int, size: tuple[int, ...] = grid) -> Tensor | None:
            return empty(count, channels, *size) if channels else None

        latent, noise, noised = (empty(count, shape.out_channels, *grid) for _ in range(3))
        rows = (shape.image_positions or 257) if shape.image_dim else 0  # CLIP tokens of one or two frames
        given = Conditioning(
            channels=video(shape.condition_channels),
            vace=video(shape.vace_channels if shape.vace_layers else 0),
            camera=video(shape.camera_channels, rays),
            image_tokens=empty(count, rows, shape.image_dim) if rows else None,
            reference=video(speaking * reference or shape.reference_channels, grid[1:]),
            references=video(referring, one),
            pose_stream=video(driven, small),
            reference_masks=video(shape.identity_channels, one),
            pose_masks=video(shape.identity_channels, small),
            context=() if speaking else tuple(empty(count, shape.out_channels, *size) for size in step.context),
            pose=video(shape.pose_channels, (grid[0] - 1, *grid[1:])),
            face=video(3 if shape.face_layers else 0, (4 * grid[0] - 7, FACE_SIDE, FACE_SIDE)),
            whisper=empty(count, grid[0], *WHISPER_WINDOW, shape.whisper_channels) if shape.whisper_channels else None,
            sound=video(shape.sound_depth if speaking else 0, (shape.sound_channels, 4 * grid[0])),
            pose_video=video(speaking),
            frames_before=video(speaking * before, (FRAMES_BEFORE, *grid[1:])),
        )
        text = empty(count, step.text_rows, shape.text_dim)
        return cls(latent, noise, noised, empty(count), text, given)

    def through(self, model: WanTransformer) -> Tensor:
        return model(self.noised, self.timestep, self.text, self.conditioning)
