"""Wan Video Dataset: scans a folder of clips or stills with captions, and cuts them for the model."""

from __future__ import annotations

from typing import Any

from comfy_api.latest import io

from ..wan_core.dataset import (
    Dataset,
    DatasetConfig,
    fingerprint_of_folder,
    scan_folder,
)
from ..wan_core.errors import WanTrainerError
from ..wan_core.video import require_pyav
from .bridge.folders import allowed_places, dataset_folder, dataset_folders, dataset_reference
from .bridge.progress import announced
from .bridge.scanning import chosen_elsewhere, dataset_input, dataset_outputs, scanned_output
from .bridge.types import CATEGORY, DatasetSettingsHandle, ModelHandle
from .bridge.widgets import advanced, combo, searched_as, widget


class WanVideoDataset(io.ComfyNode):
    """An output node, so that "run selected" scans a folder without training."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="WanVideoDataset",
            display_name="Wan Video Dataset",
            category=CATEGORY,
            **searched_as("training data", "load videos", "clips", "captions", "buckets", "finetune dataset"),
            description="Scans a folder of clips (or stills), each with a caption file of the same name. Reports which "
            "frames are trained, at which size, and what was skipped and why.",
            is_output_node=True,
            hidden=[io.Hidden.unique_id, io.Hidden.prompt],
            inputs=[
                dataset_input("model"),
                combo(
                    "folder",
                    dataset_folders(),
                    "Folder of your clips: in ComfyUI's input folder, or in a root listed in "
                    "user/wan_trainer/roots.json. The default is the first folder.",
                ),
                widget(DatasetConfig, "trigger_word"),
                *advanced(widget(DatasetConfig, "caption_extension")),
                *(widget(DatasetConfig, name) for name in ("width", "height", "num_frames")),
                *advanced(
                    dataset_input("force_rate"),
                    widget(DatasetConfig, "num_repeats"),
                    widget(DatasetConfig, "enable_bucket"),
                ),
                dataset_input("append_to"),
                dataset_input("settings"),
            ],
            outputs=dataset_outputs(),
        )

    @classmethod
    def validate_inputs(cls, folder: str | None = None) -> bool | str:
        """Refuses a missing folder when the graph is queued, in place of ComfyUI's menu check, without new folders."""
        try:
            require_pyav()
            if folder is not None:  # None: linked, so the value is known only when the node runs
                dataset_folder(folder)
        except WanTrainerError as error:
            return announced(error)
        return True

    @classmethod
    def fingerprint_inputs(cls, folder: str | None = None, **_: object) -> str:
        # Recursive, because it is not known yet whether subfolders count.
        return fingerprint_of_folder(dataset_folder(folder), recursive=True, allowed=allowed_places())

    @classmethod
    def execute(
        cls,
        model: ModelHandle,
        folder: str | None = None,
        force_rate: float = 0.0,
        append_to: Dataset | None = None,
        settings: DatasetSettingsHandle | None = None,
        **values: Any,
    ) -> io.NodeOutput:
        elsewhere = chosen_elsewhere(model, force_rate, settings)
        config = DatasetConfig(folder=dataset_reference(folder), **values, **elsewhere)
        return scanned_output(cls, append_to, lambda context: (scan_folder(config, dataset_folder(folder), context),))
