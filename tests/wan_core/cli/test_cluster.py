"""Files for Slurm and Kubernetes: what they say, word for word, and what a scheduler would do with them."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.forked import RunCommand
from tests.support.tiny_run import make_run
from wan_core.cli.cluster import Cluster, pytorchjob_of, sbatch_of, trainjob_of
from wan_core.control import SignalControl

GOLDEN = Path(__file__).parents[2] / "fixtures" / "cluster"
FILES = {"slurm.sbatch": sbatch_of, "pytorchjob.yaml": pytorchjob_of, "trainjob.yaml": trainjob_of}
FOX = Cluster(
    run_name="Red Fox_02", command="train", run_path="/data/wan trainer/fox", pack="/data/pack", nodes=2, gpus=4,
    time="1-02:00:00", python="/opt/venv/bin/python", image="registry.example/wan:1", claim="wan-data", mount="/data",
    local_cache="/scratch/wan", trackers="/data/trackers.json", gloo=True, interface="ib0",
)  # fmt: skip
BASH = shutil.which("bash")


@pytest.mark.parametrize("name", FILES)
def test_a_file_is_the_pinned_one(name: str) -> None:
    text = FILES[name](FOX)
    if os.environ.get("WAN_TRAINER_UPDATE"):
        (GOLDEN / name).write_text(text, encoding="utf-8")
    assert text == (GOLDEN / name).read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["pytorchjob.yaml", "trainjob.yaml"])
def test_a_manifest_is_yaml_whose_pod_starts_torchrun(name: str) -> None:
    yaml = pytest.importorskip("yaml")
    job = yaml.safe_load(FILES[name](FOX))
    assert job == json.loads(FILES[name](FOX))
    assert job["metadata"]["name"] == "red-fox-02"
    spec = job["spec"]
    if name == "pytorchjob.yaml":
        assert spec["runPolicy"]["activeDeadlineSeconds"] == 26 * 3600
        script = spec["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]["containers"][0]["command"][2]
    else:
        script = spec["trainer"]["command"][2]
    assert "--nnodes 2 --nproc-per-node 4 --max-restarts 3" in script
    if BASH:
        assert subprocess.run([BASH, "-n", "-c", script]).returncode == 0


def test_words_of_the_script_in_a_path_stay_and_a_name_begins_with_a_letter() -> None:
    odd = replace(FOX, run_path="/data/RENDEZVOUS of HEAD/2026 fox", run_name="2026 fox")
    for write in FILES.values():
        assert "/data/RENDEZVOUS of HEAD/2026 fox" in write(odd)
    assert json.loads(pytorchjob_of(odd))["metadata"]["name"] == "run-2026-fox"  # a Service has no digit in front


@pytest.mark.skipif(BASH is None or os.name == "nt", reason="needs bash")
@pytest.mark.parametrize(("reason", "queued"), [("signal SIGUSR1", True), ("", False), ("stopped by the user", False)])
def test_a_run_that_the_time_limit_stopped_is_queued_again(tmp_path: Path, reason: str, queued: bool) -> None:
    """srun, scontrol and Python are stand-ins: the one notes its words, the other the requeue."""
    run, tools = tmp_path / "my runs" / "it's HEAD of fox", tmp_path / "tools"
    run.mkdir(parents=True)
    tools.mkdir()
    for name, text in {
        "srun": 'shift; "$@"',
        "scontrol": f'if [ "$1" = show ]; then echo node7; else echo "$@" >> "{tmp_path}/requeued"; fi',
        "python": f'printf "%s\\n" "$@" "$WAN_TRAINER_LOCAL" > "{tmp_path}/words"; '
        'printf \'{\\n  "reason": "' + reason + '"\\n}\' > "$RUN/status.json"; exit 7',
    }.items():
        (tools / name).write_text(f"#!/bin/bash\n{text}\n")
        (tools / name).chmod(0o755)
    local = tmp_path / "local"
    script = sbatch_of(replace(FOX, run_path=str(run), pack=str(tmp_path), python="python", local_cache=str(local)))
    environment = os.environ | {
        "PATH": f"{tools}:{os.environ['PATH']}", "RUN": str(run),
        "SLURM_JOB_ID": "12", "SLURM_JOB_NODELIST": "node[7-8]",
    }  # fmt: skip
    done = subprocess.run([str(BASH), "-c", script], env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (7, "")
    words = (tmp_path / "words").read_text().splitlines()
    assert words[-5:] == ["train", str(run), "--trackers", "/data/trackers.json", str(local)]
    assert words[words.index("--rdzv-endpoint") + 1] == "node7:29500"
    assert (tmp_path / "requeued").exists() is queued


def test_the_command_takes_nodes_from_the_copies_of_the_run(tmp_path: Path, wan_core_command: RunCommand) -> None:
    run = make_run(tmp_path)
    told = json.loads((run.directory / "run.json").read_text())
    told["model"]["placement"] |= {"mode": "copy per GPU", "devices": "all", "copies": 6}
    (run.directory / "run.json").write_text(json.dumps(told))
    refused = wan_core_command("export-cluster", str(run.directory), "--time", "30:00")
    assert refused.returncode == 5
    assert "--time is 30:00. Write hours:minutes:seconds" in refused.stderr
    assert wan_core_command("export-cluster", str(run.directory), "--gpus", "4").returncode == 0
    assert "#SBATCH --nodes=2\n" in (run.directory / "cluster" / "slurm.sbatch").read_text()


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such signal")
def test_the_warning_of_a_scheduler_stops_a_rank_as_the_script_expects() -> None:
    """Also in a process whose parent ignores it, as the script makes torchrun do."""
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    control = SignalControl()
    os.kill(os.getpid(), signal.SIGUSR1)
    assert control.stop_reason() == "signal SIGUSR1"
    assert f'"reason": "{control.stop_reason()}"' in sbatch_of(FOX)
