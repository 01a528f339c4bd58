"""A mirror has every saved step in the end, whatever failed on the way."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.tiny_run import make_run
from wan_core.events import CheckpointSaved, Event, Finished
from wan_core.trackers.mirror import Mirror
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
        mirror.keep(event)
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
