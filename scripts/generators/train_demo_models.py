"""Train the tiny models under tests/assets/demo from nothing:

    python scripts/generators/train_demo_models.py --comfyui TREE

Stages, each stored in --work and skipped where its result exists: vae, latents, t2v, i2v, high, low, card. They take
about four hours on two CPU cores, without a GPU. Seeds are fixed, so runs differ only by the machine's rounding. The
ComfyUI tree is used for caption features only.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]
ASSETS = ROOT / "tests" / "assets" / "demo"

from shapeworld.comfy_graphs import BOUNDARY
from shapeworld.judge import judge, matches
from shapeworld.scenes import CAPTIONS, all_words
from shapeworld.training import transformer as wan
from shapeworld.training.card import write_card
from shapeworld.training.clips import captioned_clips, first_frame_channels, wide_clips
from shapeworld.training.texts import encode_texts
from shapeworld.training.vae import VaeJob, psnr, train_vae
from shapeworld.wan_vae import TrainableVae

from wan_core.model.transformer import WanTransformer

VAE = VaeJob()
T2V = wan.TransformerJob(width=256, ffn_dim=256, layers=4, steps=5500, seed=1)
HIGH = wan.TransformerJob(width=128, ffn_dim=512, layers=5, steps=4000, sigma_range=(BOUNDARY, 1.0), seed=2)
LOW = wan.TransformerJob(width=128, ffn_dim=512, layers=5, steps=7000, sigma_range=(0.0, BOUNDARY), seed=3)
# Each leg starts from the averaged weights of the one before. The first trains on captioned clips only, the second on
# more, the third at a lower rate.
LEGS = {
    "wan_demo_t2v": (
        T2V,
        replace(T2V, steps=2800, batch=40, lr=1.5e-3, wide_share=0.35, seed=11),
        replace(T2V, steps=1000, batch=40, lr=1e-3, wide_share=0.2, seed=21),
    ),
    "wan_demo_high_noise": (HIGH, replace(HIGH, steps=1500, batch=48, lr=1.5e-3, wide_share=0.35, seed=12)),
    "wan_demo_low_noise": (LOW, replace(LOW, steps=2000, batch=48, lr=1.5e-3, wide_share=0.35, seed=13)),
}
I2V_NAME = "wan_demo_i2v"
# Starts from the text-to-video model, as Wan's own did: only keeping the first frame is new.
I2V = replace(T2V, steps=2500, batch=24, lr=1.5e-3, wide_share=0.35, seed=31)
TRAIN_SEEDS = range(32)
LONG_SEEDS = range(1000, 1004)
HELD_OUT_SEEDS = range(2000, 2001)
WIDE_SEEDS, WIDE_CLIPS = (7000, 7001), 768
FIRST_FRAME_SEEDS = range(16)  # of TRAIN_SEEDS: clips whose first frame is encoded by itself


def log_to(file: Path, last: int, extra: Callable[[], dict[str, float]]) -> Callable[[int, float], None]:
    """Returns a callback that prints and appends the mean loss of every 250 steps."""
    began, kept = time.monotonic(), []

    def report(step: int, loss: float) -> None:
        kept.append(loss)
        if step % 250 == 0 or step == last:
            line = {"step": step, "loss": sum(kept) / len(kept), "seconds": round(time.monotonic() - began), **extra()}
            kept.clear()
            print(file.stem, json.dumps(line), flush=True)
            with file.open("a", encoding="utf-8") as lines:
                lines.write(json.dumps(line) + "\n")

    return report


def save_bf16(model: torch.nn.Module, file: Path) -> None:
    weights = {name: value.detach().to(torch.bfloat16).contiguous() for name, value in model.state_dict().items()}
    save_file(dict(sorted(weights.items())), file, metadata={"format": "pt"})


def vae_stage(work: Path) -> TrainableVae:
    file = work / "wan_demo_vae.safetensors"
    if not file.is_file():
        clips, _ = captioned_clips(HELD_OUT_SEEDS)
        model: list[TrainableVae] = []

        def measure() -> dict[str, float]:
            return {"psnr": psnr(model[-1], clips[::6])}

        tell = log_to(work / "vae.jsonl", sum(leg.steps for leg in VAE.legs), measure)

        def report(step: int, loss: float, trained: TrainableVae) -> None:
            model[:] = [trained]
            tell(step, loss)

        save_bf16(train_vae(VAE, report), file)
    vae = TrainableVae(VAE.dim)
    vae.load_state_dict({name: value.float() for name, value in load_file(file).items()})
    return vae.requires_grad_(False)


@torch.no_grad()
def latents_stage(work: Path, vae: TrainableVae) -> dict[str, torch.Tensor]:
    file = work / "latents.safetensors"
    if not file.is_file():
        kept = {}
        for name, seeds, frames in (
            ("short", TRAIN_SEEDS, 9),
            ("long", LONG_SEEDS, 17),
            ("held_out", HELD_OUT_SEEDS, 9),
        ):
            parts = [captioned_clips([seed], frames) for seed in seeds]
            with torch.autocast("cpu", torch.bfloat16):
                latents = [vae.encode(some) for clips, _ in parts for some in clips.split(16)]
            kept[name] = torch.cat(latents).float().contiguous()
            kept[f"{name}_words"] = torch.cat([words for _, words in parts])
        with torch.autocast("cpu", torch.bfloat16):
            wide = [vae.encode(clips) for seed in WIDE_SEEDS for clips in wide_clips(seed, WIDE_CLIPS).split(8)]
        kept["wide"] = torch.cat(wide).float().contiguous()
        save_file(kept, file)
    return load_file(file)


def first_frames_stage(
    work: Path, vae: TrainableVae, latents: dict[str, torch.Tensor]
) -> tuple[wan.LatentClips, wan.LatentClips, wan.LatentClips]:
    """Returns captioned, wide and held-out clips with the conditions of an image-to-video model."""
    file = work / "first_frames.safetensors"
    if not file.is_file():
        made = [first_frame_channels(vae, captioned_clips([seed])[0]) for seed in FIRST_FRAME_SEEDS]
        wide = [first_frame_channels(vae, wide_clips(seed, WIDE_CLIPS)) for seed in WIDE_SEEDS[:1]]
        held_out = first_frame_channels(vae, captioned_clips(HELD_OUT_SEEDS)[0])
        kept = {"short": torch.cat(made), "wide": torch.cat(wide), "held_out": held_out}
        save_file({name: value.contiguous() for name, value in kept.items()}, file)
    channels = load_file(file)

    def clips(name: str, words: torch.Tensor) -> wan.LatentClips:
        count = len(channels[name])
        return wan.LatentClips(latents[name][:count], words[:count], channels[name])

    nothing = torch.full((len(latents["wide"]),), len(CAPTIONS))
    return (
        clips("short", latents["short_words"]),
        clips("wide", nothing),
        clips("held_out", latents["held_out_words"]),
    )


def texts_stage(work: Path, comfyui: Path) -> wan.CompactText:
    """Returns the features of the 96 captions and, last, of the empty one."""
    file = work / "texts.safetensors"
    if not file.is_file():
        rows = encode_texts(comfyui, [*CAPTIONS, ""])
        save_file({f"{number:03d}": value for number, value in enumerate(rows)}, file)
    return wan.compact_texts([value for _, value in sorted(load_file(file).items())])


def transformer_stage(
    work: Path, name: str, latents: dict[str, torch.Tensor], texts: wan.CompactText
) -> WanTransformer:
    """Trains all legs of one transformer into NAME_LEG.safetensors, and the last one into NAME.safetensors."""
    legs = LEGS[name]
    model = wan.new_transformer(legs[0])
    for number, job in enumerate(legs, 1):
        file = work / (f"{name}.safetensors" if number == len(legs) else f"{name}_{number}.safetensors")
        if not file.is_file():
            save_bf16(train_leg(work, f"{name}_{number}", model, job, latents, texts), file)
        model.load_state_dict({key: value.float() for key, value in load_file(file).items()})
    wan.read_compact(model)
    return model


def train_leg(
    work: Path,
    name: str,
    model: WanTransformer,
    job: wan.TransformerJob,
    latents: dict[str, torch.Tensor],
    texts: wan.CompactText,
) -> WanTransformer:
    """Returns the averaged model after one leg; `model` has the weights of the last step."""
    groups = [wan.LatentClips(latents[kind], latents[f"{kind}_words"]) for kind in ("short", "long")]
    wide = wan.LatentClips(latents["wide"], torch.full((len(latents["wide"]),), len(CAPTIONS)))
    held_out = wan.LatentClips(latents["held_out"], latents["held_out_words"])
    report = reporter(work / f"{name}.jsonl", model, held_out, texts, job)
    return wan.train(model, groups, texts, len(CAPTIONS), wide, job, report)


def reporter(
    log: Path, model: WanTransformer, held_out: wan.LatentClips, texts: wan.CompactText, job: wan.TransformerJob
) -> Callable[[int, float, WanTransformer], None]:
    """Returns a callback that logs the training loss and the averaged model's loss on held-out clips."""
    newest = [model]

    def measure() -> dict[str, float]:
        return {"held_out": wan.held_out_loss(newest[0], held_out, texts[held_out.words], job)}

    tell = log_to(log, job.steps, measure)

    def report(step: int, loss: float, averaged: WanTransformer) -> None:
        newest[:] = [averaged]
        tell(step, loss)

    return report


