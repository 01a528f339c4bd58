"""The Wan diffusion transformer for training: explicit dtypes, few casts, one modulation row per frame.

Shapes: B batch, C channels, F latent frames, H and W latent height and width, N tokens = F * H/2 * W/2, L text rows
(512, or fewer without repetition: `texts`), D model width, T time rows (1, or F if every latent frame has its own
timestep). Inside the blocks, a reference image adds a frame before the video, context streams (Bernini-R) add tokens
after it.
Module names equal the official ones, so state dicts and LoRA keys need no translation. Source of the maths:
Wan2.1 / Wan2.2 model.py, VACE, VideoX-Fun; golden vectors in tests/fixtures, live comparison with ComfyUI's and
diffusers' classes in tests/wan_core/model/test_parity.py.

Autocast is off: every cast is explicit, so that recomputation uses the dtypes of the forward pass.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import lru_cache
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

from ..accelerator import has_float64
from ..errors import ConfigError
from ..kernels import Span, attention_kernel, cast_linear, preview_kernel, rope_of, without_autocast
from .attention import WanAttention, WanCrossAttention, WanSelfAttention
from .block import PATCH, Constants, Recompute, VaceBlock, WanBlock, WanHead
from .checkpointing import Checkpointing
from .compiled import compile_stages
from .conditioning import WHOLE_CONTEXT, Conditioning, check_conditioning
from .driven import driven_spans, driven_tokens, refuse_driven
from .embed import CameraAdapter, ImageEmbedding, embed_frame, embed_patches
from .face import FaceEncoder, MotionEncoder
from .humo import AudioProjection, with_references
from .keeping import Policy
from .offload import NoOffload, Offload
from .parts import Part
from .routing import Passage
from .s2v import (
    SoundEncoder,
    frame_packer,
    sound_rows,
    sound_spans,
    sound_timesteps,
    sound_tokens,
    tokens_behind,
)
from .scopes import scope
from .shape import Numerics, WanShape
from .stages import CHUNK_TOKENS
from .texts import lengthened, with_last_twice
from .walk import Carrier, StayHere, Walk


class Team(Protocol):
    """Copies of a model on several devices that split the tokens of a training pass: in this process
    (`parallel.SplitTokens`), or one in each rank (`parallel.RankTokens`).

    Passes without gradients run on the first model alone, except inside `watching`.
    """

    @property
    def copies(self) -> Sequence[WanTransformer]:
        """The copies in this process besides the first model."""
        ...

    @property
    def watches(self) -> bool:
        """Whether passes without gradients are split now."""
        ...

    def watching(self) -> AbstractContextManager[None]:
        """Inside, passes without gradients are split too, with the first model's current adapters."""
        ...

    def patches(
        self, latent: Tensor, timestep: Tensor, text: Tensor, given: Conditioning, passages: Sequence[Passage]
    ) -> Tensor:
        """Runs `WanTransformer.patches` on all copies; returns the result for all tokens, on the first device."""
        ...

    def sum_gradients(self) -> None:
        """Adds the gradients of all copies to the first model's; call it once per step.

        With ranks it scales this rank's gradients, so that the mean over ranks, taken later, is their sum.
        """
        ...

    def forget_gradients(self) -> None:
        """Sets the gradients of the copies to None; call it after each step."""
        ...


