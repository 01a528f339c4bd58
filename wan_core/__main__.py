"""The command line: `python -m wan_core COMMAND ...`, and the same through launch.py.

JSON on stdout, sentences on stderr. Exit codes: 0 done, 3 stopped with state, 4 does not fit, 5 bad data or settings,
1 a bug. RUN is a run directory or its run.json.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import os
import shutil
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NoReturn

from .packages import check_versions, end_under_old_python

end_under_old_python()  # which cannot import what follows

from .cli.cache import add_cache_commands  # noqa: E402
from .cli.maxdiffusion import add_tfrecord_commands  # noqa: E402
from .errors import (  # noqa: E402
    CheckpointError,
    ConfigError,
    ExitCode,
    OutOfMemory,
    Stopped,
    WanTrainerError,
    host_memory_ran_out,
)
from .events import Emit, Event, Failed, to_line  # noqa: E402
from .files import DISK_FULL, Roots, size_text  # noqa: E402
from .words import plain  # noqa: E402

if TYPE_CHECKING:
    from .control import Control
    from .dataset import DatasetConfig, ScanResult
    from .video import VideoProcess

__all__ = ["main"]


def main(arguments: list[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    out = _private_stdout()
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    _quieten_libraries()
    emit = _emitter(out)
    try:
        check_versions()
        options = _parser().parse_args(arguments)
        return options.run(options, emit, out)
    except KeyboardInterrupt:
        print("Ended at once; saved steps stand.", file=sys.stderr)
        return ExitCode.STOPPED
    except Stopped as stop:
        print(stop.reason, file=sys.stderr)
        return ExitCode.STOPPED
    except WanTrainerError as error:
        return _fail(emit, str(error), type(error).__name__, error.exit_code)
    except OSError as error:
        return _fail(emit, _of_the_disk(error), "OSError", ExitCode.BAD_INPUT)
    except Exception as error:
        if host_memory_ran_out(error):
            return _fail(emit, str(OutOfMemory.of_host()), "OutOfMemory", ExitCode.DOES_NOT_FIT)
        print(*map(plain, traceback.format_exc().splitlines()), sep="\n", file=sys.stderr)
        message = f"A bug: {type(error).__name__}: {error}. Please report it with the log."
        return _fail(emit, message, type(error).__name__, ExitCode.BUG)


def _quieten_libraries() -> None:
    """What every run would write into its log, and nobody can do anything about."""
    logging.getLogger("torchao").setLevel(logging.ERROR)  # it warns about CUDA libraries on every CPU
    # torch sets levels anew when it is imported; a filter stays. It is torchao that is told here.
    logging.getLogger("torch.utils._pytree").addFilter(lambda record: "register_constant" not in record.getMessage())
    warnings.filterwarnings("ignore", message="TorchaoLoraLinear was instantiated without")  # we never merge


def _of_the_disk(error: OSError) -> str:
    """An error of the file system in one sentence, without the path of this machine above the folder."""
    path = str(error.filename or "")
    name = f" ({os.path.basename(path)})" if path else ""
    if error.errno in DISK_FULL and path:
        folder = os.path.dirname(path)
        with contextlib.suppress(OSError):
            free = size_text(shutil.disk_usage(folder).free)
            return (
                f"The disk of {os.path.basename(folder)} has no room for {os.path.basename(path)}: {free} free. Make "
                "room and start again; saved steps are kept."
            )
    return f"{error.strerror or error}{name}. Check the disk and folder."


def _fail(emit: Emit, message: str, kind: str, code: ExitCode) -> int:
    print(plain(message), file=sys.stderr)
    emit(Failed(message=message, kind=kind, exit_code=int(code)))
    return int(code)


def _private_stdout() -> BinaryIO:
    """A copy of fd 1 for our lines alone; fd 1 itself goes to stderr, so no library can print into it."""
    sys.stdout.flush()
    private = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)
    return private


def _emitter(out: BinaryIO) -> Emit:
    def emit(event: Event) -> None:
        with contextlib.suppress(OSError):  # the reader is gone; the end of stdin tells the worker to stop
            out.write(to_line(event).encode("ascii"))

    return emit


def _print_json(out: BinaryIO, data: Any) -> None:
    out.write((json.dumps(data, ensure_ascii=True, indent=2) + "\n").encode("ascii"))


def _roots(options: argparse.Namespace) -> Roots:
    return Roots.read(options.roots) if options.roots else Roots({})


def _directory(path: Path) -> Path:
    path = path.resolve()
    return path.parent if path.name == "run.json" else path


def _inspect(options: argparse.Namespace, _emit: Emit, out: BinaryIO) -> int:
    from math import prod

    from .checkpoint import detect_variant, locate_weights, read_checkpoint
    from .lora import is_lora

    header = read_checkpoint(options.file)
    if is_lora(header):
        return _inspect_lora(options.file, out)
    variant = detect_variant(header)
    try:
        stored, refused = locate_weights(header), ""
    except CheckpointError as error:  # what the file is can be told all the same
        stored, refused = None, str(error)
        print(refused, file=sys.stderr)
    _print_json(
        out,
        {
            "version": 1,
            "file": options.file.name,
            "variant": variant.name,
            "task": variant.task,
            "trainable": variant.trainable and stored is not None,
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
        },
    )
    return ExitCode.DONE


def _inspect_lora(file: Path, out: BinaryIO) -> int:
    from .lora import describe_lora, read_lora

    source = read_lora(file)
    dtypes = sorted({info.dtype for info in source.header.tensors.values()})
    size = {"dtypes": dtypes, "tensors": len(source.header.tensors), "size_bytes": source.header.size_bytes}
    _print_json(out, {"version": 1, "file": file.name, "lora": describe_lora(source), **size})
    return ExitCode.DONE


def _scan(options: argparse.Namespace, _emit: Emit, out: BinaryIO) -> int:
    from .dataset import Dataset, DatasetConfig, dataset_review
    from .files import digest_file
    from .model import WAN21_LATENTS
    from .video import VideoProcess

    config = DatasetConfig(
        folder=f"folder:{options.source.name}",
        trigger_word=options.trigger_word,
        width=options.width,
        height=options.height,
        num_frames=options.num_frames,
        fps=options.fps,
        recursive=options.recursive,
        missing_captions=options.missing_captions,
    )
    with VideoProcess() as video, tempfile.TemporaryDirectory(prefix="wan_scan") as scratch:
        results = _scanned(options, config, video, Path(scratch))
        dataset = Dataset(tuple(results))
        review = dataset_review(dataset, video=video, digest_of=digest_file, space=WAN21_LATENTS)
    samples = [
        {
            "name": s.name,
            "kind": s.kind,
            "bucket": [s.bucket.num_frames, s.bucket.height, s.bucket.width],
            "caption": s.caption,
        }
        for result in results
        for s in result.samples
    ]
    rejected = [{"name": r.name, "reason": r.reason} for result in results for r in result.rejected]
    report = "\n\n".join([*(result.report() for result in results), review.report()])
    _print_json(out, {"version": 1, "samples": samples, "rejected": rejected, "report": report})
    dataset.require_captions()
    return ExitCode.DONE


def _scanned(
    options: argparse.Namespace, config: DatasetConfig, video: VideoProcess, scratch: Path
) -> tuple[ScanResult, ...]:
    from .dataset import SourceFile, scan_folder, scan_parts
    from .importers import Columns, is_source, open_source

    path: Path = options.source
    if not is_source(path):
        return (scan_folder(config, path, video, allowed=options.allow),)
    # The person at the command line may read what lies beside the file; the rest is named with --allow.
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
    return scan_parts(config, open_source(source), video, allowed=allowed)


def _plan(options: argparse.Namespace, _emit: Emit, out: BinaryIO) -> int:
    from .run.memory_report import plan_run

    report = plan_run(_directory(options.run_path), _roots(options))
    _print_json(out, report)
    return ExitCode.DONE if report["fits"] else ExitCode.DOES_NOT_FIT


def _return_freed_memory() -> None:
    """Tell glibc to hand freed blocks of 1 MiB and more back to the system.

    Its default keeps them: a CPU step was measured at 2.6 times the memory in use, which no plan could predict. Costs
    page faults (a CPU step of 1,280 tokens took 1.4 times as long), nothing on a GPU.
    """
    if sys.platform != "linux":
        return
    import ctypes

    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:  # musl has none
        mallopt(-3, 1 << 20)  # M_MMAP_THRESHOLD
        mallopt(-1, 1 << 20)  # M_TRIM_THRESHOLD


def _train(options: argparse.Namespace, emit: Emit, _out: BinaryIO) -> int:
    from .run.config import read_run

    directory = _directory(options.run_path)
    _return_freed_memory()
    from .train import MEETING, join_group

    is_rank = "LOCAL_RANK" in os.environ
    under_torchrun = is_rank and MEETING not in os.environ
    placement = read_run(directory).model.placement
    ranks = placement.ranks
    if under_torchrun and ranks == 1 and int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ConfigError(
            f'torchrun started {os.environ["WORLD_SIZE"]} ranks, but run.json says "{placement.mode}". '
            'Set model.placement.mode to "copy per GPU", or start it without torchrun.'
        )
    if ranks > 1 and not is_rank:
        from .run.ranks import start_ranks

        return start_ranks(directory, ranks, options, _out)
    from .run.train_job import run_job

    group = join_group()
    steered = options.controlled and group.leads
    try:
        control = _control(directory, steered, signals=not is_rank or under_torchrun)
        finished = run_job(
            directory,
            _roots(options),
            emit=emit if group.leads else _silent,
            control=control,
            group=group,
            max_steps=options.max_steps,
            cache_seconds=options.cache_seconds,
            require_state=options.command == "resume",
            embed_workflow=options.embed_workflow,
        )
    finally:
        group.leave()
    # torchrun takes any code but 0 for a crash and kills the other ranks.
    stopped = finished.state == "stopped" and not under_torchrun
    return ExitCode.STOPPED if stopped else ExitCode.DONE


def _control(directory: Path, steered: bool, *, signals: bool = True) -> Control:
    """Whoever stops this process: signals alone, or the pipe on stdin too, once every library the run needs is loaded.

    Not before: on Windows loading one waits for a read that is pending there (pipes.py). A command waits meanwhile.
    """
    from .control import PipeControl, SignalControl
    from .load import import_libraries
    from .run.config import read_run

    if not steered:
        return SignalControl(signals=signals)
    control = PipeControl(os.dup(0), signals=signals)
    import_libraries(read_run(directory).model)
    control.listen()
    return control


def _silent(_event: Event) -> None:
    """Only the leading rank talks."""


def _sample(options: argparse.Namespace, emit: Emit, _out: BinaryIO) -> int:
    from .run.sample_job import sample_job

    directory = _directory(options.run_path)
    control = _control(directory, options.controlled)
    finished = sample_job(directory, options.job.resolve(), _roots(options), emit=emit, control=control)
    emit(finished)
    return ExitCode.STOPPED if finished.state == "stopped" else ExitCode.DONE


def _audit(options: argparse.Namespace, emit: Emit, _out: BinaryIO) -> int:
    from .audit import AuditConfig, audit_job, read_report

    config = AuditConfig(clips=options.clips, timesteps=options.timesteps, alone=options.alone)
    directory = _directory(options.run_path)
    _return_freed_memory()
    control = _control(directory, options.controlled)
    finished = audit_job(directory, _roots(options), config, emit=emit, control=control)
    emit(finished)
    if finished.state == "stopped":
        return ExitCode.STOPPED
    print(read_report(directory).table(), file=sys.stderr)
    return ExitCode.DONE


def _export(options: argparse.Namespace, _emit: Emit, out: BinaryIO) -> int:
    from .run.config import read_run
    from .run.train_job import export_lora

    directory = _directory(options.run_path)
    target = options.to or directory / f"{read_run(directory).run_name}.safetensors"
    saved = export_lora(directory, options.step, target)
    _print_json(out, {"version": 1, "step": saved.step, "file": target.name, "size_bytes": target.stat().st_size})
    return ExitCode.DONE


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """A wrong command line is refused like any other bad input."""
        raise ConfigError(f"{message}. {self.format_usage().strip()}")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="wan_core", description=(__doc__ or "").splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(name: str, run: Callable[..., int], text: str) -> argparse.ArgumentParser:
        sub = commands.add_parser(name, help=text, description=text)
        sub.set_defaults(run=run)
        sub.add_argument(
            "--roots", type=Path, help="JSON file with the folders that root:relative names are looked up in"
        )
        return sub

    inspect = command("inspect", _inspect, "say what a model or LoRA file is, from its header")
    inspect.add_argument("file", type=Path, help="a .safetensors or .gguf file, or a folder")
    scan = command(
        "scan", _scan, "list the clips of a folder or list, their buckets and captions, and what is wrong with the rest"
    )
    scan.add_argument(
        "source", type=Path, help="a folder, or a file that names a dataset: .jsonl, .csv, .tar, .toml ..."
    )
    scan.add_argument("--num-frames", type=int, default=33)
    scan.add_argument("--width", type=int, default=832)
    scan.add_argument("--height", type=int, default=480)
    scan.add_argument("--fps", type=float, default=16.0)
    scan.add_argument("--trigger-word", default="")
    scan.add_argument("--recursive", action="store_true", help="subfolders too; 10_walk is seen ten times as often")
    scan.add_argument("--missing-captions", default="refuse", help="refuse, skip the file, or empty caption")
    scan.add_argument("--allow", type=Path, action="append", default=[], help="a folder that a file may name files of")
    scan.add_argument(
        "--column", action="append", default=[], metavar="ROLE=NAME", help="path, caption, repeats, control or mask"
    )
    plan = command("plan", _plan, "predict memory and disk of a run before anything is loaded")
    train = command("train", _train, "train a run, or go on with it")
    resume = command("resume", _train, "go on with a run that has a saved step")
    sample = command("sample", _sample, "render validation clips of a run")
    audit = command("audit", _audit, "measure what each precision switch costs on the model and clips of a run")
    export = command("export", _export, "copy the LoRA of a saved step to a file")
    for sub in (plan, train, resume, sample, audit, export):
        sub.add_argument("run_path", type=Path, metavar="RUN")
    for sub in (train, resume, sample, audit):
        sub.add_argument("--controlled", action="store_true", help="obey JSON commands on stdin; its end means stop")
    for sub in (train, resume):
        sub.add_argument("--max-steps", type=int, default=0, help="stop after so many steps of this session; 0 = all")
        sub.add_argument(
            "--embed-workflow", action="store_true", help="write the run's workflow.json into its LoRAs, for ComfyUI"
        )
        text = "time that encoding took before this session, to be kept with the run's other times"
        sub.add_argument("--cache-seconds", type=float, default=0.0, metavar="SECONDS", help=text)
    sample.add_argument("--job", type=Path, required=True, help="JSON file: saved_steps, strengths, baseline, preview")
    audit.add_argument("--clips", type=int, default=1, help="cached clips to measure on")
    audit.add_argument("--timesteps", type=int, default=3, help="noise levels per clip")
    audit.add_argument("--alone", action="store_true", help="also float32 with each part lowered alone")
    export.add_argument("--step", type=int, help="saved step; default: the latest")
    export.add_argument("--to", type=Path, help="target file; default: <run_name>.safetensors in the run directory")
    text = "look after a cache folder: count, check, pack, make room; sets to and from TFRecords"
    actions = commands.add_parser("cache", help=text, description=text)
    actions = actions.add_subparsers(dest="action", required=True, metavar="ACTION")
    add_cache_commands(actions)
    add_tfrecord_commands(actions)
    return parser


if __name__ == "__main__":
    sys.exit(main())
