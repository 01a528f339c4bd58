"""Colour values against the equations of BT.601, BT.709 and BT.2020, in 8, 10 and 12 bits; HDR is refused by name."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from wan_core.data import DatasetConfig, scan_folder
from wan_core.errors import DatasetError
from wan_core.video import VideoProcess

LUMA = {1: (0.2126, 0.0722), 5: (0.299, 0.114), 9: (0.2627, 0.0593)}
"""Kr and Kb of the matrix coefficients of ITU-T H.273"""
SPOTS = ((64, 512, 512), (940, 512, 512), (502, 512, 512), (500, 600, 400), (300, 450, 700))
"""Y, Cb and Cr in 10 bits: black, white, grey, two colours"""


@pytest.fixture(scope="module")
def video():
    with VideoProcess() as process:
        yield process


def expected_rgb(spot: tuple[int, ...], bits: int, matrix: int, full: bool) -> np.ndarray:
    """Levels 0 to 255, by the equations alone (H.273: 8.3), in float."""
    y, cb, cr = (value / 2 ** (10 - bits) if bits < 10 else value * 2 ** (bits - 10) for value in spot)
    kr, kb = LUMA[matrix]
    step = 2 ** (bits - 8)
    most = 2**bits - 1
    luma = y / most if full else (y - 16 * step) / (219 * step)
    blue, red = ((c - 128 * step) / (most if full else 224 * step) for c in (cb, cr))
    r, b = luma + 2 * (1 - kr) * red, luma + 2 * (1 - kb) * blue
    return np.clip([r, (luma - kr * r - kb * b) / (1 - kr - kb), b], 0, 1) * 255


def write_flat(
    path: Path, spot: tuple[int, ...], *, bits: int, matrix: int, full: bool = False, transfer: int = 1, codec="ffv1"
) -> Path:
    """Three lossless frames of one colour, given as Y, Cb, Cr in 10 bits."""
    import av

    pix_fmt = {8: "yuv420p", 10: "yuv420p10le", 12: "yuv420p12le"}[bits]
    values = [value // 4 if bits == 8 else value << (bits - 10) for value in spot]
    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=16)
        stream.width, stream.height, stream.pix_fmt = 64, 48, pix_fmt
        context = stream.codec_context
        context.colorspace, context.color_range, context.color_trc = matrix, 2 if full else 1, transfer
        for _ in range(3):
            frame = av.VideoFrame(64, 48, pix_fmt)
            frame.colorspace, frame.color_range = matrix, 2 if full else 1
            kind = np.uint8 if bits == 8 else np.dtype("<u2")
            for plane, value in zip(frame.planes, values, strict=True):
                plane.update(np.full(plane.buffer_size // np.dtype(kind).itemsize, value, kind).tobytes())
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return path


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("matrix", sorted(LUMA))
@pytest.mark.parametrize("bits", [10, 12])
def test_deep_colours_are_within_one_level_of_the_equations(video, tmp_path, bits, matrix, full):
    for number, spot in enumerate(SPOTS):
        path = write_flat(tmp_path / f"{number}.mkv", spot, bits=bits, matrix=matrix, full=full)
        assert video.probe(path).bits == bits
        for size in ((64, 48), (32, 32)):
            frame = video.read(path, fps=16, num_frames=1, width=size[0], height=size[1])[0]
            error = np.abs(frame.astype(float) - expected_rgb(spot, bits, matrix, full)).max()
            assert error < 1.0, (spot, size, frame[10, 10])


@pytest.mark.parametrize("matrix", sorted(LUMA))
def test_eight_bit_colours_are_within_three_levels_of_the_equations(video, tmp_path, matrix):
    for number, spot in enumerate(SPOTS):
        even = tuple(value // 4 * 4 for value in spot)
        path = write_flat(tmp_path / f"{number}.mkv", even, bits=8, matrix=matrix)
        assert video.probe(path).bits == 8
        frame = video.read(path, fps=16, num_frames=1, width=64, height=48)[0]
        assert np.abs(frame.astype(float) - expected_rgb(even, 8, matrix, False)).max() < 3.0


@pytest.mark.parametrize(("transfer", "named"), [(16, "PQ (SMPTE 2084"), (18, "HLG (ARIB STD-B67)")])
def test_hdr_is_refused_by_name_with_the_line_to_run(video, tmp_path, transfer, named):
    path = write_flat(tmp_path / "hdr.mkv", SPOTS[1], bits=10, matrix=9, transfer=transfer)
    with pytest.raises(DatasetError) as refusal:
        video.probe(path)
    assert str(refusal.value).startswith(f"hdr.mkv is HDR, with the brightness curve {named}")
    assert "ffmpeg -i IN -vf zscale=t=linear:npl=100" in str(refusal.value)
    assert "tonemap=hable" in str(refusal.value)


@pytest.mark.parametrize("transfer", [1, 14, 15])
def test_deep_colour_with_ordinary_brightness_is_used(video, tmp_path, transfer):
    write_flat(tmp_path / "a.mkv", SPOTS[1], bits=10, matrix=9, transfer=transfer)
    config = DatasetConfig(width=64, height=48, num_frames=1, trigger_word="x")
    assert len(scan_folder(config, tmp_path, video).samples) == 1