def i2v_stage(
    work: Path, t2v: WanTransformer, vae: TrainableVae, latents: dict[str, torch.Tensor], texts: wan.CompactText
) -> WanTransformer:
    """Trains the image-to-video model from the finished text-to-video model."""
    model = wan.with_first_frame(t2v)
    file = work / f"{I2V_NAME}.safetensors"
    if not file.is_file():
        short, wide, held_out = first_frames_stage(work, vae, latents)
        report = reporter(work / f"{I2V_NAME}_1.jsonl", model, held_out, texts, I2V)
        save_bf16(wan.train(model, [short], texts, len(CAPTIONS), wide, I2V, report), file)
    model.load_state_dict({key: value.float() for key, value in load_file(file).items()})
    wan.read_compact(model)
    return model


def score(experts: list[tuple[float, WanTransformer]], vae: TrainableVae, texts: wan.CompactText, seed: int) -> str:
    """Returns the shares of right colours, shapes and directions over the 96 captions, by our sampler."""
    every = torch.arange(len(CAPTIONS))
    latent = wan.sample(experts, texts[every], texts[torch.tensor([len(CAPTIONS)])], seed=seed)
    right = torch.zeros(3)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        videos = torch.cat([vae.decode(some) for some in latent.split(16)]).float()
    frames = ((videos.clamp(-1, 1) + 1) * 127.5).round().byte().permute(0, 2, 3, 4, 1)
    for clip, words in zip(frames, all_words(), strict=True):
        found = matches(judge(clip.numpy()), words)
        right += torch.tensor([float(found.colour), float(found.shape), float(found.direction)])
    colour, shape, direction = (100 * right / len(CAPTIONS)).tolist()
    return f"colour {colour:.1f} %, shape {shape:.1f} %, direction {direction:.1f} %"


