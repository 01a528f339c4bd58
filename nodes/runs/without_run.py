"""The folder of clips of LoRA files that no run here made, on a model from Load Wan Model: a run that never trains."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from ...wan_core.files import atomic_write_json
from ...wan_core.job import untrained_run
from ...wan_core.sampler import SampleConfig
from ..bridge import folders
from ..bridge.types import ModelHandle, RunHandle


def folder_without_run(model: ModelHandle, preview: SampleConfig, vae_identity: str) -> RunHandle:
    """Returns output/wan_trainer/_grids/<model>-<hash of all that decides its clips but prompts and LoRAs>, made ready.

    It lies one folder deeper than runs do, so that no list of runs names it. Raises what `untrained_run` does.
    """
    run = untrained_run(model.plan, preview, folders.cache(), folders.roots(), vae_identity=vae_identity)
    identity = {"job": run.job_id, "placement": run.model.placement.to_dict()}  # devices round differently
    digest = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:12]
    name = Path(run.model.base_file.rpartition(":")[2]).stem
    directory = folders.runs_folder() / "_grids" / f"{name}-{digest}"
    atomic_write_json(directory / "run.json", run.to_dict(), directory.parent)
    return RunHandle(directory, 0, model.variant.fps)
