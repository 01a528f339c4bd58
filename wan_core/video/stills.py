"""Reads stills with Pillow: rotated, opaque, in 8 bits, within the pixel limit."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Generator
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np
import PIL
from numpy.typing import NDArray
from PIL import Image, ImageOps, TiffImagePlugin, UnidentifiedImageError, features

from ..errors import WanTrainerError
from ..packages import pip_line
from .clip_measures import LOOK_SIZE, look_of
from .messages import CENTRED, ClipInfo, Framing, covered_size
from .sources import MAX_PIXELS, UnreadableError, open_media, refuse


def _formats() -> tuple[str, ...]:
    """Returns the formats to open. AVIF needs Pillow 11.3; older versions warn about the unknown feature."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ("PNG", "JPEG", "WEBP", "BMP", "TIFF", *(["AVIF"] if features.check("avif") else []))


_FORMATS = _formats()
_AVIF, _AVIF_SEQUENCE = b"ftypavif", b"ftypavis"
_SUBFILE_TYPE = 254
_COLOURS = ("1", "L", "LA", "La", "P", "PA", "RGB", "RGBA", "RGBa", "RGBX", "CMYK", "YCbCr")
"""Pillow modes with a defined conversion to RGB"""
_AS_PNG = "Save it as a PNG of 8 or 16 bits"
_COPY_AGAIN = "Copy or download it again; where that does not help, save it again as PNG"
_EXIF_ORIENTATION = 0x0112
_TURNED = (5, 6, 7, 8)
"""EXIF orientations that swap width and height"""


