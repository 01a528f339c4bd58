"""Fixtures every test may use. What needs something this machine lacks skips, and says what is missing."""

from __future__ import annotations

import gc
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from comfy_server import ComfyServer, make_base

from tests.support.preforked import PreforkedEngine
from tests.support.server_log import refuse_warnings
from wan_core.packages import first_import

ROOT = Path(__file__).resolve().parent.parent
QUICK_MAIN = ROOT / "tests" / "tiny" / "quick_main.py"


# Set before torch is imported: threads of its pool wait by spinning, and a tiny run took nine times the CPU seconds.
os.environ.setdefault("OMP_NUM_THREADS", "1")
gc.disable()  # while libraries and tests are imported, of which nothing goes before the end


_imported = 0


def pytest_collection_finish() -> None:
    """Leaves libraries and tests out of every later search for garbage."""
    _leave_out_what_was_imported()
    gc.enable()


def pytest_runtest_logfinish() -> None:
    """Leaves out what a test was the first to import as well: a search through PEFT and its libraries takes a quarter
    of a second, and each end of a run asks for one."""
    if len(sys.modules) > _imported + 200:
        gc.collect()
        _leave_out_what_was_imported()


def _leave_out_what_was_imported() -> None:
    global _imported
    gc.freeze()
    _imported = len(sys.modules)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish() -> None:
    """Collects once and keeps the rest from being looked at again: pytest collects ten times before it ends, and every
    process of a run would spend seconds on libraries that it is about to drop."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def _nothing_outlives_the_machine() -> Iterator[None]:
    """Leaves files in the memory of the system: `os.fsync` waits for a disk, three milliseconds a call and twenty
    thousand calls a run. Tests that ask whether and when it is called put their own in its place; processes that are
    no forks of ours really wait."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: None)
        yield


@pytest.fixture(scope="session")
def repo() -> Path:
    """The checkout."""
    return ROOT


@pytest.fixture(scope="session")
def fixtures_dir() -> Path:
    """Golden data; see README.md there."""
    return ROOT / "tests" / "fixtures"


@pytest.fixture(scope="session")
def comfyui_tree() -> Path:
    """A genuine ComfyUI."""
    tree = Path(os.environ.get("COMFYUI_PATH") or ROOT / ".cache" / "comfyui").resolve()
    if not (tree / "main.py").is_file():
        pytest.skip("no ComfyUI: set COMFYUI_PATH, or run python3 scripts/test.py, which fetches one")
    return tree


@pytest.fixture(scope="session")
def tiny_models(comfyui_tree: Path) -> Path:
    """A `models` folder: diffusion_models/wan_tiny_t2v.safetensors, vae/wan_tiny_vae.safetensors."""
    from world import ensure_models

    return ensure_models(comfyui_tree)


@pytest.fixture(scope="session")
def pack_nodes(comfyui_tree: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Node id -> node class, loaded in this process as ComfyUI loads them. For schemas and pure parts of nodes."""
    from pack_loader import list_nodes, load_pack

    with warnings.catch_warnings(), first_import("comfy"):
        warnings.simplefilter("ignore")  # ComfyUI's imports are not ours to judge
        return list_nodes(load_pack(comfyui_tree, make_base(tmp_path_factory.mktemp("in_process"))))


@pytest.fixture
def clips(tmp_path: Path) -> Path:
    """A fresh dataset folder: three real H.264 clips and their captions."""
    from clips import place_clips

    try:
        return place_clips(tmp_path / "clips")
    except FileNotFoundError as missing:
        pytest.skip(str(missing))


@pytest.fixture(scope="session")
def comfy_base(comfyui_tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Makes a base directory with tiny models and `input/clips`: `comfy_base("name", dim=256)`."""
    from world import TINY_PACK, fill_base

    def make(name: str = "comfy", **size: int) -> Path:
        # A blank and letters of three scripts: ComfyUI makes the pack's module name of the whole path.
        base = make_base(tmp_path_factory.mktemp(name) / "絵 größe данные" / "ComfyUI", [TINY_PACK])
        try:
            return fill_base(base, comfyui_tree, **size)
        except FileNotFoundError as missing:
            pytest.skip(str(missing))

    return make


@pytest.fixture(scope="session")
def preforked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PreforkedEngine | None]:
    """What forks the workers of the shared server; None on Windows, which has no fork."""
    if not hasattr(os, "fork"):
        yield None
        return
    with PreforkedEngine(tmp_path_factory.mktemp("preforked")) as engine:
        yield engine


@pytest.fixture(scope="session")
def comfy(
    comfy_base: Callable[..., Path], comfyui_tree: Path, preforked: PreforkedEngine | None
) -> Iterator[ComfyServer]:
    """The running server most tests share. Leave it as you found it: no restart, no kill.

    Its workers are forked with their imports done. Tests of the process itself ask for `real_engine`, or `own_comfy`.
    """
    env = preforked.environment if preforked else None
    with ComfyServer(comfy_base("shared"), comfyui=comfyui_tree, main=QUICK_MAIN, env=env) as server:
        yield server
    refuse_warnings(server.log_file)


@pytest.fixture
def real_engine(preforked: PreforkedEngine | None) -> Iterator[Callable[[], None]]:
    """Workers of the shared server start as they do for a user, a new Python with every import, until the test ends
    or calls this."""

    def over() -> None:
        if preforked:
            preforked.real.unlink(missing_ok=True)

    if preforked:
        preforked.real.touch()
    yield over
    over()


@pytest.fixture
def own_comfy(comfy_base: Callable[..., Path], comfyui_tree: Path) -> Iterator[Callable[..., ComfyServer]]:
    """Starts servers a test has to itself, to kill and restart: `own_comfy(flags=[...], env={...})`."""
    started: list[ComfyServer] = []

    def start(base: Path | None = None, **options: Any) -> ComfyServer:
        server = ComfyServer(base or comfy_base("own"), comfyui=comfyui_tree, main=QUICK_MAIN, **options)
        started.append(server)
        return server.start()

    yield start
    for server in started:
        server.stop()
    for server in started:
        refuse_warnings(server.log_file)
