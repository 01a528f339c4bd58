"""Foreign text in our messages: escaped, in one line, and nothing else changed."""

from __future__ import annotations

import io
import json
import logging
import subprocess
import sys
from pathlib import Path

import pytest

from wan_core.config import Config
from wan_core.errors import ConfigError, DatasetError, OutOfMemory, TrainingError, failure, in_a_new_run
from wan_core.events import Failed, Note, parse_event, to_line
from wan_core.export import workflow_metadata
from wan_core.files import atomic_write_json, read_json
from wan_core.lora import LoraConfig
from wan_core.words import (
    Sentence,
    filled,
    first_line,
    is_text,
    logger,
    plain,
    sentences_back,
    shortened,
    with_sentences,
)


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("two\nlines\r", "two\\nlines\\r"),
        ("\x1b[2J\x07\x9b", "\\x1b[2J\\x07\\x9b"),
        ("half of \ud83d", "half of \\ud83d"),
        ("\u202egpj.exe \u2066", "\\u202egpj.exe \\u2066"),
        ("\u2028\x85\x00", "\\u2028\\x85\\x00"),
        ("\U000e0041", "\\U000e0041"),  # a tag, which nothing shows
        ("é 名前 \U0001f469\u200d\U0001f467 \u0645\u06cc\u200c\u062e", None),
        ("C:\\new\\x1b 'a' \"b\"", None),
    ],
)
def test_what_is_not_seen_as_itself_is_escaped(text: str, seen: str | None) -> None:
    expected = text if seen is None else seen
    assert plain(text) == expected
    assert plain(expected) == expected


@pytest.mark.parametrize("kind", [ConfigError, DatasetError])
def test_every_refusal_can_be_printed_anywhere(kind: type[Exception]) -> None:
    assert str(kind("it says \ud83d\n\x1b[2J")) == "it says \\ud83d\\n\\x1b[2J"


def test_a_refusal_with_values_keeps_its_template() -> None:
    error = ConfigError("{name} is {value}. {fix} {other}", name="{value}", value=3, fix=ConfigError("Use {n}.", n=4))
    said = str(error)
    assert said == "{value} is 3. Use 4. {other}"
    assert isinstance(said, Sentence)
    assert (said.template, said.values["value"]) == ("{name} is {value}. {fix} {other}", "3")
    assert said.values["fix"].values == {"n": "4"}
    assert type(str(ConfigError("{name} is not there."))) is str
    assert str(TrainingError("{a}", a="\x1b")) == "\\x1b"


def test_templates_and_values_cross_json() -> None:
    helps = ["close other programs", in_a_new_run(filled("a rank below {rank}", rank=64))]
    said = failure(filled("The GPU ran out of memory{account}.", account=""), helps=helps, closing="Saved.")
    line = to_line(Failed(message=str(OutOfMemory(said)), kind="OutOfMemory", exit_code=4))
    assert "What helps most, in this order: close other programs; a rank below 64 (begins a new run). Saved." in line
    event = parse_event(line)
    assert isinstance(event, Failed)
    assert isinstance(event.message, Sentence)
    remedy = event.message.values["remedies"].values["helps"][1].values["remedy"]
    assert (remedy, remedy.template) == ("a rank below 64", "a rank below {rank}")
    assert to_line(event) == line
    assert with_sentences({"text": "plain"}) == {"text": "plain"}


@pytest.mark.parametrize(
    "known",
    [
        {"a b": {"template": "a {x}", "values": {"x": "other"}}},  # does not make the text
        {"a b": {"template": "{x}", "values": {"x": "a b"}}},  # holds itself
        {"a b": {"template": "a b"}},
        {"a b": 3},
        ["a b"],
        {f"{n}": {"template": "{x}", "values": {"x": f"{n + 1}"}} for n in range(5000)},
    ],
)
def test_sentences_that_somebody_wrote_into_a_file_are_texts(known: object) -> None:
    back = sentences_back({"text": "a b", "list": ["0", 1, None], "sentences": known})
    assert back == {"text": "a b", "list": ["0", 1, None]}
    assert not isinstance(back["text"], Sentence) or back["text"].values == {"x": "a b"}


