"""Tiny, real runs for engine tests: a random Wan file, a cache with random latents and texts, a run directory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import torch
from safetensors.torch import save

from tests.support.forked import ForkServer
from wan_core.cache import CacheItem, CacheSet, LatentCache
from wan_core.checkpoint import to_file
from wan_core.dataset.conditioning import stream_sizes
from wan_core.families import FAMILIES, Template
from wan_core.files import Roots, atomic_write_json
from wan_core.job.choose import choose_run, prepare_run
from wan_core.job.config import DataConfig, RunConfig
from wan_core.load import ModelPlan
from wan_core.lora import LoraConfig
from wan_core.model import (
    WAN21_LATENTS,
    WAN22_LATENTS,
    ConditionKind,
    WanShape,
    WanTransformer,
    condition_kind,
    condition_named,
)
from wan_core.model.conditioning import STREAMS
from wan_core.placement import PlacementConfig
from wan_core.sampler import SampleConfig
from wan_core.train import TrainConfig, expert_named

TINY = WanShape(dim=128, ffn_dim=256, num_heads=1, num_layers=2)
TINY_I2V = replace(TINY, in_channels=36)
TINY_I2V_21 = replace(TINY_I2V, image_dim=1280)
TINY_FLF2V = replace(TINY_I2V_21, image_positions=514)
TINY_CONTROL = replace(TINY, in_channels=48)
TINY_VACE = replace(TINY, vace_layers=(0,))
TINY_CAMERA = replace(TINY, in_channels=36, camera_channels=24)
TINY_ANIMATE = replace(TINY_I2V_21, num_layers=5, pose_channels=16, face_layers=(0,))
TINY_SCAIL2 = replace(TINY, in_channels=20, image_dim=1280, pose_stream_channels=20, identity_channels=28)
TINY_HUMO = replace(TINY_I2V, whisper_channels=8, audio_width=32)
TINY_S2V = replace(TINY, num_layers=5, sound_channels=1024, sound_depth=25, sound_layers=(0, 4))
TINY_TI2V = replace(TINY, in_channels=48, out_channels=48)


def random_weights(shape: WanShape = TINY, seed: int = 0) -> dict[str, torch.Tensor]:
    """Matrices N(0, 1/fan_in), modulation N(0, 0.3^2), norm weights 1 + 0.2 N, biases 0.1 N."""
    generator = torch.Generator().manual_seed(seed)
    with torch.device("meta"):
        model = WanTransformer(shape)
    weights = {}
    for name, parameter in model.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        if name.endswith("modulation"):
            weights[name] = 0.3 * noise
        elif name.endswith("bias"):
            weights[name] = 0.1 * noise
        elif parameter.ndim == 1:
            weights[name] = 1 + 0.2 * noise
        else:
            weights[name] = noise / parameter[0].numel() ** 0.5
    return weights


@lru_cache(maxsize=4)
def _file_of(shape: WanShape, seed: int = 0) -> bytes:
    """The base file that holds them; tests make the same few over and over."""
    return save({to_file(name): value for name, value in random_weights(shape, seed).items()})


FAMILY = {family.task: family for family in FAMILIES}


def kind_of(task: str, shape: WanShape) -> ConditionKind:
    """The conditioning of a model of that task and those sizes."""
    return condition_kind(FAMILY[task].conditioning, shape)


def template(task: str, *, pair: bool = False) -> Template:
    """What ComfyUI's template of a model of that task samples with."""
    return of.template if pair and (of := FAMILY[task].pair) else FAMILY[task].template


def _kind_of(shape: WanShape) -> ConditionKind:
    tasks = {36: "i2v", 48: "control" if shape.out_channels == 16 else "ti2v"}
    marks = {
        "scail2": shape.identity_channels,
        "flf2v": shape.image_positions,
        "vace": shape.vace_layers,
        "camera": shape.camera_channels,
        "animate": shape.pose_channels,
        "humo": shape.whisper_channels,
        "s2v": shape.sound_layers,
    }
    return kind_of(next((task for task, mark in marks.items() if mark), tasks.get(shape.in_channels, "t2v")), shape)


@dataclass
class TinyRun:
    """A run directory with everything it needs beside it."""

    directory: Path
    roots: Roots
    config: RunConfig
    roots_file: Path


