"""The page comes up with the pack on both frontends, and draws nodes in both ways."""

from __future__ import annotations

from typing import Any

import pytest

pytestmark = pytest.mark.browser

GRAPH = {"1": {"class_type": "EmptyLatentImage", "inputs": {"width": 64, "height": 64, "batch_size": 1}}}


def test_the_app_is_ready_with_our_extension_and_draws_a_graph_in_both_ways(canvas: Any) -> None:
    served = canvas.server.get("/extensions")
    assert [path for path in served if path.endswith("/wan_trainer.js")], served
    assert [name for name in canvas.extensions() if "wan" in name.lower()]

    for vue in (False, True):
        canvas.vue_nodes(vue)
        canvas.load_api(GRAPH)
        assert canvas.missing_nodes() == []
        assert canvas.to_prompt()["1"]["inputs"]["width"] == 64
        drawn = canvas.page.locator("[data-node-id]").count()
        assert bool(drawn) is vue, f"{drawn} nodes are drawn as page elements with Vue nodes {vue}"
        assert canvas.screenshot(f"vue-{vue}").stat().st_size > 5_000
    assert canvas.our_problems == []

    canvas.load_api({"1": {"class_type": "NoSuchNodeAnywhere", "inputs": {}}})
    assert canvas.missing_nodes(), "missing_nodes itself sees nothing"