def test_a_refusal_keeps_its_beginning_and_its_end() -> None:
    said = str(ConfigError(f"file {'x' * 9000} is no choice. Choose another."))
    assert len(said) < 1600
    assert said.startswith("file xxx")
    assert said.endswith("is no choice. Choose another.")
    assert shortened("abcdef", 6) == "abcdef"


def test_a_refusal_says_no_path_of_this_machine_as_its_type() -> None:
    assert f"{ConfigError.__module__}.{ConfigError.__qualname__}" == "wan_trainer.ConfigError"


def test_notes_are_one_line() -> None:
    assert Note(text="a\nb").text == "a\\nb"


def test_log_records_are_one_line_and_tracebacks_lines_of_their_own() -> None:
    stream = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors="strict")
    log, handler = logger("wan_core.of_a_test"), logging.StreamHandler(stream)
    log.addHandler(handler)
    log.propagate = False
    try:
        log.warning("run %s", "\ud83d\n[INFO] forged")
        try:
            raise ValueError("bad \ud83d\x1b[2J")
        except ValueError:
            log.exception("preview %s", "p")
    finally:
        log.removeHandler(handler)
    stream.flush()
    stream.seek(0)
    lines = stream.read().splitlines()
    assert lines[:3] == ["run \\ud83d\\n[INFO] forged", "preview p", "Traceback (most recent call last):"]
    assert lines[-1] == "ValueError: bad \\ud83d\\x1b[2J"


def test_the_command_line_says_a_bug_in_one_line(tmp_path: Path) -> None:
    """The log of a worker, and the terminal of whoever runs it by hand."""
    code = (
        "import wan_core.cli.commands as door\n"
        "class Loud(Exception):\n"
        "    def __str__(self): return 'bad \\n\\x1b[2J\\ud83d'\n"
        "def parser(): raise Loud()\n"
        "door._parser = parser\n"
        "raise SystemExit(door.main([]))\n"
    )
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "\x1b" not in done.stderr
    assert done.stderr.splitlines()[-1] == ("A bug: Loud: bad \\n\\x1b[2J\\ud83d. Please report it with the log.")
    assert json.loads(done.stdout)["kind"] == "Loud"


def test_half_of_a_character_in_settings_is_refused_by_their_name() -> None:
    broken = json.loads('{"targets": ["a", "\\ud83d"]}')
    with pytest.raises(ConfigError, match=r"lora\.targets\[1\] contains half a character"):
        LoraConfig.from_dict(broken, "lora")
    assert issubclass(LoraConfig, Config)


def test_a_graph_with_a_cut_emoji_is_kept_and_carried_as_it_is(tmp_path: Path) -> None:
    """Somebody's note must not cost a training run."""
    graph = {"nodes": [{"title": "wow \ud83d", "text": "名前 \\ud83d"}]}
    atomic_write_json(tmp_path / "workflow.json", graph)
    assert read_json(tmp_path / "workflow.json") == graph
    carried = workflow_metadata(tmp_path)["workflow"]
    assert is_text(carried)
    assert json.loads(carried) == graph


def test_of_an_error_its_first_line_is_said_or_its_type() -> None:
    assert first_line(RuntimeError("CUDA out of memory.\nmore lines")) == "CUDA out of memory."
    assert first_line(RuntimeError("x" * 999)) == "x" * 200
    full = OSError(28, "No space left on device", "/srv/output/wan_trainer/cat/samples/x.latent")
    assert first_line(full) == "No space left on device (x.latent)"
    assert first_line(OSError(28, "No space left on device")) == "No space left on device"
    assert first_line(OSError("short write")) == "short write"
    for silent in (RuntimeError(), MemoryError(""), RuntimeError("\n")):
        assert first_line(silent) == type(silent).__name__
