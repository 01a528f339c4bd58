"""How an engine process asks OpenMP's threads to wait."""

import importlib

import pytest

import wan_core.__main__ as door


@pytest.mark.parametrize(("chosen", "used"), [(None, "PASSIVE"), ("ACTIVE", "ACTIVE")])
def test_threads_sleep_while_they_wait_unless_the_user_chose(
    monkeypatch: pytest.MonkeyPatch, chosen: str | None, used: str
) -> None:
    monkeypatch.setenv("OMP_WAIT_POLICY", chosen or "")
    if chosen is None:
        monkeypatch.delenv("OMP_WAIT_POLICY")

    importlib.reload(door)

    assert door.os.environ["OMP_WAIT_POLICY"] == used
