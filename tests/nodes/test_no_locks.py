"""A ComfyUI whose output lies on a file system without locks, syncs of folders and maps: Cancel, and Run again."""

from __future__ import annotations

import errno
from collections.abc import Callable

import pytest
from comfy_server import ComfyServer
from graphs import folder_of, run_of, training_graph
from test_cancel import TRAINING, assert_nothing_runs, cancel_when

from tests.support.refusing import environment, missing
from wan_core.train import SaveStore

pytestmark = [pytest.mark.comfy, pytest.mark.soak, pytest.mark.skipif(bool(missing()), reason=missing())]


def test_a_run_is_cancelled_and_goes_on(own_comfy: Callable[..., ComfyServer], comfy_base: Callable) -> None:
    base = comfy_base("no_locks")
    lacking = {"flock": errno.ENOTSUP, "fsync.folder": errno.EINVAL, "mmap": errno.ENODEV}
    server = own_comfy(base, env=environment(lacking, base / "output", base / "refused"))
    entry, _ = cancel_when(server, training_graph("bare", steps=400), TRAINING)
    assert server.error(entry) == "interrupted"
    assert_nothing_runs(server)
    saved = SaveStore(folder_of(server, "bare")).latest()
    assert saved is not None
    summaries = {run["id"]: run for run in server.get("/wan_trainer/runs")["runs"]}
    assert summaries["bare"]["state"] == "stopped"
    ended = run_of(server, server.run(training_graph("bare", steps=saved.step + 3)))
    assert ended["status"] == "done"
    assert (base / "refused").stat().st_size > 10, "the library was not loaded"
    log = (folder_of(server, "bare") / "log.txt").read_text(encoding="utf-8")
    assert log.count("has no file locks") == 2
    assert not list(folder_of(server, "bare").glob(".lock.*"))
