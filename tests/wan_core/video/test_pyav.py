"""A PyAV that reads clips inexactly is refused in one sentence with the line to run, before any clip is blamed."""

from __future__ import annotations

import re
import sys

import pytest

from tests.support.pyavs import VideoProcessOn
from wan_core.dataset import DatasetConfig, ScanContext, scan_folder
from wan_core.errors import DependencyError
from wan_core.packages import pip_line
from wan_core.video import require_pyav
from wan_core.video.sources import outdated

UPDATE = f"PyAV 16.1.0 does not read clips exactly; 17.1 or newer does. Run: {pip_line('av>=17.1')}"


def old_pyav(folder) -> None:
    """A package `av` that is old, and says so."""
    (folder / "av").mkdir()
    (folder / "av" / "__init__.py").write_text("__version__ = '16.1.0'\n")
    (folder / "av-16.1.0.dist-info").mkdir()
    (folder / "av-16.1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: av\nVersion: 16.1.0\n")


@pytest.mark.parametrize(
    ("version", "refused"),
    [("14.2.0", True), ("17.0.1", True), ("17.1.0", False), ("17.1.0rc1", False), ("18.0.0", False), ("19.0.2", False)],
)
def test_versions_that_read_exactly_are_known(version, refused):
    assert bool(outdated(version)) == refused


def test_an_old_one_ends_the_scan_and_blames_no_clip(tmp_path, make_clip):
    packages = tmp_path / "packages"
    packages.mkdir()
    old_pyav(packages)
    make_clip("clips/a.mp4")
    with VideoProcessOn(sys.executable, packages) as video, pytest.raises(DependencyError) as refusal:
        scan_folder(DatasetConfig(trigger_word="x"), tmp_path / "clips", ScanContext(video))
    assert str(refusal.value) == UPDATE


def test_the_parent_knows_it_without_importing_it(tmp_path, monkeypatch):
    require_pyav()
    old_pyav(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(DependencyError, match=re.escape(UPDATE)):
        require_pyav()
