"""Colour values against the equations of BT.601, BT.709 and BT.2020, in 8, 10 and 12 bits; HDR is refused by name."""

from __future__ import annotations

import functools
import itertools
from pathlib import Path

import numpy as np
import pytest

from wan_core.dataset import DatasetConfig, ScanContext, scan_folder
from wan_core.errors import DatasetError
from wan_core.video import covered_size

pytestmark = pytest.mark.lasts(0.04)

LUMA = {1: (0.2126, 0.0722), 5: (0.299, 0.114), 9: (0.2627, 0.0593)}
"""Kr and Kb of the matrix coefficients of ITU-T H.273"""
SPOTS = ((64, 512, 512), (940, 512, 512), (502, 512, 512), (500, 600, 400), (300, 450, 700))
"""Y, Cb and Cr in 10 bits: black, white, grey, two colours"""


def expected_rgb(spot: tuple[int, ...], bits: int, matrix: int, full: bool) -> np.ndarray:
    """Levels 0 to 255, by the equations alone (H.273: 8.3), in float."""
    values = tuple(value / 2 ** (10 - bits) if bits < 10 else value * 2 ** (bits - 10) for value in spot)
    return expected_of_values(values, bits, LUMA[matrix], full)


def expected_of_values(spot: tuple[float, ...], bits: int, weights: tuple[float, float], full: bool) -> np.ndarray:
    """`expected_rgb` of values in their own bits, with Kr and Kb."""
    y, cb, cr = spot
    kr, kb = weights
    step = 2 ** (bits - 8)
    most = 2**bits - 1
    luma = y / most if full else (y - 16 * step) / (219 * step)
    blue, red = ((c - 128 * step) / (most if full else 224 * step) for c in (cb, cr))
    r, b = luma + 2 * (1 - kr) * red, luma + 2 * (1 - kb) * blue
    return np.clip([r, (luma - kr * r - kb * b) / (1 - kr - kb), b], 0, 1) * 255


