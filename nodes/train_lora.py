"""Train Wan LoRA: runs the engine in a process of its own and waits for it. Queue again and it resumes, or is done."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from dataclasses import asdict, replace
from typing import Any

from comfy.cli_args import args
from comfy_api.latest import io

from ..wan_core.errors import WanTrainerError
from ..wan_core.events import CheckpointSaved, Event
from ..wan_core.files import atomic_write_json, file_identity, safe_name
from ..wan_core.load import inspect_model
from ..wan_core.lora import LoraConfig, check_peft
from ..wan_core.metrics import MetricsPages
from ..wan_core.run import (
    DataConfig,
    RunConfig,
    RunDecision,
    check_adapters,
    choose_run,
    prepare_run,
    read_run,
    with_expert,
    with_model_values,
)
from ..wan_core.sampler import SampleConfig
from ..wan_core.train import SavedStep, SaveStore, TrainConfig, earlier_meanings
from ..wan_core.words import logger
from .bridge import folders
from .bridge.interrupts import CancelButton, InterruptProcessingException
from .bridge.progress import NodeProgress, current_prompt_id, graph_of
from .bridge.sockets import ComfyVae, encoder_identity
from .bridge.start_images import encode_start_images
from .bridge.types import (
    CATEGORY,
    CacheHandle,
    ModelHandle,
    RunHandle,
    SettingsHandle,
    WanCache,
    WanRun,
    WanSettings,
    WanTrainModel,
    WanValidation,
)
from .bridge.widgets import check_menus, combo, one_of, searched_as, text, whole, widget
from .engine.asked import AskedTraining, note_training
from .engine.live_runs import LIVE, LiveRun
from .engine.session import PreviewDecoder, run_engine
from .runs.facts import RunFacts, run_report
from .runs.publish import listed_name, publish
from .runs.scrub import scrubbed

RESUME = ["auto", "new", "require"]
NONE = "none"
LORA_OUTPUT = 1

_log = logger(__name__)


class TrainLoRA(io.ComfyNode):
    """A run is a directory, output/wan_trainer/<run_name>. Which one a queue belongs to is decided by its content."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="TrainLoRA",
            display_name="Train Wan LoRA",
            category=CATEGORY,
            **searched_as("lora trainer", "finetune", "fine-tune", "musubi-tuner", "diffusion-pipe", "ai-toolkit"),
            description="Trains a LoRA in a process of its own. Cancel saves and stops; queue again to resume. A "
            "finished run trains nothing again.",
            is_output_node=True,
            hidden=[io.Hidden.unique_id, io.Hidden.prompt, io.Hidden.dynprompt, io.Hidden.extra_pnginfo],
            inputs=[
                WanTrainModel.Input("model", tooltip="From LoadWanModel, Fp8Quantize or SplitAcrossGPUs."),
                WanCache.Input("cache", lazy=True, tooltip="From CacheLatents, or another node that gives a cache."),
                io.Vae.Input(
                    "vae",
                    optional=True,
                    tooltip="VAELoader with wan_2.1_vae (TI2V-5B: wan2.2_vae). Decodes previews; without it there are "
                    "none.",
                ),
                WanSettings.Input(
                    "settings", optional=True, tooltip="From WanTrainSettings. Without it its defaults are used."
                ),
                WanValidation.Input(
                    "validation",
                    optional=True,
                    tooltip="From WanPreviewSettings. Without it the first cached caption is previewed.",
                ),
                text("run_name", "my_lora", "Folder below output/wan_trainer, and name of the LoRA."),
                widget(TrainConfig, "steps"),
                widget(TrainConfig, "learning_rate"),
                widget(LoraConfig, "rank"),
                widget(LoraConfig, "alpha"),
                *(widget(TrainConfig, name) for name in ("expert", "save_every_n_steps", "preview_every_n_steps")),
                combo(
                    "resume",
                    RESUME,
                    "auto: go on with the same job if there is one. new: start in a new folder. require: go on, or "
                    "refuse when there is nothing to go on with.",
                ),
                combo(
                    "start_from_lora",
                    [NONE, *folders.file_names("loras")],
                    "A LoRA whose weights the training starts from, at step 0. none: from nothing. To go on with a run "
                    "use resume.",
                ),
                widget(TrainConfig, "seed", control_after_generate=False),
                whole(
                    "steps_this_queue",
                    0,
                    0,
                    10_000_000,
                    "Optimizer steps to train in this queue; then the graph goes on, and the next queue resumes. 0 = "
                    "all.",
                ),
                widget(TrainConfig, "blocks_to_swap"),
            ],
            outputs=[
                WanRun.Output(display_name="run", tooltip="For ValidateVideo and ApplyWanLoRA."),
                io.LoraModel.Output(display_name="lora", tooltip="For core LoraModelLoader and SaveLoRA."),
                io.LossMap.Output(display_name="loss_map", tooltip="For core LossGraphNode."),
                io.Int.Output(display_name="steps", tooltip="The newest saved step."),
                io.String.Output(display_name="lora_name", tooltip="The LoRA as loader lists spell it."),
            ],
        )

    @classmethod
    async def validate_inputs(cls, run_name: str | None = None) -> bool | str:
        """Refuses, before clips are encoded for an hour, what could not be trained after it."""
        try:
            if run_name is not None:
                safe_name(run_name, "run_name")
            await asyncio.to_thread(check_peft)  # the first import takes seconds, in which the server must answer
        except WanTrainerError as error:
            return str(error)
        return True

    @classmethod
    def fingerprint_inputs(cls, run_name: str | None = "my_lora", **_: object) -> object:
        """Returns a mark that changes with the runs of that name, so that a deleted or unfinished one is read again."""
        runs = folders.runs_folder()
        found = sorted(runs.glob(f"{safe_name(run_name or 'my_lora', 'run_name')}*/*.json")) if runs.is_dir() else []
        return [file_identity(path)[1:] for path in found if path.name in ("run.json", "status.json")]

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
        """Asks for the clips once all else is known, so that whoever encodes them can refuse what does not fit."""
        if cache is not None:
            return []
        names = ("steps", "learning_rate", "expert", "preview_every_n_steps", "blocks_to_swap")
        train = _train_config(settings, vae is not None, {k: widgets[k] for k in names if k in widgets})
        plan = model.plan.of_expert(train.expert, folders.roots())
        base = settings.lora if settings is not None else LoraConfig()
        lora = replace(base, rank=widgets.get("rank", LoraConfig.rank))
        note_training(cls.hidden.unique_id, AskedTraining(plan, lora, train, validation))
        return ["cache"]

    @classmethod
    def execute(
        cls,
        model: ModelHandle,
        cache: CacheHandle,
        vae: Any = None,
        settings: SettingsHandle | None = None,
        validation: SampleConfig | None = None,
        run_name: str = "my_lora",
        steps: int = TrainConfig.steps,
        learning_rate: float = TrainConfig.learning_rate,
        rank: int = LoraConfig.rank,
        alpha: float = LoraConfig.alpha,
        expert: str = TrainConfig.expert,
        save_every_n_steps: int = TrainConfig.save_every_n_steps,
        preview_every_n_steps: int = TrainConfig.preview_every_n_steps,
        resume: str = "auto",
        start_from_lora: str = NONE,
        seed: int = TrainConfig.seed,
        steps_this_queue: int = 0,
        blocks_to_swap: int = TrainConfig.blocks_to_swap,
    ) -> io.NodeOutput:
        check_peft()
        base = settings.lora if settings is not None else LoraConfig()
        plan = model.plan.of_expert(expert, folders.roots())
        check_menus(TrainConfig, {"expert": expert})
        train = _train_config(
            settings,
            vae is not None,
            {
                "steps": steps,
                "learning_rate": learning_rate,
                "expert": expert,
                "save_every_n_steps": save_every_n_steps,
                "preview_every_n_steps": preview_every_n_steps,
                "seed": seed,
                "blocks_to_swap": blocks_to_swap,
            },
        )
        variant = with_expert(inspect_model(plan, folders.roots()).variant, expert)
        config = RunConfig(
            run_name=run_name,
            model=plan,
            data=DataConfig(fingerprint=cache.fingerprint, num_items=len(cache.cache_set.items)),
            lora=LoraConfig(
                rank=rank,
                alpha=alpha,
                dropout=base.dropout,
                targets=base.targets,
                start_from=_start_from(start_from_lora),
            ),
            train=with_model_values(train, variant),
            preview=validation,
        ).with_digests(folders.roots())
        codec = cls._codec(vae, model) if vae is not None and preview_every_n_steps else None
        decision = choose_run(
            folders.runs_folder(),
            config,
            resume=one_of("resume", resume, RESUME),
            earlier=_earlier(config, model, train, settings),
        )
        config = decision.job
        if decision.action == "start":
            check_adapters(config.lora, model.variant.shape, folders.roots())
        if decision.action != "done":
            AskedTraining(config.model, config.lora, config.train, config.preview).check(cache.cache_set)
        job = _Job(cls.hidden, model, cache, decision)
        if decision.action != "done":
            if codec is not None and validation is not None:
                start = encode_start_images(validation, folders.cache(), cache.cache_set, model.variant, codec)
                config = replace(config, preview=start)
            job.train(config, codec, steps_this_queue)
        return job.outputs()

    @classmethod
    def _codec(cls, vae: Any, model: ModelHandle) -> ComfyVae:
        identity = encoder_identity(cls.hidden.dynprompt, cls.hidden.unique_id, "vae", vae, folders.cache())
        return ComfyVae(vae, str(identity), model.variant.latents)


