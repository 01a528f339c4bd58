"""ComfyUI's own conditioning nodes into a cache, a run with a preview, and its LoRA in a core sampler: one graph each.

    python benchmarks/core_conditioning.py --comfyui PATH --python PYTHON_OF_COMFYUI

PATH: a ComfyUI tree of 0.33 or newer. Tiny models of random weights: Bernini-R, Animate, SCAIL, SCAIL-2, Fun Camera,
HuMo-17B, HuMo-1.7B, S2V (with a reference image and frames before the clip, and with sound alone).
Prints what each cached, the sizes of its previews and how far the LoRA moves the samples. Exit code 1 if a graph fails.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import wave
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / part) for part in (".", "benchmarks", "scripts", "tests", "tests/tiny")]

import torch
from beside_comfyui import draw_clips
from comfy_server import ComfyError, ComfyServer, make_base
from safetensors.torch import load_file, save_file
from shapeworld.comfy_graphs import MODELS, VAE, Graph
from shapeworld.files import read_clip
from shapeworld.learning import fill_models
from world import CLIP, TINY_PACK

from tests.support.golden import fill_at_random
from wan_core.checkpoint.keys import to_file
from wan_core.model import WanShape, WanTransformer

CLIPS, SIDE, FRAMES, SOUND = 2, 64, 5, "tone.wav"
SIZES = {"width": SIDE, "height": SIDE, "length": FRAMES, "batch_size": 1}
_TINY: dict[str, Any] = {"dim": 128, "ffn_dim": 256, "num_heads": 1, "num_layers": 2}
_SCAIL = _TINY | {"in_channels": 20, "image_dim": 1280, "pose_stream_channels": 20}


@dataclass(frozen=True)
class Case:
    """One model and the nodes that make its CONDITIONING, called "made"; their inputs are "frames" and "text"."""

    name: str
    shape: WanShape
    nodes: Callable[[], Graph]
    sizes: dict[str, Any] = field(default_factory=dict)
    """sizes that ComfyUI does not read from the weights"""


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--comfyui", type=Path, required=True)
    parser.add_argument("--python", default=sys.executable, help="a Python that runs that tree and this pack")
    parser.add_argument("--only", default="", help="a part of a case's name")
    parser.add_argument("--work", type=Path, default=ROOT / "demo_output" / "core_conditioning")
    asked = parser.parse_args(arguments)
    base = make_base(asked.work.resolve() / time.strftime("%H-%M-%S"), [TINY_PACK])
    fill_models(base, MODELS["t2v"])
    draw_clips(base / "input" / "clips", SIDE, seed=0)
    for file in sorted((base / "input" / "clips").iterdir())[2 * CLIPS :]:
        file.unlink()
    write_tone(base / "input" / SOUND)
    cases = [case for case in CASES if asked.only in case.name]
    with ComfyServer(base, comfyui=asked.comfyui, python=asked.python) as comfy:
        failed = [case.name for case in cases if not passed(comfy, case)]
    print(f"{len(cases) - len(failed)} of {len(cases)}")
    return 1 if failed else 0


def passed(comfy: ComfyServer, case: Case) -> bool:
    """Queues the graph of a case and prints what came out."""
    model = WanTransformer(case.shape)
    fill_at_random(model, torch.Generator().manual_seed(1))
    file = comfy.base / "models" / "diffusion_models" / f"{case.name}.safetensors"
    stated = {"config": json.dumps({"transformer": case.sizes})} if case.sizes else None
    save_file({to_file(name): value for name, value in model.state_dict().items()}, file, stated)
    try:
        entry = comfy.run(graph_of(case), timeout=3600)
        run = comfy.outputs(entry, "train")["wan_run"][0]
        clips = [(len(frames), frames[0].shape[1]) for frames in map(read_clip, previews_of(comfy.output, run))]
        plain, moved = (samples(comfy.output, f"{case.name}_{name}") for name in ("plain", "lora"))
    except (ComfyError, OSError, KeyError) as problem:
        print(f"{case.name}: {problem!s}")
        return False
    report = "; ".join(comfy.outputs(entry, "report")["text"][0].splitlines())
    change = float((moved - plain).abs().max())
    print(f"{case.name}: {report}; {run['status']} at step {run['step']}, previews (frames, width) {clips}; the LoRA")
    print(f"  changes {len(plain)} samples by up to {change:.2f} of {float(plain.abs().max()):.1f}")
    return run["status"] == "done" and clips == [(FRAMES, SIDE)] * 2 and change > 0.01


def write_tone(file: Path) -> None:
    """A second of a rising tone."""
    with wave.open(str(file), "wb") as written:
        written.setnchannels(1)
        written.setsampwidth(2)
        written.setframerate(16_000)
        seconds = torch.arange(16_000) / 16_000
        written.writeframes((20_000 * (2 * torch.pi * 300 * seconds * (1 + seconds)).sin()).short().numpy().tobytes())


def previews_of(output: Path, run: dict[str, Any]) -> list[Path]:
    return [output / shown["subfolder"] / shown["filename"] for shown in run["samples"]]


def samples(output: Path, prefix: str) -> torch.Tensor:
    """Returns the latents that core's SaveLatent wrote."""
    return torch.cat([load_file(file)["latent_tensor"] for file in sorted(output.glob(f"{prefix}_*.latent"))])


