"""Train the tiny models under tests/assets/demo from nothing: `python scripts/train_demo_models.py --comfyui TREE`.

Stages, each kept in --work and skipped when its result is there: vae, latents, t2v, high, low, card. On two CPU cores
they take about two hours; every seed is fixed, so a second run differs only by the machine's rounding. A GPU is not
needed. The ComfyUI tree is only asked for caption features.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from shapeworld.judge import judge, matches  # noqa: E402
from shapeworld.scenes import CAPTIONS, all_words  # noqa: E402
from shapeworld.training import transformer as wan  # noqa: E402
from shapeworld.training.clips import captioned_clips  # noqa: E402
from shapeworld.training.texts import encode_texts  # noqa: E402
from shapeworld.training.vae import VaeJob, psnr, train_vae  # noqa: E402
from shapeworld.wan_vae import TrainableVae  # noqa: E402

from wan_core.model.transformer import WanTransformer  # noqa: E402

BOUNDARY = 0.875
WIDTH, FFN_DIM, LAYERS = 256, 256, 4
VAE = VaeJob()
T2V = wan.TransformerJob(steps=7000, seed=1)
HIGH = replace(T2V, steps=2000, lr=1e-3, sigma_range=(BOUNDARY, 1.0), seed=2)
LOW = replace(T2V, steps=2000, lr=1e-3, sigma_range=(0.0, BOUNDARY), seed=3)
TRAIN_SEEDS = range(40)
LONG_SEEDS = range(1000, 1006)
HELD_OUT_SEEDS = range(2000, 2001)


def log_to(file: Path, every: int, extra: Callable[[], dict[str, float]]) -> Callable[[int, float], None]:
    """Print and append the mean loss of every `every` steps."""
    began, kept = time.monotonic(), []

    def report(step: int, loss: float) -> None:
        kept.append(loss)
        if step % every == 0:
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

        tell = log_to(work / "vae.jsonl", 250, measure)

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
        save_file(kept, file)
    return load_file(file)


def texts_stage(work: Path, comfyui: Path) -> wan.CompactText:
    """The 96 captions, and last the empty one."""
    file = work / "texts.safetensors"
    if not file.is_file():
        rows = encode_texts(comfyui, [*CAPTIONS, ""])
        save_file({f"{number:03d}": value for number, value in enumerate(rows)}, file)
    return wan.compact_texts([value for _, value in sorted(load_file(file).items())])


def transformer_stage(
    work: Path,
    name: str,
    job: wan.TransformerJob,
    latents: dict[str, torch.Tensor],
    texts: wan.CompactText,
    start: Path | None = None,
) -> WanTransformer:
    model = wan.new_transformer(WIDTH, FFN_DIM, LAYERS, seed=job.seed)
    file = work / f"{name}.safetensors"
    if not file.is_file():
        if start:
            model.load_state_dict({key: value.float() for key, value in load_file(start).items()})

        def measure() -> dict[str, float]:
            words = latents["held_out_words"]
            save_file(dict(model.state_dict()), work / f"{name}_last.safetensors")
            return {"held_out": wan.held_out_loss(model, latents["held_out"], texts[words], job)}

        groups = [(latents[kind], latents[f"{kind}_words"]) for kind in ("short", "long")]
        wan.train(model, groups, texts, len(CAPTIONS), job, log_to(work / f"{name}.jsonl", 250, measure))
        save_bf16(model, file)
    model.load_state_dict({key: value.float() for key, value in load_file(file).items()})
    wan.read_compact(model)
    return model


def score(experts: list[tuple[float, WanTransformer]], vae: TrainableVae, texts: wan.CompactText, seed: int) -> str:
    """Share of right colours, shapes and directions over the 96 captions, sampled here; ComfyUI's figures count."""
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--comfyui", type=Path, required=True)
    parser.add_argument("--work", type=Path, default=ROOT / ".cache" / "demo_models")
    parser.add_argument("--only", choices=("vae", "latents", "t2v", "high", "low"), help="stop after this stage")
    asked = parser.parse_args()
    work: Path = asked.work
    work.mkdir(parents=True, exist_ok=True)
    (work / "jobs.json").write_text(
        json.dumps({"vae": asdict(VAE), "t2v": asdict(T2V), "high": asdict(HIGH), "low": asdict(LOW)}, indent=2)
    )
    vae = vae_stage(work)
    if asked.only == "vae":
        return
    latents, texts = latents_stage(work, vae), texts_stage(work, asked.comfyui)
    if asked.only == "latents":
        return
    t2v = transformer_stage(work, "wan_demo_t2v", T2V, latents, texts)
    print("t2v", score([(0.0, t2v)], vae, texts, seed=5), flush=True)
    if asked.only == "t2v":
        return
    start = work / "wan_demo_t2v.safetensors"
    high = transformer_stage(work, "wan_demo_high_noise", HIGH, latents, texts, start)
    low = transformer_stage(work, "wan_demo_low_noise", LOW, latents, texts, start)
    print("pair", score([(BOUNDARY, high), (0.0, low)], vae, texts, seed=5), flush=True)


if __name__ == "__main__":
    main()