class _Job:
    """One execution of the node on one run directory."""

    def __init__(self, hidden: Any, model: ModelHandle, cache: CacheHandle, decision: RunDecision) -> None:
        self._hidden, self._model, self._cache = hidden, model, cache
        self._decision, self.directory = decision, decision.directory
        self._store = SaveStore(self.directory)
        self._stop_pressed = False
        self._button = CancelButton()
        lines = MetricsPages(self.directory / "metrics.jsonl")
        self._progress = NodeProgress(
            hidden.unique_id,
            self._button,
            graph=graph_of(hidden),
            facts=lambda: {"metrics_lines": lines.count()},
        )
        self._progress.say(decision.note, now=True, run=self.directory.name, state=decision.action)
        _log.info("%s", decision.note)

    def train(self, config: RunConfig, codec: ComfyVae | None, steps_this_queue: int) -> None:
        """Run the engine. A cancelled run is saved and published, then the node reports itself interrupted."""
        prepare_run(self._decision, config)
        self._write_workflow()
        decoder = PreviewDecoder(codec, self.directory, self._model.variant.fps) if codec is not None else None
        with self._published_if_it_fails(), LIVE.entered(self._live(codec is not None)) as live:
            ending = run_engine(
                "train",
                self.directory,
                *_engine_options(steps_this_queue, self._encoding_seconds()),
                progress=self._progress,
                button=self._button,
                decoder=decoder,
                on_event=self._on_event,
                live=live,
            )
        self._stop_pressed = live.stop_pressed
        if ending.cancelled:
            self._publish_latest()
            raise InterruptProcessingException()

    @contextlib.contextmanager
    def _published_if_it_fails(self) -> Iterator[None]:
        """The newest saved step of a run that failed may be no good: the newest LoRA is then an older one."""
        try:
            yield
        except WanTrainerError:
            try:
                self._publish_latest()
            except (WanTrainerError, OSError) as error:  # why the run failed says more
                _log.warning("%s", error)
            raise

    def _encoding_seconds(self) -> float:
        """Returns the seconds encoding took in this queue entry; an older cache belongs to an earlier run."""
        return self._cache.report.seconds if self._cache.prompt_id == current_prompt_id() else 0.0

    def _live(self, can_preview: bool) -> LiveRun:
        return LiveRun(
            run=self.directory.name,
            node=self._hidden.unique_id,
            prompt_id=current_prompt_id(),
            variant=self._model.variant.name,
            can_preview=can_preview,
        )

    def outputs(self) -> io.NodeOutput:
        """Reads everything from disk: the same after training, after a restart, and when there was nothing to do."""
        saved = self._publish_latest()
        facts = RunFacts(self.directory)
        step = saved.step if saved is not None else 0
        name = listed_name(self.directory.name) if saved is not None else ""
        run = RunHandle(self.directory, step, self._model.variant.fps)
        lora = _read_lora(saved) if saved is not None and self._is_linked(LORA_OUTPUT) else None
        return io.NodeOutput(run, lora, {"loss": facts.losses}, step, name, ui=self._ui(facts, step))

    def _ui(self, facts: RunFacts, step: int) -> dict[str, Any]:
        loras, note = folders.publish_folder(), self._decision.note
        report = run_report(self.directory, facts, step, loras, note=note, stop_pressed=self._stop_pressed)
        status, samples = report["status"], report["samples"]
        about = {"kind": "ended", "state": status, "step": step, "steps": report["steps"]}
        self._progress.say(f"{status}: step {step} of {report['steps']}", now=True, about=about, state=status)
        return {"wan_run": [{**report, "cache": self._cache_counts()}], "images": samples[-1:], "animated": [True]}

    def _cache_counts(self) -> dict[str, int]:
        """Returns what CacheLatents did for this queue; an older answer, which ComfyUI keeps, means all was reused."""
        counts = {k: v for k, v in asdict(self._cache.report).items() if isinstance(v, int)}
        if self._cache.prompt_id != current_prompt_id():
            for kind in ("latents", "texts", "conditions"):
                counts[f"{kind}_reused"] += counts[f"{kind}_encoded"]
                counts[f"{kind}_encoded"] = 0
        return counts

    def _on_event(self, event: Event) -> None:
        if isinstance(event, CheckpointSaved) and (saved := self._store.read(event.step)) is not None:
            try:
                publish(self.directory, saved)
            except WanTrainerError as error:  # the save itself stands; training is worth more than the copy
                _log.warning("%s", error)

    def _publish_latest(self) -> SavedStep | None:
        saved = self._store.latest(read_run(self.directory).job_id)
        if saved is not None:
            publish(self.directory, saved)
        return saved

    def _write_workflow(self) -> None:
        graph = (self._hidden.extra_pnginfo or {}).get("workflow") or self._hidden.prompt
        atomic_write_json(self.directory / "workflow.json", scrubbed(graph))

    def _is_linked(self, output: int) -> bool:
        """Returns whether anything in the queue takes this output."""
        prompt, link = self._hidden.dynprompt, [self._hidden.unique_id, output]
        nodes = (prompt.get_node(node_id) for node_id in prompt.all_node_ids())
        return any(value == link for node in nodes for value in node["inputs"].values())


