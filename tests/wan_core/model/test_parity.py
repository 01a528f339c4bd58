"""Random tiny models of every trainable variant, against ComfyUI's and diffusers' own classes, live."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.support.animate import first_values, quick
from tests.support.golden import FLOAT64, fill_at_random
from wan_core.model import Conditioning, WanShape, WanTransformer

SCRIPT = Path(__file__).parents[2] / "tiny" / "peer_forward.py"
FLOAT32_LIMIT = 1e-4
"""Largest absolute difference; outputs reach 4 to 6. Both peers round the timestep's sinusoid to float32."""
FLOAT64_LIMIT = 1e-12
"""With the peers' roundings to float32 taken away (tests/tiny/peer_forward.py) only the structure is left."""
VIDEO = (3, 8, 6)


def shape(**changes: object) -> WanShape:
    sizes = {"dim": 56, "ffn_dim": 64, "num_heads": 2, "num_layers": 2, "text_dim": 32}
    return WanShape(**sizes | changes)  # type: ignore[arg-type]


SOUNDING = shape(num_layers=5, sound_channels=24, sound_depth=3, sound_layers=(0, 4))
SHAPES = {
    "t2v": shape(),
    "i2v_2_1": shape(in_channels=36, image_dim=1280),
    "flf2v": shape(in_channels=36, image_dim=1280, image_positions=514),
    "i2v_2_2": shape(in_channels=36),
    "ti2v_5b": shape(in_channels=48, out_channels=48),
    "vace": shape(num_layers=4, vace_layers=(0, 2)),
    "fun_inp_5b": shape(in_channels=100, out_channels=48),
    "fun_control_2_1": shape(in_channels=48, image_dim=1280),
    "fun_control_reference": shape(in_channels=52, reference_channels=16),
    "fun_camera_2_1": shape(in_channels=32, image_dim=1280, camera_channels=24),
    "fun_camera_2_2": shape(in_channels=36, camera_channels=24),
    "bernini": shape(),
    "animate": shape(in_channels=36, image_dim=1280, num_layers=5, pose_channels=16, face_layers=(0,)),
    "humo": shape(in_channels=36, whisper_channels=4, audio_width=24),
    "humo_1_7b": shape(whisper_channels=4, audio_width=24),
    "s2v": SOUNDING,
    "s2v without sound": SOUNDING,
}
ONLY_COMFYUI = {
    *("fun_control_reference", "fun_camera_2_1", "fun_camera_2_2", "bernini", "animate"),
    *("humo", "humo_1_7b", "s2v", "s2v without sound"),
}
SINCE_0_33 = {"bernini": "context_latents"}
"""cases that older versions of ComfyUI lack, and a word of the file of its model that shows them"""
PER_FRAME = {"ti2v_5b", "fun_inp_5b"}


def inputs_of(name: str, shape: WanShape, generator: torch.Generator) -> dict[str, torch.Tensor]:
    """Random inputs, batch 2, as `Conditioning` names them."""
    video = (3, 8, 16) if name == "s2v" else VIDEO
    frames, height, width = video

    def noise(*sizes: int) -> torch.Tensor:
        return torch.randn(2, *sizes, generator=generator)

    timestep = torch.tensor([991.25, 437.5])
    if name in PER_FRAME:
        timestep = torch.stack([torch.zeros(2), timestep, timestep], dim=1)
    text = noise(512, shape.text_dim)
    text[0, 7:], text[1, 23:] = 0, 0
    found = {"latent": noise(shape.out_channels, *video), "timestep": timestep, "text": text}
    if shape.condition_channels:
        found["channels"] = noise(shape.condition_channels, *VIDEO)
    if shape.image_dim:
        found["image_tokens"] = noise(shape.image_positions or 257, shape.image_dim)
    if shape.vace_layers:
        found |= {"vace": noise(shape.vace_channels, *VIDEO), "vace_strength": torch.tensor(0.75)}
    if shape.reference_channels:
        found["reference"] = noise(shape.reference_channels, height, width)
    if shape.camera_channels:
        found["camera"] = noise(shape.camera_channels, frames, 8 * height, 8 * width)
    if shape.pose_channels:
        found["pose"] = noise(shape.pose_channels, frames - 1, height, width)
        found["face"] = noise(3, 4 * (frames - 1) - 3, 512, 512)
    if shape.whisper_channels:
        found |= {"references": noise(16, 1, height, width), "whisper": noise(frames, 8, 5, shape.whisper_channels)}
    if shape.sound_layers:
        found["pose_video"] = noise(16, *video)
    if name == "s2v":
        found |= {"sound": noise(3, 24, 4 * frames), "reference": noise(16, height, width)}
        found["frames_before"] = noise(16, 19, height, width)
    if name == "bernini":  # a source video, a shorter reference video of another size, a picture
        found |= {f"context{n}": noise(16, *size) for n, size in enumerate((VIDEO, (2, 6, 4), (1, 4, 10)), 1)}
    return found


