"""Graphs that train one model: stills, clips, image-to-video, the 5B model, two GPUs, and the smoke test."""

from __future__ import annotations

from memory_figures import note

from .parts import (
    ANIMATE_14B,
    APP,
    AS_APP,
    BEST_STEP,
    GAP,
    I2V_HIGH,
    I2V_LOW,
    NOTE,
    QWEN_VL,
    TI2V_5B,
    TITLE,
    VAE_22,
    Graph,
    Link,
    Node,
    placed,
    training,
)

SHORT = ("model vae clip kept", "cache dataset", "train")
BELOW_A_LINK = (0, 80)
"""offset of the second column, below the link from model to trainer"""

CLIPS = Graph(
    "01_wan21_t2v_1.3B_clips",
    f"""## Train a LoRA on clips (Wan 2.1, 1.3B)

**Files**, below ComfyUI's `models` folder:

- `diffusion_models/wan2.1_t2v_1.3B_fp16.safetensors`
- `vae/wan_2.1_vae.safetensors`
- `text_encoders/umt5_xxl_fp8_e4m3fn_scaled.safetensors`

**Steps**

1. Make a folder in ComfyUI's `input` folder. Put clips of 2 seconds or more there, and beside each `name.mp4`
a `name.txt` that says what happens.
2. Press **R**, then choose the folder in *Wan Video Dataset*. Its report says which frames are used and what
was skipped.
3. Press **Run**. Clips and captions are encoded once; later runs reuse them. Previews play in *Train Wan
LoRA*; the LoRA appears in `loras/wan_trainer`.

{BEST_STEP}

{note("Wan 2.1 T2V-1.3B", 33, 49, 81)}

Less: fewer `num_frames` (17, 21, 25 ...), or a smaller `width` and `height`.

**How long**: 1500 steps after encoding; the panel of *Train Wan LoRA* says how long is left after the first ones. Fewer
`num_frames` are faster.""",
    placed(
        training(dataset={"num_frames": 33, "width": 832, "height": 480}, train={"run_name": "my_clips_lora"}),
        *SHORT,
        tops=BELOW_A_LINK,
    ),
)

STILLS = Graph(
    "02_wan21_t2v_1.3B_stills",
    f"""## Train a LoRA on pictures (Wan 2.1, 1.3B)

**Files**, below ComfyUI's `models` folder:

- `diffusion_models/wan2.1_t2v_1.3B_fp16.safetensors`
- `vae/wan_2.1_vae.safetensors`
- `text_encoders/umt5_xxl_fp8_e4m3fn_scaled.safetensors`

**Steps**

1. Make a folder in ComfyUI's `input` folder. Put 10 to 30 pictures there, and beside each `name.png` a
`name.txt` that describes it.
2. Press **R**, then choose the folder in *Wan Video Dataset*. No `.txt` files? Fill in `trigger_word`.
3. Press **Run**. Previews play in *Train Wan LoRA*; the LoRA appears in `loras/wan_trainer`.

Cancel saves and stops; Run again resumes it.

{AS_APP}

{BEST_STEP}

{note("Wan 2.1 T2V-1.3B", 1)}

Before training, ComfyUI loads the text encoder once, to encode the captions.

**How long**: pictures are encoded once, then come 1500 steps; the panel of *Train Wan LoRA* says how long is left after
the first ones.""",
    placed(
        training(dataset={"num_frames": 1, "width": 832, "height": 480}, train={"run_name": "my_stills_lora"}),
        *SHORT,
        tops=BELOW_A_LINK,
    ),
    app=APP,
)

