"""Deletes a run as the route does, without a server: words are the tree of a ComfyUI and the run's folder."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from types import ModuleType

from wan_core.errors import WanTrainerError
from wan_core.job import disk_sentence

ROOT = Path(__file__).parents[2]


def main(comfyui: str, directory: str) -> None:
    sys.path.insert(0, comfyui)
    sys.argv = sys.argv[:1]  # ComfyUI reads them
    for name in ("", ".nodes", ".nodes.bridge", ".nodes.routes", ".nodes.runs"):  # without what a server needs
        package = ModuleType(f"pack{name}")
        package.__path__ = [str(ROOT.joinpath(*name.split(".")[1:]))]
        sys.modules[package.__name__] = package
    for name in [name for name in sys.modules if name.partition(".")[0] == "wan_core"]:
        sys.modules[f"pack.{name}"] = sys.modules[name]  # the engine that is there
    try:
        answer = importlib.import_module("pack.nodes.routes.removal").delete_run(Path(directory))
    except WanTrainerError as error:
        answer = {"error": str(error)}
    except OSError as error:
        answer = {"error": disk_sentence(error)}
    sys.stdout.write(json.dumps(answer))


main(*sys.argv[1:])
