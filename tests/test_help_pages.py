"""Every node has a help page: when to use it, every input and output, and what goes wrong."""

from __future__ import annotations

import json
import re
from pathlib import Path

import make_locales
import pytest

SCHEMAS = json.loads((make_locales.ROOT / "tests" / "nodes" / "schemas.json").read_text(encoding="utf-8"))
SECTIONS = ("When to use", "Inputs", "Outputs", "Good to know")
UNITS = {
    ("width", "INT"): "pixels",
    ("height", "INT"): "pixels",
    ("num_frames", "INT"): "Frames",
    ("force_rate", "FLOAT"): "Frames per second",
    ("fps", "FLOAT"): "Frames per second",
    ("cache_limit_gb", "FLOAT"): "GiB",
    ("frame_stride", "INT"): "frames",
    ("text_length", "INT"): "Tokens",
    ("lr_warmup_steps", "INT"): "Optimizer steps",
    ("save_every_n_steps", "INT"): "Optimizer steps",
    ("preview_every_n_steps", "INT"): "Optimizer steps",
    ("steps_this_queue", "INT"): "Optimizer steps",
    ("eval_timesteps", "STRING"): "0 to 1000",
}
"""numbers that mean nothing without a unit"""
PLAIN_ZEROS = {
    "seed": "a number like any other",
    "keep_tokens": "a count of tags",
    "held_out_ratio": "a share",
    "caption_dropout": "a share",
}
"""inputs whose 0 says nothing but 0 -> why"""


def page_of(node_id: str) -> Path:
    return make_locales.HELP / f"{node_id}.md"


def sections(text: str) -> dict[str, str]:
    """Headings of a page -> what stands below them."""
    parts = re.split(r"^## (.+)\n", text, flags=re.M)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def rows(listed: str) -> dict[str, str]:
    """The id that each line of a list begins with, behind a name it is shown under -> what it says."""
    return dict(re.findall(r"^- (?:\w+ )?`(\w+)`: (.+)$", listed, flags=re.M))


def test_every_node_has_a_page_and_every_page_a_node() -> None:
    assert {file.stem for file in make_locales.HELP.glob("*.md")} == set(SCHEMAS)


@pytest.mark.parametrize("node_id", SCHEMAS)
def test_a_page_says_when_to_use_the_node_what_goes_in_and_out_and_what_goes_wrong(node_id: str) -> None:
    text = page_of(node_id).read_text(encoding="utf-8")
    assert text.startswith(f"# {SCHEMAS[node_id]['display_name']}\n\n")
    found = sections(text)
    assert [heading for heading in found if heading in SECTIONS] == list(SECTIONS)
    assert found["When to use"].strip().endswith(".")
    assert "- " in found["Good to know"]


@pytest.mark.parametrize("node_id", SCHEMAS)
def test_a_page_explains_every_input_with_its_default_and_every_output(node_id: str) -> None:
    found = sections(page_of(node_id).read_text(encoding="utf-8"))
    inputs, outputs = rows(found["Inputs"]), rows(found["Outputs"])
    assert list(inputs) == [entry["name"] for entry in SCHEMAS[node_id]["inputs"]]
    assert list(outputs) == [entry["name"] for entry in SCHEMAS[node_id]["outputs"]]
    default = re.compile(r"(Default: .+|connected|The default is .+)\.$")
    assert all(default.search(said) for said in inputs.values())
    assert not [line for line in found["Inputs"].splitlines() if line.startswith("|")], "tables do not fit the side bar"


@pytest.mark.parametrize("node_id", SCHEMAS)
def test_numbers_have_their_unit(node_id: str) -> None:
    inputs = rows(sections(page_of(node_id).read_text(encoding="utf-8"))["Inputs"])
    for entry in SCHEMAS[node_id]["inputs"]:
        unit = UNITS.get((entry["name"], entry["type"]), "")
        assert unit.lower() in inputs[entry["name"]].lower(), entry["name"]
        if entry["name"] == "steps":
            assert re.match("Optimizer steps|Sampling steps", inputs["steps"])


@pytest.mark.parametrize("node_id", SCHEMAS)
def test_a_default_of_zero_is_explained(node_id: str) -> None:
    """0 is a wish, not a number, wherever it stands for "automatic" or "off"."""
    inputs = rows(sections(page_of(node_id).read_text(encoding="utf-8"))["Inputs"])
    for entry in SCHEMAS[node_id]["inputs"]:
        if entry.get("default") == 0 and entry["type"] in ("INT", "FLOAT") and entry["name"] not in PLAIN_ZEROS:
            assert "0 = " in inputs[entry["name"]], f"{entry['name']}: {inputs[entry['name']]}"


@pytest.mark.parametrize("node_id", SCHEMAS)
def test_every_language_has_a_page_where_the_frontend_looks_first(node_id: str) -> None:
    pages = {file.stem: file.read_text(encoding="utf-8") for file in (make_locales.HELP / node_id).glob("*.md")}
    assert set(pages) == {"en", *make_locales.TRANSLATIONS}
    assert pages.pop("en") == page_of(node_id).read_text(encoding="utf-8")
    for language, page in pages.items():
        words = json.loads((make_locales.LOCALES / language / "nodeDefs.json").read_text(encoding="utf-8"))[node_id]
        assert page.startswith(f"# {words['display_name']}\n\n{words['description']}\n\n## ")
        headings = [heading for heading in sections(page) if heading in make_locales.HELP_ENGLISH]
        assert headings == [], f"{language}: {headings} are still English"
        for part in ("inputs", "outputs"):
            for entry in words.get(part, {}).values():
                assert entry["name"] in page, language
                assert entry["tooltip"] in page, language


@pytest.mark.parametrize("language", make_locales.TRANSLATIONS)
def test_every_line_of_every_page_is_said_in(language: str) -> None:
    """And no line is left that no page has any more."""
    pages = [page_of(node_id).read_text(encoding="utf-8") for node_id in SCHEMAS]
    wanted = list(dict.fromkeys(line for page in pages for line in make_locales.own_lines(page)))
    said = make_locales.read_help(language)
    assert [line for line in wanted if not said.get(line)] == [], "translate these lines in locales/*/help.json"
    assert [line for line in said if line not in wanted] == [], "no page has these lines any more"
