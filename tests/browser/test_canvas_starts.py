"""The page comes up with the pack on both frontends."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.browser

ROOT = Path(__file__).resolve().parents[2]


def test_the_app_is_ready_and_draws_a_core_graph(canvas: Any, frontend: str) -> None:
    canvas.load_api(
        {
            "1": {
                "class_type": "EmptyLatentImage",
                "inputs": {"width": 64, "height": 64, "batch_size": 1},
            }
        }
    )
    assert canvas.missing_nodes() == []
    assert canvas.to_prompt()["1"]["inputs"]["width"] == 64
    assert canvas.screenshot("core-graph").stat().st_size > 5_000


def test_both_ways_of_drawing_nodes_show_the_same_graph(canvas: Any) -> None:
    graph = {"1": {"class_type": "EmptyLatentImage", "inputs": {"width": 64, "height": 64, "batch_size": 1}}}
    for on in (False, True):
        canvas.vue_nodes(on)
        canvas.load_api(graph)
        assert canvas.to_prompt()["1"]["inputs"]["height"] == 64
        drawn = canvas.page.locator("[data-node-id]").count()
        assert bool(drawn) is on, f"{drawn} nodes are drawn as page elements with Vue nodes {on}"
        canvas.screenshot(f"vue-{on}")


def test_a_graph_with_an_unknown_node_is_noticed(canvas: Any) -> None:
    """Guards `missing_nodes` itself."""
    canvas.load_api({"1": {"class_type": "NoSuchNodeAnywhere", "inputs": {}}})
    assert canvas.missing_nodes()


@pytest.mark.skipif(not (ROOT / "web" / "js" / "wan_trainer.js").is_file(), reason="the pack has no web part yet")
def test_the_extension_of_the_pack_loads_without_errors(canvas: Any) -> None:
    served = canvas.server.get("/extensions")
    assert [path for path in served if path.endswith("/wan_trainer.js")], served
    assert [name for name in canvas.extensions() if "wan" in name.lower()]
    assert canvas.our_problems == []
