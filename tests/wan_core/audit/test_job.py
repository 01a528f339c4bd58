"""An audit as a job: overflow, stops, refusals, the command line."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.support.audits import BF16_PLAN as PLAN
from tests.support.audits import audit, audit_of, measure_few
from tests.support.forked import ForkServer
from tests.support.sessions import train_here
from tests.support.tiny_run import TINY, make_run
from wan_core.audit import REPORT_FILE, AuditConfig, read_report
from wan_core.control import SignalControl
from wan_core.errors import CacheError, CheckpointError, ConfigError, OutOfMemory
from wan_core.events import Event, Finished, Stage
from wan_core.job.config import read_run
from wan_core.precision import QuantizeConfig
from wan_core.session.sample_job import sample_job
from wan_core.train import TrainConfig

pytestmark = pytest.mark.lasts(2)


@pytest.mark.soak
def test_an_overflow_is_reported_and_not_averaged_away(tmp_path: Path) -> None:
    """float16 ends at 65504: a token stream beyond it is infinite, its row says so, and the file stays plain JSON.

    Each weight fits; a base whose weights do not is refused when it is loaded.
    """
    own = make_run(tmp_path, plan=replace(PLAN, base_precision="fp16"), size=(1, 4, 4))
    path = Path(own.roots.resolve(PLAN.base_file))
    weights = load_file(path)
    weights["patch_embedding.weight"] *= 6e4 / weights["patch_embedding.weight"].abs().max()
    save_file({k: v.clone() for k, v in weights.items()}, path)
    anew = read_run(own.directory).with_digests(own.roots)  # this file is the run's base from now on
    (own.directory / "run.json").write_text(json.dumps(anew.to_dict()), encoding="utf-8")
    audit_of(own, [("preset", "fast")])
    row = next(r for r in read_report(own.directory).rows if r.kind == "preset" and r.part == "fast")
    assert row.output_error is None
    assert "overflow" in read_report(own.directory).table()
    json.loads((own.directory / REPORT_FILE).read_text(), parse_constant=lambda name: pytest.fail(name))


def test_another_base_file_is_neither_measured_nor_sampled_under_the_runs_name(tmp_path: Path) -> None:
    settings = TrainConfig(steps=1, save_every_n_steps=1, preview_every_n_steps=0, eval_items=0)
    own = make_run(tmp_path, plan=PLAN, train=settings, size=(1, 4, 4))
    train_here(own)
    base = own.roots.resolve(PLAN.base_file)
    data = bytearray(base.read_bytes())
    data[-1] ^= 1
    base.write_bytes(bytes(data))
    job = own.directory / "samples" / "check" / "job.json"
    job.parent.mkdir(parents=True)
    job.write_text("{}", encoding="utf-8")
    with pytest.raises(CheckpointError, match="is not the file this run was made with"):
        sample_job(own.directory, job, own.roots, emit=lambda _e: None, control=SignalControl())
    with pytest.raises(CheckpointError, match="is not the file this run was made with"):
        audit(own)


def test_the_lora_of_a_trained_run_is_the_one_measured(tmp_path: Path) -> None:
    settings = TrainConfig(steps=2, save_every_n_steps=2, preview_every_n_steps=0, learning_rate=1e-2, eval_items=0)
    own = make_run(tmp_path, plan=PLAN, train=settings, size=(1, 4, 4))
    audit_of(own, [])
    fresh = read_report(own.directory)
    train_here(own)
    audit_of(own, [])
    trained = read_report(own.directory)
    assert fresh.adapters == "LoRA of rank 4, small random weights"
    assert trained.adapters == "LoRA of rank 4, saved step 2"
    assert trained.plan.gradient_errors != fresh.plan.gradient_errors


@pytest.mark.parametrize("scheme", ["int8", pytest.param("fp8_e4m3fn", marks=pytest.mark.soak)])
def test_eight_bit_weights_are_on_both_sides(tmp_path: Path, scheme: str) -> None:
    """The error is that of the arithmetic, far below the 3 % that the 8-bit weights themselves cost gradients."""
    own = make_run(tmp_path, plan=replace(PLAN, quantize=QuantizeConfig(scheme=scheme)), size=(1, 4, 4))
    audit_of(own, [("change", "matmul")])
    report = read_report(own.directory)
    assert report.quantized == scheme
    assert 0 < (report.plan.gradient_error or 0) < 0.02
    (products,) = (row for row in report.rows if row.part == "matmul")
    assert (products.before, products.after) == ("compute", "int8" if scheme == "int8" else "fp8")
    assert (products.gradient_error or 0) > 1.05 * (report.plan.gradient_error or 0), "it costs, and that is shown"


class StopsAfter(SignalControl):
    """Asks to stop at the `count`-th question."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self._left = count

    def stop_reason(self) -> str:
        self._left -= 1
        return "" if self._left > 0 else "Cancel was pressed"


