"""Stills through Pillow: turned as the camera says, without transparency, never larger than the
limit.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Generator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from ..errors import WanTrainerError
from .look_hash import LOOK_SIZE, look_of
from .messages import CENTRED, ClipInfo, Framing, covered_size
from .sources import MAX_PIXELS, open_media, refuse

__all__ = ["probe_still", "read_still"]

_FORMATS = ("PNG", "JPEG", "WEBP", "BMP")
_EXIF_ORIENTATION = 0x0112
_TURNED = (5, 6, 7, 8)
"""EXIF orientations that swap width and height"""


def probe_still(path: Path) -> ClipInfo:
    """Size and format; JPEG is decoded at an eighth of its size and PNG checksums are read, so cut
    files show.
    """
    with _opened(path) as image:
        width, height = image.size
        if _orientation(image) in _TURNED:
            width, height = height, width
        codec, look = str(image.format).lower(), ""
        if codec == "jpeg":
            image.draft("RGB", (image.width // 8, image.height // 8))
            image.load()
            small = ImageOps.exif_transpose(image).convert("L").resize((LOOK_SIZE, LOOK_SIZE), Image.Resampling.BOX)
            look = look_of(np.asarray(small))
        elif codec == "png":
            image.verify()
    return ClipInfo(kind="still", width=width, height=height, codec=codec, look=look)


def read_still(path: Path, *, width: int, height: int, framing: Framing = CENTRED) -> NDArray[np.uint8]:
    """(1, H, W, 3) RGB, scaled to cover and cropped, around the centre unless `framing` says otherwise; transparent
    parts become white.
    """
    with _opened(path) as image:
        fitted = _fit(_opaque(ImageOps.exif_transpose(image)), (width, height), framing)
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


@contextlib.contextmanager
def _opened(path: Path) -> Generator[Image.Image]:
    with open_media(path) as file, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            with Image.open(file, formats=_FORMATS) as image:
                if image.width * image.height > MAX_PIXELS:
                    raise refuse(path, f"has {image.width}x{image.height} pixels", "Scale it down")
                yield image
        except WanTrainerError:
            raise
        except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
            raise refuse(path, f"cannot be read as a still ({error})", "Save it again as PNG") from error


def _orientation(image: Image.Image) -> int:
    """The EXIF orientation; for PNG only from blocks before the pixels, because `getexif` would
    decode them.
    """
    exif = Image.Exif()
    if image.format != "PNG":
        exif = image.getexif()
    elif "exif" in image.info:
        exif.load(image.info["exif"])
    return int(exif.get(_EXIF_ORIENTATION, 1))


def _opaque(image: Image.Image) -> Image.Image:
    if "A" not in image.getbands() and "transparency" not in image.info:
        return image.convert("RGB")
    rgba = image.convert("RGBA")
    white = Image.new("RGBA", rgba.size, "white")
    return Image.alpha_composite(white, rgba).convert("RGB")
