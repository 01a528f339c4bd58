"""Published LoRAs where a folder cannot be written, or a file is in use: a run never fails for it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from comfy_server import ComfyServer
from graphs import TRAIN, run_of, training_graph
from route_server import RouteServer, our_module
from safetensors.torch import save

from wan_core.job import read_run
from wan_core.train import SaveStore

NAME = "cat.safetensors"


class Places:
    """The run cat, two folders that ComfyUI looks for LoRAs in, and files that are in use as Windows has it."""

    def __init__(self, routes: RouteServer, pack_nodes: dict[str, Any], patch: pytest.MonkeyPatch) -> None:
        self.publishing = our_module(pack_nodes, "runs.publish")
        self.run, self.store = routes.runs / "cat", SaveStore(routes.runs / "cat")
        self.job = read_run(self.run).job_id
        self.first, self.second = routes.loras.parent / "models", routes.loras.parent / "output_loras"
        self.second.mkdir()
        self.held: set[Path] = set()
        real = os.replace
        folders = self.publishing.folders

        def replace(source: Any, target: Any, **more: Any) -> None:
            if any(os.path.basename(target) == held.name and held.exists() for held in self.held):
                raise PermissionError(13, "Permission denied", str(target))
            real(source, target, **more)

        patch.setattr(os, "replace", replace)
        patch.setattr("time.sleep", lambda _seconds: None)
        patch.setattr(
            folders, "publish_folders", lambda: [place / "wan_trainer" for place in (self.first, self.second)]
        )

    def published(self, step: int) -> Any:
        state = {"lora.a": torch.ones(2)}
        lora = save({"a": step * torch.ones(2)}, {"wan_trainer.job_id": self.job})
        saved = self.store.commit(step, self.job, lora, state, {"step": step})
        return self.publishing.publish(self.run, saved)

    @property
    def names(self) -> list[str]:
        found = self.publishing.published(self.publishing.folders.publish_folder())
        return self.publishing.listed_names("cat", self.store.steps(), self.second / "wan_trainer", found)


@pytest.fixture
def places(routes: RouteServer, pack_nodes: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> Places:
    return Places(routes, pack_nodes, monkeypatch)


def in_folder(*names: str) -> list[str]:
    return [os.path.join("wan_trainer", name) for name in names]


def test_a_lora_in_use_stays_and_the_step_has_its_own_name_until_it_can_be_replaced(places: Places) -> None:
    places.first.mkdir()
    folder = places.first / "wan_trainer"
    assert places.published(6).names == {"": in_folder(NAME)[0]}
    old = (folder / NAME).read_bytes()
    places.held = {folder / NAME}
    found = places.published(8)
    assert found.names == {"": in_folder("cat_000008.safetensors")[0]}
    assert found.note == (
        "cat in wan_trainer could not be replaced and is still an older LoRA. The LoRA of step 8 is "
        f"{in_folder('cat_000008.safetensors')[0]}; press Run again when nothing uses the old file."
    )
    assert (folder / NAME).read_bytes() == old
    assert places.names[0] == in_folder("cat_000008.safetensors")[0], "nobody is sent to an older LoRA"
    assert places.publishing.name_now("cat", "", places.names) == places.names[0]
    assert places.publishing.step_in_use(places.run, places.publishing.published(folder), [""]) is None
    places.held = set()
    found = places.publishing.publish(places.run, places.store.read(8))
    assert (found.names, found.note) == ({"": in_folder(NAME)[0]}, "")
    assert (folder / NAME).read_bytes() == (folder / "cat_000008.safetensors").read_bytes()
    assert places.names[0] == in_folder(NAME)[0]
    assert sorted(file.suffix for file in folder.iterdir()) == [".safetensors"] * 3


@pytest.mark.parametrize("way", ["a file", "a dead link", "nothing"])
def test_the_first_folder_that_can_be_written_is_taken(places: Places, way: str) -> None:
    if way == "a file":
        places.first.write_text("in the way")
    elif way == "a dead link":
        places.first.symlink_to("/nowhere/at/all")
    found = places.published(6)
    assert found.names == {"": in_folder(NAME)[0]}
    assert (places.second / "wan_trainer" / NAME).is_file() == (way != "nothing")
    assert places.names == in_folder(NAME, "cat_000006.safetensors")


def test_an_older_file_in_a_folder_that_loaders_look_into_first_is_not_taken_for_the_new_one(
    places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    places.first.mkdir()
    places.published(6)
    monkeypatch.setattr(places.publishing.folders, "publish_folder", lambda: places.second / "wan_trainer")
    assert places.published(8).names == {"": in_folder("cat_000008.safetensors")[0]}
    assert places.names[0] == in_folder("cat_000008.safetensors")[0]


def test_where_nothing_can_be_written_it_is_one_sentence(places: Places) -> None:
    places.first.write_text("in the way")
    places.second.rmdir()
    places.second.write_text("in the way")
    with pytest.raises(
        Exception, match=r"The LoRA could not be put into models.wan_trainer .* It is safe in cat/saves"
    ):
        places.published(6)


@pytest.mark.soak
@pytest.mark.comfy
def test_a_graph_runs_to_its_end_where_models_loras_cannot_be_written(
    comfy_base: Callable[..., Path], own_comfy: Callable[..., ComfyServer]
) -> None:
    base = comfy_base("no_loras")
    (base / "models" / "loras").mkdir(parents=True, exist_ok=True)
    (base / "models" / "loras" / "wan_trainer").write_text("in the way")
    comfy = own_comfy(base)
    graph = {
        **training_graph("elsewhere", vae=["vae", 0]),
        "show": {"class_type": "ValidateVideo", "inputs": {"run": [TRAIN, 0], "vae": ["vae", 0]}},
    }
    run = run_of(comfy, comfy.run(graph))
    assert run["lora_name"] == os.path.join("wan_trainer", "elsewhere.safetensors")
    assert (comfy.output / "loras" / run["lora_name"]).is_file()
    assert "LoRAs go to output/loras, because models/loras cannot be written." in run["note"]
    assert "LoRAs go to output/loras, because models/loras cannot be written." in comfy.log_text()
