"""Files that are no Wan model: each is refused, called what it is, and sent where it belongs."""

from __future__ import annotations

from pathlib import Path

import pytest

from wan_core.checkpoint import CheckpointHeader, detect_variant
from wan_core.checkpoint.header import TensorInfo
from wan_core.errors import CheckpointError

# Names of tensors as these files have them: what the file is called in the refusal, and a few of its tensors.
STRANGERS: dict[str, tuple[str, tuple[str, ...]]] = {
    "sd15": (
        "a Stable Diffusion 1.5 checkpoint",
        (
            "model.diffusion_model.input_blocks.1.1.transformer_blocks.0.attn2.to_k.weight",
            "cond_stage_model.transformer.text_model.encoder.layers.0.self_attn.q_proj.weight",
            "first_stage_model.decoder.conv_in.weight",
        ),
    ),
    "sd2": (
        "a Stable Diffusion 2 checkpoint",
        (
            "model.diffusion_model.input_blocks.1.1.transformer_blocks.0.attn2.to_k.weight",
            "cond_stage_model.model.transformer.resblocks.0.attn.in_proj_weight",
            "first_stage_model.decoder.conv_in.weight",
        ),
    ),
    "sdxl": (
        "a Stable Diffusion XL checkpoint",
        (
            "model.diffusion_model.label_emb.0.0.weight",
            "model.diffusion_model.input_blocks.4.1.transformer_blocks.0.attn2.to_k.weight",
            "conditioner.embedders.1.model.transformer.resblocks.0.attn.in_proj_weight",
        ),
    ),
    "unet in diffusers": (
        "a Stable Diffusion model",
        ("conv_in.weight", "down_blocks.0.attentions.0.transformer_blocks.0.attn1.to_q.weight"),
    ),
    "sd3": (
        "a Stable Diffusion 3 model",
        (
            "model.diffusion_model.joint_blocks.0.context_block.attn.qkv.weight",
            "model.diffusion_model.joint_blocks.0.x_block.attn.qkv.weight",
            "first_stage_model.decoder.conv_in.weight",
        ),
    ),
    "flux": (
        "a Flux model",
        ("img_in.weight", "double_blocks.0.img_attn.qkv.weight", "single_blocks.0.linear1.weight"),
    ),
    "flux in diffusers": (
        "a Flux model",
        ("x_embedder.weight", "single_transformer_blocks.0.proj_mlp.weight", "transformer_blocks.0.attn.to_q.weight"),
    ),
    "hunyuan video": (
        "a Hunyuan Video model",
        (
            "model.model.double_blocks.0.img_attn_qkv.weight",
            "model.model.txt_in.individual_token_refiner.blocks.0.self_attn_qkv.weight",
            "model.model.single_blocks.0.linear1.weight",
        ),
    ),
    "ltx": (
        "an LTX-Video model",
        (
            "model.diffusion_model.patchify_proj.weight",
            "model.diffusion_model.adaln_single.linear.weight",
            "model.diffusion_model.transformer_blocks.0.scale_shift_table",
            "model.diffusion_model.scale_shift_table",
        ),
    ),
    "qwen image": (
        "a Qwen-Image model",
        ("txt_norm.weight", "transformer_blocks.0.img_mod.1.weight", "transformer_blocks.0.attn.add_q_proj.weight"),
    ),
    "mochi": ("a Mochi model", ("t5_yproj.weight", "t5_y_embedder.to_q.weight", "blocks.0.attn.qkv_x.weight")),
    "cogvideox": (
        "a CogVideoX model",
        ("patch_embed.text_proj.weight", "transformer_blocks.0.norm1.linear.weight", "proj_out.weight"),
    ),
    "umt5": (
        "a T5 text encoder",
        ("shared.weight", "encoder.block.0.layer.0.SelfAttention.q.weight", "encoder.final_layer_norm.weight"),
    ),
    "umt5, original names": (
        "a T5 text encoder",
        ("token_embedding.weight", "blocks.0.attn.q.weight", "blocks.0.pos_embedding.embedding.weight", "norm.weight"),
    ),
    "clip text": ("a CLIP text encoder", ("text_model.embeddings.token_embedding.weight", "text_projection.weight")),
    "clip vision": (
        "a CLIP vision model",
        ("vision_model.encoder.layers.0.self_attn.q_proj.weight", "visual_projection.weight"),
    ),
    "wan 2.1 vae": (
        "the Wan 2.1 VAE",
        (
            "conv1.weight",
            "decoder.middle.0.residual.0.gamma",
            "decoder.upsamples.0.residual.2.weight",
            "encoder.conv1.weight",
        ),
    ),
    "wan 2.2 vae": (
        "the Wan 2.2 VAE",
        (
            "conv1.weight",
            "decoder.middle.0.residual.0.gamma",
            "decoder.upsamples.0.upsamples.0.residual.2.weight",
            "encoder.conv1.weight",
        ),
    ),
    "kl vae": ("a VAE", ("decoder.conv_in.weight", "decoder.mid.block_1.conv1.weight", "encoder.conv_in.weight")),
    "wan lora, ComfyUI": (
        "a LoRA",
        ("diffusion_model.blocks.0.self_attn.q.lora_A.weight", "diffusion_model.blocks.0.self_attn.q.lora_B.weight"),
    ),
    "wan lora, kohya": (
        "a LoRA",
        ("lora_unet_blocks_0_self_attn_q.lora_down.weight", "lora_unet_blocks_0_self_attn_q.alpha"),
    ),
    "wan lora, diffusers": ("a LoRA", ("transformer.blocks.0.attn1.to_q.lora_A.weight",)),
    "wan lokr": ("a LoRA", ("diffusion_model.blocks.0.ffn.0.lokr_w1", "diffusion_model.blocks.0.ffn.0.lokr_w2")),
    "embedding": ("a textual-inversion embedding", ("clip_g", "clip_l")),
    "controlnet": (
        "a ControlNet",
        ("controlnet_cond_embedding.conv_in.weight", "down_blocks.0.attentions.0.proj_in.weight"),
    ),
    "wan controlnet": (
        "a ControlNet",
        ("controlnet_blocks.0.weight", "blocks.0.attn1.to_q.weight", "condition_embedder.time_proj.weight"),
    ),
    "vace part": (
        "the VACE part of a Wan model",
        ("vace_blocks.0.self_attn.q.weight", "vace_patch_embedding.weight"),
    ),
    "something": ("something else", ("a", "b")),
}


@pytest.mark.parametrize("kind", STRANGERS)
def test_a_file_that_is_no_wan_model_is_called_what_it_is(kind: str) -> None:
    what, names = STRANGERS[kind]
    head = CheckpointHeader(Path("x.safetensors"), {n: TensorInfo("F16", (8, 8), 0) for n in names}, {}, 0)
    with pytest.raises(CheckpointError) as refusal:
        detect_variant(head)
    words = str(refusal.value)
    assert words.startswith(f"x.safetensors is {what}")
    assert "not a Wan diffusion model. " in words
    assert words.endswith(".")


@pytest.mark.parametrize(
    ("kind", "place"),
    [
        ("umt5", "Load CLIP (type wan)"),
        ("wan 2.1 vae", "Load VAE"),
        ("wan lora, kohya", "models/loras"),
        ("clip vision", "models/clip_vision"),
    ],
)
def test_it_is_sent_where_it_belongs(kind: str, place: str) -> None:
    names = STRANGERS[kind][1]
    head = CheckpointHeader(Path("x.safetensors"), {n: TensorInfo("F16", (8, 8), 0) for n in names}, {}, 0)
    with pytest.raises(CheckpointError) as refusal:
        detect_variant(head)
    assert place in str(refusal.value)
