"""`wan_core plan`: memory, disk and time of a run, or of settings before a run, from headers alone."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from ..errors import ConfigError, ExitCode
from ..events import Emit
from .output import print_json, roots_of, run_directory

if TYPE_CHECKING:
    from ..load import ModelPlan

_NOT_CHECKPOINTED = ("none", "off")
_QUANTIZE = {"none": "", "fp8": "fp8_e4m3fn", "int8": "int8"}


def add_plan_command(command: Callable[..., argparse.ArgumentParser]) -> None:
    plan = command("plan", _plan, "predict memory, disk and time of a run, or of settings, before anything is loaded")
    plan.add_argument("run_path", type=Path, metavar="RUN", nargs="?", help="a run; or give --model and --size instead")
    plan.add_argument("--model", type=Path, metavar="FILE", help="a model file or folder; only its header is read")
    plan.add_argument("--size", metavar="WxHxF", help="of the largest clips, for example 832x480x33")
    plan.add_argument(
        "--preset", default="", metavar="NAME", help='what a preset of Train Wan LoRA fills in, such as "16 GB, good"'
    )
    plan.add_argument("--rank", type=int, default=16)
    plan.add_argument("--quantize", choices=tuple(_QUANTIZE), default="none", help="as Fp8 / Int8 Quantize would")
    plan.add_argument("--card", default="", metavar="GIB[,GIB]", help="memory of each card; default: this machine's")
    text = "with several cards: split blocks (default), split tokens, copy per GPU, one device, or auto"
    plan.add_argument("--mode", default="split blocks", metavar="MODE", help=text)
    plan.add_argument(
        "--world", type=int, default=0, metavar="RANKS", help="with --card: also plan the mesh of this many ranks"
    )
    plan.add_argument(
        "--clips", type=int, default=0, help="with --world: clips of an optimizer step; default: one per rank"
    )
    text = "folder of runs whose measurements correct the plan for this machine; default: that of the model's ComfyUI"
    plan.add_argument("--runs", type=Path, metavar="FOLDER", help=text)
    plan.add_argument("--variant", default="auto", help="where the file cannot tell")
    plan.add_argument("--policy", default="balanced", help="precision policy: balanced, reference or fast")
    plan.add_argument("--batch", type=int, default=1, help="clips per forward pass")
    plan.add_argument("--accumulate", type=int, default=1, help="forward and backward passes per optimizer step")
    text = "none, or a checkpointing_policy; default: auto, as in a new run"
    plan.add_argument("--checkpointing", default="auto", metavar="POLICY", help=text)
    plan.add_argument("--unchecked-blocks", type=int, default=0)
    plan.add_argument("--offload-activations", default="auto", help="auto, on or off")
    plan.add_argument("--blocks-to-swap", type=int, default=-1, help="-1: as few as are needed")


def _plan(options: argparse.Namespace, _emit: Emit, out: BinaryIO) -> int:
    report = _report(options)
    print_json(out, report)
    if not report["fits"]:
        print(report["verdict"], file=sys.stderr)
    return ExitCode.DONE if report["fits"] else ExitCode.DOES_NOT_FIT


def _report(options: argparse.Namespace) -> dict[str, Any]:
    from ..plan import report_run, report_settings

    if options.run_path is not None:
        if options.card or options.preset:
            raise ConfigError(
                "A run is planned for this machine. For --card and --preset give --model and --size instead."
            )
        return report_run(run_directory(options.run_path), roots_of(options))
    size = options.size or ("832x480x33" if options.preset else "")
    if options.model is None or not size:
        raise ConfigError("Name a run to plan for, or a model and a size: plan --model FILE --size 832x480x33.")
    from ..files import Roots
    from ..lora import LoraConfig
    from ..placement import PlacementConfig
    from ..train import TrainConfig

    train = TrainConfig(
        batch_size=options.batch,
        gradient_accumulation_steps=options.accumulate,
        gradient_checkpointing=options.checkpointing not in _NOT_CHECKPOINTED,
        checkpointing_policy="full" if options.checkpointing in _NOT_CHECKPOINTED else options.checkpointing,
        unchecked_blocks=options.unchecked_blocks,
        offload_activations=options.offload_activations,
        blocks_to_swap=options.blocks_to_swap,
    )
    file = options.model.resolve()
    known = roots_of(options).folders
    runs = (str(options.runs.resolve()),) if options.runs else known.get("runs") or _runs_beside(file)
    roots = Roots({**known, "diffusion_models": (str(file.parent),), **({"runs": runs} if runs else {})})
    cards, mode = _gibibytes(options.card), PlacementConfig(mode=options.mode).mode
    if options.world < 0 or options.clips < 0 or (options.world and not cards):
        raise ConfigError("--world must be a number of ranks. Set --card to the GiB of each rank's card.")
    settings = (LoraConfig(rank=options.rank), train, size, cards, mode)
    more = {"world": options.world, "clips": options.clips, "preset": options.preset}
    return report_settings(_model(options, file), roots, *settings, **more)


def _runs_beside(model: Path) -> tuple[str, ...]:
    """Returns the runs folder of the ComfyUI that contains the model file; () if there is none."""
    found = (parent.parent / "output" / "wan_trainer" for parent in model.parents if parent.name == "models")
    return tuple(str(folder) for folder in found if folder.is_dir())[:1]


def _model(options: argparse.Namespace, file: Path) -> ModelPlan:
    from ..load import ModelPlan
    from ..precision import PrecisionPolicy, QuantizeConfig

    scheme = _QUANTIZE[options.quantize]
    return ModelPlan(
        base_file=f"diffusion_models:{file.name}",
        variant=options.variant,
        precision=PrecisionPolicy(preset=options.policy),
        quantize=QuantizeConfig(scheme=scheme) if scheme else None,
    )


def _gibibytes(listed: str) -> list[float]:
    try:
        found = [float(part) for part in listed.split(",") if part.strip()]
    except ValueError:
        found = [0.0]
    if any(not 0 < card < 1e6 for card in found) or (listed and not found):
        raise ConfigError(f'--card "{listed[:40]}" is not the GiB of each card, such as 16 or 24,24.')
    return found
