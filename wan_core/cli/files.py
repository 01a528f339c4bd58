"""`wan_core inspect | scan | check`: reports about a model or LoRA file, a dataset, and this machine."""

from __future__ import annotations

import argparse
import logging
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from ..errors import CheckpointError, ConfigError, ExitCode
from ..events import Emit
from ..packages import first_import
from .output import done, print_json

if TYPE_CHECKING:
    from ..dataset import DatasetConfig, Sample, ScanResult
    from ..video import VideoProcess


def add_file_commands(command: Callable[..., argparse.ArgumentParser]) -> None:
    command("check", _check, "train a tiny model on this machine and report what works, for bug reports")
    inspect = command("inspect", _inspect, "describe a model or LoRA file by its header")
    inspect.add_argument("file", type=Path, help="a .safetensors or .gguf file, or a folder")
    scan = command(
        "scan",
        _scan,
        "list the usable clips of a folder or list, with buckets and captions, and the problems of other files",
    )
    scan.add_argument(
        "source", type=Path, help="a folder, or a file that names a dataset: .jsonl, .csv, .tar, .toml ..."
    )
    scan.add_argument("--num-frames", type=int, default=33)
    scan.add_argument("--width", type=int, default=832)
    scan.add_argument("--height", type=int, default=480)
    scan.add_argument("--fps", type=float, default=16.0)
    scan.add_argument("--trigger-word", default="")
    scan.add_argument(
        "--recursive", action="store_true", help="subfolders too; clips in 10_walk are trained ten times as often"
    )
    scan.add_argument("--missing-captions", default="refuse", help="refuse, skip the file, or empty caption")
    scan.add_argument("--sheet", type=Path, metavar="PAGE.html", help="write the contact sheet as one HTML file")
    scan.add_argument("--allow", type=Path, action="append", default=[], help="a folder that a file may name files of")
    scan.add_argument(
        "--measure", action="store_true", help="decode each clip: motion, blur, bars, text, flicker, frames that repeat"
    )
    scan.add_argument("--model", type=Path, metavar="FILE", help="says what an epoch costs on this machine's card")
    scan.add_argument("--cache", type=Path, metavar="FOLDER", help="keeps measures, so that a stopped scan continues")
    scan.add_argument(
        "--column", action="append", default=[], metavar="ROLE=NAME", help="path, caption, repeats, control or mask"
    )


def _inspect(options: argparse.Namespace, _emit: Emit, out: BinaryIO) -> int:
    from math import prod

    from ..checkpoint import detect_variant, locate_weights, read_checkpoint
    from ..lora import is_lora

    header = read_checkpoint(options.file)
    if is_lora(header):
        return _inspect_lora(options.file, out)
    variant = detect_variant(header)
    try:
        stored, refused = locate_weights(header), ""
    except CheckpointError as error:  # the remaining facts of the file are still reported
        stored, refused = None, str(error)
        print(refused, file=sys.stderr)
    facts = {
        "file": options.file.name,
        "variant": variant.name,
        "task": variant.family.task,
        "trainable": variant.family.trained and stored is not None,
        "refused": refused,
        "candidates": list(variant.candidates),
        "expert": variant.expert,
        "boundary": variant.boundary,
        "shape": variant.shape.to_dict(),
        "latent_space": variant.latents.name,
        "fps": variant.fps,
        "container": header.container,
        "files": len(set(header.files.values())) or 1,
        "dtypes": sorted({weight.dtype for weight in (stored.weights if stored else header.tensors).values()}),
        "quantization": stored.quantization if stored else "unknown",
        "parameters": sum(prod(weight.shape) for weight in stored.weights.values()) if stored else None,
        "tensors": len(header.tensors),
        "size_bytes": header.size_bytes,
    }
    return done(out, facts)


def _inspect_lora(file: Path, out: BinaryIO) -> int:
    from ..checkpoint import HIGH, LOW
    from ..lora import describe_lora, holds_both_experts, read_lora

    both = holds_both_experts(file)
    source = read_lora(file, HIGH if both else None, leave_out=lambda _: True)
    dtypes = sorted({info.dtype for info in source.header.tensors.values()})
    size = {"dtypes": dtypes, "tensors": len(source.header.tensors), "size_bytes": source.header.size_bytes}
    found = {"lora": describe_lora(source), "of_no_wan_lora": list(source.left_out)[:20]}
    if both:
        found["low_noise_lora"] = describe_lora(read_lora(file, LOW, leave_out=lambda _: True))
    return done(out, {"file": file.name, **found, **size})


