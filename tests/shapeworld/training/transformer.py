"""Train a tiny Wan transformer on the latents of the small world, with wan_core's own model and flow maths.

Text is the official 512 rows, of which all but some six are zero. Rows that are equal have equal keys and values, so
their softmax is that of one row with the logarithm of their number added: `CompactCrossAttention` attends to seven
rows instead of 512 and gives the same result to rounding, at a tenth of the cost.
"""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from wan_core.flow import add_noise, draw_sigma, shift_sigma, simple_sigmas, velocity_loss, velocity_target
from wan_core.model import TEXT_LENGTH, Conditioning, WanShape
from wan_core.model.attention import WanCrossAttention
from wan_core.model.transformer import WanTransformer

HEAD_DIM = 128
IMAGE_CHANNELS = 20
"""4 of the mask, 16 of the encoded first frame (Wan 2.2 I2V: 36 input channels)"""


class CompactCrossAttention(WanCrossAttention):
    """Cross-attention with a weight per text row; `bias` (B, 1, 1, L) is set before each forward pass."""

    bias: Tensor

    def forward(self, x: Tensor, context: tuple[Tensor, ...]) -> Tensor:
        query = self._heads(self.norm_q(self.q(x), self.numerics.qk_norm))
        query, key, value = (rows.transpose(1, 2) for rows in (query, *context))
        attended = functional.scaled_dot_product_attention(query, key, value, attn_mask=self.bias.to(query.dtype))
        return self.o(attended.transpose(1, 2).flatten(2))


@dataclass(frozen=True)
class CompactText:
    """Texts with their padding folded into the last rows."""

    rows: Tensor
    """(B, L, 4096)"""
    bias: Tensor
    """(B, 1, 1, L): 0, and for a zero row the logarithm of how many of the 512 it stands for"""

    def __getitem__(self, chosen: Tensor) -> CompactText:
        return CompactText(self.rows[chosen], self.bias[chosen])


def compact_texts(texts: Iterable[Tensor]) -> CompactText:
    """`texts`: encoder outputs without padding, each (n, 4096)."""
    texts = list(texts)
    length = max(len(text) for text in texts) + 1
    rows = torch.zeros(len(texts), length, texts[0].shape[1])
    bias = torch.zeros(len(texts), 1, 1, length)
    for index, text in enumerate(texts):
        rows[index, : len(text)] = text
        bias[index, ..., len(text) :] = math.log((TEXT_LENGTH - len(text)) / (length - len(text)))
    return CompactText(rows, bias)


def full_text(text: Tensor) -> Tensor:
    """(n, 4096) -> (512, 4096)"""
    return functional.pad(text, (0, 0, 0, TEXT_LENGTH - len(text)))


