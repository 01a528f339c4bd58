"""What the previews of a pair show, judged: as often right as two core samplers, before training and after it.

`python3 scripts/test.py --only comfy -m "comfy and soak" tests/learning/test_pair_previews.py -s` prints the figures.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from comfy_server import ComfyServer
from environment import say
from shapeworld.comfy_graphs import CLIP, MODELS, SAMPLING, Graph, Recipe, Shot, training_graph
from shapeworld.concept import load_concept
from shapeworld.files import Frames, balanced_words, read_clip
from shapeworld.judge import judge, matches, matches_concept
from shapeworld.learning import (
    CONCEPTS,
    DEFAULT_CONCEPT,
    draw_dataset,
    fill_models,
    follow,
    loras_of,
    missing_models,
    run_of,
    sample,
)

pytestmark = [pytest.mark.comfy, pytest.mark.slow, pytest.mark.soak, pytest.mark.lasts(300)]

CLIPS = 24
PAIR = MODELS["pair"]
CONCEPT = load_concept(CONCEPTS / f"{DEFAULT_CONCEPT}.json")
WORDS = balanced_words(CLIPS, 0)
OLD = [Shot(one.caption, 1 + number) for number, one in enumerate(WORDS)]
NEW = [Shot(CONCEPT.caption, 101 + number) for number in range(CLIPS)]
LEAST_OF_RIGHT, LEAST_ALIKE, LEAST_LEARNT = 0.8, 22, 20


def preview_settings() -> Graph:
    """A prompt for each shot with its seed; sampled as core nodes sample them."""
    sampled = {"sampling": "custom", "steps": SAMPLING.steps, "cfg": SAMPLING.cfg, "shift": SAMPLING.shift}
    return {
        "previews": {
            "class_type": "WanPreviewSettings",
            "inputs": {
                "clip": ["clip", 0],
                "prompts": "\n".join(f"{shot.caption} --d {shot.seed}" for shot in (*OLD, *NEW)),
                "negative_prompt": "",
                "sampler_name": SAMPLING.sampler,
                "scheduler": SAMPLING.scheduler,
                **sampled,
            },
        }
    }


def previews(folder: Path, step: int) -> list[Frames]:
    """The previews of a step as their files show them, in the order of their prompts."""
    found = {int(file.stem.split("_p")[1]): file for file in folder.glob(f"step-{step:06d}_p*.mp4")}
    assert sorted(found) == list(range(2 * CLIPS))
    return [read_clip(found[index]) for index in sorted(found)]


def right(clips: list[Frames]) -> list[bool]:
    """Whether each clip shows what it was asked for: an old caption's words, or the concept."""
    old = [matches(judge(clip, [CONCEPT]), words).all for clip, words in zip(clips[:CLIPS], WORDS, strict=True)]
    return old + [matches_concept(judge(clip, [CONCEPT]), CONCEPT).all for clip in clips[CLIPS:]]


def test_previews_show_what_two_core_samplers_show(comfy: ComfyServer, capsys: pytest.CaptureFixture[str]) -> None:
    if absent := missing_models(PAIR):
        pytest.skip(absent)
    fill_models(comfy.base, PAIR)
    recipe = Recipe(previews=True)
    folder, prior = draw_dataset(comfy.base, CONCEPT, recipe)
    graph = training_graph(PAIR, recipe, "judged_previews", folder, prior) | preview_settings()
    assert graph["clip"]["class_type"] == CLIP
    graph["train"]["inputs"]["validation"] = ["previews", 0]
    run = run_of(follow(comfy, graph, lambda _: None))
    shown = comfy.base / "output" / "wan_trainer" / run["directory"] / "samples"
    before, after = right(previews(shown, 0)), right(previews(shown, recipe.steps))

    def by_core(name: str, shots: list[Shot], loras: list[str]) -> list[Frames]:
        return [clips[0] for clips in sample(comfy, PAIR, shots, name, loras)]

    core_before = right([*by_core("before", OLD, []), *by_core("before_new", NEW, [])])
    loras = loras_of(run)
    core_after = right([*by_core("after", OLD, loras), *by_core("after_new", NEW, loras)])
    both = sum(ours and theirs for ours, theirs in zip(before[:CLIPS], core_before[:CLIPS], strict=True))
    alike = {
        name: sum(ours == theirs for ours, theirs in zip(mine[part], core[part], strict=True))
        for name, mine, core, part in (
            ("old before", before, core_before, slice(CLIPS)),
            ("new before", before, core_before, slice(CLIPS, None)),
            ("old after", after, core_after, slice(CLIPS)),
            ("new after", after, core_after, slice(CLIPS, None)),
        )
    }
    learnt, core_learnt = sum(after[CLIPS:]), sum(core_after[CLIPS:])
    with capsys.disabled():
        say(f"\nstep 0: {both} of {sum(core_before[:CLIPS])} captions that core samplers get right are right")
        say(f"previews that say what core samplers say, of {CLIPS}: {alike}")
        say(f"concept after: previews {learnt}, core samplers {core_learnt} of {CLIPS}")
    assert both >= LEAST_OF_RIGHT * sum(core_before[:CLIPS])
    assert min(alike.values()) >= LEAST_ALIKE, alike
    assert learnt >= LEAST_LEARNT
