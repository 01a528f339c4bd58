"""What Queue means, through POST /prompt of a genuine ComfyUI: train, repeat, continue, change, apply."""

from __future__ import annotations

import io
import json
import os
import shutil
from pathlib import Path
from typing import Any

import av
import pytest
from clips import place_clips
from comfy_server import ComfyServer
from graphs import TRAIN, Graph, content, folder_of, run_of, steps_trained, training_graph
from PIL import Image
from route_server import our_module
from safetensors import safe_open
from world import sampling_graph

pytestmark = [pytest.mark.comfy, pytest.mark.slow, pytest.mark.lasts(2)]

VALIDATE, APPLY = "validate", "apply"


def loras(comfy: ComfyServer) -> Path:
    return comfy.base / "models" / "loras"


def test_a_complete_cache_loads_no_encoder(comfy: ComfyServer) -> None:
    """VAELoader does not run a second time: a graph whose VAE cannot be loaded any more still trains."""
    comfy.run(training_graph("lazy"))
    comfy.free()
    with comfy.events() as seen:
        comfy.run(training_graph("lazy", steps=5))
    ran = [data["node"] for data in seen.of("executing") if data.get("node")]
    assert "vae" not in ran
    assert TRAIN in ran


def foreseen(comfy: ComfyServer, graph: Graph) -> dict[str, Any] | None:
    """What the server says of the run of that name before the graph is queued, as the page asks."""
    widgets = {key: value for key, value in graph[TRAIN]["inputs"].items() if not isinstance(value, list)}
    chain = [["LoadWanModel", graph["model"]["inputs"]]]
    asked = {"chain": chain, "train": {}, "sizes": [[48, 48, 5]], "run": widgets}
    return comfy.post("/wan_trainer/plan", asked, headers={"X-Wan-Trainer": "1"})["run"]


def test_more_steps_continue_and_other_data_starts_a_new_folder(comfy: ComfyServer) -> None:
    clips = place_clips(comfy.base / "input" / "growing")
    comfy.run(training_graph("grow", "growing"))
    done = {"id": "grow", "state": "done", "step": 4, "steps": 4, "action": "done", "new": "grow_002", "until": 4}
    assert foreseen(comfy, training_graph("grow")) == {**done, "changes": []}
    more = foreseen(comfy, training_graph("grow", steps=6))
    assert (more["action"], more["until"]) == ("resume", 6)
    other = foreseen(comfy, training_graph("grow", rank=8, learning_rate=0.02))
    assert (other["action"], other["new"]) == ("start", "grow_002")
    rate, rank = ({"setting": "learning_rate", "there": 0.01, "here": 0.02}, {"setting": "rank", "there": 4, "here": 8})
    assert sorted(other["changes"], key=str) == [rate, rank]
    assert foreseen(comfy, training_graph("grow", rank=8, resume="require"))["action"] == "refuse"
    assert foreseen(comfy, training_graph("nobody")) is None
    longer = run_of(comfy, comfy.run(training_graph("grow", "growing", steps=6)))
    assert (longer["run"], longer["step"]) == ("grow", 6)
    assert "resumes after step 4" in longer["note"]
    assert steps_trained(comfy, "grow") == 6
    before = content(folder_of(comfy, "grow"))

    (clips / "bikes.txt").write_text("something else entirely", encoding="utf-8")
    other = run_of(comfy, comfy.run(training_graph("grow", "growing", steps=6)))
    assert (other["run"], other["step"]) == ("grow_002", 6)
    assert "the data" in other["note"]
    assert other["cache"]["latents_encoded"] == 0
    assert other["cache"]["texts_encoded"] == 1
    assert content(folder_of(comfy, "grow")) == before

    refused = comfy.run(training_graph("grow", "growing", steps=6, rank=8, resume="require"), check=False)
    assert "resume is set to require" in comfy.error(refused)
    assert "rank" in comfy.error(refused)


def test_steps_this_queue_stops_early_and_the_next_queue_goes_on(comfy: ComfyServer) -> None:
    one = run_of(comfy, comfy.run(training_graph("chunks", steps_this_queue=2)))
    assert (one["status"], one["step"]) == ("stopped", 2)
    two = run_of(comfy, comfy.run(training_graph("chunks", steps_this_queue=2)))
    assert (two["status"], two["step"]) == ("done", 4)
    assert steps_trained(comfy, "chunks") == 4


