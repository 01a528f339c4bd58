"""Applies LoRAs to a core MODEL by forward hooks that exist only while the model runs.

ComfyUI merges a LoRA into the weights. A quantized weight is dequantized and quantized again for that, which loses more
than a small LoRA changes; a bf16 weight is rounded. Hooks add the LoRA to each module's output instead, and leave the
base unchanged.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from contextlib import AbstractContextManager, ExitStack, nullcontext
from functools import partial
from typing import Any

import comfy.model_patcher
import torch
from comfy.patcher_extension import WrappersMP
from torch import Tensor, nn

from ...wan_core.errors import ExportError
from ...wan_core.lora import Acting


def with_acting(model: Any, parts: Mapping[str, Acting], name: str) -> Any:
    """Returns a clone of `model` that applies a LoRA while it samples. `name`: for refusals."""
    patched, key = model.clone(), f"wan_trainer_{uuid.uuid4().hex}"
    # As an additional model, ComfyUI loads, counts and offloads the LoRA's weights with the model.
    values = nn.ModuleList(parts.values())
    devices = {"load_device": model.load_device, "offload_device": model.offload_device}
    patched.set_additional_models(key, [comfy.model_patcher.ModelPatcher(values, **devices)])
    patched.add_wrapper_with_key(WrappersMP.APPLY_MODEL, key, partial(_run, parts, name))
    return patched


def _run(parts: Mapping[str, Acting], called: str, executor: Any, *args: Any, **kwargs: Any) -> Any:
    """Wraps one forward pass. Raises ExportError if no part acted."""
    base = executor.class_obj
    for part in parts.values():
        part.ran = False
    mark = getattr(base, "current_weight_patches_uuid", None)
    # Compiled graphs ignore hooks that are added later. set_stance: torch 2.6 and later.
    stance = getattr(torch.compiler, "set_stance", None)
    eager: AbstractContextManager[Any] = stance("force_eager") if stance else nullcontext()
    with eager, ExitStack() as hooks:
        for name, part in parts.items():
            module = base.diffusion_model.get_submodule(name)
            hooks.enter_context(module.register_forward_hook(partial(_add, part, mark)))
        result = executor(*args, **kwargs)
    if not any(part.ran for part in parts.values()):
        raise ExportError(
            f"The LoRA of {called} had no effect: another node runs this model without calling its layers. Connect "
            "Apply Wan LoRA after that node, or use core Load LoRA."
        )
    return result


def _add(part: Acting, mark: object, base: nn.Module, given: tuple[Tensor, ...], result: Tensor) -> Tensor:
    return part(base, given[0], result, mark)
