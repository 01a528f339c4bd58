"""Train Wan LoRA: trains in a separate engine process and waits for it. An equal queue resumes the run."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from comfy_api.latest import io

from ..wan_core.errors import ConfigError, WanTrainerError
from ..wan_core.files import file_mark, name_key, safe_name
from ..wan_core.job import STATUS_FILES, DataConfig, check_adapters, choose_run, new_run_name, with_clip_values
from ..wan_core.lora import LoraConfig
from ..wan_core.plan import PRESETS, with_mode
from ..wan_core.sampler import SampleConfig
from ..wan_core.trackers import ServerSettings
from ..wan_core.train import EXPERTS, TrainConfig
from .bridge import folders
from .bridge.handed import RUNS
from .bridge.sockets import ComfyVae, encoder_identity
from .bridge.start_images import encode_start_images
from .bridge.types import (
    CacheHandle,
    ModelHandle,
    SettingsHandle,
    WanCache,
    WanRun,
    WanSettings,
    WanTrainModel,
    WanValidation,
)
from .bridge.unreadable import check_readable
from .bridge.widgets import (
    advanced,
    check_menus,
    combo,
    in_menu,
    judged_when_it_runs,
    one_of,
    text,
    whole,
    widget,
    widgets,
)
from .engine.requested import RequestedTraining, note_training
from .runs.job import NONE, RESUME, RequestedJob, expert_of, lora_config, start_reference, train_config
from .runs.training import QueuedTraining


class TrainLoRA(io.ComfyNode):
    """A run is a directory output/wan_trainer/<run_name>; a queue resumes the run of equal identity."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        steps = widget(TrainConfig, "steps")
        steps.extra_dict["wan_presets"] = [*PRESETS]  # for the row of presets on the page
        return io.Schema(
            node_id="TrainLoRA",
            display_name="Train Wan LoRA",
            **in_menu("lora trainer, finetune, fine-tune, musubi-tuner, diffusion-pipe, ai-toolkit"),
            description="Trains a LoRA in a separate process. Cancel saves and stops; press Run again to resume. A "
            "finished run is not trained again.",
            is_output_node=True,
            hidden=[io.Hidden.unique_id, io.Hidden.prompt, io.Hidden.dynprompt, io.Hidden.extra_pnginfo],
            inputs=[
                WanTrainModel.Input("model", tooltip="From Load Wan Model, Fp8 / Int8 Quantize or Split Across GPUs."),
                WanCache.Input(
                    "cache", lazy=True, tooltip="From Cache Latents + Captions, or another node that outputs a cache."
                ),
                io.Vae.Input(
                    "vae",
                    optional=True,
                    tooltip="Decodes previews: Load VAE with wan_2.1_vae (TI2V-5B: wan2.2_vae). Unconnected: no "
                    "previews. Connect it to see what the LoRA learns.",
                ),
                WanSettings.Input(
                    "settings", optional=True, tooltip="From Wan Train Settings. Unconnected: its defaults are used."
                ),
                WanValidation.Input(
                    "validation",
                    optional=True,
                    tooltip="From Wan Preview Settings. Unconnected: the first cached caption is previewed.",
                ),
                text(
                    "run_name",
                    "my_lora",
                    "Name of the run: the folder below output/wan_trainer, and the name of the LoRA. Change it for "
                    "every new LoRA.",
                ),
                steps,
                widget(TrainConfig, "learning_rate"),
                widget(LoraConfig, "rank"),
                *advanced(widget(LoraConfig, "alpha"), *widgets(TrainConfig, "expert save_every_n_steps")),
                widget(TrainConfig, "preview_every_n_steps"),
                *advanced(
                    combo(
                        "resume",
                        RESUME,
                        "Whether to resume a run with the same settings. auto: resume it if there is one. new: start "
                        "in a new folder. require: resume, or refuse when there is nothing to resume. Choose new to "
                        "repeat a training from the start.",
                    ),
                    combo(
                        "start_from_lora",
                        [NONE, *folders.file_names("loras")],
                        "A LoRA whose weights initialise the training, at step 0. To continue a run, use resume "
                        "instead. none: a new LoRA. For both experts, the second starts from the file with low_noise "
                        "instead of high_noise in its name, if it exists. Choose it to train a finished LoRA on other "
                        "clips.",
                    ),
                    widget(TrainConfig, "seed", control_after_generate=False),
                    whole(
                        "steps_this_queue",
                        0,
                        0,
                        10_000_000,
                        "Optimizer steps to train per Run; then the graph continues, and the next Run resumes. 0 = "
                        "all. Set it to use the LoRA in the graph before the run is complete.",
                    ),
                    widget(TrainConfig, "blocks_to_swap"),
                ),
            ],
            outputs=[
                WanRun.Output(display_name="run", tooltip="For Validate Video and Apply Wan LoRA."),
                io.LoraModel.Output(display_name="lora", tooltip="The LoRA for core LoraModelLoader and SaveLoRA."),
                io.LossMap.Output(display_name="loss_map", tooltip="The loss of each step, for core LossGraphNode."),
                io.Int.Output(display_name="steps", tooltip="Number of the newest saved step (checkpoint)."),
                io.String.Output(display_name="lora_name", tooltip="The LoRA's name as in loader lists."),
                io.LoraModel.Output(
                    display_name="lora_low_noise",
                    tooltip="The LoRA for the low noise model, when both experts are trained; lora is the one for "
                    "the high noise model.",
                ),
                io.String.Output(
                    display_name="lora_name_low_noise",
                    tooltip="The name of that LoRA as in loader lists; otherwise empty.",
                ),
            ],
        )

    validate_inputs = judged_when_it_runs

    @classmethod
    def fingerprint_inputs(cls, run_name: str | None = "my_lora", **_: object) -> object:
        """Returns a mark that changes with the runs of that name, and when files of a run are deleted or changed."""
        try:
            name = name_key(safe_name(run_name or "my_lora", "run_name"))
        except WanTrainerError:
            return []  # check_lazy_status raises the error
        runs = folders.runs_folder()
        own = sorted(one for one in runs.iterdir() if name_key(one.name).startswith(name)) if runs.is_dir() else []
        files = (directory / file for directory in own for file in ("run.json", *STATUS_FILES))
        return [[file_mark(path) for path in files if path.is_file()], RUNS.losses()]

    @classmethod
    def check_lazy_status(
        cls,
        model: ModelHandle,
        cache: CacheHandle | None = None,
        vae: Any = None,
        settings: SettingsHandle | None = None,
        validation: SampleConfig | None = None,
        **widgets: Any,
    ) -> list[str]:
        """Requests the cache after all widgets are checked, so that a prompt fails before clips are encoded."""
        if cache is not None:
            return []
        check_readable(widgets)
        new_run_name(widgets.get("run_name", "my_lora"))
        check_menus(TrainConfig, {"expert": widgets.get("expert", TrainConfig.expert)})
        one_of("resume", widgets.get("resume", RESUME[0]), RESUME)
        start_reference(widgets.get("start_from_lora", NONE))
        if (steps := widgets.get("steps_this_queue", 0)) < 0:
            raise ConfigError(f"steps_this_queue {steps} is out of range. Use 0 for all steps, or 1 or more.")
        if (trackers := folders.user_file("trackers.json")).is_file():
            ServerSettings.read(trackers)
        train = train_config(settings, vae is not None, widgets)
        plan = model.plan.of_expert(train.expert_name, folders.roots())
        train = replace(train, expert=expert_of(plan, train.expert))
        note_training(cls.hidden.unique_id, RequestedTraining(plan, lora_config(settings, widgets), train, validation))
        return ["cache"]  # the node of the cache then checks the training's memory (check_requested)

    @classmethod
    def execute(
        cls,
        model: ModelHandle,
        cache: CacheHandle,
        vae: Any = None,
        settings: SettingsHandle | None = None,
        validation: SampleConfig | None = None,
        run_name: str = "my_lora",
        resume: str = "auto",
        steps_this_queue: int = 0,
        **widgets: Any,
    ) -> io.NodeOutput:
        requested = RequestedJob(model, settings, vae is not None, {**widgets, "run_name": run_name})
        config = requested.config(DataConfig.of(cache.fingerprint, cache.cache_set))
        train = with_clip_values(config.train, cache.cache_set, config.model.placement.batches)
        config = with_mode(replace(config, train=train, preview=validation), folders.roots(), cache.cache_set)
        preview = RequestedTraining(config.model, config.lora, config.train, validation).sized(cache.cache_set)
        config = replace(config, preview=preview)
        codec = None
        if vae is not None and train.preview_every_n_steps:
            codec = ComfyVae(vae, str(encoder_identity(cls.hidden, "vae", vae)), model.variant.latents)
        decision = choose_run(folders.runs_folder(), config, resume=resume, elsewhere=requested.elsewhere(config))
        config = decision.job
        for one in config.train.experts if decision.action == "start" else ():
            adapters = config.of_expert(one, folders.roots()).lora
            half = one if one in EXPERTS else model.variant.expert
            check_adapters(adapters, model.variant.shape, folders.roots(), config.train, expert=half)
        if decision.action != "done":
            # After choose_run, because a resumed run keeps its own settings.
            RequestedTraining(config.model, config.lora, config.train, config.preview).check(cache.cache_set)
        job = QueuedTraining(cls.hidden, model, cache, decision)
        if decision.action != "done":
            if codec is not None and preview is not None:
                start = encode_start_images(preview, folders.cache(), cache.cache_set, model.variant, codec)
                config = replace(config, preview=start)
            job.train(config, codec, steps_this_queue)
        return job.outputs()
