"""The self-test goes on after whatever fails, names it, and holds nothing private."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import pytest

from tests.support.forked import RunCommand
from wan_core.selftest import FAILED, Finding, as_text, check_machine, findings
from wan_core.selftest.findings import OK
from wan_core.selftest.machine import libraries


def test_whatever_fails_is_named_without_paths_and_the_next_thing_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    places: list[Path] = []

    def breaks(place: Path) -> str:
        places.append(place)
        assert not list(place.iterdir())
        raise OSError(f"{place}/clip.mp4: codec not found, nor D:\\models\\b.dll")

    tried = (("video", breaks), ("system", lambda _place: "Linux"))
    monkeypatch.setattr(findings, "_TRIED", tried)
    heard: list[Finding] = []
    found = check_machine(heard.append)
    assert heard == found
    assert [(one.state, one.said) for one in found] == [
        (FAILED, "OSError: [path]: codec not found, nor [path]"), (OK, "Linux"),
    ]  # fmt: skip
    assert as_text(found[0]).startswith("FAILED  video ")
    assert not places[0].exists(), "nothing is left behind"


def test_packages_that_a_report_is_asked_about_are_named_here_or_absent(tmp_path: Path) -> None:
    said = libraries(tmp_path)
    assert [name for name in ("peft", "torchao", "pytorch-optimizer", "triton", "flash-attn") if name not in said] == []


@pytest.mark.soak
def test_a_tiny_model_is_trained_end_to_end_by_one_command(wan_core_command: RunCommand) -> None:
    done = wan_core_command("check")
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    assert facts["failed"] == []
    assert "resumed half-way" in facts["findings"]["training"]["said"]
    assert "fp8_e4m3fn" in facts["findings"]["fp8 training"]["said"]
    assert "everything that a run needs works" in done.stderr
    assert sum(one["seconds"] for one in facts["findings"].values()) < 60, "a minute is the promise"
    assert not any(
        word in done.stdout + done.stderr for word in (tempfile.gettempdir(), "site-packages", str(Path.home()))
    )
