"""Settings as texts: what would hold the process is parsed by another, and what settings never hold is refused."""

from __future__ import annotations

import contextlib
import json
import struct
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.support.damages import damages
from wan_core import children
from wan_core.errors import DatasetError, DependencyError, WanTrainerError
from wan_core.parsers import parsed
from wan_core.parsers import process as process_module
from wan_core.parsers.documents import parsed_here

HONEST = {
    "toml": "[general]\nresolution = [960, 544]\n[[datasets]]\nvideo_directory = 'x'\nd = 2026-01-01\nf = 1e-4\n",
    "yaml": "config:\n  process:\n    - type: sd_trainer\n      steps: 1e-4\n      on: yes\n1: 2026-01-01\n",
    "json": '{"steps": 3000, "lr": 1e-4, "betas": [0.9, 0.999], "x": {"y": null}}',
}
HELD: list[tuple[str, str, str]] = [
    ("toml", ".".join("a" * 200_000) + " = 1", "takes more than 1 s to be read"),
    pytest.param("toml", "[" + ".".join("a" * 200_000) + "]", "takes more than 1 s to be read", marks=pytest.mark.soak),
    ("toml", "a = " + "[" * 100_000, "is not valid TOML"),
    pytest.param("toml", "a = " + "{a = " * 100_000, "is not valid TOML", marks=pytest.mark.soak),
    ("toml", "a = [" + "1," * 60_000 + "]", "holds more than 50,000 values|takes more than 1 s"),
    ("yaml", "[" * 1_000_000, "is not valid YAML"),
    pytest.param("yaml", "{a: " * 100_000, "is not valid YAML", marks=pytest.mark.soak),
    pytest.param("yaml", "- - " * 100_000 + "a", "is not valid YAML|takes more than", marks=pytest.mark.soak),
    pytest.param(
        "yaml", "a: " + ":".join(["1"] * 100_000), "more than 64 bits|takes more than 1 s", marks=pytest.mark.soak
    ),
    pytest.param(
        "yaml", "- 1\n" * 100_000, "holds more than 50,000 values|takes more than 1 s", marks=pytest.mark.soak
    ),
    ("yaml", "? " * 100_000, "is not valid YAML|takes more than"),
]
REFUSED = [
    *[("toml", f"a = {number}", "TOML|64 bits") for number in ("1" * 5000, "0x" + "f" * 5000, "0b" + "1" * 5000)],
    *[("yaml", f"a: {number}", "YAML|64 bits") for number in ("1" * 5000, "0x" + "f" * 5000, "0" + "7" * 5000)],
    *[("json", f'{{"a": {number}}}', "JSON|64 bits") for number in ("1" * 5000, "1" * 4000, "-" + "1" * 30)],
    ("json", "[" * 100_000, "is not valid JSON"),
    ("json", "[" * 50 + "]" * 50, "goes more than 40 levels deep"),
    ("json", "[" + "1," * 60_000 + "1]", "holds more than 50,000 values"),
    ("json", '{"' + "a" * 1001 + '": 1}', "has a key of 1,001 characters"),
    ("toml", "a" * 1001 + " = 1", "has a key of 1,001 characters"),
    ("yaml", "a: &a [1]\nb: *a\n", "holds YAML references"),
    ("yaml", "? [a, b]\n: 1\n", "is not valid YAML"),
    ("yaml", "a: 2026-13-45\n", "is not valid YAML"),
    ("yaml", "a: !!int x\n", "is not valid YAML"),
    ("yaml", "a: !!float ''\n", "is not valid YAML"),
    ("yaml", "a: !!timestamp x\n", "is not valid YAML"),
    ("yaml", "a: !!binary é\n", "is not valid YAML"),
    ("yaml", "a: !!pairs [1]\n", "is not valid YAML"),
    ("yaml", "<<: 1\n", "is not valid YAML"),
]


@pytest.mark.parametrize("kind", list(HONEST))
def test_what_settings_hold_is_what_json_can_hold(kind: str) -> None:
    expected: dict[str, Any] = {
        "toml": {
            "general": {"resolution": [960, 544]},
            "datasets": [{"video_directory": "x", "d": "2026-01-01", "f": 1e-4}],
        },
        "yaml": {
            "config": {"process": [{"type": "sd_trainer", "steps": "1e-4", "True": True}]},
            "1": "2026-01-01",
        },
        "json": {"steps": 3000, "lr": 1e-4, "betas": [0.9, 0.999], "x": {"y": None}},
    }
    assert parsed(kind, f"x.{kind}", HONEST[kind]) == expected[kind]


