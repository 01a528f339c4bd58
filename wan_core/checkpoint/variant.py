"""Detects the Wan variant of a file: family and sizes from keys and shapes, the rest from metadata and file name.

The two experts of a Wan 2.2 A14B model are a pair; two files that are not a pair are refused.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from ..errors import CheckpointError
from ..families import FAMILIES, SIZES, Family, Model, Pair, Template
from ..model import (
    LATENT_SPACES,
    WAN21_LATENTS,
    WHISPER_WINDOW,
    ConditionKind,
    LatentSpace,
    WanShape,
    block_of,
    condition_kind,
    sizes_behind,
)
from .catalogue import HIGH, LOW, expert_said, file_words, guess, look_alikes, names_of
from .foreign_files import recognise, refuse_quantizers
from .header import CheckpointHeader, TensorInfo, damaged
from .keys import MARK_OF_SCALES, canonical_names, models_under
from .locate import locate_weights
from .stated import stated_model

_WIDTHS = ("text_embedding.0.weight", "time_embedding.0.weight", "img_emb.proj.1.weight")
_OF_BYTES = ("U8", "I8")


@dataclass(frozen=True, kw_only=True)
class WanVariant:
    """The Wan model in a file: its family, sizes and published name."""

    name: str
    family: Family
    shape: WanShape
    latents: LatentSpace
    boundary: float | None = None
    """sigma between the experts; None without a pair"""
    expert: str | None = None
    """high_noise or low_noise; None for single models, or if the file name states no expert"""
    candidates: tuple[str, ...] = ()
    """other variants with the same keys and shapes"""

    @property
    def conditioning(self) -> ConditionKind:
        """The condition that every cached clip must contain."""
        kind = condition_kind(self.family.conditioning, self.shape)
        return replace(kind, fits=(*kind.fits, "context")) if self.family.context else kind

    @property
    def fps(self) -> float:
        return self.family.fps or self.latents.fps

    def latent_frames(self, num_frames: int) -> int:
        """Returns the number of latent frames of a clip of `num_frames`, with the latent frame of a reference image."""
        return self.latents.latent_frames(num_frames) + self.conditioning.leading_frames

    def num_frames(self, latent_frames: int) -> int:
        """Returns the number of frames of a clip; the inverse of `latent_frames`."""
        return (latent_frames - 1 - self.conditioning.leading_frames) * self.latents.temporal_stride + 1

    def behind(self, latent: tuple[int, int, int]) -> tuple[tuple[int, int, int], ...]:
        """Returns the sizes of the tokens behind a clip (F, h, w) that is not known yet: S2V's reference image."""
        return sizes_behind(latent, ("reference",)) if self.shape.sound_channels else ()

    @property
    def size_multiple(self) -> int:
        """The number of pixels by which both sides of a clip are divisible."""
        return self.latents.size_multiple * (1 + self.conditioning.halves)

    @property
    def is_full_size(self) -> bool:
        """Whether the model has the width of a released model; tests use smaller models."""
        return self.shape.dim in SIZES

    @property
    def training_shift(self) -> float:
        """The training shift for discrete_flow_shift 0; that of experts is the sampling shift."""
        return self._pair.shift if self._pair else self.latents.shift

    @property
    def pair_boundary(self) -> float | None:
        """The sigma between the experts; set for any file whose shapes fit an expert."""
        pair = self.family.pair if any(name.endswith(" noise") for name in self.candidates) else None
        return pair.boundary if pair else self.boundary

    @property
    def template(self) -> Template:
        """The sampling settings of ComfyUI's template for this model."""
        return self._pair.template if self._pair else self.family.template

    @property
    def _pair(self) -> Pair | None:
        return self.family.pair if self.boundary is not None else None

    def sigma_range(self) -> tuple[float, float]:
        """Returns the sigmas this model is trained and sampled on."""
        if self.boundary is None or self.expert is None:
            return (0.0, 1.0)
        return (self.boundary, 1.0) if self.expert == HIGH else (0.0, self.boundary)


def detect_variant(header: CheckpointHeader, *, override: str = "auto") -> WanVariant:
    """Returns the variant of a file. The file name or `override` decides between variants of equal keys and shapes.

    Raises CheckpointError for other files, which says what the file is.
    """
    names = canonical_names(header.tensors)
    _refuse_two_models(header, names)
    tensors = {name: header.tensors[key] for key, name in names.items()}
    file_name = header.path.name
    if "head.modulation" not in tensors or "patch_embedding.weight" not in tensors:
        what, advice = recognise([*tensors, *header.tensors])
        raise CheckpointError(
            "{file_name} is {what}, not a Wan diffusion model. {advice}", file_name=file_name, what=what, advice=advice
        )
    shape = _shape_of({**tensors, **_unpacked(header, tensors)}, file_name)
    clip = "img_emb.proj.0.bias" in tensors or "blocks.0.cross_attn.k_img.weight" in tensors
    said = stated_model(header.metadata)
    family = next((f for f in FAMILIES if f.stated_name and f.task == said), None)
    family = family or _family_of(tensors, shape, file_name, clip=clip)
    size = SIZES.get(shape.dim, f"{shape.dim} wide")
    name = family.stated_name or f"{family.versions[0 if clip else 1]} {family.task.upper()}-{size}"
    found = WanVariant(name=name, family=family, shape=shape, latents=_space_of(shape.out_channels))
    wanted = (shape.dim, shape.in_channels, clip, shape.reference_channels > 0)
    same = look_alikes(family, wanted)
    found = _one_of(found, same, header.path, override) if same else _unpublished(found, header.path, clip)
    if override not in ("auto", found.name):
        raise _refused(file_name, override, (found.name,))
    return found


