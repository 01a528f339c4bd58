"""Attention backends. The user's choice is used or refused, never replaced.

Every kernel takes queries, keys and values (B, N, heads, head_dim) in the compute dtype and returns the same layout.
"""

from __future__ import annotations

import contextlib
import importlib.util
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from ..abilities import abilities_of
from ..accelerator import backend_of
from ..config import nearest
from ..errors import ConfigError, DependencyError
from ..packages import imported, pip_line
from ..words import first_line

Attention = Callable[[Tensor, Tensor, Tensor], Tensor]

_SDPA = {
    "sdpa_flash": SDPBackend.FLASH_ATTENTION,
    "sdpa_efficient": SDPBackend.EFFICIENT_ATTENTION,
    "sdpa_cudnn": SDPBackend.CUDNN_ATTENTION,
    "sdpa_math": SDPBackend.MATH,
}
_PACKAGES = {
    "flash_attn": ("flash_attn", f"{pip_line('flash-attn')} --no-build-isolation"),
    "flash_attn_3": ("flash_attn_interface", "build FlashAttention 3 from its repository's folder hopper"),
    "xformers": ("xformers", pip_line("xformers")),
    "flash_attn_4": ("flash_attn.cute", f"{pip_line('flash-attn-4')} --pre"),
}
"""name -> module, and how to install it"""

ATTENTIONS = ("sdpa", *_SDPA, *_PACKAGES, "auto")
"""sdpa: the kernel that torch chooses; sdpa_math: the plain reference; auto: by sequence length"""

LONG_TOKENS = 4096
"""tokens from which `auto` uses another kernel than sdpa, as in MaxDiffusion (flash_min_seq_length); shorter sequences
depend on the launch of a kernel, not on its speed"""
_FOR_LONG = (
    ((10, 0), ("flash_attn_4", "sdpa_cudnn")),
    ((9, 0), ("flash_attn_3", "flash_attn_4", "sdpa_cudnn")),
    ((8, 0), ("flash_attn",)),
)
"""minimum compute capability -> kernels written for it, fastest first according to their authors"""

PREVIEW_ATTENTIONS = ("as in training", "sage")
"""sage: the package sageattention, which quantizes queries and keys; it has no backward pass"""
_SAGE = ("sageattention", pip_line("sageattention"))

_PROBE_TOKENS = 64


def check_attention_name(name: str) -> None:
    """Raises ConfigError for a name that is not in ATTENTIONS; checks neither packages nor devices."""
    if name.startswith("sage"):
        raise ConfigError(
            f'attention "{name}" cannot train: SageAttention quantizes queries and keys and has no backward pass, '
            "so LoRA weights would get no gradient through it. Choose sdpa; Wan Preview Settings has sage for previews."
        )
    if name not in ATTENTIONS:
        raise ConfigError(f'attention "{name}" is unknown.{nearest(name, list(ATTENTIONS))}')


def attention_kernel(name: str, long: str = "sdpa") -> Attention:
    """Returns the kernel of a name in ATTENTIONS. `long`: for auto, the name from `long_attention`.

    Raises ConfigError for another name, DependencyError for a missing package.
    """
    check_attention_name(name)
    if name == "sdpa":
        return _sdpa
    if name == "auto":
        return partial(_by_length, attention_kernel(long))
    if name in _SDPA:
        return partial(_sdpa_only, name)
    _installed(name, *_PACKAGES[name])
    if name == "xformers":
        return partial(_packaged, "xformers.ops", "memory_efficient_attention")
    return partial(_packaged, _PACKAGES[name][0], "flash_attn_func")


def preview_kernel(name: str) -> Attention | None:
    """Returns the kernel of a name in PREVIEW_ATTENTIONS, for passes without gradients; None: the kernel of training.

    Raises DependencyError for a missing package.
    """
    if name == PREVIEW_ATTENTIONS[0]:
        return None
    _installed(name, *_SAGE, instead=PREVIEW_ATTENTIONS[0])
    return _sage


def check_preview_attention(name: str, *, device: torch.device, dtype: torch.dtype, head_dim: int) -> None:
    """Raises ConfigError for a kernel that cannot render previews on `device`; see `check_attention`."""
    kernel = preview_kernel(name)
    if kernel is None:
        return
    instead = f"Set attention in Wan Preview Settings to {PREVIEW_ATTENTIONS[0]}."
    if not backend_of(device).packaged_attention:
        raise ConfigError(f'attention "{name}" runs on CUDA devices and this job uses {device}. {instead}')
    try:
        with torch.no_grad():
            kernel(*(torch.zeros(1, 2 * _PROBE_TOKENS, 1, head_dim, device=device, dtype=dtype) for _ in range(3)))
    except (RuntimeError, ValueError, NotImplementedError, AssertionError) as error:
        raise ConfigError(
            f'attention "{name}" cannot render previews on {device} in {str(dtype).removeprefix("torch.")} with '
            f"{head_dim} channels per head ({first_line(error)}). {instead}"
        ) from error


