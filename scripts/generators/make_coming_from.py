"""Writes the tables of docs/use/coming_from.md: each key of another trainer, its widget, and the difference.

The source is the tables of wan_core/migrate, which read the settings.

.venv/bin/python scripts/generators/make_coming_from.py            # writes the page
.venv/bin/python scripts/generators/make_coming_from.py --check    # exit code 1 where the page differs
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator
from itertools import groupby
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT)]

from wan_core.migrate import TRAINERS
from wan_core.migrate.foreign_job import place_of
from wan_core.migrate.keys import Key

PAGE = ROOT / "docs" / "use" / "coming_from.md"
TITLES = {
    "LoadWanModel": "Load Wan Model",
    "Fp8Quantize": "Fp8 / Int8 Quantize",
    "SplitAcrossGPUs": "Split Across GPUs",
    "AddFrozenLora": "Add Frozen LoRA",
    "WanDatasetSettings": "Wan Dataset Settings",
    "WanDatasetFromFile": "Wan Dataset From File",
    "WanSliderPrompts": "Wan Slider Prompts",
    "WanTrainSettings": "Wan Train Settings",
    "WanPreviewSettings": "Wan Preview Settings",
    "TrainLoRA": "Train Wan LoRA",
    "VAELoader": "Load VAE",
    "CLIPLoader": "Load CLIP",
}


def page(text: str) -> str:
    """Returns the page with new tables."""
    for trainer, sections in TRAINERS.items():
        begin, end = f"<!-- {trainer} -->\n", "<!-- end -->"
        before, _, rest = text.partition(begin)
        _, _, after = rest.partition(end)
        rows = [row for section, keys in sections.items() for row in rows_of(section, keys)]
        table = "\n".join(["| key | becomes | different |", "| --- | --- | --- |", *rows])
        text = f"{before}{begin}{table}\n{end}{after}"
    return text


def rows_of(section: str, keys: Iterable[Key]) -> Iterator[str]:
    """Yields a row for each key, and one for neighbours that are dropped for the same reason."""
    for (at, note), group in groupby(keys, key=lambda key: (key.at, key.note) if key.read is None else (key.at, key)):
        members = list(group)
        names = " ".join(f"`{f'{section}.' if section else ''}{name}`" for key in members for name in key.names.split())
        said = note if isinstance(note, str) else note.note
        own = [f"else {key.own}" for key in members if isinstance(key.own, int | float | str) and key.own is not False]
        yield f"| {names} | {_place(at)} | {'; '.join(filter(None, [said, *own[:1]]))} |"


def _place(at: str) -> str:
    if not at:
        return "-"
    node, widget = place_of(at)
    widget = "low_noise_model" if widget == "high_noise_model" else widget
    return f"{TITLES[node]}: `{widget}`"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing; exit code 1 when something would change")
    options = parser.parse_args()
    text = PAGE.read_text(encoding="utf-8")
    made = page(text)
    if made == text:
        return 0
    print(f"{'not up to date: ' if options.check else 'writes '}{PAGE.relative_to(ROOT).as_posix()}")
    if not options.check:
        PAGE.write_text(made, encoding="utf-8", newline="\n")
    return int(options.check)


if __name__ == "__main__":
    sys.exit(main())
