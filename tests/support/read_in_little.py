"""Reads a model file tensor by tensor in a process that may have little address space; a line of JSON. Linux only.

Arguments: the file, and how many MiB it may have beyond those it begins with, or "=" and how many in all. Address space
is anonymous and mapped memory together.
"""

from __future__ import annotations

import json
import re
import resource
import sys
from pathlib import Path

import torch

from wan_core.checkpoint import StoredWeight, WeightReader, read_checkpoint

_UNIT = {"F32": 4, "BF16": 2, "F16": 2}


def main(path: Path, limit: str) -> None:
    torch.set_num_threads(1)
    header = read_checkpoint(path)
    sources = [
        StoredWeight(path, key, info.dtype, info.shape, gguf=header.container == "gguf")
        for key, info in header.tensors.items()
    ]
    has = int(re.search(r"VmSize:\s+(\d+)", Path("/proc/self/status").read_text())[1]) << 10  # type: ignore[index]
    most = int(limit[1:]) << 20 if limit.startswith("=") else has + (int(limit) << 20)
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    nonzero = read = 0
    with WeightReader() as reader:
        for source in sources:
            value = reader.raw(source)
            read += value.nbytes
            nonzero += int(value.view(torch.uint8).view(-1).max())
            assert value.numel() * value.itemsize == torch.Size(source.shape).numel() * _UNIT[source.dtype]
            del value
    print(json.dumps({"tensors": len(sources), "read": read, "nonzero": nonzero, "limit": most}), flush=True)  # noqa: T201


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
