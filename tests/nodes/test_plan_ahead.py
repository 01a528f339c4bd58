"""A page is told what a training would take before it is queued, and which turn of a widget would make it fit."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from comfy_server import ComfyServer
from route_server import our_module
from safetensors.torch import save_file
from world import tiny_graph

from tests.support.headers import write_empty_model
from tests.support.libraries import marking, plant
from wan_core.plan import run_seconds

pytestmark = pytest.mark.comfy

GIB = 1 << 30
MODEL = "wan2.1_t2v_1.3B_bf16.safetensors"
Answer = dict[str, Any]


@pytest.fixture
def models(pack_nodes: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """models/diffusion_models of the nodes of this process, with a 1.3B model whose weights take no disk."""
    import folder_paths

    entry = ([str(tmp_path)], folder_paths.supported_pt_extensions)
    monkeypatch.setitem(folder_paths.folder_names_and_paths, "diffusion_models", entry)
    folder_paths.filename_list_cache.pop("diffusion_models", None)
    write_empty_model(tmp_path / MODEL, "wan2.1-t2v-1.3B")
    yield tmp_path
    folder_paths.filename_list_cache.pop("diffusion_models", None)


@pytest.fixture
def planner(pack_nodes: dict[str, Any], models: Path) -> Any:
    ahead = our_module(pack_nodes, "bridge.ahead").Ahead(pack_nodes)
    return our_module(pack_nodes, "routes.plan").Planner(ahead)


def asked(*changes: tuple[str, dict[str, Any]], **more: Any) -> dict[str, Any]:
    return {
        "chain": [["LoadWanModel", {"diffusion_model": MODEL, "device": "cpu"}], *map(list, changes)],
        "train": {"rank": 32, "steps": 100, "preview_every_n_steps": 50},
        "sizes": [[256, 256, 1], [256, 256, 17]],
        "settings": {"checkpointing_policy": "full"},  # no seconds pass in the search for what is faster
        **more,
    }


@pytest.mark.lasts(4)
def test_a_turn_of_a_widget_is_planned_for_the_largest_clips_and_answered_once(
    pack_nodes: dict[str, Any], planner: Any, models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WAN_TRAINER_CARD_GIB", "16")
    plan = planner.answer(asked())
    (device,) = plan["devices"]
    assert (plan["fits"], plan["size"], plan["rank"]) == (True, "256x256x17", 32)
    assert (device["name"], device["total"], device["room"]) == ("cpu", 16 * GIB, 15 * GIB)
    assert plan["lora_bytes"] == pytest.approx(2 * 43_745_280, rel=0.01)
    assert 2.8e9 < device["needed"] < 8e9
    assert plan["seconds"] == pytest.approx(100 * plan["step_seconds"], abs=1)
    assert plan["suggestions"] is None
    assert planner.answer(asked()) is plan
    named = {**asked()["train"], "run_name": "fox", "learning_rate": 1e-3}
    assert planner.answer(asked(train=named)) is plan, "a plan does not depend on them"
    job, slider = (planner.ahead.job(asked(**more)) for more in ({}, {"slider": True}))
    assert (job.target_share, slider.target_share) == (0, 7), "three predictions, and four of eight steps from noise"
    train = type(job.train)
    assert run_seconds(2.5, train(steps=100)) == 250
    assert run_seconds(2.5, train(steps=10_000, max_train_hours=1)) == 3600
    assert run_seconds(2.5, train(max_train_epochs=3)) is None, "how many steps an epoch has is not asked here"
    monkeypatch.delenv("WAN_TRAINER_CARD_GIB")
    on_cpu = our_module(pack_nodes, "routes.plan").Planner(planner.ahead).answer(asked())
    assert (on_cpu["fits"], on_cpu["devices"]) == (None, []), "the computer's own memory is no card"
    monkeypatch.setenv("WAN_TRAINER_CARD_GIB", "16")
    write_empty_model(models / MODEL, "wan2.1-t2v-1.3B")
    assert planner.answer(asked()) is not plan, "the file may be another one"
    quantized = planner.answer(asked(("Fp8Quantize", {"scheme": "fp8_e4m3fn"})))
    assert quantized["devices"][0]["needed"] < device["needed"] - 1e9


def test_a_preset_is_answered_with_values_of_widgets_or_with_what_is_missing(
    planner: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(Exception, match="this machine has none"):
        planner.answer(asked(preset="16 GB, quick look"))
    monkeypatch.setenv("WAN_TRAINER_CARD_GIB", "16")
    stills = {"sizes": [[832, 480, 1]]}
    found = planner.answer(asked(preset="16 GB, quick look", **stills))
    assert found["settings"] == {"width": 832, "height": 480, "num_frames": 1, "steps": 400, "blocks_to_swap": -1}
    assert (found["card"], 40 < found["seconds"] < 600) == ("RTX 4080", True)
    with pytest.raises(Exception, match=r"The GPU has 16\.0 GiB"):
        planner.answer(asked(preset="24 GB, good", **stills))
    with pytest.raises(Exception, match="16 GB, good"):
        planner.answer(asked(preset="16 GB, godo"))


def test_what_comfyui_holds_is_said_and_what_it_frees_is_room(
    planner: Any, pack_nodes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer is another one once ComfyUI holds something else."""
    monkeypatch.setenv("WAN_TRAINER_CARD_GIB", "16")
    monkeypatch.setenv("WAN_TRAINER_HOST_GIB", "20")
    holds = ["", 0]
    planner.held = lambda: tuple(holds)
    before = planner.answer(asked())
    assert (before["host"]["held"], before["host"]["room"]) == ("", 20 * GIB)
    holds[:] = ["9.4 GiB (WanTEModel 6.7)", 9 * GIB]
    after = planner.answer(asked())
    assert (after["host"]["held"], after["host"]["room"]) == ("9.4 GiB (WanTEModel 6.7)", 29 * GIB)
    words, models = our_module(pack_nodes, "bridge.held_models").in_words, []
    assert words(models) == ""
    model = our_module(pack_nodes, "bridge.held_models").HeldModel
    models += [model("WanTEModel", int(6.7 * GIB)), model("WanVAE", GIB // 2), model("Little", 1 << 20)]
    assert words(models) == "7.2 GiB (WanTEModel 6.7, WanVAE 0.5)"
    assert words(models[1:2]) == "0.5 GiB (WanVAE 0.5)"
    assert words(models[2:]) == "", "not worth a word"


@pytest.mark.lasts(2)
def test_a_class_that_a_graph_names_is_not_loaded_for_a_plan_which_says_so(
    planner: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WAN_TRAINER_CARD_GIB", "16")
    marker = tmp_path / "ran"
    plant(tmp_path, "prodigyopt", marking(marker, "raise SystemExit(3)"))
    plant(tmp_path, "input.evil", marking(marker, "raise SystemExit(3)"))
    monkeypatch.syspath_prepend(tmp_path)
    custom = {"optimizer": "custom", "optimizer_class": "torch.optim.SGD", "optimizer_args": "momentum=0.9"}
    plan = planner.answer(asked(settings=custom))
    assert plan["notes"] == [
        "The optimizer of optimizer_class is loaded by the training alone, so the plan counts two float32 values for "
        "each weight of the LoRA, as AdamW has them."
    ]
    usual = planner.answer(asked(settings={"optimizer": "adamw"}))
    assert (usual["notes"], usual["devices"]) == ([], plan["devices"])
    for path in ("input.evil.X", "prodigyopt.X", "certifi.__main__.X", "numpy.f2py.__main__.X", "main.X"):
        with pytest.raises(Exception, match=r"optimizer_class|prodigyopt") as refused:
            planner.answer(asked(settings={**custom, "optimizer_class": path}))
        assert type(refused.value).__name__ in ("ConfigError", "DependencyError")
    assert not marker.exists()


def test_previews_count_with_the_largest_size_that_a_prompt_says_for_itself(planner: Any) -> None:
    def tokens(*prompts: str, trigger: str = "") -> int:
        more = {"prompts": ["\n".join(prompts), trigger]} if prompts else {}
        return planner.ahead.job(asked(preview=[0, 0, 0], **more)).preview.tokens

    assert tokens() == tokens("a ball", "a dog --s 30") == 5 * 16 * 16, "as the largest clip"
    assert tokens("a ball", "a [trigger] --w 512 --h 512 --f 33", "a cat --f 1", trigger="dog") == 9 * 32 * 32
    with pytest.raises(ValueError, match="trigger_word"):
        tokens("a [trigger] --w 512")
    with pytest.raises(ValueError, match="text and the trigger word"):
        planner.ahead.job(asked(preview=[0, 0, 0], prompts="a ball --w 512"))


def test_loras_that_act_in_previews_count_beside_them(
    planner: Any, models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import folder_paths

    name = "blocks_0_self_attn_q"
    pair = {"lora_down": torch.zeros(16, 1536), "lora_up": torch.zeros(1536, 16)}
    save_file({f"lora_unet_{name}.{part}.weight": value for part, value in pair.items()}, models / "few.safetensors")
    entry = ([str(models)], folder_paths.supported_pt_extensions)
    monkeypatch.setitem(folder_paths.folder_names_and_paths, "loras", entry)
    folder_paths.filename_list_cache.pop("loras", None)
    twice = [{"lora": "few.safetensors", "strength": 1.0}, {"lora": "few.safetensors", "strength": 0.5}]
    plain, one, two = (
        planner.ahead.job(asked(preview=[0, 0, 0], **more)).beside_preview
        for more in ({}, {"loras": twice[:1]}, {"loras": twice})
    )
    assert (plain, one, two) == (0, 2 * 16 * 1536 * 2, 2 * 2 * 16 * 1536 * 2)
    assert planner.ahead.job(asked(loras=twice)).beside_preview == 0, "there are no previews"
    before = planner.ahead.mark(asked(loras=twice))
    save_file({f"lora_unet_{name}.alpha": torch.ones(())}, models / "few.safetensors")
    assert planner.ahead.mark(asked(loras=twice)) != before
    with pytest.raises(ValueError, match="list of at most"):
        planner.ahead.job(asked(preview=[0, 0, 0], loras={}))
    folder_paths.filename_list_cache.pop("loras", None)


def test_a_preview_as_the_template_gives_way_to_what_fits_and_the_plan_says_how_large_it_is(
    planner: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked_for = asked(preview=[0, 0, 0], preview_size="template", sizes=[[256, 256, 1]])
    job = planner.ahead.job(asked_for)
    assert job.preview_gives_way
    assert job.preview.tokens == 9 * 30 * 52, "832x480x33"
    assert not planner.ahead.job(asked(preview=[0, 0, 0], preview_size="clip")).preview_gives_way
    monkeypatch.setenv("WAN_TRAINER_CARD_GIB", "48")
    assert planner.answer(asked_for)["preview"] == "832x480x33"


@pytest.mark.lasts(3)
def test_what_does_not_fit_is_answered_with_turns_that_do(planner: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WAN_TRAINER_CARD_GIB", "2.17")
    question = asked(suggest=True)
    plan = planner.answer(question)
    assert not plan["fits"]
    assert plan["devices"][0]["needed"] > plan["devices"][0]["room"]
    assert plan["suggestions"], plan
    for change in plan["suggestions"]:
        train = {
            **question["train"],
            **{name: change[name] for name in ("rank", "preview_every_n_steps") if name in change},
        }
        size = [
            change.get(name, usual)
            for name, usual in zip(("width", "height", "num_frames"), (256, 256, 17), strict=True)
        ]
        nodes = [("Fp8Quantize", {"scheme": change["scheme"]})] if "scheme" in change else []
        assert planner.answer(asked(*nodes, train=train, sizes=[size]))["fits"], change


def test_of_a_pair_the_expert_with_the_larger_rank_counts(pack_nodes: dict[str, Any], models: Path) -> None:
    ahead = our_module(pack_nodes, "bridge.ahead").Ahead(pack_nodes)
    planner = our_module(pack_nodes, "routes.plan").Planner(ahead)
    names = {kind: f"wan2.2_t2v_{kind}_noise_14B.safetensors" for kind in ("high", "low")}
    for name in names.values():
        write_empty_model(models / name, "wan2.2-t2v-A14B-expert")
    load = {"diffusion_model": names["high"], "low_noise_model": names["low"], "device": "cpu"}

    def rank(**low: int) -> int:
        question = asked(chain=[["LoadWanModel", load]], settings=low)
        return planner.ahead.job(question).lora.rank

    assert rank(low_noise_rank=64) == 64
    assert rank(low_noise_rank=8) == rank(low_noise_rank=0) == 32


def test_a_question_that_no_page_of_ours_asks_is_refused_in_a_sentence(
    pack_nodes: dict[str, Any], planner: Any
) -> None:
    bad = {
        "must come from": {"chain": [["TrainLoRA", {}]]},
        "through": {"chain": [["LoadWanModel", {}], ["SaveImage", {}]]},
        "rank is '16', which has the wrong type": {"train": {"rank": "16"}},
        "rank is 100000": {"train": {"rank": 100000}},
        "must be a JSON object": {"train": None},
        "each must be [width, height, frames]": {"sizes": [[1e9, 1, 1]]},
        "No dataset": {"sizes": []},
        "is not a choice": {"chain": [["LoadWanModel", {"diffusion_model": "../../etc/passwd"}]]},
    }
    refusal = our_module(pack_nodes, "routes.handlers").WanTrainerError
    for sentence, change in bad.items():
        with pytest.raises(refusal, match=re.escape(sentence)):
            planner.answer(asked(**change))


@pytest.mark.soak
def test_a_queued_run_says_how_large_its_previews_as_the_template_are(
    own_comfy: Callable[..., ComfyServer], repo: Path
) -> None:
    comfy = own_comfy(env={"WAN_TRAINER_CARD_GIB": "16"})
    graph = json.loads((repo / "workflows" / "api" / "08_smoke_test.json").read_text(encoding="utf-8"))
    asked_for = {"preview_size": "template", "num_frames": 1, "steps": 1}
    few = {"steps": 1, "save_every_n_steps": 1, "preview_every_n_steps": 1}
    sizes: list[tuple[int, int, int]] = []
    for gib in ("16", ""):  # with a card, and without a GPU
        comfy.post("/tiny/card", {"gib": gib})
        run_name = f"sized{gib}"
        queued = tiny_graph(graph, WanPreviewSettings=asked_for, TrainLoRA={**few, "run_name": run_name})
        comfy.run({k: v for k, v in queued.items() if v["class_type"] != "ValidateVideo"})
        run = json.loads((comfy.base / "output" / "wan_trainer" / run_name / "run.json").read_text(encoding="utf-8"))
        sizes.append(tuple(run["preview"][name] for name in ("width", "height", "num_frames")))
    assert sizes == [(832, 480, 1), (0, 0, 1)]


def test_settings_of_another_trainer_say_how_large_clips_are_before_they_are_read(
    planner: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    import folder_paths

    monkeypatch.setattr(folder_paths, "input_directory", str(tmp_path))
    (tmp_path / "clips").mkdir()
    (tmp_path / "clips" / "a.mp4").write_bytes(b"no clip is opened")
    text = '[general]\nresolution = [{size}]\n[[datasets]]\nvideo_directory = "clips"\ntarget_frames = [9]\n'
    (tmp_path / "mine.toml").write_text(text.format(size="64, 48"), encoding="utf-8")
    widgets = {"other_file": "mine.toml", "width": 832, "height": 480, "num_frames": 33, "use_file_settings": True}

    def step(**changed: Any) -> tuple[int, int, int]:
        found = planner.ahead.job(asked(sizes=[], files=[{**widgets, **changed}])).step
        return found.latent_width * 8, found.latent_height * 8, found.latent_frames * 4 - 3

    mark = planner.ahead.mark(asked(files=[widgets]))
    assert step() == (64, 48, 9)
    (tmp_path / "mine.toml").write_text(text.format(size="640, 480"), encoding="utf-8")
    assert step() == (640, 480, 9)
    assert planner.ahead.mark(asked(files=[widgets])) != mark, "the file is another one"
    assert step(other_file="none.toml") == (832, 480, 33), "it is refused when it is queued"
    both = planner.ahead.job(asked(sizes=[[832, 480, 49]], files=[widgets])).step
    assert both.latent_frames * 4 - 3 == 49, "the largest of all datasets counts"


def test_context_files_next_to_clips_are_counted_before_a_scan(
    pack_nodes: dict[str, Any], planner: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ahead = our_module(pack_nodes, "bridge.ahead")
    monkeypatch.setattr(ahead.folders, "dataset_folder", lambda name: tmp_path / name)
    (tmp_path / "pairs").mkdir()
    for name in ("a.mp4", "a_source.mp4", "a_ref1.png", "a_ref2.png", "b.mp4", "b_source.mp4"):
        (tmp_path / "pairs" / name).touch()
    plain, body = planner.ahead.job(asked(sizes=[[1280, 720, 17]])), asked(sizes=[[1280, 720, 17]])
    pairs = planner.ahead.job(body | {"folders": ["gone", "pairs"]})
    assert plain.step.context == ()
    assert pairs.step.context == ((5, 90, 160), (1, 58, 106), (1, 58, 106))  # 848 pixels at most
    assert pairs.step.tokens == 2 * plain.step.tokens + 2 * 29 * 53
    before = planner.ahead.mark(body | {"folders": ["pairs"]})
    (tmp_path / "pairs" / "b_ref1.png").touch()
    (tmp_path / "pairs" / "a_ref3.png").touch()
    assert planner.ahead.mark(body | {"folders": ["pairs"]}) != before
