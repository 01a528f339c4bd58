"""The graph that generates with the LoRA of a run: ComfyUI's own nodes, for the canvas and for the queue API."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..canvas import note_node, workflow_document, workflow_node
from ..families import family_called
from ..sampler import SamplingPreset
from ..words import filled
from .start_nodes import READY, GraphNode, Link, add_start, input_node

Loader = tuple[str, dict[str, Any]]
"""class and widgets of a node that loads a file"""

_OUTPUTS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("UNETLoader", "UnetLoaderGGUF", "LoraLoaderModelOnly", "ModelSamplingSD3"), ("MODEL",)),
    **dict.fromkeys(
        ("KSampler", "KSamplerAdvanced", "EmptyHunyuanLatentVideo", "Wan22ImageToVideoLatent"), ("LATENT",)
    ),
    "CLIPVisionLoader": ("CLIP_VISION",),
    "CLIPVisionEncode": ("CLIP_VISION_OUTPUT",),
    "CLIPTextEncode": ("CONDITIONING",),
    "LoadImage": ("IMAGE", "MASK"),
    **dict.fromkeys(
        ("WanImageToVideo", "WanSCAILToVideo", "WanCameraImageToVideo", "WanHuMoImageToVideo", "BerniniConditioning"),
        ("CONDITIONING", "CONDITIONING", "LATENT"),
    ),
    "WanAnimateToVideo": ("CONDITIONING", "CONDITIONING", "LATENT", "INT"),
    "TrimVideoLatent": ("LATENT",),
    "LoadVideo": ("VIDEO",),
    "GetVideoComponents": ("IMAGE", "AUDIO", "FLOAT"),
    "AudioEncoderLoader": ("AUDIO_ENCODER",),
    "AudioEncoderEncode": ("AUDIO_ENCODER_OUTPUT",),
    "LoadAudio": ("AUDIO",),
    "WanCameraEmbedding": ("WAN_CAMERA_EMBEDDING", "INT", "INT", "INT"),
    "VAEDecode": ("IMAGE",),
    "CreateVideo": ("VIDEO",),
    "SaveVideo": (),
    "SaveImage": (),
}
"""class -> types of its outputs"""
_HEIGHTS = {
    "CLIPLoader": 106, "CLIPTextEncode": 110, "ModelSamplingSD3": 58, "KSampler": 262, "KSamplerAdvanced": 334,
    "EmptyHunyuanLatentVideo": 130, "Wan22ImageToVideoLatent": 170, "WanImageToVideo": 230, "LoadImage": 240,
    "SaveVideo": 280, "SaveImage": 280, "LoadVideo": 240, "LoadAudio": 140, "WanCameraEmbedding": 250,
    "WanSCAILToVideo": 400, "WanAnimateToVideo": 330, "WanCameraImageToVideo": 250, "WanHuMoImageToVideo": 230,
    "BerniniConditioning": 270,
}  # fmt: skip
"""class -> height in pixels, without the title"""
_LOW, _WIDTH, _GAP, _TITLE = 82, 290, 30, 30
"""pixels: height of other nodes; width of all; space between two; height of a title"""
_NOTE = (90, 34)
"""height of the note, and of each paragraph"""
_TITLED = "wan_trainer_title"
"""property with a title that the page translates: web/js/lib/page/titles.mjs"""
_SEED_AT = {"KSampler": 0, "KSamplerAdvanced": 1}
"""class -> index of the seed widget, after which the page adds control_after_generate, a widget without an input"""


_TYPES = {
    **dict.fromkeys(("positive", "negative"), "CONDITIONING"),
    **dict.fromkeys(("images", "image", "start_image", "reference_image", "ref_image"), "IMAGE"),
    **dict.fromkeys(("pose_video", "face_video", "source_video"), "IMAGE"),
    "camera_conditions": "WAN_CAMERA_EMBEDDING",
    "trim_amount": "INT",
    **dict.fromkeys(("samples", "latent_image"), "LATENT"),
}
"""linked input -> type; other inputs are named after their type"""


@dataclass(frozen=True, kw_only=True)
class Generation:
    """Content and files of a graph. Of a pair, the high noise expert comes first."""

    run: str
    variant: str
    models: tuple[str, ...]
    """names in ComfyUI's list of diffusion models"""
    loras: tuple[tuple[tuple[str, float], ...], ...]
    """for each model, names in ComfyUI's list of LoRAs with strengths"""
    size: tuple[int, int, int]
    """width, height, frames"""
    prompt: str
    negative: str
    sampling: SamplingPreset
    seed: int
    high_steps: int = 0
    """sampling steps of the high noise expert; 0 for a single model"""
    vae: Loader
    clip: Loader
    picture: str = ""
    """file in ComfyUI's input folder that the clip starts from; "": text to video"""
    context: bool = False
    """True for a run trained as Bernini-R"""
    trigger: str = ""
    guessed: str = ""
    """guessed file name of the expert that the run did not train; "" if it is known"""


