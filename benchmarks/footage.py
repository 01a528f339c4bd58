"""Planted faults of footage: found, missed and false by measure, on clips drawn from held-out seeds and on real clips.

    python benchmarks/footage.py --clean 5 --faulty 20 --write-docs    # 100 clean clips, 280 with a fault
    python benchmarks/footage.py --real FOLDER --speed FILE            # real clips; time against decoding alone

Thresholds were tuned on seeds 100 to 399; the trial draws from 12000 on. Clips are H.264 at a CRF of 17 to 26. A logo
or subtitle is planted over a moving picture only: over a still one a static-edge test cannot tell, and says nothing.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]
os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1")

import numpy as np
from result_files import RESULTS

from tests.support.footage import CLEAN, FAULTS, MOVING_CAMERA, clean, faulty, write
from wan_core.advice.findings import findings_of_shot
from wan_core.footage import Measures
from wan_core.video.animations import open_moving
from wan_core.video.measuring import measure_footage

HELD_OUT = 12_000
MARK = {
    "letterbox": "bars",
    "pillars": "bars",
    "logo": "overlay",
    "subtitle": "overlay",
    "flicker": "flicker",
    "telecine": "combed",
    "interlaced": "combed",
    "24 in 30": "repeated",
    "12 in 24": "repeated",
    "blur": "blurred",
    "still start": "still_start",
    "still end": "still_end",
    "still": "still",
    "cuts": "cuts",
}
_UNSUITED = ("black background", "flash", "night sky", "fade in", "fade out")
"""kinds that hide a fault themselves: black over black, one bright frame, a still picture that fades"""

Trial = tuple[str, str, int]


def trials(clean_each: int, faulty_each: int, seed: int) -> list[Trial]:
    """(fault or "", kind, seed)"""
    found: list[Trial] = [("", kind, seed + number) for kind in CLEAN for number in range(clean_each)]
    rng = np.random.default_rng(seed)
    for fault in FAULTS:
        suited = [kind for kind in CLEAN if kind not in _UNSUITED]
        kinds = MOVING_CAMERA if MARK[fault] == "overlay" else suited
        found += [(fault, str(rng.choice(kinds)), seed + number) for number in range(faulty_each)]
    return found


def run(trial: Trial) -> tuple[Trial, set[str]]:
    fault, kind, seed = trial
    clip = faulty(fault, kind, seed) if fault else clean(kind, seed)
    crf = int(np.random.default_rng([seed, 9]).integers(17, 27))
    with tempfile.TemporaryDirectory() as folder:
        (shot,) = measure_footage(write(clip, Path(folder) / "clip.mp4", crf))
    return trial, findings_of_shot(shot)


def table(done: list[tuple[Trial, set[str]]]) -> list[str]:
    """Rows by fault, then the false marks of clean clips."""
    lines = ["| planted | clips | found | missed | other marks beside it |", "| --- | --- | --- | --- | --- |"]
    found_all = total = 0
    for fault in FAULTS:
        marks = [(kind, marks) for (planted, kind, _), marks in done if planted == fault]
        hits = sum(MARK[fault] in one for _, one in marks)
        missed = Counter(kind for kind, one in marks if MARK[fault] not in one)
        beside = Counter(mark for _, one in marks for mark in one - {MARK[fault]})
        said = ", ".join(f"{kind} {count}" for kind, count in missed.items())
        others = ", ".join(f"{mark} {count}" for mark, count in beside.items())
        lines.append(
            f"| {fault} | {len(marks)} | {hits} | {len(marks) - hits}{f' ({said})' if said else ''} | {others} |"
        )
        found_all, total = found_all + hits, total + len(marks)
    clean_marks = [(kind, marks) for (fault, kind, _), marks in done if not fault]
    lines += ["", f"{found_all} of {total} planted faults found ({found_all / max(1, total):.1%}).", ""]
    lines += ["| mark | false, of the clean clips | on |", "| --- | --- | --- |"]
    for mark in sorted(set(MARK.values())):
        on = Counter(kind for kind, marks in clean_marks if mark in marks)
        said = ", ".join(f"{kind} {count}" for kind, count in on.items())
        lines.append(f"| {mark} | {sum(on.values())} of {len(clean_marks)} | {said} |")
    marked = sum(bool(marks) for _, marks in clean_marks)
    lines += ["", f"{marked} of {len(clean_marks)} clean clips have a mark ({marked / max(1, len(clean_marks)):.1%})."]
    return lines


def real(folder: Path) -> list[str]:
    lines = ["| clip | motion | blur, px | cuts, s | marks |", "| --- | --- | --- | --- | --- |"]
    for path in sorted(folder.iterdir()):
        shot: Measures = measure_footage(path)[0]
        cuts = ", ".join(f"{cut:.2f}" for cut in shot.cuts_s)
        marks = ", ".join(sorted(findings_of_shot(shot)))
        lines.append(f"| {path.name} | {shot.motion:.2f} | {shot.blur_px:.2f} | {cuts} | {marks} |")
    return lines


def speed(path: Path) -> list[str]:
    """CPU seconds a frame, of the fastest of three rounds each."""
    alone, measured, frames = [], [], 0
    for _ in range(3):
        began = time.process_time()
        with open_moving(path) as moving:
            frames = sum(1 for _ in moving.frames(0.0))
        middle = time.process_time()
        measure_footage(path)
        alone.append((middle - began) / frames)
        measured.append((time.process_time() - middle) / frames)
    ratio = min(measured) / min(alone)
    return [
        f"{path.name}, {frames} frames: decoding alone {min(alone) * 1e3:.2f} CPU ms a frame, decoding and measuring "
        f"{min(measured) * 1e3:.2f}: {ratio:.2f} times; the measures alone take {ratio - 1:.2f} of decoding."
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clean", type=int, default=5, help="clips of each kind without a fault")
    parser.add_argument("--faulty", type=int, default=20, help="clips of each fault")
    parser.add_argument("--seed", type=int, default=HELD_OUT)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--real", type=Path, metavar="FOLDER")
    parser.add_argument("--speed", type=Path, metavar="FILE")
    parser.add_argument("--write-docs", action="store_true", help="write benchmarks/results/footage_CPU_2026-11.md")
    options = parser.parse_args()
    sections: list[str] = []
    if planned := trials(options.clean, options.faulty, options.seed):
        with multiprocessing.get_context("spawn").Pool(options.processes) as pool:
            done: list[tuple[Trial, set[str]]] = []
            for one in pool.imap_unordered(run, planned, chunksize=2):
                done.append(one)
                print(f"{len(done)} of {len(planned)}: {one}", file=sys.stderr, flush=True)
        sections += ["## Planted faults", "", *table(done)]
    if options.real is not None:
        sections += ["", "## Real clips", "", *real(options.real)]
    if options.speed is not None:
        sections += ["", "## Speed", "", *speed(options.speed)]
    print("\n".join(sections))
    if options.write_docs:
        head = ["# Measures of footage", "", *(__doc__ or "").strip().splitlines()[5:], ""]
        (RESULTS / "footage_CPU_2026-11.md").write_text("\n".join([*head, *sections]) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
