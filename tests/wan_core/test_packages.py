"""What is too old, in one sentence each, with a pip line that helps; and how a first import spares its time."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from wan_core import packages
from wan_core.errors import DependencyError
from wan_core.packages import check_versions, end_under_old_python, first_import, pip_line

ROOT = Path(__file__).resolve().parent.parent.parent


def test_a_first_import_is_not_searched_for_garbage_and_neither_is_what_it_brought() -> None:
    before = gc.get_freeze_count()
    with first_import("no_such_package"):
        assert not gc.isenabled()
        brought = [[number] for number in range(10_000)]
    assert gc.isenabled()
    assert gc.get_freeze_count() >= before + len(brought) // 2


def test_a_first_import_that_fails_ends_the_pause_too() -> None:
    with pytest.raises(ImportError), first_import("no_such_package"):
        __import__("no_such_package")
    assert gc.isenabled()


def test_what_is_imported_already_or_not_to_be_searched_changes_nothing() -> None:
    """Nothing is frozen: the count does not grow by what came. It may fall, as frozen objects end like any other."""
    before = gc.get_freeze_count()
    with first_import("sys"):
        assert gc.isenabled()
        brought = [[number] for number in range(10_000)]
    gc.disable()
    try:
        with first_import("no_such_package"):
            brought += [[number] for number in range(10_000)]
        assert not gc.isenabled()
    finally:
        gc.enable()
    assert gc.get_freeze_count() < before + len(brought) // 2


def test_the_pip_line_names_this_very_python_also_below_a_folder_with_a_space(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", r"C:\My ComfyUI\python_embeded\python.exe")
    assert pip_line("av>=17.1") == r'"C:\My ComfyUI\python_embeded\python.exe" -m pip install "av>=17.1"'


@pytest.mark.parametrize(
    ("torch", "said"),
    [("2.5.1", "needs torch 2.6 or newer, but torch 2.5.1 is installed."), ("2.6.0", ""), ("2.15.0", ""), ("3.0", "")],
)
def test_a_torch_below_the_floor_is_refused_in_one_sentence(
    torch: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packages, "version_of", lambda name: {"torch": torch}[name])
    if not said:
        return check_versions()
    with pytest.raises(DependencyError, match=said.replace(".", r"\.")):
        check_versions()


def test_an_old_python_is_refused_in_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "version_info", (3, 9, 18, "final", 0))
    with pytest.raises(DependencyError, match=r"needs Python 3\.10 or newer; this is Python 3\.9\.18"):
        check_versions()


def test_an_old_python_ends_with_5_before_it_meets_what_it_cannot_import(monkeypatch: pytest.MonkeyPatch) -> None:
    with open(ROOT / "wan_core" / "__main__.py", encoding="utf-8") as file:
        text = file.read()
    assert text.index("\nend_under_old_python()") < text.index("\nfrom .cli")
    monkeypatch.setattr(sys, "version_info", (3, 9, 18, "final", 0))
    with pytest.raises(SystemExit) as ended:
        end_under_old_python()
    assert ended.value.code == 5


def place_torch(folder: Path, version: str) -> None:
    """A torch of that version, of which the engine must not import a thing."""
    (folder / "torch").mkdir()
    (folder / "torch" / "__init__.py").write_text("raise RuntimeError('torch was imported')\n")
    info = folder / f"torch-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: torch\nVersion: {version}\n")


@pytest.mark.parametrize("start", [["-m", "wan_core"], ["-X", "utf8", str(ROOT / "wan_core" / "launch.py")]])
def test_the_command_line_with_an_old_torch_ends_with_5_and_one_sentence(start: list[str], tmp_path: Path) -> None:
    place_torch(tmp_path, "2.4.1")
    done = subprocess.run(
        [sys.executable, *start, "inspect", "model.safetensors"],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 5, done.stderr[-2000:]
    assert "Traceback" not in done.stderr
    event = json.loads(done.stdout)
    assert event["message"].startswith("Wan Trainer needs torch 2.6 or newer, but torch 2.4.1 is installed.")
    assert done.stderr.strip() == event["message"]


def test_comfyui_is_told_of_an_old_torch_in_one_sentence_and_goes_on(tmp_path: Path) -> None:
    """ComfyUI logs the message of whatever its call of comfy_entrypoint raises, one line, and loads the next pack."""
    place_torch(tmp_path, "2.4.1")
    code = (
        "import asyncio, sys\n"
        "from importlib.util import module_from_spec, spec_from_file_location\n"
        f"spec = spec_from_file_location('pack', {str(ROOT / '__init__.py')!r})\n"
        "pack = sys.modules['pack'] = module_from_spec(spec)\n"
        "spec.loader.exec_module(pack)\n"
        "try: asyncio.run(pack.comfy_entrypoint())\n"
        "except Exception as error: print(f'Error while calling comfy_entrypoint: {error}')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr == ""
    said = done.stdout.splitlines()
    assert len(said) == 1
    assert "Wan Trainer needs torch 2.6 or newer, but torch 2.4.1 is installed." in said[0]