def make_roots(
    root: Path,
    shape: WanShape = TINY,
    clips: int = 3,
    size: tuple[int, int, int] = (2, 4, 4),
    buckets: Sequence[tuple[int, int, int]] = (),
    text_rows: int = 0,
    context: Sequence[tuple[int, int, int]] = (),
    held_out: int = 0,
    also: Sequence[str] = (),
) -> tuple[Roots, str]:
    """Base file and cache below `root`; returns the roots and the fingerprint of the cache set.

    `size` is (latent frames, latent height, latent width); of several `buckets` the clips take one each, in turn.
    A text has `text_rows` rows, or a few. `context`: the sizes of the context streams of each clip. `also`: optional
    tensors of each clip. The last `held_out` clips are evaluated only.
    """
    models, cache_root = root / "models", root / "runs" / "_cache"
    models.mkdir(parents=True, exist_ok=True)
    (models / "wan_tiny_t2v.safetensors").write_bytes(_file_of(shape))
    cache = LatentCache(cache_root)
    space = WAN22_LATENTS if shape.out_channels == 48 else WAN21_LATENTS
    kind = condition_named("context") if context else _kind_of(shape)
    generator = torch.Generator().manual_seed(7)

    def key(number: int) -> str:
        return f"{number:064x}"

    items = []
    behind: tuple[tuple[int, ...], ...] = ()
    for index in range(clips):
        frames, height, width = buckets[index % len(buckets)] if buckets else size
        cache.write_latent(key(index), torch.randn(space.channels, frames, height, width, generator=generator))
        if kind.tensors:
            given = torch.Generator().manual_seed(50 + index)
            sizes: dict[str, tuple[int, ...]] = {
                "channels": (shape.condition_channels, frames + kind.leading_frames, height, width),
                "image_tokens": (257 * max(len(kind.frames), 1), 1280),
                "pose": (shape.pose_channels, frames, height, width),
                "face": (3, 4 * frames - 3, 512, 512),
                "references": (16, 1, height, width),
                "pose_stream": (16, frames, height // 2, width // 2),
                "reference_masks": (28, 1, height, width),
                "pose_masks": (28, frames, height // 2, width // 2),
                "replaces": (1,),
                "whisper": (frames, 8, 5, shape.whisper_channels),
                "sound": (shape.sound_depth, shape.sound_channels, 4 * frames),
                "pose_video": (16, frames, height, width),
                "reference": (16, height, width),
                "frames_before": (16, 19, height, width),
                "vace": (96, frames, height, width),
                "camera": (shape.camera_channels, frames, 8 * height, 8 * width),
            }
            sizes |= {name: (space.channels, *one) for name, one in zip(STREAMS, context, strict=False)}
            names = STREAMS[: len(context)] if context else (*kind.tensors, *also)
            condition = {name: torch.randn(sizes[name], generator=given) for name in names}
            behind = stream_sizes(condition)
            if "replaces" in condition:
                condition["replaces"] = torch.ones(1)
            cache.write_condition(key(300 + index), condition)
        cache.write_text(key(100 + index), torch.randn(text_rows or 5 + index, 4096, generator=generator))
        items.append(
            CacheItem(
                latent_key=key(index),
                text_key=key(100 + index),
                num_frames=4 * (frames - 1) + 1,
                height=space.spatial_stride * height,
                width=space.spatial_stride * width,
                repeats=1,
                name=f"clip_{index}.mp4",
                condition_key=key(300 + index) if kind.tensors else "",
                context=behind,
            )
        )
    for number in (200, 201):
        cache.write_text(key(number), torch.randn(1, 4096, generator=generator))
    cache_set = CacheSet(
        items=tuple(items[: clips - held_out]),
        held_out=tuple(items[clips - held_out :]),
        empty_text_key=key(200),
        negative_text_key=key(201),
        latent_space=space.name,
        fps=16.0,
        vae_identity="test",
        text_identity="test",
        conditioning=kind.name,
    )
    fingerprint = cache.write_set(cache_set)
    folders = {"diffusion_models": (str(models),), "cache": (str(cache_root),), "loras": (str(root),)}
    return Roots(folders), fingerprint


ONE_LOOK = {"eval_items": 1, "eval_timesteps": (500.0,)}
"""evaluated on one clip at one noise level: four levels cost as much as a step, at the start and after every save"""
SHORT = {"steps": 6, "save_every_n_steps": 2, "preview_every_n_steps": 0, "learning_rate": 1e-3, **ONE_LOOK}


def short(**changes: object) -> TrainConfig:
    """`SHORT` with changes."""
    return TrainConfig(**{**SHORT, **changes})  # type: ignore[arg-type]


def steady(**changes: object) -> TrainConfig:
    """`SHORT` at a constant rate, so that a run that is made longer equals one that never stopped.

    It is not evaluated, unless `eval_items` says so: at the usual timesteps then.
    """
    base = {"discrete_flow_shift": 3.0, "lr_scheduler": "constant", "save_dtype": "fp32"}
    looks = {"eval_items": 0, "eval_timesteps": TrainConfig.eval_timesteps}
    return short(**{**base, **looks, **changes})


PLAN = ModelPlan(base_file="diffusion_models:wan_tiny_t2v.safetensors")
TWO_RANKS = replace(PLAN, placement=PlacementConfig(mode="copy per GPU", devices="cpu,cpu"))
HIGH_FILE, LOW_FILE = "wan2.2_tiny_t2v_high_noise_14B.safetensors", "wan2.2_tiny_t2v_low_noise_14B.safetensors"
PAIR = ModelPlan(base_file=f"diffusion_models:{HIGH_FILE}", low_noise_file=f"diffusion_models:{LOW_FILE}")


def make_pair_run(
    root: Path,
    *,
    expert: str = "both",
    preview: SampleConfig | None = None,
    lora: LoraConfig | None = None,
    buckets: Sequence[tuple[int, int, int]] = (),
    partner: ModelPlan | None = None,
    **train: object,
) -> TinyRun:
    """A run of both experts of a tiny Wan 2.2 pair, or of one of them, whose `expert` is that name."""
    roots, _ = make_roots(root)
    for seed, name in ((1, HIGH_FILE), (2, LOW_FILE)):
        (root / "models" / name).write_bytes(_file_of(TINY, seed))
    return make_run(
        root,
        plan=PAIR.of_expert(expert_named(expert), roots),
        # The usual levels, of which each expert is evaluated at its own.
        train=short(**{"eval_timesteps": TrainConfig.eval_timesteps, **train, "expert": expert}),
        preview=preview,
        lora=lora,
        partner=partner,
        buckets=buckets,
    )


def make_run(
    root: Path,
    *,
    shape: WanShape = TINY,
    train: TrainConfig | None = None,
    lora: LoraConfig | None = None,
    plan: ModelPlan | None = None,
    preview: SampleConfig | None = None,
    partner: ModelPlan | None = None,
    **cache: object,
) -> TinyRun:
    """A run directory ready to train on the CPU in float32."""
    roots, fingerprint = make_roots(root, shape, **cache)  # type: ignore[arg-type]
    roots_file = root / "roots.json"
    roots.write(roots_file)
    config = RunConfig(
        run_name="tiny",
        model=plan or PLAN,
        data=DataConfig(fingerprint=fingerprint, num_items=3),
        lora=lora or LoraConfig(rank=4),
        train=train or short(),
        preview=preview,
        partner=partner,
    ).with_digests(roots)
    decision = choose_run(root / "runs", config)
    config = prepare_run(decision, config)
    return TinyRun(decision.directory, roots, config, roots_file)


def train_on_two(server: ForkServer, run: TinyRun, *pieces: int, first: str = "") -> TinyRun:
    """The run, trained by two ranks on the CPU; `pieces`: the steps of each worker, 0 for all that are left.

    `first`: code that each process runs before.
    """
    placement = PlacementConfig(mode="copy per GPU", devices="cpu,cpu")
    config = replace(run.config, model=replace(run.config.model, placement=placement))
    atomic_write_json(run.directory / "run.json", config.to_dict())
    for number, steps in enumerate(pieces):
        words = ["train", str(run.directory), "--roots", str(run.roots_file), "--max-steps", str(steps)]
        worker = server.start(words, run.directory / f"worker-{number}.jsonl", first=first)
        assert worker.wait() == (0 if number == len(pieces) - 1 else 3), worker.log()[-3000:]
    return run
