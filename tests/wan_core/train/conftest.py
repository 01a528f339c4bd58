"""Undisturbed runs that several files compare theirs with."""

from __future__ import annotations

import pytest

from tests.support.sessions import Straight


@pytest.fixture(scope="package")
def straight(tmp_path_factory: pytest.TempPathFactory) -> Straight:
    return Straight(tmp_path_factory.mktemp("straight"))
