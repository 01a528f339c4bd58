"""Other trainers' settings that were dropped on the page: a route takes their texts, and reads nothing else."""

from __future__ import annotations

import json
import time
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from route_server import RouteServer, assert_safe, loose, our_module

from tests.support.mutated import mutations

pytestmark = pytest.mark.comfy
JOBS = Path(__file__).parents[1] / "fixtures" / "jobs"


def texts(*names: str) -> dict[str, dict[str, str]]:
    return {"files": {Path(name).name: (JOBS / name).read_text(encoding="utf-8") for name in names}}


def test_settings_become_a_workflow_and_an_account(routes: RouteServer) -> None:
    answer = routes.post("/import", texts("musubi_command.sh"))
    assert answer.status == 200
    assert_safe(answer)
    said = answer.data
    assert (said["known"], said["trainer"], said["source"]) == (True, "musubi-tuner", "musubi_command.sh")
    kinds = [node["type"] for node in said["graph"]["nodes"]]
    assert {"LoadWanModel", "WanDatasetFromFile", "TrainLoRA", "MarkdownNote"} <= set(kinds)
    assert said["missing"], "the dataset and the prompts were not dropped with it"
    assert {Path(name).suffix for name in said["missing"]} == {".toml", ".txt"}
    assert not any("unknown, so not used" in line for line in said["note"])


def test_what_is_dropped_together_is_read_together_in_any_order(routes: RouteServer) -> None:
    alone = routes.post("/import", texts("musubi_command.sh")).data
    there = [path.name for path in JOBS.rglob("*") if path.name in {Path(name).name for name in alone["missing"]}]
    together = routes.post("/import", {"files": {**_found(there), **texts("musubi_command.sh")["files"]}}).data
    assert (together["source"], together["missing"]) == ("musubi_command.sh", [])
    preview = next(node for node in together["graph"]["nodes"] if node["type"] == "WanPreviewSettings")
    assert "a red fox runs" in preview["widgets_values_named"]["prompts"]


def _found(names: list[str]) -> dict[str, str]:
    return {path.name: path.read_text(encoding="utf-8") for path in JOBS.rglob("*") if path.name in names}


def test_a_file_of_nobody_is_left_to_comfyui(routes: RouteServer) -> None:
    for name, text in {"a.toml": "x = 1", "a.yaml": "x: 1", "a.json": '{"nodes": []}', "a.txt": "hello"}.items():
        said = routes.post("/import", {"files": {name: text}}).data
        assert said["known"] is False, name


def test_a_data_half_alone_says_what_goes_with_it(routes: RouteServer) -> None:
    answer = routes.post("/import", {"files": {"data.toml": "[[datasets]]\nvideo_directory = 'x'"}})
    assert answer.status == 409
    assert "only the dataset settings of musubi-tuner" in answer.data["error"]


@pytest.mark.parametrize(
    "named", ["/etc/passwd", "../../../../etc/passwd", "C:\\Windows\\win.ini", "//server/share/x.toml", "~/.ssh/id_rsa"]
)
def test_no_file_of_this_computer_is_read(routes: RouteServer, named: str) -> None:
    """The settings name a file that is there; it is told as missing, like one that is not."""
    before = loose(routes.runs)
    job = {"task": "t2v-1.3B", "dit": "x.safetensors", "dataset_config": named, "sample_prompts": named}
    toml = "\n".join(f"{key} = {json.dumps(value)}" for key, value in job.items())
    said = routes.post("/import", {"files": {"job.toml": toml}})
    assert said.data["missing"] == [named]
    assert b"root:" not in said.body
    assert loose(routes.runs) == before


@pytest.mark.parametrize("name", ["../job.toml", "a/b.toml", "a\\b.toml", "a\x00.toml", "", "x" * 201])
def test_a_name_that_is_a_path_is_refused(routes: RouteServer, name: str) -> None:
    assert routes.post("/import", {"files": {name: "x = 1"}}).status == 400


@pytest.mark.parametrize("body", [{}, {"files": []}, {"files": {}}, {"files": {"a.toml": 1}}, {"files": None}])
def test_what_is_no_file_is_refused(routes: RouteServer, body: dict[str, object]) -> None:
    assert routes.post("/import", body).status == 400
    assert routes.post("/import", {"files": {f"{number}.toml": "" for number in range(17)}}).status == 400


def test_too_much_is_refused_unread(routes: RouteServer) -> None:
    assert routes.post("/import", {"files": {"a.toml": "x" * (1 << 20)}}).status == 413


