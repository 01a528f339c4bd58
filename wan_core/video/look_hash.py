"""The look of a picture in 64 bits: near copies (written again, scaled, cropped a little) differ in few of them.

Each bit says whether one of the lowest frequencies of the picture in grey, its mean left out, stands out above nought;
neither brightness nor contrast nor size counts.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

LOOK_SIZE = 32
"""side of the picture that is looked at"""
_FLAT = 2.0
"""standard deviation in grey levels below which compression noise decides the signs"""

_STANDS_OUT = 0.1
"""of the root mean square of the 64 frequencies. Measured on 200 clips: at 0, 4 % of copies cropped by 3 % differ in
more than 16 bits; at 0.1 none differs in more than 12
"""


def look_of(grey: NDArray[Any]) -> str:
    """16 hex digits for a picture (32, 32) in grey levels; "" when it is of one colour."""
    levels = np.asarray(grey, np.float64)
    if levels.std() < _FLAT:
        return ""
    basis = _cosines()
    frequencies: NDArray[np.float64] = basis @ levels @ basis.T
    lowest = np.array([frequencies[row, column] for row, column in _lowest()])
    # Frequencies near nought have either sign after compression.
    bits = (lowest > _STANDS_OUT * np.sqrt((lowest**2).mean())).astype(int).tolist()
    return f"{int(''.join(map(str, bits)), 2):016x}"


@lru_cache(maxsize=1)
def _cosines() -> NDArray[np.float64]:
    """The DCT-II matrix, not scaled: only signs are kept."""
    place = np.arange(LOOK_SIZE)
    return np.cos(np.pi * (2 * place[None] + 1) * place[:, None] / (2 * LOOK_SIZE))


@lru_cache(maxsize=1)
def _lowest() -> list[tuple[int, int]]:
    """(row, column) of the 64 lowest frequencies after the mean."""
    near = [(row, column) for row in range(12) for column in range(12)]
    return sorted(near, key=lambda place: (sum(place), place[0]))[1:65]
