"""Error of a LoRA in a core sampler against training: loaders of a ComfyUI, kinds of LoRA, quantized bases.

    python benchmarks/applied_lora.py --comfyui PATH [--gguf PATH] [--only "fp8 scaled"] [--dtype bf16]
    python benchmarks/applied_lora.py --comfyui PATH --pace 7 [--only "fp8 scaled"]

PATH: a ComfyUI tree, and the custom node ComfyUI-GGUF. A tiny Wan (width 256, two blocks) in every container, and LoRAs
that change its answer by one percent. What was trained is the engine's own answer in float32, over the base that the
MODEL holds. Figures are |what the loader changed - what was trained| / |what was trained|, of one sampling step; of
int8, whose inputs a ComfyUI packs as well, Apply Wan LoRA's is that of the worst linear.

--pace: instead, CPU seconds of one sampling step of a Wan of 1.3B's width with one block and 1,024 tokens, on one
thread, without a LoRA, with core Load LoRA (which is in the weights by then) and with Apply Wan LoRA; so many rounds,
the three in turn, and the median of each round's ratio.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT)]

import torch
from torch import Tensor

from tests.support.applied_loras import (
    KEPT,
    KINDS,
    apart,
    bases,
    engine,
    given_inputs,
    held_by,
    held_by_comfyui,
    trained,
)
from tests.support.containers import Weights, weights
from wan_core.lora import LoraConfig, acting_parts, exported, inject_lora
from wan_core.model import WanShape, WanTransformer

WIDE = WanShape(dim=1536, ffn_dim=8960, num_heads=12, num_layers=1)
PACED = {
    "LoRA": LoraConfig(rank=32),
    "DoRA": LoraConfig(rank=32, kind="DoRA"),
    "LoKr": LoraConfig(rank=32, kind="LoKr"),
    "LoHa": LoraConfig(rank=16, kind="LoHa"),
    "OFT": LoraConfig(rank=32, kind="OFT"),
    "LoRA, norms and biases": LoraConfig(rank=32, also_train="norms and biases"),
}


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--comfyui", type=Path, required=True)
    parser.add_argument("--gguf", type=Path)
    parser.add_argument("--only", default="", help="a base")
    parser.add_argument("--dtype", default="fp32", choices=("fp32", "bf16"), help="what ComfyUI computes in")
    parser.add_argument("--pace", type=int, default=0, metavar="ROUNDS", help="measure seconds instead")
    asked = parser.parse_args(arguments)
    comfy = Comfy(asked.comfyui, asked.gguf, torch.bfloat16 if asked.dtype == "bf16" else None)
    if asked.pace:
        torch.set_num_threads(1)
        with tempfile.TemporaryDirectory() as folder, torch.inference_mode():
            pace(comfy, asked.only or "fp8 scaled", asked.pace, Path(folder))
        return 0
    print(f"| base | kind | {' | '.join(comfy.loaders)} |\n| --- | --- |{' --- |' * len(comfy.loaders)}")
    worst = 0.0
    with tempfile.TemporaryDirectory() as folder, torch.inference_mode():  # as ComfyUI runs every node
        for name in bases():
            if asked.only in name and (not name.startswith("GGUF") or asked.gguf):
                worst = max([worst, *rows(comfy, name, Path(folder))])
    print(f"Apply Wan LoRA: at most {worst:.2g}")
    return 0 if worst <= 0.01 or asked.dtype != "fp32" else 1


def rows(comfy: Comfy, name: str, folder: Path) -> Iterator[float]:
    """Prints the rows of a base; yields the error of Apply Wan LoRA."""
    file = folder / f"{name.replace(' ', '_')}.{'gguf' if name.startswith('GGUF') else 'safetensors'}"
    held = held_by(file, weights(), name)
    try:
        model = comfy.load(file, KEPT.get(name))
    except Exception as problem:
        print(f"| {name} | all | {type(problem).__name__}: {str(problem)[:80]} |")
        return
    plain = comfy.sampled(model)
    off = apart(plain, engine(held)(*comfy.given))
    if off > 0.1:
        print(f"| {name} | all | not read: the model itself answers otherwise ({off:.2g}) |")
        return
    held = held_by_comfyui(model, held)
    off_itself = apart(plain, engine(held)(*comfy.given))
    print(f"| {name} | none | the model: {off:.2g} off its file, {off_itself:.2g} off what it holds |")
    for kind, config in KINDS.items():
        wanted, tensors = trained(held, config, comfy.given)
        errors = []
        for load in comfy.loaders.values():
            try:
                errors.append(apart(comfy.sampled(load(model, dict(tensors))) - plain, wanted))
            except Exception as problem:
                errors.append(f"{type(problem).__name__}: {str(problem)[:60]}")
        if off_itself > 1e-3:
            errors[0] = _worst_layer(model, held, tensors)
        print(f"| {name} | {kind} | {' | '.join(f'{e:.2g}' if isinstance(e, float) else e for e in errors)} |")
        yield errors[0] if isinstance(errors[0], float) else float("inf")


def pace(comfy: Comfy, name: str, rounds: int, folder: Path) -> None:
    """Prints the seconds of a step with each kind of LoRA on one base."""
    file, whole = folder / "base.safetensors", weights(WIDE)
    bases()[name](file, whole)
    comfy.given = (torch.randn(1, 16, 4, 32, 32), comfy.given[1], comfy.given[2])
    comfy.noise = comfy.given[0]
    model = comfy.load(file, KEPT.get(name))
    print(f"| {name} | seconds | Load LoRA / none | Apply Wan LoRA / Load LoRA | least to most |\n|{' --- |' * 5}")
    for kind, config in PACED.items():
        trainer = WanTransformer(WIDE)
        trainer.load_state_dict(whole)
        inject_lora(trainer, config, seed=1)
        tensors = {f"diffusion_model.{key}": value for key, value in exported(trainer).items()}
        del trainer
        ways = {"none": model} | {
            way: comfy.loaders[way](model, dict(tensors)) for way in ("Load LoRA", "Apply Wan LoRA")
        }
        took: dict[str, list[float]] = {way: [] for way in ways}
        for number in range(rounds + 1):
            for way, made in ways.items():
                comfy.sampled(made)  # not counted: loads the weights in place of the last model's
                began = time.process_time()
                comfy.sampled(made)
                if number:
                    took[way].append(time.process_time() - began)
        merged, ours = (
            [one / other for one, other in zip(took[way], took[beside], strict=True)]
            for way, beside in (("Load LoRA", "none"), ("Apply Wan LoRA", "Load LoRA"))
        )
        print(
            f"| {kind} | {statistics.median(took['none']):.2f} | {statistics.median(merged):.3f} | "
            f"{statistics.median(ours):.3f} | {min(ours):.3f} to {max(ours):.3f} |",
            flush=True,
        )


def _worst_layer(model: Any, held: Weights, tensors: dict[str, Tensor]) -> float:
    """Returns the largest error of Apply Wan LoRA over the linears. A base with quantized activations reacts to any
    change, which hides the error in the model's output.
    """
    worst = 0.0
    for name, part in acting_parts(tensors, 1.0).items():
        module = model.model.diffusion_model.get_submodule(name)
        if not hasattr(module, "in_features"):
            continue
        plain = torch.nn.Linear(module.in_features, module.out_features)
        plain.load_state_dict({leaf: held[f"{name}.{leaf}"] for leaf in ("weight", "bias")})
        x = torch.randn(64, module.in_features, generator=torch.Generator().manual_seed(1))
        y, wanted = module(x), plain(x)
        worst = max(worst, apart(part(module, x, y, "here") - y, part(plain, x, wanted, "there") - wanted))
    return worst


class Comfy:
    """The loaders of a ComfyUI tree, in this process."""

    def __init__(self, tree: Path, gguf: Path | None, dtype: torch.dtype | None) -> None:
        sys.argv = [sys.argv[0], "--cpu"]
        sys.path.insert(0, str(tree))
        importlib.import_module("comfy.options").enable_args_parsing(False)
        importlib.import_module("comfy.cli_args").args.cpu = True
        self._sample, self._dtype = importlib.import_module("comfy.sample"), dtype
        self._sd = sd = importlib.import_module("comfy.sd")
        self._gguf = _gguf_loader(gguf) if gguf else None
        self.given = given_inputs()
        self.noise, _, self._text = self.given
        self.loaders: dict[str, Callable[[Any, dict[str, Tensor]], Any]] = {
            "Apply Wan LoRA": _ours(),
            "Load LoRA": lambda model, tensors: sd.load_lora_for_models(model, None, tensors, 1.0, 0)[0],
        }
        if bypass := getattr(sd, "load_bypass_lora_for_models", None):
            self.loaders["Load LoRA (Bypass)"] = lambda model, tensors: bypass(model, None, tensors, 1.0, 0)[0]

    def load(self, file: Path, kept: torch.dtype | None) -> Any:
        """Returns a MODEL; `kept`: storage dtype of weights that are not quantized, as on a GPU."""
        if file.suffix == ".gguf" and self._gguf:
            model = self._gguf(file)
        else:
            model = self._sd.load_diffusion_model(str(file), {} if kept is None else {"dtype": kept})
        if self._dtype is not None:
            model = model.clone()
            model.set_model_compute_dtype(self._dtype)
        return model

    def sampled(self, model: Any) -> Tensor:
        """Returns the velocity at the first sigma, from one step of a sampler."""
        text = [[self._text, {}]]
        blank = torch.zeros_like(self.noise)
        out = self._sample.sample(
            model, self.noise, 1, 1.0, "euler", "simple", text, text, blank, seed=0, disable_pbar=True
        )
        return self.noise - model.model.process_latent_in(out)


def _ours() -> Callable[[Any, dict[str, Tensor]], Any]:
    """Returns the function behind Apply Wan LoRA, without importing the pack."""
    package = "wan_trainer_bench"
    for name, folder in ((package, ROOT), (f"{package}.nodes", ROOT / "nodes"), (f"{package}.nodes.bridge", ROOT)):
        found = type(sys)(name)
        found.__path__ = [str(folder)]
        sys.modules[name] = found
    sys.modules[f"{package}.wan_core"] = sys.modules["wan_core"]
    for name in ("errors", "lora"):
        sys.modules[f"{package}.wan_core.{name}"] = sys.modules[f"wan_core.{name}"]
    spec = importlib.util.spec_from_file_location(f"{package}.nodes.bridge.acting", ROOT / "nodes/bridge/acting.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return lambda model, tensors: module.with_acting(model, acting_parts(tensors, 1.0), "bench")


def _gguf_loader(pack: Path) -> Callable[[Path], Any]:
    spec = importlib.util.spec_from_file_location(
        "gguf_pack", pack / "__init__.py", submodule_search_locations=[str(pack)]
    )
    assert spec is not None
    assert spec.loader is not None
    sys.modules["gguf_pack"] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    folder_paths = importlib.import_module("folder_paths")

    def load(file: Path) -> Any:
        folder_paths.add_model_folder_path("unet_gguf", str(file.parent))
        folder_paths.filename_list_cache.clear()
        return module.NODE_CLASS_MAPPINGS["UnetLoaderGGUF"]().load_unet(file.name)[0]

    return load


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
