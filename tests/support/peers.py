"""Random tiny models and inputs of the variants that only newer ComfyUI has, and what its classes make of them.

The vectors are made by `python tests/support/peers.py TREE PYTHON`: a tree of ComfyUI 0.33 and its interpreter. Weights
and inputs follow from a seed, so tests/fixtures/peers.safetensors holds outputs alone.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from tests.support.golden import FIXTURES, fill_at_random  # noqa: E402
from wan_core.model import Conditioning, Numerics, WanShape, WanTransformer  # noqa: E402

VECTORS, S2V_VECTORS = FIXTURES / "peers.safetensors", FIXTURES / "peers_s2v.safetensors"
_SIZES = {"dim": 56, "ffn_dim": 64, "num_heads": 2, "num_layers": 2, "text_dim": 32}
_SCAIL = WanShape(**_SIZES, in_channels=20, image_dim=1280, pose_stream_channels=20)
_SCAIL2 = WanShape(**_SCAIL.to_dict() | {"identity_channels": 28})
_HUMO = WanShape(**_SIZES, whisper_channels=4, audio_width=24)
CASES = {
    "scail": (_SCAIL, {"references": 1}),
    "scail two references": (_SCAIL, {"references": 2}),
    "scail2 animates": (_SCAIL2, {"references": 2}),
    "scail2 replaces": (_SCAIL2, {"references": 2, "replaces": 1}),
    "humo 17B": (replace(_HUMO, in_channels=36), {"references": 1}),
    "humo 1.7B": (_HUMO, {"references": 1}),
    "humo 17B silent": (replace(_HUMO, in_channels=36), {"references": 1, "silent": 1}),
}
"""case -> sizes of the model, and of its inputs"""
_S2V = WanShape(**_SIZES | {"num_layers": 5}, sound_channels=24, sound_depth=3, sound_layers=(0, 4))
S2V_CASES = {
    "s2v": (_S2V, {"sound": 1, "reference": 1}),
    "s2v goes on": (_S2V, {"sound": 1, "reference": 1, "frames_before": 1}),
    "s2v silent": (_S2V, {}),
}
ALL = CASES | S2V_CASES
Inputs = dict[str, Tensor]


def model_of(case: str, numerics: Numerics | None = None) -> WanTransformer:
    """Returns the model of a case, in float32."""
    model = WanTransformer(ALL[case][0], numerics)
    fill_at_random(model, torch.Generator().manual_seed(100))
    return model


def inputs_of(case: str) -> Inputs:
    """Returns the inputs of a case: latent, timestep, text, and the fields of Conditioning."""
    shape, sizes = ALL[case]
    generator = torch.Generator().manual_seed(200)
    video, small = (3, 4, 8), (3, 2, 4)

    def noise(*sizes: int) -> Tensor:
        return torch.randn(2, *sizes, generator=generator)

    if shape.sound_layers:
        return _s2v_inputs(noise, sizes)
    count = (sizes["references"], *video[1:])
    found = {"latent": noise(16, *video), "timestep": torch.tensor([991.25, 437.5]), "text": noise(512, 32)}
    if shape.whisper_channels:
        found |= {"references": noise(16, *count), "whisper": noise(3, 8, 5, shape.whisper_channels)}
        silent = {name: torch.zeros_like(found[name]) for name in ("references", "whisper")}
        return found | (silent if "silent" in sizes else {})
    found |= {"image_tokens": noise(257, 1280), "references": noise(16, *count), "pose_stream": noise(16, *small)}
    if shape.identity_channels:
        found |= {"reference_masks": noise(28, *count).sigmoid(), "pose_masks": noise(28, *small).sigmoid()}
        found["replaces"] = torch.tensor(float(sizes.get("replaces", 0)))
    return found


def _s2v_inputs(noise: Callable[..., Tensor], sizes: dict[str, int]) -> Inputs:
    found = {"latent": noise(16, 2, 8, 8), "timestep": torch.tensor([991.25, 437.5]), "text": noise(512, 32)}
    others = {"sound": noise(3, 24, 8), "reference": noise(16, 8, 8), "frames_before": noise(16, 19, 8, 8)}
    return found | {"pose_video": noise(16, 2, 8, 8)} | {name: others[name] for name in sizes}


def given_of(inputs: Inputs) -> Conditioning:
    """Returns the Conditioning among inputs."""
    rest = {name: value for name, value in inputs.items() if name not in ("latent", "timestep", "text", "replaces")}
    return Conditioning(**rest, replaces=bool(inputs.get("replaces", torch.zeros(()))))


def predicted(model: WanTransformer, inputs: Inputs) -> Tensor:
    """Returns what `model` predicts."""
    return model(inputs["latent"], inputs["timestep"], inputs["text"], given_of(inputs))


def theirs(tree: str, python: str) -> Inputs:
    """Returns what the classes of a ComfyUI tree make of every case: `<case>.fp32`, and `<case>.fp64` without their
    roundings to float32."""
    tensors: Inputs = {}
    for case in ALL:
        tensors |= {f"{case}.w.{name}": value for name, value in model_of(case).state_dict().items()}
        tensors |= {f"{case}.{name}": value for name, value in inputs_of(case).items()}
    with tempfile.TemporaryDirectory() as place:
        file, out = Path(place, "cases.safetensors"), Path(place, "out.safetensors")
        save_file(tensors, file, {case: json.dumps(shape.to_dict()) for case, (shape, _) in ALL.items()})
        script = ROOT / "tests" / "tiny" / "peer_forward.py"
        subprocess.run([python, str(script), "comfyui", str(file), str(out), tree], check=True)
        return load_file(out)


if __name__ == "__main__":
    found = theirs(*sys.argv[1:3])
    for file, cases in ((VECTORS, CASES), (S2V_VECTORS, S2V_CASES)):
        save_file({f"{case}.fp64": found[f"{case}.fp64"] for case in cases}, file)
    for case in ALL:
        with torch.no_grad():
            off = (predicted(model_of(case), inputs_of(case)) - found[f"{case}.fp32"]).abs().max()
        print(f"{case}: float32 differs by {off:.1e} of {found[f'{case}.fp32'].abs().max():.2f}")  # noqa: T201
