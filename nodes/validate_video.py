"""Validate Video (Preview LoRA): renders the base model, saved steps and LoRA files side by side, from equal noise."""

from __future__ import annotations

import json
from typing import Any

from comfy.cli_args import args
from comfy_api.latest import InputImpl, io

from ..wan_core.checkpoint import checkpoint_digest
from ..wan_core.errors import ConfigError, WanTrainerError
from ..wan_core.job import SampleJob, preview_without_run, read_run, refuse_too_many, trained_variant
from ..wan_core.lora import FrozenLora
from ..wan_core.sampler import SampleConfig
from .bridge import folders
from .bridge.handed import RUNS
from .bridge.interrupts import CancelButton
from .bridge.progress import NodeProgress, announced, graph_of
from .bridge.sockets import ComfyVae, encoder_identity
from .bridge.start_images import encode_start_images
from .bridge.types import ModelHandle, RunHandle, WanLoras, WanRun, WanTrainModel, WanValidation
from .bridge.widgets import combo, flag, in_menu, numbers_of, one_of, text, widget_values
from .runs.facts import chosen_steps, output_file, parsed_steps
from .runs.job import folder_without_run
from .runs.rendering import Rendering
from .runs.scrub import scrubbed

FORMATS = ["mp4", "webm"]


class ValidateVideo(io.ComfyNode):
    """A grid of clips in a run directory; existing clips are not rendered again."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="ValidateVideo",
            display_name="Validate Video (Preview LoRA)",
            **in_menu("compare lora, before and after, lora strength, lora grid, sample video, test lora"),
            description="Renders clips with and without the LoRA from the same noise, and measures the difference.",
            is_output_node=True,
            hidden=[io.Hidden.unique_id, io.Hidden.prompt, io.Hidden.dynprompt, io.Hidden.extra_pnginfo],
            inputs=[
                io.MultiType.Input(
                    "run",
                    types=[WanRun, WanTrainModel],
                    tooltip="From Train Wan LoRA. Or from Load Wan Model: then only the LoRAs at loras are rendered, "
                    "without a run.",
                ),
                io.Vae.Input("vae", tooltip="Decodes clips: wan_2.1_vae (TI2V-5B: wan2.2_vae)."),
                WanValidation.Input(
                    "validation",
                    optional=True,
                    tooltip="From Wan Preview Settings. Unconnected: the previews of the run.",
                ),
                WanLoras.Input(
                    "loras",
                    optional=True,
                    tooltip="LoRAs of any trainer to compare, one column each. From Wan LoRA File.",
                ),
                text(
                    "saved_steps",
                    "latest",
                    "Saved steps (checkpoints) to render: latest, best (the suggested one), all, none (only the LoRAs "
                    "at loras), or numbers such as 250, 500. Name several to see how the LoRA changes.",
                ),
                text(
                    "strengths",
                    "1.0",
                    "LoRA strengths to render, such as 0.5, 1.0. 1.0 = as trained. Name several to find the best one.",
                ),
                flag(
                    "baseline",
                    True,
                    "Also render the base model without LoRA, for comparison. Turn it off to save time.",
                ),
                text(
                    "seeds",
                    "",
                    "Seeds of the noise, such as 1, 2, 3, one row each. Empty: the seed of the previews. Name several "
                    "to see how much clips vary.",
                ),
                combo(
                    "grid_format",
                    FORMATS,
                    "File format of grid_video. mp4: H.264. webm: VP9, smaller and slower to encode. Choose webm for a "
                    "smaller file.",
                ),
                WanTrainModel.Input(
                    "partner",
                    optional=True,
                    tooltip="For a run that trained one expert of a pair: Load Wan Model with the other expert, or "
                    "with both. Clips are sampled with both experts. To give it a LoRA, put Add Frozen LoRA in "
                    "between.",
                ),
            ],
            outputs=[
                io.Video.Output(
                    display_name="videos",
                    is_output_list=True,
                    tooltip="All clips: one for each prompt, seed, saved step and strength.",
                ),
                io.Image.Output(
                    display_name="grid",
                    tooltip="Middle frames with labels: a row per prompt and seed, a column per step and strength.",
                ),
                io.String.Output(
                    display_name="metrics",
                    tooltip="JSON: difference from the baseline. It is a distance, not a quality score.",
                ),
                io.Video.Output(display_name="grid_video", tooltip="All clips in one video, with labels."),
            ],
        )

    @classmethod
    def validate_inputs(
        cls,
        saved_steps: str | None = None,
        strengths: str | None = None,
        seeds: str | None = None,
        grid_format: str | None = None,
    ) -> bool | str:
        """Refuses invalid lists when the graph is queued, not after hours of training."""
        try:  # a linked input is None, because its value is known only when the node runs
            steps = parsed_steps("" if saved_steps is None or _is_none(saved_steps) else saved_steps)
            numbers = [step for step in steps if isinstance(step, int)]
            columns = len(_strengths("1" if strengths is None else strengths)) * (len(numbers) or 1)
            refuse_too_many(len(_seeds(seeds or "")) or 1, columns)
            if grid_format is not None:
                one_of("grid_format", grid_format, FORMATS)
        except WanTrainerError as error:
            return announced(error)
        return True

    @classmethod
    def fingerprint_inputs(cls, **_: object) -> object:
        return RUNS.losses()

    @classmethod
    def execute(
        cls,
        run: RunHandle | ModelHandle,
        vae: Any,
        validation: SampleConfig | None = None,
        loras: tuple[FrozenLora, ...] = (),
        saved_steps: str = "latest",
        strengths: str = "1.0",
        baseline: bool = True,
        seeds: str = "",
        grid_format: str = FORMATS[0],
        partner: ModelHandle | None = None,
    ) -> io.NodeOutput:
        one_of("grid_format", grid_format, FORMATS)
        cache, identity = folders.cache(), str(encoder_identity(cls.hidden, "vae", vae))
        steps: tuple[int, ...] = ()
        if isinstance(run, ModelHandle):
            _check_without_run(loras, saved_steps, partner)
            validation = preview_without_run(validation, run.variant)
            run = folder_without_run(run, validation, identity)
        elif not _is_none(saved_steps):
            steps = chosen_steps(run.directory, saved_steps)
        elif not loras:
            raise ConfigError(
                "saved_steps is none and loras is not connected. Choose a saved step, or connect a Wan LoRA File."
            )
        config = read_run(run.directory)
        variant = trained_variant(config.model, config.train.expert, folders.roots())
        preview = validation or config.preview or SampleConfig()
        codec = ComfyVae(vae, identity, variant.latents)
        # Of a pair both files, since either may be the untrained expert.
        partners = () if partner is None else (partner.plan.base_file, partner.plan.low_noise_file)
        partner_digest = " ".join(checkpoint_digest(folders.roots().resolve(file)) for file in partners if file)
        job = SampleJob(
            saved_steps=steps,
            strengths=_strengths(strengths),
            baseline=baseline,
            preview=encode_start_images(preview, cache, cache.read_set(config.data.fingerprint), variant, codec),
            seeds=_seeds(seeds),
            loras=loras,
            partner=None if partner is None else partner.plan,
            partner_digest=partner_digest,
        )
        job.cells()  # raises for too many clips
        rendering = Rendering(run.directory, job, run.fps, _metadata(cls.hidden))
        button = CancelButton()
        if rendering.unfinished():
            progress = NodeProgress(cls.hidden.unique_id, button, graph=graph_of(cls.hidden), pictures=False)
            progress.say("starting", now=True, about={"kind": "starting"}, of_run=run.directory.name)
            rendering.render(codec, progress, button)
        movie = rendering.movie(grid_format, button.pressed)
        RUNS.note(f"clips of {cls.hidden.unique_id}", [*rendering.files(), movie])
        videos = [InputImpl.VideoFromFile(str(file)) for file in rendering.files()]
        # The base model's clips are last, because the node shows the first file large.
        cells = sorted(job.cells(), key=lambda cell: cell.column.is_base)
        shown = [output_file(rendering.file(cell)) for cell in cells]
        metrics = rendering.metrics()
        facts = {**rendering.facts(), "asked": widget_values(cls)}
        ui = {"images": shown, "animated": [True], "text": [metrics], "wan_clips": [facts]}
        return io.NodeOutput(videos, rendering.sheet(), metrics, InputImpl.VideoFromFile(str(movie)), ui=ui)


def _check_without_run(loras: tuple[FrozenLora, ...], listed: str, partner: ModelHandle | None) -> None:
    if not loras:
        raise ConfigError("Without a run there is no LoRA to render. Connect Wan LoRA File to loras.")
    if listed.strip().lower() not in ("", "latest", "none"):
        raise ConfigError(
            f'saved_steps is "{listed[:100]}", but without a run there are no saved steps. Set it to '
            "none, or connect a run."
        )
    if partner is not None:
        raise ConfigError("partner belongs to a run. Choose the other expert as low_noise_model in Load Wan Model.")


def _is_none(listed: str) -> bool:
    return listed.strip().lower() == "none"


def _strengths(listed: str) -> tuple[float, ...]:
    found = tuple(dict.fromkeys(numbers_of("strengths", listed, float, "numbers", "0.5, 1.0")))
    if not found or not all(-100 <= s <= 100 for s in found):
        raise ConfigError(f'strengths "{listed[:100]}" must be one or more numbers from -100 to 100. Example: 1.0')
    return found


def _seeds(listed: str) -> tuple[int, ...]:
    found = tuple(dict.fromkeys(numbers_of("seeds", listed, int, "whole numbers", "1, 2, 3")))
    if not all(0 <= seed < 2**64 for seed in found):
        raise ConfigError(f'seeds "{listed[:100]}" must be from 0 to 18446744073709551615. Example: 1, 2, 3')
    return found


def _metadata(hidden: Any) -> dict[str, str]:
    """Returns the graph for a file's metadata, as in ComfyUI's savers, without paths and secrets.

    {} under --disable-metadata.
    """
    if args.disable_metadata:
        return {}
    known = {"prompt": hidden.prompt, **(hidden.extra_pnginfo or {})}
    return {name: json.dumps(scrubbed(graph)) for name, graph in known.items() if graph}