HOSTILE = {
    "deep.json": '{"model_family": ' + "[" * 50_000 + "]" * 50_000 + "}",
    "deep.yaml": "config: " + "{a: " * 3000 + "1" + "}" * 3000,
    "deep.toml": "dit = " + "[" * 5000 + "]" * 5000,
    "bomb.yaml": "a: &a [x, x]\nconfig: {process: [*a, *a]}",
    "number.json": '{"model_family": "wan", "lora_rank": ' + "9" * 5000 + "}",
    "number.toml": "dit = 'x'\nnetwork_dim = " + "9" * 5000,
    "infinite.json": '{"model_family": "wan", "learning_rate": Infinity, "max_train_steps": NaN}',
    "wide.sh": "python wan_train_network.py " + "--a " * 60_000,
    "lines.sh": "\\ " * 100_000 + "wan_train_network.py --task t2v-1.3B",
    "prefixes.toml": ".".join("a" * 12_000) + " = 1",
    "brackets.yaml": "[" * 500_000,
    "long.yaml": "- 1\n" * 150_000,
    "digits.toml": "dit = 'x'\nlr = 0x" + "f" * 100_000,
    "digits.json": '{"model_family": "wan", "lr": ' + "1" * 5000 + "}",
    "endless.json": '{"model_family": "wan", "max_train_steps": 1e999999}',
    "huge.toml": "dit = 'wan'\nmax_train_steps = 1e308\nnetwork_dim = 1e308",
    "comment.sh": "# as wan_train_network.py wants it\necho wan_train_network",
    "only_a_comment.sh": "# wan_train_network.py --dit x",
    "quotes.sh": "python wan_train_network.py '" + "a" * 70_000,
    "words.sh": "python wan_train_network.py --optimizer_args " + "a " * 25_000,
    "arguments.toml": "dit = 'x'\noptimizer_type = 'lion'\noptimizer_args = ['a=" + "(" * 2000 + "']",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_settings_are_refused_in_a_sentence_and_soon(routes: RouteServer, name: str) -> None:
    begun = time.monotonic()
    answer = routes.post("/import", {"files": {name: HOSTILE[name]}})
    assert time.monotonic() - begun < 20
    assert answer.status in (200, 409)
    assert_safe(answer)
    assert len(answer.data.get("error") or answer.data.get("reason") or "") < 1000
    assert routes.get("/runs").status == 200


def test_a_command_below_a_comment_about_it_is_found(routes: RouteServer) -> None:
    text = "# wan_train_network.py of musubi-tuner\n" + (JOBS / "musubi_command.sh").read_text(encoding="utf-8")
    assert routes.post("/import", {"files": {"a.sh": text}}).data["trainer"] == "musubi-tuner"


@pytest.mark.parametrize("raised", [StopIteration, SystemExit, KeyError, RecursionError, MemoryError, ArithmeticError])
def test_whatever_goes_wrong_is_answered(
    routes: RouteServer, pack_nodes: dict[str, Any], monkeypatch: pytest.MonkeyPatch, raised: type[BaseException]
) -> None:
    """A StopIteration in a thread was never answered, and a SystemExit ended the server."""

    def fail(_: object) -> None:
        raise raised("as a file made it")

    monkeypatch.setattr(our_module(pack_nodes, "routes.settings_files"), "read_texts", fail)
    answer = routes.post("/import", texts("musubi_command.sh"))
    assert (answer.status, answer.headers["x-content-type-options"]) == (500, "nosniff")
    assert answer.data["error"].startswith("This request failed because of a bug (")


@pytest.mark.parametrize(
    "text",
    [
        "# wan_train_network.py is started below\n#   accelerate launch wan_train_network.py --dit old.safetensors\n",
        'echo "starting wan_train_network.py --dit old.safetensors"\n',
    ],
)
def test_a_usual_script_is_answered_with_its_command(routes: RouteServer, text: str) -> None:
    command = 'DIT=/m/new.safetensors\npython wan_train_network.py --task t2v-1.3B --dit "$DIT"\n'
    said = routes.post("/import", {"files": {"a.sh": text + command}}).data
    loader = next(node for node in said["graph"]["nodes"] if node["type"] == "LoadWanModel")
    assert loader["widgets_values_named"]["diffusion_model"] == "new.safetensors"
    assert routes.post("/import", {"files": {"a.sh": text}}).data["known"] is False


@pytest.mark.parametrize("apart", [251, pytest.param(1, marks=pytest.mark.soak)])
def test_a_value_of_any_other_kind_is_answered(routes: RouteServer, apart: int) -> None:
    texts_of = islice(mutations(), 3, None, apart)
    seen: set[int] = set()
    for name, text in texts_of:
        answer = routes.post("/import", {"files": {name: text}})
        seen.add(answer.status)
        assert answer.status in (200, 409), (name, answer.data)
        assert len(answer.data.get("error") or answer.data.get("reason") or "") < 1200
    assert seen == {200, 409}