class WanTransformer(nn.Module):
    """The denoiser. Build it on `torch.device("meta")` and fill it with `load.materialize`."""

    def __init__(self, shape: WanShape, numerics: Numerics | None = None) -> None:
        super().__init__()
        self.shape, self.numerics = shape, numerics or Numerics()
        self.carrier: Carrier = StayHere()
        self.team: Team | None = None
        """the copies that split this model's tokens with it; None: no splitting"""
        self.offload: Offload = NoOffload()
        self.checkpoint_blocks = False
        """whether blocks use gradient checkpointing"""
        self.checkpoint_policy = Policy()
        """activations that a checkpointed block keeps besides its input"""
        self.unchecked_blocks = 0
        """number of last blocks without gradient checkpointing; their weights must not be offloaded"""
        self.checkpoint_keeps_rng = False
        """whether checkpointing restores random states; only LoRA dropout needs it"""
        self.skipped_blocks: frozenset[int] = frozenset()
        """numbers of blocks that do not run (skip-layer guidance, `without_blocks`)"""
        self.text_rows = 0
        """number of text rows in attention (`read_texts`); 0: as given"""
        self.rows_differ = False
        """whether the blocks treat equal text rows differently (LoRA dropout)"""
        dim = shape.dim
        self.patch_embedding = self._patches_of(shape.in_channels)
        self.text_embedding = nn.Sequential(
            nn.Linear(shape.text_dim, dim), nn.GELU(approximate="tanh"), nn.Linear(dim, dim)
        )
        self.time_embedding = nn.Sequential(nn.Linear(shape.freq_dim, dim), nn.SiLU(), nn.Linear(dim, dim))
        self.time_projection = nn.Sequential(nn.SiLU(), nn.Linear(dim, 6 * dim))
        self.blocks = nn.ModuleList(WanBlock(shape, self.numerics, number) for number in range(shape.num_layers))
        self.head = WanHead(shape, self.numerics)
        self._add_extras(shape)

    def _patches_of(self, channels: int) -> nn.Conv3d:
        return nn.Conv3d(channels, self.shape.dim, kernel_size=PATCH, stride=PATCH)

    def _add_extras(self, shape: WanShape) -> None:
        """Adds the modules that only some variants have."""
        if shape.image_dim:
            self.img_emb = ImageEmbedding(shape, self.numerics)
        if shape.vace_layers:
            self.vace_patch_embedding = self._patches_of(shape.vace_channels)
            self.vace_blocks = nn.ModuleList(
                VaceBlock(shape, self.numerics, first=number == 0) for number in range(len(shape.vace_layers))
            )
        if shape.reference_channels:
            self.ref_conv = nn.Conv2d(shape.reference_channels, shape.dim, kernel_size=PATCH[1:], stride=PATCH[1:])
        if shape.camera_channels:
            self.control_adapter = CameraAdapter(shape, self.numerics)
        if shape.pose_stream_channels:
            self.patch_embedding_pose = self._patches_of(shape.pose_stream_channels)
        if shape.identity_channels:
            self.patch_embedding_mask = self._patches_of(shape.identity_channels)
        if shape.pose_channels:
            self.pose_patch_embedding = self._patches_of(shape.pose_channels)
        if shape.face_layers:
            self.motion_encoder, self.face_encoder = MotionEncoder(), FaceEncoder(shape, self.numerics)
        if shape.whisper_channels:
            self.audio_proj = AudioProjection(shape)
        if shape.sound_channels:
            self.casual_audio_encoder = SoundEncoder(shape, self.numerics)
            self.cond_encoder = self._patches_of(shape.out_channels)
            self.frame_packer = frame_packer(shape.dim, shape.out_channels)
            self.trainable_cond_mask = nn.Embedding(3, shape.dim)

    def use_attention(self, name: str, long: str = "sdpa") -> None:
        """Sets the kernel of every attention (`kernels.ATTENTIONS`); `long`: the kernel that auto uses for long
        sequences."""
        kernel = attention_kernel(name, long)
        for module in self._attentions():
            module.kernel = kernel

    @contextmanager
    def previewing_with(self, name: str) -> Iterator[None]:
        """Inside, every attention uses the kernel `name` (`kernels.PREVIEW_ATTENTIONS`), which may lack a backward
        pass."""
        kernel, own = preview_kernel(name), {module: module.kernel for module in self._attentions()}
        for module in own:
            module.kernel = kernel or module.kernel
        try:
            yield
        finally:
            for module, before in own.items():
                module.kernel = before

    def _attentions(self) -> list[WanAttention]:
        return [module for module in self.modules() if isinstance(module, WanAttention)]

    @property
    def chunk_tokens(self) -> int:
        """Largest number of tokens in a chunk of stage 2; 0: one chunk."""
        return next((one.chunk_tokens for one in self.modules() if isinstance(one, WanBlock)), CHUNK_TOKENS)

    def run_in_chunks(self, tokens: int) -> None:
        """Sets `chunk_tokens` of all blocks."""
        for module in self.modules():
            if isinstance(module, WanBlock | VaceBlock):
                module.chunk_tokens = tokens

    def read_texts(self, rows: int, *, rows_differ: bool = False) -> None:
        """Makes the model repeat the last row of a text until the text has `rows` rows (`texts`).

        The repetition happens before attention; with `rows_differ` before the blocks, because LoRA dropout draws a
        mask for each row.
        """
        self.text_rows, self.rows_differ = rows, rows_differ
        for module in self.modules():
            if isinstance(module, WanCrossAttention):
                module.text_rows = rows

    def compile_blocks(self, backend: str = "inductor") -> None:
        """Applies torch.compile to the stages of all blocks; call `check_compile` before."""
        layers = (*self.blocks, *(self.vace_blocks if self.shape.vace_layers else ()))
        # If copies or ranks exchange tokens, each exchange would break stage 1's graph.
        exchanges = any(isinstance(one, WanSelfAttention) and one.seat is not None for one in self._attentions())
        compile_stages(layers, ("treat",) if exchanges else ("attend", "treat"), backend)

    @contextmanager
    def without_blocks(self, skipped: Collection[int]) -> Iterator[None]:
        """Inside, the blocks with these numbers do not run."""
        before, self.skipped_blocks = self.skipped_blocks, frozenset(skipped)
        try:
            yield
        finally:
            self.skipped_blocks = before

    def forward(
        self,
        latent: Tensor,
        timestep: Tensor,
        text: Tensor,
        conditioning: Conditioning | None = None,
        passages: Sequence[Passage] = (),
    ) -> Tensor:
        """Predicts the velocity, (B, C_out, F, H, W) float32, or float64 from a float64 head.

        latent (B, C_out, F, H, W): any float dtype, H and W even.
        timestep (B,) or (B, F): 0 to 1000, fractions allowed.
        text (B, L, text_dim): 512 rows, zeros after the prompt; after `read_texts` fewer rows are allowed.
        conditioning: as the variant needs it; a missing or superfluous tensor is a ConfigError.
        passages: of `draw_passages`, in layer order; a reference image counts as a latent frame there.
        Ambient autocast is switched off inside.
        """
        given = conditioning or Conditioning()
        check_conditioning(self.shape, latent, timestep, text, given)
        if self.team is not None and (torch.is_grad_enabled() or self.team.watches):
            patches = self.team.patches(latent, timestep, text, given, passages)
        else:
            patches = self.patches(latent, timestep, text, given, passages)
        return self.carrier.to_start(self.unpatchify(patches, grid_of(latent)))

    def patches(
        self,
        latent: Tensor,
        timestep: Tensor,
        text: Tensor,
        given: Conditioning,
        passages: Sequence[Passage] = (),
        part: Part | None = None,
    ) -> Tensor:
        """Does the same as `forward` up to the head; returns the video's tokens (B, N, 4 * C_out).

        `part`: the tokens of this copy, with their passages, if copies split the tokens; None: all tokens.
        """

        def run() -> Tensor:
            walk = self.walk(latent, timestep, text, given, passages, carrier=self.carrier, part=part)
            walk.go_on()
            return walk.patches()

        return without_autocast(latent.device.type, run)

    def walk(
        self,
        latent: Tensor,
        timestep: Tensor,
        text: Tensor,
        conditioning: Conditioning | None = None,
        passages: Sequence[Passage] = (),
        *,
        carrier: Carrier,
        part: Part | None = None,
    ) -> Walk:
        """Embeds the inputs of `forward`; returns the pass before its first block. The caller switches autocast off."""
        given = conditioning or Conditioning()
        check_conditioning(self.shape, latent, timestep, text, given)
        grid = grid_of(latent)
        if part is not None or passages:
            refuse_driven(self.shape, "Routing or splitting tokens", "Turn it off")
            if given.context:
                raise ConfigError(WHOLE_CONTEXT)
        with scope("embed"):
            tokens, control, time, constants = self._embedded(latent, timestep, text, given, part)
        return Walk(
            self,
            carrier,
            grid,
            tokens,
            time,
            constants,
            reference_tokens=_in_front(self.shape, given, tokens.shape[1], grid),
            context_tokens=tokens_behind(grid, given) if self.shape.sound_channels else _behind(given),
            control=control,
            hint_strength=given.vace_strength,
            passages=passages if part is None else part.passages,
        )

    def _embedded(
        self, latent: Tensor, timestep: Tensor, text: Tensor, given: Conditioning, part: Part | None
    ) -> tuple[Tensor, Tensor | None, Tensor, Constants]:
        """Returns the tokens of `part` (B, n, D), VACE's control tokens (B, n, D) or None, the head's time embedding
        (B, T, D), and the constants.
        """
        frames, height, width = grid_of(latent)
        tokens = self._embed_video(latent, given)
        if given.reference is not None and self.shape.reference_channels:
            reference = embed_frame(self.ref_conv, given.reference, self.numerics.compute)
            tokens = torch.cat([reference.to(tokens.dtype), tokens], dim=1)
            # The reference is frame 0, with the timestep of the last frame (VideoX-Fun).
            frames += 1
            timestep = timestep if timestep.ndim == 1 else torch.cat([timestep[:, -1:], timestep], dim=1)
        elif given.references is not None and given.whisper is not None:
            frames += given.references.shape[2]  # they are the last frames (HuMo)
        streams = (Span(grid_of(stream), id=number) for number, stream in enumerate(given.context, 1))
        spans = (Span((frames, height, width)), *streams)
        if given.references is not None and given.pose_stream is not None:
            spans = driven_spans(grid_of(latent), given.references.shape[2], replaces=given.replaces)
        own_rows = None
        if self.shape.sound_channels:
            spans = sound_spans(grid_of(latent), given)
            timestep, own_rows = sound_timesteps(timestep, frames, given)
        tokens = tokens if part is None else part.of(tokens)
        tokens = tokens.to(self.numerics.residual).contiguous()
        time, time_rows = self._embed_time(timestep)
        head_dim, rope = self.shape.dim // self.shape.num_heads, self.numerics.rope
        cos, sin = rope_of(spans, head_dim, dtype=rope, device=tokens.device, built_in=self.numerics.rope_table)
        if part is not None:
            cos, sin = part.of(cos, 0), part.of(sin, 0)
        image = None
        if self.shape.image_dim and given.image_tokens is not None:
            image = self.img_emb(given.image_tokens)
        of_frames = self._embed_frames(given, own_rows or frames)
        constants = Constants(time_rows, self._embed_text(text), cos, sin, image, of_frames)
        control = None
        if given.vace is not None:
            hints = embed_patches(self.vace_patch_embedding, given.vace, self.numerics.compute).flatten(2).mT
            control = (hints if part is None else part.of(hints)).to(self.numerics.residual)
        return tokens, control, time[:, :own_rows], constants

    def recompute_of(self, stream: str, number: int) -> Recompute:
        """Returns the gradient checkpointing and offloading of block `number` of `stream`."""
        unchecked = stream == "blocks" and number >= self.shape.num_layers - self.unchecked_blocks
        return Checkpointing(
            f"{stream}.{number}",
            recomputes=self.checkpoint_blocks and not unchecked,
            offload=self.offload,
            policy=self.checkpoint_policy,
            keeps_rng=self.checkpoint_keeps_rng,
        )

    def _embed_video(self, latent: Tensor, given: Conditioning) -> Tensor:
        """Returns the tokens of video and context streams, `driven_tokens` or `sound_tokens`: (B, N, D) in the compute
        dtype."""
        if self.shape.sound_channels:
            return sound_tokens(self, latent, given)
        if given.pose_stream is not None:
            return driven_tokens(self, latent, given)
        video = latent if given.channels is None else torch.cat([latent, given.channels.to(latent.dtype)], dim=1)
        if given.references is not None:
            video = with_references(latent, given.references.to(latent.dtype), self.shape.in_channels)
        patches = embed_patches(self.patch_embedding, video, self.numerics.compute)
        if given.camera is not None:
            patches = patches + self.control_adapter(given.camera)
        if given.pose is not None:  # the first frame, the reference image, has no pose
            pose = embed_patches(self.pose_patch_embedding, given.pose, self.numerics.compute)
            patches = patches + functional.pad(pose, (0, 0, 0, 0, 1, 0))
        tokens = patches.flatten(2).transpose(1, 2)
        if not given.context:
            return tokens
        layer, dtype = self.patch_embedding, self.numerics.compute
        streams = (embed_patches(layer, stream, dtype).flatten(2).transpose(1, 2) for stream in given.context)
        return torch.cat([tokens, *streams], dim=1)

    def _embed_frames(self, given: Conditioning, frames: int) -> Tensor | None:
        """Returns the tokens of the face or the sound of `frames` latent frames, (B, F, K, width), compute dtype."""
        if given.whisper is not None:
            return self.audio_proj(given.whisper, frames - given.whisper.shape[1], self.numerics.compute)
        if given.sound is not None:
            return sound_rows(self.casual_audio_encoder(given.sound), frames)
        if given.face is None:
            return None
        pictures, dtype = given.face.transpose(1, 2), self.numerics.compute
        motion = self.motion_encoder(pictures.flatten(0, 1), dtype).unflatten(0, pictures.shape[:2])
        return self.face_encoder(motion, frames)

    def _embed_time(self, timestep: Tensor) -> tuple[Tensor, Tensor]:
        """Returns time (B, T, D) and time_rows (B, T, 6, D); the sinusoid is float64 (Wan: sinusoidal_embedding_1d).

        For a device without float64 the CPU computes the sinusoid; the host waits for the copy of the timestep.
        """
        per_row = timestep.unsqueeze(1) if timestep.ndim == 1 else timestep
        half = self.shape.freq_dim // 2
        where = timestep.device if has_float64(timestep.device) else torch.device("cpu")
        powers = torch.arange(half, dtype=torch.float64, device=where) / half
        angles = per_row.to(where).double().unsqueeze(-1) * 10000.0**-powers
        wave = torch.cat([angles.cos(), angles.sin()], dim=-1).to(self.numerics.time).to(timestep.device)
        first, last = self.time_embedding[0], self.time_embedding[2]
        time = cast_linear(last, functional.silu(cast_linear(first, wave, self.numerics.time)), self.numerics.time)
        rows = cast_linear(self.time_projection[1], functional.silu(time), self.numerics.time)
        return time, rows.unflatten(-1, (6, -1)).to(self.numerics.modulation)

    def _embed_text(self, text: Tensor) -> Tensor:
        first, gelu, last = self.text_embedding
        dtype = self.numerics.compute
        rows = cast_linear(last, gelu(cast_linear(first, text, dtype)), dtype)
        return (lengthened if self.rows_differ else with_last_twice)(rows, self.text_rows)

    def unpatchify(self, patches: Tensor, grid: tuple[int, int, int]) -> Tensor:
        """Tokens (B, N, 4 * C), channel fastest -> latent (B, C, F, H, W) in float32, or float64 from float64."""
        wide = patches.to(torch.promote_types(patches.dtype, torch.float32))
        rows = wide.view(patches.shape[0], *grid, *PATCH, self.shape.out_channels)
        frames, height, width = (n * p for n, p in zip(grid, PATCH, strict=True))
        return rows.permute(0, 7, 1, 4, 2, 5, 3, 6).reshape(-1, self.shape.out_channels, frames, height, width)


