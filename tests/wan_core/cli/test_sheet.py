"""The contact sheet as one page: every text is text, every file a cell, and what a reader filters by is there."""

from __future__ import annotations

import base64
import json
import re
from html.parser import HTMLParser
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from wan_core.choices import CHOICES_FILE

HOSTILE = '</p><script>alert(1)</script><img src=x onerror="alert(2)">&lt;'


class _Page(HTMLParser):
    """The tags of a page, and the text of each cell."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.cells: list[dict[str, Any]] = []
        self._open = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag == "li":
            self.cells.append({"groups": str(dict(attrs)["data-groups"]).split(), "text": ""})
            self._open = True

    def handle_endtag(self, tag: str) -> None:
        self._open = self._open and tag != "li"

    def handle_data(self, data: str) -> None:
        if self._open:
            self.cells[-1]["text"] += data + "\n"


@pytest.fixture
def folder(tmp_path: Path, make_clip) -> Path:
    made = tmp_path / 'clips <"&'
    for name in ("-a", "狐 <b>", "cut"):
        make_clip(f"{made.name}/{name}.mp4", num_frames=30)
        (made / f"{name}.txt").write_text(f"caption of {name}", encoding="utf-8")
    make_clip(f"{made.name}/short.mp4", num_frames=3)
    (made / "-a.txt").write_text(HOSTILE, encoding="utf-8")
    Image.new("RGB", (64, 48)).save(made / "still.png")
    chosen = {"狐 <b>.mp4": {"excluded": True}, "cut.mp4": {"start_s": 0.5, "length_s": 1, "crop": [0, 0.5]}}
    (made / CHOICES_FILE).write_text(json.dumps({"version": 1, "clips": chosen}), encoding="utf-8")
    return made


def test_the_page_has_a_cell_for_each_file_and_runs_no_foreign_text(folder: Path, tmp_path: Path, wan_core_command):
    out = tmp_path / "sheet.html"
    size = ("--width", "64", "--height", "48", "--num-frames", "9", "--missing-captions", "empty caption")
    done = wan_core_command("scan", str(folder), "--sheet", str(out), *size)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["excluded"] == ["狐 <b>.mp4"]
    text = out.read_text(encoding="utf-8")
    page = _Page(text)
    by_name = {cell["text"].split("\n")[0]: cell for cell in page.cells}
    assert list(by_name) == ["-a.mp4", "cut.mp4", "still.png", "狐 <b>.mp4", "short.mp4"]
    assert HOSTILE in by_name["-a.mp4"]["text"].replace("\n", "")
    assert "piece: 0.50 to 1.50 s" in by_name["cut.mp4"]["text"]
    assert "crop: moved to 0, 0.5" in by_name["cut.mp4"]["text"]
    assert "size: 64x48x9 of 64x48" in by_name["-a.mp4"]["text"]
    assert "length: 1.88 s at 16 fps" in by_name["-a.mp4"]["text"]
    assert "fewer than num_frames 9" in by_name["short.mp4"]["text"]
    groups = {name: cell["groups"] for name, cell in by_name.items()}
    assert groups["狐 <b>.mp4"] == ["excluded"]
    assert {"still", "captionless"} <= set(groups["still.png"])
    assert groups["short.mp4"] == ["skipped", "marked", "short"]

    tags = [tag for tag, _ in page.tags]
    assert tags.count("script") == 1, "a caption has become a script"
    assert not [name for _, attributes in page.tags for name in attributes if name.startswith("on")]
    pictures = [attributes["src"] or "" for tag, attributes in page.tags if tag == "img"]
    assert len(pictures) == 4
    for picture in pictures:
        kind, _, data = picture.partition(",")
        assert kind == "data:image/jpeg;base64"
        assert Image.open(BytesIO(base64.b64decode(data))).size == (160, 120)
    assert not re.search(r"""(src|href)\s*=\s*["']?https?:""", text), "the page needs a network"


def test_a_page_is_written_to_nothing_else(folder: Path, tmp_path: Path, wan_core_command):
    clip = folder / "cut.mp4"
    before = clip.read_bytes()
    refused = wan_core_command("scan", str(folder), "--sheet", str(clip))
    assert refused.returncode != 0
    assert "--sheet names the page to write" in refused.stderr
    assert clip.read_bytes() == before
    nowhere = wan_core_command(
        "scan", str(folder), "--sheet", str(tmp_path / "none" / "sheet.html"), "--num-frames", "9"
    )
    assert nowhere.returncode != 0
    assert "Traceback" not in nowhere.stderr
