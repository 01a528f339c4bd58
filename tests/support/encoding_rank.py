"""One rank of an encoding, as a process of torchrun: `FOLDER CACHE [kill=N] [spoil=NAME] [work=N]`.

The clips are files of a few bytes behind a reader that makes pixels of them; the VAE is a stand-in that takes a few
milliseconds of CPU. Prints JSON: CPU seconds, the clips and texts encoded here, and the fingerprint or the error.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
import time
from pathlib import Path

import numpy as np
import torch

from wan_core.cache import Encoders, EncodingPlan, LatentCache, encode_over_ranks, plan_encoding
from wan_core.dataset import Dataset, DatasetConfig, ScanContext, scan_folder
from wan_core.errors import WanTrainerError
from wan_core.model.latents import WAN21_LATENTS
from wan_core.train import join_group
from wan_core.video import ClipInfo


class BytesAsVideo:
    """Probes and reads any file: one grey level, from its bytes."""

    def probe(self, path):
        return ClipInfo(kind="still", width=16, height=16)

    def read(self, path, *, num_frames, width, height, **_):
        level = hashlib.sha256(path.read_bytes()).digest()[0]
        return np.full((num_frames, height, width, 3), level, np.uint8)


class WorkingEncoders:
    """A VAE that takes `work` products of 256 x 256, and a text encoder; both remember what they encoded."""

    identity, space = "encoders", WAN21_LATENTS

    def __init__(self, work: int) -> None:
        self.seen: list[str] = []
        self._work, self._matrix = work, torch.randn(256, 256)

    def encode(self, what):
        product = self._matrix
        for _ in range(self._work):
            product = self._matrix @ product / 16
        if isinstance(what, str):
            self.seen.append(what)
            return torch.full((1, 4096), float(len(what)))
        return what.mean().expand(16, 1, 2, 2)


class Text:
    identity = "text"

    def __init__(self, encoders: WorkingEncoders) -> None:
        self.encode = encoders.encode


def main() -> None:
    folder, root = Path(sys.argv[1]), Path(sys.argv[2])
    options = dict(word.split("=") for word in sys.argv[3:])
    torch.set_num_threads(1)
    encoders, video = WorkingEncoders(int(options.get("work", 1))), BytesAsVideo()
    context = ScanContext(video)  # type: ignore[arg-type]
    dataset = Dataset((scan_folder(DatasetConfig(width=16, height=16, num_frames=1), folder, context),))
    names: list[str] = []

    def plan() -> EncodingPlan:
        return plan_encoding(
            dataset, LatentCache(root), vae_identity="encoders", text_identity="text", space=WAN21_LATENTS
        )

    def progress(done: int, _total: int, name: str) -> None:
        names.append(name)
        if done == int(options.get("kill", 0)):
            os.kill(os.getpid(), signal.SIGKILL)

    encode = encoders.encode
    if spoilt := options.get("spoil"):
        level = hashlib.sha256((folder / spoilt).read_bytes()).digest()[0] / 255

        def spoiling(what):
            made = encode(what)
            return made * float("nan") if not isinstance(what, str) and abs(float(what.mean()) - level) < 1e-6 else made

        encoders.encode = spoiling  # type: ignore[method-assign]
    group = join_group()
    before = time.process_time()
    try:
        tools = Encoders(codec=encoders, text_encoder=Text(encoders), video=video, progress=progress)
        report = encode_over_ranks(plan(), plan, lambda: LatentCache(root), group, tools)
        told = {"set": report.fingerprint, "counts": [report.latents_encoded, report.latents_reused]}
    except WanTrainerError as error:
        told = {"error": str(error)}
    print(json.dumps({**told, "cpu_s": time.process_time() - before, "names": names}))  # noqa: T201
    group.leave()


if __name__ == "__main__":
    main()
