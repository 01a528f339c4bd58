"""`wan_core cache export-tfrecord | import-tfrecord`: writes and reads MaxDiffusion's training sets."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from ..errors import ConfigError
from ..events import Emit
from .output import done

if TYPE_CHECKING:
    from ..cache import LatentCache
    from ..importers import PromptKeys


def add_tfrecord_commands(actions: Any) -> None:
    out = actions.add_parser("export-tfrecord", help="write a cache set as TFRecord shards that MaxDiffusion trains on")
    out.set_defaults(run=_export)
    out.add_argument("cache", type=Path, metavar="CACHE", help="the cache folder, output/wan_trainer/_cache")
    out.add_argument("fingerprint", metavar="SET", help="fingerprint of the set; the start of it is enough")
    out.add_argument("folder", type=Path, help="a new folder")
    out.add_argument("--records-per-shard", type=int, default=10)
    out.add_argument(
        "--eval-timesteps", default="", help="for an evaluation set: noise levels such as 125,250,375; equal shares"
    )
    into = actions.add_parser("import-tfrecord", help="store TFRecords of latents and text features as a cache set")
    into.set_defaults(run=_import)
    into.add_argument("cache", type=Path, metavar="CACHE", help="the cache folder, output/wan_trainer/_cache")
    into.add_argument("folder", type=Path, help="where the .tfrec files are")
    into.add_argument(
        "--prompts-from", default="", metavar="SET", help="set of this cache whose empty and negative prompt are used"
    )
    into.add_argument("--fps", type=float, default=0.0, help="of the clips; default: 16, or 24 for 48 channels")
    into.add_argument("--raw", action="store_true", help="the latents are as the VAE gives them, not normalised")


def _export(options: argparse.Namespace, _emit: Emit, out: BinaryIO) -> int:
    from ..cache import LatentCache
    from ..importers import export_records

    report = export_records(
        LatentCache(options.cache),
        _whole_fingerprint(options.cache, options.fingerprint),
        options.folder.absolute(),
        records_per_shard=options.records_per_shard,
        eval_timesteps=_timesteps(options.eval_timesteps),
    )
    facts = {"folders": list(report.folders), "files": report.files, "records": report.records}
    return done(out, {**facts, "size_bytes": report.size_bytes})


def _import(options: argparse.Namespace, _emit: Emit, out: BinaryIO) -> int:
    from ..cache import LatentCache
    from ..importers import import_records

    cache = LatentCache(options.cache)
    report = import_records(
        options.folder.absolute(),
        cache,
        prompts=_prompts_of(cache, options.prompts_from) if options.prompts_from else None,
        fps=options.fps,
        raw=options.raw,
    )
    made = report.encoding
    return done(
        out,
        {
            "fingerprint": report.fingerprint,
            "files": report.files,
            "clips": made.clips,
            "frames": made.frames,
            "latents_stored": made.latents_encoded,
            "latents_there_already": made.latents_reused,
            "texts_stored": made.texts_encoded,
            "evaluation_timesteps_ignored": report.timesteps,
        },
    )


def _prompts_of(cache: LatentCache, start: str) -> PromptKeys:
    from ..importers import PromptKeys

    known = cache.read_set(_whole_fingerprint(cache.root, start))
    return PromptKeys(known.empty_text_key, known.negative_text_key)


def _whole_fingerprint(cache: Path, start: str) -> str:
    """Returns the fingerprint that starts with `start`; if no set has one, `start` itself, which the cache refuses.
    Raises ConfigError if several sets match."""
    known = {path.stem for path in (cache / "sets").glob("*") if path.stem.startswith(start)}
    if len(known) > 1:
        raise ConfigError(f"{len(known)} sets start with {start[:64]!r}. Write more of the fingerprint.")
    return known.pop() if known else start


def _timesteps(text: str) -> tuple[int, ...]:
    try:
        found = tuple(int(part) for part in text.replace(",", " ").split())
    except ValueError as error:
        raise ConfigError(f"--eval-timesteps {text[:100]!r} is not a list of numbers such as 125,250,375.") from error
    if any(not 0 <= number <= 1000 for number in found):
        raise ConfigError(f"--eval-timesteps {text[:100]!r} must lie between 0 and 1000.")
    return found
