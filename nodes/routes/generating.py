"""The graph that generates with the LoRA of a run; models, prompt, size and loaders come from the run's files."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path
from typing import Any

from ...wan_core.dataset import DEFAULT_NEGATIVE_PROMPT
from ...wan_core.errors import ConfigError, WanTrainerError
from ...wan_core.families import FIRST_LATENT, family_called
from ...wan_core.files import confine, read_json
from ...wan_core.job import Generation, RunConfig, api_form, can_generate, canvas_form, input_node, note_lines, read_run
from ...wan_core.sampler import SampleConfig, steps_above
from ...wan_core.train import EXPERTS
from ..bridge import folders
from ..bridge.sockets import VAE_FILES
from ..runs.scrub import scrubbed
from .recorded import Data

_TEXT_ENCODER = {"clip_name": "umt5_xxl_fp8_e4m3fn_scaled.safetensors", "type": "wan", "device": "default"}
_WIDGETS = {"VAELoader": ("vae_name",), "CLIPLoader": ("clip_name", "type", "device"), "LoadImage": ("image",)}
"""core node -> its widgets, for workflows of older pages, which lack these names"""
_HIGH, _LOW = re.compile("high", re.IGNORECASE), re.compile("low", re.IGNORECASE)


def generating_graph(directory: Path, about: Data, *, api: bool = False) -> Data:
    """Returns {"graph", "note"} of a run with DETAIL `about`; `api`: for POST /prompt, else for the canvas.

    Raises ConfigError for a run without a LoRA in ComfyUI's list, and for models that read control clips.
    """
    generation = _generation(directory, read_run(directory), about)
    graph = api_form(generation) if api else canvas_form(generation)
    note = [line for paragraph in note_lines(generation) for line in (paragraph, "")]
    return {"version": 1, "graph": graph, "note": note[:-1]}


def _generation(directory: Path, config: RunConfig, about: Data) -> Generation:
    variant, found = about["variant"], family_called(about["variant"])
    if not about["use"] or found is None or not can_generate(variant):
        raise ConfigError(
            "No graph can be made of run {name}: it has no LoRA in ComfyUI's list, or its model reads control clips.",
            name=directory.name,
        )
    family, _, template = found
    common = config.preview or SampleConfig()
    preview = common.of_prompt(0) if common.prompts else common
    models, guessed = _models(config, variant)
    width, height, frames, caption, workflow = *template.size, "", None
    with suppress(WanTrainerError, OSError, IndexError):  # its cache may be deleted
        item = folders.cache().read_set(config.data.fingerprint).items[0]
        width, height, frames, caption = item.width, item.height, item.num_frames, item.caption
    with suppress(WanTrainerError, OSError):  # scrubbed again, as a run folder may come from another machine
        workflow = scrubbed(read_json(confine(directory, "workflow.json", "workflow")))
    sampling = preview.resolved(template, width * height)
    shown = [sample["text"] for sample in about["samples"] if not sample["rendering"] and sample["prompt"] == 0]
    trigger = next((use["trigger"] for use in about["use"] if use.get("trigger")), "")
    prompt = next((text for text in (*preview.prompts[:1], *shown[-1:], caption) if text), trigger)
    negative = DEFAULT_NEGATIVE_PROMPT if preview.negative_prompt is None else preview.negative_prompt
    boundary = family.pair.boundary if family.pair and len(models) > 1 else 0.0
    context = config.data.context_streams > 0
    node = input_node(variant, context=context)
    pictured = bool(node.image) if node else family.starts_from == FIRST_LATENT and bool(preview.start_image)
    return Generation(
        run=directory.name,
        variant=variant,
        models=models,
        loras=tuple(_loras(about["use"], preview, model, index) for index, model in enumerate(models)),
        size=(preview.width or width, preview.height or height, preview.num_frames or frames),
        prompt=scrubbed(prompt),
        negative=scrubbed(negative),
        sampling=sampling,
        seed=preview.seed,
        high_steps=steps_above(sampling, boundary),
        vae=_loader(workflow, "VAE") or ("VAELoader", {"vae_name": VAE_FILES.get(family.latents, VAE_FILES["wan2.1"])}),
        clip=_loader(workflow, "CLIP") or ("CLIPLoader", dict(_TEXT_ENCODER)),
        picture=str((_loader(workflow, "IMAGE") or ("", {}))[1].get("image", "example.png")) if pictured else "",
        context=context,
        trigger="" if trigger and trigger in prompt else trigger,
        guessed=guessed,
    )


def _models(config: RunConfig, variant: str) -> tuple[tuple[str, ...], str]:
    """Returns the model files, high noise first, and the guessed one among them; "" if none is guessed."""
    base, low = (file.partition(":")[2] for file in (config.model.base_file, config.model.low_noise_file))
    own = next((expert for expert in EXPERTS if variant.endswith(expert.replace("_", " "))), "")
    if low or not own:
        return ((base, low) if low else (base,)), ""
    guessed = ""
    if config.partner is not None:
        other = config.partner.base_file.partition(":")[2]
    else:
        other = guessed = _LOW.sub("high", base) if own == EXPERTS[1] else _HIGH.sub("low", base)
    if other == base:  # its name does not say which expert it is
        return (base,), ""
    return ((base, other) if own == EXPERTS[0] else (other, base)), guessed


def _loras(use: list[Data], preview: SampleConfig, model: str, index: int) -> tuple[tuple[str, float], ...]:
    """Returns names and strengths of the LoRAs on a model: frozen LoRAs, the run's own, and LoRAs of its previews."""
    own = [(one["lora"], float(one.get("strength", 1.0))) for one in use if one["model"] == model]
    theirs = [
        (one.low_noise_file, one.low_noise_strength) if index else (one.file, one.strength) for one in preview.loras
    ]
    return (*own, *((file.partition(":")[2], strength) for file, strength in theirs if file))


def _loader(workflow: Any, kind: str) -> tuple[str, dict[str, Any]] | None:
    """Returns class and widgets of the first node of a workflow that outputs `kind` and has no linked input, or None.

    A graph of the queue API has no types, so only core's loaders are found in it.
    """
    if not isinstance(workflow, dict):
        return None
    usual = {"VAE": "VAELoader", "CLIP": "CLIPLoader", "IMAGE": "LoadImage"}[kind]
    for node in workflow.get("nodes") or workflow.values():
        if not isinstance(node, dict):
            continue
        if node.get("class_type") == usual:
            return usual, {name: node.get("inputs", {}).get(name) for name in _WIDGETS[usual]}
        outputs, inputs = node.get("outputs") or [], node.get("inputs") or []
        if not outputs or outputs[0].get("type") != kind or any(one.get("link") is not None for one in inputs):
            continue
        values = node.get("widgets_values") or []
        named = [one["widget"]["name"] for one in inputs if one.get("widget")]
        names = _WIDGETS.get(node["type"], named)
        if isinstance(values, list) and len(values) >= len(names):
            return node["type"], dict(zip(names, values, strict=False))
    return None
