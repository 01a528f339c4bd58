"""LoRAs beside the weights of a core MODEL: hooks while the model runs, and nothing of them otherwise.

ComfyUI's own way adds a LoRA to the weights. A packed weight is unpacked, added to and packed again for it, which loses
more than a small LoRA is; a bf16 one is rounded. Here each module's output gets its change added, so the base stays as
it is, whoever moves, packs or swaps it.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

import comfy.model_patcher
import torch
from comfy.patcher_extension import WrappersMP
from torch import Tensor, nn

from ...wan_core.errors import ExportError
from ...wan_core.lora import Acting


def with_acting(model: Any, parts: Mapping[str, Acting], name: str) -> Any:
    """Returns a clone of `model` to which the parts of a LoRA are added while it samples; `name` is for refusals.

    ComfyUI loads, counts and unloads their values as those of a model beside it.
    """
    patched, key = model.clone(), f"wan_trainer_{uuid.uuid4().hex}"
    values = nn.ModuleList(parts.values())
    devices = {"load_device": model.load_device, "offload_device": model.offload_device}
    patched.set_additional_models(key, [comfy.model_patcher.ModelPatcher(values, **devices)])
    patched.add_wrapper_with_key(WrappersMP.APPLY_MODEL, key, partial(_run, parts, name))
    return patched


def _run(parts: Mapping[str, Acting], name: str, executor: Any, *args: Any, **kwargs: Any) -> Any:
    """One pass through the model, called by ComfyUI in its place."""
    base = executor.class_obj
    for part in parts.values():
        part.ran = False
    mark = getattr(base, "current_weight_patches_uuid", None)
    with _as_written(), _hooked(base.diffusion_model, parts, mark):
        result = executor(*args, **kwargs)
    if not any(part.ran for part in parts.values()):
        raise ExportError(
            f"The LoRA of {name} did not act: another node runs this model without calling its layers. Put Apply Wan "
            "LoRA behind that node, or use core Load LoRA."
        )
    return result


def _as_written() -> AbstractContextManager[Any]:
    """Runs compiled code as it is written: what torch.compile made of a model does not see hooks that come and go."""
    stance = getattr(torch.compiler, "set_stance", None)  # since torch 2.6
    return stance("force_eager") if stance else nullcontext()


@contextmanager
def _hooked(model: nn.Module, parts: Mapping[str, Acting], mark: object) -> Iterator[None]:
    handles: list[Any] = []
    try:
        for name, part in parts.items():
            handles.append(model.get_submodule(name).register_forward_hook(partial(_add, part, mark)))
        yield
    finally:
        for handle in handles:
            handle.remove()


def _add(part: Acting, mark: object, base: nn.Module, given: tuple[Tensor, ...], result: Tensor) -> Tensor:
    return part(base, given[0], result, mark)
