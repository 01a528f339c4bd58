"""run.json and status.json of a run directory.

Layout of a run (public): run.json, status.json (replaced by status.next.json where that exists), metrics.jsonl,
log.txt, saves/step-NNNNNN/{lora.safetensors, state.safetensors, manifest.json}, samples/. In a run of both experts,
lora.safetensors is the high noise expert's, lora_low_noise.safetensors the other's once it has trained.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable
from dataclasses import MISSING, dataclass, replace
from functools import cached_property
from pathlib import Path

from .. import __version__
from ..cache import CacheSet
from ..checkpoint import checkpoint_digest
from ..config import Config, internal
from ..errors import ConfigError
from ..files import (
    FileError,
    Roots,
    atomic_write_json,
    is_held,
    read_json,
    remove_file,
    safe_name,
    sampled_digest,
)
from ..load import ModelPlan
from ..lora import PAIRS, PEFT, LoraConfig
from ..sampler import OFFICIAL, SampleConfig
from ..train import EXPERTS, TrainConfig, settings_of_expert
from ..words import logger, sentences_back, with_sentences

_log = logger(__name__)
_RUN_VERSION = 1
STATUS_FILES = ("status.json", "status.next.json")
"""state of a run; the second file, while it exists, replaces the first"""
QUEUE_DONE = "steps of this queue are done"
"""end of the reason if a run stopped at the step limit of its session"""


@dataclass(frozen=True, kw_only=True)
class DataConfig(Config):
    """The cache set a run trains on."""

    fingerprint: str
    """content hash of the set, a file in the cache folder"""
    num_items: int = internal(0, "never")
    context_streams: int = internal(0, "never")
    """largest number of context streams of a clip; above 0 the model is trained as Bernini-R"""

    @classmethod
    def of(cls, fingerprint: str, cache_set: CacheSet) -> DataConfig:
        """Returns the config of a set in the cache."""
        streams = max((len(item.context) for item in cache_set.items if cache_set.kind.in_context), default=0)
        return cls(fingerprint=fingerprint, num_items=len(cache_set.items), context_streams=streams)


@dataclass(frozen=True, kw_only=True)
class RunConfig(Config):
    """run.json: the complete job, without paths of this machine and without secrets."""

    version: int = internal(_RUN_VERSION, "never")
    run_name: str = internal(MISSING, "never")
    model: ModelPlan
    base_digest: str = ""
    """sampled digest of the base file; another file under the same name is another job"""
    start_digest: str = ""
    """digest of the start LoRA"""
    low_noise_digest: str = internal("", "changed")
    """digest of the low noise expert's base file, in a run of both experts"""
    low_noise_start_digest: str = internal("", "changed")
    data: DataConfig
    lora: LoraConfig = LoraConfig()
    train: TrainConfig = TrainConfig()
    preview: SampleConfig | None = internal(None, "never")
    partner: ModelPlan | None = internal(None, "never")
    """the untrained expert that previews of a run of one expert use"""
    partner_digest: str = internal("", "never")
    """digest of the partner's file at the first preview; clips rendered with another file are not comparable"""
    pack_version: str = internal(__version__, "never")
    begun_as: str = internal("", "never")
    """original job id of a run that now trains on another number of processes; "" for other runs"""

    def __post_init__(self) -> None:
        if self.version != _RUN_VERSION:
            raise ConfigError(f"version {self.version} is not {_RUN_VERSION}, which this pack writes. Update the pack.")
        object.__setattr__(self, "run_name", safe_name(self.run_name, "run_name"))
        if self.model.loras and self.lora.kind == "DoRA":
            raise ConfigError(
                "A DoRA depends on the base weights, and with frozen LoRAs these differ between training and "
                "ComfyUI. Set adapter to LoRA, or remove Add Frozen LoRA."
            )
        if self.lora.kind == PEFT and (self.model.loras or self.train.compile):
            raise ConfigError(
                "A tuner of PEFT reads the weights of the base, which frozen LoRAs do not change, and its code is "
                "not compiled. Set compile to false and remove Add Frozen LoRA, or set adapter to LoRA."
            )
        if self.train.loraplus_lr_ratio != 1 and self.lora.kind not in PAIRS:
            raise ConfigError(
                f"loraplus_lr_ratio is {self.train.loraplus_lr_ratio:g}, and a {self.lora.kind} has no second matrix "
                f"of a pair. Set it to 1, or adapter to {', '.join(PAIRS)}."
            )
        if self.train.optimizer == "muon" and (self.lora.kind == "DoRA" or self.lora.also_train != "nothing"):
            raise ConfigError(
                "optimizer muon trains only matrices; the row lengths of a DoRA, norms and biases are not matrices. "
                "Choose another optimizer, or set adapter to LoRA and also_train to nothing."
            )

    def with_digests(self, roots: Roots) -> RunConfig:
        """Returns the config with the digests of its files."""

        def digest(file: str, of: Callable[[Path], str] = sampled_digest) -> str:
            return of(roots.resolve(file)) if file else ""

        loras = tuple(
            replace(lora, digest=digest(lora.file), low_noise_digest=digest(lora.low_noise_file))
            for lora in self.model.loras
        )
        return replace(
            self,
            model=replace(self.model, loras=loras),
            base_digest=digest(self.model.base_file, checkpoint_digest),
            low_noise_digest=digest(self.model.low_noise_file, checkpoint_digest),
            start_digest=digest(self.lora.start_from),
            low_noise_start_digest=digest(self.lora.low_noise_start_from),
        )

    def of_expert(self, expert: str, roots: Roots) -> RunConfig:
        """Returns the job that trains one of `train.experts` alone, to the same weights.

        Raises CheckpointError if the files are no pair.
        """
        if self.train.expert != "both":
            return self
        train, lora, base, start = self.train, self.lora, self.base_digest, self.start_digest
        if expert != EXPERTS[0]:
            base = self.low_noise_digest
            if lora.low_noise_start_from:
                start, lora = self.low_noise_start_digest, replace(lora, start_from=lora.low_noise_start_from)
            lora = lora.with_rank(train.low_noise_rank or lora.rank)
        return replace(
            self,
            model=self.model.of_expert(expert, roots),
            base_digest=base,
            start_digest=start,
            low_noise_digest="",
            low_noise_start_digest="",
            lora=replace(lora, low_noise_start_from=""),
            train=settings_of_expert(train, expert),
        )

    @cached_property
    def job_id(self) -> str:
        """`begun_as`, or else the hash of `identity`, 32 hex digits; runs of one job resume from each other's steps.

        The identity has all settings that decide the weights (`Setting.counts`), digests of files, and the data's
        fingerprint.
        """
        if self.begun_as:
            return self.begun_as
        text = json.dumps(self.identity(), sort_keys=True, ensure_ascii=True)
        return hashlib.sha256(text.encode()).hexdigest()[:32]