def probe_still(path: Path) -> ClipInfo:
    """Returns the facts of a still. To find truncated files, it decodes JPEG at 1/8 size and verifies PNG checksums."""
    with opened_still(path) as image:
        width, height = image.size
        if _orientation(image) in _TURNED:
            width, height = height, width
        codec, look = str(image.format).lower(), ""
        if codec == "jpeg":
            image.draft("RGB", (image.width // 8, image.height // 8))
            image.load()
            small = ImageOps.exif_transpose(image).convert("L").resize((LOOK_SIZE, LOOK_SIZE), Image.Resampling.BOX)
            look = look_of(np.asarray(small))
        bits, more_pages = 16 if _is_deep(image) else 8, codec == "tiff" and _has_more_pages(image)
        if codec == "png":
            # `verify` is called last, because it makes the image unusable.
            image.verify()
    return ClipInfo(kind="still", width=width, height=height, codec=codec, look=look, bits=bits, more_pages=more_pages)


def read_still(path: Path, *, width: int, height: int, framing: Framing = CENTRED) -> NDArray[np.uint8]:
    """Returns (1, H, W, 3) RGB, scaled to cover the size and cropped by `framing`, on white."""
    with opened_still(path) as image:
        fitted = _fit(opaque_still(ImageOps.exif_transpose(image), _white_of(image)), (width, height), framing)
        return np.asarray(ImageOps.mirror(fitted) if framing.flip else fitted, np.uint8)[None]


def _fit(image: Image.Image, wanted: tuple[int, int], framing: Framing) -> Image.Image:
    if framing.native:
        left, top = framing.place(image.size, wanted)
        return image.crop((left, top, left + wanted[0], top + wanted[1]))
    centering = (0.5, 0.5)
    if framing.offset is not None:
        scaled = covered_size(image.size, wanted)
        left, top = framing.place(scaled, wanted)
        centering = left / max(1, scaled[0] - wanted[0]), top / max(1, scaled[1] - wanted[1])
    return ImageOps.fit(image, wanted, Image.Resampling.LANCZOS, centering=centering)


def is_avif_sequence(head: bytes) -> bool:
    """Returns whether a file header is of an animated AVIF."""
    return head[4:12] == _AVIF_SEQUENCE


@contextlib.contextmanager
def opened_still(path: Path) -> Generator[Image.Image]:
    """Yields an opened picture, not yet decoded. Decoding errors inside the context become DatasetErrors."""
    with open_media(path) as file, warnings.catch_warnings():
        # Pillow warns about damaged EXIF and large pictures; the code below handles both.
        warnings.simplefilter("ignore")
        try:
            with Image.open(file, formats=_FORMATS) as image:
                if image.width * image.height > MAX_PIXELS:
                    raise refuse(path, f"has {image.width}x{image.height} pixels", "Scale it down")
                _refuse_numbers(path, image)
                yield image
        except WanTrainerError:
            raise
        except Image.DecompressionBombError as error:
            most = 2 * (Image.MAX_IMAGE_PIXELS or 0)
            raise refuse(path, f"has more than {most:,} pixels", "Scale it down to 8192x4352 at most") from error
        except UnidentifiedImageError as error:
            raise _unidentified(path, file) from error
        except (OSError, SyntaxError, ValueError, EOFError) as error:
            raise refuse(path, f"cannot be read as a still ({error})", _COPY_AGAIN) from error


def _unidentified(path: Path, file: BinaryIO) -> UnreadableError:
    file.seek(4)
    if "AVIF" not in _FORMATS and file.read(8) in (_AVIF, _AVIF_SEQUENCE):
        install = f"Run: {pip_line('pillow>=11.3', upgrade=True)}; or save it as PNG"
        return refuse(path, f"is an AVIF picture, which Pillow {PIL.__version__} here does not read", install)
    return refuse(path, "cannot be read as a still (its content is not a picture)", "Save it again as PNG")


def _refuse_numbers(path: Path, image: Image.Image) -> None:
    """Refuses pictures without a defined white: floating point, 32-bit integers, unusual colour spaces."""
    if image.mode == "F":
        raise refuse(path, "has floating-point pixels, so its white level is unknown", _AS_PNG)
    if image.mode == "I" and isinstance(image, TiffImagePlugin.TiffImageFile):
        bits = image.tag_v2.get(TiffImagePlugin.BITSPERSAMPLE, (32,))[0]
        raise refuse(path, f"has {bits}-bit integer pixels, so its white level is unknown", _AS_PNG)
    if image.mode not in _COLOURS and not _is_deep(image):
        raise refuse(path, f"holds colours as {image.mode}, which is not supported", _AS_PNG)


def _is_deep(image: Image.Image) -> bool:
    """Returns whether a picture is 16-bit grey; older Pillow versions have mode "I" for it in a PNG."""
    return image.mode.startswith("I")


def _has_more_pages(image: Image.Image) -> bool:
    """Returns whether there is a second page that is not a thumbnail of the first."""
    try:
        image.seek(1)
        copy = bool(cast("Any", image).tag_v2.get(_SUBFILE_TYPE, 0) & 1)
    except EOFError:
        return False
    image.seek(0)
    return not copy


def _orientation(image: Image.Image) -> int:
    """Returns the EXIF orientation; for a PNG from chunks before the pixels only, because `getexif` would decode the
    pixels."""
    exif = Image.Exif()
    if image.format != "PNG":
        exif = image.getexif()
    elif "exif" in image.info:
        exif.load(image.info["exif"])
    return int(exif.get(_EXIF_ORIENTATION, 1))


def opaque_still(image: Image.Image, white: tuple[int, int] = (0, 65535)) -> Image.Image:
    """Returns the picture as RGB on white; `white` as in `_white_of`."""
    if _is_deep(image):
        return _eight_bits(image, *white).convert("RGB")
    if not {"A", "a"} & {*image.getbands()} and "transparency" not in image.info:
        return image.convert("RGB")
    rgba = (image.convert("LA") if image.mode == "La" else image).convert("RGBA")
    white_page = Image.new("RGBA", rgba.size, "white")
    return Image.alpha_composite(white_page, rgba).convert("RGB")


def _eight_bits(image: Image.Image, black: int, white: int) -> Image.Image:
    """Returns 16-bit grey as 8 bits; `convert` would clip at 255."""
    values, most = np.asarray(image).astype(np.int64), max(black, white)
    grey = (np.clip(abs(values - black), 0, most) * 255 + most // 2) // most
    if isinstance(clear := image.info.get("transparency"), int):
        grey[values == clear] = 255
    return Image.fromarray(grey.astype(np.uint8))


def _white_of(image: Image.Image) -> tuple[int, int]:
    """Returns the values of black and white of 16-bit grey."""
    if not isinstance(image, TiffImagePlugin.TiffImageFile):
        return 0, 65535
    most = (1 << image.tag_v2.get(TiffImagePlugin.BITSPERSAMPLE, (16,))[0]) - 1
    return (most, 0) if image.tag_v2.get(TiffImagePlugin.PHOTOMETRIC_INTERPRETATION) == 0 else (0, most)
