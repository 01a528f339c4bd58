"""Graphs on the demo models: from what is wanted to what POST /prompt takes. Nothing here runs or reads anything.

Sampling uses core nodes only. Training uses the pack's nodes; everything a run can be tuned by is in `Recipe`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

Graph = dict[str, dict[str, Any]]

CLIP = "TinyWanCLIPLoader"
VAE = "wan_demo_vae.safetensors"
BOUNDARY = 0.875  # sigma between the experts of a pair, as in Wan 2.2 T2V-A14B
TRAIN = "train"


@dataclass(frozen=True)
class Model:
    """What samples together: one file, or the high- and the low-noise file of a pair."""

    name: str
    files: tuple[str, ...]
    experts: tuple[str, ...] = ("auto",)
    """of TrainLoRA, one per file"""
    starts_from_image: bool = False
    """an image-to-video model: every shot needs the first frame"""

    @property
    def is_pair(self) -> bool:
        return len(self.files) == 2


MODELS = {
    "t2v": Model("t2v", ("wan_demo_t2v.safetensors",)),
    # auto: the file name says which expert it is
    "pair": Model("pair", ("wan_demo_high_noise.safetensors", "wan_demo_low_noise.safetensors"), ("auto", "auto")),
    "i2v": Model("i2v", ("wan_demo_i2v.safetensors",), starts_from_image=True),
}


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How every clip is made."""

    steps: int = 20
    cfg: float = 2.5
    shift: float = 3.0
    sampler: str = "euler"
    scheduler: str = "simple"
    size: int = 64
    frames: int = 9


SAMPLING = Sampling()


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How a LoRA learns a concept. Every field is an option of benchmarks/learning/concept_test.py."""

    clips: int = 8
    """drawn clips of the concept"""
    held_out: int = 0
    """further clips of the concept that are never trained: what the evaluation measures"""
    previews: bool = False
    """a preview of the concept before the first step and after the last"""
    prior_clips: int = 96
    """drawn clips of the old world that are trained beside them, so that it is not forgotten; 0 = none"""
    concept_repeats: int = 18
    """how often a clip of the concept is seen while one of the old world is seen once"""
    concept_captions: tuple[str, ...] = ("{caption}",)
    """captions of the concept's clips, taken in turn; {caption} stands for the concept's own"""
    steps: int = 700
    """optimizer steps, shared among the experts of a pair"""
    learning_rate: float = 6e-3
    lr_scheduler: str = "cosine"
    lr_warmup_steps: int = 10
    batch_size: int = 4
    rank: int = 8
    alpha: float = 0.0
    """0 = rank, a scale of 1"""
    timestep_sampling: str = "shift"
    shift: float = 0.0
    """training shift; 0 = the model's. Sampling has its own"""
    caption_dropout: float = 0.0
    weight_decay: float = 0.01
    base_precision: str = "as in file"
    precision_policy: str = "balanced"
    switches: tuple[str, ...] = ()
    """of WanPrecisionPolicy, such as residual=bf16; empty = the node is not there"""
    quantize: str = ""
    """scheme of Fp8Quantize; empty = the node is not there"""
    pieces: int = 1
    """queued so many times, each time for a part of the steps; all but the first resume from disk"""
    eval_items: int = 0
    """clips of the fixed-noise evaluation, at the start and at every save; they cost time and teach nothing"""
    seed: int = 0
    prior_preservation: float = 0.0
    """of the old world's clips: above 0 they keep what the model knows, with that weight in the loss"""


@dataclass(frozen=True)
class Shot:
    """Clips of one caption that are sampled as one batch; clip i of a seed is the same in every graph."""

    caption: str
    seed: int
    count: int = 1
    image: str = ""
    """file in input/ that every clip of the shot starts from (models that start from an image)"""


# ---- sampling --------------------------------------------------------------------------------


def sigmas(sampling: Sampling = SAMPLING) -> list[float]:
    """Noise levels of ComfyUI's `simple` scheduler, without the closing 0."""
    levels = ((1000 - int(step * 1000 / sampling.steps)) / 1000 for step in range(sampling.steps))
    return [sampling.shift * level / (1 + (sampling.shift - 1) * level) for level in levels]


def switch_step(sampling: Sampling = SAMPLING, boundary: float = BOUNDARY) -> int:
    """The first step of the low-noise expert: all those at or above the boundary belong to the other one."""
    return sum(sigma >= boundary - 1e-6 for sigma in sigmas(sampling))


