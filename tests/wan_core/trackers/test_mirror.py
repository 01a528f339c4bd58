"""A mirror has every saved step in the end, whatever failed on the way."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.forked import ForkServer
from tests.support.tiny_run import make_run
from wan_core.events import CheckpointSaved, Event, Finished, SampleReady
from wan_core.trackers.mirror import Gone, Mirror
from wan_core.trackers.settings import MirrorSettings
from wan_core.train import SaveStore


def test_a_step_whose_copy_failed_follows_with_the_next_one_and_in_a_later_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run(tmp_path)
    fsspec_local = pytest.importorskip("fsspec.implementations.local").LocalFileSystem
    there, down = tmp_path / "mirror" / run.directory.name, True
    opened = fsspec_local.open

    def put(self: Any, path: str, *args: Any, **kwargs: Any) -> Any:
        if down:
            raise OSError("the line is down")
        return opened(self, path, *args, **kwargs)

    monkeypatch.setattr(fsspec_local, "open", put)
    store = SaveStore(run.directory)

    def mirror() -> Mirror:
        made = Mirror(MirrorSettings(url=(tmp_path / "mirror").as_uri()), run.directory)
        made.begin()
        return made

    def saved(step: int) -> CheckpointSaved:
        folder = store.commit(step, run.config.job_id, b"lora", {"a": torch.zeros(1)}, {"step": step}).folder
        return CheckpointSaved(step=step, folder=f"saves/{folder.name}")

    def tell(mirror: Mirror, event: Event) -> None:
        mirror.take(event)

    first = mirror()
    with pytest.raises(OSError, match="the line is down"):
        tell(first, saved(2))
    with pytest.raises(OSError, match="the line is down"):
        tell(first, saved(4))
    down = False
    tell(first, saved(6))
    whole = ["step-000002", "step-000004", "step-000006"]
    assert sorted(path.parent.name for path in there.glob("*/manifest.json")) == whole

    down = True
    with pytest.raises(OSError, match="the line is down"):
        tell(first, saved(8))
    down = False
    copied = {path: path.stat().st_mtime_ns for path in there.glob("*/manifest.json")}
    tell(mirror(), Finished(state="done", step=8))
    assert sorted(path.parent.name for path in there.glob("*/manifest.json")) == [*whole, "step-000008"]
    assert copied == {path: path.stat().st_mtime_ns for path in copied}, "what is there is not copied again"


def test_a_step_of_another_run_of_that_name_is_not_taken_for_one_of_this(tmp_path: Path) -> None:
    pytest.importorskip("fsspec")
    run = make_run(tmp_path)
    there = tmp_path / "mirror" / run.directory.name
    for lora in (b"the first", b"another, of the same name"):
        shutil.rmtree(run.directory / "saves", ignore_errors=True)
        store = SaveStore(run.directory)
        folder = store.commit(2, run.config.job_id, lora, {"a": torch.zeros(1)}, {"step": 2}).folder
        mirror = Mirror(MirrorSettings(url=(tmp_path / "mirror").as_uri()), run.directory)
        mirror.begin()
        event = CheckpointSaved(step=2, folder=f"saves/{folder.name}")
        mirror.take(event)
        assert (there / folder.name / "lora.safetensors").read_bytes() == lora
        assert (there / folder.name / "manifest.json").read_bytes() == (folder / "manifest.json").read_bytes()


def test_previews_follow_each_once_and_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = make_run(tmp_path)
    fsspec_local = pytest.importorskip("fsspec.implementations.local").LocalFileSystem
    there, written = tmp_path / "mirror" / run.directory.name / "samples", list[str]()
    opened, cut = fsspec_local.open, ""

    def put(self: Any, path: str, mode: str = "rb", **kwargs: Any) -> Any:
        name = Path(path).name
        written.append(name)
        file = opened(self, path, mode, **kwargs)
        if name == cut:
            file.write(b"ha")
            file.close()
            raise OSError("the line is down")
        return file

    monkeypatch.setattr(fsspec_local, "open", put)
    mirror = Mirror(MirrorSettings(url=(tmp_path / "mirror").as_uri()), run.directory)
    mirror.begin()

    samples = run.directory / "samples"
    (samples / "validate-0123456789ab").mkdir(parents=True)
    secret = tmp_path / "secret.mp4"
    secret.write_bytes(b"secret")
    (samples / "linked.mp4").symlink_to(secret)
    for name in ("step-000002_p0.mp4", "step-000002_p0.latent", ".half.mp4", "index.json", "notes.txt"):
        (samples / name).write_bytes(name.encode())
    mirror.take(SampleReady(sample_id="step-000002_p0", step=2, file="samples/step-000002_p0.mp4"))
    assert sorted(file.name for file in there.iterdir()) == ["index.json", "step-000002_p0.mp4"]

    cut = "step-000004_p0.mp4"
    (samples / cut).write_bytes(b"clip of step 4")
    (samples / "validate-0123456789ab" / "grid-0.png").write_bytes(b"grid")
    with pytest.raises(OSError, match="the line is down"):
        mirror.take(SampleReady(sample_id="step-000004_p0", step=4, file=f"samples/{cut}"))
    assert (there / "step-000004_p0.mp4").read_bytes() == b"ha"
    cut = ""
    mirror.take(Finished(state="done", step=4))
    assert (there / "step-000004_p0.mp4").read_bytes() == b"clip of step 4"
    assert (there / "validate-0123456789ab" / "grid-0.png").read_bytes() == b"grid"
    clips = [name for name in written if name.endswith((".mp4", ".png"))]
    assert sorted(clips) == ["grid-0.png", "step-000002_p0.mp4", "step-000004_p0.mp4", "step-000004_p0.mp4"]


KILLED = """
import os, signal, sys
from pathlib import Path
from wan_core.events import CheckpointSaved
from wan_core.trackers import mirror
from wan_core.trackers.settings import MirrorSettings

