"""Queues of a real ComfyUI whose disks are full: of the output, of the LoRAs, and of temporary files."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from comfy_server import ComfyServer
from graphs import run_of, steps_trained, training_graph

from tests.support.small_disk import SmallDisk, small_disk
from wan_core.files import is_partial

pytestmark = [pytest.mark.comfy, pytest.mark.soak, pytest.mark.lasts(120)]


def partials(folder: Path) -> list[str]:
    return [name for _, _, names in os.walk(folder) for name in names if is_partial(name)]


def refused(comfy: ComfyServer, name: str, disk: SmallDisk) -> str:
    """What a queue says that finds no room: a sentence, without a number of the system or a path of this machine; where
    the drive is mounted is said, though.
    """
    said = comfy.error(comfy.run(training_graph(name), check=False))
    print(said)  # noqa: T201
    assert said
    assert "Errno" not in said
    assert str(comfy.base) not in said.replace(f"The drive {disk.folder.resolve()},", "")
    return said


def test_an_output_disk_that_is_full_is_named_and_the_next_queue_has_the_same_name(
    own_comfy: Callable[..., ComfyServer],
) -> None:
    comfy = own_comfy()
    with small_disk(comfy.output, "4m") as disk:
        disk.fill()
        assert "CacheLatents: The cache folder output/wan_trainer/_cache cannot be written" in refused(
            comfy, "first", disk
        )
        disk.make_room()
        for _ in range(2):  # after the second one the cache is known to be whole
            assert run_of(comfy, comfy.run(training_graph("first")))["run"] == "first"
        disk.fill()
        assert "TrainLoRA: The drive" in refused(comfy, "second", disk)
        assert not (comfy.output / "wan_trainer" / "second").exists()
        assert partials(comfy.output) == []
        disk.make_room()
        assert run_of(comfy, comfy.run(training_graph("second")))["run"] == "second"
        assert steps_trained(comfy, "second") == 4
        assert sorted(p.name for p in (comfy.output / "wan_trainer").glob("second*")) == ["second"]
        comfy.stop()


def test_a_lora_that_cannot_be_published_is_safe_in_its_run_and_the_old_one_stays(
    own_comfy: Callable[..., ComfyServer],
) -> None:
    comfy = own_comfy()
    loras = comfy.base / "models" / "loras"
    with small_disk(loras, "2m") as disk:
        run_of(comfy, comfy.run(training_graph("cat")))
        before = {p.name: p.read_bytes() for p in loras.rglob("*.safetensors")}
        assert "cat.safetensors" in before
        disk.fill()
        said = refused(comfy, "dog", disk)
        assert "The LoRA could not be put into loras/wan_trainer (The drive" in said
        assert "It is safe in dog/saves/step-000004" in said
        assert {p.name: p.read_bytes() for p in loras.rglob("*.safetensors")} == before
        assert partials(loras) == []
        disk.make_room()
        assert run_of(comfy, comfy.run(training_graph("dog")))["run"] == "dog"
        assert steps_trained(comfy, "dog") == 4, "it was not trained again"
        assert (loras / "wan_trainer" / "dog.safetensors").is_file()
        comfy.stop()


def test_a_full_disk_of_temporary_files_is_named(own_comfy: Callable[..., ComfyServer]) -> None:
    comfy = own_comfy()
    with small_disk(comfy.base / "temp", "1m") as disk:
        comfy.run(training_graph("first"))  # its clips need no temporary file any more
        disk.fill()
        said = refused(comfy, "cat", disk)
        assert "too full to write roots.json" in said
        disk.make_room()
        assert run_of(comfy, comfy.run(training_graph("cat")))["run"] == "cat"
        comfy.stop()
