"""The smallest training, with a save, a resume and a delete, on file systems that refuse calls of the C library.

Each pass trains the very LoRA of a whole file system, or says in one sentence what is lacking. The table in
docs/use/file_systems.md is the soak's: every call, with the errors that its manual page names.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.refused_calls import REFUSALS, Table, said_well
from tests.support.refusing import Outcome, Refusing, missing

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing())

DONE = ("train", "resume", "delete")
LACKING = {
    "flock": errno.ENOTSUP, "fsync.folder": errno.EINVAL, "mmap": errno.ENODEV, "open.tmpfile": errno.EOPNOTSUPP,
    "link": errno.EPERM, "symlink": errno.EPERM, "chmod": errno.EPERM, "utime": errno.EPERM, "xattr": errno.ENOTSUP,
    "fallocate": errno.EOPNOTSUPP, "posix_fallocate": errno.EOPNOTSUPP, "posix_fadvise": errno.EINVAL,
    "copy_file_range": errno.EXDEV, "sendfile": errno.EINVAL, "splice": errno.EINVAL, "statvfs": 0, "readdir": 0,
}  # fmt: skip
"""what network file systems and FUSE volumes lack, all at once"""


@pytest.fixture(scope="module")
def refusing(comfyui_tree: Path) -> Iterator[Refusing]:
    refusing = Refusing(comfyui_tree)
    yield refusing
    refusing.close()


@pytest.mark.lasts(3)
def test_trains_where_locks_maps_and_syncs_of_folders_are_lacking(refusing: Refusing, tmp_path: Path) -> None:
    outcome = refusing.fare(tmp_path, LACKING)
    assert outcome.trained == DONE, (outcome.said, outcome.left)
    assert outcome.calls > 10, "the library was not loaded"
    assert len([note for note in outcome.notes if "no file locks" in note]) == 2, "once for each session"


@pytest.fixture(scope="module")
def whole(refusing: Refusing, tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    return refusing.fare(tmp_path_factory.mktemp("whole"), {})


@pytest.mark.soak
@pytest.mark.parametrize("call", REFUSALS)
def test_each_refused_call_is_borne_or_said(refusing: Refusing, tmp_path: Path, whole: Outcome, call: str) -> None:
    assert whole.trained == DONE
    table, wrong = Table(call), list[str]()
    for number in REFUSALS[call]:
        name = errno.errorcode.get(number, "in vain")
        outcome = refusing.fare(tmp_path / name.replace(" ", "_"), {call: number})
        trains = outcome.trained == DONE and outcome.lora == whole.lora
        table.add(number, outcome, trains)
        if not trains and not said_well(outcome):
            wrong.append(f"{call} {name}: {outcome.trained} {outcome.said!r} {outcome.left}")
        if trains and not outcome.calls:
            break  # nothing calls it
    table.write()
    assert not wrong, "\n".join(wrong)
