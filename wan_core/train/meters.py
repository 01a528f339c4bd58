"""Memory of each device, and the event of a finished step: loss, time, memory and work of all ranks."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor

from ..abilities import abilities_of
from ..accelerator import is_gpu, memory_of, reset_peak, utilization_of
from ..cache import CacheSet
from ..events import Emit, StepDone
from ..model import WanTransformer
from ..placement import StepShape, card_bytes
from .config import TrainConfig
from .flops import FlopCount, Work
from .group import Group
from .objective import NoisedBatch, TrainedLoss

MemoryReading = dict[str, dict[str, int | None]]
"""device -> bytes `now`, `peak`, `reserved`, `predicted`, and `total` of the device; None = unknown"""
_WORTH_NAMING = 0.02
"""share of a step's time by which the slowest rank must be slower than all others to be named"""


class DeviceMeters:
    """Reads this process's memory on each device, without synchronizing.

    Peaks are per phase. All training steps are one phase; memory of a save, an evaluation or a preview in between does
    not count.
    """

    def __init__(self, devices: Iterable[torch.device], predicted: Mapping[str, int] | None = None) -> None:
        """`predicted`: peak of a step by device name."""
        every = tuple(dict.fromkeys(devices))
        # Next to accelerators the CPU only holds offloaded weights; its memory reading would be of the whole process.
        self._devices = tuple(device for device in every if device.type != "cpu") or every
        self._predicted = predicted or {}
        self._total = {str(device): card_bytes(device) for device in self._devices}
        self._highest: dict[str, dict[str, int | None]] = {}

    @property
    def devices(self) -> tuple[str, ...]:
        """Names of the devices."""
        return tuple(str(device) for device in self._devices)

    def read(self) -> MemoryReading:
        """Returns the memory of the training steps so far, first device first.

        GPU: bytes allocated and reserved by torch. CPU: resident memory of the process, and its peak since the process
        started. It includes torch and Python, which predictions leave out.
        """
        found: MemoryReading = {}
        for name, values in self._present().items():
            highest = self._highest.setdefault(name, {})
            for key in ("peak", "reserved"):
                known = [one for one in (highest.get(key), values[key]) if one is not None]
                highest[key] = max(known, default=None)
            plan = {"predicted": self._predicted.get(name), "total": self._total[name]}
            found[name] = {"now": values["now"], **highest, **plan}
        return found

    def end_phase(self) -> MemoryReading:
        """Returns memory and peak of the phase that ends here, and starts the next phase."""
        found = self._present()
        for device in self._devices:
            if is_gpu(device):
                reset_peak(device)
        return found

    def _present(self) -> MemoryReading:
        return {str(device): _present(device) for device in self._devices}