def can_generate(variant: str) -> bool:
    """Returns whether there is a graph for `variant`."""
    found = family_called(variant)
    return found is not None and found[0].task in READY and not (found[1] and not found[1].has_template)


def api_form(generation: Generation) -> dict[str, Any]:
    """Returns the graph for POST /prompt."""
    nodes = _nodes(generation)
    return {
        key: {
            "class_type": node.kind,
            "inputs": {name: list(value) if isinstance(value, tuple) else value for name, value in node.inputs.items()},
            "_meta": {"title": node.title or node.kind},
        }
        for key, node in nodes.items()
    }


def canvas_form(generation: Generation) -> dict[str, Any]:
    """Returns the graph for the canvas, with a note above it."""
    nodes = _nodes(generation)
    ids = {key: number for number, key in enumerate(nodes, 1)}
    links: list[list[Any]] = []
    lines = note_lines(generation)
    high = _NOTE[0] + _NOTE[1] * len(lines)
    tops = [_TITLE + high + _GAP + _TITLE] * 4
    drawn = []
    for key, node in nodes.items():
        sources = {name: value for name, value in node.inputs.items() if isinstance(value, tuple)}
        height = _HEIGHTS.get(node.kind, _LOW)
        made = workflow_node(
            ids[key],
            node.kind,
            {name: (_TYPES.get(name, name.upper()), (ids[at], slot)) for name, (at, slot) in sources.items()},
            [(kind, kind) for kind in _OUTPUTS.get(node.kind, (key.upper(),))],
            links,
            pos=[node.column * (_WIDTH + _GAP), tops[node.column]],
            size=[_WIDTH, height],
            properties={"Node name for S&R": node.kind, **({_TITLED: node.title} if node.title else {})},
            widgets_values=_widgets(node),
            **({"title": node.title} if node.title else {}),
        )
        drawn.append({**made, "flags": {"collapsed": True}} if node.folded else made)
        tops[node.column] += (0 if node.folded else height) + _TITLE + _GAP
    size = (4 * _WIDTH + 3 * _GAP, high)
    note = note_node(len(drawn) + 1, "Read me", "\n\n".join(lines), (0, _TITLE), size)
    return workflow_document(f"generate/{generation.run}", [*drawn, note], links)


def note_lines(generation: Generation) -> list[str]:
    """Returns the note as paragraphs of Markdown; the page translates each."""
    lines: list[str] = [
        filled("## Generate with {run}", run=generation.run),
        filled(
            "Press **Run**. The first clip has the prompt, the size and the seed of the run's previews; each further "
            "clip has a new seed. Write your own prompt into *Prompt*."
        ),
    ]
    if generation.trigger:
        lines.append(filled("Trigger words of this LoRA: **{trigger}**", trigger=generation.trigger))
    node = input_node(generation.variant, context=generation.context)
    if node and (node.videos or node.sound):
        lines.append(filled("Choose your own files in the nodes that load images, videos and sound."))
    elif generation.picture:
        lines.append(filled("Choose the picture that the clip starts from in *Load Image*."))
    if any(name.lower().endswith(".gguf") for name in generation.models):
        lines.append(filled("The model is a GGUF file. ComfyUI needs the node pack ComfyUI-GGUF to load it."))
    if generation.guessed:
        guess = "This run trained one of two experts. The name of the other file is a guess: **{file}**"
        lines.append(filled(guess, file=generation.guessed))
    return lines


def _widgets(node: GraphNode) -> list[Any]:
    values = [value for value in node.inputs.values() if not isinstance(value, tuple)]
    if node.kind in _SEED_AT:
        values.insert(_SEED_AT[node.kind] + 1, "randomize")
    return values