def graph_of(case: Case) -> Graph:
    """Returns the graph from clips and captions to samples with and without the trained LoRA."""
    graph = {
        "model": _node("LoadWanModel", diffusion_model=f"{case.name}.safetensors", base_precision="fp32"),
        "vae": _node("VAELoader", vae_name=VAE),
        "clip": _node(CLIP),
        "vision": _node("TinyWanCLIPVisionLoader"),
        "data": _node("LoadVideoTextDataSetFromFolder", folder="clips"),
        "cut": _node("VideoFrameSample", video=["data", 0], num_frames=FRAMES, strategy="head", seed=0),
        "frames": _node("GetVideoComponents", video=["cut", 0]),
        "text": _node("CLIPTextEncode", clip=["clip", 0], text=["data", 1]),
        "first": _node("ImageFromBatch", image=["frames", 0], batch_index=0, length=1),
        "tokens": _node("CLIPVisionEncode", clip_vision=["vision", 0], image=["first", 0], crop="none"),
        "encoded": _node("VAEEncode", pixels=["frames", 0], vae=["vae", 0]),
        **case.nodes(),
    }
    settings = {"preview_every_n_steps": 2, "save_every_n_steps": 2, "learning_rate": 0.01, "rank": 4, "seed": 0}
    graph |= {
        "cache": _node(
            "WanCacheFromLatents",
            model=["model", 0], latents=["encoded", 0], conditioning=["made", 0], clip=["clip", 0],
        ),
        "report": _node("PreviewAny", source=["cache", 1]),
        "preview": _node("WanPreviewSettings", clip=["clip", 0], prompts="a ring", sampling="custom", steps=1, cfg=1.0),
        "settings": _node("WanTrainSettings", eval_items=0),
        "train": _node(
            "TrainLoRA", settings=["settings", 0], model=["model", 0], cache=["cache", 0], vae=["vae", 0],
            validation=["preview", 0], run_name=case.name, steps=2, **settings,
        ),
        "unet": _node("UNETLoader", unet_name=f"{case.name}.safetensors", weight_dtype="default"),
        "adapted": _node(
            "LoraModelLoader", model=["unet", 0], lora=["train", 1], strength_model=1.0, bypass=False
        ),
    }  # fmt: skip
    for name, model in (("plain", "unet"), ("lora", "adapted")):
        graph[f"sampled_{name}"] = _node(
            "KSampler", model=[model, 0], seed=0, steps=1, cfg=1.0, sampler_name="euler", scheduler="simple",
            positive=["made", 0], negative=["made", 1], latent_image=["made", 2], denoise=1.0,
        )  # fmt: skip
        graph[f"saved_{name}"] = _node(
            "SaveLatent", samples=[f"sampled_{name}", 0], filename_prefix=f"{case.name}_{name}"
        )
    return graph


def bernini() -> Graph:
    extra = {"source_video": ["frames", 0], "reference_images.reference_image_0": ["first", 0], "ref_max_size": SIDE}
    return {"made": _conditioned("BerniniConditioning", **extra)}