def _train_config(settings: SettingsHandle | None, can_preview: bool, widgets: dict[str, Any]) -> TrainConfig:
    train = TrainConfig.from_dict({**(dict(settings.train) if settings is not None else {}), **widgets})
    return train if can_preview else replace(train, preview_every_n_steps=0)


def _earlier(
    config: RunConfig, model: ModelHandle, asked: TrainConfig, settings: SettingsHandle | None
) -> list[RunConfig]:
    """Returns what the same graph meant to earlier versions: their runs go on as they began."""
    left_out = ["discrete_flow_shift"] if asked.discrete_flow_shift == 0 else []
    left_out += ["lr_scheduler"] if settings is None else []
    trains = earlier_meanings(config.train, left_out)
    plans = [config.model, *model.earlier(config.model)]
    return [replace(config, model=plan, train=train) for train in trains for plan in plans][1:]


def _engine_options(steps_this_queue: int, cache_seconds: float) -> list[str]:
    """A LoRA carries the graph it came from, unless ComfyUI was started with --disable-metadata."""
    limit = ["--max-steps", str(steps_this_queue)] if steps_this_queue else []
    spent = ["--cache-seconds", str(cache_seconds)] if cache_seconds else []
    return [*limit, *spent, *([] if args.disable_metadata else ["--embed-workflow"])]


def _start_from(name: str) -> str:
    if name == NONE:
        return ""
    one_of("start_from_lora", name, [NONE, *folders.file_names("loras")])
    return folders.model_reference("loras", name)


def _read_lora(saved: SavedStep) -> dict[str, Any]:
    from safetensors.torch import load_file

    return load_file(saved.lora_file)
