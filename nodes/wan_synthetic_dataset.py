"""Wan Synthetic Dataset (benchmark): random tensors in the shapes of the model, instead of encoded clips."""

from __future__ import annotations

from typing import Any

from comfy_api.latest import io

from ..wan_core.cache import SyntheticConfig, report_of, synthetic_note, synthetic_set
from .bridge import folders
from .bridge.handed import cache_state, hand_cache
from .bridge.types import CATEGORY, ModelHandle, WanCache, WanTrainModel
from .bridge.widgets import advanced, searched_as, widget


class WanSyntheticDataset(io.ComfyNode):
    """Returns a cache set whose entries the trainer draws when it reads them; only their list is on disk."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="WanSyntheticDataset",
            display_name="Wan Synthetic Dataset (benchmark)",
            category=CATEGORY,
            **searched_as("random data", "dummy data", "smoke test"),
            description="Random latents and captions for benchmarks and smoke tests: no clip, no VAE, no text "
            "encoder. A LoRA trained on them learns nothing, and its file says so.",
            inputs=[
                WanTrainModel.Input(
                    "model",
                    tooltip="The model to train, from Load Wan Model. It determines the channels, the size multiple "
                    "and the conditioning.",
                ),
                *(widget(SyntheticConfig, name) for name in ("count", "width", "height", "num_frames")),
                *advanced(
                    widget(SyntheticConfig, "text_length"),
                    widget(SyntheticConfig, "seed", control_after_generate=False),
                ),
            ],
            outputs=[
                WanCache.Output(
                    display_name="cache", tooltip="For Train Wan LoRA, instead of Cache Latents + Captions."
                ),
                io.String.Output(display_name="report", tooltip="Report of what will be drawn."),
            ],
        )

    @classmethod
    def fingerprint_inputs(cls, **_: object) -> object:
        return cache_state()

    @classmethod
    def execute(cls, model: ModelHandle, **values: Any) -> io.NodeOutput:
        config = SyntheticConfig(**values)
        shape = model.variant.shape
        made = synthetic_set(
            config,
            space=model.variant.latents,
            size_multiple=model.variant.size_multiple,
            kind=model.variant.conditioning,
            condition_channels=shape.vace_channels if shape.vace_layers else shape.condition_channels,
            fps=model.variant.fps,
        )
        endless = "endless random clips, none twice"
        clips = f"{config.count} random clips, the same in every epoch" if config.count else endless
        text = (
            f"{clips}: {config.width}x{config.height}, {config.num_frames} frames, {config.text_length} tokens; "
            f"nothing is encoded and no clip is written\n{synthetic_note(made)}"
        )
        report = report_of(made, folders.cache().write_set(made), 0.0, {}, {})
        handle = hand_cache(report, made)
        return io.NodeOutput(handle, text, ui={"text": [text]})
