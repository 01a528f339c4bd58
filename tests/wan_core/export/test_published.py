"""The published LoRA is the saved one, and a file of another job is never lost."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save

from wan_core.export import publish_file


def lora_of(job_id: str, value: float = 0.0) -> bytes:
    return save({"lora.a": torch.full((300,), value)}, {"wan_trainer.job_id": job_id})


def publish(folder: Path, name: str, data: bytes, job_id: str) -> None:
    (folder / "saved").mkdir(exist_ok=True)
    source = folder / "saved" / "lora.safetensors"
    source.write_bytes(data)
    publish_file(source, folder / f"{name}.safetensors", job_id)


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.stem: path.read_bytes() for path in folder.glob("*.safetensors")}


def test_a_retrained_step_of_the_same_job_replaces_the_file(tmp_path: Path) -> None:
    old, new = lora_of("job", 1.0), lora_of("job", 2.0)
    assert len(old) == len(new)
    publish(tmp_path, "run", old, "job")
    publish(tmp_path, "run", new, "job")
    assert files_of(tmp_path) == {"run": new}


def test_a_damaged_body_under_a_good_header_is_mended(tmp_path: Path) -> None:
    whole = lora_of("job")
    publish(tmp_path, "run", whole[:-1] + b"\x7f", "job")
    publish(tmp_path, "run", whole, "job")
    assert files_of(tmp_path) == {"run": whole}


def test_a_file_that_is_current_is_not_written_again(tmp_path: Path) -> None:
    publish(tmp_path, "run", lora_of("job"), "job")
    before = (tmp_path / "run.safetensors").stat()
    publish(tmp_path, "run", lora_of("job"), "job")
    after = (tmp_path / "run.safetensors").stat()
    assert (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns)


@pytest.mark.parametrize(
    ("theirs", "kept"),
    [
        (lora_of("0123456789abcdef"), "run_01234567"),
        (lora_of("../../../../etc/x"), "run_etcx"),
        (b"somebody else's", "run_kept"),
    ],
)
def test_a_file_of_another_job_is_kept_under_a_name_of_its_own(tmp_path: Path, theirs: bytes, kept: str) -> None:
    (tmp_path / "run.safetensors").write_bytes(theirs)
    publish(tmp_path, "run", lora_of("job"), "job")
    assert files_of(tmp_path) == {"run": lora_of("job"), kept: theirs}


def test_a_run_called_like_a_step_of_another_loses_nothing_however_often_both_are_published(tmp_path: Path) -> None:
    step, run = lora_of("aaaa", 1.0), lora_of("bbbb", 2.0)
    for _ in range(3):
        publish(tmp_path, "my_lora_000250", step, "aaaa")  # step 250 of my_lora
        publish(tmp_path, "my_lora_000250", run, "bbbb")  # the newest of my_lora_000250
    assert files_of(tmp_path) == {
        "my_lora_000250": run,
        "my_lora_000250_aaaa": step,
        "my_lora_000250_bbbb": run,
    }


def test_two_versions_of_another_job_are_both_kept(tmp_path: Path) -> None:
    for value in (1.0, 2.0):
        (tmp_path / "run.safetensors").write_bytes(lora_of("theirs", value))
        publish(tmp_path, "run", lora_of("job"), "job")
    assert files_of(tmp_path) == {
        "run": lora_of("job"),
        "run_theirs": lora_of("theirs", 1.0),
        "run_theirs_1": lora_of("theirs", 2.0),
    }
