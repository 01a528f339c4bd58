"""The training loop and everything it owns: optimizer, schedule, saved steps, resume, previews."""

from .config import LR_SCHEDULERS, OPTIMIZERS, SAVE_DTYPES, TrainConfig
from .group import Group, join_group
from .noised import NoisedBatch, TargetFunction, noise_batch, true_velocity
from .preview import Previewer
from .preview_inputs import PreviewInputs, preview_shape, read_preview_inputs
from .saves import SavedStep, SaveStore
from .trainer import Trainer

__all__ = [
    "LR_SCHEDULERS",
    "OPTIMIZERS",
    "SAVE_DTYPES",
    "Group",
    "NoisedBatch",
    "PreviewInputs",
    "Previewer",
    "SaveStore",
    "SavedStep",
    "TargetFunction",
    "TrainConfig",
    "Trainer",
    "join_group",
    "noise_batch",
    "preview_shape",
    "read_preview_inputs",
    "true_velocity",
]
