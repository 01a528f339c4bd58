"""Nothing is lost: kill the worker anywhere, resume, and the LoRA is the one of the run that was never killed."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.support.forked import ForkServer, Worker
from tests.support.tiny_run import TWO_RANKS, TinyRun, make_run
from wan_core.job.choose import choose_run, prepare_run
from wan_core.job.config import read_status
from wan_core.metrics import read_ranks
from wan_core.train import SaveStore, TrainConfig

pytestmark = pytest.mark.lasts(1)

LAUNCH = Path(__file__).parents[3] / "wan_core" / "launch.py"
STEPS = 12


def settings(**changes: object) -> TrainConfig:
    base = {
        "steps": STEPS,
        "save_every_n_steps": 3,
        "preview_every_n_steps": 0,
        "learning_rate": 1e-3,
        "gradient_accumulation_steps": 2,
        "caption_dropout": 0.3,
        "lr_scheduler": "cosine",
        "lr_warmup_steps": 2,
        "eval_items": 0,
    }
    return TrainConfig(**{**base, **changes})  # type: ignore[arg-type]


def words(run: TinyRun, *more: str, verb: str = "train") -> list[str]:
    return [verb, str(run.directory), "--roots", str(run.roots_file), *more]


def start(server: ForkServer, run: TinyRun, *more: str, verb: str = "train", stdin: bool = False) -> Worker:
    return server.start(words(run, *more, verb=verb), run.directory / "out.jsonl", stdin=stdin)


def train(server: ForkServer, run: TinyRun, *more: str, verb: str = "train") -> tuple[int, list[dict[str, Any]]]:
    """Run to its end: exit code and events."""
    worker = start(server, run, *more, verb=verb)
    return worker.wait(), worker.events()


def launched(run: TinyRun, *more: str) -> list[str]:
    """The command line of a real worker."""
    return [sys.executable, "-X", "utf8", str(LAUNCH), *words(run, *more)]


def final_files(run: TinyRun, step: int = STEPS) -> tuple[bytes, bytes]:
    folder = run.directory / "saves" / f"step-{step:06d}"
    return (folder / "lora.safetensors").read_bytes(), (folder / "state.safetensors").read_bytes()


@pytest.fixture(scope="module")
def finished(server: ForkServer, tmp_path_factory: pytest.TempPathFactory) -> TinyRun:
    """A run nothing happened to; tests take a copy of its directory."""
    run = make_run(tmp_path_factory.mktemp("undisturbed"), train=settings())
    code, events = train(server, run)
    assert code == 0, events[-1]
    return run


@pytest.fixture(scope="module")
def undisturbed(finished: TinyRun) -> tuple[bytes, bytes]:
    return final_files(finished)


def copy_of(run: TinyRun, folder: Path) -> TinyRun:
    """A run directory of its own with the same base file and cache."""
    shutil.copytree(run.directory, folder / run.directory.name)
    return replace(run, directory=folder / run.directory.name)


@pytest.mark.parametrize("step", [pytest.param(n, marks=[] if n == 5 else pytest.mark.soak) for n in range(1, 11)])
def test_killed_at_any_of_ten_steps_and_resumed_equals_never_killed(
    server: ForkServer, tmp_path: Path, undisturbed: tuple[bytes, bytes], step: int
) -> None:
    run = make_run(tmp_path, train=settings())
    worker = start(server, run)
    worker.wait_for("step", step)
    assert worker.kill() == -signal.SIGKILL
    assert read_status(run.directory).state == "running"
    code, events = train(server, run)
    assert code == 0, events[-1]
    assert final_files(run) == undisturbed
    assert read_status(run.directory).state == "done"


@pytest.mark.soak
@pytest.mark.parametrize("copy", [4, 400, 700])
def test_killed_in_the_middle_of_a_copy_equals_a_run_where_nothing_was_moved(
    server: ForkServer, tmp_path: Path, undisturbed: tuple[bytes, bytes], copy: int
) -> None:
    """Both blocks rest in host memory, with their inputs and every matrix product."""
    away = {"memory": "manual", "offload_activations": "on", "blocks_to_swap": 2}
    run = make_run(tmp_path, train=settings(**away, checkpointing_policy="offload_matmul_without_batch"))
    first = f"from tests.support.late_copies import die_in_copy; die_in_copy({copy})"
    assert server.start(words(run), run.directory / "out.jsonl", first=first).wait() == -signal.SIGKILL
    code, events = train(server, run)
    assert code == 0, events[-1]
    assert final_files(run) == undisturbed


@pytest.mark.soak
def test_which_tokens_pass_by_is_drawn_by_the_step(
    server: ForkServer, tmp_path: Path, undisturbed: tuple[bytes, bytes]
) -> None:
    """Killed in the middle of a copy, blocks and inputs in host memory; a share of nothing is as if there were none."""
    away = {"memory": "manual", "offload_activations": "on", "blocks_to_swap": 2}
    changes: dict[str, dict[str, object]] = {
        "plain": {"tread_routes": "0.5: 1..1"},
        "away": {"tread_routes": '[{"selection_ratio": 0.5, "start_layer_idx": -1, "end_layer_idx": 1}]', **away},
        "nothing": {"tread_routes": "0: 0..-1"},
    }
    found: dict[str, tuple[bytes, bytes]] = {}
    for name, change in changes.items():
        run = make_run(tmp_path / name, train=settings(**change))
        if name == "away":
            first = "from tests.support.late_copies import die_in_copy; die_in_copy(60)"
            assert server.start(words(run), run.directory / "out.jsonl", first=first).wait() == -signal.SIGKILL
        code, events = train(server, run)
        assert code == 0, events[-1]
        found[name] = final_files(run)
    assert found["away"][1] == found["plain"][1]
    assert found["nothing"][1] == undisturbed[1]
    assert found["plain"][1] != undisturbed[1]


@pytest.mark.soak
def test_killed_at_fifty_random_moments_equals_never_killed(
    server: ForkServer, tmp_path: Path, undisturbed: tuple[bytes, bytes]
) -> None:
    chance = random.Random(0)
    run = make_run(tmp_path, train=settings())
    for number in range(50):
        shutil.rmtree(run.directory / "saves", ignore_errors=True)
        for _ in range(20):
            worker = start(server, run)
            time.sleep(chance.uniform(0, 0.8))
            if worker.kill() == 0:
                break
        else:
            assert train(server, run)[0] == 0
        assert final_files(run) == undisturbed, f"round {number}"


@pytest.mark.soak
def test_the_worker_starts_under_isolated_python_with_no_stdin_and_trains_to_the_end(tmp_path: Path) -> None:
    run = make_run(tmp_path, train=settings(steps=4))
    line = launched(run)
    line.insert(1, "-I")
    done = subprocess.run(line, stdin=subprocess.DEVNULL, capture_output=True, text=True, cwd="/", check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["state"] == "done"


def test_the_end_of_stdin_stops_a_controlled_worker_with_its_state_saved(server: ForkServer, tmp_path: Path) -> None:
    run = make_run(tmp_path, train=settings(steps=100_000, save_every_n_steps=100_000))
    worker = start(server, run, "--controlled", stdin=True)
    worker.wait_for("step", 1)
    worker.close_stdin()
    assert worker.wait() == 3
    last = worker.events()[-1]
    assert last["state"] == "stopped"
    assert last["result"]["reason"] == "the parent process ended"
    saved = SaveStore(run.directory).latest()
    assert saved is not None
    assert saved.step == last["step"] > 0


def test_two_ranks_train_as_one_with_twice_the_micro_steps_obey_stop_and_report_3(
    server: ForkServer, tmp_path: Path
) -> None:
    run = make_run(tmp_path, train=settings(steps=100_000, save_every_n_steps=100_000), plan=TWO_RANKS)
    controller = start(server, run, "--controlled", stdin=True)
    controller.wait_for("step", 2)
    controller.send({"command": "stop"})
    assert controller.wait() == 3, controller.log()[-3000:]
    assert read_status(run.directory).state == "stopped"
    saved = SaveStore(run.directory).latest()
    assert saved is not None
    assert saved.step >= 2
    together = [e for e in controller.events() if e["event"] == "step"]
    alone = make_run(tmp_path / "alone", train=settings(steps=3, gradient_accumulation_steps=4))
    _, events = train(server, alone)
    steps = [e for e in events if e["event"] == "step"]
    assert [e["loss"] for e in together][:2] == pytest.approx([e["loss"] for e in steps][:2], rel=1e-5)
    of_two, of_one = (found[0]["memory"]["cpu"]["now"] for found in (together, steps))
    assert of_two > 1.5 * of_one, "both processes hold memory of the same device"
    states = read_ranks(run.directory)
    assert [(one["rank"], one["device"], one["silent"]) for one in states] == [(0, "cpu", None), (1, "cpu", None)]
    assert sum(one["peak"] for one in states) > of_two
    assert {e["slowest_rank"] for e in together} <= {None, 0, 1}
    assert {e["slowest_rank"] for e in steps} == {None}
    assert read_ranks(alone.directory) == []


@pytest.mark.soak
def test_sigterm_to_the_controller_of_two_ranks_stops_them_all_with_their_state(
    server: ForkServer, tmp_path: Path
) -> None:
    run = make_run(tmp_path, train=settings(steps=100_000, save_every_n_steps=100_000), plan=TWO_RANKS)
    controller = start(server, run)
    controller.wait_for("step", 1)
    ranks = psutil.Process(controller.pid).children(recursive=True)
    os.kill(controller.pid, signal.SIGTERM)
    assert controller.wait() == 3, controller.log()[-3000:]
    assert len(ranks) == 2
    assert not [p for p in ranks if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]
    assert SaveStore(run.directory).latest() is not None


def test_a_base_file_that_was_exchanged_is_refused(server: ForkServer, tmp_path: Path) -> None:
    run = make_run(tmp_path, train=settings())
    base = run.roots.resolve(run.config.model.base_file)
    data = bytearray(base.read_bytes())
    data[-1] ^= 1
    base.write_bytes(bytes(data))
    code, events = train(server, run)
    assert code == 5
    assert "is not the file this run was made with" in events[-1]["message"]


def test_a_wrong_command_line_is_refused_in_one_json_line(server: ForkServer, tmp_path: Path) -> None:
    worker = server.start(["frobnicate"], tmp_path / "out.jsonl")
    assert worker.wait() == 5
    assert "invalid choice" in worker.events()[-1]["message"]


def test_more_steps_continue_instead_of_starting_over(server: ForkServer, tmp_path: Path) -> None:
    run = make_run(tmp_path, train=settings(steps=1, lr_scheduler="constant", lr_warmup_steps=0))
    assert train(server, run)[0] == 0
    longer = replace(run.config, train=settings(steps=2, lr_scheduler="constant", lr_warmup_steps=0))
    decision = choose_run(run.directory.parent, longer)
    assert (decision.action, decision.directory) == ("resume", run.directory)
    prepare_run(decision, longer)
    _, events = train(server, run)
    assert [e["step"] for e in events if e["event"] == "step"] == [2]
    straight = make_run(tmp_path / "straight", train=settings(steps=2, lr_scheduler="constant", lr_warmup_steps=0))
    train(server, straight)
    assert final_files(run, 2) == final_files(straight, 2)


@pytest.mark.soak
def test_a_chunk_of_steps_stops_with_state_and_the_next_one_goes_on(
    server: ForkServer, tmp_path: Path, undisturbed: tuple[bytes, bytes]
) -> None:
    run = make_run(tmp_path, train=settings())
    assert train(server, run, "--max-steps", "5")[0] == 3
    assert read_status(run.directory).step == 5
    assert train(server, run)[0] == 0
    assert final_files(run) == undisturbed


def test_a_finished_run_trains_no_further_step(server: ForkServer, tmp_path: Path, finished: TinyRun) -> None:
    run = copy_of(finished, tmp_path)
    code, events = train(server, run)
    assert code == 0
    assert not [e for e in events if e["event"] == "step"]


def test_a_damaged_saved_step_is_passed_over_for_the_one_before(
    server: ForkServer, tmp_path: Path, finished: TinyRun, undisturbed: tuple[bytes, bytes]
) -> None:
    run = copy_of(finished, tmp_path)
    state = run.directory / "saves" / f"step-{STEPS:06d}" / "state.safetensors"
    data = bytearray(state.read_bytes())
    data[-1] ^= 1
    state.write_bytes(bytes(data))
    latest = SaveStore(run.directory).latest()
    assert latest is not None
    assert latest.step == STEPS - 3
    assert train(server, run)[0] == 0
    assert final_files(run) == undisturbed


def test_resume_without_a_saved_step_is_refused(server: ForkServer, tmp_path: Path) -> None:
    code, events = train(server, make_run(tmp_path, train=settings()), verb="resume")
    assert code == 5
    assert "has no saved step to resume" in events[-1]["message"]


def test_two_workers_never_share_a_run(server: ForkServer, tmp_path: Path) -> None:
    run = make_run(tmp_path, train=settings(steps=100_000))
    first = start(server, run)
    first.wait_for("step", 1)
    second = server.start(words(run), tmp_path / "second.jsonl")
    assert second.wait() == 5
    assert "is being trained by another process" in second.events()[-1]["message"]
    os.kill(first.pid, signal.SIGTERM)
    assert first.wait() == 3
    assert read_status(run.directory).state == "stopped"
