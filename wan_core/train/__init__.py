"""The training loop, with optimizer, schedule, saved steps, resume and previews."""

from __future__ import annotations

from .config import EXPERTS, TrainConfig, expert_named, expert_setting
from .draws import Levels
from .flops import FlopCount, StepFlops
from .group import MEETING, Group, join_group
from .learning_rate import TIMES_ADAMW, check_rates, with_auto_rate
from .meters import largest_step
from .objective import ROLL_STEPS, NoisedBatch, noise_batch, true_velocity
from .optimizer_bytes import UNKNOWN_CLASS, check_optimizer, held_bytes, saved_bytes, state_bytes
from .pair import check_split, check_warmup, longer_share, next_turn, settings_of_expert
from .preview import Previewer, evaluating
from .preview_inputs import PreviewInputs, largest_preview_shape, pictured, preview_shape, read_preview_inputs
from .recovery import NotFinite
from .saved_step import SAVED_FILES, Manifest
from .saves import SavedStep, SaveStore
from .trainer import Trainer
