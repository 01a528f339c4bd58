"""One small LoRA in the names of every trainer, and the golden model it was made for (tests/fixtures/README.md)."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from wan_core.checkpoint import to_original
from wan_core.model import WanShape, WanTransformer

FIXTURES = Path(__file__).parents[1] / "fixtures"
ALPHA, RANK = 2.0, 4
INNER_DIFFUSERS = (
    *(f"attn{n}.{part}" for n in (1, 2) for part in ("to_q", "to_k", "to_v", "to_out.0")),
    "ffn.net.0.proj",
    "ffn.net.2",
)
MODULES = {to_original(f"blocks.{i}.{inner}"): f"blocks.{i}.{inner}" for i in range(2) for inner in INNER_DIFFUSERS}
"""original name -> diffusers name"""

Rename = Callable[[str, str], str]
"""(original module, down / up / alpha / ...) -> key in the file"""


def golden_model() -> tuple[WanTransformer, list[Tensor]]:
    """The model of wan_tiny_t2v.safetensors in float32 and its three inputs."""
    with safe_open(FIXTURES / "wan_tiny_t2v.safetensors", "pt") as file:
        size = json.loads(file.metadata()["config"])
    golden = load_file(FIXTURES / "wan_tiny_t2v.safetensors")
    heads = size["num_attention_heads"]
    shape = WanShape(
        dim=heads * size["attention_head_dim"], ffn_dim=size["ffn_dim"], num_heads=heads, num_layers=size["num_layers"],
        in_channels=size["in_channels"], out_channels=size["out_channels"], text_dim=size["text_dim"],
    )  # fmt: skip
    model = WanTransformer(shape)
    model.load_state_dict({to_original(k[8:]): v for k, v in golden.items() if k.startswith("weights.")})
    return model, [golden[f"inputs.{name}"] for name in ("hidden_states", "timestep", "encoder_hidden_states")]


def pinned(prefix: str) -> dict[str, Tensor]:
    """The tensors of one format of wan_tiny_lora.safetensors, under the names of a real file."""
    tensors = load_file(FIXTURES / "wan_tiny_lora.safetensors")
    return {key.removeprefix(prefix): value.clone() for key, value in tensors.items() if key.startswith(prefix)}


def expected(name: str) -> Tensor:
    """What ComfyUI gave: "" for the plain LoRA, "_lokr", "_loha"."""
    return load_file(FIXTURES / "wan_tiny_lora.safetensors")[f"expected.output_fp32_comfyui{name}"]


def pairs() -> Iterator[tuple[str, Tensor, Tensor]]:
    """(original module, down, up) of the plain LoRA; its scale is ALPHA / RANK."""
    tensors = pinned("generic.diffusion_model.")
    for module in MODULES:
        yield module, tensors[f"{module}.lora_A.weight"], tensors[f"{module}.lora_B.weight"]


def _dotted(prefix: str, down: str, up: str, names: dict[str, str] | None = None) -> Rename:
    words = {"down": down, "up": up}
    return lambda module, part: f"{prefix}{(names or {}).get(module, module)}.{words.get(part, part)}"


def _flat(prefix: str, names: dict[str, str] | None = None) -> Rename:
    words = {"down": "lora_down.weight", "up": "lora_up.weight"}
    return lambda module, part: f"{prefix}{(names or {}).get(module, module).replace('.', '_')}.{words.get(part, part)}"


_PEFT = ("lora_A.weight", "lora_B.weight")
_NAMED = ("lora_A.default.weight", "lora_B.default.weight")
_KOHYA = ("lora_down.weight", "lora_up.weight")

FORMATS: dict[str, tuple[Rename, bool]] = {
    "a: diffusion_model, lora_A, alpha": (_dotted("diffusion_model.", *_PEFT), True),
    "a: diffusion_model, lora_A, no alpha": (_dotted("diffusion_model.", *_PEFT), False),
    "b: diffusion_model, lora_down, alpha": (_dotted("diffusion_model.", *_KOHYA), True),
    "c: lora_unet_": (_flat("lora_unet_"), True),
    "d: lora_unet__": (_flat("lora_unet__"), True),
    "e: transformer, diffusers names": (_dotted("transformer.", *_PEFT, MODULES), False),
    "e: transformer_2": (_dotted("transformer_2.", *_PEFT, MODULES), False),
    "e: transformer, original names": (_dotted("transformer.", *_PEFT), False),
    "f: no prefix, .default": (_dotted("", *_NAMED), False),
    "f: pipe.dit, .default": (_dotted("pipe.dit.", *_NAMED), False),
    "g: diffusion_model, .default": (_dotted("diffusion_model.", *_NAMED), False),
    "h: base_model.model": (_dotted("base_model.model.", *_PEFT), False),
    "h: base_model.model, diffusers names": (_dotted("base_model.model.", *_PEFT, MODULES), False),
    "i: lora_transformer_": (_flat("lora_transformer_", MODULES), True),
    "i: lycoris_": (_flat("lycoris_", MODULES), True),
    "i: lycoris_, original names": (_flat("lycoris_"), True),
    "bare lora_A": (_dotted("diffusion_model.", "lora_A", "lora_B"), True),
    "lora.down": (_dotted("diffusion_model.", "lora.down.weight", "lora.up.weight"), True),
    "compiled": (_dotted("diffusion_model._orig_mod.", *_PEFT), True),
}
"""name -> (key of a part, whether it holds alpha); without alpha the scale is folded in"""


def write_format(name: str, path: Path) -> Path:
    """The plain LoRA as a file of one format of FORMATS."""
    rename, with_alpha = FORMATS[name]
    tensors: dict[str, Tensor] = {}
    for module, down, up in pairs():
        tensors[rename(module, "down")] = down if with_alpha else down * (ALPHA / RANK)
        tensors[rename(module, "up")] = up
        if with_alpha:
            tensors[rename(module, "alpha")] = torch.tensor(ALPHA)
    save_file(tensors, path)
    return path


LYCORIS_NAMES: dict[str, Rename] = {
    "diffusion_model.": _dotted("diffusion_model.", "", ""),
    "lora_unet_": _flat("lora_unet_"),
    "lycoris_": _flat("lycoris_", MODULES),
}


def write_lycoris(kind: str, names: str, path: Path) -> Path:
    """The LoKr ("lokr") or LoHa ("loha") of the fixture under other names."""
    renamed = {}
    for key, value in pinned(f"{kind}.diffusion_model.").items():
        module, _, part = key.rpartition(".")
        renamed[LYCORIS_NAMES[names](module, part)] = value
    save_file(renamed, path)
    return path
