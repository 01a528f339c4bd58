"""A run pauses while its disk is full and goes on bit for bit; what others put into its folder harms nothing."""

from __future__ import annotations

import errno
import os
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import wan_core.files.writing as files
import wan_core.metrics.jsonl as jsonl
import wan_core.session.saving as saving
import wan_core.train.saves as saves
from tests.support.metrics_file import read_metrics
from tests.support.sessions import newest_files, of, train_here, warnings
from tests.support.tiny_run import TinyRun, make_run, short
from wan_core.control import SignalControl
from wan_core.events import CheckpointSaved, Event, Finished, Note
from wan_core.files import FileError
from wan_core.job.config import read_status
from wan_core.train import SaveStore

pytestmark = pytest.mark.lasts(0.3)

posix = pytest.mark.skipif(os.name == "nt", reason="needs POSIX files, which Windows does not have")
SETTINGS = short(steps=4, eval_items=0, save_dtype="fp32")


class FullDisk:
    """`saves._write` of `times` calls fails as on a full disk, from the first save on, or with each of `numbers`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, times: int, *numbers: int) -> None:
        self.left = times
        real, numbers = saves._write, numbers or (errno.ENOSPC,)

        def write(path: Path, data: bytes, run: Path) -> str:
            if self.left:
                number = numbers[self.left % len(numbers)]
                self.left -= 1
                path.write_bytes(data[: len(data) // 3])  # torn, as a full disk leaves it
                raise OSError(number, os.strerror(number), str(path))
            return real(path, data, run)

        monkeypatch.setattr(saves, "_write", write)
        monkeypatch.setattr(saving, "_RETRY_SAVE_S", 0.001)


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> TinyRun:
    """A run on a disk with room."""
    run = make_run(tmp_path_factory.mktemp("straight"), train=SETTINGS)
    train_here(run)
    return run


@pytest.mark.lasts(1)
@pytest.mark.parametrize("times", [*(pytest.param(times, marks=pytest.mark.soak) for times in (1, 2, 3)), 7])
def test_a_full_disk_pauses_the_run_which_goes_on_when_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, straight: TinyRun, times: int
) -> None:
    run = make_run(tmp_path, train=SETTINGS)
    FullDisk(monkeypatch, times)
    events = train_here(run)
    notes = warnings(events)
    assert len(notes) == times
    assert notes[0].startswith("Step 2 cannot be saved (No space left on device: tiny has")
    assert [e.step for e in of(events, CheckpointSaved)] == [2, 4]
    assert newest_files(run) == newest_files(straight)
    assert sorted(os.listdir(run.directory / "saves")) == ["step-000002", "step-000004"]


def test_a_folder_that_takes_nothing_for_a_while_pauses_the_run_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twice for each reason, one after another."""
    numbers = (errno.EACCES, errno.EPERM, errno.EBUSY, errno.EROFS, errno.EDQUOT, errno.ENOENT)
    run = make_run(tmp_path, train=SETTINGS)
    FullDisk(monkeypatch, 2 * len(numbers), *numbers)
    events = train_here(run)
    notes = [e.text for e in of(events, Note)]
    assert [sum(os.strerror(number) in text for text in notes) for number in numbers] == [2] * len(numbers)
    assert [e.step for e in of(events, CheckpointSaved)] == [2, 4]


def test_saves_moved_away_while_running_are_written_anew(tmp_path: Path) -> None:
    run = make_run(tmp_path, train=SETTINGS)

    def emit(event: Event) -> None:
        if isinstance(event, CheckpointSaved) and event.step == 2:
            (run.directory / "saves").rename(tmp_path / "elsewhere")

    train_here(run, emit=emit)
    assert SaveStore(run.directory).steps() == [4]
    assert read_status(run.directory).state == "done"


