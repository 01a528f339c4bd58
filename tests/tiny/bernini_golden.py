"""Make tests/fixtures/wan_tiny_bernini.safetensors with ComfyUI's own model. A process of its own, as peer_forward.py.

    python tests/tiny/bernini_golden.py COMFYUI    # the tree of 0.33 or later, with the Python of that

Weights and other inputs are those of wan_tiny_t2v.safetensors. The file holds `context1` to `context3`, a source
video, a reference video and a picture, (2, 16, F, H, W) each, and `output`, (2, 16, 3, 8, 6) float64.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.support.golden import FIXTURES, Golden
from tests.tiny import peer_forward

SIZES = ((3, 8, 6), (2, 6, 4), (1, 4, 10))


def main(tree: str) -> None:
    golden, generator = Golden("t2v"), torch.Generator().manual_seed(1237)
    latent, timestep, text, _ = golden.inputs()
    streams = {f"context{n}": torch.randn(2, 16, *size, generator=generator) for n, size in enumerate(SIZES, 1)}
    weights = {f"bernini.w.{name}": value for name, value in golden.model().state_dict().items()}
    inputs = {f"bernini.{name}": value for name, value in streams.items()}
    inputs |= {"bernini.latent": latent, "bernini.timestep": timestep, "bernini.text": text}
    with tempfile.TemporaryDirectory() as folder:
        case, out = Path(folder, "case.safetensors"), Path(folder, "out.safetensors")
        save_file(weights | inputs, case, {"bernini": json.dumps(golden.shape.to_dict())})
        peer_forward.main("comfyui", str(case), str(out), tree)
        found = load_file(out)
    save_file(streams | {"output": found["bernini.fp64"]}, FIXTURES / "wan_tiny_bernini.safetensors")
    print(f"float32 of the same: {float((found['bernini.fp32'] - found['bernini.fp64']).abs().max()):.1e}")


if __name__ == "__main__":
    main(*sys.argv[1:])
