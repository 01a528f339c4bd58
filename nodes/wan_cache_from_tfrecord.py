"""Wan Cache from TFRecord: stores latents and text features from MaxDiffusion's files (or our export) as a cache."""

from __future__ import annotations

from typing import Any

from comfy import model_management as mm
from comfy_api.latest import io

from ..wan_core.errors import WanTrainerError
from ..wan_core.files import file_mark
from ..wan_core.importers import PromptKeys, import_records, record_files
from .bridge import folders
from .bridge.folders import dataset_folder, dataset_folders
from .bridge.handed import cache_state, hand_cache
from .bridge.interrupts import stops_become_interrupts
from .bridge.progress import announced
from .bridge.sockets import prompt_key, wants_clip
from .bridge.types import CATEGORY, ModelHandle, WanCache, WanTrainModel
from .bridge.widgets import combo, flag, searched_as


class WanCacheFromTFRecord(io.ComfyNode):
    """Needs a CLIP only for the empty and the negative prompt, if the files lack them."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="WanCacheFromTFRecord",
            display_name="Wan Cache from TFRecord",
            category=CATEGORY,
            **searched_as("maxdiffusion", "tensorflow"),
            description="Reads TFRecords of latents and text features, in MaxDiffusion's format for Wan, into the "
            "cache. Cached entries are not written again.",
            hidden=[io.Hidden.unique_id, io.Hidden.dynprompt],
            inputs=[
                WanTrainModel.Input(
                    "model",
                    tooltip="The model to train, from Load Wan Model. Latents of another kind of model are refused.",
                ),
                combo(
                    "folder",
                    dataset_folders(),
                    "A folder below ComfyUI's input folder, or below a root listed in user/wan_trainer/roots.json. The "
                    "default is the first folder.",
                ),
                io.Clip.Input(
                    "clip",
                    optional=True,
                    lazy=True,
                    tooltip="Load CLIP with umt5_xxl, type wan: encodes the empty and the default negative prompt, "
                    "which files of other programs lack. Loaded only when needed.",
                ),
                flag(
                    "raw_latents",
                    False,
                    "Whether latents still need normalisation. On: latents are raw VAE output and are normalised here. "
                    "Off: they are normalised already, like MaxDiffusion's. Turn it on for files of a program that "
                    "does not normalise them.",
                ),
            ],
            outputs=[
                WanCache.Output(display_name="cache", tooltip="For Train Wan LoRA."),
                io.String.Output(display_name="report", tooltip="Report of what was read."),
            ],
        )

    @classmethod
    def validate_inputs(cls, folder: str | None = None) -> bool | str:
        """Checks `folder` in place of ComfyUI's menu check, which refuses a new folder."""
        try:
            return folder is None or bool(dataset_folder(folder))
        except WanTrainerError as error:
            return announced(error)

    @classmethod
    def fingerprint_inputs(cls, folder: str | None = None, **_: object) -> object:
        """Returns a mark that changes with the files, and when the cache is deleted or entries are evicted."""
        files = record_files(dataset_folder(folder))
        return [[file_mark(path) for path in files], cache_state()]

    @classmethod
    def check_lazy_status(cls, clip: Any = None, **_: object) -> list[str]:
        return ["clip"] if wants_clip(cls.hidden, clip, ["empty", "negative"], folders.cache()) else []

    @classmethod
    def execute(
        cls, model: ModelHandle, folder: str | None = None, clip: Any = None, raw_latents: bool = False
    ) -> io.NodeOutput:
        cache, variant = folders.cache(), model.variant
        with stops_become_interrupts():
            prompts = None
            if "clip" in cls.hidden.dynprompt.get_node(cls.hidden.unique_id)["inputs"]:
                prompts = PromptKeys(*(prompt_key(cls.hidden, clip, name, cache) for name in ("empty", "negative")))
            read = import_records(
                dataset_folder(folder),
                cache,
                prompts=prompts,
                fps=variant.fps,
                raw=raw_latents,
                should_stop=mm.processing_interrupted,
            )
            read.cache_set.require_fit(variant.name, variant.latents, variant.conditioning)
        found = read.encoding
        text = (
            f"{found.clips} items, {found.frames} frames from {read.files} files\n"
            f"latents: {found.latents_encoded} stored, {found.latents_reused} there already\n"
            f"texts: {found.texts_encoded} stored, {found.texts_reused} there already"
        )
        if read.timesteps:
            text += f"\n{read.timesteps} records carry evaluation timesteps, which are not used"
        handle = hand_cache(found, read.cache_set)
        return io.NodeOutput(handle, text, ui={"text": [text]})
