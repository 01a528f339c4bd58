"""Names of runs: letters of any script, and nothing that some system cannot have, or a reader cannot tell apart."""

from __future__ import annotations

import os
import subprocess
import sys
import unicodedata
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.tiny_run import make_run
from wan_core.errors import ConfigError
from wan_core.files import name_key, safe_name, with_safe_letters
from wan_core.job import RunDecision, choose_run, foresee, prepare_run

pytestmark = pytest.mark.lasts(0.1)

CHARACTER = "must not have {} in it. Use letters and digits of any script"
START, END, DEVICE = (
    "must start with a letter or digit",
    "must not end with a dot or space",
    "keeps that name for a device",
)
HOSTILE = {
    "": "Write one with a letter or digit",
    **{name: START for name in (" ", ".", "..", "...", " a", ".hidden", "-rf", "_x", "(x)")},
    **{name: START for name in ("\u0301a", "\u0e48x")},  # a mark alone would stand on what is before it
    **{name: END for name in ("a.", "a ", "v1.", "動 ", "動.")},
    **{name: "two dots in a row" for name in ("a..b", "動..画")},
    **{name: DEVICE for name in ("CON", "con", "con.txt", "nul", "NUL.safetensors", "PRN", "aux", "COM1", "com9.x")},
    **{name: DEVICE for name in ("lpt1", "CON .txt", "com¹", "LPT³.v2")},
    **{
        name: CHARACTER.format(repr(letter) if letter in "🐈：／" else ascii(letter))
        for name, letter in (
            ("../a", "/"), ("..\\a", "\\"), ("a/b", "/"), ("/etc/passwd", "/"), ("C:\\x", ":"), ("a:b", ":"),
            ("\\\\server\\share", "\\"), ("file:///x", ":"), ("a*b", "*"), ("a?b", "?"), ('a"b', '"'), ("a<b", "<"),
            ("a>b", ">"), ("a|b", "|"), ("a\0b", "\0"), ("a\nb", "\n"), ("a\n", "\n"), ("\na", "\n"), ("a\rb", "\r"),
            ("a\tb", "\t"), ("a\x1b[31m", "\x1b"), ("a\x7f", "\x7f"), ("~", "~"), ("$HOME", "$"), ("%TEMP%", "%"),
            ("a;b", ";"), ("a`b", "`"), ("a'b", "'"), ("a&b", "&"), ("[x]", "["),
            ("\u202egpj.exe", "\u202e"), ("a\u2066b", "\u2066"), ("\ufeffa", "\ufeff"), ("a\u200bb", "\u200b"),
            ("a\u2028b", "\u2028"), ("\ud800", "\ud800"), ("a\u00adb", "\u00ad"), ("動\u3164画", "\u3164"),
            ("a\ufe0fb", "\ufe0f"), ("a\U000e0101b", "\U000e0101"), ("a\u034fb", "\u034f"), ("a\u3000b", "\u3000"),
            ("猫🐈", "🐈"), ("a：b", "："), ("a／b", "／"), ("a\ue000", "\ue000"),
        )
    },
    "x" * 101: "It has 101 characters. Use at most 100.",
    "動" * 60: "It has 60 characters. Use at most 56.",
}  # fmt: skip
GOOD = ["a", "x" * 100, "my run 2", "v1.2-final_b", "0", "console", "null", "com10x", "A.b.c"]
GOOD += [
    "动漫风格",
    "größe",
    "Алиса_v1",
    "étude",
    "lora (final)",
    "alice+bob",
    "고양이 3",
    "हिन्दी",
    "สวัสดี",
    "عربي",
    "תמונה",
]
GOOD += ["ﬁ", "１", "名前", "動" * 56, "ß" * 85]


