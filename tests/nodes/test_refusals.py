"""Bad input: one sentence naming file, value and fix, before any encoder is loaded or any process started."""

from __future__ import annotations

import json
import pickle
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from clips import place_clips
from comfy_server import ComfyServer, PromptRefused
from graphs import CACHE, TRAIN, Graph, is_no_choice, run_of, training_graph
from route_server import our_module, write_run
from world import MODEL, VAE

from wan_core.packages import pip_line

pytestmark = pytest.mark.comfy


def refusal(comfy: ComfyServer, graph: Graph) -> str:
    """What the user reads, whether ComfyUI refuses the graph or a node does."""
    with comfy.events() as seen:
        try:
            entry = comfy.run(graph, timeout=60, check=False)
        except PromptRefused as refused:
            return str(refused)
    ran = {data["node"] for data in seen.of("executing") if data.get("node")}
    assert not ran & {"vae", "clip"}, "an encoder was loaded for nothing"
    assert entry["status"]["status_str"] == "error"
    message = comfy.error(entry)
    assert "\n" not in message
    assert "Traceback" not in message
    return message


def models(comfy: ComfyServer) -> Path:
    return comfy.base / "models" / "diffusion_models"


def with_model(name: str) -> Graph:
    graph = training_graph("refused")
    graph["model"]["inputs"]["diffusion_model"] = name
    return graph


def test_a_vae_given_as_model(comfy: ComfyServer) -> None:
    shutil.copyfile(comfy.base / "models" / "vae" / VAE, models(comfy) / "a_vae.safetensors")
    said = refusal(comfy, with_model("a_vae.safetensors"))
    assert "a_vae.safetensors is the Wan 2.1 VAE, not a Wan diffusion model" in said
    assert "models/vae" in said


def test_a_pickle(comfy: ComfyServer) -> None:
    (models(comfy) / "model.pth").write_bytes(pickle.dumps({"weights": [1, 2, 3]}, protocol=2))
    said = refusal(comfy, with_model("model.pth"))
    assert "model.pth is a pickle" in said
    assert ".safetensors" in said


