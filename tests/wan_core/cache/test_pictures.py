"""Start pictures of previews: kept without loss, never trusted blindly."""

from __future__ import annotations

import pytest
import torch

from wan_core.cache import read_picture, write_picture
from wan_core.errors import CacheError


def test_a_picture_comes_back_as_it_was(tmp_path):
    pixels = torch.randint(0, 256, (6, 10, 3), generator=torch.Generator().manual_seed(0)).float() / 255
    name = write_picture(tmp_path, pixels)
    assert torch.equal(read_picture(tmp_path, name), pixels)
    assert write_picture(tmp_path, pixels) == name
    assert write_picture(tmp_path, pixels.flip(0)) != name
    assert write_picture(tmp_path, pixels.reshape(10, 6, 3)) != name


def test_a_picture_that_is_gone_or_changed_is_named(tmp_path):
    name, other = (write_picture(tmp_path, torch.full((4, 4, 3), level)) for level in (0.0, 1.0))
    path, place = (tmp_path / "pictures" / n[:2] / f"{n}.png" for n in (other, name))
    place.write_bytes(path.read_bytes())
    with pytest.raises(CacheError, match="was changed"):
        read_picture(tmp_path, name)
    place.write_bytes(b"no picture")
    with pytest.raises(CacheError, match="is missing"):
        read_picture(tmp_path, name)
    place.unlink()
    with pytest.raises(CacheError, match="is missing"):
        read_picture(tmp_path, name)
    with pytest.raises(CacheError, match="not the name of a picture"):
        read_picture(tmp_path, "../../secret")