def animate() -> Graph:
    given = {"face_video": ["frames", 0], "pose_video": ["frames", 0], "reference_image": ["first", 0]}
    numbers = {"continue_motion_max_frames": 5, "video_frame_offset": 0}
    return {"made": _conditioned("WanAnimateToVideo", clip_vision_output=["tokens", 0], **given, **numbers)}


def scail() -> Graph:
    numbers = {"pose_strength": 1.0, "pose_start": 0.0, "pose_end": 1.0, "previous_frame_count": 5}
    given = {"pose_video": ["frames", 0], "reference_image": ["first", 0], "clip_vision_output": ["tokens", 0]}
    return {"made": _conditioned("WanSCAILToVideo", **given, **numbers, replacement_mode=False, video_frame_offset=0)}


def scail2() -> Graph:
    graph = scail()
    for count, name in ((1, "reference_image_mask"), (FRAMES, "pose_video_mask")):
        graph[name] = _node("EmptyImage", width=SIDE, height=SIDE, batch_size=count, color=0xFF0000)
        graph["made"]["inputs"][name] = [name, 0]
    return graph


def camera() -> Graph:
    sizes = {"width": SIDE, "height": SIDE, "length": FRAMES}
    given = {"start_image": ["first", 0], "clip_vision_output": ["tokens", 0], "camera_conditions": ["path", 0]}
    return {
        "path": _node("WanCameraEmbedding", camera_pose="Pan Left", **sizes),
        "made": _conditioned("WanCameraImageToVideo", **given),
    }


def humo() -> Graph:
    return {
        "sound": _node("LoadAudio", audio=SOUND),
        "ear": _node("TinyWanAudioEncoderLoader"),
        "heard": _node("AudioEncoderEncode", audio_encoder=["ear", 0], audio=["sound", 0]),
        "made": _conditioned("WanHuMoImageToVideo", audio_encoder_output=["heard", 0], ref_image=["first", 0]),
    }


def s2v(*, whole: bool = True) -> Graph:
    further = {"ref_image": ["first", 0], "control_video": ["frames", 0], "ref_motion": ["frames", 0]} if whole else {}
    return {
        "sound": _node("LoadAudio", audio=SOUND),
        "ear": _node("TinyWanSpeechEncoderLoader"),
        "heard": _node("AudioEncoderEncode", audio_encoder=["ear", 0], audio=["sound", 0]),
        "made": _conditioned("WanSoundImageToVideo", audio_encoder_output=["heard", 0], **further),
    }


def _conditioned(kind: str, **inputs: Any) -> dict[str, Any]:
    return _node(kind, positive=["text", 0], negative=["text", 0], vae=["vae", 0], **SIZES, **inputs)


def _node(kind: str, **inputs: Any) -> dict[str, Any]:
    return {"class_type": kind, "inputs": inputs}


_ANIMATE = _TINY | {"in_channels": 36, "image_dim": 1280, "pose_channels": 16, "num_layers": 5, "face_layers": (0,)}
_HUMO = {"whisper_channels": 1280, "audio_width": 1536}
_S2V = WanShape(**_TINY | {"num_layers": 5, "sound_channels": 64, "sound_depth": 25, "sound_layers": (0, 4)})
_S2V_SIZES = {"audio_dim": 64, "audio_inject_layers": [0, 4]}
CASES = (
    Case("bernini", WanShape(**_TINY), bernini),
    Case("animate", WanShape(**_ANIMATE), animate),
    Case("scail", WanShape(**_SCAIL), scail),
    Case("scail2", WanShape(**_SCAIL | {"identity_channels": 28}), scail2),
    Case("humo", WanShape(**_TINY | _HUMO | {"in_channels": 36}), humo),
    Case("small humo", WanShape(**_TINY | _HUMO), humo),
    Case("s2v", _S2V, s2v, _S2V_SIZES),
    Case("s2v sound alone", _S2V, partial(s2v, whole=False), _S2V_SIZES),
    Case("camera", WanShape(**_TINY | {"in_channels": 32, "image_dim": 1280, "camera_channels": 24}), camera),
)

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