def _refuse_two_models(header: CheckpointHeader, names: Mapping[str, str]) -> None:
    file_name = header.path.name
    under = models_under(header.tensors)
    if len(under) > 1:
        raise CheckpointError(
            f'{file_name} holds a Wan model under "{under[0]}" and another under "{under[1]}". '
            "Choose a file with one model in it."
        )
    first: dict[str, str] = {}
    for key, name in names.items():
        if first.setdefault(name, key) != key and name != MARK_OF_SCALES:
            raise CheckpointError(
                f'{file_name} has two tensors for {name[:80]}: "{first[name][:80]}" and "{key[:80]}". '
                "Choose a file with one model in it."
            )


def _one_of(found: WanVariant, same: tuple[Model, ...], path: Path, override: str) -> WanVariant:
    """Returns `found` with name, expert and boundary of one of the models `same`, which all have the keys and shapes of
    the file."""
    choices = {name: (model, expert) for model in same for name, expert in names_of(model).items()}
    expert = expert_said(path)
    model = guess(same, file_words(path), expert)
    if override != "auto":
        if override not in choices:
            raise _refused(path.name, override, choices)
        model, expert = choices[override]
    pair = found.family.pair if model.pair else None
    expert = expert if pair else None
    name = next((n for n, chosen in choices.items() if chosen == (model, expert)), model.name)
    others = tuple(n for n in choices if n != name)
    return replace(found, name=name, boundary=pair and pair.boundary, expert=expert, candidates=others)


def _unpublished(found: WanVariant, path: Path, clip: bool) -> WanVariant:
    """Returns `found`, of an unpublished size. A tiny demo model is an expert if its file name states that."""
    expert, pair = expert_said(path), found.family.pair
    if expert is None or clip or found.is_full_size or pair is None:
        return found
    name = f"{found.name.replace('2.1', '2.2')} {expert.replace('_', ' ')}"
    return replace(found, name=name, boundary=pair.boundary, expert=expert)


def _unpacked(header: CheckpointHeader, tensors: Mapping[str, TensorInfo]) -> dict[str, TensorInfo]:
    """Returns the quantized tensors that state a model size, with their dequantized shape."""
    packed = [name for name in _WIDTHS if name in tensors and tensors[name].dtype in _OF_BYTES]
    if not packed:
        return {}
    try:
        stored = locate_weights(header).weights
    except CheckpointError:  # the caller that loads the weights raises the error again, with the variant
        return {}
    return {name: replace(tensors[name], shape=stored[name].shape) for name in packed}


def _refused(file_name: str, override: str, known: Iterable[str]) -> CheckpointError:
    return CheckpointError(
        f'{file_name} cannot be "{override}": its shapes are those of {" or ".join(known)}. Set variant to auto.'
    )


