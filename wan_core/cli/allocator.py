"""Sets how torch hands out the memory of GPUs: in the environment, which torch reads when it is imported."""

from __future__ import annotations

import sys
from collections.abc import MutableMapping

_SETTINGS = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
"""where torch reads them; the second name is older and still read by every version"""


def let_segments_grow(environment: MutableMapping[str, str], *, torch: str, platform: str = sys.platform) -> None:
    """Asks for segments that grow, where the user said nothing: clips of several sizes then leave fewer holes.

    Only on Linux, and only of a `torch` (its version) that is built for CUDA: others warn that they have none.
    """
    built_for = torch.partition("+")[2]
    has_them = platform == "linux" and not built_for.startswith(("cpu", "rocm", "xpu"))
    if has_them and not any(environment.get(name) for name in _SETTINGS):
        environment[_SETTINGS[1]] = "expandable_segments:True"
