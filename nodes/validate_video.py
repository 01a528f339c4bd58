"""Validate Video (Preview LoRA): renders the base model and saved steps side by side, from the same noise."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
from comfy_api.latest import InputImpl, io
from numpy.typing import NDArray
from PIL import Image

from ..wan_core.errors import ConfigError, TrainingError
from ..wan_core.events import Event
from ..wan_core.files import atomic_write_bytes, atomic_write_json, read_json
from ..wan_core.load import inspect_model
from ..wan_core.run import SampleJob, read_run
from ..wan_core.sampler import SampleConfig
from .bridge import folders
from .bridge.interrupts import CancelButton, InterruptProcessingException
from .bridge.progress import NodeProgress, graph_of
from .bridge.sockets import ComfyVae, encoder_identity
from .bridge.start_images import encode_start_images
from .bridge.types import CATEGORY, RunHandle, WanRun, WanValidation
from .bridge.widgets import asked_of, flag, searched_as, text
from .engine.session import PreviewDecoder, run_engine
from .runs.facts import chosen_steps, output_file

Frames = NDArray[np.uint8]
_LATER = (
    *("sampler_name", "scheduler", "cfg_low_noise", "cfg_passes", "cfg_zero_star", "skip_layer_guidance"),
    *("skip_layers", "skip_layer_scale", "skip_layer_start", "skip_layer_end", "trigger_word", "prompt_settings"),
)
"""settings that jobs rendered before did not have: left at their defaults, they are the same job"""


class ValidateVideo(io.ComfyNode):
    """Renders clips of a run beside its files; those that are there already are not rendered again."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="ValidateVideo",
            display_name="Validate Video (Preview LoRA)",
            category=CATEGORY,
            **searched_as("compare lora", "before and after", "lora strength", "sample video", "test lora"),
            description="Renders clips with and without the LoRA from the same noise, and says how far they drift.",
            is_output_node=True,
            hidden=[io.Hidden.unique_id, io.Hidden.prompt, io.Hidden.dynprompt, io.Hidden.extra_pnginfo],
            inputs=[
                WanRun.Input("run", tooltip="From TrainLoRA."),
                io.Vae.Input("vae", tooltip="Decodes the clips: wan_2.1_vae (TI2V-5B: wan2.2_vae)."),
                WanValidation.Input(
                    "validation", optional=True, tooltip="From WanPreviewSettings. Without it: the previews of the run."
                ),
                text("saved_steps", "latest", "latest, best (the suggested one), all, or numbers such as 250, 500."),
                text("strengths", "1.0", "LoRA strengths to render, such as 0.5, 1.0. 1.0 = as trained."),
                flag("baseline", True, "Also render the base model without LoRA, and compare with it."),
            ],
            outputs=[
                io.Video.Output(display_name="videos", is_output_list=True, tooltip="One clip per prompt and variant."),
                io.Image.Output(display_name="grid", tooltip="Middle frames: a row per prompt, a column per variant."),
                io.String.Output(
                    display_name="metrics", tooltip="JSON: drift from the baseline. A distance, not a quality."
                ),
            ],
        )

    @classmethod
    def execute(
        cls,
        run: RunHandle,
        vae: Any,
        validation: SampleConfig | None = None,
        saved_steps: str = "latest",
        strengths: str = "1.0",
        baseline: bool = True,
    ) -> io.NodeOutput:
        config, roots, cache = read_run(run.directory), folders.roots(), folders.cache()
        variant = inspect_model(config.model, roots).variant
        identity = encoder_identity(cls.hidden.dynprompt, cls.hidden.unique_id, "vae", vae, cache)
        codec = ComfyVae(vae, str(identity), variant.latents)
        preview = validation or config.preview or SampleConfig()
        job = SampleJob(
            saved_steps=chosen_steps(run.directory, saved_steps),
            strengths=_strengths(strengths),
            baseline=baseline,
            preview=encode_start_images(preview, cache, cache.read_set(config.data.fingerprint), variant, codec),
        )
        rendering = _Rendering(run, job, _job_folder(run.directory, job))
        if not rendering.is_complete():
            button = CancelButton()
            progress = NodeProgress(cls.hidden.unique_id, button, graph=graph_of(cls.hidden), pictures=False)
            progress.say("starting", now=True, about={"kind": "starting"}, of_run=run.directory.name)
            rendering.render(codec, progress, button)
        videos = [InputImpl.VideoFromFile(str(file)) for file in rendering.files()]
        shown = [output_file(file) for file in rendering.shown()]
        metrics = rendering.metrics()
        facts = {**rendering.facts(), "asked": asked_of(cls)}
        ui = {"images": shown, "animated": [True], "text": [metrics], "wan_clips": [facts]}
        return io.NodeOutput(videos, rendering.grid(), metrics, ui=ui)


