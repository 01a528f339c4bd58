"""Whatever stands in a file of settings, reading it ends in a graph or in a sentence, never in a bare exception."""

from __future__ import annotations

import argparse
import io
import json
import time
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path

import pytest

from tests.support.mutated import damaged, mutations, sources
from tests.support.scripts import BATCH, PAIRS, POWERSHELL, SHELL
from wan_core.cli.new import add_import_command
from wan_core.errors import ExitCode, WanTrainerError
from wan_core.migrate import api_graph, canvas_graph, read_job, read_texts

SCRIPTS = {
    "shell.sh": SHELL,
    "batch.bat": BATCH,
    "power.ps1": POWERSHELL,
    "notes.txt": f"Here's what I ran:\n{SHELL}\n```\n{BATCH}```",
    **{f"pair_{name}": text for name, text in PAIRS.items()},
}


def answers_of(texts: Iterable[tuple[str, str]]) -> Iterator[str]:
    """What came of each: a sentence, or nothing where it is a graph."""
    for name, text in texts:
        try:
            job, _ = read_texts({name: text})
            said = json.dumps([api_graph(job), canvas_graph(job)])[:0]
        except WanTrainerError as error:
            said = str(error)
        except BaseException as error:
            raise AssertionError(f"{type(error).__name__} of {name}:\n{text}") from error
        assert not said or 10 < len(said) < 1200, name
        yield said


def test_damaged_settings_end_in_an_answer() -> None:
    answers = list(answers_of(damaged({**sources(), **SCRIPTS}, 150)))
    assert 20 < sum(map(bool, answers)) < 130, "some are still settings, and some are not"


def test_damaged_scripts_end_in_an_answer() -> None:
    answers = list(answers_of(damaged(SCRIPTS, 300, seed=1)))
    assert 20 < sum(map(bool, answers)) < 280


@pytest.fixture(scope="module")
def changed() -> list[tuple[str, str]]:
    """A hundredth of them; to make all takes longer than to read these."""
    return list(islice(mutations(), 0, None, 97))


@pytest.mark.lasts(1)
def test_a_value_of_any_other_kind_ends_in_an_answer(changed: list[tuple[str, str]]) -> None:
    answers = list(answers_of(changed))
    assert len(answers) > 60
    assert 10 < sum(map(bool, answers)) < len(answers) - 10


@pytest.mark.lasts(1)
@pytest.mark.parametrize("apart", [4, pytest.param(0, marks=pytest.mark.soak)])
def test_the_command_line_says_it_in_a_sentence(tmp_path: Path, changed: list[tuple[str, str]], apart: int) -> None:
    parser = argparse.ArgumentParser()
    commands = parser.add_subparsers()
    add_import_command(lambda name, run, text: _with(commands.add_parser(name, help=text), run))
    codes: set[str] = set()
    for name, text in changed[1::apart] if apart else mutations():
        (tmp_path / name).write_text(text, encoding="utf-8")
        options = parser.parse_args(["import", str(tmp_path / name), "--clips", "5"])
        try:
            codes.add(str(options.run(options, print, io.BytesIO())))
        except WanTrainerError as error:  # anything else is "A bug" there
            codes.add(str(error.exit_code))
    assert codes == {str(ExitCode.DONE), str(ExitCode.BAD_INPUT)}


def _with(parser: argparse.ArgumentParser, run: object) -> argparse.ArgumentParser:
    parser.set_defaults(run=run)
    return parser


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(20))
def test_thousands_of_damaged_settings_end_in_an_answer(seed: int) -> None:
    assert any(answers_of(damaged({**sources(), **SCRIPTS}, 2500, seed=1000 + seed)))


@pytest.mark.soak
def test_every_value_of_every_other_kind_ends_in_an_answer() -> None:
    answers = list(answers_of(mutations()))
    assert len(answers) > 5000
    assert sum(map(bool, answers)) > 500


@pytest.mark.lasts(1)
def test_the_cost_of_a_script_grows_with_its_length() -> None:
    """Ten times the letters take about ten times the time, of every language and of what makes regexes slow."""
    hard = {
        "a.sh": "A=$B$(C)${D:-x}'e' \"f\" \\\n",
        "b.sh": "'\" $( ",
        "c.sh": "${A:-",
        "a.bat": 'set "A=%B%" & if x==y (echo ^) %C%\n',
        "a.ps1": "$a = @(\"x\", $b, 'c') + $d; & e @f `\n",
        "b.ps1": '$( " @{ ',
        "d.sh": "{a[",
        "e.sh": "a",
        "b.bat": "set ",
        "c.bat": "goto    if not defined a   (  ",
        "a.py": "a = [b, 'c'] + d\n",
        "a.txt": "\\ \\\n ^ ` # ",
    }
    for name, piece in hard.items():
        spent: list[float] = []
        for length in (10_000, 100_000):
            text = piece * (length // len(piece)) + "\npython wan_train_network.py --dit x\n"
            begun = time.process_time()
            list(answers_of([(name, text)]))
            spent.append(time.process_time() - begun)
        assert spent[1] < 40 * max(spent[0], 0.02), (name, spent)


def test_a_file_that_is_read_from_disk_says_it_too(tmp_path: Path) -> None:
    (tmp_path / "a.sh").write_bytes(b"python wan_train_network.py --dit \xff\xfe x\n")
    with pytest.raises(WanTrainerError):
        read_job(tmp_path / "a.sh")