I2V = Graph(
    "04_wan22_i2v_A14B_motion",
    f"""## Teach an image-to-video model a motion (Wan 2.2 A14B)

**Files**, below ComfyUI's `models` folder:

- `diffusion_models/{I2V_HIGH}`
- `diffusion_models/{I2V_LOW}`
- `vae/wan_2.1_vae.safetensors`
- `text_encoders/umt5_xxl_fp8_e4m3fn_scaled.safetensors`

**What is new here**: the model is given the first frame of each clip, so the LoRA learns what happens next. These
frames are cached too. Previews start from the picture in *Load Image*; without it they start from your first clip.

**Steps**

1. Put clips of 2 seconds or more of the motion into a folder of ComfyUI's `input` folder, each with a `.txt` beside
it that names the motion. Choose the folder in *Wan Video Dataset*.
2. Choose a picture in *Load Image*, and write what should happen to it into `prompts`.
3. Press **Run**. Both models are trained in one run; motion is mostly the high-noise model's, detail the other's. The
LoRAs appear as `my_motion_high_noise` and `my_motion_low_noise`.

**Wan 2.1 image-to-video**: choose its file and connect *Load CLIP Vision* (`clip_vision_h`) to `clip_vision` of
*Cache Latents* and *Wan Preview Settings*.

{BEST_STEP}

{note("Wan 2.2 I2V-A14B expert, fp8", 33, 49, 81)}

**How long**: 1500 steps for each model, 3000 in all; the panel says how long is left after the first ones.""",
    placed(
        training(
            model=I2V_HIGH,
            low_noise_model=I2V_LOW,
            dataset={"num_frames": 33, "width": 832, "height": 480},
            preview={"prompts": "", "preview_size": "template"},
            picture=True,
            train={"run_name": "my_motion", "steps": 3000},
            between={"quantize": Node("Fp8Quantize", {"model": Link("model")}, size=(350, 140))},
        ),
        "model vae clip kept",
        "quantize cache dataset",
        "picture preview",
        "train",
        tops=(0, 80, 80),
    ),
)

TI2V = Graph(
    "05_wan22_ti2v_5B",
    f"""## Train a LoRA for the 5B model (Wan 2.2 TI2V)

**Files**, below ComfyUI's `models` folder:

- `diffusion_models/wan2.2_ti2v_5B_fp16.safetensors`
- `vae/wan2.2_vae.safetensors` (this model has a VAE of its own)
- `text_encoders/umt5_xxl_fp8_e4m3fn_scaled.safetensors`

**What is new here**: 24 frames per second, sizes in multiples of 32, and one model for both text-to-video and
image-to-video. Half of the clips train the one, half the other; `first_frame_conditioning_p` of *Wan Train Settings*
changes that.

**Steps**: choose the folder with your clips in *Wan Video Dataset*, then press **Run**. How such a folder
looks: see the template for clips. Previews are text-to-video; connect a *Load Image* to `start_image` of *Wan Preview
Settings* to see image-to-video.

{BEST_STEP}

{note("Wan 2.2 TI2V-5B, 1280x704", 33, 49, 81, size="1280x704")}

Less: fewer `num_frames`, or 832x480.

**How long**: 1500 steps after encoding; the panel says how long is left after the first ones.""",
    placed(
        training(
            model=TI2V_5B,
            vae=VAE_22,
            dataset={"num_frames": 49, "width": 1280, "height": 704},
            preview={"prompts": "", "preview_size": "template"},
            train={"run_name": "my_5b_lora"},
        ),
        "model vae clip kept",
        "cache dataset",
        "preview",
        "train",
        tops=(0, 80, 80),
    ),
)

TWO_GPUS = Graph(
    "06_two_gpus_fp8",
    f"""## An image-to-video expert on two GPUs, in fp8 (Wan 2.2 A14B)

**Files**, below ComfyUI's `models` folder:

- `diffusion_models/{I2V_HIGH}`
- `vae/wan_2.1_vae.safetensors`
- `text_encoders/umt5_xxl_fp8_e4m3fn_scaled.safetensors`

**What is new here**: *Fp8 / Int8 Quantize* halves the memory of the frozen model. *Split Across GPUs* shares the work
between the cards; `auto` takes the mode with the shortest predicted step and says why. The LoRA itself stays in full
precision.

**To compare**: the published two-GPU benchmark of DiffSynth-Studio. High noise expert, 832x480, 49 frames, rank 32 on
`q`, `k`, `v`, `o`, `ffn.0` and `ffn.2`, one clip a step: 44.31 s a step there on two RTX 5090, 44.73 s on one.

**Steps**: choose the folder with your clips in *Wan Video Dataset*, then press **Run**. How such a folder
looks: see the template for clips.

The low noise expert: choose its file in *Load Wan Model* and set `expert` to low. The template for a motion trains both
in one run.

{BEST_STEP}

{note("Wan 2.2 I2V-A14B expert, fp8, two cards", 33, 49, 81)}

**How long**: 1500 steps after encoding; the panel says how long is left after the first ones.""",
    placed(
        training(
            model=I2V_HIGH,
            dataset={"num_frames": 49, "width": 832, "height": 480},
            train={"run_name": "my_motion_high_noise", "rank": 32, "expert": "high"},
            between={
                "quantize": Node("Fp8Quantize", {"model": Link("model")}, size=(350, 140)),
                "split": Node("SplitAcrossGPUs", {"model": Link("quantize")}, size=(350, 110)),
            },
        ),
        "model vae clip kept",
        "quantize cache dataset",
        "split",
        "train",
        tops=(0, 80, 80),
    ),
)

