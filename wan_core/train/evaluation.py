"""Evaluation loss on fixed clips, noise and timesteps: comparable between runs on the same clips."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ..accelerator import empty_cache
from ..cache import Batches
from ..events import Emit, Evaluated, Note, Stage
from ..flow import EVALUATION_TIMESTEPS, draw_noise, is_in_range, seeded_generator
from ..model import WanTransformer
from ..placement.model_offload import device_memory_ran_out
from ..words import first_line
from .config import TrainConfig
from .draws import given_first_frames
from .objective import NoisedBatch, noise_batch


class Evaluation:
    """Loss on held-out clips, with noise from the cache; on training clips if none are held out."""

    def __init__(
        self,
        model: WanTransformer,
        batches: Batches,
        config: TrainConfig,
        loss: Callable[[NoisedBatch], Tensor],
        *,
        sigma_range: tuple[float, float],
        first_frame_share: float,
        emit: Emit,
        check: Callable[[], None],
        alone: bool,
    ) -> None:
        """`check()` raises Stopped on a stop request. `alone`: no other rank evaluates with this one."""
        self._model, self._batches, self._config, self._loss = model, batches, config, loss
        self._sigma_range, self._first_frame_share = sigma_range, first_frame_share
        self._emit, self._check, self._alone = emit, check, alone
        self._device = next(model.parameters()).device
        self._warned = False

    @property
    def possible(self) -> bool:
        """Whether there are clips and timesteps to evaluate on."""
        return bool(self._config.eval_timesteps and self._batches.evaluation_items(self._config.eval_items))

    def measure(self, step: int) -> Evaluated | None:
        """Returns the losses after `step` steps; None without clips to evaluate on, or without memory.

        Raises torch.OutOfMemoryError if other ranks wait for this one's tokens.
        """
        if not self.possible:
            return None
        said = ""
        for _ in range(2):  # memory cached by the training step may have filled the device at the first attempt
            try:
                return self._measure(step)
            except RuntimeError as error:
                if not (self._alone and device_memory_ran_out(error)):
                    raise
                said = first_line(error)
            empty_cache()
        text = f"The evaluation after step {step} was skipped, because the GPU ran out of memory twice. ({said})"
        self._emit(Note(text=text, level="warning"))
        return None

    def _measure(self, step: int) -> Evaluated:
        items = self._batches.evaluation_items(self._config.eval_items)
        self._model.train(False)
        timesteps = self._timesteps(list(self._batches.evaluation_noise(items[0])))
        sums, per_clip = dict.fromkeys(timesteps, 0.0), list[float]()
        done, total = 0, len(items) * len(timesteps)
        try:
            for item in items:
                batch = self._batches.load([item])
                given = given_first_frames(batch.latents, self._first_frame_share, "evaluation", item.latent_key)
                stored = self._batches.evaluation_noise(item)
                of_clip = 0.0
                for timestep in timesteps:
                    self._check()
                    noise = stored[timestep][None] if timestep in stored else None
                    if noise is None:
                        draw = seeded_generator("evaluation", item.latent_key, timestep)
                        noise = draw_noise(batch.latents.shape, draw)
                    sigma = torch.tensor([timestep / 1000])
                    noised = noise_batch(batch, noise, sigma, self._device, given)
                    with torch.no_grad():
                        loss = float(self._loss(noised))
                    sums[timestep] += loss
                    of_clip += loss / len(timesteps)
                    done += 1
                    self._emit(Stage(stage="evaluate", done=done, total=total))
                per_clip.append(of_clip)
        finally:
            self._model.train(True)
        distinct = len({round(t) for t in sums}) == len(sums)  # whether rounded timesteps are unique names
        means = {str(round(t) if distinct else t): total_loss / len(items) for t, total_loss in sums.items()}
        return Evaluated(
            step=step,
            eval_loss=sum(means.values()) / len(means),
            per_timestep=means,
            held_out=self._batches.evaluates_held_out,
            per_clip=per_clip,
        )

    def _timesteps(self, stored: list[float]) -> list[float]:
        """Returns the timesteps to evaluate; warns once if they differ from the settings."""
        timesteps, note = evaluation_timesteps(self._config.eval_timesteps, stored, self._sigma_range)
        if note and not self._warned:
            self._warned = True
            self._emit(Note(text=note, level="warning"))
        return timesteps


def evaluation_timesteps(
    requested: Sequence[float], stored: Sequence[float], sigma_range: tuple[float, float]
) -> tuple[list[float], str]:
    """Returns the timesteps to evaluate, and a sentence for the user if they are not the `requested` ones.

    `stored`: timesteps whose noise a held-out clip has in the cache; they replace the default timesteps.
    """
    default = tuple(requested) == EVALUATION_TIMESTEPS
    wanted = list(dict.fromkeys(stored if default and stored else requested))
    if tuple(wanted) == EVALUATION_TIMESTEPS and sigma_range != (0.0, 1.0):
        # Few or none of the default timesteps lie in the range of one expert.
        return _spread(len(wanted), sigma_range), ""
    fits = is_in_range(torch.tensor(wanted, dtype=torch.float64) / 1000, sigma_range).tolist()
    inside = [timestep for timestep, is_inside in zip(wanted, fits, strict=True) if is_inside]
    used = inside or _spread(len(wanted), sigma_range)
    if default or used == wanted:
        return used, ""
    low, high = (1000 * sigma for sigma in sigma_range)
    without = ", ".join(f"{timestep:g}" for timestep in wanted if timestep not in used)
    return used, (
        f"This expert is trained on timesteps {low:g} to {high:g}: eval_timesteps {without} lie outside. "
        f"Evaluated at {', '.join(f'{timestep:g}' for timestep in used)}."
    )


def _spread(count: int, sigma_range: tuple[float, float]) -> list[float]:
    """Returns the midpoints of `count` equal parts of the range, as timesteps."""
    low, high = (1000 * sigma for sigma in sigma_range)
    return [low + (high - low) * (part + 0.5) / count for part in range(count)]
