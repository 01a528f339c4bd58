"""What each precision switch costs on a model of real width with random weights, through the worker ComfyUI starts.

    python benchmarks/precision_audit.py --shape 1.3B-12 --size 176x128x9 --timesteps 1

Nothing is downloaded. Random weights rank the switches; how large an error is on a trained model, the PrecisionAudit
node measures. Writes precision_audit_<shape>_<size>_<hardware>_<yyyy-mm>.json and .md to benchmarks/results/, and the
picture where --picture says.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from train_step import ROOT, SHAPES, hardware, make_job

from wan_core.audit import AuditReport, read_report


def main() -> int:
    options = parse()
    width, height, frames = (int(n) for n in options.size.split("x"))
    folder = Path(tempfile.mkdtemp(dir=options.work))
    try:
        directory, roots_file = make_job(folder, options, width, height, frames)
        audit(directory, roots_file, options)
        report = read_report(directory)
        if options.picture:
            shutil.copyfile(directory / "precision_audit.png", options.picture)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    save(report, f"{options.shape}_{options.size}", options.out, " ".join(sys.argv[1:]))
    print(report.table())
    return 0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--shape", choices=list(SHAPES), default="1.3B-12", help="1.3B-12: twelve blocks of the 1.3B")
    parser.add_argument("--size", default="176x128x9", help="width x height x frames")
    parser.add_argument("--timesteps", type=int, default=3)
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--precision", default="balanced", help="balanced, reference or fast")
    parser.add_argument("--base-precision", default="as in file")
    parser.add_argument("--quantize", default="", help="fp8_e4m3fn or int8")
    parser.add_argument("--split", action="store_true", help="split blocks over all GPUs")
    parser.add_argument("--no-alone", action="store_true", help="leave out float32 with each part lowered alone")
    parser.add_argument("--work", type=Path, help="folder for the random weights; default: the system's")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results")
    parser.add_argument("--picture", type=Path, help="where to write the chart")
    parser.set_defaults(steps=1, no_checkpointing=False)  # of the training job the audit reads, which never trains
    return parser.parse_args()


def audit(directory: Path, roots_file: Path, options: argparse.Namespace) -> None:
    """Run the worker to its end."""
    command = [sys.executable, "-X", "utf8", str(ROOT / "wan_core" / "launch.py"), "audit", str(directory)]
    command += ["--roots", str(roots_file), "--timesteps", str(options.timesteps)]
    command += [] if options.no_alone else ["--alone"]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"The worker ended with {done.returncode}:\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")


def save(report: AuditReport, name: str, out: Path, settings: str) -> None:
    """The report as data, and as a page to read."""
    out.mkdir(parents=True, exist_ok=True)
    stem = f"precision_audit_{name}_{hardware().replace(' ', '-')}_{time.strftime('%Y-%m')}"
    (out / f"{stem}.json").write_text(json.dumps(report.to_dict(), indent=1) + "\n", encoding="utf-8")
    page = f"# Precision audit\n\nSettings: `{settings}`; torch {report.torch}\n\n```\n{report.table()}\n```\n"
    (out / f"{stem}.md").write_text(page, encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