def sampling_graph(
    model: Model, shots: Sequence[Shot], prefix: str, loras: Sequence[str] = (), sampling: Sampling = SAMPLING
) -> Graph:
    """Frames of every shot, saved by the node `save0`, `save1` ... in the order of the shots. Loaders are shared.

    `loras`: none, or one per file of the model.
    """
    graph: Graph = {
        "clip": _node(CLIP),
        "no": _node("CLIPTextEncode", clip=["clip", 0], text=""),
        "vae": _node("VAELoader", vae_name=VAE),
    }
    for index, file in enumerate(model.files):
        graph[f"unet{index}"] = _node("UNETLoader", unet_name=file, weight_dtype="default")
        source = f"unet{index}"
        if loras:
            source = f"lora{index}"
            graph[source] = _node(
                "LoraLoaderModelOnly", model=[f"unet{index}", 0], lora_name=loras[index], strength_model=1.0
            )
        graph[f"model{index}"] = _node("ModelSamplingSD3", model=[source, 0], shift=sampling.shift)
    for index, shot in enumerate(shots):
        text = f"text {shot.caption}"
        graph[text] = _node("CLIPTextEncode", clip=["clip", 0], text=shot.caption)
        start, nodes = _start(model, index, shot, text, sampling)
        graph |= nodes | _sampler(model, index, shot, start, sampling)
        graph[f"decode{index}"] = _node("VAEDecode", samples=[f"sample{index}", 0], vae=["vae", 0])
        graph[f"save{index}"] = _node("SaveImage", images=[f"decode{index}", 0], filename_prefix=f"{prefix}/{index}")
    return graph


@dataclass(frozen=True)
class _Start:
    """What a sampler begins with: links to both conditionings and the latent."""

    positive: list[Any]
    negative: list[Any]
    latent: list[Any]


def _start(model: Model, index: int, shot: Shot, text: str, sampling: Sampling) -> tuple[_Start, Graph]:
    sizes = {"width": sampling.size, "height": sampling.size, "length": sampling.frames, "batch_size": shot.count}
    if not model.starts_from_image:
        empty = f"empty{shot.count}"
        return _Start([text, 0], ["no", 0], [empty, 0]), {empty: _node("EmptyHunyuanLatentVideo", **sizes)}
    image, start = f"image{index}", f"first{index}"
    links = {"positive": [text, 0], "negative": ["no", 0], "vae": ["vae", 0], "start_image": [image, 0]}
    nodes = {image: _node("LoadImage", image=shot.image), start: _node("WanImageToVideo", **links, **sizes)}
    return _Start([start, 0], [start, 1], [start, 2]), nodes


def reconstruction_graph(images: Sequence[str], prefix: str) -> Graph:
    """What the VAE alone makes of each image, saved by the node `save0`, `save1` ..."""
    graph: Graph = {"vae": _node("VAELoader", vae_name=VAE)}
    for index, image in enumerate(images):
        graph[f"image{index}"] = _node("LoadImage", image=image)
        graph[f"encode{index}"] = _node("VAEEncode", pixels=[f"image{index}", 0], vae=["vae", 0])
        graph[f"decode{index}"] = _node("VAEDecode", samples=[f"encode{index}", 0], vae=["vae", 0])
        graph[f"save{index}"] = _node("SaveImage", images=[f"decode{index}", 0], filename_prefix=f"{prefix}/{index}")
    return graph


def _sampler(model: Model, index: int, shot: Shot, start: _Start, sampling: Sampling) -> Graph:
    common = {
        "positive": start.positive,
        "negative": start.negative,
        "steps": sampling.steps,
        "cfg": sampling.cfg,
        "sampler_name": sampling.sampler,
        "scheduler": sampling.scheduler,
    }
    last = f"sample{index}"
    if not model.is_pair:
        one = {"model": ["model0", 0], "latent_image": start.latent, "seed": shot.seed, "denoise": 1.0}
        return {last: _node("KSampler", **common, **one)}
    first, switch = f"start{index}", switch_step(sampling)
    high = {
        "model": ["model0", 0],
        "latent_image": start.latent,
        "noise_seed": shot.seed,
        "add_noise": "enable",
        "start_at_step": 0,
        "end_at_step": switch,
        "return_with_leftover_noise": "enable",
    }
    low = {
        "model": ["model1", 0],
        "latent_image": [first, 0],
        "noise_seed": shot.seed,
        "add_noise": "disable",
        "start_at_step": switch,
        "end_at_step": sampling.steps,
        "return_with_leftover_noise": "disable",
    }
    return {first: _node("KSamplerAdvanced", **common, **high), last: _node("KSamplerAdvanced", **common, **low)}


