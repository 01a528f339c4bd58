"""The trainings of the running queue entry, which are checked before clips are encoded.

TrainLoRA requests its cache last (`check_lazy_status`): then its model, settings and widgets are known, and the node
that encodes has not started.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from ...wan_core.cache import CacheSet
from ...wan_core.errors import WanTrainerError
from ...wan_core.job import is_free_of_clips, sized_as_template, with_clip_values
from ...wan_core.load import ModelPlan
from ...wan_core.lora import LoraConfig
from ...wan_core.plan import Workload, plan_here, workload_on_clips
from ...wan_core.sampler import AS_TEMPLATE, SampleConfig
from ...wan_core.train import EXPERTS, TrainConfig, longer_share, settings_of_expert
from ...wan_core.words import logger
from ..bridge import folders
from ..bridge.held_models import idle_bytes
from ..bridge.progress import current_prompt_id

_log = logger(__name__)


@dataclass(frozen=True)
class RequestedTraining:
    """One TrainLoRA of a queue entry."""

    plan: ModelPlan
    lora: LoraConfig
    train: TrainConfig
    preview: SampleConfig | None

    def check(self, clips: CacheSet) -> None:
        """Raises OutOfMemory if training on `clips` does not fit, ConfigError if their number is too small."""
        requested = replace(self, train=with_clip_values(self.train, clips, self.plan.placement.batches))
        for expert in requested.train.experts:  # experts take turns on the device, so each must fit alone
            try:
                plan = plan_here(requested.job(expert, clips), idle_bytes())
            except WanTrainerError:
                raise
            except Exception:  # the worker plans again, and reports the error
                _log.exception("the memory of the training could not be predicted")
                return
            if plan is not None:
                plan.check()

    def sized(self, clips: CacheSet) -> SampleConfig | None:
        """Returns the preview settings; if they request the template's size, then with this size and the frames that
        fit."""
        config = self.preview
        if config is None or config.preview_size != AS_TEMPLATE or not self.train.preview_every_n_steps:
            return config
        frames: list[int] = []
        try:
            variant = self.job(self.train.experts[0], clips).file.variant
            pictured = bool(config.start_image or config.end_image)
            starts = self.train.first_frame_conditioning_p >= 1
            wanted = sized_as_template(config, variant)
            if wanted == config or not is_free_of_clips(variant, pictured=pictured, starts_from_clip=starts):
                return config
            for expert in self.train.experts:
                job = replace(replace(self, preview=wanted).job(expert, clips), preview_gives_way=True)
                plan = plan_here(job, idle_bytes())
                found = plan and plan.job.preview
                if not found or not job.preview or found.latent_height != job.preview.latent_height:
                    return config  # no frame of that size fits
                frames.append(found.latent_frames)
        except WanTrainerError:
            raise
        except Exception:
            _log.exception(
                "the largest size of previews could not be predicted: previews have the size of the first clip"
            )
            return config
        return replace(wanted, num_frames=variant.num_frames(min(frames)))

    def job(self, expert: str, clips: CacheSet) -> Workload:
        """Returns the workload of one expert on these clips."""
        roots, train = folders.roots(), settings_of_expert(self.train, expert)
        plan = self.plan.of_expert(expert, roots)
        lora = self.lora if expert != EXPERTS[1] else self.lora.with_rank(self.train.low_noise_rank or self.lora.rank)
        job = workload_on_clips(plan, roots, lora, train, clips, preview=self.preview)
        return replace(job, longer_share=longer_share(self.train))


_REQUESTED: dict[str, dict[str, RequestedTraining]] = {}
"""queue entry -> node id -> training; the newest entry only"""


def note_training(node_id: str, requested: RequestedTraining) -> None:
    """Keep the training of a node of the running queue entry."""
    entry = current_prompt_id()
    for other in [known for known in _REQUESTED if known != entry]:
        del _REQUESTED[other]
    _REQUESTED.setdefault(entry, {})[node_id] = requested


def check_requested(prompt: Any, cache_node: str, clips: CacheSet) -> None:
    """Calls `check` of every training that takes its cache from `cache_node`."""
    for node_id, requested in _REQUESTED.get(current_prompt_id(), {}).items():
        if prompt.get_node(node_id)["inputs"].get("cache") == [cache_node, 0]:
            requested.check(clips)