def run(model: WanTransformer, inputs: dict[str, torch.Tensor], dtype: torch.dtype) -> torch.Tensor:
    given = {name: tensor.to(dtype) for name, tensor in inputs.items()}
    latent, timestep, text = (given.pop(name) for name in ("latent", "timestep", "text"))
    strength = float(given.pop("vace_strength", 1.0))
    context = tuple(given.pop(name) for name in sorted(given) if name.startswith("context"))
    with torch.no_grad():
        return model(latent, timestep, text, Conditioning(**given, vace_strength=strength, context=context))


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, torch.Tensor]]:
    """A file with every model and its inputs, and what ours makes of them: `<case>.fp32`, `<case>.fp64`."""
    tensors: dict[str, torch.Tensor] = {}
    ours: dict[str, torch.Tensor] = {}
    for number, (name, size) in enumerate(SHAPES.items()):
        generator = torch.Generator().manual_seed(100 + number)
        model = WanTransformer(size)
        fill_at_random(model, generator)
        inputs = inputs_of(name, size, generator)
        if size.face_layers:
            encode = model.motion_encoder.forward
            ours[f"{name}.motion"] = encode(inputs["face"][:1, :, 0], torch.float32)
            model.motion_encoder.forward = first_values  # pyright: ignore[reportAttributeAccessIssue]
        tensors |= {f"{name}.w.{key}": value for key, value in model.state_dict().items()}
        tensors |= {f"{name}.{key}": value for key, value in inputs.items()}
        ours[f"{name}.fp32"] = run(model, inputs, torch.float32)
        wide = WanTransformer(size, FLOAT64).double()
        wide.load_state_dict(model.state_dict())
        ours[f"{name}.fp64"] = run(quick(wide), inputs, torch.float64)
    file = tmp_path_factory.mktemp("parity") / "cases.safetensors"
    save_file(tensors, file, {name: json.dumps(size.to_dict()) for name, size in SHAPES.items()})
    return file, ours


Theirs = Callable[[str], dict[str, torch.Tensor]]


@pytest.fixture(scope="module")
def theirs(cases: tuple[Path, dict[str, torch.Tensor]], request: pytest.FixtureRequest) -> Theirs:
    """What `comfyui` or `diffusers` make of the same file, each asked once."""
    file, _ = cases
    answers: dict[str, dict[str, torch.Tensor]] = {}

    def ask(program: str) -> dict[str, torch.Tensor]:
        if program not in answers:
            tree = [str(request.getfixturevalue("comfyui_tree"))] if program == "comfyui" else []
            out = file.with_name(f"{program}.safetensors")
            words = [program, str(file), str(out), *tree]
            if tree:  # ComfyUI expects to come first in its process
                environment = os.environ | {"OMP_NUM_THREADS": "1"}
                command = [sys.executable, str(SCRIPT), *words]
                done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
            else:
                done = request.getfixturevalue("peer_script")(SCRIPT, *words)
            assert done.returncode == 0, done.stderr[-3000:]
            answers[program] = load_file(out)
        return answers[program]

    return ask


def check(program: str, case: str, cases: tuple[Path, dict[str, torch.Tensor]], theirs: Theirs) -> None:
    found, ours = theirs(program), cases[1]
    for dtype, limit in (("fp32", FLOAT32_LIMIT), ("fp64", FLOAT64_LIMIT)):
        mine, other = ours[f"{case}.{dtype}"].double(), found[f"{case}.{dtype}"].double()
        difference = float((mine - other).abs().max())
        print(f"{program} {case} {dtype}: {difference:.2e} of {float(other.abs().max()):.2f}")  # noqa: T201
        assert 1 < float(other.abs().max()) < 20
        assert difference <= limit, f"{case} in {dtype}"


@pytest.mark.comfy
@pytest.mark.parametrize("case", SHAPES)
def test_comfyui_predicts_the_same(
    case: str, cases: tuple[Path, dict[str, torch.Tensor]], theirs: Theirs, comfyui_tree: Path
) -> None:
    if case in SINCE_0_33 and SINCE_0_33[case] not in (comfyui_tree / "comfy/ldm/wan/model.py").read_text():
        pytest.skip("this ComfyUI is older than the model; tests/fixtures has its vectors")
    check("comfyui", case, cases, theirs)


@pytest.mark.comfy
def test_comfyui_reads_the_same_motion_from_a_face(cases: tuple[Path, dict[str, torch.Tensor]], theirs: Theirs) -> None:
    mine, other = cases[1]["animate.motion"], theirs("comfyui")["animate.motion"]
    assert float(other.abs().max()) > 0.01
    assert float((mine - other).abs().max()) <= 1e-5 * float(other.abs().max())


@pytest.mark.parametrize("case", [case for case in SHAPES if case not in ONLY_COMFYUI])
@pytest.mark.lasts(3)
@pytest.mark.soak
def test_diffusers_predicts_the_same(case: str, cases: tuple[Path, dict[str, torch.Tensor]], theirs: Theirs) -> None:
    check("diffusers", case, cases, theirs)
