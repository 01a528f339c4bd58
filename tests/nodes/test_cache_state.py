"""Nodes that put entries into the cache run again once somebody took some of them away."""

from __future__ import annotations

import sys
from typing import Any

import pytest

pytestmark = pytest.mark.comfy


@pytest.mark.parametrize("name", ["CacheLatents", "WanCacheFromLatents", "WanCacheFromTFRecord"])
def test_evicted_entries_and_deleted_folders_are_noticed(pack_nodes: dict[str, Any], name: str) -> None:
    """Else ComfyUI would hand on the set of last time, and every queue would end with entries that are missing."""
    node = pack_nodes[name]
    folders = sys.modules[node.__module__].folders
    (sys.modules[pack_nodes["WanCacheFromTFRecord"].__module__]._input() / "records").mkdir(exist_ok=True)
    given = {"folder": "records"} if name == "WanCacheFromTFRecord" else {}
    packs = folders.cache().packs.folder
    packs.mkdir(parents=True, exist_ok=True)
    seen = [node.fingerprint_inputs(**given), node.fingerprint_inputs(**given)]
    (packs / ".removed").write_text("entries were removed")
    seen.append(node.fingerprint_inputs(**given))
    packs.rename(packs.with_name("packs_away"))
    seen.append(node.fingerprint_inputs(**given))
    packs.with_name("packs_away").rename(packs)
    (packs / ".removed").unlink()
    assert seen[0] == seen[1]
    assert len({str(state) for state in seen}) == 3
