"""Validation clips: denoise latents in the worker, ask the parent to decode them, keep an index. Never ends a run."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import Tensor

from ..control import Control
from ..errors import OutOfMemory, Stopped
from ..events import DecodeWanted, Emit, Note, SampleReady, Stage
from ..files import FileError, atomic_write_bytes, atomic_write_json, is_held, read_json
from ..model import WanTransformer
from ..placement.host import host_bytes
from ..placement.room import HOST_RESERVE, leaving_bytes, release_cached_memory, weights_out_of_the_way
from ..sampler import Denoiser, SamplingPreset, generate
from ..words import filled, first_line, logger
from .preview_inputs import PreviewClip, PreviewInputs

_log = logger(__name__)
DECODE_TIMEOUT_S = 900.0
NO_ROOM = (
    "the GPU has no room to decode it beside the model, and the computer's own memory none for the model meanwhile"
)
_CLIP = re.compile(r"step-(?P<step>\d+)_")


@contextmanager
def evaluating(model: WanTransformer) -> Iterator[WanTransformer]:
    """Inside, `model` is not in training: nothing is dropped out."""
    was_training = model.training
    model.train(False)
    try:
        yield model
    finally:
        model.train(was_training)


class Previewer:
    """Renders the same inputs again and again, from the same noise."""

    def __init__(
        self,
        denoisers: Sequence[Denoiser],
        inputs: PreviewInputs,
        directory: Path,
        *,
        emit: Emit,
        control: Control,
        at_home: Callable[[], WanTransformer],
    ) -> None:
        """`directory` is the run (or job) directory; files in events are relative to it.

        `at_home` returns the model that makes room where a clip cannot be decoded otherwise.
        """
        self._denoisers, self._at_home = denoisers, at_home
        self._inputs, self._directory = inputs, directory
        self._said = False
        self._unlisted: dict[str, dict[str, Any]] = {}
        """clips by their file, while the index could not be written"""
        self._emit, self._control = emit, control

    def render(self, step: int, name: str, folder: str = "samples") -> None:
        """Render one clip per prompt under `<folder>/<name>_p<i>`, its nickname behind it. A failure is a note.

        Raised are a stop, and OutOfMemory when the weights made room and do not fit back: nothing can go on without
        them.
        """
        with self._skipped_if_it_fails(step):
            for clip in self._inputs.clips:
                self._render_one(step, f"{name}_{clip.name}", folder, clip)

    def render_clip(self, step: int, sample_id: str, folder: str, clip: PreviewClip) -> None:
        """Render `<folder>/<sample_id>`. Failures are told and raised as those of `render`."""
        with self._skipped_if_it_fails(step):
            self._render_one(step, sample_id, folder, clip)

    @contextmanager
    def _skipped_if_it_fails(self, step: int) -> Iterator[None]:
        if not self._said:
            self._said = True
            for preset in dict.fromkeys(clip.preset for clip in self._inputs.clips):
                self._emit(Note(text=_said_of(preset)))
        try:
            yield
        except (Stopped, OutOfMemory):
            raise
        except Exception as error:  # out of memory, a full disk, a decoder that broke: the run is worth more
            _log.exception("preview at step %s failed", step)
            self._emit(
                Note(
                    text=filled("Preview at step {step} was skipped: {reason}", step=step, reason=first_line(error)),
                    level="warning",
                )
            )

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
        file = f"{folder}/{sample_id}.latent"
        atomic_write_bytes(self._directory / file, _latent_file(latent[0].cpu()), self._directory)
        self._decode(step, sample_id, file, clip.prompt)

    def _on_denoise(self, done: int, total: int) -> None:
        self._emit(Stage(stage="sample", done=done, total=total))
        if reason := self._control.stop_reason():
            raise Stopped(reason)

    def _decode(self, step: int, sample_id: str, file: str, prompt: str) -> None:
        release_cached_memory()  # whoever decodes judges by what the driver calls free
        self._emit(DecodeWanted(sample_id=sample_id, latent_file=file, step=step))
        answer = self._control.wait_decoded(sample_id, DECODE_TIMEOUT_S)
        if answer is not None and answer.get("needs_room"):
            answer = self._decoded_with_room(
                DecodeWanted(sample_id=sample_id, latent_file=file, step=step, made_room=True)
            )
        if answer is None:
            return
        if "file" not in answer:
            reason = str(answer.get("error") or "nothing could decode it")
            self._emit(
                Note(
                    text=filled("Preview {sample} was not decoded: {reason}", sample=sample_id, reason=reason),
                    level="warning",
                )
            )
            return
        self._index(sample_id, step, str(answer["file"]), prompt)
        told = answer.get("measures")
        measures = {str(name): float(value) for name, value in told.items()} if isinstance(told, dict) else {}
        self._emit(SampleReady(sample_id=sample_id, step=step, file=str(answer["file"]), measures=measures))

    def _decoded_with_room(self, wanted: DecodeWanted) -> dict[str, Any] | None:
        """Returns the answer while the weights are off the GPU, if the computer has room for them."""
        model, free = self._at_home(), host_bytes()
        if (leaving := leaving_bytes(model)) and free is not None and leaving + HOST_RESERVE > free:
            return {"error": NO_ROOM}
        with weights_out_of_the_way(model):
            self._emit(wanted)
            return self._control.wait_decoded(wanted.sample_id, DECODE_TIMEOUT_S)

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
            _log.warning("samples/%s is held open by another program; the next clip lists this one too.", index.name)
        else:
            self._unlisted.clear()


def _latent_file(latent: Tensor) -> bytes:
    from safetensors.torch import save

    return save({"latent": latent.contiguous()})


def _said_of(preset: SamplingPreset) -> str:
    """Returns the sentence that tells how clips are sampled, since the settings may leave that to the model."""
    return filled(
        "Previews are sampled in {steps} steps: {sampler}, {scheduler}, cfg {cfg}, shift {shift}.",
        steps=preset.steps,
        sampler=preset.sampler_name,
        scheduler=preset.scheduler,
        cfg=f"{preset.guidance_scale:g}",
        shift=f"{preset.shift:g}",
    )


def _indexed(directory: Path) -> list[dict[str, Any]]:
    """Returns the entries of samples/index.json below `directory`.

    Where it is damaged, they are made anew from the names of the clips.
    """
    path = directory / "samples" / "index.json"
    if not path.exists():
        return []
    try:
        entries = read_json(path)
    except (FileError, OSError):
        entries = None
    if isinstance(entries, list) and all(isinstance(entry, dict) for entry in entries):
        return entries
    _log.warning("%s is damaged and is made anew from the clips beside it", path)
    return [
        {"id": file.stem, "step": int(named["step"]), "file": file.relative_to(directory).as_posix()}
        for file in sorted(path.parent.rglob("step-*"))
        if file.suffix != ".latent" and (named := _CLIP.match(file.stem))
    ]
