"""Graphs on both models of Wan 2.2 A14B: a character, and training followed by a clip in the same queue."""

from __future__ import annotations

from typing import Any

from .parts import COLUMNS, T2V_HIGH, T2V_LOW, UMT5, VAE_21, Graph, Link, Node, training

TRAIN_HEIGHT = 620
"""of a Train Wan LoRA node with its panel, and the gap below it"""
EXPERTS = {"high": T2V_HIGH, "low": T2V_LOW}
SWITCH_STEP = 10
SAMPLING = {"steps": 20, "cfg": 3.5, "sampler_name": "euler", "scheduler": "simple"}
"""as ComfyUI's own Wan 2.2 template samples: 20 steps, the second half by the low noise model"""
SAMPLING_SHIFT = 8.0
NEGATIVE = "blurry, distorted, low quality, static, subtitles"

FILES = f"""**Files**, below ComfyUI's `models` folder:

- `diffusion_models/{T2V_HIGH}`
- `diffusion_models/{T2V_LOW}`
- `vae/{VAE_21}`
- `text_encoders/{UMT5}`"""


def both_experts(run_name: str, **train: Any) -> dict[str, Node]:
    """The shared nodes, and a second Train Wan LoRA below the first: one run per expert, on the same cache."""
    nodes = training(
        model=T2V_HIGH,
        low_noise_model=T2V_LOW,
        dataset={"num_frames": 33, "width": 832, "height": 480},
        train={"run_name": f"{run_name}_high", "expert": "high", **train},
    )
    high = nodes.pop("train")
    high.title = "Train Wan LoRA (high noise)"
    left, top = high.at
    low = {**high.inputs, "run_name": f"{run_name}_low", "expert": "low"}
    nodes["train_high"] = high
    nodes["train_low"] = Node(
        "TrainLoRA", low, (left, top + TRAIN_HEIGHT), high.size, title="Train Wan LoRA (low noise)"
    )
    return nodes


def generating(top: int) -> dict[str, Node]:
    """From two runs to a video: each expert's model gets its LoRA, and both sample one clip in turn."""
    start = COLUMNS[-1]
    first, second, third, fourth = (start + offset for offset in (0, 420, 830, 1230))
    nodes = {
        "positive": _prompt("Prompt", "a photo of my_character walking through a busy street", (COLUMNS[2], 590), 130),
        "negative": _prompt("Negative prompt", NEGATIVE, (COLUMNS[2], 780), 110),
    }
    for row, (expert, file) in enumerate(EXPERTS.items()):
        noise, y = f"{expert} noise", top + row * TRAIN_HEIGHT
        nodes[f"unet_{expert}"] = Node(
            "UNETLoader", {"unet_name": file}, (first, y), (370, 90), title=f"Load Diffusion Model ({noise})"
        )
        nodes[f"apply_{expert}"] = Node(
            "ApplyWanLoRA",
            {"run": Link(f"train_{expert}"), "model": Link(f"unet_{expert}")},
            (first, y + 150),
            (370, 110),
            title=f"Apply Wan LoRA ({noise})",
        )
        nodes[f"shift_{expert}"] = Node(
            "ModelSamplingSD3",
            {"model": Link(f"apply_{expert}"), "shift": SAMPLING_SHIFT},
            (second, y + 150),
            (330, 60),
            title=f"Sampling shift ({noise})",
        )
    nodes["latent"] = Node(
        "EmptyHunyuanLatentVideo",
        {"width": 832, "height": 480, "length": 81},
        (second, top + 330),
        (330, 130),
        title="Size and length",
    )
    nodes["sample_high"] = _sampler(
        "high", Link("latent"), (third, top + 150), end_at_step=SWITCH_STEP, return_with_leftover_noise="enable"
    )
    nodes["sample_low"] = _sampler(
        "low", Link("sample_high"), (third, top + TRAIN_HEIGHT + 150), add_noise="disable", start_at_step=SWITCH_STEP
    )
    return {**nodes, **_video(fourth, top + TRAIN_HEIGHT)}


def _prompt(title: str, text: str, at: tuple[int, int], height: int) -> Node:
    return Node("CLIPTextEncode", {"clip": Link("clip"), "text": text}, at, (350, height), title=title)


def _sampler(expert: str, latent: Link, at: tuple[int, int], **steps: Any) -> Node:
    links = {
        "model": Link(f"shift_{expert}"),
        "positive": Link("positive"),
        "negative": Link("negative"),
        "latent_image": latent,
    }
    return Node("KSamplerAdvanced", {**links, **SAMPLING, **steps}, at, (340, 340), title=f"Sample ({expert} noise)")


def _video(left: int, top: int) -> dict[str, Node]:
    """A VAE loader of its own spares a link behind every other node; ComfyUI loads the file once."""
    return {
        "vae_out": Node("VAELoader", {"vae_name": VAE_21}, (left, top), (340, 60)),
        "decode": Node(
            "VAEDecode", {"samples": Link("sample_low"), "vae": Link("vae_out")}, (left, top + 120), (340, 60)
        ),
        "video": Node("CreateVideo", {"images": Link("decode"), "fps": 16.0}, (left, top + 240), (340, 90)),
        "save": Node(
            "SaveVideo",
            {"video": Link("video"), "filename_prefix": "video/wan_trainer"},
            (left, top + 390),
            (340, 330),
        ),
    }


CHARACTER = Graph(
    "03_wan22_t2v_A14B_character",
    f"""## Teach Wan 2.2 a character (T2V A14B, both models)

{FILES}

**What is new here**: Wan 2.2 has two models, one for the noisy half of sampling (layout, motion) and one for the other
(faces, detail). A character needs both. Each is trained in a run of its own, one after the other, on the same cache.

**Steps**

1. Put 10 to 30 clips or pictures of the character into a folder of ComfyUI's `input` folder, each with a `.txt` beside
it that names the character the same way. Choose the folder in *Wan Video Dataset*.
2. Press **Run**. The LoRAs appear in `loras/wan_trainer` as `my_character_high` and `my_character_low`: load each on
its own model.

**Memory**: training takes about 30 GB of the GPU (predicted). Less: 17 `num_frames` (about 23 GB), or 1 with pictures
(about 17 GB).

**How long**: both runs have 1500 steps; the panel says how long is left after the first ones. Cancel saves and stops;
Run again goes on where it stopped.""",
    both_experts("my_character"),
)

TRAIN_THEN_GENERATE = Graph(
    "07_wan22_t2v_A14B_train_then_generate",
    f"""## Train, then make a video, in one queue (Wan 2.2 T2V A14B)

{FILES}

**What is new here**: *Apply Wan LoRA* takes the run itself, so no file has to be chosen, and the models on the right
load when training is over. Sampling is that of ComfyUI's own Wan 2.2 template: 20 steps, the first 10 with the high
noise model, the rest with the low noise model.

**Steps**

1. Put 10 to 30 clips or pictures of one thing into a folder of ComfyUI's `input` folder, each with a `.txt` beside it
that names it the same way. Choose the folder in *Wan Video Dataset*.
2. Write what you want to see into *Prompt*, with that name in it.
3. Press **Run**. Both runs train one after the other, then the video is made and saved to `output/video`.

Change the prompt or the seed and run again: only the video is made anew. *Stop and keep* ends a run early and lets the
graph go on with what it has.

**Memory**: training takes about 30 GB of the GPU (predicted; 17 `num_frames`: about 23 GB). Sampling comes afterwards
and takes what the models take without training.

**How long**: both runs have 1500 steps; the panel says how long is left after the first ones.""",
    {**both_experts("my_character"), **generating(top=110)},
)
