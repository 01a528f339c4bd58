"""`wan_core export-cluster`: files that start a run on a cluster: Slurm's sbatch, Kubernetes' PyTorchJob and TrainJob.

Each file starts torchrun on every node, with one run directory on shared storage. Nothing is submitted.
"""

from __future__ import annotations

import argparse
import json
import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from ..errors import ConfigError
from ..events import Emit
from ..files import atomic_write_bytes
from .output import done, run_directory

_PACK = Path(__file__).resolve().parents[2]
_PORT = 29500
_TIME = re.compile(r"(?:\d+-)?\d{1,3}:\d{2}:\d{2}")
_RESTARTS = 3
_GRACE_S = 600
"""seconds between the signal and the kill, for finishing a step and saving"""


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """A run on a cluster: nodes, time, folders, container."""

    run_name: str
    command: str
    """command to run: train or resume"""
    run_path: str
    pack: str
    """folder of this pack, as the nodes see it"""
    nodes: int
    gpus: int
    """GPUs per node, with one process per GPU"""
    time: str
    """time limit in Slurm's format, [days-]hours:minutes:seconds"""
    python: str
    image: str
    """container image with Python, torch and the packages of this pack"""
    claim: str
    """PersistentVolumeClaim that holds runs, cache, models and this pack"""
    mount: str
    """path of the claim in containers"""
    local_cache: str
    """folder on a local disk of each node, to which base and cache are copied; "" for no copies"""
    trackers: str
    """file with tracker, webhook and mirror, as the nodes see it; "" for none"""
    gloo: bool
    """whether gradients are sent over gloo instead of NCCL"""
    interface: str
    """network interface of the ranks; "" lets the libraries choose"""

    @property
    def seconds(self) -> int:
        days, _, clock = self.time.rpartition("-")
        hours, minutes, seconds = (int(part) for part in clock.split(":"))
        return ((int(days or 0) * 24 + hours) * 60 + minutes) * 60 + seconds

    @property
    def environment(self) -> dict[str, str]:
        """Returns the environment of every rank."""
        found = {"OMP_NUM_THREADS": "4", "PYTHONUNBUFFERED": "1", "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": str(_GRACE_S)}
        if self.gloo:
            found["WAN_TRAINER_NCCL"] = "0"
        if self.local_cache:
            found["WAN_TRAINER_LOCAL"] = self.local_cache
        if self.interface:
            found |= {"GLOO_SOCKET_IFNAME": self.interface, "NCCL_SOCKET_IFNAME": self.interface}
        return found

    @property
    def labels(self) -> str:
        """Returns the run's name as a valid name of a Kubernetes object, which begins with a letter."""
        name = re.sub(r"[^a-z0-9]+", "-", self.run_name.lower()).strip("-")[:50].strip("-")
        return f"run-{name}" if name[:1].isdigit() else name or "wan-lora"

    def starting(self, rendezvous: str) -> str:
        """Returns the shell line that starts torchrun; `rendezvous` is host:port, quoted for the shell."""
        words = [self.python, "-m", "torch.distributed.run", "--nnodes", str(self.nodes)]
        words += ["--nproc-per-node", str(self.gpus), "--max-restarts", str(_RESTARTS), "--rdzv-backend", "c10d"]
        words += ["--rdzv-id", self.labels, "--rdzv-endpoint"]
        engine = [f"{self.pack}/wan_core/launch.py", self.command, self.run_path]
        if self.trackers:
            engine += ["--trackers", self.trackers]
        return f"exec {shlex.join(words)} {rendezvous} {shlex.join(engine)}"


