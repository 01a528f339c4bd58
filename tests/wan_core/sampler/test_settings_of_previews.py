"""What the settings of previews come to, and the noise levels their schedules lay."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.sessions import train_here
from tests.support.tiny_run import TINY, make_run, random_weights, short, template
from wan_core.config import settings_of
from wan_core.errors import ConfigError
from wan_core.families import template_called
from wan_core.job import choose_run
from wan_core.job.config import read_run
from wan_core.model import WanTransformer
from wan_core.sampler import SampleConfig, SamplingPreset
from wan_core.sampler.config import PRESETS
from wan_core.sampler.guidance import Guidance
from wan_core.sampler.schedules import SCHEDULERS, schedule


def preset(task: str, *, pair: bool = False) -> SamplingPreset:
    return SampleConfig().resolved(template(task, pair=pair))


def test_auto_is_the_template_of_the_model() -> None:
    one, pair = preset("t2v"), preset("t2v", pair=True)
    assert one == SamplingPreset(30, 6.0, 8.0, "uni_pc", "simple")
    assert pair == SamplingPreset(20, 3.5, 5.0, "euler", "simple")
    assert preset("ti2v").guidance_scale == 5.0


def official(task: str, *, pair: bool = False, **changes: Any) -> SamplingPreset:
    return SampleConfig(sampling="official", **changes).resolved(template(task, pair=pair))


@pytest.mark.parametrize(
    ("task", "pair", "size", "numbers"),
    [
        ("t2v", False, (832, 480), (50, 5.0, 5.0, None)),
        ("t2v", True, (1280, 720), (40, 4.0, 12.0, 3.0)),
        ("i2v", False, (1280, 720), (40, 5.0, 5.0, None)),
        ("i2v", False, (480, 832), (40, 5.0, 3.0, None)),
        ("i2v", True, (832, 480), (40, 3.5, 5.0, None)),
        ("flf2v", False, (1280, 720), (50, 5.0, 16.0, None)),
        ("ti2v", False, (1280, 704), (50, 5.0, 5.0, None)),
        ("vace", False, (832, 480), (50, 5.0, 16.0, None)),
        ("vace", True, (832, 480), (40, 4.0, 12.0, 3.0)),
        ("s2v", False, (832, 480), (40, 4.5, 3.0, None)),
        ("animate", False, (1280, 720), (20, 1.0, 5.0, None)),
    ],
)
def test_official_is_each_models_own_config(
    task: str, pair: bool, size: tuple[int, int], numbers: tuple[int, float, float, float | None]
) -> None:
    found = official(task, pair=pair, width=size[0], height=size[1])
    assert (found.steps, found.guidance_scale, found.shift, found.low_noise_guidance) == numbers
    assert found.sampler_name == "uni_pc"
    left_open = SampleConfig(sampling="official").resolved(template(task, pair=pair), size[0] * size[1])
    assert left_open == found, "the size of the first clip counts as one that is set"


def test_a_set_guidance_goes_before_both_official_ones() -> None:
    found = official("t2v", pair=True, cfg=2.0)
    assert (found.guidance_scale, found.low_noise_guidance) == (2.0, None)
    assert official("t2v", pair=True, cfg=2.0, cfg_low_noise=1.5).low_noise_guidance == 1.5


def test_a_run_of_before_keeps_the_official_numbers_it_began_with(tmp_path: Path) -> None:
    run = make_run(tmp_path, preview=SampleConfig(sampling="official"), train=short(preview_every_n_steps=2))
    path = run.directory / "run.json"
    assert read_run(run.directory).preview == run.config.preview
    stored = json.loads(path.read_text(encoding="utf-8"))
    del stored["preview"]["official_of_all"]
    path.write_text(json.dumps(stored), encoding="utf-8")
    old = read_run(run.directory)
    assert old.preview is not None
    assert old.preview.resolved(template("t2v", pair=True)) == SamplingPreset(50, 5.0, 5.0)
    assert old.identity() == run.config.identity(), "it is the same job"
    train_here(run, max_steps=1)
    resumed = choose_run(run.directory.parent, run.config)
    assert (resumed.action, resumed.job.preview) == ("resume", old.preview), "also where the graph is queued again"


def test_the_widgets_say_what_the_template_of_a_model_samples() -> None:
    """A 0 in the node stands for one of these numbers, so a tooltip names them."""
    said = {name: known.sentence for name, known in settings_of(SampleConfig).items()}
    for task, pair in (("t2v", False), ("i2v", False), ("ti2v", False), ("t2v", True), ("i2v", True)):
        of, size = preset(task, pair=pair), "x".join(map(str, template(task, pair=pair).size))
        numbers = f"{of.steps} steps, cfg {of.guidance_scale:g}, shift {of.shift:g}, {of.sampler_name}"
        assert numbers in said["sampling"], (task, pair)
        assert size in said["preview_size"], (task, pair)
    assert preset("flf2v").guidance_scale == 3, "first and last frame cfg 3"
    assert preset("control").shift == 5, "Fun-Control shift 5"
    assert {preset(task, pair=True).shift for task in ("control", "camera")} == {8}, "of the pair shift 8"


@pytest.mark.parametrize(
    ("variant", "name"),
    [
        ("2.1 T2V-1.3B", "text_to_video_wan"),
        ("2.2 T2V-A14B high noise", "video_wan2_2_14B_t2v"),
        ("2.2 T2V-128 wide low noise", "video_wan2_2_14B_t2v"),
        ("2.2 I2V-A14B low noise", "video_wan2_2_14B_i2v"),
        ("2.2 Fun-A14B-InP high noise", "video_wan2_2_14B_i2v"),
        ("2.1 I2V-14B-480P", "image_to_video_wan"),
        ("2.1 FLF2V-14B", "wan2.1_flf2v_720_f16"),
        ("2.2 TI2V-5B", "video_wan2_2_5B_ti2v"),
        ("2.2 Fun-A14B-Control-Camera high noise", "video_wan2_2_14B_fun_camera"),
        ("2.1 Fun-V1.1-14B-Control", "wan2.1_fun_control"),
        ("2.2 VACE-Fun-A14B high noise", ""),
        ("2.2 Fun-5B-InP", ""),
        ("", ""),
    ],
)
def test_the_graph_that_uses_a_lora_is_the_template_of_its_model(variant: str, name: str) -> None:
    assert template_called(variant) == name


def test_what_a_stored_run_says_means_what_it_meant() -> None:
    """Its run.json knows nothing of samplers; every preset of before is the plain Euler it was."""
    before = {"sampling": "ComfyUI template", "steps": 0, "cfg": 0.0, "shift": 0.0}
    of_model = template("t2v")
    assert PRESETS["ComfyUI template"] == SamplingPreset(20, 6.0, 8.0)
    assert SampleConfig.from_dict(before).resolved(of_model) == PRESETS["ComfyUI template"]
    assert SampleConfig.from_dict(before | {"sampling": "4-step LoRA"}).resolved(of_model) == SamplingPreset(
        4, 1.0, 5.0
    )
    assert SampleConfig.from_dict(before | {"sampling": "custom", "steps": 7}).resolved(of_model).steps == 7


def test_what_is_set_goes_before_the_template() -> None:
    config = SampleConfig(
        steps=4, cfg=1.5, shift=3.0, sampler_name="lcm", scheduler="beta", cfg_low_noise=2.0,
        skip_layer_guidance="negative pass", skip_layers="1,  12", skip_layer_start=0.2, skip_layer_end=0.5,
    )  # fmt: skip
    found = config.resolved(template("i2v", pair=True))
    assert (found.steps, found.guidance_scale, found.shift) == (4, 1.5, 3.0)
    assert (found.sampler_name, found.scheduler, found.low_noise_guidance) == ("lcm", "beta", 2.0)
    assert found.guidance == Guidance(skip_layers=(1, 12), skip_in_negative=True, skip_from=0.2, skip_to=0.5)
    assert SampleConfig(skip_layers="1").resolved().guidance.skip_layers == ()


@pytest.mark.parametrize("written", ["", "7; 8", "-1", "seven", "1,,2", "9999"])
def test_block_numbers_that_are_none_are_refused(written: str) -> None:
    with pytest.raises(ConfigError, match=r"is not a list of block numbers\. Write them as 7, 8, 9"):
        SampleConfig(skip_layer_guidance="extra pass", skip_layers=written)


def test_a_block_the_model_does_not_have_is_named() -> None:
    Guidance(skip_layers=(0, 1)).require_blocks(2)
    with pytest.raises(ConfigError, match=r"skip_layers 7: this model has 2 blocks, 0 to 1\. Name others\."):
        Guidance(skip_layers=(1, 7)).require_blocks(2)


def test_a_skipped_block_computes_nothing() -> None:
    model = WanTransformer(TINY)
    weights = random_weights()
    model.load_state_dict(weights)
    inputs = (torch.randn(1, 16, 1, 4, 4), torch.tensor([500.0]), torch.zeros(1, 512, TINY.text_dim))
    with torch.no_grad():
        with model.without_blocks([1]):
            without = model(*inputs)
        model.blocks[1] = torch.nn.Identity()  # would refuse what a block is called with
        with model.without_blocks([1]):
            torch.testing.assert_close(model(*inputs), without, rtol=0, atol=0)


@pytest.mark.parametrize("name", SCHEDULERS)
@pytest.mark.parametrize("steps", [1, 2, 10, 37])
def test_every_schedule_falls_from_one_to_zero(name: str, steps: int) -> None:
    sigmas = schedule(name, steps, 5.0)
    assert (len(sigmas), float(sigmas[0]), float(sigmas[-1])) == (steps + 1, 1.0, 0.0)
    assert bool((sigmas.diff() < 0).all())


def test_a_sampler_that_shuns_the_lowest_level_gets_one_step_more() -> None:
    eleven = schedule("simple", 11, 5.0)
    assert schedule("simple", 10, 5.0, skips_last=True).tolist() == [*eleven[:10].tolist(), 0.0]


def test_the_pinned_schedules(fixtures_dir: Path) -> None:
    """Laid by ComfyUI 0.3.75's own schedulers over ModelSamplingDiscreteFlow with shift 5, ten steps."""
    pinned = json.loads((fixtures_dir / "schedules_golden.json").read_text(encoding="utf-8"))
    for name, expected in pinned["schedules"].items():
        assert schedule(name, pinned["steps"], pinned["shift"]).tolist() == pytest.approx(expected, abs=2e-6), name
    assert pinned["schedules"].keys() == SCHEDULERS.keys()
