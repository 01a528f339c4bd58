"""Host memory: what the computer has, or less where a container gets less."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from wan_core.placement import host

GIB = 1 << 30


@pytest.fixture
def linux(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A computer with 64 GiB, 48 of them free; its groups lie in the folder."""
    monkeypatch.setattr(host, "_OWN", tmp_path / "own")
    monkeypatch.setattr(host, "_GROUPS", tmp_path / "groups")
    monkeypatch.setattr(host, "_of_computer", {"total": 64 * GIB, "available": 48 * GIB}.get)
    return tmp_path


def group(folder: Path, limit: str, used: int, files: int, *, first: bool = False) -> None:
    """What Linux says of a group; `files`: of what is used, as much holds files."""
    folder.mkdir(parents=True, exist_ok=True)
    before = "total_" if first else ""
    said = {
        "memory.limit_in_bytes" if first else "memory.max": limit,
        "memory.usage_in_bytes" if first else "memory.current": str(used),
        "memory.stat": f"anon 1\n{before}inactive_file {files - 1}\n{before}active_file 1\nfile_dirty 5",
    }
    for name, text in said.items():
        (folder / name).write_text(text + "\n")


def test_without_groups_it_is_the_computers(linux: Path) -> None:
    assert (host.host_bytes(), host.host_total()) == (48 * GIB, 64 * GIB)


@pytest.mark.parametrize(("system", "most"), [("posix", None), ("nt", 32 * GIB)])
def test_windows_page_locks_half_of_it(
    linux: Path, monkeypatch: pytest.MonkeyPatch, system: str, most: int | None
) -> None:
    monkeypatch.setattr(host, "os", SimpleNamespace(name=system))
    assert host.lockable_bytes() == most


@pytest.mark.parametrize("first", [True, False], ids=["version 1", "version 2"])
def test_a_container_has_what_its_group_leaves(linux: Path, first: bool) -> None:
    """It sees its own group as the root, under whatever path the computer knows it."""
    (linux / "own").write_text("9:cpu,cpuacct:/x\n8:memory:/docker/ab:c\n" if first else "0::/docker/ab:c\n")
    root = linux / "groups" / ("memory" if first else "")
    group(root, str(32 * GIB), 30 * GIB, 20 * GIB, first=first)
    assert (host.host_bytes(), host.host_total()) == (22 * GIB, 32 * GIB)
    group(root, str(32 * GIB), 40 * GIB, 1 * GIB, first=first)
    assert host.host_bytes() == 0
    group(root / "docker" / "ab:c", str(8 * GIB), 1 * GIB, 1, first=first)
    assert (host.host_bytes(), host.host_total()) == (0, 8 * GIB), "the least of all groups on the way"


@pytest.mark.parametrize("limit", ["max", str((1 << 63) - 4096), "what"])
def test_a_group_without_a_limit_changes_nothing(linux: Path, limit: str) -> None:
    (linux / "own").write_text("0::/\nnonsense\n")
    group(linux / "groups", limit, 3 * GIB, 1 * GIB)
    assert (host.host_bytes(), host.host_total()) == (48 * GIB, 64 * GIB)
