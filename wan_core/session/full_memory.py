"""Out-of-memory errors as sentences, with the remedies of this run, the most helpful first."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator

from ..accelerator import gpu_count
from ..errors import OutOfMemory, host_memory_ran_out, in_a_new_run
from ..job.config import RunConfig
from ..placement.host import host_bytes, host_total
from ..placement.model_offload import device_memory_ran_out
from ..words import filled, first_line, logger

_log = logger("wan_trainer")
_USUAL_RANK = 16
_OTHERS = "other programs off the GPU"
_GIB = 1 << 30
_REQUESTED = re.compile(r"Tried to allocate ([\d.]+ [KMG]iB)")
_HELD = re.compile(r"this process has ([\d.]+ [KMG]iB) memory in use")
_UNITS = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": _GIB, "bytes": 1}
_CARD = re.compile(r"total capacity of ([\d.]+ [KMG]iB) of which ([\d.]+ [KMG]iB|\d+ bytes) is free")


@contextlib.contextmanager
def memory_named(
    config: RunConfig,
    *,
    stored_small: Callable[[], bool] = lambda: False,
    rendering: bool = False,
    gpus: int | None = None,
    predicted: Callable[[], int | None] = lambda: None,
) -> Iterator[None]:
    """Inside, errors of full device or host memory become OutOfMemory, with the remedies not in use yet.

    `stored_small`: whether the base file is quantized. `rendering`: clips are rendered, nothing is trained. `gpus`:
    number of GPUs; None: as torch counts. `predicted`: planned bytes of a step on the fullest device.
    """
    try:
        yield
    except (MemoryError, RuntimeError, OSError) as error:
        if not device_memory_ran_out(error):
            if host_memory_ran_out(error):
                raise _host_is_full(rendering) from error
            raise
        count = gpu_count() if gpus is None else gpus
        clips = ["a smaller width, height or num_frames in Wan Preview Settings", _OTHERS]
        helps = clips if rendering else _for_training(config, stored_small(), count)
        if not _others_hold_enough(str(error)):
            helps.remove(_OTHERS)
        _log.info("%s", first_line(error))
        account = _account(str(error), predicted()) or f" ({first_line(error)})"
        raise OutOfMemory.of_gpu(account, helps) from error


def memory_ran_out(error: BaseException) -> bool:
    """Returns whether device or host memory is exhausted, as torch's error or as ours."""
    return isinstance(error, OutOfMemory) or device_memory_ran_out(error) or host_memory_ran_out(error)


def _host_is_full(rendering: bool) -> OutOfMemory:
    free, total, known = host_bytes(), host_total(), ""
    if free is not None and total is not None:
        said = " at that moment; now {free} of {total} GiB are free again"
        known = filled(said, free=f"{free / _GIB:.1f}", total=f"{total / _GIB:.1f}")
    return OutOfMemory.of_host(known, rendering)


def _account(said: str, predicted: int | None) -> str:
    """Returns requested, free and predicted memory, from torch's message and the plan; "" if neither has any."""
    requested, card = _REQUESTED.search(said), _CARD.search(said)
    parts: list[str] = [filled("it requested {asked} more", asked=requested[1])] if requested else []
    if card:
        parts.append(filled("{free} of {total} were free", free=card[2], total=card[1]))
    held = _HELD.search(said)
    held_bytes = _bytes(held[1]) if held else 0
    if predicted:
        text = "a step was predicted to take {predicted} GiB"
        if held_bytes > predicted:
            text = "it held {held} GiB, more than the {predicted} GiB that were predicted"
        parts.append(filled(text, held=f"{held_bytes / _GIB:.1f}", predicted=f"{predicted / _GIB:.1f}"))
    others = _others_held(said)
    if others and others > _GIB / 2:
        parts.append(filled("other programs held {others} GiB", others=f"{others / _GIB:.1f}"))
    if not parts:
        return ""
    said = parts[0]
    for part in parts[1:]:
        said = filled("{said}, {part}", said=said, part=part)
    return filled(": {said}", said=said)


def _others_held(said: str) -> float | None:
    """Returns the bytes of the card held by other programs; None if torch's message does not have them."""
    card, held = _CARD.search(said), _HELD.search(said)
    return _bytes(card[1]) - _bytes(card[2]) - _bytes(held[1]) if card and held else None


def _others_hold_enough(said: str) -> bool:
    """Returns whether the allocation would fit without other programs; True if torch's message leaves it open."""
    requested, card, others = _REQUESTED.search(said), _CARD.search(said), _others_held(said)
    return not (requested and card) or others is None or others + _bytes(card[2]) >= _bytes(requested[1])


def _bytes(size: str) -> float:
    number, unit = size.split()
    return float(number) * _UNITS[unit]


def _for_training(config: RunConfig, stored_small: bool, gpus: int) -> list[str]:
    train, plan, batch = config.train, config.model, config.train.batch_size
    is_8_bit = plan.quantize is not None or (stored_small and plan.base_precision == "as in file")
    one_clip = filled("batch_size 1 instead of {batch}, with more gradient_accumulation_steps", batch=batch)
    measures = {
        _OTHERS: True,
        "gradient_checkpointing in Wan Train Settings": not train.gradient_checkpointing,
        "memory set to auto in Wan Train Settings": train.memory == "manual",
        in_a_new_run(one_clip): batch > 1,
        in_a_new_run("fewer num_frames or a smaller width and height in the dataset node"): True,
        in_a_new_run("the node Fp8 / Int8 Quantize (Wan) between Load Wan Model and Train Wan LoRA"): not is_8_bit,
        filled("split blocks in Split Across GPUs, over the {gpus} cards here", gpus=gpus): gpus > 1
        and plan.placement.mode != "split blocks",
        filled("model.placement.context_parallel above {parts}", parts=plan.placement.context_parallel): (
            plan.placement.context_parallel > 1
        ),
        in_a_new_run(filled("a rank below {rank}", rank=config.lora.rank)): config.lora.rank > _USUAL_RANK,
    }
    return [measure for measure, helps in measures.items() if helps]
