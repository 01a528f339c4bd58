"""Encoding shared out over ranks: the entries of one rank, each encoded once."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path
from typing import Any

import pytest

from tests.support.forked import ForkServer, Worker

pytestmark = pytest.mark.skipif(os.name == "nt", reason="ranks are forked")
RANK = Path(__file__).parents[2] / "support" / "encoding_rank.py"


@pytest.fixture
def clips() -> int:
    return 40


@pytest.fixture
def folder(tmp_path: Path, clips: int) -> Path:
    folder = tmp_path / "clips"
    folder.mkdir()
    for number in range(clips):
        (folder / f"{number:04}.png").write_bytes(f"{number:016}".encode())
        (folder / f"{number:04}.txt").write_text(f"caption {number}")
    return folder


def clips_in(folder: Path) -> int:
    return len(list(folder.glob("*.png")))


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def ranks(server: ForkServer, folder: Path, cache: Path, *words: str, second: tuple[str, ...] = ()) -> list[Worker]:
    """Two ranks as torchrun starts them; `second` are further words of rank 1."""
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2"}
    return [
        server.start(
            [str(folder), str(cache), *words, *(second if rank else ())],
            cache.with_suffix(f".{rank}"),
            script=str(RANK),
            environment={**place, "RANK": str(rank), "LOCAL_RANK": str(rank)},
        )
        for rank in (0, 1)
    ]


def told(workers: list[Worker]) -> list[dict[str, Any]]:
    """What each rank printed; {} of a killed one."""
    codes = [worker.wait() for worker in workers]
    assert set(codes) <= {0, -9}, [worker.log()[-2000:] for worker in workers]
    return [json.loads(worker.out.read_text() or "{}") for worker in workers]


def files_of(cache: Path) -> dict[str, bytes]:
    """Entries and sets; the memos hold times of files."""
    found = {file.relative_to(cache).as_posix(): file.read_bytes() for file in cache.rglob("*") if file.is_file()}
    return {name: data for name, data in found.items() if "/" in name}


def both_ways(server: ForkServer, folder: Path, tmp_path: Path, work: str) -> list[dict[str, Any]]:
    """One rank alone, and two ranks in another cache: what each printed, after their files were compared."""
    alone_in, shared_in = tmp_path / "alone", tmp_path / "shared"
    worker = server.start([str(folder), str(alone_in), work], tmp_path / "one", script=str(RANK))
    (alone,) = told([worker])
    first, second = told(ranks(server, folder, shared_in, work))
    assert first["set"] == second["set"] == alone["set"]
    assert first["counts"] == second["counts"] == alone["counts"] == [clips_in(folder), 0]
    assert files_of(shared_in) == files_of(alone_in)
    return [alone, first, second]


@pytest.mark.lasts(1)
def test_two_ranks_write_the_files_of_one_and_each_encodes_half(
    server: ForkServer, folder: Path, tmp_path: Path
) -> None:
    alone, first, second = both_ways(server, folder, tmp_path, "work=1")
    assert len(alone["names"]) == 2 * len(first["names"]) == 2 * len(second["names"]) == 2 * clips_in(folder) + 2
    pictures = [{name for name in rank["names"] if name.endswith(".png")} for rank in (first, second)]
    assert not pictures[0] & pictures[1]


@pytest.mark.soak
@pytest.mark.parametrize("clips", [200])
def test_the_busier_of_two_ranks_takes_half_of_the_processor(server: ForkServer, folder: Path, tmp_path: Path) -> None:
    """With clips of some 25 ms, planning and the set included."""
    alone, first, second = both_ways(server, folder, tmp_path, "work=50")
    assert max(first["cpu_s"], second["cpu_s"]) <= alone["cpu_s"] / 1.9


@pytest.mark.lasts(1)
@pytest.mark.parametrize("clips", [40, pytest.param(200, marks=pytest.mark.soak)])
def test_a_killed_rank_costs_what_it_was_at_and_the_others_end(
    server: ForkServer, folder: Path, clips: int, tmp_path: Path
) -> None:
    cache = tmp_path / "cache"
    first, killed = told(ranks(server, folder, cache, second=("kill=30",)))
    assert killed == {}
    assert first["error"].startswith("Another rank of this run has ended, so this one ends too")
    assert len(first["names"]) == clips + 1
    written = len(list(cache.rglob("*.safetensors")))
    assert clips + 1 + 29 <= written <= clips + 1 + 30
    again = told(ranks(server, folder, cache))
    assert sum(len(one["names"]) for one in again) == 2 * clips + 2 - written
    assert again[0]["set"] == again[1]["set"]
    assert len(list(cache.rglob("*.safetensors"))) == 2 * clips + 2


def test_what_one_rank_cannot_encode_is_said_by_all_with_the_clip(
    server: ForkServer, folder: Path, tmp_path: Path
) -> None:
    found = told(ranks(server, folder, tmp_path / "cache", "spoil=0007.png"))
    assert found[0]["error"] == found[1]["error"]
    assert found[0]["error"].startswith("Rank 1 of 2 could not encode its share: Encoding 0007.png gave NaN")