def _nodes(about: Generation) -> dict[str, GraphNode]:
    """Returns the nodes by key; a link names the key and the output of its source."""
    out: dict[str, GraphNode] = {}
    pair = len(about.models) > 1
    noises = ("high noise", "low noise") if pair else ("",)
    models = [_model(out, about, index, noise) for index, noise in enumerate(noises)]
    out["clip"], out["vae"] = GraphNode(about.clip[0], 0, about.clip[1]), GraphNode(about.vae[0], 0, about.vae[1])
    for key, title, text in (("positive", "Prompt", about.prompt), ("negative", "Negative prompt", about.negative)):
        out[key] = GraphNode("CLIPTextEncode", 1, {"clip": ("clip", 0), "text": text}, title)
    latent = add_start(out, about.variant, about.size, about.picture, context=about.context)
    for index, (noise, model) in enumerate(zip(noises, models, strict=True)):
        out[f"shift_{index}"] = GraphNode(
            "ModelSamplingSD3",
            2,
            {"model": model, "shift": about.sampling.shift},
            f"Sampling shift ({noise})" if noise else "Sampling shift",
            folded=pair,
        )
        given = "start" if _OUTPUTS[out["start"].kind][0] == "CONDITIONING" else ""
        out[f"sample_{index}"] = _sampler(about, index, noise, latent, given)
        latent = (f"sample_{index}", 0)
    if _OUTPUTS[out["start"].kind][-1] == "INT":  # the latent has the frame of a reference image in front
        out["trimmed"] = GraphNode("TrimVideoLatent", 3, {"samples": latent, "trim_amount": ("start", 3)})
        latent = ("trimmed", 0)
    out["decoded"] = GraphNode("VAEDecode", 3, {"samples": latent, "vae": ("vae", 0)})
    saved = {"filename_prefix": f"video/{about.run}"}
    if about.size[2] == 1:
        return {**out, "saved": GraphNode("SaveImage", 3, {"images": ("decoded", 0), "filename_prefix": about.run})}
    sound = {"audio": ("sound", 0)} if "sound" in out else {}
    out["video"] = GraphNode("CreateVideo", 3, {"images": ("decoded", 0), **sound, "fps": _fps(about.variant)})
    out["saved"] = GraphNode("SaveVideo", 3, {"video": ("video", 0), **saved, "format": "auto", "codec": "auto"})
    return out


def _model(out: dict[str, GraphNode], about: Generation, index: int, noise: str) -> Link:
    """Adds the loaders of a model and its LoRAs. Returns the link to the model with its LoRAs."""
    name = about.models[index]
    title = f"Load Diffusion Model ({noise})" if noise else ""
    if name.lower().endswith(".gguf"):
        out[f"model_{index}"] = GraphNode("UnetLoaderGGUF", 0, {"unet_name": name}, title)
    else:
        out[f"model_{index}"] = GraphNode("UNETLoader", 0, {"unet_name": name, "weight_dtype": "default"}, title)
    last = (f"model_{index}", 0)
    for number, (lora, strength) in enumerate(about.loras[index]):
        key = f"lora_{index}_{number}"
        out[key] = GraphNode("LoraLoaderModelOnly", 0, {"model": last, "lora_name": lora, "strength_model": strength})
        last = (key, 0)
    return last


def _sampler(about: Generation, index: int, noise: str, latent: Link, given: str) -> GraphNode:
    """Returns the sampler of a model. `given`: the node that adds a picture to both prompts; "" for none."""
    sampling = about.sampling
    prompts = {"positive": (given, 0), "negative": (given, 1)} if given else {}
    cfg = sampling.low_noise_guidance if index and sampling.low_noise_guidance else sampling.guidance_scale
    links = {"model": (f"shift_{index}", 0), "positive": ("positive", 0), "negative": ("negative", 0), **prompts}
    steps = {
        "steps": sampling.steps,
        "cfg": cfg,
        "sampler_name": sampling.sampler_name,
        "scheduler": sampling.scheduler,
    }
    links["latent_image"] = latent
    if not noise:
        return GraphNode("KSampler", 2, {**links, "seed": about.seed, **steps, "denoise": 1.0})
    turn = {
        "start_at_step": about.high_steps if index else 0,
        "end_at_step": 10000 if index else about.high_steps,
        "return_with_leftover_noise": "disable" if index else "enable",
    }
    noised = {"add_noise": "disable" if index else "enable", "noise_seed": about.seed}
    return GraphNode("KSamplerAdvanced", 2, {**links, **noised, **steps, **turn}, f"Sample ({noise})")


def _fps(variant: str) -> float:
    found = family_called(variant)
    return (found[0].fps if found else None) or (24.0 if found and found[0].latents == "wan2.2" else 16.0)
