"""Encoding by several ranks: each writes the entries of its share, then rank 0 writes the set.

Shares are fixed before the encoding starts, so no entry is encoded twice. Entries that a killed rank did not write are
encoded at the next start.
"""

from __future__ import annotations

import heapq
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from ..dataset import lengths_of
from ..errors import CacheError, WanTrainerError
from ..words import sentences_back, with_sentences
from .encode import Encoded, Encoders, encode_entries, encode_missing
from .encoding_plan import ClipTask, EncodingPlan
from .encoding_report import EncodingReport, counts_of
from .latent_cache import LatentCache

SHARE = "WAN_TRAINER_SHARE"
"""environment variable: the file with the keys that a further process of CacheLatents encodes"""
ENCODING = "WAN_TRAINER_ENCODING"
"""environment variable: 1 if CacheLatents encodes together with the ranks of torchrun"""
_MASK_COST = 0.05
"""cost of a mask relative to the clip's latent; a mask needs no encoder"""


class Ranks(Protocol):
    """The processes that encode together."""

    @property
    def rank(self) -> int: ...

    @property
    def world(self) -> int: ...

    def gather(self, value: Any) -> list[Any]:
        """Returns the values of all ranks, in order, on every rank."""
        ...


def shares_of(plan: EncodingPlan, ranks: int, *, texts_with_first: bool = False) -> list[list[str]]:
    """Returns the keys that each rank encodes: each clip goes to the rank with the least work so far, the most
    expensive clip first; texts go to the ranks in turn.

    `texts_with_first`: rank 0 encodes all texts, so that no other rank loads the text encoder.
    """
    shares: list[list[str]] = [[] for _ in range(ranks)]
    by_sample: defaultdict[int, list[ClipTask]] = defaultdict(list)
    for task in plan.missing_clips:  # the entries of a sample need the same frames, so one rank encodes them
        by_sample[id(task.sample)].append(task)
    passes = plan.cache_set.kind.vae_passes
    costs = [(sum(_cost(task, passes) for task in tasks), tasks) for tasks in by_sample.values()]
    load = [(0.0, rank) for rank in range(ranks)]
    for cost, tasks in sorted(costs, key=lambda one: -one[0]):
        taken, rank = load[0]
        shares[rank] += [task.key for task in tasks]
        heapq.heapreplace(load, (taken + cost, rank))
    for number, task in enumerate(plan.missing_texts):
        shares[0 if texts_with_first else number % ranks].append(task.key)
    return shares


def _cost(task: ClipTask, passes: int) -> float:
    """Returns the number of pixels that the VAE encodes for an entry."""
    bucket = task.sample.bucket
    times = {"latent": 1.0, "condition": float(passes), "mask": _MASK_COST}[task.kind]
    return times * bucket.num_frames * bucket.height * bucket.width


def part_of(plan: EncodingPlan, keys: Collection[str]) -> EncodingPlan:
    """Returns the plan, reduced to the missing entries `keys`."""
    wanted = frozenset(keys)
    return replace(
        plan,
        missing_clips=tuple(task for task in plan.missing_clips if task.key in wanted),
        missing_texts=tuple(task for task in plan.missing_texts if task.key in wanted),
    )


@dataclass(frozen=True, kw_only=True)
class ShareDone:
    """The results of one rank's share."""

    encoded: Encoded = field(default_factory=Encoded)
    error: str = ""
    """reason why the rank ended early; "" if it did not"""
    seconds: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        found = self.encoded
        return with_sentences(
            {
                "error": self.error,
                "seconds": self.seconds,
                "failed": dict(found.failed),
                "black_masks": list(found.black_masks),
                "captions": [list(pair) for pair in found.captions],
            }
        )

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> ShareDone:
        known = sentences_back(dict(data))
        captions = tuple((str(name), int(tokens)) for name, tokens in known["captions"])
        encoded = Encoded(failed=known["failed"], black_masks=tuple(known["black_masks"]), captions=captions)
        return cls(encoded=encoded, error=known["error"], seconds=known["seconds"])


def encode_share(plan: EncodingPlan, cache: LatentCache, keys: Collection[str], encoders: Encoders) -> ShareDone:
    """Encodes the missing entries `keys` of a plan. A refusal becomes the share's `error`."""
    start = time.monotonic()
    try:
        encoded = encode_entries(part_of(plan, keys), cache, encoders)
        return ShareDone(encoded=encoded, seconds=time.monotonic() - start)
    except WanTrainerError as error:
        return ShareDone(error=str(error))


def encode_over_ranks(
    before: EncodingPlan,
    plan: Callable[[], EncodingPlan],
    cache: Callable[[], LatentCache],
    ranks: Ranks,
    encoders: Encoders,
    in_use: Collection[str] = (),
) -> EncodingReport:
    """Encode the missing entries together with the other ranks; returns the same report on each rank.

    `before` is this rank's plan. `plan` and `cache` create new objects, since the other ranks write at the same time.
    CacheError names a rank that failed, after the other ranks have finished their shares.
    """
    # Rank 0 assigns the shares, because ranks may see different files while the cache is written.
    keys = ranks.gather(shares_of(before, ranks.world) if ranks.rank == 0 else None)[0][ranks.rank]
    done = encode_share(before, cache(), keys, encoders)
    found = [ShareDone.from_dict(one) for one in ranks.gather(done.to_dict())]
    for rank, one in enumerate(found):
        if one.error:
            raise CacheError(f"Rank {rank} of {ranks.world} could not encode its share: {one.error}")
    report = finish_shares(before, plan, cache, found, encoders, in_use) if ranks.rank == 0 else None
    return ranks.gather(report)[0]


def finish_shares(
    before: EncodingPlan,
    plan: Callable[[], EncodingPlan],
    cache: Callable[[], LatentCache],
    found: Sequence[ShareDone],
    encoders: Encoders,
    in_use: Collection[str] = (),
) -> EncodingReport:
    """Encodes the entries that are still missing after the shares of `before`, and stores the set; returns the report
    of all shares."""
    start, noted = time.monotonic(), cache()
    failed = {key: why for one in found for key, why in one.encoded.failed.items()}
    noted.entries.note_unreadable(failed, failed)
    noted.save_known()
    last = plan()
    report = encode_missing(last, cache(), encoders, in_use)
    kept = {name for item in cache().read_set(report.fingerprint).all_items for name in item.clip_keys}
    counts = Counter(task.kind for task in before.missing_clips if task.key in kept)
    counts["text"] = len(before.missing_texts)
    captions = [pair for one in found for pair in one.encoded.captions]
    longest = max((one.seconds for one in found), default=0.0)
    return replace(
        report,
        seconds=longest + time.monotonic() - start,
        **counts_of(counts, before.reused),
        damaged=before.damaged,
        black_masks=(*(name for one in found for name in one.encoded.black_masks), *report.black_masks),
        text_lengths=lengths_of(captions) if captions else report.text_lengths,
    )
