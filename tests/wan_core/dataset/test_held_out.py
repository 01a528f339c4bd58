"""How many files are held out where the number is left to us."""

from __future__ import annotations

import hashlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from wan_core.dataset import DatasetConfig, held_out_digests


def held(count: int, ratio: float = -1.0) -> frozenset[str]:
    samples = [SimpleNamespace(path=Path(f"{number}.mp4"), name=f"{number}.mp4") for number in range(count)]
    config = DatasetConfig(folder="clips", held_out_ratio=ratio)
    dataset: Any = SimpleNamespace(parts=[SimpleNamespace(config=config, samples=samples)])
    return held_out_digests(dataset, lambda sample: hashlib.sha256(sample.name.encode()).hexdigest())


@pytest.mark.parametrize(("files", "wanted"), [(3, 0), (19, 0), (20, 3), (39, 3), (40, 4), (80, 8), (500, 8)])
def test_few_of_many_files_are_held_out_and_none_of_few(files: int, wanted: int):
    assert len(held(files)) == wanted


def test_a_new_file_moves_at_most_one_other():
    for files in range(20, 60):
        assert len(held(files) - held(files + 1)) <= 1


def test_without_the_setting_nothing_is_held_out():
    assert held(500, ratio=0.0) == frozenset()
