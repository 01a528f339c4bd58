"""Previews: the worker samples latents, the parent process decodes them, an index lists them. A failure is a note."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors.torch import save

from ..accelerator import empty_cache
from ..control import Control
from ..errors import OutOfMemory, Stopped
from ..events import DecodeWanted, Emit, Note, SampleReady, Stage
from ..files import FileError, atomic_write_bytes, atomic_write_json, is_held, read_json
from ..model import WanTransformer
from ..placement.host import host_bytes
from ..placement.model_offload import HOST_RESERVE, bytes_to_offload, offloaded_model
from ..sampler import Denoiser, SamplingPreset, generate
from ..words import filled, first_line, logger
from .preview_inputs import PreviewClip, PreviewInputs

_log = logger(__name__)
DECODE_TIMEOUT_S = 900.0
NO_ROOM = (
    "decoding does not fit into GPU memory together with the model, and the computer's memory has no space to offload "
    "the model meanwhile"
)
_CLIP = re.compile(r"step-(?P<step>\d+)_")


@contextmanager
def evaluating(model: WanTransformer) -> Iterator[WanTransformer]:
    """Inside, `model` is in eval mode: no dropout."""
    was_training = model.training
    model.train(False)
    try:
        yield model
    finally:
        model.train(was_training)


class Previewer:
    """Renders the same inputs from the same noise at every preview."""

    def __init__(
        self,
        denoisers: Sequence[Denoiser],
        inputs: PreviewInputs,
        directory: Path,
        *,
        emit: Emit,
        control: Control,
        on_device: Callable[[], WanTransformer],
    ) -> None:
        """`directory`: run directory; files in events are relative to it.

        `on_device`: returns the model to offload if decoding needs its memory.
        """
        self._denoisers, self._on_device = denoisers, on_device
        self._inputs, self._directory = inputs, directory
        self._noted = False
        self._unlisted: dict[str, dict[str, Any]] = {}
        """index entries by file, while another program holds the index open"""
        self._emit, self._control = emit, control

    def render(self, step: int, name: str, folder: str = "samples") -> None:
        """Render one clip per prompt as `<folder>/<name>_p<i>[_nickname]`.

        Raises Stopped, and OutOfMemory if the weights, offloaded for decoding, do not fit on the GPU again.
        """
        with self._skipped_if_it_fails(step):
            for clip in self._inputs.clips:
                self._render_one(step, f"{name}_{clip.name}", folder, clip)

    def render_clip(self, step: int, sample_id: str, folder: str, clip: PreviewClip) -> None:
        """Renders one clip as `<folder>/<sample_id>`; raises and notes the same as `render`."""
        with self._skipped_if_it_fails(step):
            self._render_one(step, sample_id, folder, clip)

    @contextmanager
    def _skipped_if_it_fails(self, step: int) -> Iterator[None]:
        if not self._noted:
            self._noted = True
            for preset in dict.fromkeys(clip.preset for clip in self._inputs.clips):
                self._emit(Note(text=_sampling_note(preset)))
        try:
            yield
        except (Stopped, OutOfMemory):
            raise
        except Exception as error:  # A failed preview must not end the run.
            _log.exception("preview at step %s failed", step)
            text = filled("Preview at step {step} was skipped: {reason}", step=step, reason=first_line(error))
            self._emit(Note(text=text, level="warning"))

    def _render_one(self, step: int, sample_id: str, folder: str, clip: PreviewClip) -> None:
        latent = generate(
            self._denoisers,
            clip.text[None],
            clip.negative[None],
            clip.noise(),
            clip.preset,
            seed=clip.seed,
            conditioning=clip.conditioning,
            first_frame=clip.first_frame,
            start=clip.start,
            on_step=self._on_denoise,
        )
        latent = latent[:, :, clip.leading_frames :]
        file = f"{folder}/{sample_id}.latent"
        atomic_write_bytes(self._directory / file, save({"latent": latent[0].cpu().contiguous()}), self._directory)
        self._decode(step, sample_id, file, clip.prompt)

    def _on_denoise(self, done: int, total: int) -> None:
        self._emit(Stage(stage="sample", done=done, total=total))
        if reason := self._control.stop_reason():
            raise Stopped(reason)

    def _decode(self, step: int, sample_id: str, file: str, prompt: str) -> None:
        empty_cache()  # the decoder plans with the memory that the driver reports as free
        self._emit(DecodeWanted(sample_id=sample_id, latent_file=file, step=step))
        answer = self._control.wait_decoded(sample_id, DECODE_TIMEOUT_S)
        if answer is not None and answer.get("needs_room"):
            model, free = self._on_device(), host_bytes()
            if (leaving := bytes_to_offload(model)) and free is not None and leaving + HOST_RESERVE > free:
                answer = {"error": NO_ROOM}
            else:
                with offloaded_model(model):
                    self._emit(DecodeWanted(sample_id=sample_id, latent_file=file, step=step, made_room=True))
                    answer = self._control.wait_decoded(sample_id, DECODE_TIMEOUT_S)
        if answer is None:
            return
        if "file" not in answer:
            reason = str(answer.get("error") or "nothing could decode it")
            text = filled("Preview {sample} was not decoded: {reason}", sample=sample_id, reason=reason)
            self._emit(Note(text=text, level="warning"))
            return
        self._index(sample_id, step, str(answer["file"]), prompt)
        found = answer.get("measures")
        measures = {str(name): float(value) for name, value in found.items()} if isinstance(found, dict) else {}
        self._emit(SampleReady(sample_id=sample_id, step=step, file=str(answer["file"]), measures=measures))

    def _index(self, sample_id: str, step: int, file: str, prompt: str) -> None:
        known = [one for one in _indexed(self._directory) if one.get("file") not in {file, *self._unlisted}]
        entry = {"id": sample_id, "step": step, "file": file} | ({"prompt": prompt} if prompt else {})
        self._unlisted[file] = entry
        index = self._directory / "samples" / "index.json"
        try:
            atomic_write_json(index, [*known, *self._unlisted.values()], self._directory)
        except OSError as error:
            if not is_held(error, index):
                raise
            _log.warning("samples/%s is open in another program; this clip is listed with the next one.", index.name)
        else:
            self._unlisted.clear()


def _sampling_note(preset: SamplingPreset) -> str:
    """Returns the note on the sampling settings in use, some of which may be the model's defaults."""
    return filled(
        "Previews are sampled in {steps} steps: {sampler}, {scheduler}, cfg {cfg}, shift {shift}.",
        steps=preset.steps,
        sampler=preset.sampler_name,
        scheduler=preset.scheduler,
        cfg=f"{preset.guidance_scale:g}",
        shift=f"{preset.shift:g}",
    )


def _indexed(directory: Path) -> list[dict[str, Any]]:
    """Returns the entries of samples/index.json below `directory`; if it is damaged, rebuilds them from file names."""
    path = directory / "samples" / "index.json"
    if not path.exists():
        return []
    try:
        entries = read_json(path)
    except (FileError, OSError):
        entries = None
    if isinstance(entries, list) and all(isinstance(entry, dict) for entry in entries):
        return entries
    _log.warning("%s is damaged and is rebuilt from the clips next to it", path)
    return [
        {"id": file.stem, "step": int(named["step"]), "file": file.relative_to(directory).as_posix()}
        for file in sorted(path.parent.rglob("step-*"))
        if file.suffix != ".latent" and (named := _CLIP.match(file.stem))
    ]
