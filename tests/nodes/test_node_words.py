"""What people read about the nodes has one source, the schemas, and is complete and in the words of the house."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import make_locales
import pytest
from comfy_server import ComfyServer

pytestmark = pytest.mark.comfy

FORBIDDEN = {
    r"(?<!saved step \()(?<!saved steps \()checkpoint(?!ing|_policy|_names_)": 'say "saved step (checkpoint)"',
    r"midpoint": "keep it off the canvas",
    r"torchrun": "keep it off the canvas",
    r"materiali[sz]e": "keep it off the canvas",
    r"world size": "keep it off the canvas",
}


@pytest.fixture
def object_info(pack_nodes: dict[str, Any]) -> dict[str, Any]:
    return {node_id: json.loads(json.dumps(node.GET_NODE_INFO_V1())) for node_id, node in pack_nodes.items()}


def test_english_and_the_tables_of_the_help_pages_are_those_of_the_schemas(object_info: dict[str, Any]) -> None:
    late = [str(file.relative_to(make_locales.ROOT)) for file in make_locales.outdated(object_info)]
    assert late == [], "write them anew: .venv/bin/python scripts/generators/make_locales.py"


def test_the_english_file_is_noticed_when_a_tooltip_changes(object_info: dict[str, Any]) -> None:
    object_info["TrainLoRA"]["input"]["optional"]["steps"][1]["tooltip"] += " And more."
    assert [file.name for file in make_locales.outdated(object_info)] == ["nodeDefs.json", "TrainLoRA.md", "en.md"]


def test_every_node_input_and_output_is_explained(object_info: dict[str, Any]) -> None:
    unsaid = [
        name
        for name, entry in make_locales.entries(make_locales.english(object_info)).items()
        if not all((text or "").strip().endswith((".", ")")) for key, text in entry.items() if "name" not in key)
    ]
    assert unsaid == [], "each needs a description or tooltip of whole sentences"


def test_words_on_nodes_are_those_of_the_house(object_info: dict[str, Any]) -> None:
    for name, entry in make_locales.entries(make_locales.english(object_info)).items():
        for text in entry.values():
            for word, why in FORBIDDEN.items():
                assert not re.search(word, text, re.IGNORECASE), f"{name}: {text!r}: {why}"


def test_a_page_without_a_table_to_write_is_refused(object_info: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="## Inputs"):
        make_locales.help_page("# Train Wan LoRA\n\n## Inputs\n\nnothing\n", object_info["TrainLoRA"])


def test_the_server_offers_the_words_in_every_language(comfy: ComfyServer) -> None:
    offered = comfy.get("/i18n")
    for language in ("en", *make_locales.TRANSLATIONS):
        file = make_locales.LOCALES / language / "nodeDefs.json"
        ours = json.loads(file.read_text(encoding="utf-8"))
        assert {node_id: offered[language]["nodeDefs"][node_id] for node_id in ours} == ours