def new_transformer(job: TransformerJob) -> WanTransformer:
    """A Wan text-to-video transformer before training: open gates, no effect of time, output zero."""
    layers = job.layers
    shape = WanShape(dim=job.width, ffn_dim=job.ffn_dim, num_heads=job.width // HEAD_DIM, num_layers=layers)
    model = WanTransformer(shape)
    generator = torch.Generator().manual_seed(job.seed)
    with torch.no_grad():
        for name, value in model.named_parameters():
            if name.endswith("bias") or name.startswith(("head.", "time_projection")):
                value.zero_()
            elif "norm" in name:
                value.fill_(1.0)
            elif name.endswith("modulation"):
                value.zero_()
                value[:, [2, 5]] = 1.0  # the two gates
            else:
                value.normal_(0, value[0].numel() ** -0.5, generator=generator)
                if name.endswith(("attn.o.weight", "ffn.2.weight")):
                    value.mul_(layers**-0.5 / 2)
    return model


def read_compact(model: WanTransformer) -> None:
    """Make the model take CompactText; weights and names stay as they are."""
    model.read_texts(0)  # a loaded one would repeat rows that the bias stands for
    for block in model.blocks:
        block.cross_attn.__class__ = CompactCrossAttention


def attend_compactly(model: WanTransformer) -> WanTransformer:
    """Let the model take text rows as ever, and attend to the zero ones among them only once."""
    read_compact(model)

    def fold(_model: WanTransformer, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        latent, timestep, text, *others = inputs
        lengths = (text != 0).any(-1).sum(-1).tolist()  # zero rows are at the end
        compact = compact_texts([rows[:length] for rows, length in zip(text, lengths, strict=True)])
        for block in model.blocks:
            block.cross_attn.bias = compact.bias
        return (latent, timestep, compact.rows, *others)

    model.register_forward_pre_hook(fold)
    return model


def predict(
    model: WanTransformer, latent: Tensor, sigma: Tensor, text: CompactText, channels: Tensor | None = None
) -> Tensor:
    """`channels` (B, 20, F, h, w): what an image-to-video model reads behind the latent."""
    for block in model.blocks:
        block.cross_attn.bias = text.bias
    return model(latent, 1000 * sigma, text.rows, None if channels is None else Conditioning(channels=channels))


def with_first_frame(model: WanTransformer) -> WanTransformer:
    """The image-to-video model that ignores its image: `model` with 20 more input channels of weight zero."""
    shape = replace(model.shape, in_channels=model.shape.in_channels + IMAGE_CHANNELS)
    wider = WanTransformer(shape)
    weights = model.state_dict()
    weights["patch_embedding.weight"] = functional.pad(
        weights["patch_embedding.weight"], (0, 0, 0, 0, 0, 0, 0, IMAGE_CHANNELS)
    )
    wider.load_state_dict(weights)
    return wider


@dataclass(frozen=True)
class LatentClips:
    """Encoded clips of one length."""

    latents: Tensor
    """(N, 16, F, h, w)"""
    words: Tensor
    """(N,) number of the caption"""
    channels: Tensor | None = None
    """(N, 20, F, h, w): mask and encoded first frame, for an image-to-video model"""


@dataclass(frozen=True, kw_only=True)
class TransformerJob:
    """One training."""

    width: int
    ffn_dim: int
    layers: int
    steps: int
    batch: int = 24
    lr: float = 2e-3
    warmup: int = 50
    shift: float = 3.0
    caption_dropout: float = 0.1
    wide_share: float = 0.0
    """part of a batch that shows the wide world, with the empty caption"""
    averaged_steps: int = 200
    """the weights that are kept are the mean of about so many steps"""
    sigma_range: tuple[float, float] = (0.0, 1.0)
    seed: int = 0


def optimizers_of(model: WanTransformer, lr: float) -> list[torch.optim.Optimizer]:
    """Muon for the matrices of the blocks, AdamW for everything else."""
    matrices = [value for name, value in model.named_parameters() if name.startswith("blocks") and value.ndim == 2]
    known = {id(value) for value in matrices}
    rest = [value for value in model.parameters() if id(value) not in known]
    return [
        torch.optim.Muon(matrices, lr=lr, momentum=0.95, weight_decay=0.01, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(rest, lr=lr, betas=(0.9, 0.98), weight_decay=0.0),
    ]


def train(
    model: WanTransformer,
    groups: list[LatentClips],
    texts: CompactText,
    empty: int,
    wide: LatentClips,
    job: TransformerJob,
    report: Callable[[int, float, WanTransformer], None],
) -> WanTransformer:
    """Returns the averaged model, which `report` is told at every step too.

    `groups`: one per clip length; the first is drawn five times in six. `wide`: clips that no caption describes, as
    long as those of the first group.
    """
    read_compact(model)
    averaged = copy.deepcopy(model).requires_grad_(False)
    generator = torch.Generator().manual_seed(job.seed)
    optimizers = optimizers_of(model, job.lr)
    for step in range(job.steps):
        left = 1 - step / job.steps
        rate = job.lr * min(1.0, (step + 1) / job.warmup, left / 0.6)
        group = groups[0 if len(groups) == 1 or step % 6 else 1]
        chosen = torch.randint(len(group.latents), (job.batch,), generator=generator)
        clean, said = group.latents[chosen], group.words[chosen].clone()
        channels = None if group.channels is None else group.channels[chosen]
        unnamed = int(job.batch * job.wide_share) if clean.shape[2] == wide.latents.shape[2] else 0
        if unnamed:
            others = torch.randint(len(wide.latents), (unnamed,), generator=generator)
            clean[:unnamed], said[:unnamed] = wide.latents[others], empty
            if channels is not None and wide.channels is not None:
                channels[:unnamed] = wide.channels[others]
        said[torch.rand(job.batch, generator=generator) < job.caption_dropout] = empty
        low, high = job.sigma_range
        sigma = draw_sigma(job.batch, generator, sampling="uniform", shift=job.shift, sigma_min=low, sigma_max=high)
        noise = torch.randn(clean.shape, generator=generator)
        guess = predict(model, add_noise(clean, noise, sigma), sigma, texts[said], channels)
        loss = velocity_loss(guess, velocity_target(clean, noise))
        model.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = rate
            optimizer.step()
        share = 1 / min(step + 1, job.averaged_steps)
        with torch.no_grad():
            for kept, now in zip(averaged.parameters(), model.parameters(), strict=True):
                kept.lerp_(now, share)
        report(step + 1, float(loss.detach()), averaged)
    return averaged


@torch.no_grad()
def held_out_loss(model: WanTransformer, clips: LatentClips, texts: CompactText, job: TransformerJob) -> float:
    """Mean loss on fixed noise at eight levels of the job's range; `texts` has a caption for every clip."""
    latents = clips.latents
    generator = torch.Generator().manual_seed(77)
    noise = torch.randn(latents.shape, generator=generator)
    low, high = job.sigma_range
    total = 0.0
    for level in (torch.arange(8) + 0.5) / 8:
        sigma = (low + (high - low) * shift_sigma(level, job.shift)).expand(len(latents))
        guess = predict(model, add_noise(latents, noise, sigma), sigma, texts, clips.channels)
        total += float(velocity_loss(guess, velocity_target(latents, noise)))
    return total / 8


@torch.no_grad()
def sample(
    experts: list[tuple[float, WanTransformer]],
    texts: CompactText,
    empty: CompactText,
    *,
    frames: int = 3,
    side: int = 8,
    steps: int = 20,
    cfg: float = 3.0,
    shift: float = 3.0,
    seed: int = 0,
    channels: Tensor | None = None,
) -> Tensor:
    """Euler from noise; `experts` are (from this sigma on, model), noisiest first. (B, 16, frames, side, side)"""
    count = len(texts.rows)
    latent = torch.randn(count, 16, frames, side, side, generator=torch.Generator().manual_seed(seed))
    sigmas = simple_sigmas(steps, shift)
    nothing = empty[torch.zeros(count, dtype=torch.long)]
    for here, there in itertools.pairwise(sigmas):
        model = next(model for least, model in experts if here >= least)
        level = here.expand(count)
        with_text, without = (predict(model, latent, level, text, channels) for text in (texts, nothing))
        latent = latent + (there - here) * (without + cfg * (with_text - without))
    return latent
