"""A folder for a hub: files under the run's name, previews of that step alone, and a card from the metadata."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import save_file

from wan_core.export import hub_folder


def test_a_pair_has_a_card_with_a_column_for_each_expert(tmp_path: Path) -> None:
    loras = {}
    for expert, rank in (("high_noise", "8"), ("low_noise", "16")):
        words = {"modelspec.title": "fox", "wan_trainer.variant": f"2.2 I2V-A14B {expert}", "ss_network_dim": rank}
        loras[expert] = tmp_path / f"{expert}.safetensors"
        save_file({"a": torch.zeros(1)}, loras[expert], words | {"modelspec.trigger_phrase": "ohwx fox"})
    (tmp_path / "samples").mkdir()
    for name in ("step-000002_p0.mp4", "step-000004_p0.mp4"):
        (tmp_path / "samples" / name).write_bytes(name.encode())
    made = hub_folder(tmp_path, 4, loras)
    names = ["fox_high_noise.safetensors", "fox_low_noise.safetensors"]
    assert list(made) == [*names, "samples/step-000004_p0.mp4", "README.md"]
    assert made[names[1]] == loras["low_noise"].read_bytes()
    card = made["README.md"].decode().splitlines()
    assert card[:3] == ["---", "base_model: Wan-AI/Wan2.2-I2V-A14B", "library_name: diffusers"]
    assert "pipeline_tag: image-to-video" in card
    assert "Trigger words: `ohwx fox`" in card
    assert "| rank | 8 | 16 |" in card
    assert card[-1] == '<video controls src="samples/step-000004_p0.mp4"></video>'
