"""The training loop and everything it owns: optimizer, schedule, saved steps, resume, previews."""

from .config import LR_SCHEDULERS, OPTIMIZERS, SAVE_DTYPES, TrainConfig
from .group import Group, join_group
from .preview import Previewer
from .saves import SavedStep, SaveStore
from .trainer import NoisedBatch, TargetFunction, Trainer, true_velocity

__all__ = [
    "LR_SCHEDULERS",
    "OPTIMIZERS",
    "SAVE_DTYPES",
    "Group",
    "NoisedBatch",
    "Previewer",
    "SaveStore",
    "SavedStep",
    "TargetFunction",
    "TrainConfig",
    "Trainer",
    "join_group",
    "true_velocity",
]