def _shape_of(tensors: Mapping[str, TensorInfo], file_name: str) -> WanShape:
    def side(name: str, ndim: int, index: int) -> int:
        sizes = tensors[name].shape
        if len(sizes) != ndim or 0 in sizes:
            raise damaged(file_name)
        return sizes[index]

    def part(name: str, ndim: int, index: int) -> int:
        """Returns a size from a tensor's shape; 0 if the file lacks the tensor."""
        return side(name, ndim, index) if name in tensors else 0

    try:
        dim = side("head.modulation", 3, 2)
        out_channels = side("head.head.weight", 2, 0) // 4
        layers = _count_blocks(tensors, "blocks", file_name)
        stride = _space_of(out_channels).spatial_stride
        return WanShape(
            dim=dim,
            ffn_dim=side("blocks.0.ffn.0.weight", 2, 0),
            num_heads=max(dim // 128, 1),
            num_layers=layers,
            in_channels=side("patch_embedding.weight", 5, 1),
            out_channels=out_channels,
            text_dim=side("text_embedding.0.weight", 2, 1),
            freq_dim=side("time_embedding.0.weight", 2, 1),
            image_dim=part("img_emb.proj.1.weight", 2, 1),
            image_positions=part("img_emb.emb_pos", 3, 1),
            vace_layers=_vace_layers(layers, _count_blocks(tensors, "vace_blocks", file_name)),
            vace_channels=part("vace_patch_embedding.weight", 5, 1) or 96,
            reference_channels=part("ref_conv.weight", 4, 1),
            camera_channels=part("control_adapter.conv.weight", 4, 1) // stride**2,
            camera_stride=stride,
            pose_stream_channels=part("patch_embedding_pose.weight", 5, 1),
            identity_channels=part("patch_embedding_mask.weight", 5, 1),
            pose_channels=part("pose_patch_embedding.weight", 5, 1),
            whisper_channels=part("audio_proj.audio_proj_glob_1.layer.weight", 2, 1) // math.prod(WHISPER_WINDOW),
            audio_width=part("audio_proj.audio_proj_glob_norm.layer.weight", 1, 0),
            face_layers=_layers_with(tensors, "face"),
            sound_channels=part("casual_audio_encoder.encoder.conv1_local.conv.weight", 3, 1),
            sound_depth=part("casual_audio_encoder.weights", 4, 1),
            sound_layers=_layers_with(tensors, "sound"),
        )
    except KeyError as error:
        refuse_quantizers(file_name, tensors)
        raise CheckpointError(f"{file_name} lacks the weight {error.args[0]}. Download it again.") from error


def _vace_layers(layers: int, hints: int) -> tuple[int, ...]:
    """Returns the blocks that receive VACE hints, evenly spaced from the first: 1.3B every second, 14B every fifth."""
    return tuple(range(0, layers, layers // hints))[:hints] if 0 < hints <= layers else ()


def _count_blocks(tensors: Mapping[str, TensorInfo], part: str, file_name: str) -> int:
    numbers = {found.number for name in tensors if (found := block_of(name)) and found.stream == part and found.inside}
    if numbers != set(range(len(numbers))):
        raise CheckpointError(f"{file_name} lacks transformer blocks ({len(numbers)} found). Download it again.")
    return len(numbers)


def _layers_with(tensors: Mapping[str, TensorInfo], part: str) -> tuple[int, ...]:
    """Returns the numbers of the main blocks that have the module `part`."""
    inside = (place for place in map(block_of, tensors) if place and place.stream == "blocks")
    return tuple(sorted({place.number for place in inside if place.inside.startswith(f"{part}.")}))


def _space_of(channels: int) -> LatentSpace:
    return next((space for space in LATENT_SPACES if space.channels == channels), WAN21_LATENTS)


def _family_of(tensors: Mapping[str, TensorInfo], shape: WanShape, file_name: str, *, clip: bool) -> Family:
    """Returns the family, by tensors that are unique to a family, else by the condition channels of the patch
    embedding."""
    for family in reversed(FAMILIES):
        if any(name.startswith(family.marks) for name in tensors):
            return family
    space = _space_of(shape.out_channels).name
    plain = [f for f in FAMILIES if not (f.marks or f.stated_name) and f.latents in ("", space)]
    for family in plain:
        kind = condition_kind(family.conditioning, shape)
        if kind.channels_of(shape.out_channels) == shape.condition_channels and (kind.tensors or not clip):
            return family
    if other := next((family for family in plain if family.any_channels), None):
        return other
    raise CheckpointError(
        f"{file_name} is a Wan model that reads {shape.condition_channels} channels besides the latent, which no "
        "supported model does. Choose a Wan 2.1 or 2.2 diffusion model."
    )


def pair_names(high: WanVariant, low: WanVariant, high_file: str, low_file: str) -> tuple[str, str]:
    """Returns the variant names of both files; CheckpointError if they are swapped or not a pair."""
    given = {"high_file": high_file, "high": high.name, "low_file": low_file, "low": low.name}
    if high.family != low.family or high.shape != low.shape or (high.expert and low.expert and _kin(high) != _kin(low)):
        raise CheckpointError(
            "{high_file} is {high}, {low_file} is {low}: not the two experts of one model. Choose both "
            "files of one A14B model, or set low_noise_model to none.",
            **given,
        )
    if high.expert == LOW or low.expert == HIGH:
        wrong = "Both files are the same expert" if high.expert == low.expert else "The two files are swapped"
        raise CheckpointError(
            "{wrong}: diffusion_model {high_file} is {high}, low_noise_model {low_file} is {low}. Choose "
            "the high-noise file as diffusion_model and the low-noise file as low_noise_model.",
            **{"wrong": wrong, **given},
        )
    return _as_expert(high, HIGH, high_file), _as_expert(low, LOW, low_file)


def _kin(variant: WanVariant) -> str:
    return variant.name.replace(" high noise", "").replace(" low noise", "")


def _as_expert(variant: WanVariant, expert: str, file_name: str) -> str:
    """Returns the variant name of `expert`, from the name and candidates of `variant`."""
    ending = expert.replace("_", " ")
    names = [name for name in (variant.name, *variant.candidates) if name.endswith(ending)]
    own = [name for name in names if name.startswith(variant.name)]
    if not names:
        raise CheckpointError(
            f"{file_name} is {variant.name}, which is not one expert of a pair. Set low_noise_model to none; the "
            f"file name of a tiny test model must contain {expert}."
        )
    return (own or names)[0]
