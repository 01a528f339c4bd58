"""Tests engine and nodes on other versions: `python3 scripts/matrix.py STACK [--python EXE]`.

Each stack gets a virtual environment below .cache/matrix (6 GB: torch with CUDA libraries), made once: ComfyUI's
packages, then `pip install -r requirements.txt` as a user does it. `oldest` and `newest` run the imports of other
packs, the engine's tests, the nodes' tests in a real ComfyUI, and a graph that trains and generates; `torch-2.6`,
`torch-2.7` and `torch-2.9` only the imports of other packs. Results: docs/use/versions.md. Run `scripts/test.py`
first: it tests the usual stack, and fetches ComfyUI and the clips.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import environment
from environment import CACHE, ROOT, say


@dataclass(frozen=True)
class Stack:
    """Versions that go together; packages without a pin are the newest that fit."""

    python: str
    pins: tuple[str, ...]
    constrained: bool
    """whether packages without a pin follow tests/constraints.txt"""
    stages: tuple[str, ...] = ("engine", "nodes", "smoke")


def _of(torch: str, torchvision: str) -> tuple[str, ...]:
    """Returns pins of torch, torchvision and torchaudio of one release."""
    return f"torch=={torch}", f"torchvision=={torchvision}", f"torchaudio=={torch}"


STACKS = {
    "oldest": Stack(
        "3.10",
        (
            *_of("2.6.0", "0.21.0"),
            "peft==0.20.0",
            "av==17.1.0",
            "comfy-kitchen==0.2.8",  # the tests' reference for nvfp4; 0.2.12 cannot be imported with torch 2.6
        ),
        constrained=True,
    ),
    "newest": Stack("3.13", ("torch", "torchvision", "peft", "av"), constrained=False),
    "torch-2.6": Stack("3.12", _of("2.6.0", "0.21.0"), constrained=False, stages=()),
    "torch-2.7": Stack("3.12", _of("2.7.1", "0.22.1"), constrained=False, stages=()),
    "torch-2.9": Stack("3.12", _of("2.9.1", "0.24.1"), constrained=False, stages=()),
}
OURS = ROOT / "requirements.txt"
OF_OTHER_PACKS = ("transformers", "diffusers")
OF_TESTS = (
    *("peft", "gguf", "comfy-kitchen", "scenedetect-headless", "pyarrow", "zstandard", "google-crc32c"),
    *("pytest", "pytest-xdist"),
)
HARDWARE = "not gpu and not multi_gpu and not soak and not browser"
STAGES = {
    "engine": ["tests/wan_core", "tests/test_packaging.py", "-m", f"not comfy and {HARDWARE}"],
    "nodes": ["tests/nodes", "tests/test_pack_loads.py", "-m", f"comfy and {HARDWARE}"],
    "smoke": ["tests/workflows/test_train_then_generate.py", "-m", f"comfy and {HARDWARE}"],
}
OTHER_PACKS = "from transformers import T5EncoderModel; from diffusers import WanPipeline"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stack", choices=STACKS)
    parser.add_argument("--python", help="an interpreter of the stack's version; default: python3.10 to python3.13")
    parser.add_argument("--folder", type=Path, default=CACHE / "matrix", help="where the environments are kept")
    parser.add_argument("--only", choices=STAGES, action="append", help="these stages instead of all")
    asked, more = parser.parse_known_args()
    stack = STACKS[asked.stack]
    python = prepare(asked.stack, stack, interpreter(stack, asked.python), asked.folder)
    results = {"other packs": other_packs(python)}
    for stage in asked.only or stack.stages:
        results[stage] = run_stage(python, stage, more)
    say("")
    say(f"| {asked.stack} | {versions(python)} | " + " | ".join(results.values()) + " |")
    return 1 if any("failed" in found or "error" in found for found in results.values()) else 0


def interpreter(stack: Stack, named: str | None) -> str:
    """Returns an interpreter of the stack's version. Raises SystemExit with one sentence without one."""
    found = shutil.which(named or f"python{stack.python}")
    if not found:
        raise SystemExit(f"Python {stack.python} is needed and python{stack.python} was not found; name one: --python")
    code = "import sys; print('%d.%d' % sys.version_info[:2])"
    here = subprocess.run([found, "-c", code], capture_output=True, text=True, check=False).stdout.strip()
    if here != stack.python:
        said = here or "a name that starts no Python"
        raise SystemExit(f"Python {stack.python} is needed; {found} is {said}. Name another: --python")
    return found