def test_a_truncated_file(comfy: ComfyServer) -> None:
    whole = (models(comfy) / MODEL).read_bytes()
    (models(comfy) / "half.safetensors").write_bytes(whole[: len(whole) // 2])
    with comfy.events("another page") as seen:
        said = refusal(comfy, with_model("half.safetensors"))
    assert "half.safetensors has" in said
    told = seen.of("wan_trainer.sentences")[0]["sentences"][said.partition(": ")[2]]
    assert told["template"].startswith("{name} has {size} bytes, but its header says {wanted}")
    assert told["values"]["size"] == f"{len(whole) // 2:,}"


def test_a_file_that_is_not_listed(comfy: ComfyServer) -> None:
    said = refusal(comfy, with_model("wan_tiny_t2.safetensors"))
    assert is_no_choice(said, "diffusion_model", "wan_tiny_t2.safetensors", MODEL)


def test_both_files_of_a_pair_that_are_missing_are_named_when_it_is_queued(comfy: ComfyServer) -> None:
    graph = with_model("wan_high_elsewhere.safetensors")
    graph["model"]["inputs"]["low_noise_model"] = "wan_low_elsewhere.safetensors"
    with pytest.raises(PromptRefused) as refused:
        comfy.run(graph, timeout=60)
    said = str(refused.value)
    assert is_no_choice(said, "diffusion_model", "wan_high_elsewhere.safetensors")
    assert is_no_choice(said, "low_noise_model", "wan_low_elsewhere.safetensors")


@pytest.mark.parametrize(
    ("node", "widget", "value", "said"),
    [
        (TRAIN, "learning_rate", -1.0, "learning_rate -1.0"),
        (TRAIN, "learning_rate", float("nan"), "learning_rate"),
        (TRAIN, "steps", 0, "steps 0"),
        (TRAIN, "rank", 5000, "rank 5000 is out of range. Use 1 to 1024"),
        (TRAIN, "alpha", -1.0, "alpha -1.0 is negative"),
        (TRAIN, "save_every_n_steps", -1, "save_every_n_steps -1"),
        (TRAIN, "preview_every_n_steps", -1, "preview_every_n_steps -1"),
        (TRAIN, "blocks_to_swap", -2, "blocks_to_swap -2 is out of range"),
        (TRAIN, "steps_this_queue", -3, "steps_this_queue -3 is out of range. Use 0 for all steps"),
        (TRAIN, "run_name", "a/b", "cannot be a file name"),
        (TRAIN, "expert", "highest", 'expert "highest" is not a choice. Did you mean "high"'),
        (TRAIN, "resume", "never", 'resume "never" is not a choice'),
        (TRAIN, "start_from_lora", "gone.safetensors", 'start_from_lora "gone.safetensors" is not a choice'),
        ("settings", "optimizer", "adamww", 'optimizer "adamww" is not a choice. Did you mean "adamw"'),
        ("settings", "gradient_accumulation_steps", 0, "gradient_accumulation_steps 0"),
        ("settings", "rank_dropout", 1.5, "rank_dropout 1.5 is out of range"),
        ("quantize", "scheme", "fp88", 'scheme "fp88" is not a choice'),
        (CACHE, "mode", "rebuilt", 'mode "rebuilt" is not a choice'),
    ],
)
def test_a_refused_value_fails_the_prompt_before_a_clip_is_encoded(
    comfy: ComfyServer, node: str, widget: str, value: object, said: str
) -> None:
    """The dataset is an output too: where ComfyUI itself refuses the training, the rest runs and is a success."""
    graph = training_graph("refused")
    graph["settings"] = {"class_type": "WanTrainSettings", "inputs": {}}
    graph["quantize"] = {"class_type": "Fp8Quantize", "inputs": {"model": ["model", 0]}}
    graph[TRAIN]["inputs"] |= {"settings": ["settings", 0], "model": ["quantize", 0]}
    graph[node]["inputs"][widget] = value
    with comfy.events() as seen:
        entry = comfy.run(graph, timeout=60, check=False)
    assert said in comfy.error(entry)
    assert entry["status"]["status_str"] == "error"
    assert [name for name, _ in entry["status"]["messages"]][-1] == "execution_error"
    assert not {data["node"] for data in seen.of("executing") if data.get("node")} & {"vae", "clip"}
    assert not (comfy.output / "wan_trainer" / "refused").exists()


def test_an_empty_folder(comfy: ComfyServer) -> None:
    (comfy.base / "input" / "empty").mkdir(exist_ok=True)
    assert "'empty' holds no clips or stills" in refusal(comfy, training_graph("refused", "empty"))


def test_missing_captions(comfy: ComfyServer) -> None:
    folder = place_clips(comfy.base / "input" / "silent")
    (folder / "bikes.txt").unlink()
    said = refusal(comfy, training_graph("refused", "silent"))
    assert "1 of 3 files have no caption: bikes.mp4" in said
    assert "set trigger_word" in said


def test_clips_that_are_too_short(comfy: ComfyServer) -> None:
    graph = training_graph("refused")
    graph["data"]["inputs"]["num_frames"] = 401
    said = refusal(comfy, graph)
    assert "bikes.mp4: has 160 frames" in said
    assert "Set num_frames to" in said


def test_a_frame_count_wan_cannot_take(comfy: ComfyServer) -> None:
    graph = training_graph("refused")
    graph["data"]["inputs"]["num_frames"] = 30
    assert "num_frames is 30; Wan needs 4n+1. Set num_frames to 29 or 33." in refusal(comfy, graph)


@pytest.mark.parametrize(
    "folder", ["/", "/etc", "../..", "..", "~", "\\\\server\\share", "/proc/self", "http://127.0.0.1/x"]
)
def test_a_folder_outside_the_allowed_roots(comfy: ComfyServer, folder: str) -> None:
    said = refusal(comfy, training_graph("refused", folder))
    assert "roots.json" in said or "does not exist" in said


def test_a_link_that_leads_outside(comfy: ComfyServer, tmp_path: Path) -> None:
    place_clips(tmp_path / "private")
    link = comfy.base / "input" / "inviting"
    if not link.exists():
        link.symlink_to(tmp_path / "private", target_is_directory=True)
    said = refusal(comfy, training_graph("refused", "inviting"))
    assert "outside the allowed folders" in said
    assert "roots.json" in said
    link.unlink()


@pytest.mark.parametrize(
    "name", ["", ".", "..", "../x", "a/b", "a\\b", "CON", "nul.txt", "x" * 96, " lead", "trail.", "a\nb", "ü:"]
)
def test_a_run_name_that_cannot_be_a_folder(comfy: ComfyServer, name: str) -> None:
    assert "cannot be a file name" in refusal(comfy, training_graph(name))


def test_a_choice_that_does_not_exist(comfy: ComfyServer) -> None:
    said = refusal(comfy, {**training_graph("refused"), "model": {
        "class_type": "LoadWanModel",
        "inputs": {"diffusion_model": MODEL, "precision_policy": "balance"},
    }})  # fmt: skip
    assert is_no_choice(said, "precision_policy", "balance", "balanced")


def test_the_wrong_type_of_text_encoder(comfy: ComfyServer) -> None:
    graph = training_graph("refused")
    (comfy.base / "models" / "text_encoders" / "some.safetensors").write_bytes(b"not read")
    graph["clip"] = {"class_type": "CLIPLoader", "inputs": {"clip_name": "some.safetensors", "type": "sd3"}}
    assert "set its type to wan" in refusal(comfy, graph)


def test_devices_that_do_not_exist(comfy: ComfyServer) -> None:
    graph = training_graph("refused")
    graph["split"] = {"class_type": "SplitAcrossGPUs", "inputs": {"model": ["model", 0], "devices": "cuda:0,cuda:7"}}
    graph[TRAIN]["inputs"]["model"] = ["split", 0]
    assert 'Device "cuda:' in refusal(comfy, graph)


def test_an_unknown_setting_in_run_json(comfy: ComfyServer) -> None:
    """A run directory somebody edited: it is known by its saves, the nearest name is suggested, the edit is kept."""
    comfy.run(training_graph("edited", steps=1, save_every_n_steps=1))
    path = comfy.output / "wan_trainer" / "edited" / "run.json"
    data = json.loads(path.read_text(encoding="utf-8"))
    data["lora"]["rnak"] = data["lora"].pop("rank")
    path.write_text(json.dumps(data), encoding="utf-8")
    edited = path.read_bytes()
    run = run_of(comfy, comfy.run(training_graph("edited", steps=2)))
    assert 'Unknown setting "rnak" in lora. Did you mean "rank"?' in run["note"]
    assert (run["run"], run["step"]) == ("edited", 2)
    assert path.with_name("run.unread.json").read_bytes() == edited


@pytest.fixture
def without_output_folder(comfy: ComfyServer) -> Iterator[Path]:
    """Where the folder of all runs would be; other tests find theirs again."""
    place, aside = comfy.output / "wan_trainer", comfy.output / "aside"
    if there := place.exists():
        place.rename(aside)
    yield place
    place.unlink()
    if there:
        aside.rename(place)


def test_a_file_where_the_output_folder_should_be(comfy: ComfyServer, without_output_folder: Path) -> None:
    without_output_folder.write_text("in the way", encoding="utf-8")
    assert "output/wan_trainer is a file. Move it away" in refusal(comfy, training_graph("refused"))
    assert without_output_folder.read_text(encoding="utf-8") == "in the way"


@pytest.mark.parametrize("node", ["WanVideoDataset", "WanDatasetFromFile", "WanDatasetFromImages"])
def test_a_pyav_that_reads_inexactly_is_refused_before_anything_runs(pack_nodes, tmp_path, monkeypatch, node) -> None:
    assert pack_nodes[node].validate_inputs() is True
    stated = tmp_path / "av-16.1.0.dist-info"
    stated.mkdir()
    (stated / "METADATA").write_text("Metadata-Version: 2.1\nName: av\nVersion: 16.1.0\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    said = pack_nodes[node].validate_inputs()
    assert said == f"PyAV 16.1.0 does not read clips exactly; 17.1 or newer does. Run: {pip_line('av>=17.1')}"


MANY = " ".join(map(str, range(1, 102)))
"""a value more than Validate Video renders"""


@pytest.mark.parametrize(
    ("node", "widget", "bad", "said", "good"),
    [
        ("ValidateVideo", "strengths", ["abc", "", "200", "nan"], "strengths", ["0.5, 1.0", "1", "-1 2"]),
        (
            *(
                "ValidateVideo",
                "saved_steps",
                ["newest", "-5", "0", "none, 30"],
                "is not latest, best, all or numbers",
            ),
            ["", "none", "latest", "30, latest", "best latest 250", "ALL"],
        ),
        ("ValidateVideo", "seeds", ["1.5", "-1"], "seeds", ["", "1, 2"]),
        ("ValidateVideo", "seeds", [MANY], "101 clips; at most 100 are rendered", [MANY[:-4]]),
        ("ValidateVideo", "strengths", [MANY.replace("101", "0.5")], "at most 100 are rendered", [MANY[:-4]]),
        ("ValidateVideo", "saved_steps", [MANY], "at most 100 are rendered", [MANY[:-4]]),
        ("ValidateVideo", "grid_format", ["avi"], "is not a choice", ["mp4"]),
        ("ApplyWanLoRA", "saved_step", ["newest", "1e3"], "is not latest, best, all or numbers", ["500", "best"]),
        ("ApplyWanLoRA", "saved_step", ["2, 4"], "names 2 saved steps. Use one", ["2, 2", "2, latest", "all"]),
    ],
)
def test_what_is_read_after_the_training_is_refused_when_it_is_queued(
    pack_nodes: dict[str, Any], node: str, widget: str, bad: list[str], said: str, good: list[str]
) -> None:
    check = pack_nodes[node].validate_inputs
    assert [value for value in bad if said not in str(check(**{widget: value}))] == []
    assert [value for value in [*good, None] if check(**{widget: value}) is not True] == []


def test_saved_steps_are_named_by_words_and_numbers_together(pack_nodes: dict[str, Any], tmp_path: Path) -> None:
    directory = write_run(tmp_path / "output" / "wan_trainer")
    chosen = our_module(pack_nodes, "runs.facts").chosen_steps
    assert chosen(directory, "2, latest") == (2, 4)
    assert chosen(directory, "latest 2 best") == (4, 2)
    assert chosen(directory, "4, all") == (4, 2)
    with pytest.raises(Exception, match=r"has no saved step 3\. It has: 2, 4"):
        chosen(directory, "latest, 3")


def test_a_strength_that_is_none_is_said_before_the_training(comfy: ComfyServer) -> None:
    graph = training_graph("night")
    graph["grid"] = {
        "class_type": "ValidateVideo",
        "inputs": {"run": [TRAIN, 0], "vae": ["vae", 0], "strengths": "abc"},
    }
    answer = comfy.post("/prompt", {"prompt": {**graph, TRAIN: graph[TRAIN]}, "client_id": "x"})
    (wrong,) = answer["node_errors"]["grid"]["errors"]
    assert 'strengths "abc" is not a list of numbers' in json.dumps(wrong).replace('\\"', '"')
    comfy.interrupt(answer["prompt_id"])
    comfy.wait(answer["prompt_id"], check=False)


@pytest.mark.parametrize(
    ("name", "value"), [("steps", "abc"), ("learning_rate", "1e-4x"), ("learning_rate", [1]), ("rank", None)]
)
def test_a_text_where_a_number_belongs_fails_the_whole_prompt(comfy: ComfyServer, name: str, value: object) -> None:
    """ComfyUI would drop the node, run the dataset of the graph, and end in a success in which nothing was trained."""
    graph = training_graph("refused")
    graph[TRAIN]["inputs"][name] = value
    assert f"{name} is not a number." in refusal(comfy, graph)


def test_numbers_as_texts_and_links_stay_as_they_came(pack_nodes: dict[str, Any]) -> None:
    hold = our_module(pack_nodes, "bridge.unreadable").with_readable_numbers
    inputs = {"steps": "12", "learning_rate": "1e-4", "rank": ["other", 0], "run_name": 5, "alpha": {"__value__": 2}}
    asked = {"prompt": {"1": {"class_type": "TrainLoRA", "inputs": dict(inputs)}, "2": {"class_type": "Other"}, "3": 4}}
    assert hold(asked, {"TrainLoRA": pack_nodes["TrainLoRA"]})["prompt"]["1"]["inputs"] == inputs
    our_module(pack_nodes, "bridge.unreadable").check_readable({"alpha": float("-inf"), "rank": -(10**400)})
    for odd in (None, [], {"prompt": None}, {"prompt": {"1": {"class_type": ["TrainLoRA"], "inputs": 3}}}):
        assert hold(odd, {"TrainLoRA": pack_nodes["TrainLoRA"]}) == odd