def models_of(model: nn.Module) -> tuple[nn.Module, ...]:
    """Returns the model and its team's copies."""
    return (model, *model.team.copies) if isinstance(model, WanTransformer) and model.team is not None else (model,)


def shared_out(model: WanTransformer) -> AbstractContextManager[None]:
    """Inside, the team of `model`, if it has one, splits the tokens of passes without gradients too."""
    return nullcontext() if model.team is None else model.team.watching()


def _in_front(shape: WanShape, given: Conditioning, tokens: int, grid: tuple[int, int, int]) -> int:
    """Returns the number of reference tokens before the video's; `tokens`: of all; `grid`: of the video."""
    if given.references is not None and given.pose_stream is not None:
        return given.references.shape[2] * grid[1] * grid[2]
    return 0 if given.reference is None or shape.sound_channels else tokens // (1 + grid[0])


def _behind(given: Conditioning) -> int:
    """Returns the number of tokens after the video's."""
    last = given.pose_stream if given.whisper is None else given.references
    streams = given.context if last is None else (last,)
    return sum(math.prod(grid_of(stream)) for stream in streams)


def grid_of(latent: Tensor) -> tuple[int, int, int]:
    """Latent (B, C, F, H, W) -> frames, rows and columns of its tokens."""
    return latent.shape[2], latent.shape[3] // PATCH[1], latent.shape[4] // PATCH[2]


@lru_cache(maxsize=8)
def model_without_values(shape: WanShape, numerics: Numerics | None = None) -> WanTransformer:
    """Returns the model on the meta device. The result is cached: do not modify it."""
    with torch.inference_mode(False), torch.device("meta"):
        return WanTransformer(shape, numerics)
