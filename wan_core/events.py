"""The events the engine tells, and the commands a running worker is told. Plain data, one JSON line each.

Events are the only way out of the training loop; a command is the only way in.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

from .words import plain, sentences_back, with_sentences


@dataclass(frozen=True, kw_only=True)
class Event:
    """Base of all events; `name` is the key `event` of the JSON line."""

    name: ClassVar[str] = ""


@dataclass(frozen=True, kw_only=True)
class Stage(Event):
    """The engine entered a stage, or moved on inside it (tensors loaded, denoising steps done)."""

    name: ClassVar[str] = "stage"
    stage: str
    """start (said in ComfyUI, before the worker), load, train, evaluate, sample, save, audit, done"""
    done: int = 0
    total: int = 0
    detail: str = ""


@dataclass(frozen=True, kw_only=True)
class StageEnded(Event):
    """Says how long a stage other than training took this time; steps say it themselves. A run's stages add up."""

    name: ClassVar[str] = "stage_ended"
    stage: str
    """cache (in ComfyUI, before the worker), start (of the process, with its imports), load, evaluate, sample, save"""
    seconds: float
    step: int
    """optimizer steps done then"""
    memory: dict[str, dict[str, int | None]] = field(default_factory=dict[str, dict[str, int | None]])
    """device -> bytes `now`, `peak` and `reserved` of this stage alone (the CPU's peak: of the process so far)"""


@dataclass(frozen=True, kw_only=True)
class StepDone(Event):
    """One optimizer step."""

    name: ClassVar[str] = "step"
    step: int
    steps: int
    loss: float
    lr: float
    grad_norm: float
    seconds: float
    expert: str
    timestep_mean: float
    memory: dict[str, dict[str, int | None]] = field(default_factory=dict[str, dict[str, int | None]])
    """device -> bytes `now` (allocated after the step), `peak` (of the steps so far), `reserved` (by torch's allocator,
    at most) and `predicted` (peak of a step, by the plan); null where nothing is known. A reader passes over keys it
    does not know"""
    tokens: int = 0
    """that the model worked on, of all ranks"""
    clips: int = 0
    """of all ranks"""
    tflops: float | None = None
    """useful model arithmetic per second, in 10^12; what is counted says `train.flops`"""
    epoch: float = 0.0
    """passes over the data of this model so far, 0.5 is half of the first"""
    seconds_left: float | None = None
    """of the hours that the run may take; None where it has no such limit"""
    beside_left: float | None = None
    """seconds that saves, evaluations and previews still to come will take, as those before took; None where
    none is known"""
    prior_loss: float | None = None
    """mean error of the step's clips that are trained towards the base model, of all ranks; null without such"""

    def left(self, pace: float) -> float:
        """Returns the seconds until the run ends, at `pace` seconds per step, with what is done beside the steps."""
        of_steps = pace * max(self.steps - self.step, 0) + (self.beside_left or 0.0)
        return of_steps if self.seconds_left is None else min(of_steps, self.seconds_left)


@dataclass(frozen=True, kw_only=True)
class StepSkipped(Event):
    """A step whose loss or gradients were not finite; weights are unchanged."""

    name: ClassVar[str] = "skipped"
    step: int
    reason: str
    in_a_row: int


@dataclass(frozen=True, kw_only=True)
class Evaluated(Event):
    """Loss on fixed items, noise and timesteps: comparable between steps."""

    name: ClassVar[str] = "evaluated"
    step: int
    eval_loss: float | None
    """null on its way out of the worker when it is not finite"""
    per_timestep: dict[str, float] = field(default_factory=dict)
    held_out: bool | None = None
    """False where training clips stand in: it then says how well they are remembered; None in older files"""
    per_clip: list[float] = field(default_factory=list[float])
    """mean loss of each clip, always in the same order: how far the clips agree says what is noise; null on its way out
    where it is not finite, as in `per_timestep`
    """
    expert: str = ""
    """high or low in a run of both experts, which are measured each on its own noise levels; empty elsewhere"""
    expert_step: int | None = None
    """the steps of its own that expert had made, so that its partner had made the rest; None elsewhere"""


