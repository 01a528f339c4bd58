"""Cost of caching without the VAE: encoding with a stand-in VAE of one second, scanning, and planning again.

    python benchmarks/caching.py --against ../before --rounds 3       # compared with another checkout
    python benchmarks/caching.py --clips 1000 --rounds 1

Every measurement is a process of its own, this checkout and the other one by turns, over the same files. Times are
wall times, and CPU seconds of the process with its children. Writes one result file to benchmarks/results/.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import itertools
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parents[1]
ROOT = Path(os.environ.get("WAN_BENCH_ROOT", HERE))
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

import numpy as np
import torch
from result_files import RESULTS, hardware, write_result

from wan_core.cache import Encoders, LatentCache, encode_missing, plan_encoding
from wan_core.dataset import Dataset, DatasetConfig, ScanContext, dataset_report, dataset_review, scan_folder
from wan_core.model import WAN21_LATENTS
from wan_core.video import VideoProcess

VAE_S = 1.0
CASES = ("encode 832x480", "encode 1280x720", "scan again", "one caption edited", "plan again")
SMALL = {"width": 64, "height": 48, "num_frames": 9}


class StandInVae:
    """Takes one second without CPU time, as a VAE on a GPU."""

    identity, space = "stand-in", WAN21_LATENTS

    def __init__(self) -> None:
        self.ended: list[float] = []

    def encode(self, pixels: torch.Tensor) -> torch.Tensor:
        began = time.monotonic()
        frames, height, width, _ = pixels.shape
        value = float(pixels[frames // 2, height // 2, width // 2, 0])
        latent = torch.full((16, 1 + (frames - 1) // 4, height // 8, width // 8), value)
        time.sleep(max(0.0, VAE_S - (time.monotonic() - began)))
        self.ended.append(time.monotonic())
        return latent

    def decode(self, latent: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError


class StandInText:
    identity = "stand-in"

    def encode(self, text: str) -> torch.Tensor:
        return torch.full((1, 4096), float(len(text)))


def context(video: VideoProcess, cache: Path) -> ScanContext:
    """Returns the context of a scan with its known files in `cache`."""
    return ScanContext(video, known=LatentCache(cache).files)


def scanned(folder: Path, cache: Path, video: VideoProcess, **settings: Any) -> Dataset:
    """Scans and reviews a folder as the node does, without the contact sheet."""
    config, found = DatasetConfig(**settings), context(video, cache)
    dataset = Dataset((scan_folder(config, folder, found),))
    assert found.known is not None
    review = dataset_review(dataset, video=video, digest_of=found.known.digest, space=WAN21_LATENTS, known=found.known)
    found.known.save()
    _ = f"{dataset_report(dataset)}{review.report()}"
    return dataset


def planned(dataset: Dataset, cache: Path) -> Any:
    return plan_encoding(
        dataset, LatentCache(cache), vae_identity="stand-in", text_identity="stand-in", space=WAN21_LATENTS
    )


def measured(case: str, work: Path) -> dict[str, float]:
    """Returns the seconds of one case, in this process."""
    cache, folder = work / "cache", work / "small"
    began, cpu = time.monotonic(), cpu_s()

    def result(per: int = 1, **more: float) -> dict[str, float]:
        return {"wall_s": (time.monotonic() - began) / per, "cpu_s": (cpu_s() - cpu) / per, **more}

    with VideoProcess() as video:
        if case.startswith("encode"):
            width, height = map(int, case.split()[1].split("x"))
            with tempfile.TemporaryDirectory(dir=work) as fresh:
                size = {"width": width, "height": height, "num_frames": 81}
                dataset = Dataset((scan_folder(DatasetConfig(**size), work / "large", ScanContext(video)),))
                plan, kept, vae = planned(dataset, Path(fresh)), LatentCache(Path(fresh)), StandInVae()
                began, cpu = time.monotonic(), cpu_s()
                encode_missing(plan, kept, Encoders(codec=vae, text_encoder=StandInText(), video=video))
                video.close()  # its CPU seconds count once it has ended
                names = hashlib.sha256()
                for path in sorted(Path(fresh).glob("*/??/*")):
                    data = path.read_bytes()
                    end = 8 + int.from_bytes(data[:8], "little")
                    header = json.dumps(json.loads(data[8:end]), sort_keys=True)  # safetensors gives it any order
                    names.update(f"{path.name}{header}".encode() + data[end:])
                count = len(dataset.samples)
                peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
                gaps = [after - before for before, after in itertools.pairwise(vae.ended)]
                same = int(names.hexdigest()[:12], 16)
                return result(count, between_s=statistics.median(gaps), peak_mib=peak, entries=same)
        if case == "plan again":
            dataset = Dataset((scan_folder(DatasetConfig(**SMALL), folder, context(video, cache)),))
            began, cpu = time.monotonic(), cpu_s()
            assert not planned(dataset, cache).missing_clips
            return result()
        if case == "one caption edited":
            edited = folder / "clip_00007.txt"
            edited.write_text(f"edited {time.time_ns()}", encoding="utf-8")
            dataset = scanned(folder, cache, video, **SMALL)
            assert len(planned(dataset, cache).missing_texts) == 1
        else:
            scanned(folder, cache, video, **SMALL)
        video.close()
        return result()


def cpu_s() -> float:
    used = os.times()
    return used.user + used.system + used.children_user + used.children_system


def write_clip(path: Path, frames: int, width: int, height: int, seed: int, fps: int) -> None:
    """Writes a clip of coarse random colours that move sideways."""
    import av

    draws = np.random.default_rng(seed)
    coarse = draws.integers(0, 256, (6, 8, 3), np.uint8)
    picture = np.kron(coarse, np.ones((-(-height // 6), -(-width // 8), 1), np.uint8))[:height, :width]
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=fps, options={"preset": "veryfast", "threads": "2"})
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        for number in range(frames):
            moved = np.roll(picture, 3 * number, axis=1)
            if width > 500:  # noise, so that it compresses like camera footage
                moved = moved ^ draws.integers(0, 16, moved.shape, np.uint8)
            frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(moved), format="rgb24")
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))


def prepare(work: Path, clips: int) -> None:
    """Writes twelve clips of 5.1 s in 1280x720 at 30 fps, and `clips` tiny ones with a complete cache."""
    for folder in ("small", "large"):
        (work / folder).mkdir(parents=True)
    for number in range(12):
        write_clip(work / "large" / f"{number}.mp4", 153, 1280, 720, number, 30)
        (work / "large" / f"{number}.txt").write_text(f"clip {number}")
    for number in range(clips):
        write_clip(work / "small" / f"clip_{number:05d}.mp4", 9, 64, 48, number, 16)
        (work / "small" / f"clip_{number:05d}.txt").write_text(f"the caption of clip {number}")
    with VideoProcess() as video:
        dataset = scanned(work / "small", work / "cache", video, **SMALL)
    os.fsync = lambda _file: None  # in this process only: these files need not survive a power cut
    cache = LatentCache(work / "cache")
    plan = planned(dataset, work / "cache")
    for task in plan.missing_clips:
        cache.write_latent(task.key, torch.zeros(task.shape))
    plan = dataclasses.replace(plan, missing_clips=())
    with VideoProcess() as video:
        encode_missing(plan, cache, Encoders(codec=None, text_encoder=StandInText(), video=video))


def report(result: dict[str, Any]) -> str:
    there = bool(result["against"])
    lines = [
        "# Caching beside the VAE", "",
        f"{result['hardware']}, torch {result['torch']}; load of the machine {result['load']}. Medians of "
        f"{result['count']} rounds" + (", the other checkout and this one by turns." if there else "."), "",
        "| case | wall s | CPU s |" + (" wall s before | CPU s before | before / now |" if there else ""),
        "| --- | --- | --- |" + (" --- | --- | --- |" if there else ""),
    ]  # fmt: skip
    for case, sides in result["cases"].items():
        cells = [case]
        for rows in sides.values():
            cells += [f"{statistics.median(row[part] for row in rows):.2f}" for part in ("wall_s", "cpu_s")]
        if there:
            pairs = zip(sides["now"], sides["before"], strict=True)
            cells.append(f"{statistics.median(b['wall_s'] / n['wall_s'] for n, b in pairs):.1f}")
        lines.append(f"| {' | '.join(cells)} |")
    lines += [
        "",
        f'"encode": twelve clips of 1280x720 at 30 fps to 81 frames, seconds a clip, with a VAE that sleeps {VAE_S:.1f}'
        f' s. The others: {result["clips"]:,} clips of 9 frames 64x48, each with a caption of its own. "scan again" is '
        'all that a dataset node does but its picture, "one caption edited" that and the plan of an encoding.',
    ]
    for case, sides in result["cases"].items():
        if case.startswith("encode"):
            same = len({row["entries"] for rows in sides.values() for row in rows}) == 1
            lines += ["", f"{case}: entries {'the same in every value and field' if same else 'DIFFER'}."]
            for side, rows in sides.items():
                gap = statistics.median(row["between_s"] for row in rows)
                peak = max(row["peak_mib"] for row in rows)
                lines.append(
                    f"From one clip encoded to the next {gap:.2f} s {side}, peak of the process {peak:,.0f} MiB."
                )
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--against", type=Path, help="another checkout")
    parser.add_argument("--clips", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cases", nargs="+", default=CASES, choices=CASES)
    parser.add_argument("--work", type=Path, help="folder with what was prepared before, or for it")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--measure", choices=CASES, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(measured(options.measure, options.work)))
        return 0
    with tempfile.TemporaryDirectory() as scratch:
        work: Path = options.work or Path(scratch) / "work"
        if not work.exists():
            prepare(work, options.clips)
        sides = {"now": HERE} | ({"before": options.against.resolve()} if options.against else {})
        cases: dict[str, dict[str, list[dict[str, float]]]] = {c: {s: [] for s in sides} for c in options.cases}
        for _ in range(options.rounds):
            for case in options.cases:
                for side, root in sides.items():
                    row = measure_apart(case, work, root)
                    cases[case][side].append(row)
                    print(
                        case,
                        side,
                        {name: round(value, 3) for name, value in row.items() if name != "entries"},
                        flush=True,
                    )
    result = {
        "hardware": hardware(), "torch": torch.__version__, "load": f"{os.getloadavg()[1]:.0f}",
        "against": bool(options.against), "count": options.rounds, "clips": options.clips, "cases": cases,
    }  # fmt: skip
    write_result("caching", result, report(result), out=options.out)
    return 0


def measure_apart(case: str, work: Path, root: Path) -> dict[str, float]:
    """Returns the measurement of a new process with the code of `root`."""
    command = [sys.executable, __file__, "--measure", case, "--work", str(work)]
    answer = subprocess.run(command, env={**os.environ, "WAN_BENCH_ROOT": str(root)}, capture_output=True, text=True)
    if answer.returncode:
        raise SystemExit(answer.stderr[-2000:])
    return json.loads(answer.stdout.splitlines()[-1])


if __name__ == "__main__":
    sys.exit(main())