@pytest.mark.parametrize("name", HOSTILE, ids=ascii)
def test_a_hostile_name_is_refused_with_the_setting_and_the_rule(name: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        safe_name(name, "run_name")
    said = str(refusal.value)
    assert said.startswith("run_name ")
    assert " cannot be a file name. " in said
    assert HOSTILE[name] in said
    assert said.isprintable()


@pytest.mark.parametrize("name", GOOD)
def test_a_name_in_letters_of_any_script_is_kept_and_can_be_a_file(tmp_path: Path, name: str) -> None:
    assert safe_name(name, "run_name") == name
    longest = f".{name[:95]}_002_high_noise_10000000.safetensors.0123456789abcdef.partial"
    (tmp_path / longest).touch()
    assert len(longest.encode()) <= 255


def test_a_name_is_composed_so_that_it_is_spelled_in_one_way() -> None:
    assert safe_name(unicodedata.normalize("NFD", "größe é"), "run_name") == "größe é"


def test_names_that_some_system_takes_for_one_have_one_key() -> None:
    assert name_key("ALICE") == name_key("alice") == name_key("Ａlice")
    assert name_key("GRÖSSE") == name_key("größe") == name_key(unicodedata.normalize("NFD", "Größe"))
    assert name_key("Алиса") == name_key("АЛИСА")
    assert len({name_key(name) for name in ("alice", "alice_002", "алиса", "动漫", "動漫")}) == 5


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("动漫风格", "动漫风格"),
        ("größe", "größe"),
        ("Алиса_v1", "Алиса_v1"),
        ("a/b:c", "a_b_c"),
        ("..hidden..", "hidden"),
        ("con", ""),
        ("🐈", ""),
        ("動" * 200, "動" * 40),
        ("a..b", "a__b"),
    ],
)
def test_a_name_of_another_trainer_keeps_its_letters(theirs: str, ours: str) -> None:
    assert with_safe_letters(theirs) == ours


def test_a_python_that_writes_ascii_alone_says_so() -> None:
    code = "from wan_core.files import safe_name; safe_name('\\u52a8', 'run_name')"
    env = {"PATH": os.environ["PATH"], "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    said = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False).stderr
    if "ascii" in subprocess.run(
        [sys.executable, "-c", "import sys; print(sys.getfilesystemencoding())"],
        env=env, capture_output=True, text=True, check=True,
    ).stdout:  # fmt: skip
        assert "This Python writes file names in ASCII alone. Start it with PYTHONUTF8=1" in said


@pytest.mark.parametrize(("there", "asked"), [("Größe", "GRÖSSE"), ("动漫风格", "动漫风格"), ("Alice", "ALICE")])
def test_a_run_is_found_by_its_name_in_any_case_and_keeps_its_own_spelling(
    tmp_path: Path, there: str, asked: str
) -> None:
    run = make_run(tmp_path)
    runs = tmp_path / "named"
    first = replace(run.config, run_name=there)
    prepare_run(choose_run(runs, first), first)
    again = replace(run.config, run_name=asked)
    same, other = choose_run(runs, again), choose_run(runs, replace(again, train=replace(again.train, seed=7)))
    assert (same.directory.name, same.action) == (there, "resume")
    assert (other.directory.name, other.action) == (f"{there}_002", "start")
    assert ("is the same name" in same.note) == (there != asked) == ("is the same" in other.note)
    found = foresee(runs, again)
    assert found is not None
    assert (found.directory.name, found.new) == (there, f"{there}_002")


def test_a_folder_spelled_in_another_normal_form_is_the_run(tmp_path: Path) -> None:
    run, spelled = make_run(tmp_path), unicodedata.normalize("NFD", "größe")
    runs = tmp_path / "named"
    first = replace(run.config, run_name="größe")
    prepare_run(choose_run(runs, first), first)
    (runs / "größe").rename(runs / spelled)  # as a copy from a Mac
    decision = choose_run(runs, first)
    assert (decision.directory.name, decision.action) == (spelled, "resume")
    assert prepare_run(decision, first).run_name == "größe"


def test_runs_of_before_that_differ_by_case_alone_stay_two(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    runs = tmp_path / "named"
    for name in ("Alice", "ALICE"):
        if not (runs / name).exists():
            prepare_run(RunDecision(runs / name, "start", "", run.config), run.config)
    if len(list(runs.iterdir())) == 2:  # a file system that tells them apart
        for name in ("Alice", "ALICE"):
            decision = choose_run(runs, replace(run.config, run_name=name))
            assert (decision.directory.name, "same name" in decision.note) == (name, False)


def test_a_name_that_leaves_no_room_for_what_is_put_behind_it_is_refused(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    for name, most in (("x" * 96, 95), ("動" * 56, 55)):
        with pytest.raises(ConfigError, match=f"It has {len(name)} characters. Use at most {most}"):
            choose_run(tmp_path / "none", replace(run.config, run_name=name))