def sbatch_of(cluster: Cluster) -> str:
    """Returns a batch script with one torchrun per node. The script requeues a run that the time limit stopped."""
    exports = [f"export {name}={shlex.quote(value)}" for name, value in cluster.environment.items()]
    # The signal would end torchrun at once, so torchrun ignores it; the ranks handle it and save.
    node = [
        "set -e",
        "trap '' USR1",
        f"cd {shlex.quote(cluster.pack)}",
        cluster.starting(f'"$head:{_PORT}"'),
    ]
    lines = [
        "#!/bin/bash",
        f"#SBATCH --job-name={cluster.labels}",
        f"#SBATCH --nodes={cluster.nodes}",
        "#SBATCH --ntasks-per-node=1",
        f"#SBATCH --gpus-per-node={cluster.gpus}",
        f"#SBATCH --time={cluster.time}",
        f"#SBATCH --signal=USR1@{_GRACE_S}",
        "#SBATCH --requeue",
        "#SBATCH --open-mode=append",
        f"#SBATCH --output={cluster.labels}-%j.log",
        "",
        "set -u",
        *exports,
        f"run={shlex.quote(cluster.run_path)}",
        'head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)',
        "export head",
        "node=$(cat <<'END'",
        *node,
        "END",
        ")",
        'srun --kill-on-bad-exit=1 bash -c "$node"',
        "code=$?",
        "# The time limit stopped it with its state saved: queue the same job again, which resumes it.",
        """if grep -qs '"reason": "signal SIGUSR1"' "$run/status.json" "$run/status.next.json"; then""",
        '  scontrol requeue "$SLURM_JOB_ID"',
        "fi",
        'exit "$code"',
    ]
    return "\n".join(lines) + "\n"


def pytorchjob_of(cluster: Cluster) -> str:
    """Returns a PyTorchJob (kubeflow.org/v1), as JSON, which is YAML."""
    replica = {"restartPolicy": "OnFailure", "template": {"spec": _pod(cluster, "pytorch", '"$PET_RDZV_ENDPOINT"')}}
    policy = {
        "rdzvBackend": "c10d",
        "rdzvPort": _PORT,
        "minReplicas": cluster.nodes,
        "maxReplicas": cluster.nodes,
        "nProcPerNode": cluster.gpus,
        "maxRestarts": _RESTARTS,
    }
    return _manifest(
        "kubeflow.org/v1",
        "PyTorchJob",
        cluster,
        {
            "runPolicy": {"activeDeadlineSeconds": cluster.seconds, "cleanPodPolicy": "Running"},
            "elasticPolicy": policy,
            "pytorchReplicaSpecs": {"Worker": {"replicas": cluster.nodes, **replica}},
        },
    )


def trainjob_of(cluster: Cluster) -> str:
    """Returns a TrainJob (trainer.kubeflow.org/v1alpha1) on the runtime torch-distributed, as JSON, which is YAML."""
    pod = _pod(cluster, "node", '"$PET_MASTER_ADDR:$PET_MASTER_PORT"')
    container = pod["containers"][0]
    trainer = {
        "image": cluster.image,
        "command": container["command"],
        "numNodes": cluster.nodes,
        "numProcPerNode": cluster.gpus,
        "resourcesPerNode": container["resources"],
        "env": container["env"],
    }
    volumes = {
        "targetJobs": [{"name": "node"}],
        "volumes": pod["volumes"],
        "containers": [{"name": "node", "volumeMounts": container["volumeMounts"]}],
    }
    spec = {"runtimeRef": {"name": "torch-distributed"}, "trainer": trainer, "podTemplateOverrides": [volumes]}
    return _manifest("trainer.kubeflow.org/v1alpha1", "TrainJob", cluster, spec)


def _pod(cluster: Cluster, name: str, rendezvous: str) -> dict[str, Any]:
    """Returns the pod of a node; the Kubernetes operator sets the variables in `rendezvous`."""
    script = f"set -e\ncd {shlex.quote(cluster.pack)}\n{cluster.starting(rendezvous)}"
    mounts = [{"name": "storage", "mountPath": cluster.mount}, {"name": "shm", "mountPath": "/dev/shm"}]
    volumes: list[dict[str, Any]] = [
        {"name": "storage", "persistentVolumeClaim": {"claimName": cluster.claim}},
        {"name": "shm", "emptyDir": {"medium": "Memory"}},
    ]
    if cluster.local_cache:
        mounts.append({"name": "local", "mountPath": cluster.local_cache})
        volumes.append({"name": "local", "emptyDir": {}})
    container = {
        "name": name,
        "image": cluster.image,
        "command": ["bash", "-c", script],
        "env": [{"name": key, "value": value} for key, value in cluster.environment.items()],
        "resources": {"limits": {"nvidia.com/gpu": cluster.gpus}},
        "volumeMounts": mounts,
    }
    return {"terminationGracePeriodSeconds": _GRACE_S + 30, "containers": [container], "volumes": volumes}