@dataclass(frozen=True)
class _Rendering:
    """The clips of one job: which there are, and what was measured while they were decoded."""

    run: RunHandle
    job: SampleJob
    folder: Path

    @property
    def variants(self) -> dict[str, dict[str, float]]:
        """The columns: names, as sample ids begin, and what is rendered; the baseline, without a LoRA, is nothing."""
        lora = {
            f"step-{step:06d}_s{strength}": {"step": step, "strength": strength}
            for step in self.job.saved_steps
            for strength in self.job.strengths
        }
        return {"baseline": {}, **lora} if self.job.baseline else lora

    @property
    def prompts(self) -> int:
        return max(1, len(self.job.preview.prompt_keys))

    def clip(self, variant: str, index: int) -> str:
        """The id of the clip of a variant and a prompt."""
        preview = self.job.preview
        return preview.clip_name(variant, index) if preview.prompt_keys else f"{variant}_p{index}"

    def files(self) -> list[Path]:
        """Lists every clip: all variants of the first prompt, then of the second ..."""
        return [self.folder / f"{self.clip(name, i)}.mp4" for i in range(self.prompts) for name in self.variants]

    def shown(self) -> list[Path]:
        """Lists the same clips, the base model's last: the node shows the first one large."""
        return sorted(self.files(), key=lambda file: file.name.startswith("baseline"))

    def facts(self) -> dict[str, Any]:
        """For the page: every clip with what it shows, row by row as in the grid, and a still of it."""
        with Image.open(self.folder / f"{self.clip(next(iter(self.variants)), 0)}.png") as still:
            width, height = still.size
        rows = [
            {
                "prompt": self.job.preview.prompts[i] if i < len(self.job.preview.prompts) else "",
                "clips": [
                    {
                        "step": None,
                        "strength": None,
                        **shown,
                        "file": output_file(self.folder / f"{self.clip(name, i)}.mp4"),
                        "still": output_file(self.folder / f"{self.clip(name, i)}.png"),
                    }
                    for name, shown in self.variants.items()
                ],
            }
            for i in range(self.prompts)
        ]
        return {"version": 1, "width": width, "height": height, "rows": rows}

    def is_complete(self) -> bool:
        return (self.folder / "metrics.json").is_file() and all(file.is_file() for file in self.files())

    def render(self, codec: ComfyVae, progress: NodeProgress, button: CancelButton) -> None:
        """Let the engine denoise and ComfyUI decode; keep middle frames and distances."""
        self.folder.mkdir(parents=True, exist_ok=True)
        atomic_write_json(self.folder / "job.json", self.job.to_dict())
        measured = _Measured(self.folder)
        total = len(self.files())

        def on_clip(sample_id: str, frames: Frames) -> None:
            measured.add(sample_id, frames)
            progress.bar(len(measured.seen), total)

        notes: list[str] = []

        def on_event(event: Event) -> None:
            if event.name == "note":
                notes.append(str(getattr(event, "text", "")))

        ending = run_engine(
            "sample",
            self.run.directory,
            "--job",
            str(self.folder / "job.json"),
            progress=progress,
            button=button,
            decoder=PreviewDecoder(codec, self.run.directory, self.run.fps, on_clip),
            on_event=on_event,
        )
        if ending.cancelled:
            raise InterruptProcessingException()
        if missing := [file.stem for file in self.files() if not file.is_file()]:
            reason = notes[-1] if notes else "the log says why"
            raise TrainingError(f"{len(missing)} of {total} clips could not be rendered ({missing[0]}): {reason}")
        measured.write()

    def metrics(self) -> str:
        """JSON text."""
        return json.dumps(read_json(self.folder / "metrics.json"), indent=2)

    def grid(self) -> torch.Tensor:
        """Returns (1, H, W, 3): middle frames, a row per prompt, black behind a row of smaller clips."""
        rows = [
            np.concatenate([_picture(self.folder / f"{self.clip(name, i)}.png") for name in self.variants], axis=1)
            for i in range(self.prompts)
        ]
        widest = max(row.shape[1] for row in rows)
        rows = [np.pad(row, ((0, 0), (0, widest - row.shape[1]), (0, 0))) for row in rows]
        return torch.from_numpy(np.concatenate(rows, axis=0)).float()[None] / 255


