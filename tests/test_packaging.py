"""What the registry, the node manager and pip read about the pack agrees with itself."""

from __future__ import annotations

import fnmatch
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from wan_core import packages

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # pytest brings it there

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def pyproject() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def test_requirements_equal_the_project_dependencies(pyproject: dict[str, Any]) -> None:
    lines = (ROOT / "requirements.txt").read_text(encoding="utf-8").split("\n")
    assert [line for line in lines if line and not line.startswith("#")] == pyproject["project"]["dependencies"]


def test_nothing_of_comfyuis_own_is_required_or_pinned(pyproject: dict[str, Any]) -> None:
    for requirement in pyproject["project"]["dependencies"]:
        name = re.split(r"[<>=!~ \[]", requirement)[0]
        assert name not in ("torch", "torchvision", "torchao", "numpy", "transformers", "safetensors"), requirement
        assert "==" not in requirement, f"{requirement} would replace a user's build"


def test_versions_are_the_same_everywhere(pyproject: dict[str, Any]) -> None:
    text = (ROOT / "wan_core" / "__init__.py").read_text(encoding="utf-8")
    assert f'__version__ = "{pyproject["project"]["version"]}"' in text


def test_registry_data(pyproject: dict[str, Any]) -> None:
    comfy = pyproject["tool"]["comfy"]
    assert comfy["PublisherId"]
    assert comfy["DisplayName"]
    assert "web" not in comfy, "with WEB_DIRECTORY every script would be served twice"
    assert re.fullmatch(r"\d+\.\d+\.\d+", pyproject["project"]["version"])
    assert (ROOT / pyproject["project"]["license"]["file"]).is_file()


def test_pictures_of_the_readme_are_in_the_registry_archive() -> None:
    lines = (ROOT / ".comfyignore").read_text(encoding="utf-8").splitlines()
    ignored = [f"{line}*" if line.endswith("/") else line for line in lines if line and not line.startswith("#")]
    shown = re.findall(r"!\[[^\]]*\]\(([^)]+)\)", (ROOT / "README.md").read_text(encoding="utf-8"))
    assert "docs/images/canvas.jpg" in shown
    for picture in shown:
        assert (ROOT / picture).is_file(), picture
        assert not [pattern for pattern in ignored if fnmatch.fnmatch(picture, pattern)], picture
    assert any(fnmatch.fnmatch("docs/adr/0001.md", pattern) for pattern in ignored)


def test_the_floors_that_sentences_name_are_those_of_the_requirements(pyproject: dict[str, Any]) -> None:
    floor = ".".join(str(number) for number in packages.PYTHON_FLOOR)
    assert pyproject["project"]["requires-python"] == f">={floor}"
    floor = ".".join(str(number) for number in packages.TORCH_FLOOR)
    assert f"torch>={floor}" in pyproject["project"]["optional-dependencies"]["dev"]


def test_tested_versions_satisfy_the_floors(pyproject: dict[str, Any]) -> None:
    tested: dict[str, str] = {}
    for line in (ROOT / "tests" / "constraints.txt").read_text(encoding="utf-8").split("\n"):
        name, _, version = line.partition(";")[0].partition("==")
        if version and not line.startswith("#"):
            tested[name] = min(tested.get(name, version), version, key=_numbers)
    for requirement in pyproject["project"]["dependencies"]:
        name, floor = requirement.split(">=")
        assert _numbers(tested[name]) >= _numbers(floor), f"the tests run {name} {tested[name]}, below {requirement}"


def test_changelog_has_room_for_the_next_release() -> None:
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert "## [Unreleased]" in text


def test_one_template_folder_only() -> None:
    """ComfyUI lists templates from several folder names but serves one of them."""
    names = ("example_workflows", "example", "examples", "workflow", "workflows")
    assert [name for name in names if (ROOT / name).is_dir()] in ([], ["workflows"])


def test_json_files_are_json() -> None:
    for file in _tracked("*.json"):
        json.loads(file.read_text(encoding="utf-8"))


def test_no_text_file_names_a_place_on_one_machine() -> None:
    places = re.compile(r"(?<![\w.])/(work|root|home|Users)/[A-Za-z]|[A-Z]:\\\\?Users\\")
    invented = ROOT / "tests" / "nodes" / "test_workflow_file.py"  # paths of nobody, which must not get into a LoRA
    for file in _tracked("*.py", "*.md", "*.json", "*.toml", "*.txt", "*.js", "*.mjs", "*.yaml", ".ci/run"):
        if file == invented:
            continue
        text = file.read_text(encoding="utf-8")
        found = places.search(text)
        assert not found, f"{file.relative_to(ROOT)}: {text[found.start() :][:120] if found else ''}"


def _tracked(*patterns: str) -> list[Path]:
    listed = subprocess.run(["git", "ls-files", "-z", *patterns], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("not a git checkout")
    files = [ROOT / name for name in listed.stdout.split("\0") if name]
    me = Path(__file__).resolve()
    return [file for file in files if file.is_file() and file != me]


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version))
