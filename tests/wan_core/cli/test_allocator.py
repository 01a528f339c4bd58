"""Segments of a GPU's memory grow where torch has such, unless the user has settings of their own."""

from __future__ import annotations

import pytest

from wan_core.cli.commands import let_segments_grow

NEW, OLD = "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"
GROWING = {OLD: "expandable_segments:True"}


@pytest.mark.parametrize(
    ("outside", "torch", "system", "inside"),
    [
        ({}, "2.9.1", "linux", GROWING),
        ({}, "2.9.1+cu128", "linux", GROWING),
        ({OLD: ""}, "2.9.1", "linux", GROWING),
        ({NEW: "max_split_size_mb:64"}, "2.9.1", "linux", {NEW: "max_split_size_mb:64"}),
        ({OLD: "expandable_segments:False"}, "2.9.1", "linux", {OLD: "expandable_segments:False"}),
        ({}, "2.9.1+cpu", "linux", {}),
        ({}, "2.9.1+rocm6.4", "linux", {}),
        ({}, "2.9.1", "win32", {}),
        ({}, "2.9.1", "darwin", {}),
    ],
)
def test_whoever_said_nothing_gets_segments_that_grow(
    outside: dict[str, str], torch: str, system: str, inside: dict[str, str]
) -> None:
    environment = dict(outside)
    let_segments_grow(environment, torch=torch, system=system, kernel="6.8.0-45-generic")
    assert environment == inside


@pytest.mark.parametrize("kernel", ["5.15.167.4-microsoft-standard-WSL2", "4.4.0-19041-Microsoft"])
def test_under_wsl_they_do_not_grow(kernel: str) -> None:
    environment: dict[str, str] = {}
    let_segments_grow(environment, torch="2.9.1+cu128", system="linux", kernel=kernel)
    assert not environment
    chosen = dict(GROWING)
    let_segments_grow(chosen, torch="2.9.1+cu128", system="linux", kernel=kernel)
    assert chosen == GROWING, "what the user set stays"
