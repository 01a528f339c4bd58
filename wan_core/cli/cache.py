"""`wan_core cache stats | verify | unpack | trim | export-tfrecord`: maintenance of a cache folder."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from ..errors import ConfigError, ExitCode
from ..events import Emit
from .output import done

if TYPE_CHECKING:
    from ..cache import LatentCache


def add_cache_commands(actions: Any) -> None:
    works: dict[str, tuple[Callable[..., int], str]] = {
        "stats": (_stats, "count entries, sets and bytes"),
        "verify": (_verify, "hash every entry again"),
        "unpack": (_unpack, "write entries of packs, and sets by column, as files: nothing else reads them"),
        "trim": (_trim, "evict what was used longest ago, never what an unfinished run needs"),
        "export-tfrecord": (_export, "write a cache set as TFRecord shards that MaxDiffusion trains on"),
    }
    made: dict[str, argparse.ArgumentParser] = {}
    for name, (run, text) in works.items():
        made[name] = actions.add_parser(name, help=text, description=text)
        made[name].set_defaults(run=run)
        made[name].add_argument("cache_path", type=Path, metavar="CACHE", help="such as output/wan_trainer/_cache")
    made["verify"].add_argument("--remove", action="store_true", help="delete damaged entries")
    made["trim"].add_argument("--limit-gb", type=float, required=True, help="GiB that may stay")
    made["trim"].add_argument("--runs", type=Path, help="folder of runs whose entries stay; default: CACHE's parent")
    export = made["export-tfrecord"].add_argument
    export("fingerprint", metavar="SET", help="fingerprint of the set; the start of it is enough")
    export("folder", type=Path, help="a new folder")
    export("--records-per-shard", type=int, default=10)
    export("--eval-timesteps", type=int, nargs="+", default=(), help="for an evaluation set: its noise levels")


def _stats(options: argparse.Namespace, _emit: Emit, out: BinaryIO) -> int:
    from ..cache import stats_of

    return done(out, asdict(stats_of(_opened(options))))


def _verify(options: argparse.Namespace, _emit: Emit, out: BinaryIO) -> int:
    from ..cache import check_entries

    report = check_entries(_opened(options), remove=options.remove, should_stop=_stop_question())
    done(out, asdict(report))
    return ExitCode.DONE if len(report.damaged) == report.removed else ExitCode.BAD_INPUT


def _unpack(options: argparse.Namespace, _emit: Emit, out: BinaryIO) -> int:
    from ..cache import unpack

    report = unpack(_opened(options).root, should_stop=_stop_question())
    done(out, asdict(report))
    return ExitCode.BAD_INPUT if report.unreadable else ExitCode.DONE


def _trim(options: argparse.Namespace, _emit: Emit, out: BinaryIO) -> int:
    from ..cache import trim
    from ..job import cache_names_in_use

    if not 0 <= options.limit_gb <= 1e6:
        raise ConfigError(f"--limit-gb is {options.limit_gb:g}. Set it to the GiB to keep, 0 or more.")
    if options.runs is not None and not options.runs.is_dir():
        raise ConfigError(f"{options.runs} is not a folder. Name the folder of runs, such as output/wan_trainer.")
    cache = _opened(options)
    in_use = cache_names_in_use(options.runs or cache.root.parent)
    return done(out, asdict(trim(cache, int(options.limit_gb * 2**30), keep=in_use)))


def _export(options: argparse.Namespace, _emit: Emit, out: BinaryIO) -> int:
    from ..export import export_records

    cache, start = _opened(options), options.fingerprint
    known = [path.stem for path in (cache.root / "sets").glob("*") if path.stem.startswith(start)]
    if len(known) > 1:
        raise ConfigError(f"{len(known)} sets start with {start[:64]!r}. Write more of the fingerprint.")
    if any(not 0 <= number <= 1000 for number in options.eval_timesteps):
        raise ConfigError(f"--eval-timesteps {options.eval_timesteps} must lie between 0 and 1000.")
    report = export_records(
        cache,
        known[0] if known else start,
        options.folder.absolute(),
        records_per_shard=options.records_per_shard,
        eval_timesteps=options.eval_timesteps,
    )
    return done(out, report._asdict())


def _opened(options: argparse.Namespace) -> LatentCache:
    from ..cache import LatentCache

    if not options.cache_path.is_dir():
        raise ConfigError(f"{options.cache_path} is not a folder. Name the cache, such as output/wan_trainer/_cache.")
    return LatentCache(options.cache_path.resolve())


def _stop_question() -> Callable[[], bool]:
    from ..control import SignalControl

    control = SignalControl()
    return lambda: bool(control.stop_reason())
