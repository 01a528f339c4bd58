"""What log.txt and the console say of a run: a line for whatever happens, and of steps one now and then."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

from wan_core.events import CheckpointSaved, Evaluated, Finished, Note, SampleReady, Stage, StepDone, StepSkipped
from wan_core.run_lines import RunLines


def step(number: int, steps: int = 1000) -> StepDone:
    return StepDone(
        step=number,
        steps=steps,
        loss=0.25,
        lr=1e-4,
        grad_norm=1.0,
        seconds=2.0,
        expert="high",
        timestep_mean=0.5,
        epoch=0.5,
        memory={"cuda:0": {"now": 1 << 30, "peak": 14 << 30}, "cuda:1": {"now": 1 << 30, "peak": None}},
        beside_left=10.0,
    )


def test_steps_are_told_of_less_and_less_often_and_the_last_one_always() -> None:
    clock = [0.0]
    spoken = RunLines(lambda: clock[0])
    told: list[float] = []
    for number in range(1, 1000):
        clock[0] += 1.0
        if spoken.line(step(number)):
            told.append(clock[0])
    assert told[:6] == [1, 6, 16, 36, 76, 136]
    assert {b - a for a, b in itertools.pairwise(told[4:])} == {60}
    assert spoken.line(step(1000)) == (
        "step 1000/1000 high noise  epoch 0.5  loss 0.2500  lr 0.0001  2.00 s/it  0:10 left  14.0 GiB"
    )


def test_a_step_whose_loss_came_as_null_is_told_all_the_same() -> None:
    told = RunLines().step(replace(step(3), loss=None))  # type: ignore[arg-type]
    assert "step 3/1000 high noise" in told
    assert "loss nan" in told


def test_whatever_else_happens_is_a_line() -> None:
    spoken = RunLines()
    said = [
        spoken.line(event)
        for event in (
            Stage(stage="train"),
            CheckpointSaved(step=8, folder="saves/step-000008"),
            Evaluated(step=8, eval_loss=0.5, held_out=True),
            Evaluated(step=9, eval_loss=math.nan, held_out=True),
            Evaluated(step=9, eval_loss=None, held_out=False),
            SampleReady(sample_id="a", step=8, file="samples/a.mp4"),
            StepSkipped(step=9, reason="the loss is not finite", in_a_row=1),
            Note(text="Look here."),
            Finished(state="stopped", step=9, result={"reason": "Cancel was pressed"}),
        )
    ]
    assert said == [
        "",
        "saved step 8",
        "loss of held-out clips at step 8: 0.5000",
        "loss of held-out clips at step 9: not finite",
        "loss of training clips at step 9: not finite",
        "preview at step 8: samples/a.mp4",
        "step 9 skipped: the loss is not finite",
        "Look here.",
        "stopped at step 9: Cancel was pressed",
    ]


def test_the_last_line_says_which_lora_goes_on_which_model_and_in_which_graph() -> None:
    under = {"lora": "style.safetensors", "model": "high.safetensors", "strength": 0.5}
    pair = [
        {"lora": f"saves/step-000009/lora{name}.safetensors", "model": f"{model}.safetensors"}
        for name, model in (("", "high"), ("_low_noise", "low"))
    ]
    ended = Finished(state="done", step=9, result={"use": [under, *pair], "template": "video_wan2_2_14B_t2v"})
    assert RunLines().line(ended) == (
        "done at step 9. Load with LoraLoaderModelOnly, in ComfyUI's template video_wan2_2_14B_t2v, or with Apply Wan "
        "LoRA, which is exact on quantized models too: style.safetensors on high.safetensors at strength 0.5 under it, "
        "saves/step-000009/lora.safetensors on high.safetensors at strength 1, "
        "saves/step-000009/lora_low_noise.safetensors on low.safetensors at strength 1"
    )
    assert RunLines().line(Finished(state="done", step=9, result={"use": [], "template": ""})) == "done at step 9"
    worded = Finished(state="done", step=9, result={"use": [{**pair[0], "trigger": "ohwx, 絵"}], "template": ""})
    assert RunLines().line(worded).endswith("on high.safetensors at strength 1. Write ohwx, 絵 into the prompt")
    nameless = Finished(state="done", step=9, result={"use": pair[:1], "template": ""})
    assert RunLines().line(nameless).startswith("done at step 9. Load with LoraLoaderModelOnly: saves/")
