"""`cache encode` starts a ComfyUI of its own: with the options, and in the folder, of who calls it."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from wan_core.cli.commands import _parser
from wan_core.errors import DependencyError

MAIN = """
import json, os, pathlib, sys
pathlib.Path(__file__).with_name("started.json").write_text(json.dumps([os.getcwd(), sys.argv[1:]]))
sys.exit(3)
"""


def test_relative_options_lead_where_they_lead_for_the_caller(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tree := tmp_path / "ComfyUI").mkdir()
    (tree / "main.py").write_text(MAIN)
    graph = tmp_path / "graph.json"
    graph.write_text(json.dumps({"1": {"class_type": "CacheLatents", "inputs": {}}}))
    monkeypatch.chdir(tmp_path)
    words = ["cache", "encode", str(graph), "--comfyui", str(tree), "--comfyui-options", "--output-directory", "out"]
    options = _parser().parse_args(words)
    with pytest.raises(DependencyError, match="ComfyUI ended with code 3"):
        options.run(options, lambda _event: None, io.BytesIO())
    folder, told = json.loads((tree / "started.json").read_text())
    assert (folder, told[:2]) == (str(tmp_path), ["--output-directory", "out"])
