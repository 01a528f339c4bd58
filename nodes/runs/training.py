"""Runs a queued training: trains with the engine, publishes LoRAs, and reports to outputs and the page."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from comfy.cli_args import args
from comfy_api.latest import io

from ...wan_core.checkpoint import read_tensors
from ...wan_core.errors import WanTrainerError
from ...wan_core.events import CheckpointSaved, Event
from ...wan_core.files import atomic_write_json, is_held
from ...wan_core.job import RunConfig, RunDecision, prepare_run, read_run, say_ended
from ...wan_core.metrics import LossCurve, MetricsPages, read_loss_curve
from ...wan_core.run_lines import closing_line
from ...wan_core.train import EXPERTS, SavedStep, SaveStore
from ...wan_core.words import logger
from ..bridge import folders
from ..bridge.handed import RUNS
from ..bridge.interrupts import CancelButton, InterruptProcessingException
from ..bridge.progress import NodeProgress, current_prompt_id, graph_of
from ..bridge.sockets import ComfyVae
from ..bridge.types import CacheHandle, ModelHandle, RunHandle
from ..engine.live_runs import LIVE, LiveRun
from ..engine.session import PreviewDecoder, run_engine
from .facts import run_report
from .publish import Published, chosen, publish
from .scrub import scrubbed

LORA_OUTPUT, LOW_NOISE_OUTPUT = 1, 5
"""the indexes of `lora` and `lora_low_noise` among the outputs of the node"""

_log = logger(__name__)


class QueuedTraining:
    """One execution of Train Wan LoRA on one run directory."""

    def __init__(self, hidden: Any, model: ModelHandle, cache: CacheHandle, decision: RunDecision) -> None:
        self._hidden, self._model, self._cache = hidden, model, cache
        self._decision, self.directory = decision, decision.directory
        self._store = SaveStore(self.directory)
        self._stop_pressed = False
        self._published = Published({})
        self._button = CancelButton()
        lines = MetricsPages(self.directory / "metrics.jsonl")
        self._progress = NodeProgress(
            hidden.unique_id,
            self._button,
            graph=graph_of(hidden),
            facts=lambda: {"metrics_lines": lines.count()},
        )
        self._progress.say(decision.note, now=True, run=self.directory.name, state=decision.action)
        _log.info("%s", decision.note)
        self._elsewhere = _other_folder()
        if self._elsewhere:
            _log.warning("%s", self._elsewhere)

    def train(self, config: RunConfig, codec: ComfyVae | None, steps_this_queue: int) -> None:
        """Runs the engine. Raises InterruptProcessingException after Cancel, with the run saved and published."""
        prepare_run(self._decision, config)
        self._write_workflow()
        decoder = PreviewDecoder(codec, self.directory, self._model.variant.fps) if codec is not None else None
        live = LiveRun(
            run=self.directory.name,
            node=self._hidden.unique_id,
            prompt_id=current_prompt_id(),
            variant=self._model.variant.name,
            can_preview=codec is not None,
        )
        with self._failure_recorded(), LIVE.entered(live):
            ending = run_engine(
                "train",
                self.directory,
                *_engine_options(steps_this_queue, self._cache.report.seconds if self._encoded_here else 0.0),
                progress=self._progress,
                button=self._button,
                decoder=decoder,
                on_event=self._on_event,
                live=live,
            )
        self._stop_pressed = live.stop_pressed
        if ending.cancelled:
            say_ended(self.directory, "stopped", "Cancel was pressed")
            self._publish_latest()
            raise InterruptProcessingException()

    @contextlib.contextmanager
    def _failure_recorded(self) -> Iterator[None]:
        """Inside, a failure is recorded in the run's folder, and the newest saved step is published."""
        try:
            yield
        except WanTrainerError as failure:
            with contextlib.suppress(OSError):  # on a full disk, only the panel shows the failure
                say_ended(self.directory, "failed", str(failure))
            try:  # the newest step may be damaged; an older one is published then
                self._publish_latest()
            except (WanTrainerError, OSError) as error:  # The failure of the run is more useful than this one.
                _log.warning("%s", error)
            raise

    @property
    def _encoded_here(self) -> bool:
        """Whether the cache was encoded in this queue entry; ComfyUI reuses the output of an earlier one."""
        return self._cache.prompt_id == current_prompt_id()

    def outputs(self) -> io.NodeOutput:
        """Returns the outputs, read from disk, so that they are the same after a restart or with nothing to train."""
        saved = self._publish_latest()
        curve = read_loss_curve(self.directory / "metrics.jsonl")
        step, loras = (saved.step, saved.loras) if saved is not None else (0, {})
        published = [folders.publish_folder().parent / name for name in self._published.names.values()]
        handed = [saved.folder, *saved.loras.values(), *published] if saved is not None else []
        RUNS.note(self.directory.name, [self.directory, *handed])
        run = RunHandle(self.directory, step, self._model.variant.fps)
        first, low = next(iter(loras), None), EXPERTS[1] if EXPERTS[1] in loras else None
        names = ["" if expert is None else self._published.names.get(expert, "") for expert in (first, low)]
        read = [
            read_tensors(loras[expert]) if expert is not None and self._is_linked(output) else None
            for expert, output in ((first, LORA_OUTPUT), (low, LOW_NOISE_OUTPUT))
        ]
        ui, losses = self._ui(curve, step), {"loss": curve.losses.tolist()}
        return io.NodeOutput(run, read[0], losses, step, names[0], read[1], names[1], ui=ui)

    def _ui(self, curve: LossCurve, step: int) -> dict[str, Any]:
        report = run_report(
            self.directory,
            curve,
            step,
            folders.publish_folder(),
            variant=self._model.variant.name,
            note=" ".join(filter(None, (self._decision.note, self._elsewhere, self._published.note))),
            stop_pressed=self._stop_pressed,
        )
        status, samples = report["status"], report["samples"]
        about = {"kind": "ended", "state": status, "step": step, "steps": report["steps"]}
        self._progress.say(f"{status}: step {step} of {report['steps']}", now=True, about=about, state=status)
        if said := closing_line(report["use"], report["template"]):
            _log.info("%s: %s", self.directory.name, said)
        return {"wan_run": [{**report, "cache": self._cache_counts()}], "images": samples[-1:], "animated": [True]}

    def _cache_counts(self) -> dict[str, int]:
        """Returns the numbers of encoded and reused cache entries in this queue entry."""
        counts = {k: v for k, v in asdict(self._cache.report).items() if isinstance(v, int)}
        if not self._encoded_here:
            for kind in ("latents", "texts", "conditions"):
                counts[f"{kind}_reused"] += counts[f"{kind}_encoded"]
                counts[f"{kind}_encoded"] = 0
        return counts

    def _on_event(self, event: Event) -> None:
        if isinstance(event, CheckpointSaved) and (saved := self._store.read(event.step)) is not None:
            self._publish(saved)

    def _publish_latest(self) -> SavedStep | None:
        """Publishes and returns the chosen step, else the newest."""
        job = read_run(self.directory).job_id
        saved = chosen(self.directory, job) or self._store.latest(job)
        if saved is not None:
            self._published = self._publish(saved)
        return saved

    def _publish(self, saved: SavedStep) -> Published:
        """Publishes a saved step. A failure is only logged, because the saved step itself is intact."""
        try:
            found = publish(self.directory, saved)
        except WanTrainerError as error:
            found = Published({}, str(error))
        if found.note:
            _log.warning("%s", found.note)
        return found

    def _write_workflow(self) -> None:
        graph = (self._hidden.extra_pnginfo or {}).get("workflow") or self._hidden.prompt
        file = self.directory / "workflow.json"
        try:
            atomic_write_json(file, scrubbed(graph))
        except OSError as error:
            if not is_held(error, file):
                raise
            _log.warning(
                "workflow.json is open in another program, so it still has the workflow of the previous queue."
            )

    def _is_linked(self, output: int) -> bool:
        """Returns whether a node of the queue takes this output."""
        prompt, link = self._hidden.dynprompt, [self._hidden.unique_id, output]
        nodes = (prompt.get_node(node_id) for node_id in prompt.all_node_ids())
        return any(value == link for node in nodes for value in node["inputs"].values())


def _other_folder() -> str:
    """Returns a sentence if LoRAs are not published into the first folder of ComfyUI's loaders; else ""."""
    place, first = folders.publish_folder(), folders.publish_folders()[0]
    if place == first:
        return ""
    chosen, other = (os.path.join(*path.parts[-3:-1]) for path in (place, first))
    return f"LoRAs go to {chosen}, because {other} cannot be written."


def _engine_options(steps_this_queue: int, cache_seconds: float) -> list[str]:
    limit = ["--max-steps", str(steps_this_queue)] if steps_this_queue else []
    spent = ["--cache-seconds", str(cache_seconds)] if cache_seconds else []
    file = folders.user_file("trackers.json")
    trackers = ["--trackers", str(file), "--send-later"] if file.is_file() else []
    return [*limit, *spent, *trackers, *([] if args.disable_metadata else ["--embed-workflow"])]
