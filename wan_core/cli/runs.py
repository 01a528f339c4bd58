"""`wan_core train | resume | sample | audit | export`: commands on a run directory."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from ..errors import ExitCode
from ..events import Emit, Event
from ..packages import first_import
from .new import add_new_command
from .output import done, kept_log, roots_of, run_directory
from .plan import add_plan_command
from .progress import lines_of
from .settings import add_set_option, change_run
from .torchrun import ranks_here, settle_ranks

if TYPE_CHECKING:
    from ..control import Control


def add_run_commands(command: Callable[..., argparse.ArgumentParser]) -> None:
    add_new_command(command)
    add_plan_command(command)
    train = command("train", _train, "train a run, or resume it")
    resume = command("resume", _train, "resume a run that has a saved step")
    sample = command("sample", _sample, "render validation clips of a run")
    audit = command("audit", _audit, "measure the error of each precision switch on the model and clips of a run")
    export = command("export", _export, "copy the LoRA of a saved step to a file, of a pair to two")
    ema = command("ema", _ema, "make a LoRA of the mean of the saved steps of a run")
    for sub in (train, resume, sample, audit, export, ema):
        sub.add_argument("run_path", type=Path, metavar="RUN", help="folder of a run, or its run.json")
    for sub in (train, resume, sample, audit):
        sub.add_argument(
            "--controlled", action="store_true", help="read JSON commands from stdin; the end of stdin stops the run"
        )
    for sub in (train, resume):
        add_set_option(sub)
        sub.add_argument(
            "--max-steps",
            type=int,
            default=0,
            help="stop after this number of steps of the session; 0 = train to the end",
        )
        sub.add_argument(
            "--embed-workflow", action="store_true", help="write the run's workflow.json into its LoRAs, for ComfyUI"
        )
        text = "number of steps to profile, after the first or profile_skip_steps; saved in the run's folder profile"
        sub.add_argument("--profile", type=int, default=0, metavar="STEPS", help=text)
        text = "seconds of encoding before this session, recorded with the run's other times"
        sub.add_argument(
            "--trackers", type=Path, metavar="FILE", help="JSON file: tracker, webhook and mirror of this machine"
        )
        sub.add_argument(
            "--send-later",
            action="store_true",
            help="wait only ten seconds for trackers at the end of the run; another process then fills the mirror",
        )
        sub.add_argument("--cache-seconds", type=float, default=0.0, metavar="SECONDS", help=text)
    sample.add_argument("--job", type=Path, required=True, help="JSON file: saved_steps, strengths, baseline, preview")
    audit.add_argument("--clips", type=int, default=1, help="cached clips to measure on")
    audit.add_argument("--timesteps", type=int, default=3, help="noise levels per clip")
    audit.add_argument(
        "--alone", action="store_true", help="also measure float32 with one part at a time in a narrower dtype"
    )
    export.add_argument("--step", type=int, help="saved step; default: the latest")
    folders = export.add_mutually_exclusive_group()
    for layout, reader in (("diffusers", "load_lora_weights of its pipelines"), ("peft", "PeftModel.from_pretrained")):
        text = f"write a folder for {reader}; only for plain LoRAs"
        folders.add_argument(f"--{layout}", dest="layout", action="store_const", const=layout, default="", help=text)
    text = "write a folder for a model hub: the LoRA, a model card and the previews of that step"
    folders.add_argument("--hub", dest="layout", action="store_const", const="hub", help=text)
    text = "target; default: <run_name>.safetensors, or the folder <run_name>_<layout>, in the run directory"
    export.add_argument("--to", type=Path, help=text)
    text = "width of the mean as a share of the run: 0.05 averages the last steps, 0.28 nearly all steps equally"
    ema.add_argument("--width", type=float, default=0.1, help=text)
    ema.add_argument("--step", type=int, help="the last saved step of the mean; default: the newest")
    ema.add_argument(
        "--to", type=Path, help="target file; default: <run_name>_ema<width>.safetensors in the run directory"
    )


def _train(options: argparse.Namespace, emit: Emit, _out: BinaryIO) -> int:
    with first_import("torch"):
        from ..job import read_run
        from ..session.train_job import run_job
        from ..train import MEETING, join_group

    directory = run_directory(options.run_path)
    _return_freed_memory()

    is_rank = "LOCAL_RANK" in os.environ
    under_torchrun = is_rank and MEETING not in os.environ
    if not is_rank:
        change_run(directory, roots_of(options), options.set)
    if not is_rank and (ranks := ranks_here(read_run(directory).model.placement)) > 1:
        from .ranks import start_ranks

        return start_ranks(directory, ranks, options, lines_of(emit) if _out.isatty() else _out)
    group = join_group()
    if under_torchrun:
        settle_ranks(directory, roots_of(options), options.set, group)
    steered = options.controlled and group.leads
    try:
        with (
            kept_log(directory, emit) if group.leads and not options.controlled else nullcontext(emit) as kept,
            _tracked(directory, options, kept) if group.leads else nullcontext(_drop_event) as tracked,
        ):
            finished = run_job(
                directory,
                roots_of(options),
                emit=tracked,
                control=_control(directory, steered, signals=not is_rank or under_torchrun),
                group=group,
                max_steps=options.max_steps,
                before={"cache": options.cache_seconds, "start": time.monotonic() - options.began},
                profile_steps=options.profile,
                require_state=options.command == "resume",
                embed_workflow=options.embed_workflow,
            )
    finally:
        group.leave()
    # torchrun treats any code but 0 as a crash and kills the other ranks.
    stopped = finished.state == "stopped" and not under_torchrun
    return ExitCode.STOPPED if stopped else ExitCode.DONE


def _sample(options: argparse.Namespace, emit: Emit, _out: BinaryIO) -> int:
    with first_import("torch"):
        from ..session import sample_job

    directory = run_directory(options.run_path)
    control = _control(directory, options.controlled)
    finished = sample_job(directory, options.job.resolve(), roots_of(options), emit=emit, control=control)
    emit(finished)
    return ExitCode.STOPPED if finished.state == "stopped" else ExitCode.DONE


def _audit(options: argparse.Namespace, emit: Emit, _out: BinaryIO) -> int:
    with first_import("torch"):
        from ..audit import AuditConfig, audit_job, import_libraries, read_report

        import_libraries()
    config = AuditConfig(clips=options.clips, timesteps=options.timesteps, alone=options.alone)
    directory = run_directory(options.run_path)
    _return_freed_memory()
    control = _control(directory, options.controlled)
    finished = audit_job(directory, roots_of(options), config, emit=emit, control=control)
    emit(finished)
    if finished.state == "stopped":
        return ExitCode.STOPPED
    print(read_report(directory).table(), file=sys.stderr)
    return ExitCode.DONE


def _export(options: argparse.Namespace, _emit: Emit, out: BinaryIO) -> int:
    from ..job import read_run
    from ..session.saving import export_lora

    directory = run_directory(options.run_path)
    ending = f"_{options.layout}" if options.layout else ".safetensors"
    target = options.to or directory / f"{read_run(directory).run_name}{ending}"
    saved, files = export_lora(directory, options.step, target, layout=options.layout)
    answer = {"step": saved.step, "file": target.name}
    if options.layout:
        answer |= {"files": [file.relative_to(target).as_posix() for file in files]}
    elif len(files) > 1:
        answer |= {"low_noise_file": files[1].name}
    return done(out, answer | {"size_bytes": files[0].stat().st_size})


def _ema(options: argparse.Namespace, _emit: Emit, out: BinaryIO) -> int:
    from ..job import read_run
    from ..job.power_mean import export_power_mean

    directory = run_directory(options.run_path)
    usual = directory / f"{read_run(directory).run_name}_ema{options.width:g}.safetensors"
    made = export_power_mean(directory, options.width, options.step, options.to or usual)
    shares = {str(step): round(share, 4) for step, share in zip(made.steps, made.shares, strict=True)}
    return done(out, {"width": options.width, "files": [file.name for file in made.files], "steps": shares})


def _control(directory: Path, steered: bool, *, signals: bool = True) -> Control:
    """Returns the control of this process, by signals or also by stdin, after importing the run's libraries."""
    from ..control import PipeControl, SignalControl
    from ..load import import_libraries

    pipe = PipeControl(os.dup(0), signals=signals) if steered else None
    control = pipe or SignalControl(signals=signals)
    import_libraries()
    if pipe:
        # Called after the imports, because on Windows loading a library blocks while a read of the pipe is pending
        # (pipes.py).
        pipe.listen()
    return control


def _tracked(directory: Path, options: argparse.Namespace, emit: Emit) -> AbstractContextManager[Emit]:
    from ..trackers import with_trackers

    return with_trackers(emit, directory, options.trackers, waits=not options.send_later)


def _drop_event(_event: Event) -> None:
    """Drops an event, because only the leader emits."""


def _return_freed_memory() -> None:
    """Makes glibc return freed memory to the system: blocks from 1 MiB on, and all but 64 MiB of smaller ones."""
    # By default glibc keeps freed blocks: a CPU step held 2.6 times the memory in use, which no plan could predict. The
    # cost is page faults: 1.4 times the time of a CPU step of 1,280 tokens, none on a GPU (ADR 4).
    if sys.platform != "linux":
        return
    import ctypes

    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:  # musl has no mallopt
        mallopt(-3, 1 << 20)  # M_MMAP_THRESHOLD
        mallopt(-1, 64 << 20)  # M_TRIM_THRESHOLD