def test_the_lora_is_listed_and_loads_with_every_key(comfy: ComfyServer) -> None:
    log_before = len(comfy.log_text())
    run = run_of(comfy, comfy.run(training_graph("usable")))
    said = [line for line in comfy.log_text()[log_before:].splitlines() if line.startswith("usable: ")]
    assert said[-2] == "usable: done at step 4"
    assert said[-1].startswith("usable: Load with LoraLoaderModelOnly")
    assert run["lora_name"] in said[-1]  # as the loader lists it, not where the run keeps it
    assert run["lora_name"] == os.path.join("wan_trainer", "usable.safetensors")
    listed = comfy.get("/models/loras")
    assert run["lora_name"] in listed
    assert os.path.join("wan_trainer", "usable_000002.safetensors") in listed
    log_before = len(comfy.log_text())
    comfy.run(sampling_graph(lora=run["lora_name"]))
    assert "lora key not loaded" not in comfy.log_text()[log_before:]
    with safe_open(loras(comfy) / run["lora_name"], "pt") as file:
        assert all(key.startswith("diffusion_model.blocks.") for key in file.keys())  # noqa: SIM118
        assert str(comfy.base) not in json.dumps(file.metadata())


def test_outputs_plug_into_core_nodes_and_apply_wan_lora(comfy: ComfyServer) -> None:
    sampled = sampling_graph(prefix="applied")
    both: Graph = {
        **training_graph("plugs"),
        **sampled,
        APPLY: {"class_type": "ApplyWanLoRA", "inputs": {"run": [TRAIN, 0], "model": ["1", 0], "saved_step": "best"}},
        "core": {
            "class_type": "LoraModelLoader",
            # bypass: an input since 0.10, which an older ComfyUI does not look at
            "inputs": {"model": [APPLY, 0], "lora": [TRAIN, 1], "strength_model": 0.5, "bypass": False},
        },
        "loss": {"class_type": "LossGraphNode", "inputs": {"loss": [TRAIN, 2], "filename_prefix": "loss"}},
    }
    both["2"]["inputs"]["model"] = ["core", 0]
    entry = comfy.run(both)
    assert comfy.outputs(entry, "10")["latents"]
    assert comfy.outputs(entry, "loss")["images"]


