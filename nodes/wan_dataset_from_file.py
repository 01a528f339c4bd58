"""Wan Dataset From File: clips and captions from a list, a tar, a dataset on disk or another trainer's settings."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from comfy import model_management as mm
from comfy_api.latest import io

from ..wan_core.dataset import Dataset, DatasetConfig, allowed_file, named_roots, scan_parts
from ..wan_core.errors import WanTrainerError
from ..wan_core.importers import (
    Columns,
    SourceFile,
    list_sources,
    open_source,
    source_fingerprint,
    stated_mark,
    stated_settings,
)
from ..wan_core.video import require_pyav
from .bridge import folders
from .bridge.progress import announced
from .bridge.scanning import chosen_elsewhere, dataset_input, dataset_outputs, scanned_output
from .bridge.types import DatasetSettingsHandle, ModelHandle
from .bridge.widgets import advanced, combo, flag, in_menu, text, widget

_ROLES = ("path", "caption", "repeats", "control", "mask")


class WanDatasetFromFile(io.ComfyNode):
    """An output node, so that "run selected" reads the file without training."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        usual = "Empty: common names are tried. Set it when yours has another name."
        return io.Schema(
            node_id="WanDatasetFromFile",
            display_name="Wan Dataset From File",
            **in_menu("jsonl, csv, webdataset, hugging face, musubi, diffusion-pipe, ai-toolkit"),
            description="Reads a list of clips with captions (jsonl, json, csv, tsv, parquet), a WebDataset tar, a "
            "Hugging Face dataset on disk, or the dataset settings of musubi-tuner, diffusion-pipe, SimpleTuner or "
            "ai-toolkit. Reports what happened to every row and every setting.",
            is_output_node=True,
            hidden=[io.Hidden.unique_id, io.Hidden.prompt],
            inputs=[
                dataset_input("model"),
                combo(
                    "file",
                    _source_files(),
                    "A list, tar, dataset folder or settings file in ComfyUI's input folder, or in a root listed in "
                    "user/wan_trainer/roots.json. The default is the first file.",
                ),
                *advanced(
                    text(
                        "other_file",
                        "",
                        "Path to use instead of file: below the input folder or a listed root, or root:path. Empty: "
                        "file is used. Set it when the menu does not list your file.",
                    ),
                    text("path_column", "", f"Column with the path of each clip, relative to the list. {usual}"),
                    text("caption_column", "", f"Column with the captions. {usual}"),
                    text("repeats_column", "", f"Column with the number of repeats of each clip per epoch. {usual}"),
                    text("control_column", "", f"Column with the control video of each clip. {usual}"),
                    text("mask_column", "", f"Column with the mask of each clip (white = inside). {usual}"),
                ),
                widget(
                    DatasetConfig,
                    "trigger_word",
                    tooltip="Word that is added to the start of every caption that lacks it. Empty: none. Set a rare "
                    "word when you train one subject or style.",
                ),
                *advanced(
                    widget(
                        DatasetConfig,
                        "caption_extension",
                        tooltip="File extension of caption files, for clips without a caption in the list: clip.mp4 "
                        "has its caption in clip.txt. Change it when your caption files end differently.",
                    )
                ),
                widget(DatasetConfig, "width"),
                widget(DatasetConfig, "height"),
                widget(
                    DatasetConfig,
                    "num_frames",
                    tooltip="Frames per clip: 4n+1. 1 trains on stills. Raise it for longer motion, which takes more "
                    "memory and time.",
                ),
                *advanced(
                    dataset_input("force_rate"),
                    widget(
                        DatasetConfig,
                        "num_repeats",
                        tooltip="How often each clip is trained in one epoch, times the repeats in the list. Raise it "
                        "for a small dataset that is trained with a large one.",
                    ),
                    widget(DatasetConfig, "weight"),
                    widget(DatasetConfig, "enable_bucket"),
                ),
                flag(
                    "use_file_settings",
                    True,
                    "Use size, frames, repeats and captions from another trainer's settings file where it states them. "
                    "Off: the widgets are used. Turn it off to set them on this node.",
                ),
                dataset_input("append_to"),
                dataset_input("settings"),
            ],
            outputs=dataset_outputs(),
        )

    @classmethod
    def validate_inputs(cls, file: str | None = None, other_file: str | None = "") -> bool | str:
        """Refuses a missing file when the graph is queued, in place of ComfyUI's menu check, which refuses new ones."""
        try:
            require_pyav()
            if other_file is not None and (file is not None or other_file):  # None: linked or absent
                _file(file, other_file)
        except WanTrainerError as error:
            return announced(error)
        return True

    @classmethod
    def fingerprint_inputs(
        cls,
        file: str | None = None,
        other_file: str = "",
        caption_extension: str = DatasetConfig.caption_extension,
        **columns: object,
    ) -> str:
        source = SourceFile(
            path=_file(file, other_file),
            columns=_columns(columns),
            allowed=folders.allowed_places(),
            should_stop=mm.processing_interrupted,
        )
        return source_fingerprint(source, caption_extension)

    @classmethod
    def stated_sizes(
        cls,
        file: str | None = None,
        other_file: str = "",
        width: int = DatasetConfig.width,
        height: int = DatasetConfig.height,
        num_frames: int = DatasetConfig.num_frames,
        **_others: object,
    ) -> list[tuple[int, int, int]]:
        """Returns (width, height, frames) of each dataset in another trainer's settings; widgets are the fallback.

        Raises WanTrainerError if the file cannot be read.
        """
        stated = stated_settings(SourceFile(path=_file(file, other_file), allowed=folders.allowed_places()))
        own = {"width": width, "height": height, "num_frames": num_frames}
        return [tuple(int({**own, **settings}[side]) for side in own) for settings in stated]  # type: ignore[misc]

    @classmethod
    def stated_mark(cls, file: str | None = None, other_file: str = "", **_others: object) -> str:
        """Returns a mark of the files of `stated_sizes`. Raises WanTrainerError if the file cannot be read."""
        return stated_mark(SourceFile(path=_file(file, other_file), allowed=folders.allowed_places()))

    @classmethod
    def execute(
        cls,
        model: ModelHandle,
        file: str | None = None,
        other_file: str = "",
        force_rate: float = 0.0,
        weight: float = DatasetConfig.weight,
        use_file_settings: bool = True,
        append_to: Dataset | None = None,
        settings: DatasetSettingsHandle | None = None,
        **values: Any,
    ) -> io.NodeOutput:
        path = _file(file, other_file)
        elsewhere = chosen_elsewhere(model, force_rate, settings)
        elsewhere["weight"] = weight * elsewhere.get("weight", 1.0)
        own = {name: value for name, value in values.items() if not name.endswith("_column")}
        config = DatasetConfig(folder=path.name, **own, **elsewhere)
        parts = open_source(
            SourceFile(
                path=path,
                columns=_columns(values),
                allowed=folders.allowed_places(),
                unpacked=folders.cache().root / "unpacked",
                size_multiple=config.size_multiple,
                fps=config.fps,
                should_stop=mm.processing_interrupted,
            )
        )
        return scanned_output(
            cls, append_to, lambda context: scan_parts(config, parts, context, use_settings=use_file_settings)
        )


def _source_files() -> list[str]:
    """Lists references for the menu."""
    return list_sources(folders.input_folder(), named_roots(folders.roots_for_menus()))


def _file(file: str | None, other_file: str) -> Path:
    """Returns the requested file: `other_file`, `file`, or the first one of the menu if a queued graph has neither."""
    requested = other_file.strip() or (next(iter(_source_files()), "") if file is None else file)
    return allowed_file(requested, input_root=folders.input_folder(), extra_roots=folders.extra_roots())


def _columns(given: Mapping[str, object]) -> Columns:
    return Columns(**{role: str(given.get(f"{role}_column") or "") for role in _ROLES})
