"""What `check_peft` says beside other packages: the folder of each comes first on sys.path.

Arguments: folders; "-" is a Python without torchao, "no file" one that may open no more files. Prints a line of JSON
for each: its sentence. Every one has a process of its own, forked when torch is imported and none of the packages that
are in question.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import resource
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from wan_core.errors import DependencyError
from wan_core.lora import check_peft


def sentence() -> str:
    try:
        check_peft()
    except DependencyError as error:
        return str(error)
    return "fine"


def main(folder: str) -> None:
    if folder == "-":
        sys.modules["torchao"] = None  # type: ignore[assignment]
    elif folder == "no file":
        resource.setrlimit(resource.RLIMIT_NOFILE, (4, 4))
    else:
        sys.path.insert(0, folder)
    print(json.dumps(sentence()), flush=True)  # noqa: T201


if __name__ == "__main__":
    gc.disable()  # what is imported stays
    for name in ("requests", "scipy.optimize", "torch._dynamo", "torch._inductor.decomposition"):
        with contextlib.suppress(ImportError):  # what peft, transformers and torchao take seconds to import, once
            importlib.import_module(name)

    packages = {"peft", "transformers", "torchao", "torchvision"}
    assert not packages & set(sys.modules), "what is in question would be found, not imported"
    gc.freeze()  # else every fork copies the pages of these libraries to look for garbage
    for name in sys.argv[1:]:
        child = os.fork()
        if child == 0:
            main(name)
            os._exit(0)
        if os.waitpid(child, 0)[1]:
            sys.exit(f"{name} was not checked.")