def test_previews_and_validation_clips_play(comfy: ComfyServer) -> None:
    wanted: Graph = training_graph("shown", vae=["vae", 0], validation=["preview", 0], preview_every_n_steps=4)
    wanted["preview"] = {
        "class_type": "WanPreviewSettings",
        "inputs": {
            "clip": ["clip", 0],
            "prompts": '{"Red Ball!": "a red ball", "sky": "a [trigger] ball --w 64 --h 32 --s 1"}',
            "trigger_word": "blue",
            "sampling": "custom",
            "steps": 2,
            "cfg": 1.0,
        },
    }
    wanted[VALIDATE] = {
        "class_type": "ValidateVideo",
        "inputs": {"run": [TRAIN, 0], "vae": ["vae", 0], "saved_steps": "2, 4", "strengths": "0.0, 1.0"},
    }
    wanted["side by side"] = {
        "class_type": "SaveVideo",
        "inputs": {"video": [VALIDATE, 3], "filename_prefix": "sides", "format": "auto", "codec": "auto"},
    }
    wanted["grid"] = {"class_type": "SaveImage", "inputs": {"images": [VALIDATE, 1], "filename_prefix": "grid"}}
    wanted["first"] = {
        "class_type": "SaveVideo",
        "inputs": {"video": [VALIDATE, 0], "filename_prefix": "v", "format": "auto", "codec": "auto"},
    }
    with comfy.events() as seen:
        entry = comfy.run(wanted)
    assert len(run_of(comfy, entry)["samples"]) == 4  # two prompts, before and after
    lines = (comfy.base / "output" / "wan_trainer" / "shown" / "metrics.jsonl").read_text().splitlines()
    measured = [record["measures"] for record in map(json.loads, lines) if record["event"] == "sample"]
    kinds = {"empty", "flicker", "grid", "spots", "ssim"}
    assert [set(one) - {"ssim_last"} for one in measured] == [kinds] * 4
    assert ["ssim_last" in one for one in measured] == [False, False, True, True]
    assert [one["ssim"] for one in measured[:2]] == [1, 1]
    shown = comfy.outputs(entry, VALIDATE)
    assert len(shown["images"]) == 10  # (baseline + 2 steps x 2 strengths) x 2 prompts
    of_base = [file["filename"].startswith("baseline") for file in shown["images"]]
    assert of_base == [False] * 8 + [True] * 2, "the first clip is the one the node shows"
    for file in [*shown["images"], *run_of(comfy, entry)["samples"]]:
        with av.open(str(comfy.base / file["type"] / file["subfolder"] / file["filename"])) as video:
            assert len(list(video.decode(video=0))) == 5
    (facts,) = shown["wan_clips"]
    assert [row["prompt"] for row in facts["rows"]] == ["a red ball", "a blue ball"]
    columns = [(None, None), (2, 0.0), (2, 1.0), (4, 0.0), (4, 1.0)]
    for index, row in enumerate(facts["rows"]):
        assert [(clip["step"], clip["strength"]) for clip in row["clips"]] == columns
        prompt = ("p0_Red-Ball", "p1_sky")[index]
        names = [f"step-{s:06d}_s{x}_{prompt}.mp4" if s else f"baseline_{prompt}.mp4" for s, x in columns]
        assert [clip["file"]["filename"] for clip in row["clips"]] == names
        assert all(clip["file"] in shown["images"] for clip in row["clips"])
        with Image.open(io.BytesIO(comfy.view(row["clips"][0]["still"]))) as still:
            assert still.size == ((64, 32) if index else (facts["width"], facts["height"]))
    assert facts["asked"] == {"saved_steps": "2, 4", "strengths": "0.0, 1.0"}
    metrics = {clip["clip"]: clip for clip in json.loads(shown["text"][0])["clips"]}
    assert metrics["step-000004_s0.0_p0_Red-Ball"]["drift_mean_abs"] == 0.0  # strength 0 is the base model
    assert metrics["step-000004_s0.0_p0_Red-Ball"]["ssim"] == 1.0 > metrics["step-000004_s1.0_p0_Red-Ball"]["ssim"]
    assert metrics["step-000004_s1.0_p0_Red-Ball"]["drift_mean_abs"] > 0.0
    statuses = seen.of("wan_trainer.status")
    assert any("step 4/4" in s["text"] for s in statuses)
    assert all(s["node"] in wanted for s in statuses)
    free = {s["text"] for s in statuses if s["about"] is None}
    sampled = {f"Previews are sampled in {steps} steps: euler, simple, cfg 1, shift 8." for steps in (1, 2)}
    assert free == {"New run shown.", *sampled}, "the page cannot say others in another language"
    told = {s["about"]["kind"] for s in statuses if s["node"] == VALIDATE and s["about"]}
    assert told >= {"starting", "preview", "clips", "ended"}
    streamed = [s["about"] for s in statuses if s["about"] and s["about"]["kind"] == "clips"]
    assert [about["done"] for about in streamed] == list(range(1, 11)), "each clip is told as soon as it can be played"
    assert [len(row["clips"]) for row in streamed[6]["clips"]["rows"]] == [5, 2]
    assert seen.binary, "the progress bar showed no preview picture"
    rendering = folder_of(comfy, "shown") / "samples" / facts["rows"][0]["clips"][0]["file"]["subfolder"].split("/")[-1]
    (sheet,), (movie,) = rendering.glob("grid-*.png"), rendering.glob("grid-*.mp4")
    with (
        Image.open(sheet) as picture,
        Image.open(io.BytesIO(comfy.view(comfy.outputs(entry, "grid")["images"][0]))) as out,
    ):
        assert picture.size == out.size
        assert json.loads(picture.info["prompt"])[VALIDATE]["class_type"] == "ValidateVideo"
    with av.open(str(movie)) as video:
        assert json.loads(video.metadata["prompt"]) == json.loads(picture.info["prompt"])
        assert len(list(video.decode(video=0))) == 5

    comfy.free()
    with comfy.events() as again:
        comfy.run(wanted)
    assert not [s for s in again.of("wan_trainer.status") if s["node"] == VALIDATE], "nothing is rendered twice"

    wanted[VALIDATE]["inputs"] |= {"saved_steps": "4", "strengths": "1.0", "seeds": "7, 42", "grid_format": "webm"}
    entry = comfy.run(wanted)
    (facts,) = comfy.outputs(entry, VALIDATE)["wan_clips"]
    assert [(row["prompt"], row["seed"]) for row in facts["rows"]] == [
        (prompt, seed) for prompt in ("a red ball", "a blue ball") for seed in (7, 42)
    ]
    clips = {clip["clip"]: clip for clip in json.loads(comfy.outputs(entry, VALIDATE)["text"][0])["clips"]}
    assert (
        clips["step-000004_s1.0_d42_p0_Red-Ball"]["drift_mean_abs"]
        == metrics["step-000004_s1.0_p0_Red-Ball"]["drift_mean_abs"]
    )
    assert (
        clips["step-000004_s1.0_d7_p0_Red-Ball"]["drift_mean_abs"]
        != clips["step-000004_s1.0_d42_p0_Red-Ball"]["drift_mean_abs"]
    )
    with av.open(str(next(rendering.glob("grid-*.webm")))) as video:
        assert json.loads(video.metadata["PROMPT"])[VALIDATE]["inputs"]["seeds"] == "7, 42"