copied, whole = [0], mirror.Mirror._put

def put(self, here, there):
    copied[0] += 1
    if copied[0] == int(sys.argv[3]):
        Path(there).write_bytes(b"half")
        os.kill(os.getpid(), signal.SIGKILL)
    return whole(self, here, there)

mirror.Mirror._put = put
made = mirror.Mirror(MirrorSettings(url=sys.argv[2]), Path(sys.argv[1]))
made.begin()
made.take(CheckpointSaved(step=2, folder="saves/step-000002"))
"""


@pytest.mark.skipif(os.name == "nt", reason="SIGKILL")
@pytest.mark.parametrize("file", [1, 2])
def test_a_step_whose_sender_was_killed_in_the_middle_is_complete_after_the_next_one(
    server: ForkServer, tmp_path: Path, file: int
) -> None:
    run, there = make_run(tmp_path), tmp_path / "mirror"
    store = SaveStore(run.directory)
    step = store.commit(2, run.config.job_id, bytes(range(256)) * 16, {"a": torch.zeros(1)}, {"step": 2}).folder
    script = tmp_path / "killed.py"
    script.write_text(KILLED)
    killed = server.run(script, str(run.directory), there.as_uri(), str(file))
    assert killed.returncode == -9, killed.stderr
    copy = there / run.directory.name / step.name
    assert not (copy / "manifest.json").exists() or (copy / "manifest.json").read_bytes() == b"half"
    later = Mirror(MirrorSettings(url=there.as_uri()), run.directory)
    later.begin()
    later.end()
    for name in ("lora.safetensors", "manifest.json"):
        assert (copy / name).read_bytes() == (step / name).read_bytes()


def test_a_step_that_was_pruned_first_is_named(tmp_path: Path) -> None:
    pytest.importorskip("fsspec")
    mirror = Mirror(MirrorSettings(url=(tmp_path / "mirror").as_uri()), make_run(tmp_path).directory)
    mirror.begin()
    with pytest.raises(Gone, match="step-000002 was pruned before it was copied"):
        mirror.take(CheckpointSaved(step=2, folder="saves/step-000002"))


def test_storage_that_is_no_folder_takes_the_same_files(tmp_path: Path) -> None:
    fsspec = pytest.importorskip("fsspec")
    run = make_run(tmp_path)
    step = SaveStore(run.directory).commit(2, run.config.job_id, b"lora", {"a": torch.zeros(1)}, {"step": 2}).folder
    mirror = Mirror(MirrorSettings(url="memory://bucket/loras", state=True), run.directory)
    mirror.begin()
    event = CheckpointSaved(step=2, folder=f"saves/{step.name}")
    mirror.take(event)
    memory, there = fsspec.filesystem("memory"), f"/bucket/loras/{run.directory.name}"
    for name in ("lora.safetensors", "state.safetensors", "manifest.json"):
        assert memory.cat_file(f"{there}/{step.name}/{name}") == (step / name).read_bytes()
    assert memory.cat_file(f"{there}/run.json") == (run.directory / "run.json").read_bytes()
    memory.rm("/bucket", recursive=True)
