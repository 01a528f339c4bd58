"""Plan Memory (Wan): whether a training fits, and what it takes, before anything is trained."""

from __future__ import annotations

import asyncio

from comfy_api.latest import io

from ..wan_core.errors import WanTrainerError
from ..wan_core.lora import LoraConfig, check_peft
from ..wan_core.placement import Room
from ..wan_core.run import job_on_clips, plan_here, plan_memory, plan_sentences, with_expert
from ..wan_core.train import TrainConfig
from .bridge import folders
from .bridge.types import CATEGORY, CacheHandle, ModelHandle, SettingsHandle, WanCache, WanSettings, WanTrainModel
from .bridge.widgets import check_menus, searched_as, widget


class PlanMemory(io.ComfyNode):
    """Reads headers and the sizes of the clips; no weight is loaded."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="PlanMemory",
            display_name="Plan Memory (Wan)",
            category=CATEGORY,
            **searched_as("vram", "out of memory", "oom", "memory estimate", "block swap", "offload"),
            description="Says how much memory a training will take on each GPU and in the computer, which measures it "
            "will take to fit, and how long a step lasts. Trains nothing and loads nothing.",
            is_output_node=True,
            inputs=[
                WanTrainModel.Input("model", tooltip="From LoadWanModel, or any node that changes its plan."),
                WanCache.Input("cache", tooltip="From CacheLatents, or another node that gives a cache."),
                WanSettings.Input("settings", optional=True, tooltip="From WanTrainSettings, as for TrainLoRA."),
                widget(LoraConfig, "rank"),
                widget(TrainConfig, "expert"),
                widget(TrainConfig, "blocks_to_swap"),
            ],
            outputs=[
                io.String.Output(display_name="report", tooltip="Each device, phase and measure in GiB."),
                io.Boolean.Output(display_name="fits", tooltip="Whether it fits into what is free now."),
            ],
        )

    @classmethod
    async def validate_inputs(cls, model: object = None) -> bool | str:
        """Refuses before clips are encoded for an hour. Names an input, because ComfyUI asks only about such."""
        try:
            await asyncio.to_thread(check_peft)
        except WanTrainerError as error:
            return str(error)
        return True

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
        given = dict(settings.train) if settings is not None else {}
        train = TrainConfig.from_dict({**given, "expert": expert, "blocks_to_swap": blocks_to_swap})
        lora = LoraConfig(rank=rank, targets=settings.lora.targets if settings is not None else LoraConfig.targets)
        roots = folders.roots()
        job = job_on_clips(model.plan.of_expert(expert, roots), roots, lora, train, cache.cache_set)
        with_expert(job.file.variant, expert)
        plan = plan_here(job) or plan_memory(job, Room(devices={}))
        report = plan_sentences(plan)
        return io.NodeOutput(report, plan.fits, ui={"text": [report]})
