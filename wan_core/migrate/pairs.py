"""Merges two commands, one for each expert of a pair, into one run of both."""

from __future__ import annotations

import re
from collections.abc import Sequence
from math import isclose

from .foreign_job import LOADER, SETTINGS, TRAINER, ForeignJob
from .keys import shown
from .learning import run_name
from .models import base_name

_OWN = (
    *((TRAINER, widget) for widget in ("learning_rate", "rank", "alpha", "steps", "run_name", "expert")),
    *((LOADER, widget) for widget in ("diffusion_model", "low_noise_model")),
    *((SETTINGS, f"low_noise_{widget}") for widget in ("learning_rate", "rank")),
    (SETTINGS, "high_noise_share"),
)
"""settings that each expert has separately, or that this module merges"""


def as_one_job(jobs: Sequence[ForeignJob]) -> ForeignJob:
    """Returns one job for several training commands: one of both experts if they are a pair, else the first.

    The ledger of the job names the dropped settings.
    """
    high = next((job for job in jobs if job.expert == "high"), None)
    low = next((job for job in jobs if job.expert == "low"), None)
    job, taken = jobs[0], 1
    if high and low and high.kind is low.kind and high.kind is not None and high.kind.low_noise_file:
        _join(high, low)
        job, taken = high, 2
    if len(jobs) > taken:
        others = (
            "the file has {n} training commands, and {name} is imported: save each of the others in a file of its "
            "own to import it"
        )
        name = str(job.of("run_name") or job.of(f"{LOADER}.diffusion_model"))[:80]
        job.hint(others, n=len(jobs), name=name)
    return job


def _join(high: ForeignJob, low: ForeignJob) -> None:
    job = high
    high.put(f"{LOADER}.low_noise_model", low.of(f"{LOADER}.diffusion_model"))
    high.expert = "both"
    job.mend("two commands, one for each expert -> one run of both, each with its own rate, rank and steps")
    _length(high, low)
    _rate_and_rank(high, low)
    _noise_levels(high, low)
    names = [str(job.of("run_name") or "") for job in (high, low)]
    if name := _stem(*names):
        high.put("run_name", name)
        high.ledger.change(f"output_name {names[0]}, {names[1]} -> run_name {name}")
    _shared(high, low)
    high.hints += [sentence for sentence in low.hints if sentence not in high.hints]
    for sentence in low.ledger.complete()[3]:
        if sentence not in high.ledger.complete()[3]:
            high.ledger.change("low noise: {key} -> skipped: not known here", key=sentence)


def _length(job: ForeignJob, low: ForeignJob) -> None:
    high = job
    if {"max_train_steps", "max_train_epochs"} & (high.unset.keys() | low.unset.keys()):
        return  # The setting is requested already.
    if high.epochs and low.epochs:
        key, first, second = high.epochs[0], high.epochs[1], low.epochs[1]
        total = first + second
        high.epochs = (key, max(1, (total + 1) // 2))
    elif high.epochs or low.epochs:
        job.hint("one expert is trained by epochs and the other by steps: set steps and high_noise_share")
        return
    else:
        first, second = int(high.of("steps")), int(low.of("steps"))
        total = first + second
        high.put("steps", total)
        high.ledger.take(f"steps {first} + {second} -> steps {total}")
    if first != second and total:
        high.put("high_noise_share", round(min(0.99, max(0.01, first / total)), 6))
        high.ledger.take(f"{first} / {total} -> high_noise_share {first / total:g}")


def _rate_and_rank(high: ForeignJob, low: ForeignJob) -> None:
    rate, rank, alpha = (low.of(name) for name in ("learning_rate", "rank", "alpha"))
    if "learning_rate" not in low.unset and rate != high.of("learning_rate"):
        high.put("low_noise_learning_rate", rate)
        high.ledger.take(f"learning_rate {rate:g} -> low_noise_learning_rate {rate:g}")
    if "network_dim" in low.unset:
        return
    if rank != high.of("rank"):
        high.put("low_noise_rank", rank)
        high.ledger.take(f"network_dim {rank} -> low_noise_rank {rank}")
    follows = high.of("alpha") * rank / max(1, high.of("rank"))
    unset = {"network_dim", "network_alpha"} & (high.unset.keys() | low.unset.keys())
    if not unset and not isclose(alpha, follows, rel_tol=1e-6):
        said = "network_alpha {alpha} of low noise -> {to}: alpha follows the rank where both are trained"
        high.ledger.change(said, alpha=f"{alpha:g}", to=f"{follows:g}")


def _noise_levels(high: ForeignJob, low: ForeignJob) -> None:
    """Removes the noise levels of both commands and records it. In a pair, the expert determines them."""
    for job, expert in ((high, "high"), (low, "low")):
        lowest, highest = job.of("min_timestep"), job.of("max_timestep")
        for name in ("min_timestep", "max_timestep", "timestep_range"):
            job.values.get(SETTINGS, {}).pop(name, None)
        if (lowest, highest) != (0, 1000):
            skipped = (
                "min_timestep {min}, max_timestep {max} of {expert} noise -> skipped: each expert is trained on all "
                "of its own noise levels where both are trained"
            )
            high.ledger.change(skipped, min=f"{lowest:g}", max=f"{highest:g}", expert=expert)


def _shared(high: ForeignJob, low: ForeignJob) -> None:
    """Records settings that differ between the commands, although both experts of a run share them."""
    places = {(node, widget) for job in (high, low) for node in job.values for widget in job.values[node]}
    differ = [
        f"{widget} {shown(low.of(f'{node}.{widget}'))}"
        for node, widget in sorted(places.difference(_OWN))
        if low.of(f"{node}.{widget}") != high.of(f"{node}.{widget}")
    ]
    if base_name(high.data) != base_name(low.data):
        differ.append(f"dataset_config {base_name(low.data)}")
    if differ:
        said = "low noise: {values} -> skipped: both experts share it, and the value of the high noise command is used"
        high.ledger.change(said, values=f"{', '.join(differ):.400}")


def _stem(high: str, low: str) -> str:
    """Returns the common part of the names of both experts' runs, without high and low."""
    if high == low:
        return high
    apart = re.compile(r"[-_. ]*(?:high|low|hn|ln)(?:[-_. ]?noise)?(?![a-z])", re.IGNORECASE)
    stems = [apart.sub("", name).strip("-_. ") for name in (high, low)]
    return run_name(stems[0]) if stems[0] and stems[0] == stems[1] else high