@dataclass(frozen=True, kw_only=True)
class RunStatus(Config):
    """status.json: the state of a run, written atomically at every change."""

    version: int = _RUN_VERSION
    state: str = "new"
    """new, running, done, stopped or failed; `running` with a free lock: killed"""
    step: int = 0
    """last committed optimizer step"""
    steps: int = 0
    reason: str = ""
    job_id: str = ""


class ForeignRun(ConfigError):  # noqa: N818  a kind of directory
    """A directory that this pack cannot read as a run: damaged, or of another version. Never modified."""


class NewerRun(ForeignRun):
    """A run of another version of the pack."""


def read_run(directory: Path) -> RunConfig:
    """Returns the run.json of a run directory, or of the file itself; missing settings have their defaults.

    Raises ForeignRun without a run.json of this version, ConfigError for an invalid setting.
    """
    path = directory if directory.name == "run.json" else directory / "run.json"
    try:
        data = read_json(path)
    except FileError as error:
        if isinstance(error.__cause__, PermissionError):
            raise  # on Windows another program can lock the file of an intact run
        raise ForeignRun(f"{path.parent.name} is not a run directory: {error}") from error
    if isinstance(data, dict) and data.get("version", _RUN_VERSION) != _RUN_VERSION:
        # Checked here, because the parser would call the newer settings unknown.
        raise NewerRun(
            f"{path.parent.name}/run.json has version {data['version']!r:.20}; this pack reads version {_RUN_VERSION}. "
            "Update the pack."
        )
    preview = data.get("preview") if isinstance(data, dict) else None
    # Older versions named one official preset for all models.
    if isinstance(preview, dict) and preview.get("sampling") == OFFICIAL:
        preview.setdefault("official_of_all", True)
    try:
        return RunConfig.from_dict(data)
    except ConfigError as error:
        raise ConfigError(f"{path.parent.name}/run.json: {error}") from error


def read_status(directory: Path) -> RunStatus:
    """Returns status.json, or a new status without one."""
    first, second = (directory / name for name in STATUS_FILES)
    path = second if second.exists() else first
    try:
        return RunStatus.from_dict(sentences_back(read_json(path))) if path.exists() else RunStatus()
    except (FileError, ConfigError):  # only a summary: saves/ is authoritative
        return RunStatus(reason="status.json was damaged")


def write_status(directory: Path, status: RunStatus) -> None:
    """Write status.json, or the second file while another program holds it open (Windows)."""
    first, second = (directory / name for name in STATUS_FILES)
    try:
        atomic_write_json(first, with_sentences(status.to_dict()))
        remove_file(second, directory)
    except OSError as error:
        if not is_held(error, first):
            raise
        if not second.exists():
            _log.warning(
                "%s is open in another program; until that program closes it, %s has the state of the run.",
                *STATUS_FILES,
            )
        atomic_write_json(second, with_sentences(status.to_dict()))


def cache_names_in_use(runs: Path) -> dict[str, str]:
    """Returns the cache names (set, preview prompts) used by unfinished runs below `runs`, each with one run's name.

    A run with an unreadable status counts as unfinished.
    """
    found: dict[str, str] = {}
    for file in sorted(runs.glob("*/run.json")):
        try:
            if read_status(file.parent).state == "done":
                continue
            text = file.read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue
        found |= dict.fromkeys(re.findall(r"\b[0-9a-f]{64}\b", text), file.parent.name)
    return found