_ANIMATE = training(
    model=ANIMATE_14B,
    dataset={"num_frames": 33, "width": 832, "height": 480},
    preview={"prompts": ""},
    train={"run_name": "my_animate_lora"},
    between={"quantize": Node("Fp8Quantize", {"model": Link("model")}, size=(350, 140))},
)
_ANIMATE["cache"].inputs["clip_vision"] = Link("vision")
ANIMATE = Graph(
    "10_wan22_animate_14B",
    f"""## Train a LoRA for Animate (Wan 2.2)

**Files**, below ComfyUI's `models` folder:

- `diffusion_models/{ANIMATE_14B}`
- `vae/wan_2.1_vae.safetensors`
- `text_encoders/umt5_xxl_fp8_e4m3fn_scaled.safetensors`
- `clip_vision/clip_vision_h.safetensors`

**What is new here**: the model reads a reference image, a pose video and a face video of each clip, in files next to
it: `name_ref1.png`, `name_pose.mp4` (drawn poses) and `name_face.mp4` (the face, cropped). The LoRA learns how the
character moves and looks. Previews follow the pose and the face of your first clip.

**Steps**

1. Put clips of 2 seconds or more into a folder of ComfyUI's `input` folder, each with its three files and a
`name.txt` that says what happens. The clips are read at 30 frames per second.
2. Press **R**, then choose the folder in *Wan Video Dataset*. Its report names each clip that lacks a file.
3. Press **Run**. Use the LoRA with WanAnimateToVideo.

{BEST_STEP}

{note("Wan 2.2 Animate-14B, fp8", 33, 49)}

**How long**: 1500 steps after encoding; the panel says how long is left after the first ones.""",
    placed(
        {**_ANIMATE, "vision": Node("CLIPVisionLoader", {"clip_name": "clip_vision_h.safetensors"}, size=(360, 60))},
        "model vae clip vision kept",
        "quantize cache dataset",
        "preview",
        "train",
        tops=(0, 80, 80),
    ),
)

