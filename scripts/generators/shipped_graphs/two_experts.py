"""Graphs on both models of Wan 2.2 A14B: a character, and training followed by a clip in the same queue."""

from __future__ import annotations

from typing import Any

from memory_figures import note

from .parts import (
    APP,
    AS_APP,
    BERNINI_HIGH,
    BERNINI_LOW,
    BEST_STEP,
    T2V_HIGH,
    T2V_LOW,
    UMT5,
    VAE_21,
    Graph,
    Link,
    Node,
    placed,
    training,
)

TRAINING = ("model vae clip kept", "cache dataset", "train")
GENERATING = ("unet_high unet_low apply clip_out vae_out", "positive negative latent shift_high shift_low")
SAMPLED = ("sample_high sample_low", "decode video save")
"""columns, from left to right"""
EXPERTS = {"high": T2V_HIGH, "low": T2V_LOW}
SWITCH_STEP = 10
SAMPLING = {"steps": 20, "cfg": 3.5, "sampler_name": "euler", "scheduler": "simple"}
"""as ComfyUI's own Wan 2.2 template samples: 20 steps, the second half by the low noise model"""
SAMPLING_SHIFT = 8.0
PROMPT = "a photo of my_character walking through a busy street"
NEGATIVE = "blurry, distorted, low quality, static, subtitles"

FILES = f"""**Files**, below ComfyUI's `models` folder:

- `diffusion_models/{T2V_HIGH}`
- `diffusion_models/{T2V_LOW}`
- `vae/{VAE_21}`
- `text_encoders/{UMT5}`"""


def both_experts(run_name: str) -> dict[str, Node]:
    """Returns the shared nodes, with one Train Wan LoRA for the pair, without positions."""
    return training(
        model=T2V_HIGH,
        low_noise_model=T2V_LOW,
        dataset={"num_frames": 33, "width": 832, "height": 480},
        train={"run_name": run_name, "steps": 3000},
    )


def generating() -> dict[str, Node]:
    """Returns the nodes from the run to a video: each expert with its LoRA, and both sampling one clip in turn.

    With loaders of their own, so that the run is the only link to the training; ComfyUI loads equal files once.
    """
    nodes = {
        "clip_out": Node("CLIPLoader", {"clip_name": UMT5, "type": "wan"}, size=(360, 110)),
        "positive": _prompt("Prompt", PROMPT, 130),
        "negative": _prompt("Negative prompt", NEGATIVE, 110),
    }
    loaded = {"run": Link("train"), "model": Link("unet_high"), "model_low_noise": Link("unet_low")}
    nodes["apply"] = Node("ApplyWanLoRA", loaded, size=(360, 150))
    for output, (expert, file) in enumerate(EXPERTS.items()):
        nodes |= _expert(expert, file, output)
    size = {"width": 832, "height": 480, "length": 81}
    nodes["latent"] = Node("EmptyHunyuanLatentVideo", size, size=(340, 130), title="Size and length")
    high, low = {"end_at_step": SWITCH_STEP, "return_with_leftover_noise": "enable"}, {"start_at_step": SWITCH_STEP}
    nodes["sample_high"] = _sampler("high", Link("latent"), **high)
    nodes["sample_low"] = _sampler("low", Link("sample_high"), add_noise="disable", **low)
    return {**nodes, **_video()}


def _expert(expert: str, file: str, output: int) -> dict[str, Node]:
    """Returns the loader, and the sampling shift on `output` of the node that applies the LoRAs."""
    noise = f"{expert} noise"
    shifted = {"model": Link("apply", output), "shift": SAMPLING_SHIFT}
    loader = {"unet_name": file}
    return {
        f"unet_{expert}": Node("UNETLoader", loader, size=(360, 90), title=f"Load Diffusion Model ({noise})"),
        f"shift_{expert}": Node("ModelSamplingSD3", shifted, size=(340, 60), title=f"Sampling shift ({noise})"),
    }


def _prompt(title: str, text: str, height: int) -> Node:
    return Node("CLIPTextEncode", {"clip": Link("clip_out"), "text": text}, size=(340, height), title=title)


def _sampler(expert: str, latent: Link, **steps: Any) -> Node:
    links = {
        "model": Link(f"shift_{expert}"),
        "positive": Link("positive"),
        "negative": Link("negative"),
        "latent_image": latent,
    }
    inputs = {**links, **SAMPLING, **steps}
    return Node("KSamplerAdvanced", inputs, size=(340, 340), title=f"Sample ({expert} noise)")