# ---- training --------------------------------------------------------------------------------


def training_graph(
    model: Model,
    recipe: Recipe,
    run_name: str,
    folder: str,
    prior: str = "",
    held_out: Sequence[str] = (),
) -> Graph:
    """Train a model, of a pair both files, on `input/<folder>`, and beside it on `input/<prior>` when there is one.

    `held_out`: files of the folder that are evaluated instead.
    """
    load = _node(
        "LoadWanModel",
        **dict(zip(("diffusion_model", "low_noise_model"), model.files, strict=False)),
        base_precision=recipe.base_precision,
        precision_policy=recipe.precision_policy,
    )
    graph: Graph = {
        "model": load,
        "vae": _node("VAELoader", vae_name=VAE),
        "clip": _node(CLIP),
        "data": _node("WanVideoDataset", model=["model", 0], **dataset_inputs(folder, recipe.concept_repeats)),
        "cache": _node("CacheLatents", dataset=["data", 0], vae=["vae", 0], clip=["clip", 0]),
        "settings": _node("WanTrainSettings", **settings_inputs(recipe)),
        TRAIN: _node(
            "TrainLoRA",
            model=["model", 0],
            cache=["cache", 0],
            settings=["settings", 0],
            **train_inputs(recipe, run_name),
        ),
    }
    trained = graph[TRAIN]["inputs"]
    if recipe.quantize:
        graph["quantized"] = _node("Fp8Quantize", model=trained["model"], scheme=recipe.quantize)
        trained["model"] = ["quantized", 0]
    if recipe.switches:
        switches = dict(switch.split("=", 1) for switch in recipe.switches)
        graph["policy"] = _node("WanPrecisionPolicy", model=trained["model"], **switches)
        trained["model"] = ["policy", 0]
    if recipe.previews:
        trained["vae"] = ["vae", 0]
    if held_out:
        graph["held_out"] = held_out_node(held_out)
        graph["data"]["inputs"]["settings"] = ["held_out", 0]
    if prior:
        graph["prior"] = _node("WanVideoDataset", model=["model", 0], **dataset_inputs(prior))
        graph["data"]["inputs"]["append_to"] = ["prior", 0]
        if recipe.prior_preservation:
            graph["kept"] = _node("WanDatasetSettings", prior_preservation=recipe.prior_preservation)
            graph["prior"]["inputs"]["settings"] = ["kept", 0]
    return graph


def dataset_inputs(folder: str, repeats: int = 1, sampling: Sampling = SAMPLING) -> dict[str, Any]:
    """WanVideoDataset for clips of the world."""
    return {
        "folder": folder,
        "width": sampling.size,
        "height": sampling.size,
        "num_frames": sampling.frames,
        "num_repeats": repeats,
    }


def held_out_node(files: Sequence[str]) -> dict[str, Any]:
    """WanDatasetSettings that keeps files of a dataset for the evaluation."""
    return _node("WanDatasetSettings", held_out="\n".join(files))


def settings_inputs(recipe: Recipe) -> dict[str, Any]:
    """WanTrainSettings. Recomputing activations would only cost time here: the model is tiny."""
    return {
        "batch_size": recipe.batch_size,
        "lr_scheduler": recipe.lr_scheduler,
        "lr_warmup_steps": recipe.lr_warmup_steps,
        "timestep_sampling": recipe.timestep_sampling,
        "discrete_flow_shift": recipe.shift,
        "caption_dropout": recipe.caption_dropout,
        "weight_decay": recipe.weight_decay,
        "gradient_checkpointing": False,
        "eval_items": recipe.eval_items,
    }


def train_inputs(recipe: Recipe, run_name: str) -> dict[str, Any]:
    """TrainLoRA: one save at the end."""
    steps = recipe.steps
    return {
        "run_name": run_name,
        "steps": steps,
        "learning_rate": recipe.learning_rate,
        "rank": recipe.rank,
        "alpha": recipe.alpha,
        "save_every_n_steps": steps,
        "preview_every_n_steps": steps if recipe.previews else 0,
        "seed": recipe.seed,
        "steps_this_queue": 0 if recipe.pieces == 1 else -(-steps // recipe.pieces),
    }


def _node(kind: str, **inputs: Any) -> dict[str, Any]:
    return {"class_type": kind, "inputs": inputs}
