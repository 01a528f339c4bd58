"""A rendering of Validate Video: samples clips with the engine, measures them, and puts them side by side.

The folder of clips is named by their common settings: prompts, size, sampling. A queue with more steps, strengths or
seeds renders only the missing clips, also after Cancel.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from ...wan_core.errors import TrainingError
from ...wan_core.events import Event, Note, SampleReady
from ...wan_core.files import atomic_write_bytes, atomic_write_json, own_folder, read_json, remove_file
from ...wan_core.job import Cell, Column, SampleJob
from ...wan_core.video import GridPicture, VideoProcess, grid_picture, readable
from ..bridge.interrupts import CancelButton, InterruptProcessingException
from ..bridge.progress import NodeProgress
from ..bridge.sockets import ComfyVae
from ..engine.session import PreviewDecoder, run_engine
from .drift import Drift
from .facts import output_file, short_digest

Frames = NDArray[np.uint8]
_LONGEST_SHEET, _LONGEST_MOVIE = 4096, 2560
"""pixels: limits of browsers and video encoders"""


@dataclass(frozen=True)
class Rendering:
    run: Path
    job: SampleJob
    fps: float
    metadata: dict[str, str]
    """texts for the metadata of every file"""

    @property
    def folder(self) -> Path:
        """The folder of the clips, shared with jobs of the same prompts and settings."""
        job = self.job.identity()
        shown = job["preview"] | {name: job[name] for name in ("partner", "partner_digest") if name in job}
        return self.run / "samples" / f"validate-{short_digest(shown)}"

    def _own_folder(self) -> Path:
        """Creates and returns the folder. Raises FileError for a link out of the run (rule S16)."""
        return own_folder(self.run, f"samples/{self.folder.name}")

    def file(self, cell: Cell, ending: str = "mp4") -> Path:
        return self.folder / f"{cell.name}.{ending}"

    def files(self) -> list[Path]:
        return [self.file(cell) for cell in self.job.cells()]

    def unfinished(self) -> list[Cell]:
        """Returns the clips that lack their video, still or measurements."""
        endings = ("mp4", "png", "json")
        return [cell for cell in self.job.cells() if not all(self.file(cell, one).is_file() for one in endings)]

    def render(self, codec: ComfyVae, progress: NodeProgress, button: CancelButton) -> None:
        """Samples missing clips in the engine and decodes them in ComfyUI; a status is sent for each.

        Raises InterruptProcessingException after Cancel, and TrainingError if clips are missing at the end.
        """
        self._own_folder()
        for cell in self.unfinished():  # the engine skips existing clips, but this one lacks a still or measurements
            remove_file(self.file(cell), self.run)
        job = self.folder / f"job-{self._id}.json"
        atomic_write_json(job, self.job.to_dict(), self.run)
        drift = Drift(self.folder, self.run, self.job, codec)
        files = self.files()
        reason = "the log says why"

        def on_clip(sample_id: str, frames: Frames) -> None:
            _save_picture(self.folder / f"{sample_id}.png", frames[len(frames) // 2], self)
            drift.measure(sample_id, frames)

        def on_event(event: Event) -> None:
            nonlocal reason
            if isinstance(event, Note):
                reason = event.text
            if isinstance(event, SampleReady):
                done = sum(file.is_file() for file in files)
                progress.bar(done, len(files))
                about = {"kind": "clips", "done": done, "total": len(files), "clips": self.facts()}
                progress.say(f"clip {done} of {len(files)}", now=True, about=about)

        ending = run_engine(
            "sample",
            self.run,
            "--job",
            str(job),
            progress=progress,
            button=button,
            decoder=PreviewDecoder(codec, self.run, self.fps, on_clip, metadata=self.metadata),
            on_event=on_event,
        )
        if ending.cancelled:
            raise InterruptProcessingException()
        if missing := [file.stem for file in files if not file.is_file()]:
            raise TrainingError(
                "{n} of {files} clips could not be rendered ({example}): {reason}",
                n=len(missing),
                files=len(files),
                example=missing[0],
                reason=reason,
            )
        drift.complete()

    def facts(self) -> dict[str, Any]:
        """Returns the complete clips for the page, row by row, with their settings and stills."""
        rows: list[dict[str, Any]] = []
        size = (0, 0)
        for row in self._rows():
            there = [cell for cell in row if self.file(cell).is_file()]
            if there and not rows:
                size = self._still(there[0]).size
            clips = [
                {
                    "step": cell.column.step,
                    "lora": cell.column.lora.name if cell.column.lora is not None else None,
                    "strength": cell.column.strength if cell.column.lora is None else cell.column.lora.strength,
                    "file": output_file(self.file(cell)),
                    "still": output_file(self.file(cell, "png")),
                }
                for cell in there
            ]
            if clips:
                rows.append({"prompt": self._prompt(row[0]), "seed": row[0].row.seed, "clips": clips})
        return {"version": 1, "width": size[0], "height": size[1], "rows": rows}

    def metrics(self) -> str:
        """Returns the distance of each clip from the base model's, as JSON text."""
        about = (
            "Drift is the distance from the base model's clip (pixels 0 to 1). It says how much changed, not how well."
        )
        clips = [read_json(self.file(cell, "json")) for cell in self.job.cells()]
        return json.dumps({"version": 1, "about": about, "clips": clips}, indent=2)

    def sheet(self) -> torch.Tensor:
        """Returns (1, H, W, 3) in [0, 1]: the middle frame of every clip with labels, stored as a PNG."""
        file = self._own_folder() / f"grid-{self._id}.png"
        if not file.is_file():
            stills = [[np.asarray(self._still(cell), np.uint8) for cell in row] for row in self._rows()]
            _save_picture(file, self._picture(_LONGEST_SHEET).filled(stills), self)
        # np.array copies; torch warns about the read-only buffer of asarray.
        return torch.from_numpy(np.array(_opened(file), np.uint8)).float()[None] / 255

    def movie(self, kind: str, should_stop: Callable[[], bool]) -> Path:
        """Returns the file of all clips side by side with labels; `kind` is mp4 or webm."""
        file = self._own_folder() / f"grid-{self._id}.{kind}"
        if not file.is_file():
            clips = [[self.file(cell) for cell in row] for row in self._rows()]
            frames = max(read_json(self.file(cell, "json"))["frames"] for cell in self.job.cells())
            with VideoProcess(should_stop) as video:
                picture = self._picture(_LONGEST_MOVIE)
                video.write_grid(file, picture, clips, self.fps, frames, self.metadata, self.run)
        return file

    @property
    def _id(self) -> str:
        """Digest in the file names of this job, since other jobs share its folder."""
        return short_digest(self.job.identity())

    def _rows(self) -> list[list[Cell]]:
        return [[self.job.cell(row, column) for column in self.job.columns] for row in self.job.rows]

    def _still(self, cell: Cell) -> Image.Image:
        return _opened(self.file(cell, "png"))

    def _picture(self, longest: int) -> GridPicture:
        sizes = [self._still(row[0]).size for row in self._rows()]
        columns = [_column_label(one) for one in self.job.columns]
        return grid_picture(sizes, columns, [self._row_label(row[0]) for row in self._rows()], longest=longest)

    def _prompt(self, cell: Cell) -> str:
        """The text of a clip's prompt; "" for a caption."""
        return "".join(self.job.preview.prompts[cell.row.prompt : cell.row.prompt + 1])

    def _row_label(self, cell: Cell) -> str:
        preview, row = self.job.preview, cell.row
        said = (preview.prompt_settings[row.prompt].name if preview.prompt_settings else "") or self._prompt(cell)
        seed = preview.of_prompt(row.prompt).seed if row.seed is None else row.seed
        return f"{said if said and readable(said) else f'prompt {row.prompt + 1}'}\nseed {seed}"


def _column_label(column: Column) -> str:
    if column.is_base:
        return "base model"
    if column.lora is None:
        return f"step {column.step}\nstrength {column.strength:g}"
    name = column.lora.name
    return f"{name if readable(name) else 'LoRA'}\nstrength {column.lora.strength:g}"


def _save_picture(path: Path, picture: Frames, rendering: Rendering) -> None:
    texts, buffer = PngInfo(), BytesIO()
    for name, text in rendering.metadata.items():
        texts.add_text(name, text)
    Image.fromarray(picture).save(buffer, "PNG", pnginfo=texts)
    atomic_write_bytes(path, buffer.getvalue(), rendering.run)


def _opened(path: Path) -> Image.Image:
    with Image.open(path, formats=("PNG",)) as picture:
        return picture.convert("RGB")