def _video() -> dict[str, Node]:
    decoded = {"samples": Link("sample_low"), "vae": Link("vae_out")}
    saved = {"video": Link("video"), "filename_prefix": "video/wan_trainer"}
    return {
        "vae_out": Node("VAELoader", {"vae_name": VAE_21}, size=(360, 60)),
        "decode": Node("VAEDecode", decoded, size=(340, 60)),
        "video": Node("CreateVideo", {"images": Link("decode"), "fps": 16.0}, size=(340, 90)),
        "save": Node("SaveVideo", saved, size=(340, 330)),
    }


CHARACTER = Graph(
    "03_wan22_t2v_A14B_character",
    f"""## Teach Wan 2.2 a character (T2V A14B, both models)

{FILES}

**What is new here**: Wan 2.2 has two models, one for the noisy half of sampling (layout, motion) and one for the other
(faces, detail). A character needs both. One run trains them, first one and then the other; `expert_order` of *Wan
Train Settings* makes them take turns.

**Steps**

1. Put 10 to 30 clips or pictures of the character into a folder of ComfyUI's `input` folder, each with a `.txt` beside
it that names the character the same way. Choose the folder in *Wan Video Dataset*.
2. Press **Run**. The LoRAs appear in `loras/wan_trainer` as `my_character_high_noise` and `my_character_low_noise`:
load each on its own model.

{AS_APP}

{BEST_STEP}

{note("Wan 2.2 A14B expert, fp8", 33, 49, 81)}

**How long**: 1500 steps for each model, 3000 in all; the panel says how long is left after the first ones. Cancel saves
and stops; Run again resumes it.""",
    placed(both_experts("my_character"), *TRAINING, tops=(0, 80, 80)),
    app=APP,
)

EDIT_PAIRS = Graph(
    "09_wan22_bernini_edit_pairs",
    f"""## Teach Bernini-R an edit from pairs (A14B, both models)

**Files**, below ComfyUI's `models` folder:

- `diffusion_models/{BERNINI_HIGH}`
- `diffusion_models/{BERNINI_LOW}`
- `vae/{VAE_21}`
- `text_encoders/{UMT5}`

**What is new here**: Bernini-R reads a source video, a reference video and up to 8 reference images. Its model files
look like those of Wan 2.2 T2V, so the files next to the clips decide; the report of *Wan Video Dataset* says what is
trained.

**Steps**

1. Put pairs into a folder of ComfyUI's `input` folder: `one.mp4` is the edited clip, `one_source.mp4` the clip before
the edit, `one.txt` the instruction. References, if any: `one_ref1.png` to `one_ref8.png`, `one_refvideo.mp4`. Every
clip needs one of them; they are not trained as clips.
2. Choose the folder in *Wan Video Dataset*, then press **Run**. Previews edit the source of the first held-out clip,
otherwise of the first clip.
3. To use the LoRAs, load each on its own model, with ComfyUI's *Bernini Conditioning* (version 0.33 or newer).

{BEST_STEP}

**Memory**: from 12 GB (predicted). A source counts like the clip itself: 33 frames of 832x480 need what 65 frames need
without one. *Train Wan LoRA* shows the prediction for your settings.

**How long**: 1500 steps for each model, 3000 in all; a step takes about twice as long as without a source.""",
    placed(
        training(
            model=BERNINI_HIGH,
            low_noise_model=BERNINI_LOW,
            dataset={"num_frames": 33, "width": 832, "height": 480},
            train={"run_name": "my_edit", "steps": 3000},
        ),
        *TRAINING,
        tops=(0, 80, 80),
    ),
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
3. Press **Run**. Both models are trained, then the video is made and saved to `output/video`.

Change the prompt or the seed and run again: only the video is made again. *Stop and keep* ends training early and lets
the graph go on with what it has.

{BEST_STEP}

{note("Wan 2.2 A14B expert, fp8", 33, 49, 81)}

Sampling comes afterwards and takes what the models take without training.

**How long**: 1500 steps for each model, 3000 in all; the panel says how long is left after the first ones.""",
    placed({**both_experts("my_character"), **generating()}, *TRAINING, *GENERATING, *SAMPLED, tops=(0, 80, 80)),
)
