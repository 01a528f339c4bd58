"""The golden model files of tests/fixtures: shape, weights and inputs as the engine takes them."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors import safe_open

from wan_core.checkpoint import to_original
from wan_core.model import Conditioning, Numerics, WanShape, WanTransformer

FIXTURES = Path(__file__).parents[1] / "fixtures"
FLOAT64 = Numerics(**{name: torch.float64 for name in Numerics.__dataclass_fields__ if name != "adapter"})


def relative(value: torch.Tensor, reference: torch.Tensor) -> float:
    """Relative L2 distance."""
    difference = value.detach().double() - reference.double()
    return float(difference.norm() / reference.double().norm())


def fill_at_random(model: WanTransformer, generator: torch.Generator) -> None:
    """As the golden files were made (tests/fixtures/README.md): every output stays near 1."""
    for name, parameter in model.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        if name.endswith("modulation"):
            parameter.data = 0.3 * noise
        elif parameter.ndim == 1:
            parameter.data = 0.1 * noise if name.endswith("bias") else 1 + 0.2 * noise
        else:
            parameter.data = noise / parameter[0].numel() ** 0.5


class Golden:
    """One file; `golden["inter.temb"]` is one of its tensors (tests/fixtures/README.md)."""

    def __init__(self, variant: str) -> None:
        self.variant = variant
        self.file = safe_open(FIXTURES / f"wan_tiny_{variant}.safetensors", "pt")
        config = json.loads(self.file.metadata()["config"])
        self.shape = WanShape(
            dim=config["num_attention_heads"] * config["attention_head_dim"],
            ffn_dim=config["ffn_dim"],
            num_heads=config["num_attention_heads"],
            num_layers=config["num_layers"],
            in_channels=config["in_channels"],
            out_channels=config["out_channels"],
            text_dim=config["text_dim"],
            image_dim=config.get("image_dim") or 0,
        )

    def __getitem__(self, key: str) -> torch.Tensor:
        return self.file.get_tensor(key)

    def names(self, prefix: str) -> list[str]:
        """What follows `prefix` in the names of the file that begin with it."""
        return [key.removeprefix(prefix) for key in self.file.keys() if key.startswith(prefix)]  # noqa: SIM118

    def model(self, numerics: Numerics | None = None) -> WanTransformer:
        model = WanTransformer(self.shape, numerics)
        weights = {to_original(name): self[f"weights.{name}"] for name in self.names("weights.")}
        model.load_state_dict(weights, strict=True)
        return model

    def inputs(
        self, hidden: torch.Tensor | None = None, dtype: torch.dtype = torch.float32
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, Conditioning]:
        """What `WanTransformer.forward` takes; `hidden` stands for the file's (B, C_in, F, H, W) input."""
        hidden = self["inputs.hidden_states"].to(dtype) if hidden is None else hidden
        latent, channels = hidden.split([self.shape.out_channels, self.shape.condition_channels], dim=1)
        image_tokens = self["inputs.encoder_hidden_states_image"].to(dtype) if self.shape.image_dim else None
        given = Conditioning(channels=channels if channels.shape[1] else None, image_tokens=image_tokens)
        return latent, self.timestep().to(dtype), self["inputs.encoder_hidden_states"].to(dtype), given

    def timestep(self) -> torch.Tensor:
        """(B,), or (B, F) from the file's one timestep per token."""
        timestep = self["inputs.timestep"]
        if timestep.ndim == 1:
            return timestep
        per_frame = timestep.unflatten(1, (self["inputs.hidden_states"].shape[2], -1))
        assert torch.equal(per_frame.amin(2), per_frame.amax(2))
        return per_frame[..., 0]