@dataclass(frozen=True, kw_only=True)
class Suggested(Event):
    """Says which saved step the figures so far suggest, and why; or why they suggest none."""

    name: ClassVar[str] = "suggested"
    step: int
    """optimizer steps done when it was worked out"""
    best: int | None
    """the saved step suggested; null for none"""
    why: str
    """one sentence with its figures"""
    overfits_from: int | None = None
    """the step after which held-out loss rose while training loss fell; null while it does not"""


@dataclass(frozen=True, kw_only=True)
class Marked(Event):
    """Something that a user should see in the curve, at the step where it showed."""

    name: ClassVar[str] = "marked"
    step: int
    kind: str
    """explosion, worse, plateau, learning rate"""
    text: str
    """one sentence or two: what it is, and what to do"""
    expert: str = ""
    """high or low in a run of both experts; empty elsewhere"""


@dataclass(frozen=True, kw_only=True)
class CheckpointSaved(Event):
    """A saved step is committed: its manifest is in place."""

    name: ClassVar[str] = "saved"
    step: int
    folder: str
    """relative to the run directory"""
    updates: dict[str, float] = field(default_factory=dict[str, float])
    """block -> Frobenius norm of what the saved LoRA changes of it; of both experts of a pair the name stands before"""
    modules: int | None = None
    """weights that ComfyUI's loader changes by it; None where nobody looked"""
    passed_over: int = 0
    """names that ComfyUI's loader has no place for"""


@dataclass(frozen=True, kw_only=True)
class DecodeWanted(Event):
    """Preview latents wait for a VAE; the answer is the command `decoded` with the same id."""

    name: ClassVar[str] = "decode_wanted"
    sample_id: str
    latent_file: str
    """relative to the run directory (or the job folder)"""
    step: int
    made_room: bool = False
    """True when the worker has already moved its weights off the GPU"""


@dataclass(frozen=True, kw_only=True)
class SampleReady(Event):
    """A preview clip can be played."""

    name: ClassVar[str] = "sample"
    sample_id: str
    step: int
    file: str
    """relative to the run directory"""
    measures: dict[str, float] = field(default_factory=dict[str, float])
    """of its pixels before they were compressed, by the names of `measure_clip`; empty where nobody measured"""


@dataclass(frozen=True, kw_only=True)
class Note(Event):
    """A sentence for the user: a choice that was changed, a preview that was skipped."""

    name: ClassVar[str] = "note"
    text: str
    level: str = "info"

    def __post_init__(self) -> None:
        object.__setattr__(self, "text", plain(self.text))


@dataclass(frozen=True, kw_only=True)
class Finished(Event):
    """The last line of a worker that ended on its own."""

    name: ClassVar[str] = "finished"
    state: str
    """done or stopped"""
    step: int
    result: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Failed(Event):
    """The last line of a worker that refuses or broke; `message` is one sentence a user can act on."""

    name: ClassVar[str] = "failed"
    message: str
    kind: str
    exit_code: int


Emit = Callable[[Event], None]

COMMANDS = ("stop", "save", "sample", "profile", "decoded")
"""stop: save state and LoRA, then exit 3. save: save now. sample: preview now. profile: the next steps. decoded: answer
to decode_wanted (sample_id, file or error, needs_room)."""

_EVENTS: dict[str, type[Event]] = {
    kind.name: kind
    for kind in (
        Stage,
        StageEnded,
        StepDone,
        StepSkipped,
        Evaluated,
        Suggested,
        Marked,
        CheckpointSaved,
        DecodeWanted,
        SampleReady,
        Note,
        Finished,
        Failed,
    )
}


def to_line(event: Event) -> str:
    """Returns one JSON line, ASCII, newline at the end.

    Non-finite numbers become null so that every reader parses it; `sentences` are templates and values of its texts.
    """
    data = {"event": event.name, **_finite(dataclasses.asdict(event))}
    return json.dumps(with_sentences(data), ensure_ascii=True, allow_nan=False) + "\n"


def parse_event(line: str) -> Event | None:
    """Returns the event of a line, or None for anything else (a torn line, an event of a newer version)."""
    try:
        data = sentences_back(json.loads(line))
        kind = _EVENTS[data.pop("event")]
        return kind(**data)
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {k: _finite(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(v) for v in value]  # pyright: ignore[reportUnknownVariableType]
    return value
