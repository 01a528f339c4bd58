"""Wan Video Dataset: scans a folder, and cuts its clips for the model. Wan Dataset Settings: how."""

from __future__ import annotations

from typing import Any

from comfy_api.latest import io

from ..wan_core.dataset import Dataset, DatasetConfig, fingerprint_of_folder, scan_folder
from ..wan_core.errors import ConfigError, WanTrainerError
from ..wan_core.video import require_pyav
from .bridge.folders import allowed_places, dataset_folder, dataset_folders, dataset_reference
from .bridge.progress import announced
from .bridge.scanning import chosen_elsewhere, dataset_input, dataset_outputs, scanned_output
from .bridge.types import DatasetSettingsHandle, ModelHandle, WanDatasetSettingsType
from .bridge.widgets import advanced, check_menus, combo, in_menu, numbers_of, widget, widgets


class WanVideoDataset(io.ComfyNode):
    """An output node, so that "run selected" scans a folder without training."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="WanVideoDataset",
            display_name="Wan Video Dataset",
            **in_menu("training data, load videos, clips, captions, buckets, finetune dataset"),
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
                *widgets(DatasetConfig, "width height num_frames"),
                *advanced(dataset_input("force_rate"), *widgets(DatasetConfig, "num_repeats enable_bucket")),
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
        return fingerprint_of_folder(dataset_folder(folder), allowed=allowed_places())

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


_NEW_HELD_OUT_RATIO = -1.0
"""default of a new node: a few files, if there are enough; a queued graph without the widget means 0"""


class WanDatasetSettings(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="WanDatasetSettings",
            display_name="Wan Dataset Settings",
            **in_menu("frame extraction, frame buckets, crop, flip, scene cuts, held out clips, masks"),
            description="Sets which frames and which part of the picture are trained. Optional: Wan Video Dataset "
            "works without it.",
            inputs=[
                widget(DatasetConfig, "frame_extraction"),
                *_advanced("frame_stride frame_sample frame_buckets frame_rounding"),
                *widgets(DatasetConfig, "crop horizontal_flip"),
                *_advanced("variants split_scenes scene_threshold recursive weight caption_prefix caption_shuffles"),
                *_advanced("keep_tokens"),
                widget(DatasetConfig, "missing_captions"),
                *_advanced("mask_use"),
                widget(DatasetConfig, "held_out_ratio", default=_NEW_HELD_OUT_RATIO),
                *advanced(widget(DatasetConfig, "held_out", multiline=True)),
                *_advanced("latent_dtype cache_compression cache_limit_gb prior_preservation class_preservation"),
                *_advanced("class_word"),
            ],
            outputs=[
                WanDatasetSettingsType.Output(
                    display_name="settings", tooltip="For Wan Video Dataset and Wan Dataset From File."
                )
            ],
        )

    @classmethod
    def execute(cls, frame_buckets: str = "", held_out: str = "", **values: Any) -> io.NodeOutput:
        check_menus(DatasetConfig, values)
        values["frame_buckets"] = numbers_of("frame_buckets", frame_buckets, int, "lengths", "17, 33, 81")
        # Lines of file names, and at most one folder, which ends in /.
        names = [line.strip() for line in held_out.splitlines() if line.strip()]
        files, dirs = (tuple(one for one in names if one.endswith("/") is is_dir) for is_dir in (False, True))
        if len(dirs) > 1:
            listed = ", ".join(one.rstrip("/") for one in dirs)[:200]
            raise ConfigError(f"held_out names {len(dirs)} folders ({listed}). Name one, or the files.")
        values |= {"held_out": files} if files else {}
        values |= {"held_out_folder": dirs[0].rstrip("/")} if dirs else {}
        # A check without num_frames and other settings of WanVideoDataset.
        DatasetConfig.from_dict(values)
        return io.NodeOutput(DatasetSettingsHandle(tuple(values.items())))


def _advanced(names: str) -> list[io.Input]:
    return advanced(*widgets(DatasetConfig, names))