def write_flat(
    path: Path, spot: tuple[int, ...], *, bits: int, matrix: int, full: bool = False, transfer: int = 1, primaries=1
) -> Path:
    """Three lossless frames of one colour, given as Y, Cb, Cr in 10 bits."""
    values = tuple(value // 4 if bits == 8 else value << (bits - 10) for value in spot)
    pix_fmt = {8: "yuv420p", 10: "yuv420p10le", 12: "yuv420p12le"}[bits]
    tags = {"matrix": matrix, "full": full, "transfer": transfer, "primaries": primaries}
    return write_frames(path, [values] * 3, pix_fmt=pix_fmt, bits=bits, size=(64, 48), **tags)


def write_frames(
    path: Path,
    spots,
    *,
    pix_fmt: str,
    bits: int,
    full: bool,
    matrix: int = 1,
    transfer: int = 1,
    primaries: int = 1,
    size=(160, 90),
) -> Path:
    """A lossless frame of one colour for each of `spots`: Y, Cb, Cr in their own bits."""
    import av

    with av.open(str(path), "w") as container:
        stream = container.add_stream("ffv1", rate=16)
        stream.width, stream.height, stream.pix_fmt = *size, pix_fmt
        context = stream.codec_context
        context.colorspace, context.color_range, context.color_trc = matrix, 2 if full else 1, transfer
        context.color_primaries = primaries
        for spot in spots:
            frame = av.VideoFrame(*size, pix_fmt)
            frame.colorspace, frame.color_range = matrix, 2 if full else 1
            kind = np.uint8 if bits == 8 else np.dtype("<u2")
            for plane, value in zip(frame.planes, spot, strict=True):
                plane.update(np.full(plane.buffer_size // np.dtype(kind).itemsize, value, kind).tobytes())
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return path


KINDS = [(8, 1, False), (8, 5, True), (10, 9, False), (12, 1, True)]
"""bits, matrix and whether the range is full: of each kind one in CI"""


@pytest.mark.parametrize(
    ("bits", "matrix", "full"),
    [
        pytest.param(*kind, marks=() if kind in KINDS else pytest.mark.soak)
        for kind in itertools.product((8, 10, 12), sorted(LUMA), (False, True))
    ],
)
def test_colours_are_within_one_level_of_the_equations(video, tmp_path, bits, matrix, full):
    pix_fmt = {8: "yuv420p", 10: "yuv420p10le", 12: "yuv420p12le"}[bits]
    spots = [tuple(value // 4 if bits == 8 else value << (bits - 10) for value in spot) for spot in SPOTS]
    path = write_frames(tmp_path / "a.mkv", spots, pix_fmt=pix_fmt, bits=bits, full=full, matrix=matrix, size=(64, 48))
    assert video.probe(path).bits == bits
    expected = [expected_of_values(spot, bits, LUMA[matrix], full) for spot in spots]
    for size in ((64, 48), (32, 32)):
        frames = video.read(path, fps=16, num_frames=len(spots), width=size[0], height=size[1])
        for frame, colour in zip(frames.astype(float), expected, strict=True):
            assert np.abs(frame - colour).max() < 1.0, (colour, size, frame[10, 10])


SIZES = [(160, 90), (80, 44), (80, 48), (104, 58), (320, 180), (322, 181)]
"""of a 160 x 90 clip: as it is, half, through the odd width 85, little smaller, twice, little more"""


@pytest.mark.parametrize(
    ("pix_fmt", "full"),
    [
        ("yuv420p", False),
        ("yuv420p10le", True),
        pytest.param("yuv422p", True, marks=pytest.mark.soak),
        pytest.param("yuv444p12le", False, marks=pytest.mark.soak),
        pytest.param("yuv420p", True, marks=pytest.mark.soak),
        pytest.param("yuv422p", False, marks=pytest.mark.soak),
        pytest.param("yuv420p10le", False, marks=pytest.mark.soak),
        pytest.param("yuv444p12le", True, marks=pytest.mark.soak),
    ],
)
def test_no_size_is_darker_or_tinted_on_average(video, tmp_path, pix_fmt, full):
    bits = 12 if "12" in pix_fmt else 10 if "10" in pix_fmt else 8
    step, draw = 2 ** (bits - 8), np.random.default_rng(0)
    ramp = [(level * step, 128 * step, 128 * step) for level in range(16, 236, 16)]
    tints = [tuple((draw.integers((60, 104, 104), (190, 152, 152)) * step).tolist()) for _ in range(14)]
    path = write_frames(tmp_path / "a.mkv", [*ramp, *tints], pix_fmt=pix_fmt, bits=bits, full=full)
    wanted = [expected_of_values(spot, bits, LUMA[1], full) for spot in (*ramp, *tints)]
    for size in SIZES:
        frames = video.read(path, fps=16, num_frames=len(wanted), width=size[0], height=size[1])
        errors = frames.mean(axis=(1, 2), dtype=float) - wanted
        assert np.abs(errors[: len(ramp)].mean(axis=0)).max() <= 0.3, (size, "grey")
        assert np.abs(errors[len(ramp) :].mean(axis=0)).max() <= 0.3, (size, "tints")
        assert np.abs(errors).max() <= 1.1, size


@pytest.mark.parametrize(("codec", "pix_fmt"), [("ffv1", "gbrp10le"), ("ffv1", "gray10le"), ("ffv1", "bgr0")])
def test_colours_without_a_matrix_are_right_too(video, tmp_path, codec, pix_fmt):
    import av

    levels = list(range(0, 256, 15))
    with av.open(str(tmp_path / "a.mkv"), "w") as container:
        stream = container.add_stream(codec, rate=16)
        stream.width, stream.height, stream.pix_fmt = 64, 48, pix_fmt
        for level in levels:
            frame = av.VideoFrame(64, 48, pix_fmt)
            deep = round(level * 1023 / 255)
            values = np.full(1, deep, "<u2") if "10" in pix_fmt else np.full(1, level, np.uint8)
            for plane in frame.planes:
                plane.update(np.resize(values, plane.buffer_size // values.itemsize).tobytes())
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    for size in ((64, 48), (32, 24)):
        frames = video.read(tmp_path / "a.mkv", fps=16, num_frames=len(levels), width=size[0], height=size[1])
        np.testing.assert_array_equal(frames[:, 10, 10, 1], levels)


@pytest.mark.parametrize("share", [*(pytest.param(one, marks=pytest.mark.soak) for one in ((1, 1), (1, 2))), (3, 2)])
def test_real_clips_equal_a_conversion_in_double_precision(video, real_clips, share):
    """58.9 dB is what rounding to 8 bits leaves."""
    for path in real_clips:
        info = video.probe(path)
        width, height = (side * share[0] // share[1] // 2 * 2 for side in (info.width, info.height))
        scaled = covered_size((info.width, info.height), (width, height))
        whole = first_frame(path, *scaled)
        left, top = (scaled[0] - width) // 2, (scaled[1] - height) // 2
        wanted = whole[top : top + height, left : left + width]
        got = video.read(path, fps=16, num_frames=1, width=width, height=height)[0]
        error = ((got - wanted) ** 2).mean()
        assert 10 * np.log10(255**2 / error) > 58, path.name
        assert abs((got - wanted).mean()) < 0.05, path.name


@functools.cache
def first_frame(path: Path, width: int, height: int) -> np.ndarray:
    import av

    with av.open(str(path)) as container:
        return in_double_precision(next(container.decode(video=0)), width, height)


def in_double_precision(frame, width: int, height: int) -> np.ndarray:
    """(H, W, 3) levels: brightness and colour differences each scaled in 16 bits, the equations in float64."""
    from av.video.reformatter import Interpolation

    plain = Interpolation.AREA if height < frame.height else Interpolation.LANCZOS
    deep = frame.reformat(width=width, height=height, format="yuv444p16le", interpolation=int(plain) | 0x42000)
    planes = deep.to_ndarray().astype(np.float64) / 256
    y, cb, cr = planes if planes.shape[0] == 3 else planes.transpose(2, 0, 1)
    kr, kb = LUMA[1] if frame.height >= 720 else LUMA[5]
    luma, blue, red = (y - 16) / 219, (cb - 128) / 224, (cr - 128) / 224
    r, b = luma + 2 * (1 - kr) * red, luma + 2 * (1 - kb) * blue
    return np.clip(np.stack([r, (luma - kr * r - kb * b) / (1 - kr - kb), b], -1), 0, 1) * 255


@pytest.mark.parametrize("tag", [0, 3])
def test_reserved_tags_do_not_matter(video, tmp_path, tag):
    path = write_flat(tmp_path / "a.mkv", SPOTS[2], bits=8, matrix=5, transfer=tag, primaries=tag)
    frame = video.read(path, fps=16, num_frames=1, width=32, height=24)[0]
    assert np.abs(frame.astype(float) - expected_rgb(SPOTS[2], 8, 5, False)).max() < 1


def test_a_matrix_that_cannot_be_converted_is_refused_by_the_scan(video, tmp_path):
    path = write_flat(tmp_path / "a.mkv", SPOTS[2], bits=8, matrix=8)
    with pytest.raises(DatasetError, match=r"a\.mkv has colours as YCgCo, which is not supported\. Write it with"):
        video.probe(path)


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
    assert len(scan_folder(config, tmp_path, ScanContext(video)).samples) == 1
