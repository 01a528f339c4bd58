"""The sentence for memory that ran out: what helps this very run, the most helpful first."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import torch

from ..errors import OutOfMemory, host_memory_ran_out
from ..words import first_line
from .config import RunConfig

__all__ = ["memory_named"]

_USUAL_RANK = 16


@contextlib.contextmanager
def memory_named(
    config: RunConfig,
    *,
    stored_small: Callable[[], bool] = lambda: False,
    rendering: bool = False,
    gpus: int | None = None,
) -> Iterator[None]:
    """Inside, a full GPU and a full computer become OutOfMemory, with what helps and is not done yet.

    `stored_small`, asked only then: the base file holds its linears in 8 bits or fewer. `rendering`: clips of a run are
    made, nothing is trained. `gpus`: how many there are; None asks torch.
    """
    try:
        yield
    except torch.OutOfMemoryError as error:
        count = torch.cuda.device_count() if gpus is None else gpus
        helps = _for_clips() if rendering else _for_training(config, stored_small(), count)
        raise OutOfMemory(
            f"The GPU ran out of memory. What helps most, in this order: {'; '.join(helps)}. Saved steps are kept. "
            f"({first_line(error)})"
        ) from error
    except (MemoryError, RuntimeError, OSError) as error:
        if not host_memory_ran_out(error):
            raise
        raise OutOfMemory.of_host() from error


def _for_clips() -> list[str]:
    return ["a smaller width, height or num_frames in Wan Preview Settings", "other programs off the GPU"]


def _for_training(config: RunConfig, stored_small: bool, gpus: int) -> list[str]:
    train, plan = config.train, config.model
    is_8_bit = plan.quantize is not None or (stored_small and plan.base_precision == "as in file")
    measures = {
        "gradient_checkpointing in Wan Train Settings": not train.gradient_checkpointing,
        f"batch_size 1 instead of {train.batch_size}, with more gradient_accumulation_steps": train.batch_size > 1,
        "fewer num_frames or a smaller width and height of the dataset": True,
        "Fp8 / Int8 Quantize": not is_8_bit,
        f"split blocks in Split Across GPUs, over the {gpus} cards here": gpus > 1
        and plan.placement.mode != "split blocks",
        f"a rank below {config.lora.rank}": config.lora.rank > _USUAL_RANK,
    }
    return [measure for measure, helps in measures.items() if helps]