def _scan(options: argparse.Namespace, _emit: Emit, out: BinaryIO) -> int:
    from ..advice import MeasuredClips, advice_on, measured_clips
    from ..dataset import (
        Dataset,
        DatasetConfig,
        KnownFiles,
        ScanContext,
        Thumbnails,
        dataset_review,
        one_per_file,
        scan_report,
    )
    from ..files import atomic_write_bytes, digest_file
    from ..model import WAN21_LATENTS
    from ..video import VideoProcess
    from .sheet import sheet_page

    if options.sheet is not None and options.sheet.suffix.lower() not in (".html", ".htm"):
        raise ConfigError(f"--sheet names the page to write, such as sheet.html, not {options.sheet.name!r}.")
    names = ("trigger_word", "width", "height", "num_frames", "fps", "recursive", "missing_captions")
    asked = {name: getattr(options, name) for name in names}
    config = DatasetConfig(folder=f"folder:{options.source.name}", **asked)
    known, measured = None if options.cache is None else KnownFiles(options.cache), MeasuredClips()
    with VideoProcess() as video, tempfile.TemporaryDirectory(prefix="wan_scan") as scratch:
        results = _scanned(options, config, video, Path(scratch))
        dataset = Dataset(tuple(results))
        review = dataset_review(dataset, video=video, digest_of=digest_file, space=WAN21_LATENTS)
        if options.measure:
            try:
                measured = measured_clips(dataset, ScanContext(video, progress=_counted, known=known))
            finally:
                if known is not None:
                    known.save()
        step_s = None if options.model is None else _step_s(options.model, dataset.samples)
        lines = "\n".join(remark.text for remark in advice_on(review, measured, step_s))
        report = "\n\n".join([*(scan_report(result) for result in results), review.report(), lines])
        if options.sheet is not None:
            page = sheet_page(review, Thumbnails(video), report, options.source.name)
            atomic_write_bytes(options.sheet, page.encode())
    samples = [
        {
            "name": s.name,
            "kind": s.kind,
            "size": {"width": s.bucket.width, "height": s.bucket.height, "frames": s.bucket.num_frames},
            "caption": s.caption,
        }
        for result in results
        for s in result.samples
    ]
    rejected = [{"name": r.name, "reason": r.reason} for result in results for r in result.rejected]
    excluded = [s.name for result in results for s in result.excluded]
    measures = [{"name": s.name, **m.to_dict()} for s in one_per_file(dataset.samples) for m in measured.shots_of(s)]
    found = {"samples": samples, "rejected": rejected, "excluded": excluded, "measures": measures, "report": report}
    print_json(out, {"version": 2, **found})
    dataset.require_captions()
    return ExitCode.DONE


def _counted(done: int, total: int, name: str) -> None:
    print(f"measured {done} of {total}: {name}", file=sys.stderr)


def _step_s(model: Path, samples: Sequence[Sample]) -> float | None:
    """Returns the predicted seconds of a step with the largest clips on this machine's card; None without a card."""
    from ..files import Roots
    from ..load import ModelPlan
    from ..lora import LoraConfig
    from ..plan import report_settings
    from ..train import TrainConfig

    file, largest = (
        model.resolve(),
        max((s.bucket for s in samples), key=lambda one: one.num_frames * one.width * one.height),
    )
    plan, roots = ModelPlan(base_file=f"diffusion_models:{file.name}"), Roots({"diffusion_models": (str(file.parent),)})
    size = f"{largest.width}x{largest.height}x{largest.num_frames}"
    return report_settings(plan, roots, LoraConfig(), TrainConfig(), size, [])["step_seconds"]


def _scanned(
    options: argparse.Namespace, config: DatasetConfig, video: VideoProcess, scratch: Path
) -> tuple[ScanResult, ...]:
    from ..dataset import ScanContext, scan_folder, scan_parts
    from ..importers import Columns, SourceFile, is_source, open_source

    path: Path = options.source
    if not is_source(path):
        return (scan_folder(config, path, ScanContext(video, allowed=options.allow)),)
    # The dataset may name files next to it; other folders need --allow.
    allowed = [path.resolve() if path.is_dir() else path.resolve().parent, *options.allow, scratch]
    columns = Columns.from_dict(dict(pair.partition("=")[::2] for pair in options.column), "--column")
    source = SourceFile(
        path=path,
        columns=columns,
        allowed=allowed,
        unpacked=scratch,
        size_multiple=config.size_multiple,
        fps=config.fps,
    )
    return scan_parts(config, open_source(source), ScanContext(video, allowed=allowed))


def _check(_options: argparse.Namespace, _emit: Emit, out: BinaryIO) -> int:
    with first_import("torch"):
        from ..selftest import FAILED, Finding, as_text, check_machine

    logging.getLogger().setLevel(logging.WARNING)  # hides the log of the self-test's runs

    def show(finding: Finding) -> None:
        print(as_text(finding), file=sys.stderr, flush=True)

    found = check_machine(show)
    failed = [finding.name for finding in found if finding.state == FAILED]
    seconds = sum(finding.seconds for finding in found)
    verdict = f"{', '.join(failed)} failed" if failed else "everything that a run needs works"
    print(f"{verdict} ({seconds:.0f} s). These lines contain no paths: paste them into a report.", file=sys.stderr)
    if not out.isatty():  # on a terminal, stderr has already shown the lines
        facts = {one.name: {"state": one.state, "said": one.said, "seconds": round(one.seconds, 2)} for one in found}
        done(out, {"findings": facts, "failed": failed})
    return ExitCode.BUG if failed else ExitCode.DONE