class _Measured:
    """Distances to the baseline, taken from decoded pixels before they are compressed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._baselines: dict[str, Frames] = {}
        self.seen: dict[str, dict[str, Any]] = {}

    def add(self, sample_id: str, frames: Frames) -> None:
        variant, _, named = sample_id.partition("_p")
        prompt = named.partition("_")[0]
        _save_picture(self._folder / f"{sample_id}.png", frames[len(frames) // 2])
        if variant == "baseline":
            self._baselines[prompt] = frames
        clip: dict[str, Any] = {"clip": sample_id, "prompt": int(prompt), "frames": len(frames)}
        base = self._baselines.get(prompt)
        if base is not None and variant != "baseline":
            difference, psnr = drift(frames, base)
            clip |= {"drift_mean_abs": difference, "drift_psnr_db": psnr}
        self.seen[sample_id] = clip

    def write(self) -> None:
        text = (
            "Drift is the distance from the base model's clip (pixels 0 to 1). It says how much changed, not how well."
        )
        atomic_write_json(
            self._folder / "metrics.json", {"version": 1, "about": text, "clips": list(self.seen.values())}
        )


def drift(frames: Frames, base: Frames) -> tuple[float, float | None]:
    """Returns (mean absolute difference on a scale of 0 to 1, PSNR in dB or None when equal) of clips in [0, 255]."""
    count, absolute, squared = 0, 0.0, 0.0
    for one, other in zip(frames, base, strict=True):
        difference = (one.astype(np.float32) - other.astype(np.float32)) / 255
        absolute += float(np.abs(difference).sum(dtype=np.float64))
        squared += float(np.square(difference).sum(dtype=np.float64))
        count += difference.size
    mean_square = squared / count
    return absolute / count, -10 * float(np.log10(mean_square)) if mean_square else None


def _strengths(listed: str) -> tuple[float, ...]:
    try:
        found = tuple(dict.fromkeys(float(part) for part in listed.replace(",", " ").split()))
    except ValueError as error:
        raise ConfigError(f'strengths "{listed[:100]}" is not a list of numbers. Example: 0.5, 1.0') from error
    if not found or not all(-100 <= s <= 100 for s in found):
        raise ConfigError(f'strengths "{listed[:100]}" must be one or more numbers from -100 to 100. Example: 1.0')
    return found


def _job_folder(directory: Path, job: SampleJob) -> Path:
    data, usual = job.to_dict(), SampleConfig().to_dict()
    for name in _LATER:
        if data["preview"][name] == usual[name]:
            del data["preview"][name]
    digest = hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()
    return directory / "samples" / f"validate-{digest[:12]}"


def _save_picture(path: Path, frame: Frames) -> None:
    buffer = BytesIO()
    Image.fromarray(frame).save(buffer, "PNG")
    atomic_write_bytes(path, buffer.getvalue())


def _picture(path: Path) -> Frames:
    with Image.open(path) as picture:
        return np.asarray(picture.convert("RGB"), np.uint8)
