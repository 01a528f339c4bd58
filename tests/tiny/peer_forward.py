"""Run tiny Wan models with another program's own classes. A process of its own: their imports disturb, and are slow.

    python tests/tiny/peer_forward.py comfyui|diffusers CASES.safetensors OUT.safetensors [COMFYUI TREE]

CASES holds `<case>.w.<original weight name>` and `<case>.<input>`, and per case the shape as JSON in its metadata. OUT
gets `<case>.fp32` and `<case>.fp64`, each (B, C, F, H, W).

Both programs round to float32 in places whatever their weights are (`.float()`, the timestep sinusoid, ComfyUI's RoPE
table). For `fp64` these places are told to leave float64 alone, so that only the structure is compared; `fp32` is
theirs untouched.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

Case = dict[str, Tensor]
Shape = dict[str, Any]
Run = Callable[[Any, Shape, Case], Tensor]


def exact_sinusoid(width: int, position: Tensor) -> Tensor:
    """cos and sin of `position` (...,) times 10000^(-i / half), in float64."""
    powers = torch.arange(width // 2, dtype=torch.float64) / (width // 2)
    angles = position.double().flatten()[:, None] * torch.exp(-math.log(10000.0) * powers)
    return torch.cat([angles.cos(), angles.sin()], dim=1)


@contextmanager
def float64_stays(*patches: Any) -> Iterator[None]:
    """`.float()` and `.to(float32)` leave float64 tensors as they are."""
    float_, to = Tensor.float, Tensor.to

    def stay(self: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        if self.dtype == torch.float64 and (torch.float32 in args or kwargs.get("dtype") is torch.float32):
            return self
        return to(self, *args, **kwargs)

    with mock.patch.object(Tensor, "float", lambda self: self if self.dtype == torch.float64 else float_(self)):  # noqa: SIM117
        with mock.patch.object(Tensor, "to", stay):
            for patch in patches:
                patch.start()
            yield
            mock.patch.stopall()


# ------------------------------------------------------------------------------------------------------------ ComfyUI
def comfyui(tree: str) -> tuple[Callable[[Shape], nn.Module], Run, list[Any]]:
    sys.path.insert(0, tree)
    sys.argv = [sys.argv[0], "--cpu", "--use-pytorch-cross-attention"]
    import comfy.options

    comfy.options.enable_args_parsing()
    import comfy.ldm.flux.layers
    import comfy.ldm.wan.model as wan
    import comfy.ldm.wan.model_animate as animate
    import comfy.model_management
    import comfy.ops

    comfy.model_management.in_training = True  # since 2026: rotates in plain torch; the fused kernel has no float64

    def build(shape: Shape) -> nn.Module:
        settings: dict[str, Any] = {
            "model_type": "i2v" if shape["image_dim"] else "t2v",
            "in_dim": shape["in_channels"], "out_dim": shape["out_channels"], "dim": shape["dim"],
            "ffn_dim": shape["ffn_dim"], "num_heads": shape["num_heads"], "num_layers": shape["num_layers"],
            "text_dim": shape["text_dim"], "cross_attn_norm": True, "dtype": torch.float32, "device": "cpu",
            "flf_pos_embed_token_number": shape["image_positions"] or None,
            "operations": comfy.ops.disable_weight_init,
        }  # fmt: skip
        if shape["vace_layers"]:
            extra = {"vace_layers": len(shape["vace_layers"]), "vace_in_dim": shape["vace_channels"]}
            return wan.VaceWanModel(**settings | extra | {"model_type": "vace"})
        if shape["pose_channels"]:
            return animate.AnimateWanModel(**settings | {"model_type": "animate"})
        if shape["sound_layers"]:
            extra = {"audio_dim": shape["sound_channels"], "audio_inject_layers": shape["sound_layers"]}
            del settings["flf_pos_embed_token_number"]
            model = wan.WanModel_S2V(**settings | extra)
            model.casual_audio_encoder.weights = nn.Parameter(torch.empty(1, shape["sound_depth"], 1, 1))
            return model
        if shape["camera_channels"]:
            kind = "camera" if shape["image_dim"] else "camera_2.2"
            extra = {"model_type": kind, "in_dim_control_adapter": shape["camera_channels"]}
            return wan.CameraWanModel(**settings | extra)
        if shape["whisper_channels"]:
            with heard_in(shape):
                return wan.HumoWanModel(**settings)
        if shape["pose_stream_channels"]:  # classes of ComfyUI 0.33
            return (wan.SCAIL2WanModel if shape["identity_channels"] else wan.SCAILWanModel)(**settings)
        return wan.WanModel(**settings, in_dim_ref_conv=shape["reference_channels"] or None)

    @contextmanager
    def heard_in(shape: Shape) -> Iterator[None]:
        """Inside, the parts that hear have the sizes of a shape, not those of Whisper and HuMo."""
        project, attend, width = wan.AudioProjModel, wan.AudioCrossAttentionWrapper, shape["audio_width"]
        own = {"channels": shape["whisper_channels"], "output_dim": width}
        with (
            mock.patch.object(wan, "AudioProjModel", lambda **given: project(**given | own)),
            mock.patch.object(wan, "AudioCrossAttentionWrapper", lambda dim, _, *a, **k: attend(dim, width, *a, **k)),
        ):
            yield

    def run(model: Any, shape: Shape, case: Case) -> Tensor:
        x = torch.cat([case["latent"], case["channels"]], 1) if "channels" in case else case["latent"]
        if "whisper" in case:
            return heard(model, shape, case)
        if "references" in case:
            return driven(model, case)
        names = {"camera": "camera_conditions", "reference": "reference_latent"}
        names |= {"pose": "pose_latents", "face": "face_pixel_values"}
        extra: dict[str, Any] = {theirs: case[ours] for ours, theirs in names.items() if ours in case}
        if shape["sound_layers"]:
            names = {"sound": "audio_embed", "pose_video": "control_video", "frames_before": "reference_motion"}
            extra = {theirs: case[ours] for ours, theirs in names.items() if ours in case}
            if "reference" in case:
                extra["reference_latent"] = case["reference"].unsqueeze(2)
        if "vace" in case:
            extra |= {"vace_context": case["vace"].unsqueeze(1), "vace_strength": [float(case["vace_strength"])]}
        if streams := sorted(name for name in case if name.startswith("context")):  # Bernini; not in 0.3.75
            extra["context_latents"] = [case[name] for name in streams]
        return model(x, case["timestep"], case["text"], clip_fea=case.get("image_tokens"), **extra)

    def driven(model: Any, case: Case) -> Tensor:
        """As model_base.WAN21_SCAIL2 puts together what the nodes give: the primary reference last, flags behind."""
        references, flags = (torch.cat([case[n][:, :, 1:], case[n][:, :, :1]], 2) if n in case else None
                             for n in ("references", "reference_masks"))  # fmt: skip
        flagged = [torch.cat([x, torch.ones_like(x[:, :4])], 1) for x in (references, case["pose_stream"])]
        extra: dict[str, Any] = {"reference_latent": flagged[0], "pose_latents": flagged[1]}
        x = torch.cat([case["latent"], torch.zeros_like(case["latent"][:, :4])], 1)
        if flags is not None:
            masks = torch.cat([flags, flags.new_zeros(*flags.shape[:2], *x.shape[2:])], 2)
            flag = not bool(case["replaces"])
            extra |= {"ref_mask_latents": masks, "sam_latents": case["pose_masks"], "ref_mask_flag": flag}
        return model(x, case["timestep"], case["text"], clip_fea=case["image_tokens"], **extra)

    def heard(model: Any, shape: Shape, case: Case) -> Tensor:
        """What model_base.WAN21_HuMo puts together, by its own method."""
        import comfy.model_base

        given = type("Given", (comfy.model_base.WAN21_HuMo,), {"__init__": lambda self: None})()
        given.__dict__ |= {"image_to_video": False}
        with mock.patch.multiple(
            comfy.model_base.WAN21,
            extra_conds=lambda self, **_: {"c_concat": None} if shape["in_channels"] > 16 else {},
            process_latent_in=lambda self, latent: latent,
            create=True,
        ):
            conds = given.extra_conds(
                noise=case["latent"], audio_embed=case["whisper"], reference_latents=[case["references"]]
            )
        extra = {name: conds[name].cond for name in ("audio_embed", "reference_latent")}
        x = torch.cat([case["latent"], *([conds["c_concat"].cond] if "c_concat" in conds else [])], 1)
        return model(x, case["timestep"], case["text"], **extra)

    def exact_rope(pos: Tensor, dim: int, theta: int) -> Tensor:
        angles = pos.double()[..., None] * theta ** -(torch.arange(0, dim, 2, dtype=torch.float64) / dim)
        cos, sin = angles.cos(), angles.sin()
        return torch.stack([cos, -sin, sin, cos], dim=-1).unflatten(-1, (2, 2))

    exact = [
        mock.patch.object(wan, "sinusoidal_embedding_1d", exact_sinusoid),
        mock.patch.object(animate, "sinusoidal_embedding_1d", exact_sinusoid),
        mock.patch.object(comfy.ldm.flux.layers, "rope", exact_rope),
    ]
    return build, run, exact


# ---------------------------------------------------------------------------------------------------------- diffusers
def diffusers() -> tuple[Callable[[Shape], nn.Module], Run, list[Any]]:
    from diffusers import WanTransformer3DModel, WanVACETransformer3DModel
    from diffusers.models import embeddings

    def build(shape: Shape) -> nn.Module:
        settings: dict[str, Any] = {
            "num_attention_heads": shape["num_heads"], "attention_head_dim": shape["dim"] // shape["num_heads"],
            "in_channels": shape["in_channels"], "out_channels": shape["out_channels"],
            "text_dim": shape["text_dim"], "freq_dim": 256, "ffn_dim": shape["ffn_dim"],
            "num_layers": shape["num_layers"], "image_dim": shape["image_dim"] or None,
            "added_kv_proj_dim": shape["dim"] if shape["image_dim"] else None,
            "pos_embed_seq_len": shape["image_positions"] or None,
        }  # fmt: skip
        if shape["vace_layers"]:
            extra = {"vace_layers": list(shape["vace_layers"]), "vace_in_channels": shape["vace_channels"]}
            return WanVACETransformer3DModel(**settings, **extra)
        return WanTransformer3DModel(**settings)

    def run(model: Any, shape: Shape, case: Case) -> Tensor:
        x = torch.cat([case["latent"], case["channels"]], 1) if "channels" in case else case["latent"]
        timestep, extra = case["timestep"], {}
        if timestep.ndim == 2:  # one per token
            timestep = timestep.repeat_interleave(x.shape[3] * x.shape[4] // 4, dim=1)
        if "image_tokens" in case:
            tokens = case["image_tokens"]
            pictures = 2 if shape["image_positions"] else 1
            extra["encoder_hidden_states_image"] = tokens.reshape(tokens.shape[0] * pictures, -1, tokens.shape[2])
        if "vace" in case:
            extra["control_hidden_states"] = case["vace"]
            extra["control_hidden_states_scale"] = case["vace_strength"].expand(len(shape["vace_layers"]))
        return model(x, timestep, case["text"], **extra, return_dict=False)[0]

    def exact_timesteps(timesteps: Tensor, width: int, **_: Any) -> Tensor:
        return exact_sinusoid(width, timesteps)

    return build, run, [mock.patch.object(embeddings, "get_timestep_embedding", exact_timesteps)]


def original_name(name: str) -> str:
    """diffusers' name -> original, those of VACE's second stream too."""
    sys.path.append(str(Path(__file__).parents[2]))
    from wan_core.checkpoint import to_original

    if not name.startswith("vace_blocks."):
        return to_original(name)
    inner = to_original(name.removeprefix("vace_")).replace("proj_in", "before_proj")
    return "vace_" + inner.replace("proj_out", "after_proj")


def first_values(pictures: Tensor) -> Tensor:
    """Stands for the motion encoder: pictures (P, 3, 512, 512) -> (P, 512)."""
    return pictures.flatten(1)[:, :512]


def weights_for(model: nn.Module, case: Case, rename: Callable[[str], str]) -> Case:
    """Every weight of `model` and every weight of the case, each exactly once."""
    ours = {name.removeprefix("w."): value for name, value in case.items() if name.startswith("w.")}
    theirs = {name: rename(name) for name in model.state_dict() if not name.endswith(".kernel")}  # of a blur: fixed
    assert sorted(theirs.values()) == sorted(ours), set(theirs.values()) ^ set(ours)
    fixed = {name: value for name, value in model.state_dict().items() if name not in theirs}
    return {name: ours[original] for name, original in theirs.items()} | fixed


def main(program: str, cases: str, out: str, *tree: str) -> None:
    torch.set_num_threads(1)
    build, run, exact = comfyui(*tree) if program == "comfyui" else diffusers()
    sys.path.append(str(Path(__file__).parents[2]))
    from wan_core.checkpoint import to_original

    rename = to_original if program == "comfyui" else original_name
    found: dict[str, Tensor] = {}
    with safe_open(cases, "pt") as file, torch.no_grad():
        for name, text in file.metadata().items():
            shape = json.loads(text)
            only_theirs = any(shape[f"{part}_channels"] for part in ("reference", "camera", "pose", "sound", "whisper"))
            if program == "diffusers" and (only_theirs or f"{name}.context1" in file.keys()):  # noqa: SIM118
                continue  # it has no class for these
            keys = [key for key in file.keys() if key.startswith(f"{name}.")]  # noqa: SIM118
            case = {key.removeprefix(f"{name}."): file.get_tensor(key) for key in keys}
            model = build(shape).eval()
            model.load_state_dict(weights_for(model, case, rename), strict=True)
            if shape["face_layers"]:  # of one picture: the encoder takes seconds
                found[f"{name}.motion"] = model.motion_encoder.get_motion(case["face"][:1, :, 0])
                model.motion_encoder.get_motion = first_values
            found[f"{name}.fp32"] = run(model, shape, case).contiguous()
            with float64_stays(*exact):
                model = build(shape).eval().double()  # again: tables are made while building
                wide = {key: value.double() for key, value in case.items()}
                model.load_state_dict(weights_for(model, wide, rename), strict=True)
                if shape["face_layers"]:
                    model.motion_encoder.get_motion = first_values
                found[f"{name}.fp64"] = run(model, shape, wide).contiguous()
    save_file(found, out)


if __name__ == "__main__":
    main(*sys.argv[1:])
