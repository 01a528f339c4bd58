"""Windows, crops and mirror images are encoded once each; asking for more of them encodes only what is new."""

from __future__ import annotations

import numpy as np
import torch

from wan_core.cache import Encoders, LatentCache, encode_missing, plan_encoding
from wan_core.dataset import Dataset, DatasetConfig, ScanContext, scan_folder
from wan_core.model.latents import WAN21_LATENTS, LatentSpace


class Recorder:
    """Both encoders, in the right shapes; keeps the pixels it is given."""

    identity = "recorder"
    space: LatentSpace = WAN21_LATENTS

    def __init__(self) -> None:
        self.seen: list[torch.Tensor] = []

    def encode(self, given):
        if isinstance(given, str):
            return torch.zeros(1, 4096)
        self.seen.append(given)
        frames, height, width, _ = given.shape
        return torch.zeros(16, (frames + 3) // 4, height // 8, width // 8)


def test_more_windows_crops_and_sides_encode_only_what_is_new(video, make_clip, tmp_path):
    pictures = [np.random.default_rng(k).integers(0, 255, (48, 128, 3), np.uint8) for k in range(40)]
    path = make_clip("clips/a.mkv", frames=pictures, codec="ffv1", pix_fmt="bgr0")
    recorder = Recorder()

    def cached(**choices) -> tuple[int, int]:
        values = {"width": 64, "height": 48, "num_frames": 9, "trigger_word": "x", "enable_bucket": False}
        scanned = scan_folder(DatasetConfig(**{**values, **choices}), tmp_path / "clips", ScanContext(video))
        cache = LatentCache(tmp_path / "cache")
        identities = {"vae_identity": "recorder", "text_identity": "recorder"}
        plan = plan_encoding(Dataset((scanned,)), cache, space=WAN21_LATENTS, **identities)
        report = encode_missing(plan, cache, Encoders(codec=recorder, text_encoder=recorder, video=video))
        assert cache.read_set(report.fingerprint).trigger_words == ("x",)
        return report.latents_encoded, report.latents_reused

    assert cached() == (1, 0)
    assert cached(frame_extraction="chunk") == (3, 1)  # frames 0, 9, 18, 27; the first is there
    assert cached(frame_extraction="chunk", horizontal_flip="both") == (4, 4)
    assert torch.equal(recorder.seen[-1], recorder.seen[-5].flip(2))  # the last window mirrored, and as it is
    assert cached(frame_extraction="chunk", horizontal_flip="turns") == (0, 8)
    assert cached(frame_extraction="random", variants=3)[0] <= 3
    encoded, reused = cached(frame_extraction="random", variants=5)
    assert (encoded <= 2, reused >= 3, encoded + reused) == (True, True, 5)
    assert cached(crop="random", variants=2) == (2, 0)
    assert cached(crop="random", variants=4) == (2, 2)
    path.rename(tmp_path / "clips" / "b.mkv")
    assert cached(crop="random", variants=4) == (0, 4)
    assert cached(frame_extraction="random", variants=5) == (0, 5)
