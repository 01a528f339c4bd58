"""Identifies files that are not Wan diffusion models, and unsupported quantizations, by tensor names."""

from __future__ import annotations

import re
from collections.abc import Iterable

from ..errors import CheckpointError

_ANOTHER = "Choose a Wan 2.1 or 2.2 diffusion model."
_VAE = "Put it into models/vae, for Load VAE."
_TEXT = "Put it into models/text_encoders, for Load CLIP"
# The first match wins, so adapters of a model precede the model.
_KINDS = (
    (r"lora_(A|B|up|down)\b|^lora_(unet|te)|\.lokr_|\.hada_|\.oft_", "a LoRA", "Put it into models/loras."),
    (
        r"controlnet_cond_embedding|controlnet_blocks|controlnet_down_blocks|^control_model\.|input_hint_block",
        "a ControlNet",
        _ANOTHER,
    ),
    (r"^vace_blocks\.", "the VACE part of a Wan model without the model itself", "Choose the file that holds both."),
    (r"^(emb_params|string_to_param|clip_[lg]|\*)$", "a textual-inversion embedding", "Put it into embeddings."),
    (r"^(decoder|model\.decoder)\.upsamples\.0\.upsamples\.", "the Wan 2.2 VAE", _VAE),
    (r"^(decoder|model\.decoder)\.middle\.0\.residual", "the Wan 2.1 VAE", _VAE),
    (r"^conditioner\.embedders\.", "a Stable Diffusion XL checkpoint", _ANOTHER),
    (r"^cond_stage_model\.model\.", "a Stable Diffusion 2 checkpoint", _ANOTHER),
    (r"^cond_stage_model\.", "a Stable Diffusion 1.5 checkpoint", _ANOTHER),
    (r"(^|\.)joint_blocks\.\d+\.(x|context)_block", "a Stable Diffusion 3 model", _ANOTHER),
    (r"(^|\.)txt_in\.individual_token_refiner|^context_embedder\.token_refiner", "a Hunyuan Video model", _ANOTHER),
    (r"(^|\.)double_blocks\.\d+\.|single_transformer_blocks\.", "a Flux model", _ANOTHER),
    (r"(^|\.)transformer_blocks\.\d+\.img_mod", "a Qwen-Image model", _ANOTHER),
    (r"(^|\.)(patchify_proj|adaln_single)\.|^proj_in\.weight", "an LTX-Video model", _ANOTHER),
    (r"(^|\.)t5_yproj\.|(^|\.)t5_y_embedder\.|transformer_blocks\.\d+\.norm1_context", "a Mochi model", _ANOTHER),
    (r"patch_embed\.text_proj|mixins\.(patch_embed|adaln_layer)", "a CogVideoX model", _ANOTHER),
    (r"(^|\.)(input_blocks|down_blocks)\.\d+\..*(attentions|transformer_blocks|emb_layers|time_emb_proj)",
     "a Stable Diffusion model", _ANOTHER),
    (r"^(visual|vision_model)\.", "a CLIP vision model", "Put it into models/clip_vision."),
    (r"^(text_model|transformer\.resblocks|text_projection)", "a CLIP text encoder", f"{_TEXT}."),
    (r"^(shared|encoder\.block\.\d+|token_embedding)\.|\.pos_embedding\.embedding\.weight$",
     "a T5 text encoder", f"{_TEXT} (type wan)."),
    (r"(^|\.)decoder\.|^first_stage_model\.", "a VAE", _VAE),
)  # fmt: skip


_QUANTIZERS = {
    ".qweight": "qweight (AWQ, GPTQ, Nunchaku)",
    ".SCB": "bitsandbytes int8",
    ".weight.absmax": "bitsandbytes 4-bit",
    ".weight._data": "quanto",
    ".weight_zero_point": "int8 + zero_point",
    ".weight_correction": "asym_w4a8_int8 + correction",
    ".pre_quant_scale": "nvfp4 + pre_quant_scale",
    ".weight_scale_inv": "fp8 + weight_scale_inv",
}
"""suffix of a tensor next to a weight, or in its place -> the quantizer that writes it"""


def refuse_quantizers(file_name: str, names: Iterable[str]) -> None:
    """Raises CheckpointError for a Wan file that an unsupported program quantized."""
    for name in names:
        for suffix, how in _QUANTIZERS.items():
            if name.endswith(suffix):
                raise not_undone(file_name, name.removesuffix(suffix), how)


def not_undone(file_name: str, layer: str, how: str) -> CheckpointError:
    """Returns the error for a layer in an unsupported storage format."""
    return CheckpointError(
        f"{file_name} stores {layer[:80]} as {how}; training on that is not supported. "
        "Choose an fp8, int8, bf16 or fp16 file, or a GGUF."
    )


def recognise(names: Iterable[str]) -> tuple[str, str]:
    """Returns (what the file is, what to do) for the names of its tensors, prefix stripped."""
    names = list(names)
    for pattern, what, advice in _KINDS:
        if any(re.search(pattern, name) for name in names):
            return what, advice
    return "something else", "Choose a Wan 2.1 or 2.2 diffusion model (.safetensors or .gguf)."
