"""The plan of a run before anything is loaded: memory, time, and the settings that make it fit."""

from __future__ import annotations

from .cards import card_named
from .cards_of_step import cards_of_step
from .here import plan_here, with_mode
from .measured_ratios import measured_ratios_of
from .planning import MemoryPlan, plan_memory
from .presets import PRESETS, plan_preset, preset_data, run_seconds
from .report import plan_run, plan_sentences, report_of, report_run, report_settings
from .suggestions import suggestions_for
from .workload import Workload, beside_preview, workload_on_clips
