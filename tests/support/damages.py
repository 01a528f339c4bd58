"""Damaged copies of files, the same for the same number: bits turned, bytes cut out, put in, put elsewhere."""

from __future__ import annotations

import random
from collections.abc import Iterator


def damages(data: bytes, count: int) -> Iterator[bytes]:
    """Yields `count` copies that differ from `data`."""
    for number in range(count):
        draw = random.Random(number)
        damaged = bytearray(data)
        while bytes(damaged) == data:
            at = draw.randrange(len(damaged))
            size = draw.choice((1, 2, 4, 8, 64))
            kind = draw.randrange(6)
            if kind == 0:
                damaged[at] ^= 1 << draw.randrange(8)
            elif kind == 1:
                damaged[at : at + size] = draw.choice((b"\xff", b"\0", b"\x7f", b"\x80")) * size
            elif kind == 2:
                del damaged[at:]
            elif kind == 3:
                del damaged[at : at + size]
            elif kind == 4:
                damaged[at:at] = draw.randbytes(size)
            else:
                damaged[at:at] = damaged[at : at + 64] * draw.choice((1, 3))
        yield bytes(damaged)