CAPTION_PROMPT = (
    "These frames are from one short video, in order. Describe the video in one paragraph of 60 to 100 words, in this "
    "order: who or what is seen and how it looks; what moves and how, from beginning to end; the shot size and how the "
    "camera moves, or that it is still; the place, the light and the style. Use plain present tense. Name only what is "
    "visible. Begin with the subject, and answer with the description alone."
)
"""in the order of Wan's own captions: subject, motion, camera, setting"""
_FOOTAGE = training(dataset={"num_frames": 33, "width": 832, "height": 480}, train={"run_name": "my_footage_lora"})
_FOOTAGE["cache"].inputs["dataset"] = Link("save")
_FOOTAGE["kept"].inputs["split_scenes"] = True
_FOOTAGE |= {
    "look": Node("WanClipFrames", {"dataset": Link("dataset")}, size=(360, 220)),
    "seer": Node("CLIPLoader", {"clip_name": QWEN_VL, "type": "stable_diffusion"}, size=(360, 110)),
    "captioner": Node(
        "TextGenerate",
        {"clip": Link("seer"), "image": Link("look"), "prompt": CAPTION_PROMPT, "max_length": 256},
        size=(360, 400),
    ),
    "save": Node(
        "WanSaveCaptions",
        {"dataset": Link("dataset"), "captions": Link("captioner"), "names": Link("look", 1)},
        size=(360, 300),
    ),
}
FOOTAGE = Graph(
    "11_footage_to_lora",
    f"""## From footage to a LoRA (Wan 2.1, 1.3B)

**Files**, below ComfyUI's `models` folder:

- `diffusion_models/wan2.1_t2v_1.3B_fp16.safetensors`
- `vae/wan_2.1_vae.safetensors`
- `text_encoders/umt5_xxl_fp8_e4m3fn_scaled.safetensors`
- `text_encoders/{QWEN_VL}` (writes the captions)

**Steps**

1. Put clips of 2 seconds or more, or one long video, into a folder of ComfyUI's `input` folder. No captions are needed.
A long video is split at its cuts (`split_scenes` of *Wan Dataset Settings*), and each shot gets its own caption.
2. Press **R**, then choose the folder in *Wan Video Dataset*.
3. Press **Run**. The captions of 20 clips are written; press **Run** again until none is missing. Then training
begins by itself.

{BEST_STEP}

{note("Wan 2.1 T2V-1.3B", 33, 49, 81)}

Before training, ComfyUI loads the model that writes captions (about 5 GB) and unloads it again.

**How long**: 1500 steps after encoding; the panel of *Train Wan LoRA* says how long is left after the first ones.""",
    placed(
        _FOOTAGE,
        "model vae clip kept",
        "dataset",
        "look seer captioner",
        "save",
        "cache",
        "train",
        tops=(0, 80, 0, 80, 80, 80),
    ),
    more_notes=(
        (
            """## Captions

*Generate Text* needs ComfyUI 0.33 or newer. To use another captioner, put its node in the same place: connect
`frames` to its image input, and its text to `captions`.

The prompt asks for what Wan's own captions describe: the subject, its motion, the camera, the place. Add what matters
to you, such as the name of a character.""",
            (0, TITLE + NOTE[3] + GAP, NOTE[2], 380),
        ),
        (
            """## Check before you train long

*Wan Save Captions* shows every clip with its caption. Click a picture to correct it; *Undo* removes all new captions.
Your own captions are not changed.

A caption describes what a prompt can change later. What is in every clip and in no caption, such as a face or a
style, is what the LoRA always adds.""",
            (0, TITLE + NOTE[3] + 380 + 3 * GAP, NOTE[2], 380),
        ),
    ),
)

SMOKE = Graph(
    "08_smoke_test",
    """## Is everything installed?

Trains a tiny random model for 20 steps on the CPU, then renders clips with and without the LoRA.

**Files**: tiny ones, which `python3 scripts/test.py` in this pack's folder makes. `python3 scripts/demo.py` runs
this graph by itself, with files that are trained and a tiny text encoder in place of *Load CLIP*.

- `diffusion_models/wan_tiny_t2v.safetensors`
- `vae/wan_tiny_vae.safetensors`
- `input/clips`: three short clips

**With real files**: choose a 1.3B model, its VAE and text encoder in the three loaders and your own folder in
*Wan Video Dataset*. It is then a quick test of the complete workflow, on your GPU.

**Memory**: under 1 GB with the tiny files.

**How long**: about a minute, on the CPU.""",
    placed(
        {
            **training(
                model="wan_tiny_t2v.safetensors",
                vae="wan_tiny_vae.safetensors",
                dataset={"folder": "clips", "num_frames": 9, "width": 64, "height": 64},
                keeps_some=False,
                preview={
                    "prompts": "a man talks in a driving car",
                    "negative_prompt": "blurry, low quality",
                    "sampling": "custom",
                    "steps": 4,
                    "cfg": 1.0,
                    "shift": 8.0,
                },
                train={
                    "run_name": "smoke_test",
                    "steps": 20,
                    "learning_rate": 0.01,
                    "rank": 4,
                    "save_every_n_steps": 10,
                    "preview_every_n_steps": 20,
                },
            ),
            "validate": Node("ValidateVideo", {"run": Link("train"), "vae": Link("vae")}, size=(350, 220)),
        },
        "model vae clip preview",
        "cache dataset",
        "train",
        "validate",
        tops=BELOW_A_LINK,
    ),
    downloads=False,
)
