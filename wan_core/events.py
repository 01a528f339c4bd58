"""Events from the engine, and commands to a running worker: plain data, one JSON line each.

Events are the only output of the training loop, commands its only input.
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
    """Base of all events; `name` is the key `event` in JSON."""

    name: ClassVar[str] = ""


@dataclass(frozen=True, kw_only=True)
class Stage(Event):
    """The start of a stage, or progress in it: `done` of `total` tensors loaded or denoising steps done."""

    name: ClassVar[str] = "stage"
    stage: str
    """start (sent by ComfyUI before the worker), load, train, evaluate, sample, save, audit, done"""
    done: int = 0
    total: int = 0
    detail: str = ""


@dataclass(frozen=True, kw_only=True)
class StageEnded(Event):
    """The duration of a stage other than training. Durations of a run add up."""

    name: ClassVar[str] = "stage_ended"
    stage: str
    """cache (in ComfyUI, before the worker), start (the process and its imports), load, evaluate, sample, save"""
    seconds: float
    step: int
    """optimizer steps so far"""
    memory: dict[str, dict[str, int | None]] = field(default_factory=dict[str, dict[str, int | None]])
    """device -> bytes `now`, `peak` and `reserved` of this stage; the CPU's peak is the process's"""


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
    """device -> bytes; null if unknown. `now`: allocated after the step; `peak`: maximum allocated in all steps;
    `reserved`: maximum of torch's allocator; `predicted`: the plan's peak. Readers ignore unknown keys
    """
    tokens: int = 0
    """video tokens of this step, on all ranks"""
    clips: int = 0
    """clips of this step, on all ranks"""
    tflops: float | None = None
    """useful model FLOPs per second, in 10^12; see `train.flops`"""
    epoch: float = 0.0
    """passes over the data, 0.5 is half of the first"""
    seconds_left: float | None = None
    """seconds left of the run's time limit; None without a limit"""
    beside_left: float | None = None
    """expected seconds of the saves, evaluations and previews to come, from the past ones; None if unknown"""
    prior_loss: float | None = None
    """mean loss of prior preservation clips on all ranks; null without such clips"""
    slowest_rank: int | None = None
    """the rank that the others waited for; null with one rank, or if all took the same time"""

    def left(self, pace: float) -> float:
        """Returns the seconds until the run ends, at `pace` seconds per step, including saves, evaluations and
        previews.
        """
        of_steps = pace * max(self.steps - self.step, 0) + (self.beside_left or 0.0)
        return of_steps if self.seconds_left is None else min(of_steps, self.seconds_left)


@dataclass(frozen=True, kw_only=True)
class StepSkipped(Event):
    """A step with non-finite loss or gradients; weights are unchanged."""

    name: ClassVar[str] = "skipped"
    step: int
    reason: str
    in_a_row: int


@dataclass(frozen=True, kw_only=True)
class Evaluated(Event):
    """Loss on fixed items, noise and timesteps, comparable between steps."""

    name: ClassVar[str] = "evaluated"
    step: int
    eval_loss: float | None
    """null in JSON if not finite"""
    per_timestep: dict[str, float] = field(default_factory=dict)
    held_out: bool | None = None
    """True: held-out clips; False: training clips, whose loss measures memorisation; None in older files"""
    per_clip: list[float] = field(default_factory=list[float])
    """mean loss of each clip in fixed order, for the spread; null in JSON if not finite, as in `per_timestep`"""
    expert: str = ""
    """high or low in a run of a pair, where each expert is measured on its own noise levels; else empty"""
    expert_step: int | None = None
    """optimizer steps of that expert; None unless a pair is trained"""


@dataclass(frozen=True, kw_only=True)
class Suggested(Event):
    """The saved step suggested for use, with the reason; or the reason why there is none."""

    name: ClassVar[str] = "suggested"
    step: int
    """optimizer steps so far"""
    best: int | None
    """the suggested step; null for none"""
    why: str
    """one sentence with figures"""
    overfits_from: int | None = None
    """step after which held-out loss rose while training loss fell; null if it does not"""


@dataclass(frozen=True, kw_only=True)
class Marked(Event):
    """A remark shown in the curve at its step."""

    name: ClassVar[str] = "marked"
    step: int
    kind: str
    """explosion, worse, plateau, learning rate"""
    text: str
    """one or two sentences: the finding, and what to do"""
    expert: str = ""
    """high or low in a pair run; else empty"""


@dataclass(frozen=True, kw_only=True)
class CheckpointSaved(Event):
    """A committed saved step: its manifest is written."""

    name: ClassVar[str] = "saved"
    step: int
    folder: str
    """relative to the run directory"""
    updates: dict[str, float] = field(default_factory=dict[str, float])
    """block -> Frobenius norm of the LoRA's weight change; in a pair run the name starts with the expert"""
    modules: int | None = None
    """number of weights that ComfyUI's loader patches with this file; None if not checked"""
    passed_over: int = 0
    """number of tensors that ComfyUI's loader ignores"""


@dataclass(frozen=True, kw_only=True)
class DecodeWanted(Event):
    """Preview latents to decode; the answer is the command `decoded` with the same id."""

    name: ClassVar[str] = "decode_wanted"
    sample_id: str
    latent_file: str
    """relative to the run directory, or to the job folder of a preview job"""
    step: int
    made_room: bool = False
    """True if the worker has offloaded its weights from the GPU"""


@dataclass(frozen=True, kw_only=True)
class SampleReady(Event):
    """A preview clip is ready."""

    name: ClassVar[str] = "sample"
    sample_id: str
    step: int
    file: str
    """relative to the run directory"""
    measures: dict[str, float] = field(default_factory=dict[str, float])
    """`measure_clip` of its uncompressed pixels; empty if not measured"""


@dataclass(frozen=True, kw_only=True)
class Note(Event):
    """A sentence for the user, such as a changed choice or a skipped preview."""

    name: ClassVar[str] = "note"
    text: str
    level: str = "info"

    def __post_init__(self) -> None:
        object.__setattr__(self, "text", plain(self.text))


@dataclass(frozen=True, kw_only=True)
class Finished(Event):
    """The last line of a worker that ended by itself."""

    name: ClassVar[str] = "finished"
    state: str
    """done or stopped"""
    step: int
    result: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Failed(Event):
    """The last line of a failed worker; `message` is one sentence."""

    name: ClassVar[str] = "failed"
    message: str
    kind: str
    exit_code: int


Emit = Callable[[Event], None]

COMMANDS = ("stop", "save", "sample", "profile", "decoded")
"""stop: save state and LoRA, then exit with code 3. save: save now. sample: render previews now. profile: profile the
next steps. decoded: the answer to `decode_wanted` (sample_id, file or error, needs_room).
"""

_EVENTS: dict[str, type[Event]] = {kind.name: kind for kind in Event.__subclasses__()}


def to_line(event: Event) -> str:
    """Returns one JSON line in ASCII; non-finite numbers become null, sentences keep template and values."""
    data = {"event": event.name, **_finite(dataclasses.asdict(event))}
    return json.dumps(with_sentences(data), ensure_ascii=True, allow_nan=False) + "\n"


def parse_event(line: str) -> Event | None:
    """Returns the event of a line, or None for a torn line or an unknown event."""
    try:
        data = sentences_back(json.loads(line))
        kind = _EVENTS[data.pop("event")]
        return kind(**data)
    # TypeError: an event of another version, with other fields.
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
