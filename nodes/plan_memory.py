"""Plan Memory (Wan): predicts whether a training fits, its memory and its time."""

from __future__ import annotations

from dataclasses import replace

from comfy_api.latest import io

from ..wan_core.footprint import weights_once_loaded
from ..wan_core.job import with_expert
from ..wan_core.lora import LoraConfig
from ..wan_core.placement import FreeMemory
from ..wan_core.plan import MemoryPlan, cards_of_step, plan_here, plan_memory, plan_sentences
from ..wan_core.train import TrainConfig, expert_named
from .bridge import folders
from .bridge.held_models import held_models, idle_bytes, in_words
from .bridge.types import CacheHandle, ModelHandle, SettingsHandle, WanCache, WanSettings, WanTrainModel
from .bridge.widgets import check_menus, in_menu, widget, widget_values, widgets
from .engine.requested import RequestedTraining
from .runs.job import expert_of, lora_config, train_config


class PlanMemory(io.ComfyNode):
    """Reads headers and the sizes of clips; loads no weights."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="PlanMemory",
            display_name="Plan Memory (Wan)",
            **in_menu("vram, out of memory, oom, memory estimate, block swap, offload"),
            description="Predicts how much memory a training needs on each GPU and in host memory (RAM), which "
            "settings make it fit, and how long a step takes. It trains and loads nothing.",
            is_output_node=True,
            hidden=[io.Hidden.unique_id, io.Hidden.prompt],
            inputs=[
                WanTrainModel.Input("model", tooltip="From Load Wan Model, or any node that changes its output."),
                WanCache.Input("cache", tooltip="From Cache Latents + Captions, or another node that outputs a cache."),
                WanSettings.Input("settings", optional=True, tooltip="From Wan Train Settings, as for Train Wan LoRA."),
                widget(LoraConfig, "rank"),
                *widgets(TrainConfig, "expert blocks_to_swap"),
            ],
            outputs=[
                io.String.Output(
                    display_name="report",
                    tooltip="Predicted memory in GiB, for each device and phase, and the settings that make it fit.",
                ),
                io.Boolean.Output(display_name="fits", tooltip="Whether the training fits into free memory."),
            ],
        )

    @classmethod
    def execute(
        cls,
        model: ModelHandle,
        cache: CacheHandle,
        settings: SettingsHandle | None = None,
        rank: int = LoraConfig.rank,
        expert: str = TrainConfig.expert,
        blocks_to_swap: int = TrainConfig.blocks_to_swap,
    ) -> io.NodeOutput:
        check_menus(TrainConfig, {"expert": expert})
        widgets = {"rank": rank, "expert": expert, "blocks_to_swap": blocks_to_swap}
        train, lora = train_config(settings, True, widgets), lora_config(settings, widgets)
        roots = folders.roots()
        plan = model.plan.of_expert(expert_named(expert), roots)
        training = RequestedTraining(plan, lora, replace(train, expert=expert_of(plan, expert)), preview=None)
        plans: list[MemoryPlan] = []
        for job in (training.job(one, cache.cache_set) for one in training.train.experts):
            with_expert(job.file.variant, job.train.expert)  # refuses a file of another expert
            # Without a GPU, the plan has no memory limit.
            plans.append(plan_here(job, idle_bytes()) or plan_memory(job, FreeMemory(devices={})))
        largest = max(plans, key=lambda one: max((m.peak for m in one.estimate.devices.values()), default=0))
        report = plan_sentences(largest)
        if held := in_words(held_models()):
            report += f"\nComfyUI holds {held} of RAM; a training first releases the models that no later node needs."
        if len(plans) > 1:
            offloaded = max(weights_once_loaded(one.job.model, one.job.file) for one in plans) / 2**30
            report += (
                f"\nThe two experts take turns on the device. The other one takes {offloaded:.1f} GiB of host "
                "memory if that is free; otherwise it is read from disk again."
            )
        drawn = cards_of_step(largest, largest.card)
        facts = {
            "version": 1,
            "report": report,
            "cards": None if drawn is None else drawn.to_dict(),
            "asked": widget_values(cls),
        }
        return io.NodeOutput(report, all(one.fits for one in plans), ui={"text": [report], "wan_plan": [facts]})
