"""A job and its run directory: settings, the files they name, checks and remarks."""

from __future__ import annotations

from .checks import (
    check_adapters,
    check_quantize,
    on_other_cards,
    trained_variant,
    with_expert,
    with_model_values,
    with_scaled_loss,
)
from .choose import RunDecision, choose_run, directories_of, new_run_name, prepare_run, say_ended
from .config import (
    QUEUE_DONE,
    STATUS_FILES,
    DataConfig,
    RunConfig,
    cache_names_in_use,
    read_run,
    read_status,
)
from .foresee import foresee
from .full_disk import disk_sentence
from .generating import Generation, api_form, can_generate, canvas_form, note_lines
from .grid import Cell, Column, SampleJob, refuse_too_many
from .length import batches_a_step, on_other_ranks, shared_out, with_clip_values, with_global_batch
from .open import OpenRun, open_experts
from .outcome import suggested_step, used_on
from .partner import with_partner_digest
from .previews import is_free_of_clips, preview_without_run, sized_as_template, untrained_run
from .remarks import notes_on_cards, remarks_on_cards
from .start_nodes import input_node
