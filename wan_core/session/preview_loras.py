"""Applies and checks the LoRA files of rendered clips, from preview settings or a grid; checks the attention kernel."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

from ..errors import ConfigError
from ..job.open import OpenRun
from ..kernels import check_preview_attention
from ..lora import FrozenLora, LoraSource, act_on, check_frozen, read_frozen
from ..model import WanTransformer, model_without_values
from ..placement import BlockOffload, resolve_placement


@contextmanager
def with_preview_loras(model: WanTransformer, run: OpenRun, loras: Sequence[FrozenLora]) -> Iterator[None]:
    """Inside, `loras` act on the model of `run`, and its frozen LoRAs act at their strengths for previews.

    Raises CheckpointError for a file that does not fit this model.
    """
    found = _of_this_model(run, loras)
    if not found:
        yield
        return
    numerics = model.numerics
    dtype = numerics.adapter or numerics.compute
    placement = resolve_placement(run.config.model.placement, run.file.variant.shape.num_layers)
    with ExitStack() as ends:
        # Device copies of swapped blocks would keep their old values.
        ends.callback(_drop_copies, model)
        for source, strength in found:
            check_frozen(source, model_without_values(run.file.variant.shape), dtype.itemsize)
            for undo in act_on(model, source, strength, dtype=dtype, device_of=placement.device_of):
                ends.callback(undo)
        _drop_copies(model)
        yield


def check_preview_kernel(runs: Sequence[OpenRun], name: str) -> None:
    """Refuses an attention kernel of previews that the devices of `runs` lack; see `check_preview_attention`."""
    for run in runs:
        shape, numerics = run.file.variant.shape, run.config.model.precision.numerics(run.file.compute_dtype)
        for device in resolve_placement(run.config.model.placement, shape.num_layers).devices:
            check_preview_attention(
                name,
                device=device,
                dtype=numerics.attention or numerics.compute,
                head_dim=shape.dim // shape.num_heads,
            )


def check_preview_loras(runs: Sequence[OpenRun], loras: Sequence[FrozenLora]) -> None:
    """Raises the errors of `with_preview_loras` before weights are read, and ConfigError for a LoRA that no model
    takes.
    """
    for run in runs:
        for source, _ in _of_this_model(run, loras):
            check_frozen(source, model_without_values(run.file.variant.shape), 4)
    for lora in loras:
        if not any(_on_model(run, lora).file for run in runs):
            raise ConfigError(
                f"There is one model, and the LoRA {lora.low_noise_file.partition(':')[2]} is for the low noise expert "
                "of a pair. Choose it as lora, and none as low_noise_lora."
            )


def _of_this_model(run: OpenRun, loras: Sequence[FrozenLora]) -> list[tuple[LoraSource, float]]:
    """Returns file and strength of each LoRA for the model of `run`."""
    own = [_on_model(run, lora) for lora in loras]
    # A frozen LoRA already acts at its training strength, so only the difference to its preview strength is added.
    own += [lora.stronger(lora.preview_strength - 1) for lora in run.config.model.loras]
    model, expert = model_without_values(run.file.variant.shape), run.file.variant.expert
    return [
        (read_frozen(run.roots.resolve(lora.file), lora, model, expert), lora.strength)
        for lora in own
        if lora.file and lora.strength
    ]


def _on_model(run: OpenRun, lora: FrozenLora) -> FrozenLora:
    return lora.on_model(run.config.train.expert_name, pair=run.both or run.has_partner)


def _drop_copies(model: WanTransformer) -> None:
    if isinstance(model.offload, BlockOffload):
        model.offload.release()