class StepReport:
    """Collects the work of a step's micro-batches and emits StepDone."""

    def __init__(
        self,
        model: WanTransformer,
        config: TrainConfig,
        meters: DeviceMeters,
        group: Group,
        emit: Emit,
        *,
        batches_per_epoch: int,
    ) -> None:
        """`batches_per_epoch`: number of batches of all ranks."""
        self._epochs_a_step = config.gradient_accumulation_steps * group.batches / batches_per_epoch
        self._waited = group.waited
        self._config, self._meters, self._group, self._emit = config, meters, group, emit
        self._flops, self._work = FlopCount(model), Work()
        self.prior_errors = list[Tensor]()
        """unweighted error, a scalar, of each micro-batch with prior preservation clips"""
        self.read_errors = list[float]()
        """`prior_errors` as Python numbers, which the trainer reads together with the loss"""
        self._prior_clips = list[int]()

    def begin(self) -> None:
        """Reset for a new step, or a retry."""
        self._work, self._waited = Work(), self._group.waited
        self.prior_errors.clear()
        self._prior_clips.clear()

    def add_loss(self, loss: TrainedLoss) -> None:
        """Note the prior loss of one micro-batch of this rank."""
        if loss.prior is not None:
            self.prior_errors.append(loss.prior)
            self._prior_clips.append(loss.prior_clips)

    def add_work(self, batch: NoisedBatch) -> None:
        """Count the work of one micro-batch of this rank."""
        self._work += self._flops.work_of(
            batch.latent.shape,
            time_rows=batch.time_rows,
            image_rows=batch.image_rows,
            text_rows=batch.text_rows,
            more_forward=sum(len(one.rows) for one in batch.target.passes),
            routes=self._config.routes,
            context_tokens=batch.context_tokens,
        )

    def finish(self, step: int, *, loss: float, lr: float, grad_norm: float, timestep: float, began: float) -> None:
        """Emit the step, which started at `began` (monotonic clock); every rank calls it."""
        seconds = time.monotonic() - began
        prior = [(error * clips, clips) for error, clips in zip(self.read_errors, self._prior_clips, strict=True)]
        ranks = self._group.gather((self._meters.read(), self._work, prior, self._group.waited - self._waited))
        work = sum((done for _, done, *_ in ranks[:: self._group.parts]), Work())
        memory = _added_up(reading for reading, *_ in ranks)
        errors = [part for *_, parts, _ in ranks[:: self._group.parts] for part in parts]
        self._emit(
            StepDone(
                step=step,
                steps=self._config.steps,
                loss=loss,
                lr=lr,
                grad_norm=grad_norm,
                seconds=seconds,
                expert=self._config.expert,
                timestep_mean=timestep,
                memory=memory,
                tokens=work.tokens,
                clips=work.clips,
                epoch=round(step * self._epochs_a_step, 4),
                prior_loss=sum(error for error, _ in errors) / sum(clips for _, clips in errors) if errors else None,
                slowest_rank=_slowest([waited for *_, waited in ranks], seconds),
                tflops=work.flops / seconds / 1e12 if seconds > 0 else None,
            )
        )


def device_states(names: Iterable[str]) -> list[dict[str, str | int | None]]:
    """Returns each device's current state: names, bytes of this process, and utilization in per cent."""
    return [
        {
            "device": str(device),
            "name": abilities_of(device).name if is_gpu(device) else "",
            **_present(device),
            "total": card_bytes(device),
            "busy": utilization_of(device) if is_gpu(device) else None,
        }
        for device in map(torch.device, names)
    ]


def _slowest(waited: Sequence[float], seconds: float) -> int | None:
    """Returns the rank that all others waited for in a step, or None."""
    least, *others = sorted(waited)
    return waited.index(least) if others and others[0] - least > _WORTH_NAMING * seconds else None


def _added_up(readings: Iterable[MemoryReading]) -> MemoryReading:
    """Returns the sum of several processes' readings by device; a sum of peaks is an upper bound."""
    total: MemoryReading = {}
    for reading in readings:
        for device, values in reading.items():
            known = total.setdefault(device, dict.fromkeys(values))
            for key, value in values.items():
                if value is not None:
                    # Not summed, because the processes use the same device.
                    known[key] = value if key == "total" else (known[key] or 0) + value
    return total


def largest_step(cache_set: CacheSet, batch_size: int) -> StepShape:
    """Returns the largest micro-batch of a job on these clips."""
    item = max(cache_set.items, key=cache_set.tokens)
    _, frames, height, width = cache_set.latent_shape(item)
    return StepShape(
        batch_size=batch_size, latent_frames=frames, latent_height=height, latent_width=width, context=item.context
    )


def _present(device: torch.device) -> dict[str, int | None]:
    """Returns bytes now and at the peak since the last reset."""
    if is_gpu(device):
        return memory_of(device)
    resident: dict[str, int] = {}
    with contextlib.suppress(OSError, ValueError):  # of systems without /proc
        if device.type == "cpu":
            with open("/proc/self/status", encoding="ascii", errors="replace") as file:
                lines = (line.split() for line in file if line.startswith(("VmRSS:", "VmHWM:")))
                resident = {name.rstrip(":"): int(kib) << 10 for name, kib, _unit in lines}
    return {"now": resident.get("VmRSS"), "peak": resident.get("VmHWM"), "reserved": None}