def test_a_disk_that_will_be_too_small_is_named_before_the_first_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run(tmp_path, train=SETTINGS)
    monkeypatch.setattr(saving.shutil, "disk_usage", lambda _folder: shutil._ntuple_diskusage(1000, 990, 10))
    events = train_here(run)
    texts = [e.text if isinstance(e, Note) else e.name for e in events]
    (warning,) = [text for text in texts if text.startswith("Only 0.0 GiB are free; two saved steps need about")]
    assert texts.index(warning) < texts.index("step")


@pytest.mark.parametrize("full_by", [errno.ENOSPC, errno.EDQUOT])  # of a quota the disk's free room says nothing
def test_a_disk_that_is_full_at_the_start_says_how_much_a_saved_step_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, full_by: int
) -> None:
    run = make_run(tmp_path, train=SETTINGS)

    def full(_directory: Path, _status: Any) -> None:
        raise OSError(full_by, os.strerror(full_by))

    monkeypatch.setattr(saving, "write_status", full)
    monkeypatch.setattr(saving.shutil, "disk_usage", lambda _folder: shutil._ntuple_diskusage(1000, 990, 10))
    # Rank 4, two blocks: eight linears of 128 x 128 and two of 128 x 256 each, 16 bytes for every value.
    takes = 16 * 4 * 2 * (8 * 256 + 2 * 384) / 2**20
    with pytest.raises(
        FileError,
        match=rf"disk of run tiny is full \({os.strerror(full_by)}\): 0\.0 MiB .* needs {takes:.1f} MiB\. Free disk",
    ):
        train_here(run)