@pytest.mark.parametrize("kind", ["toml", "yaml"])
def test_a_long_text_is_read_by_another_process_and_means_the_same(kind: str) -> None:
    text = HONEST[kind].replace("\n", "\n# " + "a remark " * 2000 + "\n", 1)
    assert len(text) > process_module.SHORT_BYTES
    assert parsed(kind, f"x.{kind}", text) == parsed(kind, f"x.{kind}", HONEST[kind])


@pytest.mark.parametrize(("kind", "text", "sentence"), HELD)
def test_a_text_that_would_hold_the_process_does_not(
    kind: str, text: str, sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_module, "TEXT_S", 1.0)
    began = time.thread_time()
    with pytest.raises(DatasetError, match=rf"^x\.{kind} .*({sentence})"):
        parsed(kind, f"x.{kind}", text)
    assert time.thread_time() - began < 5


@pytest.mark.parametrize(("kind", "text", "sentence"), REFUSED)
def test_what_settings_never_hold_is_one_sentence(kind: str, text: str, sentence: str) -> None:
    with pytest.raises(DatasetError, match=rf"^x\.{kind} .*({sentence})"):
        parsed(kind, f"x.{kind}", text)


@pytest.mark.parametrize("kind", ["toml", "yaml"])
def test_the_dearest_short_texts_cost_little(kind: str) -> None:
    """What is as long as may be parsed here, of every sign that a parser waits on."""
    size = process_module.SHORT_BYTES - 20
    pieces = ("a.", "[", "{a = ", "{a: ", "- ", "a: ", "1:", "? ", "'", '"', "\\", "#", "\n", " ", "|\n ", "&a ", "!a ")
    for begins, piece in ((begins, piece) for begins in ("", "a = ", "a: ", "- ") for piece in pieces):
        began = time.thread_time()
        with contextlib.suppress(WanTrainerError):
            parsed_here(kind, "x", begins + piece * (size // len(piece)) + "a = 1")
        assert time.thread_time() - began < 5, (begins, piece)


@pytest.mark.parametrize("kind", list(HONEST))
def test_damage_is_a_sentence_or_a_document(kind: str) -> None:
    for damaged in damages(HONEST[kind].encode(), 300):
        try:
            assert parsed_here(kind, "x", damaged.decode("utf-8", "surrogateescape")) is not NotImplemented
        except WanTrainerError as error:
            said = str(error)
            assert said.startswith("x "), said


LONG = "a: 1\n#" + "a remark " * 2000


@pytest.mark.parametrize("program", ["", "/nonexistent/python"])
def test_a_process_that_cannot_be_started_is_a_sentence(program: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", program)
    with pytest.raises(DependencyError, match="cannot be started"):
        parsed("yaml", "started.yaml", LONG)


def test_a_process_that_somebody_ended_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same text a second time: what ended the first process may not have been the text."""

    class Ended(children.Child):
        def ask(self, header: dict[str, Any], payload: Any) -> None:
            self._process.kill()
            super().ask(header, payload)

    with monkeypatch.context() as patched:
        patched.setattr(process_module, "Child", Ended)
        with pytest.raises(DatasetError, match="it ends the process that reads it"):
            parsed("yaml", "ended.yaml", LONG)
    assert parsed("yaml", "ended.yaml", LONG) == {"a": 1}


@pytest.mark.parametrize("answer", [b"[]", b"{}", b"1", b"{", b"", None])
def test_an_answer_that_is_none_is_a_sentence(
    answer: bytes | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """None: one that promises more bytes than there is memory."""
    said = struct.pack(">IQ", 2, 1 << 62) + b"{}" if answer is None else struct.pack(">IQ", len(answer), 0) + answer
    ready = struct.pack(">IQ", 2, 0) + json.dumps({}).encode()
    launch = tmp_path / "launch.py"
    launch.write_text(f"import sys; sys.stdout.buffer.write({ready + said!r}); sys.stdout.flush(); sys.stdin.read(1)")
    monkeypatch.setattr(children, "_LAUNCH", launch)
    with pytest.raises(DatasetError, match="it ends the process that reads it"):
        parsed("yaml", "answer.yaml", LONG)