def _manifest(version: str, kind: str, cluster: Cluster, spec: dict[str, Any]) -> str:
    manifest = {"apiVersion": version, "kind": kind, "metadata": {"name": cluster.labels}, "spec": spec}
    return json.dumps(manifest, indent=2) + "\n"


_FILES: dict[str, Callable[[Cluster], str]] = {
    "slurm.sbatch": sbatch_of,
    "pytorchjob.yaml": pytorchjob_of,
    "trainjob.yaml": trainjob_of,
}


def add_cluster_command(command: Callable[..., argparse.ArgumentParser]) -> None:
    sub = command("export-cluster", _export, "write files that start a run under Slurm and Kubernetes")
    sub.add_argument("run_path", type=Path, metavar="RUN", help="folder of a run, on storage that all nodes see")
    sub.add_argument("--nodes", type=int, default=0, help="default: as many as the run's copies fill")
    sub.add_argument("--gpus", type=int, default=8, help="of each node")
    sub.add_argument("--time", default="24:00:00", help="limit, [days-]hours:minutes:seconds")
    sub.add_argument("--python", default="python", help="on the nodes")
    sub.add_argument("--image", default="wan-trainer:latest", help="of containers: Python, torch, this pack's packages")
    sub.add_argument("--claim", default="wan-trainer", help="PersistentVolumeClaim with runs, cache, models, this pack")
    sub.add_argument("--mount", default="/storage", help="where containers see the claim")
    sub.add_argument("--path", help="of the run on the nodes; default: as here")
    sub.add_argument("--pack", help="folder of this pack on the nodes; default: as here")
    sub.add_argument(
        "--local-cache", default="", metavar="FOLDER", help="on a disk of each node: copy base and cache there"
    )
    text = "JSON file with tracker, webhook and mirror, as the nodes see it"
    sub.add_argument("--trackers", default="", metavar="FILE", help=text)
    sub.add_argument("--interface", default="", help="network interface that ranks meet on, such as ib0")
    sub.add_argument("--gloo", action="store_true", help="gradients over gloo, without NCCL")
    sub.add_argument("--to", type=Path, help="folder of the files; default: cluster in the run's folder")


def _export(options: argparse.Namespace, _emit: Emit, out: BinaryIO) -> int:
    from ..job import read_run

    directory = run_directory(options.run_path)
    config = read_run(directory)
    if not _TIME.fullmatch(options.time):
        raise ConfigError(f"--time is {options.time}. Write hours:minutes:seconds, such as 24:00:00.")
    if not 1 <= options.gpus <= 64 or not 0 <= options.nodes <= 4096:
        raise ConfigError(f"--nodes is {options.nodes} and --gpus {options.gpus}. Set them to 1 or more.")
    nodes = options.nodes or max(-(-config.model.placement.copies // options.gpus), 1)
    given = {name: value for name, value in vars(options).items() if name in Cluster.__dataclass_fields__}
    here: dict[str, Any] = {
        "run_name": config.run_name,
        "command": "train",
        "run_path": options.path or str(directory),
        "pack": options.pack or str(_PACK),
        "nodes": nodes,
        "local_cache": options.local_cache.rstrip("/"),
    }
    cluster = Cluster(**(given | here))
    folder = (options.to or directory / "cluster").resolve()
    for name, write in _FILES.items():
        atomic_write_bytes(folder / name, write(cluster).encode(), folder.parent)
    files = [str(folder / name) for name in _FILES]
    return done(out, {"nodes": nodes, "gpus": options.gpus, "files": files})
