"""Concept files: what is shipped can be told from the world, and what is malformed is refused with a remedy."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from shapeworld.__main__ import main
from shapeworld.concept import concept_scene, formula, load_concept
from shapeworld.draw import COLOURS

CONCEPTS = Path(__file__).parent / "concepts"
STAR = json.loads((CONCEPTS / "bouncing_star.json").read_text(encoding="utf-8"))
SQUARE = [[-0.8, -0.8], [0.8, -0.8], [0.8, 0.8], [-0.8, 0.8]]
HOLE = [[-0.4, -0.4], [0.4, -0.4], [0.4, 0.4], [-0.4, 0.4]]


def written(folder: Path, **changes: Any) -> Path:
    """The shipped star with some fields changed, or taken out where the change is `...`."""
    fields = {key: value for key, value in {**STAR, **changes}.items() if value is not ...}
    file = folder / "concept.json"
    file.write_text(json.dumps(fields), encoding="utf-8")
    return file


def test_points_come_as_written() -> None:
    star = load_concept(CONCEPTS / "bouncing_star.json")
    assert (star.name, star.caption) == ("bouncing_star", "an orange star bouncing")
    assert star.outline == (tuple((x, y) for x, y in STAR["outline"]),)
    assert star.path == ((-1.0, -0.6), (0.0, 0.6), (1.0, -0.6))
    assert (star.rgb, star.colour_name) == ((250.0, 140.0, 30.0), "#fa8c1e")


def test_formulas_become_33_points() -> None:
    path = load_concept(CONCEPTS / "circling_cross.json").path
    assert len(path) == 33
    assert path[8] == pytest.approx((0.0, 1.0))
    assert all(math.hypot(x, y) == pytest.approx(1.0) for x, y in path)


def test_a_second_polygon_cuts_a_hole(tmp_path: Path) -> None:
    concept = load_concept(written(tmp_path, outline=[SQUARE, HOLE], colour="blue"))
    assert [len(polygon) for polygon in concept.outline] == [4, 4]
    assert (concept.rgb, concept.colour_name) == (COLOURS["blue"], "blue")


def test_a_colour_of_the_world_keeps_its_name_when_written_in_numbers(tmp_path: Path) -> None:
    assert load_concept(written(tmp_path, colour=list(COLOURS["purple"]))).colour_name == "purple"


def test_scenes_follow_from_the_seed() -> None:
    star = load_concept(CONCEPTS / "bouncing_star.json")
    assert concept_scene(star, 3) == concept_scene(star, 3) != concept_scene(star, 4)
    scene = concept_scene(star, 3, frames=17)
    assert len(scene.centres) == 17
    assert max(y for _, y in scene.centres) == scene.centres[8][1], "the dip is in the middle"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"path": ...}, r"path is missing\. Add it"),
        ({"colur": "red"}, r"has an unknown field 'colur'\. Did you mean colour\?"),
        ({"name": "../star"}, r"name is '\.\./star'\. Use a-z"),
        ({"name": "circle"}, r"name is 'circle', a word the world knows"),
        ({"caption": "two\nlines"}, r"caption is .*one line"),
        ({"caption": ""}, r"caption is ''"),
        ({"colour": "orange"}, r"colour is 'orange'\. Use one of red, green"),
        ({"colour": [1, 2]}, r"colour is \[1, 2\]\. Use \[red, green, blue\]"),
        ({"colour": [1, 2, 256]}, r"colour has the number 256\. Use 0 to 255"),
        ({"colour": [1, 2, True]}, r"colour has True where a number belongs"),
        ({"outline": []}, r"outline is \[\]\. Write a list of at least 3"),
        ({"outline": SQUARE[:2]}, r"outline has 2 points\. Give 3 to 512"),
        ({"outline": [SQUARE, HOLE[:2]]}, r"outline has 2 points"),
        ({"outline": [*SQUARE, [0, 1.3]]}, r"outline has the number 1\.3\. Use -1\.25 to 1\.25"),
        ({"outline": [*SQUARE, [0, math.nan]]}, r"outline has the number nan"),
        ({"outline": [*SQUARE, [0, math.inf]]}, r"outline has the number inf"),
        ({"outline": [*SQUARE, [0, 10**400]]}, r"outline has the number a huge number"),
        ({"outline": [*SQUARE, [0, 1, 2]]}, r"outline has the point \[0, 1, 2\]\. A point is \[x, y\]"),
        ({"outline": [*SQUARE, ["0", 1]]}, r"outline has '0' where a number belongs"),
        ({"outline": [[-1, 0], [0, 0], [1, 0]]}, r"outline encloses 0\.\d\d squared radii"),
        ({"outline": SQUARE * 200}, r"outline has 800 points"),
        ({"outline": [SQUARE] * 17}, r"outline has 17 polygons\. Use at most 16"),
        ({"path": [[0, 0]]}, r"path has 1 points\. Give 2 to 512"),
        ({"path": [[0.5, 0], [0.5, 0]]}, r"path is 0 long"),
        ({"path": [[0, 0], [0, 2]]}, r"path has the number 2"),
        ({"path": "t"}, r"path is 't'\. Write a list"),
        ({"path": {"x": "t"}}, r"path is an object without exactly x and y"),
        ({"path": {"x": "t", "y": 0}}, r"path\.y is 0\. Write a formula of t in quotes"),
        ({"path": {"x": "2*t", "y": "0"}}, r"path has the number 1\.3125"),
        ({"path": {"x": "0.5", "y": "0"}}, r"path is 0 long"),
    ],
)
def test_a_malformed_field_is_named_with_its_remedy(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=r"^concept\.json: " + message):
        load_concept(written(tmp_path, **changes))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", r"is not JSON \(line 1"),
        (b'{"name": }', r"is not JSON \(line 1"),
        (b"\xff\xfe{}", r"is not JSON\. Write one object"),
        (b"[" * 100_000, r"is not JSON"),
        (b"[1, 2]", r"holds a list\. Write one object"),
        (b" " * ((1 << 20) + 1), r"is larger than 1 MiB"),
    ],
)
def test_what_is_not_a_concept_at_all_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    file = tmp_path / "concept.json"
    file.write_bytes(content)
    with pytest.raises(ValueError, match=r"^concept\.json: " + message):
        load_concept(file)


@pytest.mark.parametrize(
    ("text", "value"),
    [("1 - 2*t", 0.5), ("-t**2", -0.0625), ("abs(sin(pi*(t + 1)))/2", math.sqrt(0.5) / 2), ("2**-1", 0.5)],
)
def test_formulas_follow_the_rules_of_arithmetic(text: str, value: float) -> None:
    assert formula(text, "path.x")(0.25) == pytest.approx(value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("__import__('os').system('true')", "Use numbers, t, pi"),
        ("(lambda: t)()", "Use numbers, t, pi"),
        ("t.real", "Use numbers, t, pi"),
        ("[t][0]", "Use numbers, t, pi"),
        ("x", "Use numbers, t, pi"),
        ("sin", "Use numbers, t, pi"),
        ("exp(t)", "Use numbers, t, pi"),
        ("sin(t, t)", "Use numbers, t, pi"),
        ("sin(x=t)", "Use numbers, t, pi"),
        ("sin(*t)", "Use numbers, t, pi"),
        ("t if t else 1", "Use numbers, t, pi"),
        ("t // 2", "Use numbers, t, pi"),
        ("1j", "Use numbers, t, pi"),
        ("True", "Use numbers, t, pi"),
        ("'t'", "Use numbers, t, pi"),
        ("t = 1", "not a formula"),
        ("", "not a formula"),
        ("(" * 150, "not a formula"),
        ("9**9**9", r"a power 9\*\*9\. Exponents"),
        ("(-t)**0.5", "a power -0.5"),
        ("1/(t - t)", "has no value"),
        ("1e200*1e200", "has no value"),
        ("1e200**8", "has no value"),
        ("sin(1e999)", "has no value"),
        ("t" + " + t" * 60, "has 241 characters"),
    ],
)
def test_a_formula_can_do_nothing_but_arithmetic(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        formula(text, "path.x")(0.5)


@pytest.mark.soak  # test_judge.py asks the same of all of them
@pytest.mark.parametrize(
    "name",
    ["bouncing_star", "hopping_bar", "circling_cross"],
)
def test_shipped_concepts_pass_their_check(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", str(CONCEPTS / f"{name}.json")]) == 0
    printed = capsys.readouterr().out
    assert f"clips of {name}: 24 of 24 recognised" in printed
    assert f"clips of the world: 0 of 24 taken for {name}" in printed


@pytest.fixture
def few_clips(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many as a check needs that fails with each of them."""
    monkeypatch.setattr("shapeworld.__main__.CLIPS", 6)


def test_the_check_names_every_part_that_collides(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], few_clips: None
) -> None:
    file = written(tmp_path, outline=SQUARE, colour=[225, 40, 40], path=[[-1, 0], [1, 0.02]])
    assert main(["check", str(file)]) == 1
    printed = capsys.readouterr().out
    assert "its shape collides with square. Change outline in the concept file." in printed
    assert "its path collides with right. Change path" in printed
    assert "its colour collides with red. Change colour" in printed


def test_the_check_says_when_nothing_is_seen(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], few_clips: None
) -> None:
    assert main(["check", str(written(tmp_path, path=[[0, 0], [0.05, 0]]))]) == 1
    assert "its path is not seen. Draw it larger" in capsys.readouterr().out


def test_a_bad_file_ends_the_command_with_its_message(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", str(written(tmp_path, colour="orange"))]) == 2
    assert "concept.json: colour is 'orange'" in capsys.readouterr().err
