"""Runs one engine process from a node: free the GPU, follow events, decode previews."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from comfy import model_management as mm
from numpy.typing import NDArray
from PIL import Image

from ...wan_core.accelerator import gpu_count, is_gpu
from ...wan_core.checkpoint import read_tensors
from ...wan_core.errors import ExitCode, OutOfMemory, TrainingError, WanTrainerError
from ...wan_core.events import DecodeWanted, Event, Stage
from ...wan_core.files import confine
from ...wan_core.video import VideoProcess, measure_clip
from ...wan_core.words import logger
from ..bridge import folders
from ..bridge.held_models import held_models, in_words, release_idle_models
from ..bridge.interrupts import CancelButton
from ..bridge.progress import NodeProgress
from ..bridge.sockets import ComfyVae
from .live_runs import LIVE, LiveRun
from .process import engine_command
from .worker import Ending, Worker

_log = logger(__name__)


def run_engine(
    command: str,
    directory: Path,
    *options: str,
    progress: NodeProgress,
    button: CancelButton,
    decoder: PreviewDecoder | None,
    on_event: Callable[[Event], None],
    live: LiveRun | None = None,
) -> Ending:
    """Runs the engine's `command` on a run directory to its end, with the buttons of `live`.

    Returns the ending of a process that is done, stopped or cancelled. Raises OutOfMemory or TrainingError for any
    other end.
    """
    progress.on_event(Stage(stage="start"))
    free_comfyui_memory()
    if held := in_words(held_models()):
        _log.info("ComfyUI keeps %s of RAM for nodes after this one", held)
    arguments = [command, str(directory), "--controlled", "--roots", str(folders.roots_file()), *options]
    with (
        LIVE.used(directory.name),
        Worker(engine_command(*arguments), directory, directory / "log.txt", held) as worker,
        live.listening(worker) if live is not None else contextlib.nullcontext(),
    ):

        def handle(event: Event) -> None:
            progress.on_event(event)
            on_event(event)
            if isinstance(event, DecodeWanted):
                worker.send("decoded", sample_id=event.sample_id, **_answer(event, decoder, progress, button))

        ending = worker.follow(handle, button.pressed)
    if not ending.cancelled and ending.exit_code not in (ExitCode.DONE, ExitCode.STOPPED):
        kind = OutOfMemory if ending.exit_code == ExitCode.DOES_NOT_FIT else TrainingError
        raise kind(ending.sentence())
    return ending


def free_comfyui_memory() -> None:
    """Unload ComfyUI's models from every GPU, and from RAM those that no node waits for; ComfyUI loads them again."""
    release_idle_models()  # called first, because models unloaded from a GPU go to RAM
    mm.unload_all_models()
    # `unload_all_models` covers only ComfyUI's main device. Cards without a model are left out, because any call
    # would create a CUDA context of some hundred MiB there.
    for device in {loaded.device for loaded in mm.current_loaded_models if is_gpu(loaded.device)}:
        mm.free_memory(1e30, device)
    gc.collect()
    mm.soft_empty_cache()


class PreviewDecoder:
    """Decodes preview latents with ComfyUI's VAE and writes video files; the video encoder is a child process."""

    def __init__(
        self,
        codec: ComfyVae,
        directory: Path,
        fps: float,
        on_clip: Callable[[str, NDArray[np.uint8]], None] | None = None,
        *,
        metadata: Mapping[str, str] | None = None,
    ) -> None:
        """`on_clip(sample_id, frames)`: receives and measures each decoded clip. `metadata`: written into files."""
        self._codec, self._directory, self._fps, self._on_clip = codec, directory, fps, on_clip
        self._metadata = metadata
        self._bases: dict[str, NDArray[np.uint8]] = {}
        """prompt -> preview of step 0, to which later previews are compared; empty in a resumed run"""
        self._last: dict[str, NDArray[np.uint8]] = {}
        """prompt -> its newest preview"""

    def answer(self, event: DecodeWanted, show: Callable[[Image.Image], None]) -> dict[str, Any]:
        """Returns the values of the command `decoded`: a file with its measures, or needs_room."""
        latent = read_tensors(confine(self._directory, event.latent_file, "preview latent"))["latent"]
        if not event.made_room and not self._codec.fits(latent):
            return {"needs_room": True}
        frames = (self._codec.decode(latent) * 255).round().to(torch.uint8).numpy()
        show(Image.fromarray(frames[len(frames) // 2]))
        if self._on_clip is not None:
            self._on_clip(event.sample_id, frames)
        file = event.latent_file.removesuffix(".latent") + ".mp4"
        with VideoProcess() as video:
            path, run = self._directory / file, self._directory
            video.write(path, frames, self._fps, metadata=self._metadata, below=run)
        return {"file": file, "measures": self._measured(event, frames)}

    def _measured(self, event: DecodeWanted, frames: NDArray[np.uint8]) -> dict[str, float]:
        if self._on_clip is not None:
            return measure_clip(frames, None)
        prompt = event.sample_id.rpartition("_p")[2]
        if event.step == 0:
            self._bases[prompt] = frames
        last, self._last[prompt] = self._last.get(prompt), frames
        return measure_clip(frames, self._bases.get(prompt), last)


def _answer(
    event: DecodeWanted, decoder: PreviewDecoder | None, progress: NodeProgress, button: CancelButton
) -> dict[str, Any]:
    """Returns the values of the command `decoded`; an error becomes a value, so that the preview is skipped."""
    if decoder is None:
        return {"error": "no VAE is connected to Train Wan LoRA"}
    answer: dict[str, Any] = {"error": "Cancel was pressed"}
    try:
        with button.listening():
            answer = decoder.answer(event, progress.show)
    except WanTrainerError as error:
        answer = {"error": str(error)}
    except Exception as error:
        _log.exception("preview %s could not be decoded", event.sample_id)
        answer = {"error": f"{type(error).__name__}: {str(error)[:300]}"}
    # After the except clause, because an exception keeps the decoder's tensors alive.
    if "needs_room" not in answer and gpu_count():
        free_comfyui_memory()  # frees the GPU for the worker
    return answer