def check_attention(name: str, *, device: torch.device, dtype: torch.dtype, head_dim: int) -> None:
    """Raises ConfigError for a kernel that cannot train on `device`, DependencyError for a missing package.

    Needs no weights: runs a tiny forward and backward pass of the kernel.
    """
    kernel = attention_kernel(name)
    if name in _PACKAGES and not backend_of(device).packaged_attention:
        raise ConfigError(f'attention "{name}" runs on CUDA devices and this job uses {device}. Choose sdpa.')
    try:
        with warnings.catch_warnings(), torch.inference_mode(False), torch.enable_grad():
            warnings.simplefilter("ignore")  # torch would warn about each kernel that it cannot use
            inputs = [
                torch.zeros(1, _PROBE_TOKENS, 1, head_dim, device=device, dtype=dtype, requires_grad=True)
                for _ in range(3)
            ]
            if name in _SDPA:  # checks torch's own conditions for this kernel
                with sdpa_kernel(_SDPA[name]):
                    _sdpa(*inputs)
            kernel(*inputs).sum().backward()
    except (RuntimeError, ValueError, NotImplementedError) as error:
        raise ConfigError(
            f'attention "{name}" cannot train on {device} in {str(dtype).removeprefix("torch.")} '
            f"with {head_dim} channels per head ({first_line(error)}). Choose sdpa, which picks a kernel that can."
        ) from error


def long_attention(*, device: torch.device, dtype: torch.dtype, head_dim: int) -> str:
    """Returns the kernel of `auto` for long sequences: the fastest for this card that is installed and can train, else
    sdpa."""
    capability = abilities_of(device).capability if backend_of(device).packaged_attention else None
    names = next((names for least, names in _FOR_LONG if capability is not None and capability >= least), ())
    for name in names:
        with contextlib.suppress(ConfigError, DependencyError):
            check_attention(name, device=device, dtype=dtype, head_dim=head_dim)
            return name
    return "sdpa"


def sdpa_choice(*, device: torch.device, dtype: torch.dtype, head_dim: int, tokens: int = _PROBE_TOKENS) -> str:
    """Returns the kernel that torch chooses for `sdpa` with this number of tokens; "" if torch does not report it.

    It is flash_attention, efficient_attention, cudnn_attention, or math, whose memory grows with the square of the
    tokens. The choice does not depend on the number of heads, so one head is probed.
    """
    with torch.inference_mode(False), torch.enable_grad():
        probe = torch.empty(1, tokens, 1, head_dim, device=device, dtype=dtype, requires_grad=True).transpose(1, 2)
        try:
            choice = int(torch._fused_sdp_choice(probe, probe, probe))  # pyright: ignore[reportPrivateUsage]
        except (AttributeError, RuntimeError):
            return ""
    kinds = cast("dict[str, Any]", SDPBackend.__members__)
    return next((name.lower() for name, kind in kinds.items() if int(kind) == choice), "")


def _installed(name: str, module: str, how: str, instead: str = "sdpa") -> None:
    try:
        found = importlib.util.find_spec(module)
    except ImportError:  # the parent package is missing, or fails to import
        found = None
    if found is None:
        raise DependencyError(
            f'attention "{name}" needs the package {module}, which is not installed. Install it ({how}), or choose '
            f"{instead}."
        )
    try:
        imported(module)
    except Exception as error:  # a package built for another torch or CUDA fails in many ways
        raise DependencyError(
            f'attention "{name}" cannot be used: {module} fails to import ({type(error).__name__}: {error}). '
            f"Install it again for this torch ({how}), or choose {instead}."
        ) from error


def _sdpa(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    attended = functional.scaled_dot_product_attention(
        query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2)
    )
    return attended.transpose(1, 2)


def _by_length(long: Attention, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    kernel = long if min(query.shape[1], key.shape[1]) >= LONG_TOKENS else _sdpa
    return kernel(query, key, value)


def _sdpa_only(name: str, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Calls torch's operator directly, because `sdpa_kernel` sets a global, and each card of a step has a thread."""
    heads, operators = [part.transpose(1, 2) for part in (query, key, value)], torch.ops.aten
    if name == "sdpa_math":
        found = operators._scaled_dot_product_attention_math(*heads)
    elif name == "sdpa_flash" and query.device.type == "cpu":
        found = operators._scaled_dot_product_flash_attention_for_cpu(*heads)
    elif name == "sdpa_flash":
        found = operators._scaled_dot_product_flash_attention(*heads)
    else:
        kernel = f"_scaled_dot_product_{name.removeprefix('sdpa_')}_attention"
        found = getattr(operators, kernel)(*heads, None, torch.is_grad_enabled())
    return found[0].transpose(1, 2)


def _packaged(module: str, function: str, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    attended = getattr(imported(module), function)(query, key, value)
    return attended[0] if isinstance(attended, tuple) else attended  # some releases also return the log-sum-exp


def _sage(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    assert not torch.is_grad_enabled(), "sageattention has no backward pass"
    return imported("sageattention").sageattn(query, key, value, tensor_layout="NHD", is_causal=False)
