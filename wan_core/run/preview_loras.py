"""LoRA files that act on a run's models while clips are rendered: those of its previews, or of a column of a grid."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

from ..lora import FrozenLora, LoraSource, act_on, check_frozen, read_lora
from ..model import WanTransformer, model_without_values
from ..placement import BlockOffload, resolve_placement
from .open import OpenRun

__all__ = ["check_preview_loras", "with_preview_loras"]


@contextmanager
def with_preview_loras(model: WanTransformer, run: OpenRun, loras: Sequence[FrozenLora]) -> Iterator[None]:
    """Inside, `loras` act on the model of `run`, over all that acts on it already; afterwards it is as it was.

    Raises CheckpointError for a file that this model cannot have.
    """
    found = _of_this_model(run, loras)
    if not found:
        yield
        return
    numerics = model.numerics
    dtype = numerics.adapter or numerics.compute
    placement = resolve_placement(run.config.model.placement, run.file.variant.shape.num_layers)
    with ExitStack() as ends:
        # Copies of swapped blocks that lie on the device would keep their old values.
        ends.callback(_forget_copies, model)
        for source, strength in found:
            check_frozen(source, model_without_values(run.file.variant.shape), dtype.itemsize)
            for undo in act_on(model, source, strength, dtype=dtype, device_of=placement.device_of):
                ends.callback(undo)
        _forget_copies(model)
        yield


def check_preview_loras(run: OpenRun, loras: Sequence[FrozenLora]) -> None:
    """Raises what `with_preview_loras` would refuse, before any weight is read."""
    for source, _ in _of_this_model(run, loras):
        check_frozen(source, model_without_values(run.file.variant.shape), 4)


def _of_this_model(run: OpenRun, loras: Sequence[FrozenLora]) -> list[tuple[LoraSource, float]]:
    """Returns the file and strength of each LoRA that there is for the model of `run`."""
    own = [lora.on_model(run.config.train.expert, pair=run.both or run.has_partner) for lora in loras]
    return [(read_lora(run.roots.resolve(lora.file)), lora.strength) for lora in own if lora.file and lora.strength]


def _forget_copies(model: WanTransformer) -> None:
    if isinstance(model.offload, BlockOffload):
        model.offload.release()
