"""The training loop and everything it owns: optimizer, schedule, saved steps, resume, previews."""

from __future__ import annotations

from .config import TrainConfig, earlier_meanings
from .flops import FlopCount, StepFlops
from .group import MEETING, Group, join_group
from .meters import DeviceMeters, largest_step
from .noised import NoisedBatch, TargetFunction, noise_batch, true_velocity
from .optimizer_state import saved_bytes, state_bytes
from .preview import Previewer
from .preview_inputs import PreviewInputs, preview_shape, read_preview_inputs
from .saves import SavedStep, SaveStore
from .streak import NotFinite
from .trainer import Trainer

__all__ = [
    "MEETING",
    "DeviceMeters",
    "FlopCount",
    "Group",
    "NoisedBatch",
    "NotFinite",
    "PreviewInputs",
    "Previewer",
    "SaveStore",
    "SavedStep",
    "StepFlops",
    "TargetFunction",
    "TrainConfig",
    "Trainer",
    "earlier_meanings",
    "join_group",
    "largest_step",
    "noise_batch",
    "preview_shape",
    "read_preview_inputs",
    "saved_bytes",
    "state_bytes",
    "true_velocity",
]
