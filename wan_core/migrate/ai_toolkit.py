"""Training settings of ai-toolkit: a YAML job, whose first process is read (ai-toolkit's config/examples)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..errors import ConfigError
from ..importers import processes_of
from . import ai_toolkit_values as to
from .foreign_job import ForeignJob
from .keys import Key, also, drops, if_so, ledger_of, stands_for_more, take_over_tables
from .learning import adapter, alpha_of, at_least_0, rank_of, run_name, save_dtype, scheduler
from .models import frozen, lora_file, training_adapter

_PROCESS = (
    *also("trigger_word", "WanDatasetFromFile.trigger_word", "read together with the datasets"),
    *also("datasets", "WanDatasetFromFile.other_file", "the datasets, read as they are"),
    Key("slider", "WanSliderPrompts.prompts", "and positive, negative, of each target", kind=object, read=to.slider),
    *drops("type training_folder device performance_log_every sqlite_db_path logging adapter embedding decorator "
           "guidance"),
)  # fmt: skip
_NETWORK = (
    Key("type", "adapter", "LoRA, LoKr", read=adapter),
    Key("linear rank", "rank", "above 1024, for complete matrices: 1024", kind=int, own=4, read=rank_of),
    Key("linear_alpha alpha", "alpha", kind=float, own=1.0, read=alpha_of),
    Key("dropout", "lora_dropout", kind=float),
    Key("pretrained_lora_path", "start_from_lora", "its file, in ComfyUI's loras folder", read=lora_file),
    Key("network_kwargs", "lora_targets", "only_if_contains, ignore_if_contains", kind=object, read=to.targets),
    *drops("conv conv_alpha", "the linear layers of the blocks have adapters"),
    Key("lokr_factor", "lokr_factor", "-1 is 0", kind=int, read=at_least_0),
    Key("lokr_full_rank", "rank", "1024, the largest", kind=bool, read=to.full_rank),
    *drops("split_multistage_loras layer_offloading old_lokr_format all_layers transformer_only lorm"),
)  # fmt: skip
_SAVE = (
    Key("dtype", "save_dtype", own="float16", read=save_dtype),
    Key("save_every", "save_every_n_steps", kind=int, own=1000),
    Key("max_step_saves_to_keep", "keep_last_saves", kind=int, own=5),
    *drops("push_to_hub hf_repo_id hf_private save_format"),
)
_PRESERVATION = "WanDatasetSettings.class_preservation", "with a trigger_word; read together with the datasets"
_TRAIN = (
    Key("steps", "steps", kind=int, own=1000),
    Key("lr", "learning_rate", kind=float, own=1e-6, read=to.rate),
    Key("batch_size", "batch_size", kind=int),
    Key("gradient_accumulation gradient_accumulation_steps", "gradient_accumulation_steps", kind=int),
    Key("gradient_checkpointing", "gradient_checkpointing", kind=bool),
    Key("optimizer", "optimizer", "torchao's and pytorch-optimizer's classes", kind=object, own="adamw",
        read=to.optimizer),
    *also("optimizer_params", "optimizer_args", "weight_decay, betas and eps have widgets of their own"),
    Key("lr_scheduler", "lr_scheduler", own="constant", read=scheduler),
    *drops("lr_scheduler_params", "see the widgets that begin with lr_scheduler"),
    Key("max_grad_norm", "max_grad_norm", kind=float, own=1.0),
    Key("timestep_type", "timestep_sampling", "linear is uniform without a shift", own="sigmoid",
        read=to.timestep_type),
    Key("content_or_style", "", "discrete_flow_shift favours high or low noise", read=to.bias),
    Key("min_denoising_steps", "min_timestep", kind=float),
    Key("max_denoising_steps", "max_timestep", kind=float),
    Key("loss_type", "loss_type", "mae is l1", read=to.loss),
    Key("ema_config", "ema_decay", "where use_ema is true", kind=object, read=to.ema),
    Key("switch_boundary_every", "expert_turn_steps", "with expert_order alternating", kind=int, read=to.turns),
    Key("prompt_dropout_prob", "caption_dropout", kind=float),
    *drops("train_unet train_text_encoder", "only the LoRA of the model is trained"),
    *drops("dtype", "the precision policy computes in bf16"),
    Key("linear_timesteps", "loss_weighting", "bell", kind=bool, read=if_so("bell")),
    *drops("linear_timesteps2", "loss_weighting bell weighs both sides of the middle"),
    *drops("next_sample_timesteps", "noise levels are drawn at random, each from the seed of its step"),
    Key("snr_gamma min_snr_gamma", "loss_weighting", "min_snr, its analogue for flow matching", kind=float,
        read=to.min_snr),
    *also("diff_output_preservation diff_output_preservation_multiplier", *_PRESERVATION),
    *also("diff_output_preservation_class", "WanDatasetSettings.class_word", _PRESERVATION[1]),
    *also("blank_prompt_preservation blank_prompt_preservation_multiplier", *_PRESERVATION),
    *drops("reg_weight", "prior_preservation of Wan Dataset Settings is the weight of a dataset's clips"),
    Key("do_guidance_loss", "guidance_target", "guidance_loss_target, where it is true", kind=bool, read=to.guidance),
    *also("guidance_loss_target", "guidance_target"),
    *drops("noise_offset noise_multiplier weight_jitter img_multiplier latent_multiplier force_consistent_noise",
           "noise is not changed"),
    *drops("noise_scheduler unload_text_encoder cache_text_embeddings disable_sampling skip_first_sample "
           "force_first_sample attention_backend xformers sdp do_differential_guidance differential_guidance_scale "
           "inverted_mask_prior bypass_guidance_embedding max_loss audio_loss_multiplier validation_config start_step "
           "merge_network_on_save"),
)  # fmt: skip
_MODEL = (
    Key("arch", "LoadWanModel.diffusion_model", "its file", read=to.arch),
    Key("name_or_path", "LoadWanModel.diffusion_model", "its file", read=to.path),
    Key("model_kwargs", "LoadWanModel.low_noise_model", "train_high_noise, train_low_noise", kind=object, own={},
        read=to.experts),
    Key("quantize", "Fp8Quantize.scheme", "8 bits", kind=bool, read=to.quantize),
    *drops("qtype", "8 bits; smaller ones are GGUF files"),
    *drops("accuracy_recovery_adapter", "8 bits need none"),
    Key("compile", "compile", kind=bool),
    *drops("dtype", "the precision policy computes in bf16"),
    Key("lora_path", "AddFrozenLora.lora", "beside the model, not merged into it", read=frozen),
    Key("assistant_lora_path", "AddFrozenLora.lora", "preview_strength is 0", read=training_adapter),
    *drops("quantize_* qtype_te te_name_or_path extras_name_or_path vae_path text_encoder_bits low_vram "
           "layer_offloading* auto_memory block_compile compile_* cache_size_limit inference_lora_path "
           "split_model_over_gpus unconditional_lora_path"),
)  # fmt: skip
_SAMPLE = (
    Key("sample_every", "preview_every_n_steps", kind=int, own=100),
    Key("prompts samples", "preview.prompts", "each with its own size", kind=object, read=to.prompts),
    Key("neg", "preview.negative_prompt", kind=object, read=to.negative),
    Key("width", "preview.width", kind=int, own=512),
    Key("height", "preview.height", kind=int, own=512),
    Key("num_frames", "preview.num_frames", kind=int, own=1),
    Key("sample_steps", "preview.steps", kind=int, own=20),
    Key("guidance_scale", "preview.cfg", kind=float, own=7.0),
    Key("seed", "preview.seed", kind=int),
    *drops("walk_seed fps sampler sample_start_step format ext network_multiplier guidance_rescale"),
)
TABLES: Mapping[str, tuple[Key, ...]] = {
    "": _PROCESS,
    "network": _NETWORK,
    "save": _SAVE,
    "model": _MODEL,
    "train": _TRAIN,
    "sample": _SAMPLE,
}
"""section of the process -> keys of the section"""


def read_ai_toolkit_job(data: Mapping[str, Any], source: str) -> ForeignJob:
    """Returns the job of a file's first process."""
    processes = processes_of(data)
    if not processes:
        raise ConfigError(f"{source} has no process. It stands under config, process.")
    config: dict[str, Any] = data["config"]
    job = ForeignJob("ai-toolkit", source, ledger_of(source, processes[0]), data=source)
    take_over_tables(TABLES, job)
    name = str(config.get("name") or "imported")
    job.put("run_name", "imported" if stands_for_more(name) else run_name(name))
    if "sample" not in job.ledger:
        job.put("preview_every_n_steps", 0)
    dropped = [to.number(one.get("caption_dropout_rate")) for one in processes[0].get("datasets") or () if one]
    rates = [float(rate) for rate in dropped if isinstance(rate, int | float)]
    if rates:
        job.put("caption_dropout", max(rates))
        said = "caption_dropout_rate of the datasets -> caption_dropout {rate}, for all of them"
        job.ledger.take(said, rate=f"{max(rates):g}")
    if len(processes) > 1:
        job.hint("{n} more processes of the file are not read; import one at a time", n=len(processes) - 1)
    return job