def prepare(name: str, stack: Stack, base: str, folder: Path) -> Path:
    """Returns the Python of a stack's environment, which is made again when its requirements change."""
    venv, stamp = folder / name, folder / f"{name}.json"
    tree = comfyui()
    needed, pins = environment.requirements(tree)
    wanted = [*stack.pins, *OF_OTHER_PACKS, *needed, *(OF_TESTS if stack.stages else ())]
    pins |= {pin.split("==")[0]: pin for pin in stack.pins}
    constraints = environment.constraints(pins) if stack.constrained else ""
    key = json.dumps([base, wanted, OURS.read_text(encoding="utf-8"), constraints])
    python = environment.python_in_venv(venv)
    if python.exists() and stamp.exists() and stamp.read_text(encoding="utf-8") == key:
        return python
    shutil.rmtree(venv, ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    subprocess.run([base, "-m", "venv", str(venv)], check=True)
    install = [str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    if stack.constrained:
        file = folder / f"{name}-constraints.txt"
        file.write_text(constraints, encoding="utf-8")
        install += ["-c", str(file)]
    if subprocess.call([*install, *wanted]) or subprocess.call([*install, "-r", str(OURS)]):
        raise SystemExit(f"The packages of {name} could not be installed; see above.")
    if "torchaudio" not in pins:  # as in environment.py: there is none of the newest torch, and ComfyUI imports one
        subprocess.run([*install, "--no-deps", "torchaudio"], check=True)
        for compiled in venv.rglob("torchaudio/lib"):
            shutil.rmtree(compiled)
    stamp.write_text(key, encoding="utf-8")
    say(f"made {name} in {time.monotonic() - began:.0f} s")
    return python


def comfyui() -> Path:
    tree = Path(os.environ.get("COMFYUI_PATH") or CACHE / "comfyui")
    if not (tree / "requirements.txt").is_file():
        raise SystemExit("There is no ComfyUI yet. Run python3 scripts/test.py --only lint, or set COMFYUI_PATH.")
    return tree


def other_packs(python: Path) -> str:
    """Tests that the imports of other packs work after this one was installed. Returns the result in words."""
    done = subprocess.run([str(python), "-c", OTHER_PACKS], capture_output=True, text=True, check=False)
    if done.returncode:
        say(done.stderr[-3000:])
    return "failed" if done.returncode else "work"


def run_stage(python: Path, stage: str, more: list[str]) -> str:
    """Runs pytest on that stack. Returns pytest's last line."""
    say(f"\n== {stage}")
    command = [str(python), "-m", "pytest", *STAGES[stage], "-q", "-p", "no:cacheprovider"]
    variables = {"OMP_NUM_THREADS": "1", **os.environ}
    last = ""
    with subprocess.Popen([*command, *more], cwd=ROOT, env=variables, stdout=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None
        for line in run.stdout:
            print(line, end="", flush=True)
            last = line.strip() or last
    return re.sub(r" in [\d.]+s.*", "", last)


def versions(python: Path) -> str:
    names = ("torch", "peft", "transformers", "diffusers", "av", "numpy")
    code = (
        "import sys\nfrom importlib.metadata import version\n"
        f"print('Python %d.%d.%d' % sys.version_info[:3], *(n + ' ' + version(n) for n in {names!r}), sep=', ')"
    )
    return subprocess.run([str(python), "-c", code], capture_output=True, text=True, check=True).stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
