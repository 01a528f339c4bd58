"""Nodes that put entries into the cache run again once somebody took some of them away."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.comfy


@pytest.mark.parametrize("name", ["CacheLatents", "WanCacheFromLatents"])
def test_evicted_entries_and_deleted_folders_are_noticed(pack_nodes: dict[str, Any], name: str) -> None:
    """Else ComfyUI would hand on the set of last time, and every queue would end with entries that are missing."""
    node = pack_nodes[name]
    folders = sys.modules[node.__module__].folders
    root = folders.cache().root
    sets = root / "sets"
    sets.mkdir(parents=True, exist_ok=True)
    handed = sys.modules[node.__module__.rpartition(".")[0] + ".bridge.handed"]
    handed.CACHE.note("a set", handed.cache_folders())
    seen = [node.fingerprint_inputs(), node.fingerprint_inputs()]
    (root / ".removed").write_text("entries were removed")
    seen.append(node.fingerprint_inputs())
    sets.rename(sets.with_name("sets_away"))
    seen.append(node.fingerprint_inputs())
    sets.with_name("sets_away").rename(sets)
    (root / ".removed").unlink()
    assert seen[0] == seen[1]
    assert len({str(state) for state in seen}) == 3


def test_a_loss_counts_once_and_what_is_made_again_counts_as_it_is_then(
    pack_nodes: dict[str, Any], tmp_path: Path
) -> None:
    """A count that only grows: a folder that is gone is never taken for the one before the first queue."""
    module = sys.modules[pack_nodes["CacheLatents"].__module__.rpartition(".")[0] + ".bridge.handed"]
    handed, folder, file = type(module.CACHE)(), tmp_path / "sets", tmp_path / "sets" / "a.json"
    counts = [handed.losses()]
    folder.mkdir()
    file.write_text("{}", encoding="utf-8")
    handed.note("a", [folder, file])
    (folder / "b.json").touch()  # another set beside it
    counts += [handed.losses()]
    file.unlink()
    folder.rename(tmp_path / "away")
    counts += [handed.losses(), handed.losses()]
    folder.mkdir()
    file.write_text("{}", encoding="utf-8")
    handed.note("a", [folder, file])
    counts += [handed.losses()]
    file.write_text("[]", encoding="utf-8")
    counts += [handed.losses(), handed.losses()]
    assert counts == [0, 0, 1, 1, 1, 2, 2]