def card_stage(work: Path, vae: TrainableVae, assets: Path) -> None:
    """Copies the weights into the repository's assets, with a model card from the logs."""
    assets.mkdir(parents=True, exist_ok=True)
    jobs = {"wan_demo_vae": VAE, **LEGS, I2V_NAME: (I2V,)}
    for name in jobs:
        shutil.copyfile(work / f"{name}.safetensors", assets / f"{name}.safetensors")
    logs = {"wan_demo_vae": read_log(work / "vae.jsonl")}
    for name, legs in {**LEGS, I2V_NAME: (I2V,)}.items():
        lines: list[dict[str, float]] = []
        for number in range(1, len(legs) + 1):
            step, seconds = (lines[-1]["step"], lines[-1]["seconds"]) if lines else (0, 0)
            for line in read_log(work / f"{name}_{number}.jsonl"):
                lines.append({**line, "step": line["step"] + step, "seconds": line["seconds"] + seconds})
        logs[name] = lines
    short, long = captioned_clips(HELD_OUT_SEEDS)[0], captioned_clips(HELD_OUT_SEEDS, 17)[0]
    facts = {
        "clips": f"{len(TRAIN_SEEDS)} clips per caption",
        "wide": f"{len(WIDE_SEEDS) * WIDE_CLIPS}",
        "psnr": f"{psnr(vae, short):.1f} dB over one held-out clip of 9 frames per caption, "
        f"{psnr(vae, long[::4]):.1f} dB over 24 of 17 frames",
        "averaged": str(T2V.averaged_steps),
    }
    write_card(assets, logs, jobs, facts)


def read_log(file: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--comfyui", type=Path, required=True)
    parser.add_argument("--work", type=Path, default=ROOT / ".cache" / "demo_models")
    parser.add_argument("--only", choices=("vae", "latents", "t2v", "i2v"), help="stop after this stage")
    asked = parser.parse_args()
    work: Path = asked.work
    work.mkdir(parents=True, exist_ok=True)
    vae = vae_stage(work)
    if asked.only == "vae":
        return
    latents, texts = latents_stage(work, vae), texts_stage(work, asked.comfyui)
    if asked.only == "latents":
        return
    t2v = transformer_stage(work, "wan_demo_t2v", latents, texts)
    print("t2v", score([(0.0, t2v)], vae, texts, seed=5), flush=True)
    if asked.only == "t2v":
        return
    i2v_stage(work, t2v, vae, latents, texts)
    if asked.only == "i2v":
        return
    high = transformer_stage(work, "wan_demo_high_noise", latents, texts)
    low = transformer_stage(work, "wan_demo_low_noise", latents, texts)
    print("pair", score([(BOUNDARY, high), (0.0, low)], vae, texts, seed=5), flush=True)
    card_stage(work, vae, ASSETS)


if __name__ == "__main__":
    main()
