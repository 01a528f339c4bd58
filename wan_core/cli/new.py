"""`wan_core new | import`: create a run without the canvas, or a graph from another trainer's settings."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from ..errors import ConfigError, ExitCode
from ..events import Emit
from ..words import plain
from .output import done, print_json, run_directory, usual_folders
from .settings import add_set_option, with_settings

if TYPE_CHECKING:
    from ..cache import LatentCache
    from ..files import Roots
    from ..job import DataConfig, RunConfig, RunDecision


def add_new_command(command: Callable[..., argparse.ArgumentParser]) -> None:
    new = command("new", _new, "create a run from a model and encoded clips, or from the settings of another run")
    new.add_argument(
        "run_name",
        metavar="NAME",
        help="name of the run; an equal job continues that run, another job of that name gets _002",
    )
    new.add_argument("--model", type=Path, metavar="FILE", help="a model file or folder")
    new.add_argument("--low-noise-model", type=Path, metavar="FILE", help="of a pair: the other file")
    new.add_argument(
        "--data", metavar="SET", help="fingerprint of an encoded set (its first characters are enough), or a run"
    )
    new.add_argument("--like", type=Path, metavar="RUN", help="a run whose model, clips and settings are copied")
    text = "folder of the runs; default: that of --like, else output/wan_trainer"
    new.add_argument("--runs", type=Path, help=text)
    add_set_option(new)


def _new(options: argparse.Namespace, _emit: Emit, out: BinaryIO) -> int:
    from ..cache import LatentCache
    from ..job import choose_run, on_other_cards, with_clip_values
    from ..plan import with_mode

    beside = run_directory(options.like).parent if options.like else Path("output/wan_trainer")
    runs = (options.runs or beside).resolve()
    roots, written = _roots(options, runs)
    config = with_settings(_config(options, runs, roots), options.set)
    requested = replace(config, run_name=options.run_name, begun_as="")
    config = _with_model(requested, roots)
    clips = LatentCache(roots.first("cache")).read_set(config.data.fingerprint)
    config = replace(config, train=with_clip_values(config.train, clips, config.model.placement.batches))
    config = with_mode(config, roots, clips)
    elsewhere = on_other_cards(config, requested.model.base_precision, requested.train.loss_scaling)
    decision = choose_run(runs, config, elsewhere=elsewhere)
    config = _prepared(decision)
    facts = {"run": config.run_name, "directory": str(decision.directory), "job_id": config.job_id}
    return done(out, {**facts, "roots": written, "note": decision.note})


def _prepared(decision: RunDecision) -> RunConfig:
    """Returns the job of the run after writing it: a new one, or the existing one with changed settings."""
    from ..files import locked
    from ..job import prepare_run, read_run

    directory, job = decision.directory, decision.job
    if decision.action == "start":
        return prepare_run(decision, job)
    with contextlib.suppress(ConfigError):  # prepare_run renames an unreadable run.json
        known = read_run(directory)
        job = replace(job, run_name=directory.name, pack_version=known.pack_version)
        if job.preview is None:  # no preview settings were given
            job = replace(job, preview=known.preview, partner=known.partner, partner_digest=known.partner_digest)
        if job == known:
            return job
    with locked(directory / ".lock", f"Run {directory.name} is being trained by another process. Stop that one first."):
        return prepare_run(decision, job)


def _config(options: argparse.Namespace, runs: Path, roots: Roots) -> RunConfig:
    from ..cache import LatentCache
    from ..job import RunConfig, read_run
    from ..load import ModelPlan

    if options.like is not None:
        known = read_run(run_directory(options.like))
        if options.model is not None:
            raise ConfigError("--like and --model both choose the model. Use one of them.")
        data = known.data if options.data is None else _data(options.data, runs, LatentCache(roots.first("cache")))
        return replace(known, data=data)
    if options.model is None or options.data is None:
        raise ConfigError("Give a model and clips, or a run to copy: --model FILE --data SET, or --like RUN.")
    files = [f"diffusion_models:{file.name}" for file in (options.model, options.low_noise_model) if file]
    plan = ModelPlan(base_file=files[0], low_noise_file=files[1] if len(files) > 1 else "")
    data = _data(options.data, runs, LatentCache(roots.first("cache")))
    return RunConfig(run_name="new", model=plan, data=data)


def _with_model(config: RunConfig, roots: Roots) -> RunConfig:
    """Returns `config` with the values that depend on the model: digests, shift, and the experts of a pair."""
    from ..job import trained_variant, with_model_values, with_scaled_loss
    from ..load import inspect_model, inspect_pair, resolved

    plan = config.model.of_expert(config.train.expert_name, roots)
    plan = resolved(plan, inspect_pair(plan, roots) if plan.low_noise_file else (inspect_model(plan, roots),))
    expert = "both" if plan.low_noise_file else config.train.expert
    train = with_model_values(replace(config.train, expert=expert), trained_variant(plan, expert, roots))
    return replace(config, model=plan, train=with_scaled_loss(train, plan)).with_digests(roots)


def _data(said: str, runs: Path, cache: LatentCache) -> DataConfig:
    """Returns the clips of an encoded set, named by the start of its fingerprint, or the clips of a run."""
    from ..job import DataConfig, read_run

    for place in (runs / said, Path(said)):
        if (place / "run.json").is_file():
            return read_run(place).data
    found = sorted(path.stem for path in (cache.root / "sets").glob("*") if path.stem.startswith(said))
    if len(found) != 1:
        sets = ", ".join(path.stem[:12] for path in sorted((cache.root / "sets").glob("*"))[:8]) or "none"
        raise ConfigError(
            f"--data {said[:80]!r} names {len(found) or 'no'} encoded sets and no run. Encoded sets: {sets}. Make "
            "one with Cache Latents + Captions in ComfyUI."
        )
    return DataConfig.of(found[0], cache.read_set(found[0]))


def _roots(options: argparse.Namespace, runs: Path) -> tuple[Roots, str]:
    """Returns the roots with the folders of the models, and the path of their file, which is written if needed."""
    from ..files import Roots

    file: Path = options.roots or runs / "roots.json"
    known = Roots.read(file) if file.is_file() else Roots(usual_folders(runs))
    folders = [str(model.resolve().parent) for model in (options.model, options.low_noise_model) if model is not None]
    there = known.folders.get("diffusion_models", ())
    missing = [folder for folder in dict.fromkeys(folders) if folder not in there]
    roots = Roots({**known.folders, "diffusion_models": (*missing, *there)})
    if missing or not file.is_file():
        file.parent.mkdir(parents=True, exist_ok=True)
        roots.write(file)
    return roots, str(file)


def add_import_command(command: Callable[..., argparse.ArgumentParser]) -> None:
    text = "convert settings of musubi-tuner, diffusion-pipe, SimpleTuner or ai-toolkit to a graph"
    sub = command("import", _import, text)
    sub.add_argument("file", type=Path, help="its TOML, JSON or YAML, or a text file with its command line")
    sub.add_argument("--out", type=Path, help="workflow for the canvas; default: prints the graph of the queue API")
    sub.add_argument(
        "--api-out", type=Path, metavar="FILE", help="file for the graph of the queue API, for headless use"
    )
    sub.add_argument("--clips", type=int, default=0, help="clips per epoch, if the dataset is not on this machine")
    sub.add_argument("--look-in", type=Path, action="append", default=[], metavar="FOLDER", help="for files it names")


def _import(options: argparse.Namespace, _emit: Emit, out: BinaryIO) -> int:
    from ..files import atomic_write_json
    from ..migrate import api_graph, canvas_graph, read_job

    if not options.file.is_file():
        raise ConfigError(f"{options.file} is not a file. Name the settings of the other trainer.")
    if options.clips < 0:
        raise ConfigError(f"--clips is {options.clips}. Set it to the clips of an epoch, repeats included.")
    job = read_job(options.file, folders=tuple(options.look_in), clips=options.clips)
    written: list[str] = []
    for path, graph in ((options.out, canvas_graph), (options.api_out, api_graph)):
        if path is not None:
            atomic_write_json(path, graph(job))
            written.append(path.name)
    for title, sentences in job.account().items():
        print(f"{title}:", *(f"  {plain(sentence)}" for sentence in sentences), sep="\n", file=sys.stderr)
    if written:
        return done(out, {"trainer": job.trainer, "written": written, "account": dict(job.account())})
    print_json(out, api_graph(job))
    return ExitCode.DONE
