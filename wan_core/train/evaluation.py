"""The loss of a run on fixed clips, noise and noise levels: the same numbers for every run on these clips.

Noise levels are those asked for, as far as this model is trained and sampled on them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ..cache import Batches
from ..control import Control
from ..errors import Stopped
from ..events import Emit, Evaluated, Note, Stage
from ..flow import EVALUATION_TIMESTEPS, draw_noise, is_in_range, seeded_generator
from ..model import WanTransformer
from ..placement.room import device_memory_ran_out, release_cached_memory
from ..words import first_line
from .config import TrainConfig
from .draws import given_first_frames
from .objective import NoisedBatch, noise_batch


class Evaluation:
    """Measures the loss on held-out clips, whose noise lies in the cache.

    Training clips stand in where none are held out.
    """

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
        control: Control,
    ) -> None:
        self._model, self._batches, self._config, self._loss = model, batches, config, loss
        self._sigma_range, self._first_frame_share = sigma_range, first_frame_share
        self._emit, self._control = emit, control
        self._device = next(model.parameters()).device
        self._told = False

    @property
    def possible(self) -> bool:
        """Whether there is anything to evaluate on."""
        return bool(self._config.eval_timesteps and self._batches.evaluation_items(self._config.eval_items))

    def measure(self, step: int) -> Evaluated | None:
        """Returns the losses after `step` steps; None where there is nothing to evaluate on, or no memory for it."""
        if not self.possible:
            return None
        said = ""
        for _ in range(2):
            try:
                return self._measure(step)
            except RuntimeError as error:
                if not device_memory_ran_out(error):
                    raise
                said = first_line(error)
            release_cached_memory()
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
                    if reason := self._control.stop_reason():
                        raise Stopped(reason)
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
        whole = len({round(t) for t in sums}) == len(sums)  # else two of them would have one name
        means = {str(round(t) if whole else t): total_loss / len(items) for t, total_loss in sums.items()}
        return Evaluated(
            step=step,
            eval_loss=sum(means.values()) / len(means),
            per_timestep=means,
            held_out=self._batches.evaluates_held_out,
            per_clip=per_clip,
        )

    def _timesteps(self, stored: list[float]) -> list[float]:
        """Returns them, and says once where they are not those of the settings."""
        timesteps, note = evaluation_timesteps(self._config.eval_timesteps, stored, self._sigma_range)
        if note and not self._told:
            self._told = True
            self._emit(Note(text=note, level="warning"))
        return timesteps


def evaluation_timesteps(
    asked: Sequence[float], stored: Sequence[float], sigma_range: tuple[float, float]
) -> tuple[list[float], str]:
    """Returns the timesteps inside `sigma_range`, and a sentence for the user where they are not the ones asked for
    ("" otherwise).

    `asked` counts as it is, but for the usual four: those give way to what a held-out clip has `stored`, and an expert,
    which none or one of them may suit, is evaluated in the middles of four equal parts of its own range.
    """
    usual = tuple(asked) == EVALUATION_TIMESTEPS
    wanted = list(dict.fromkeys(stored if usual and stored else asked))
    if tuple(wanted) == EVALUATION_TIMESTEPS and sigma_range != (0.0, 1.0):
        return _spread(len(wanted), sigma_range), ""
    levels = torch.tensor(wanted, dtype=torch.float64) / 1000
    inside = [
        timestep for timestep, fits in zip(wanted, is_in_range(levels, sigma_range).tolist(), strict=True) if fits
    ]
    used = inside or _spread(len(wanted), sigma_range)
    if usual or used == wanted:
        return used, ""
    low, high = (1000 * sigma for sigma in sigma_range)
    without = ", ".join(f"{timestep:g}" for timestep in wanted if timestep not in used)
    return used, (
        f"This expert is trained on timesteps {low:g} to {high:g}: eval_timesteps {without} lie outside. "
        f"Evaluated at {', '.join(f'{timestep:g}' for timestep in used)}."
    )


def _spread(count: int, sigma_range: tuple[float, float]) -> list[float]:
    """Returns the middles of `count` equal parts of the range."""
    low, high = (1000 * sigma for sigma in sigma_range)
    return [low + (high - low) * (part + 0.5) / count for part in range(count)]
