"""torchvision without torch's compiler, which one of its operators asks a question at import: one of the five CPU
seconds of ComfyUI's imports, for an operator that no test calls."""

from __future__ import annotations

import sys
from importlib.machinery import PathFinder
from types import ModuleType
from typing import Any

ASKS, ASKED = "torchvision.ops.roi_align", ("torch._dynamo", "torch._dynamo.utils")


class _Finder:
    @staticmethod
    def find_spec(name: str, path: Any = None, _target: Any = None) -> Any:
        if name != ASKS or ASKED[0] in sys.modules:
            return None
        spec: Any = PathFinder.find_spec(name, path)
        load = spec.loader.exec_module

        def answered(module: ModuleType) -> None:
            stand_ins = {name: ModuleType(name) for name in ASKED}
            vars(stand_ins[ASKED[1]])["is_compile_supported"] = lambda _device: False
            sys.modules.update(stand_ins)
            try:
                load(module)
            finally:
                for stand_in in ASKED:
                    del sys.modules[stand_in]

        spec.loader.exec_module = answered
        return spec


def install() -> None:
    """No effect where the compiler or torchvision is imported already."""
    sys.meta_path.insert(0, _Finder)  # type: ignore[arg-type]