def test_a_run_that_waits_for_room_can_be_stopped_and_keeps_what_it_had(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run(tmp_path, train=SETTINGS)
    train_here(run, max_steps=2)
    disk = FullDisk(monkeypatch, 1000)
    stop = SignalControl(signals=False)
    monkeypatch.setattr(stop, "stop_reason", lambda: "stopped by the user" if disk.left < 998 else "")
    (finished,) = of(train_here(run, stop), Finished)
    assert (finished.state, finished.step) == ("stopped", 2)
    reason = r"stopped by the user; step 4 could not be saved \(No space left on device: tiny has [\d.]+ .iB free, a"
    assert re.match(reason + r" saved step takes [\d.]+ MiB\)$", finished.result["reason"])
    latest = SaveStore(run.directory).latest()
    assert latest is not None
    assert latest.step == 2
    assert read_status(run.directory).state == "stopped"
    disk.left = 0
    train_here(run)
    assert read_status(run.directory).state == "done"


def test_an_error_of_the_disk_that_waiting_cannot_mend_ends_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run(tmp_path, train=SETTINGS)
    FullDisk(monkeypatch, 1000, errno.EIO)
    with pytest.raises(OSError, match="Input/output error"):
        train_here(run)
    assert read_status(run.directory).state == "failed"


def test_a_status_file_that_cannot_be_written_while_the_disk_is_full_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run(tmp_path, train=SETTINGS)
    real, left = saving.write_status, [3]

    def full(directory: Path, status: Any) -> None:
        if status.step and left[0]:
            left[0] -= 1
            raise OSError(errno.ENOSPC, "No space left on device")
        real(directory, status)

    monkeypatch.setattr(saving, "write_status", full)
    monkeypatch.setattr(saving, "_RETRY_SAVE_S", 0.001)
    events = train_here(run)
    assert [e.step for e in of(events, CheckpointSaved)] == [2, 4]
    assert read_status(run.directory).state == "done"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full, the disk that is always full")
def test_a_metrics_file_on_a_full_disk_costs_lines_and_not_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run(tmp_path, train=SETTINGS)
    (run.directory / "metrics.jsonl").touch()
    monkeypatch.setattr(jsonl, "open_append", lambda _path: open("/dev/full", "ab", buffering=0))  # noqa: SIM115  closed by the sink
    train_here(run)
    assert read_status(run.directory).state == "done"
    assert SaveStore(run.directory).steps() == [2, 4]


def test_a_torn_last_line_of_the_metrics_costs_that_line_only(tmp_path: Path) -> None:
    run = make_run(tmp_path, train=SETTINGS)
    train_here(run, max_steps=2)
    metrics = run.directory / "metrics.jsonl"
    metrics.write_bytes(metrics.read_bytes() + b'{"event": "step", "step": 3, "lo\xff')
    assert [m["step"] for m in read_metrics(metrics) if m["event"] == "step"] == [1, 2]
    train_here(run)
    assert [m["step"] for m in read_metrics(metrics) if m["event"] == "step"] == [1, 2, 3, 4]
    assert len({m["loss"] for m in read_metrics(metrics) if m["event"] == "step"}) == 4


def test_a_session_says_where_damaged_steps_lie_that_nobody_deletes(tmp_path: Path) -> None:
    run = make_run(tmp_path, train=SETTINGS)
    aside = run.directory / "saves" / ".step-000002.damaged.1"
    aside.mkdir(parents=True)
    (aside / "lora.safetensors").write_bytes(bytes(3 << 20))
    notes = [event.text for event in train_here(run) if isinstance(event, Note) and "damaged" in event.text]
    assert notes == [
        "1 damaged saved step of tiny (3.0 MiB) was moved aside in its folder saves (.step-000002.damaged.1). Nothing "
        "reads them; delete them if you need the space."
    ]
    assert (aside / "lora.safetensors").stat().st_size == 3 << 20


@posix
def test_what_killed_writes_left_in_a_run_goes_when_it_is_trained_again(tmp_path: Path) -> None:
    run = make_run(tmp_path, train=replace(SETTINGS, steps=1))
    old, young = (f".status.json.{digit * 16}.partial" for digit in "0a")
    places = [run.directory, run.directory / "saves", run.directory / "samples"]
    for place in places:
        place.mkdir(exist_ok=True)
        for name in (old, young):
            (place / name).write_bytes(b"half")
        os.utime(place / old, (0, 0))
    train_here(run)
    assert [[(place / name).exists() for name in (old, young)] for place in places] == 3 * [[False, True]]


@posix
def test_a_run_that_was_copied_by_hard_links_trains_and_the_copy_stays_as_it_was(tmp_path: Path) -> None:
    """`cp -al`, and programs that make one file of two with the same bytes."""
    run = make_run(tmp_path, train=replace(SETTINGS, steps=2))
    train_here(run)
    copy = tmp_path / "copy"
    shutil.copytree(run.directory, copy, copy_function=os.link)
    before = {path: path.read_bytes() for path in copy.rglob("*") if path.is_file()}
    files.atomic_write_json(run.directory / "run.json", replace(run.config, train=SETTINGS).to_dict())
    train_here(run)
    assert read_status(run.directory).step == 4
    assert {path: path.read_bytes() for path in copy.rglob("*") if path.is_file()} == before
    assert (run.directory / "metrics.jsonl").read_bytes().startswith(before[copy / "metrics.jsonl"])


@posix
@pytest.mark.parametrize(
    ("name", "kind"),
    [("metrics.jsonl", "link"), ("metrics.jsonl", "fifo"), ("saves", "link"),
     ("samples", "link"), ("saves", "dangling link"), (".lock", "fifo")],
)  # fmt: skip
def test_a_strangers_run_folder_writes_nothing_outside_and_hangs_nobody(tmp_path: Path, name: str, kind: str) -> None:
    run = make_run(tmp_path, train=SETTINGS)
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "metrics.jsonl").write_text("someone's")
    target = {"saves": outside, "samples": outside}.get(name, outside / "metrics.jsonl")
    (run.directory / name).unlink(missing_ok=True)
    if kind == "fifo":
        os.mkfifo(run.directory / name)
    else:
        (run.directory / name).symlink_to(target if kind == "link" else tmp_path / "absent")
    with pytest.raises(FileError, match=rf"{re.escape(name)} is a link or (no|a) "):
        train_here(run)
    assert os.listdir(outside) == ["metrics.jsonl"]
    assert (outside / "metrics.jsonl").read_text() == "someone's"
    assert not (tmp_path / "absent").exists()