def test_a_lora_of_another_job_is_kept_when_its_run_was_deleted(comfy: ComfyServer) -> None:
    comfy.run(training_graph("reborn"))
    published = loras(comfy) / "wan_trainer" / "reborn.safetensors"
    old = published.read_bytes()
    shutil.rmtree(folder_of(comfy, "reborn"))
    comfy.run(training_graph("reborn", seed=1))
    assert published.read_bytes() != old
    kept = [f for f in published.parent.glob("reborn_*.safetensors") if f.read_bytes() == old]
    assert kept


def test_a_quantized_and_split_plan_gives_a_lora(comfy: ComfyServer) -> None:
    two: Graph = training_graph("split")
    two["q"] = {"class_type": "Fp8Quantize", "inputs": {"model": ["model", 0], "scheme": "int8"}}
    two["s"] = {
        "class_type": "SplitAcrossGPUs",
        "inputs": {"model": ["q", 0], "mode": "split blocks", "devices": "cpu", "split_at": "auto"},
    }
    two[TRAIN]["inputs"]["model"] = ["s", 0]
    assert run_of(comfy, comfy.run(two))["step"] == 4


def test_run_files_hold_no_path_of_this_machine(comfy: ComfyServer) -> None:
    workflow = {"nodes": [{"widgets_values": ["/data/somebody/clips/a.mp4", "D:\\films\\somebody\\x", "fine"]}]}
    comfy.run(training_graph("clean"), extra_data={"extra_pnginfo": {"workflow": workflow}})
    for file in folder_of(comfy, "clean").glob("*.json*"):
        text = file.read_text(encoding="utf-8")
        assert not [secret for secret in (str(comfy.base), "somebody") if secret in text], file.name
    kept = json.loads((folder_of(comfy, "clean") / "workflow.json").read_text(encoding="utf-8"))
    assert kept["nodes"][0]["widgets_values"] == ["[path removed]", "[path removed]", "fine"]
    with safe_open(loras(comfy) / "wan_trainer" / "clean.safetensors", "pt") as file:
        metadata = file.metadata()
    assert json.loads(metadata["workflow"]) == kept
    assert "somebody" not in json.dumps(metadata)


def test_disable_metadata_keeps_the_graph_out_of_loras(
    pack_nodes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    module = our_module(pack_nodes, "runs.training")
    assert module._engine_options(0, 0) == ["--embed-workflow"]
    monkeypatch.setattr(module.args, "disable_metadata", True)
    assert module._engine_options(0, 0) == []
    assert module._engine_options(5, 0) == ["--max-steps", "5"]
