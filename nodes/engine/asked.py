"""Keeps what the queue entry that runs now is going to train, so that it can be refused before clips are encoded.

TrainLoRA asks for its cache last (`check_lazy_status`): by then ComfyUI has its model, settings and widgets, and the
node that encodes has not begun.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from ...wan_core.cache import CacheSet
from ...wan_core.errors import WanTrainerError
from ...wan_core.job import is_free_of_clips, sized_as_template, with_clip_values
from ...wan_core.load import ModelPlan
from ...wan_core.lora import LoraConfig
from ...wan_core.plan import Job, job_on_clips, plan_here
from ...wan_core.sampler import AS_TEMPLATE, SampleConfig
from ...wan_core.train import EXPERTS, TrainConfig, settings_of_expert
from ...wan_core.words import logger
from ..bridge import folders
from ..bridge.held_models import idle_bytes
from ..bridge.progress import current_prompt_id

_log = logger(__name__)


@dataclass(frozen=True)
class AskedTraining:
    """One TrainLoRA of a queue entry."""

    plan: ModelPlan
    lora: LoraConfig
    train: TrainConfig
    preview: SampleConfig | None

    def check(self, clips: CacheSet) -> None:
        """Raises OutOfMemory where training on `clips` does not fit into what is free on the GPUs here.

        And ConfigError where epochs or clips of a step cannot be with so many of them.
        """
        asked = replace(self, train=with_clip_values(self.train, clips, self.plan.placement.ranks))
        for expert in asked.train.experts:  # two take turns, so each must fit alone
            try:
                plan = plan_here(asked._job(expert, clips), idle_bytes())
            except WanTrainerError:
                raise
            except Exception:  # the worker plans again, and says what it finds
                _log.exception("the memory of the training could not be predicted")
                return
            if plan is not None:
                plan.check()

    def sized(self, clips: CacheSet) -> SampleConfig | None:
        """Returns the settings of the previews with their size, where they ask for that of ComfyUI's template.

        As many frames as fit beside the training of every expert; unchanged where there is no GPU to say so.
        """
        config = self.preview
        if config is None or config.preview_size != AS_TEMPLATE or not self.train.preview_every_n_steps:
            return config
        try:
            return self._sized(config, clips)
        except WanTrainerError:
            raise
        except Exception:
            _log.exception("how large previews may be could not be predicted: they are as the first clip")
            return config

    def _sized(self, config: SampleConfig, clips: CacheSet) -> SampleConfig:
        variant = self._job(self.train.experts[0], clips).file.variant
        pictured = bool(config.start_image or config.end_image)
        starts = self.train.first_frame_conditioning_p >= 1
        wanted = sized_as_template(config, variant)
        if wanted == config or not is_free_of_clips(variant, pictured=pictured, starts_from_clip=starts):
            return config
        asked = replace(self, preview=wanted)
        jobs = [replace(asked._job(expert, clips), preview_gives_way=True) for expert in self.train.experts]
        frames: list[int] = []
        for job in jobs:
            plan = plan_here(job, idle_bytes())
            found = plan and plan.job.preview
            if not found or not job.preview or found.latent_height != job.preview.latent_height:
                return config
            frames.append(found.latent_frames)
        return replace(wanted, num_frames=(min(frames) - 1) * variant.latents.temporal_stride + 1)

    def _job(self, expert: str, clips: CacheSet) -> Job:
        roots, train = folders.roots(), settings_of_expert(self.train, expert)
        plan = self.plan.of_expert(expert, roots)
        lora = self.lora if expert != EXPERTS[1] else self.lora.with_rank(self.train.low_noise_rank or self.lora.rank)
        return job_on_clips(plan, roots, lora, train, clips, preview=self.preview)


_ASKED: dict[str, dict[str, AskedTraining]] = {}
"""queue entry -> node -> what it trains; of the newest entry only"""


def note_training(node_id: str, asked: AskedTraining) -> None:
    """Remember what a node of the queue entry that runs now is going to train."""
    entry = current_prompt_id()
    for other in [known for known in _ASKED if known != entry]:
        del _ASKED[other]
    _ASKED.setdefault(entry, {})[node_id] = asked


def refuse_what_does_not_fit(prompt: Any, cache_node: str, clips: CacheSet) -> None:
    """Raises what `AskedTraining.check` does, for the nodes that take their cache from `cache_node`."""
    for node_id, asked in _ASKED.get(current_prompt_id(), {}).items():
        if prompt.get_node(node_id)["inputs"].get("cache") == [cache_node, 0]:
            asked.check(clips)