STOPS = {"while loading": 60, "in the first pass": 71, "in a later one": 74}
"""a question a tensor, of which the model has 69, and one a block, of which it has two"""


@dataclass(frozen=True)
class Audits:
    """Of one run: some that were stopped, then one that was not."""

    stopped: dict[str, Event]
    """the last event, by where the stop came"""
    left_behind: dict[str, list[str]]
    """names of report files after it"""
    events: list[Event]
    reported: bool


@pytest.fixture(scope="module")
def audits(tmp_path_factory: pytest.TempPathFactory) -> Audits:
    own = make_run(tmp_path_factory.mktemp("audits"), plan=PLAN, size=(1, 4, 4))
    stopped: dict[str, Event] = {}
    left_behind: dict[str, list[str]] = {}
    with measure_few():
        for where, asked in STOPS.items():
            stopped[where] = audit(own, control=StopsAfter(asked))[-1]
            left_behind[where] = [file.name for file in own.directory.glob("precision_audit*")]
        events = audit(own)
    return Audits(stopped, left_behind, events, (own.directory / REPORT_FILE).is_file())


@pytest.mark.parametrize("where", STOPS)
def test_a_stop_leaves_no_report(audits: Audits, where: str) -> None:
    finished = audits.stopped[where]
    assert isinstance(finished, Finished)
    assert finished.state == "stopped"
    assert not audits.left_behind[where]


def test_after_stops_the_lock_is_free_again(audits: Audits) -> None:
    assert audits.reported


def test_progress_counts_every_pass(audits: Audits) -> None:
    stages = [e for e in audits.events if isinstance(e, Stage) and e.stage == "audit"]
    assert [s.done for s in stages] == list(range(1, stages[-1].total + 1))


def test_what_cannot_fit_is_refused_before_anything_is_loaded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def no_load(*_: object, **__: object) -> None:
        pytest.fail("weights were loaded")

    monkeypatch.setattr("wan_core.audit.job.materialize", no_load)
    monkeypatch.setattr("wan_core.audit.job.total_bytes", lambda _device: 1 << 20)
    own = make_run(tmp_path, plan=PLAN, size=(1, 4, 4))
    with pytest.raises(OutOfMemory, match=r"needs about 0\.\d GiB on cpu, which has 0\.0 GiB\. Audit shorter"):
        audit(own)


def test_a_gpu_that_runs_out_gets_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 3 GiB\nmore")

    monkeypatch.setattr("wan_core.audit.job.measure", full)
    own = make_run(tmp_path, plan=PLAN, size=(1, 4, 4))
    with pytest.raises(OutOfMemory, match=r"ran out of memory in the audit\. Audit shorter .*3 GiB\)$"):
        audit(own)


def test_a_cache_that_is_gone_is_named(tmp_path: Path) -> None:
    own = make_run(tmp_path, plan=PLAN, size=(1, 4, 4))
    fingerprint = read_run(own.directory).data.fingerprint
    (own.roots.first("cache") / "sets" / f"{fingerprint}.json").unlink()
    with pytest.raises(CacheError, match=r"Queue Cache Latents \+ Captions again"):
        audit(own)


@pytest.mark.parametrize("field", ["clips", "timesteps"])
@pytest.mark.parametrize("value", [0, 101])
def test_counts_out_of_range_are_refused(field: str, value: int) -> None:
    with pytest.raises(ConfigError, match=rf"{field} {value} is out of range\. Use 1 to 100"):
        AuditConfig(**{field: value})


@pytest.mark.soak  # the node's own test in a real ComfyUI starts the same command
def test_the_command_line_audits_a_run(server: ForkServer, tmp_path: Path) -> None:
    own = make_run(tmp_path, plan=PLAN, shape=replace(TINY, num_layers=1), size=(1, 4, 4))
    words = ["audit", str(own.directory), "--roots", str(own.roots_file), "--timesteps", "1"]
    first = "from tests.support.audits import measure_few; few = measure_few(); few.__enter__()"
    worker = server.start(words, tmp_path / "out.jsonl", first=first)
    assert worker.wait() == 0, worker.log()
    last = worker.events()[-1]
    assert last == {"event": "finished", "state": "done", "step": 0, "result": {"report": REPORT_FILE}}
    assert "residual fp32 -> bf16" in worker.log()
    assert read_report(own.directory).timesteps == (500.0,)
