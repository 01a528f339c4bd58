"""The model card beside the demo models, from the logs of their training."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

NAMES = {
    "wan_demo_vae": "VAE, Wan 2.1 layout",
    "wan_demo_t2v": "text-to-video, Wan 2.1 layout",
    "wan_demo_i2v": "image-to-video, Wan 2.2 layout (36 input channels), from wan_demo_t2v",
    "wan_demo_high_noise": "text-to-video, high-noise expert (sigma 0.875 to 1)",
    "wan_demo_low_noise": "text-to-video, low-noise expert (sigma 0 to 0.875)",
}
COLOURS = ("#3b82f6", "#16a34a", "#dc2626", "#a855f7", "#d97706")
WIDTH, HEIGHT, LEFT, TOP, RIGHT, BOTTOM = 720, 300, 60, 20, 20, 40

CARD = """# Demo models

Five tiny models of the Wan 2.1 and 2.2 layouts, trained from nothing for this repository, so that its tests, its demo
and its pictures show a model that really generates. They draw one flat shape that moves over a dark background,
64x64 pixels, 9 frames, and nothing else. ComfyUI's own loaders take them; the text encoder is the tests' tiny umT5
(`tests/tiny/comfy_pack`), whose random weights are the same every time.

| file | what | parameters | bytes (bfloat16) |
| --- | --- | --- | --- |
{files}

![Twelve captions, sampled by ComfyUI's KSampler](../../../docs/images/demo_models.jpg)

**Data.** `tests/shapeworld` draws it: 4 shapes x 6 colours x 4 directions with varying size, speed, place and
background (captions like `a red circle moving left`), {clips}. Beside them, with the empty caption, {wide} clips of
a wider world: other polygons, colours and paths, but neither the bar, the five-pointed star nor the cross of
`tests/shapeworld/concepts`. The VAE saw any polygon, colour, turn and path. No picture or clip of anyone else was used.

**Training.** `scripts/generators/train_demo_models.py` with the jobs below, on two CPU cores, no GPU, float32 weights;
the VAE in bfloat16 arithmetic. Muon for matrices and convolutions, AdamW for the rest; the transformers keep
the average of about
their last {averaged} steps. Each leg of a job starts from what the leg before kept.
The minutes are those of this training, on a machine that was busy with other work too.

{table}

![Loss over training steps](loss_curves.svg)

**Measured.** Share of right colours, shapes and directions through ComfyUI's KSampler:
[the learning test](../../../benchmarks/results/learning_test_CPU_2026-11.md). VAE: {psnr}.

**Use.** Tests and demonstrations. They know 96 captions; expect nothing of any other.

**Licence.** Apache-2.0, as the rest of the repository.

Jobs:

```json
{jobs}
```
"""


def write_card(
    folder: Path, logs: Mapping[str, Sequence[Mapping[str, Any]]], jobs: Mapping[str, Any], facts: Mapping[str, str]
) -> None:
    """README.md and loss_curves.svg in `folder`, which already holds the weights.

    logs: lines {step, loss, seconds, ...} per model; jobs: dataclasses or tuples of them; facts: clips, wide, psnr,
    averaged.
    """
    files, rows = (
        [],
        ["| model | steps | minutes | loss, first and last | held-out loss, first and last |", "| --- |" * 1],
    )
    rows[1] = "| --- | --- | --- | --- | --- |"
    for name, title in NAMES.items():
        file = folder / f"{name}.safetensors"
        header = _header(file)
        count = sum(math.prod(entry["shape"]) for key, entry in header.items() if key != "__metadata__")
        files.append(f"| `{file.name}` | {title} | {count / 1e6:.2f} M | {file.stat().st_size:,} |")
        first, last = logs[name][0], logs[name][-1]
        held = f"{first['held_out']:.3f}, {last['held_out']:.3f}" if "held_out" in last else "-"
        losses = f"{first['loss']:.3f}, {last['loss']:.3f}"
        rows.append(f"| {name} | {last['step']:,} | {last['seconds'] / 60:.0f} | {losses} | {held} |")
    (folder / "loss_curves.svg").write_text(_curves(logs), encoding="utf-8")
    plain = {
        name: [asdict(leg) for leg in job] if isinstance(job, tuple) else asdict(job) for name, job in jobs.items()
    }
    text = CARD.format(files="\n".join(files), table="\n".join(rows), jobs=json.dumps(plain, indent=1), **facts)
    (folder / "README.md").write_text(text, encoding="utf-8")


def _header(file: Path) -> dict[str, Any]:
    with file.open("rb") as stream:
        return json.loads(stream.read(int.from_bytes(stream.read(8), "little")))


def _curves(logs: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """Loss over steps, logarithmic, one line per model."""
    steps = max(line["step"] for lines in logs.values() for line in lines)
    losses = [line["loss"] for lines in logs.values() for line in lines]
    low, high = math.floor(math.log2(min(losses))), math.ceil(math.log2(max(losses)))

    def place(step: float, loss: float) -> tuple[float, float]:
        across = LEFT + (WIDTH - LEFT - RIGHT) * step / steps
        down = TOP + (HEIGHT - TOP - BOTTOM) * (high - math.log2(loss)) / (high - low)
        return round(across, 1), round(down, 1)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif"',
        '  font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
    ]
    for power in range(low, high + 1):
        _, y = place(0, 2.0**power)
        parts.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y}" y2="{y}" stroke="#e5e7eb"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{y + 4}" text-anchor="end" fill="#374151">{2.0**power:g}</text>')
    for step in range(0, steps + 1, 1000):
        x, _ = place(step, 1)
        parts.append(f'<text x="{x}" y="{HEIGHT - 20}" text-anchor="middle" fill="#374151">{step}</text>')
    parts.append(f'<text x="{WIDTH / 2}" y="{HEIGHT - 4}" text-anchor="middle" fill="#374151">optimizer steps</text>')
    for number, (name, lines) in enumerate(logs.items()):
        points = " ".join(f"{x},{y}" for x, y in (place(line["step"], line["loss"]) for line in lines))
        parts.append(f'<polyline points="{points}" fill="none" stroke="{COLOURS[number]}" stroke-width="2"/>')
        place_of_name = f'x="{WIDTH - RIGHT - 4}" y="{TOP + 14 + 16 * number}" text-anchor="end"'
        parts.append(f'<text {place_of_name} fill="{COLOURS[number]}">{name}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"
