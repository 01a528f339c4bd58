"""Configures torch's CUDA allocator through the environment, before torch is imported."""

from __future__ import annotations

import sys
from collections.abc import MutableMapping

_SETTINGS = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
"""read by torch; the second name is older and still read by every version"""


def let_segments_grow(environment: MutableMapping[str, str], *, torch: str, platform: str = sys.platform) -> None:
    """Requests expandable segments, unless the user configured the allocator: less fragmentation with several clip
    sizes.

    Only on Linux with a CUDA build of `torch` (its version): other builds warn about it.
    """
    built_for = torch.partition("+")[2]
    has_them = platform == "linux" and not built_for.startswith(("cpu", "rocm", "xpu"))
    if has_them and not any(environment.get(name) for name in _SETTINGS):
        environment[_SETTINGS[1]] = "expandable_segments:True"
