"""The contact sheet as one HTML file, for machines without a screen: thumbnails inside, no server, no network.

Names and captions are foreign texts: each is escaped, and the page's policy allows its own script alone.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Iterator
from html import escape
from itertools import chain

from ..dataset import DatasetReview, Sample, Thumbnails, findings_by_file
from ..dataset.sample import one_per_clip

_GROUPS = {
    "": "All clips",
    "captionless": "Without caption",
    "short": "Too short",
    "still": "Stills",
    "alike": "Look-alikes",
    "excluded": "Excluded",
    "skipped": "Skipped",
    "marked": "Marked",
}
_STYLE = """
:root { color-scheme: light dark; font: 14px/1.4 system-ui, sans-serif }
body { margin: 0 auto; max-width: 1500px; padding: 16px }
h1 { font-size: 18px; margin: 0 }
header { position: sticky; top: 0; display: flex; flex-wrap: wrap; gap: 8px 16px; align-items: center; padding: 8px 0;
  background: Canvas }
input, select { font: inherit; padding: 3px 6px }
ul { display: grid; grid-template-columns: repeat(auto-fill, minmax(180px, 1fr)); gap: 16px; margin: 8px 0; padding: 0;
  list-style: none }
li { min-width: 0; overflow-wrap: anywhere; content-visibility: auto; contain-intrinsic-size: auto 240px }
img { display: block; width: 160px; height: 120px; object-fit: contain; background: #181818; border-radius: 4px }
strong { display: block; overflow: hidden; text-overflow: ellipsis; white-space: nowrap }
strong, p, mark { unicode-bidi: isolate }
p { margin: 0; display: -webkit-box; overflow: hidden; -webkit-line-clamp: 4; -webkit-box-orient: vertical }
p:focus, p:hover { -webkit-line-clamp: none }
small { display: block; opacity: .75 }
mark { display: block; background: none; color: light-dark(#8a4b00, #f0b35a) }
mark::before { content: "⚠ " }
li[data-groups~=excluded] img { opacity: .3 }
li[data-groups~=excluded] strong { text-decoration: line-through }
pre { white-space: pre-wrap }
"""
_SCRIPT = """
const [find, group] = document.querySelectorAll("input, select"), said = document.querySelector("output");
const cells = [...document.querySelectorAll("li")];
function show() {
  const text = find.value.toLowerCase();
  let count = 0;
  for (const cell of cells) {
    const inGroup = !group.value || cell.dataset.groups.split(" ").includes(group.value);
    cell.hidden = !(inGroup && (!text || cell.textContent.toLowerCase().includes(text)));
    count += !cell.hidden;
  }
  said.value = `${count} of ${cells.length}`;
}
find.addEventListener("input", show);
group.addEventListener("change", show);
show();
"""


COLUMNS: dict[str, Callable[[Sample], str]] = {
    "size": lambda s: f"{s.bucket} of {s.info.width}x{s.info.height}",
    "length": lambda s: f"{s.info.duration_s:.2f} s at {s.info.fps:.4g} fps" if s.kind == "clip" else "still",
    "piece": lambda s: _piece(s),
    "crop": lambda s: "" if s.choice.crop is None else "moved to {:g}, {:g}".format(*s.choice.crop),
}
"""the lines of a cell, name -> text, "" for none; a measure of clips is one more"""


def sheet_page(review: DatasetReview, thumbnails: Thumbnails, report: str, title: str) -> str:
    """Returns the page: a cell for each file, or for each shot with its own caption, and the report below."""
    excluded = chain.from_iterable(part.excluded for part in review.dataset.parts)
    samples = one_per_clip((*review.dataset.samples, *excluded))
    findings = findings_by_file(review)
    cells = "".join(chain((_cell(s, findings.get(s.path, []), thumbnails) for s in samples), _skipped(review)))
    menu = "".join(f'<option value="{value}">{name}</option>' for value, name in _GROUPS.items())
    digest = base64.b64encode(hashlib.sha256(_SCRIPT.encode()).digest()).decode()
    policy = f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    return (
        f'<!doctype html>\n<html lang="en"><meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        f'<meta name="viewport" content="width=device-width">\n<title>{_safe(title)}</title>\n<style>{_STYLE}</style>\n'
        f"<header><h1>{_safe(title)}</h1>"
        f'<input type="search" placeholder="Find" aria-label="Find in names and captions">'
        f'<select aria-label="Which clips are shown">{menu}</select><output></output></header>\n'
        f"<main><ul>{cells}</ul><details><summary>Report</summary><pre>{_safe(report)}</pre></details></main>\n"
        f"<script>{_SCRIPT}</script>\n</html>\n"
    )


def _cell(sample: Sample, findings: list[str], thumbnails: Thumbnails) -> str:
    picture = base64.b64encode(thumbnails.jpeg(sample)).decode()
    marks = {
        "still": sample.kind == "still",
        "captionless": sample.caption_from in ("none", "trigger"),
        "excluded": sample.choice.excluded,
        "short": bool(sample.cut.held),
        "alike": not {"same bytes", "look alike"}.isdisjoint(findings),
        "marked": bool(findings),
    }
    lines = [f"<small>{name}: {_safe(said)}</small>" for name, text in COLUMNS.items() if (said := text(sample))]
    said = "<small>excluded</small>" * sample.choice.excluded + "".join(f"<mark>{line}</mark>" for line in findings)
    return (
        f'<li data-groups="{" ".join(name for name, holds in marks.items() if holds)}">'
        f'<img alt="" loading="lazy" src="data:image/jpeg;base64,{picture}"><strong title="{_safe(sample.clip_name)}">'
        f"{_safe(sample.clip_name)}</strong>{said}{''.join(lines)}<p tabindex=0>{_safe(sample.caption)}</p></li>\n"
    )


def _skipped(review: DatasetReview) -> Iterator[str]:
    for item in chain.from_iterable(part.rejected for part in review.dataset.parts):
        groups = "skipped marked short" if item.frames else "skipped marked"
        yield f'<li data-groups="{groups}"><strong>{_safe(item.name)}</strong><mark>{_safe(item.reason)}</mark></li>\n'


def _piece(sample: Sample) -> str:
    choice = sample.choice
    if not choice.is_piece or sample.kind == "still":
        return ""
    end_s = choice.start_s + choice.length_s if choice.length_s is not None else sample.info.duration_s
    return f"{choice.start_s:.2f} to {min(end_s, sample.info.duration_s):.2f} s"


def _safe(text: str) -> str:
    """Returns a text as HTML; half a character, which no file can hold, becomes "?"."""
    return escape(text.encode("utf-8", "replace").decode())
