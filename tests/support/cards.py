"""Cards that are not there: what torch says of them, for the length of a test."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch


def gpu(name: str, capability: tuple[int, int], gibibytes: float = 24, **more: str) -> SimpleNamespace:
    """What `torch.cuda.get_device_properties` says of a card."""
    major, minor = capability
    return SimpleNamespace(name=name, major=major, minor=minor, total_memory=int(gibibytes * 2**30), **more)


AMPERE = gpu("NVIDIA RTX A5000", (8, 6))
T4 = gpu("Tesla T4", (7, 5), 14.6)
V100 = gpu("Tesla V100-SXM2-16GB", (7, 0), 16)
GTX_1660 = gpu("NVIDIA GeForce GTX 1660 SUPER", (7, 5), 6)
PASCAL = gpu("NVIDIA GeForce GTX 1080", (6, 1), 8)


def put_in(monkeypatch: pytest.MonkeyPatch, *cards: SimpleNamespace) -> None:
    """Let torch see these cards, and nothing else of CUDA."""

    def of(device: torch.device | str | int) -> SimpleNamespace:
        return cards[device if isinstance(device, int) else torch.device(device).index or 0]

    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(cards))
    monkeypatch.setattr(torch.cuda, "get_device_properties", of)
