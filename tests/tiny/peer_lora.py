"""Run tiny Wan models under LoRA files with another program's own loader and classes. A process of its own.

    python tests/tiny/peer_lora.py comfyui|diffusers CASES.safetensors LORA_FOLDER OUT.safetensors [COMFYUI TREE]

CASES as in peer_forward.py; LORA_FOLDER holds `<case>.<label>.safetensors`, and for diffusers folders `<case>.<label>`
as its pipelines or PEFT save them. OUT gets `<case>.base` and
`<case>.<label>`, and with ComfyUI the weights of block 0 as `<case>.<label>.<name>`; printed is JSON: what the program
said about keys, and how many weights each file changed.
"""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path
from typing import Any

import peer_forward
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import nn


class Heard(logging.Handler):
    """Keeps what is logged about LoRA keys."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if "lora" in record.getMessage().lower():
            self.lines.append(record.getMessage())


class Holder(nn.Module):
    """What ComfyUI calls a model: its diffusion model, and a configuration its key map asks for."""

    def __init__(self, diffusion_model: nn.Module) -> None:
        super().__init__()
        self.diffusion_model = diffusion_model
        self.model_config = type("Config", (), {"unet_config": {}})()


def apply_comfyui(model: nn.Module, path: Path) -> int:
    import comfy.model_patcher
    import comfy.sd
    import comfy.utils

    cpu = torch.device("cpu")
    patcher = comfy.model_patcher.ModelPatcher(Holder(model), cpu, cpu)
    adapted, _ = comfy.sd.load_lora_for_models(patcher, None, comfy.utils.load_torch_file(str(path)), 1.0, 0.0)
    adapted.patch_model(device_to=cpu)
    return len(adapted.patches)


def apply_diffusers(model: Any, path: Path) -> int:
    from diffusers.loaders import WanLoraLoaderMixin
    from peft.tuners.lora import LoraLayer

    if (path / "adapter_config.json").is_file():
        from peft import PeftModel

        PeftModel.from_pretrained(model, str(path))
    else:
        file = {} if path.is_dir() else {"weight_name": path.name}
        found = WanLoraLoaderMixin.lora_state_dict(str(path if path.is_dir() else path.parent), **file)
        WanLoraLoaderMixin.load_lora_into_transformer(found, model)
    return sum(isinstance(module, LoraLayer) for module in model.modules())


def main(program: str, cases: str, folder: str, out: str, *tree: str) -> None:
    torch.set_num_threads(1)
    build, run, _ = peer_forward.comfyui(*tree) if program == "comfyui" else peer_forward.diffusers()
    rename = (lambda name: name) if program == "comfyui" else peer_forward.original_name
    apply = apply_comfyui if program == "comfyui" else apply_diffusers
    heard, found, changed = Heard(), {}, {}
    for logger in (logging.getLogger(), logging.getLogger("diffusers")):
        logger.addHandler(heard)
    with safe_open(cases, "pt") as file, torch.no_grad():
        for name, text in file.metadata().items():
            shape = json.loads(text)
            keys = [key for key in file.keys() if key.startswith(f"{name}.")]  # noqa: SIM118
            case = {key.removeprefix(f"{name}."): file.get_tensor(key) for key in keys}
            folders = [path for path in Path(folder).glob(f"{name}.*") if path.is_dir()]
            for path in [None, *sorted(Path(folder).glob(f"{name}.*.safetensors")), *sorted(folders)]:
                model = build(shape).eval()
                model.load_state_dict(peer_forward.weights_for(model, case, rename), strict=True)
                label = path.name.removesuffix(".safetensors") if path else f"{name}.base"
                if path is not None:
                    changed[label] = apply(model, path)
                found[label] = run(model, shape, case).contiguous()
                if program == "comfyui":
                    found |= {
                        f"{label}.{key}": value for key, value in model.state_dict().items() if "blocks.0." in key
                    }
    save_file(found, out)
    print(json.dumps({"said": heard.lines, "changed": changed}))


if __name__ == "__main__":
    main(*sys.argv[1:])
