"""A full disk in one sentence: which folder, how much is free, what the run still takes."""

from __future__ import annotations

import errno
import re
from dataclasses import replace
from pathlib import Path

import pytest

import wan_core.files.writing as files
from wan_core.files import atomic_write_bytes
from wan_core.job import DataConfig, RunConfig, disk_sentence
from wan_core.load import ModelPlan
from wan_core.train import TrainConfig


def test_a_file_that_finds_no_room_is_named_with_its_folder_and_what_is_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")  # as a write says it: without a name

    monkeypatch.setattr(files.os, "fsync", full)
    with pytest.raises(OSError, match="No space left on device") as refusal:
        atomic_write_bytes(tmp_path / "status.json", b"new")
    said = disk_sentence(refusal.value)
    drive = next(str(place) for place in tmp_path.resolve().parents if place.is_mount())
    assert re.fullmatch(
        rf"The drive {re.escape(drive)}, which holds folder {tmp_path.name}, is too full to write status\.json: "
        r"[\d.]+ .iB are free\. Free disk space on it\. .*",
        said,
    )
    for step, size in ((999_999, 1), (1_000_000, 3 << 20)):
        (tmp_path / "saves" / f"step-{step:06d}").mkdir(parents=True)
        (tmp_path / "saves" / f"step-{step:06d}" / "lora.safetensors").write_bytes(bytes(size))
    (tmp_path / "saves" / ".step-2000000.partial").mkdir()
    for name in ("status.json", "saves/.step-2000000.partial/lora.safetensors"):
        said = disk_sentence(OSError(errno.ENOSPC, "No space left on device", str(tmp_path / name)))
        assert " has too little free space: the next save needs about 3.0 MiB, and " in said
        assert " are free. Free disk space on it. What helps most, in this order: delete runs" in said
        assert said.endswith("off that drive. Saved steps are kept; press Run again to resume.")
        assert "status.json" not in said, "a small file that finds no room is no news beside the save"


def test_a_full_disk_says_what_the_rest_of_the_run_takes(tmp_path: Path) -> None:
    run = tmp_path / "smoke"
    (run / "saves" / "step-000060").mkdir(parents=True)
    (run / "saves" / "step-000060" / "lora.safetensors").write_bytes(bytes(3 << 20))
    full = OSError(errno.ENOSPC, "No space left on device", str(run / "status.json"))
    for train, said in (
        (TrainConfig(steps=155), "about 3.0 MiB, all 5 to come 15.0 MiB, and "),
        (TrainConfig(steps=155, keep_last_saves=2), "about 3.0 MiB, all 2 to come 6.0 MiB, and "),
        (TrainConfig(steps=80), "about 3.0 MiB, and "),
    ):
        config = RunConfig(
            run_name="smoke",
            model=ModelPlan(base_file="diffusion_models:wan.safetensors"),
            data=DataConfig(fingerprint="0" * 64),
            train=replace(train, save_every_n_steps=20),
        )
        files.atomic_write_json(run / "run.json", config.to_dict())
        assert said in disk_sentence(full)


def test_a_full_disk_names_the_folder_as_comfyui_calls_it_and_nothing_above(tmp_path: Path) -> None:
    run = tmp_path / "output" / "wan_trainer" / "my_run"
    run.mkdir(parents=True)
    said = disk_sentence(OSError(errno.ENOSPC, "No space left on device", str(run / "status.json")))
    assert ", which holds folder output/wan_trainer/my_run, is too full" in said
    assert tmp_path.name not in said
