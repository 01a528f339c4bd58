"""Precision Audit (Wan): measures the error of each precision switch with a model and its clips."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from comfy_api.latest import io

from ..wan_core.audit import REPORT_FILE, AuditConfig, read_report
from ..wan_core.errors import ConfigError
from ..wan_core.events import Event, Stage
from ..wan_core.files import atomic_write_json
from ..wan_core.job import DataConfig, RunConfig
from .bridge import folders
from .bridge.interrupts import CancelButton, InterruptProcessingException
from .bridge.progress import NodeProgress
from .bridge.types import CacheHandle, ModelHandle, WanCache, WanTrainModel
from .bridge.widgets import in_menu, widgets
from .engine.session import run_engine
from .runs.facts import short_digest


class PrecisionAudit(io.ComfyNode):
    """The report is stored under a digest of model, clips and settings, so an equal queue only reads it."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="PrecisionAudit",
            display_name="Precision Audit (Wan)",
            **in_menu("quantization error, numerical error, float32 reference, compare precision"),
            description="Measures how far each precision preset and switch differs from float32, on your own model "
            "and clips: error of the prediction and of the LoRA's gradients. It trains nothing.",
            is_output_node=True,
            hidden=[io.Hidden.unique_id],
            inputs=[
                WanTrainModel.Input("model", tooltip="From Load Wan Model, or any node that changes its output."),
                WanCache.Input(
                    "cache",
                    tooltip="From Cache Latents + Captions, or another node that outputs a cache. A short clip is "
                    "enough.",
                ),
                *widgets(AuditConfig, "clips timesteps alone"),
            ],
            outputs=[
                io.String.Output(
                    display_name="report", tooltip="The ranking as a table. Also saved in the output folder."
                ),
            ],
        )

    @classmethod
    def execute(cls, model: ModelHandle, cache: CacheHandle, **values: Any) -> io.NodeOutput:
        if model.plan.low_noise_file:
            raise ConfigError("Precision Audit measures one model. Set low_noise_model of Load Wan Model to none.")
        config = AuditConfig(**values)
        run = RunConfig(
            run_name="precision_audit",
            model=model.plan,
            data=DataConfig.of(cache.fingerprint, cache.cache_set),
        ).with_digests(folders.roots())
        identity = {
            "job": run.job_id,
            # Included although a job's identity lacks it, because devices round differently.
            "placement": run.model.placement.to_dict(),
            "audit": config.to_dict(),
            "pack": run.pack_version,
            "torch": torch.__version__,
        }
        model_name = Path(run.model.base_file.rpartition(":")[2]).stem
        directory = folders.runs_folder() / "_audits" / f"{model_name}-{short_digest(identity)}"
        progress = NodeProgress(cls.hidden.unique_id, button := CancelButton(), pictures=False)

        def on_event(event: Event) -> None:
            if isinstance(event, Stage) and event.stage == "audit":
                progress.bar(event.done, event.total)

        if not (directory / REPORT_FILE).is_file():
            atomic_write_json(directory / "run.json", run.to_dict(), directory.parent)
            options = ["--clips", str(config.clips), "--timesteps", str(config.timesteps)]
            options += ["--alone"] if config.alone else []
            ending = run_engine(
                "audit", directory, *options, progress=progress, button=button, decoder=None, on_event=on_event
            )
            if ending.cancelled:
                raise InterruptProcessingException()
        report = read_report(directory).table()
        progress.say("precision measured", now=True, state="done")
        return io.NodeOutput(report, ui={"text": [report]})
