"""Training settings of ai-toolkit: a YAML job, whose first process is read (ai-toolkit's config/examples)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from ..errors import ConfigError
from ..importers import processes_of
from . import ai_toolkit_values as to
from .foreign_job import ForeignJob
from .keys import Key, drops, if_so, ledger_of, stands_for_more, take_over
from .learning import adapter, alpha_of, rank_of, run_name, save_dtype, scheduler
from .models import base_name, lora_of

_PROCESS = (
    Key("trigger_word", "WanDatasetFromFile.trigger_word", "read together with the datasets",
        read=lambda _value, _job: None),
    Key("datasets", "WanDatasetFromFile.other_file", "the datasets, read as they are", kind=object,
        read=lambda _value, _job: None),
    Key("slider", "WanSliderPrompts.prompts", "and positive, negative, of each target", kind=object, read=to.slider),
    *drops(
        "type training_folder device performance_log_every sqlite_db_path logging adapter embedding "
        "decorator guidance",
    ),
)  # fmt: skip
_NETWORK = (
    Key("type", "WanTrainSettings.adapter", "LoRA, LoKr", read=adapter),
    Key("linear rank", "TrainLoRA.rank", "above 1024, for complete matrices: 1024", kind=int, own=4, read=rank_of),
    Key("linear_alpha alpha", "TrainLoRA.alpha", kind=float, own=1.0, read=alpha_of),
    Key("dropout", "WanTrainSettings.lora_dropout", kind=float),
    Key(
        "pretrained_lora_path",
        "TrainLoRA.start_from_lora",
        "its file, in ComfyUI's loras folder",
        read=lambda value, _job: base_name(value),
    ),
    Key(
        "network_kwargs",
        "WanTrainSettings.lora_targets",
        "only_if_contains, ignore_if_contains",
        kind=object,
        read=to.targets,
    ),
    *drops("conv conv_alpha", "the linear layers of the blocks have adapters"),
    Key("lokr_factor", "WanTrainSettings.lokr_factor", "-1 is 0", kind=int, read=lambda value, _job: max(0, value)),
    Key("lokr_full_rank", "TrainLoRA.rank", "1024, the largest", kind=bool, read=to.full_rank("LoKr")),
    *drops("split_multistage_loras layer_offloading old_lokr_format all_layers transformer_only lorm"),
)
_SAVE = (
    Key("dtype", "WanTrainSettings.save_dtype", own="float16", read=save_dtype),
    Key("save_every", "TrainLoRA.save_every_n_steps", kind=int, own=1000),
    Key("max_step_saves_to_keep", "WanTrainSettings.keep_last_saves", kind=int, own=5),
    *drops("push_to_hub hf_repo_id hf_private save_format"),
)
_TRAIN = (
    Key("steps", "TrainLoRA.steps", kind=int, own=1000),
    Key("lr", "TrainLoRA.learning_rate", kind=float, own=1e-6, read=to.rate),
    Key("batch_size", "WanTrainSettings.batch_size", kind=int),
    Key("gradient_accumulation gradient_accumulation_steps", "WanTrainSettings.gradient_accumulation_steps", kind=int),
    Key("gradient_checkpointing", "WanTrainSettings.gradient_checkpointing", kind=bool),
    Key("optimizer", "WanTrainSettings.optimizer", "torchao's and pytorch-optimizer's classes", kind=object,
        own="adamw", read=to.optimizer),
    Key("optimizer_params", "WanTrainSettings.optimizer_args", "weight_decay, betas and eps have widgets of their own",
        kind=object, read=lambda _value, _job: None),
    Key("lr_scheduler", "WanTrainSettings.lr_scheduler", own="constant", read=scheduler),
    *drops("lr_scheduler_params", "see the widgets that begin with lr_scheduler"),
    Key("max_grad_norm", "WanTrainSettings.max_grad_norm", kind=float, own=1.0),
    Key("timestep_type", "WanTrainSettings.timestep_sampling", "linear is uniform without a shift", own="sigmoid",
        read=to.timestep_type),
    Key("content_or_style", "", "discrete_flow_shift favours high or low noise", read=to.bias),
    Key("min_denoising_steps", "WanTrainSettings.min_timestep", kind=float),
    Key("max_denoising_steps", "WanTrainSettings.max_timestep", kind=float),
    Key("loss_type", "WanTrainSettings.loss_type", "mae is l1", read=to.loss),
    Key("ema_config", "WanTrainSettings.ema_decay", "where use_ema is true", kind=object, read=to.ema),
    Key("switch_boundary_every", "WanTrainSettings.expert_turn_steps", "with expert_order alternating", kind=int,
        read=to.turns),
    Key("prompt_dropout_prob", "WanTrainSettings.caption_dropout", kind=float),
    *drops("train_unet train_text_encoder", "only the LoRA of the model is trained"),
    *drops("dtype", "the precision policy computes in bf16"),
    Key("linear_timesteps", "WanTrainSettings.loss_weighting", "bell", kind=bool, read=if_so("bell")),
    *drops("linear_timesteps2", "loss_weighting bell weighs both sides of the middle"),
    *drops("next_sample_timesteps", "noise levels are drawn at random, each from the seed of its step"),
    Key("snr_gamma min_snr_gamma", "WanTrainSettings.loss_weighting", "min_snr, its analogue for flow matching",
        kind=float, read=to.min_snr),
    *(Key(name, at, "with a trigger_word; read together with the datasets", kind=object, read=lambda _value, _job: None)
      for name, at in (
          ("diff_output_preservation", "WanDatasetSettings.class_preservation"),
          ("diff_output_preservation_multiplier", "WanDatasetSettings.class_preservation"),
          ("diff_output_preservation_class", "WanDatasetSettings.class_word"),
          ("blank_prompt_preservation", "WanDatasetSettings.class_preservation"),
          ("blank_prompt_preservation_multiplier", "WanDatasetSettings.class_preservation"))),
    *drops("reg_weight", "prior_preservation of Wan Dataset Settings is the weight of a dataset's clips"),
    Key("do_guidance_loss", "WanTrainSettings.guidance_target", "guidance_loss_target, where it is true", kind=bool,
        read=to.guidance),
    Key("guidance_loss_target", "WanTrainSettings.guidance_target", kind=object, read=lambda _value, _job: None),
    *drops("noise_offset noise_multiplier weight_jitter img_multiplier latent_multiplier force_consistent_noise",
           "noise is not changed"),
    *drops(
        "noise_scheduler unload_text_encoder cache_text_embeddings disable_sampling skip_first_sample "
        "force_first_sample attention_backend xformers sdp do_differential_guidance "
        "differential_guidance_scale inverted_mask_prior "
        "bypass_guidance_embedding max_loss audio_loss_multiplier validation_config start_step "
        "merge_network_on_save",
    ),
)  # fmt: skip
_MODEL = (
    Key("arch", "LoadWanModel.diffusion_model", "its file", read=to.arch),
    Key("name_or_path", "LoadWanModel.diffusion_model", "its file", read=to.path),
    Key("model_kwargs", "LoadWanModel.low_noise_model", "train_high_noise, train_low_noise", kind=object, own={},
        read=to.experts),
    Key("quantize", "Fp8Quantize.scheme", "8 bits", kind=bool, read=to.quantize),
    *drops("qtype", "8 bits; smaller ones are GGUF files"),
    *drops("accuracy_recovery_adapter", "8 bits need none"),
    Key("compile", "WanTrainSettings.compile", kind=bool),
    *drops("dtype", "the precision policy computes in bf16"),
    Key("lora_path", "AddFrozenLora.lora", "beside the model, not merged into it", read=lora_of("lora_path")),
    Key("assistant_lora_path", "AddFrozenLora.lora", "preview_strength is 0",
        read=lora_of("assistant_lora_path", 0.0)),
    *drops(
        "quantize_te qtype_te te_name_or_path extras_name_or_path vae_path text_encoder_bits low_vram "
        "layer_offloading layer_offloading_transformer_percent layer_offloading_text_encoder_percent "
        "auto_memory block_compile compile_mode compile_fullgraph compile_dynamic cache_size_limit "
        "inference_lora_path split_model_over_gpus quantize_kwargs unconditional_lora_path",
    ),
)  # fmt: skip
_SAMPLE = (
    Key("sample_every", "TrainLoRA.preview_every_n_steps", kind=int, own=100),
    Key("prompts samples", "WanPreviewSettings.prompts", "each with its own size", kind=object, read=to.prompts),
    Key("neg", "WanPreviewSettings.negative_prompt", kind=object, read=to.negative),
    Key("width", "WanPreviewSettings.width", kind=int, own=512),
    Key("height", "WanPreviewSettings.height", kind=int, own=512),
    Key("num_frames", "WanPreviewSettings.num_frames", kind=int, own=1),
    Key("sample_steps", "WanPreviewSettings.steps", kind=int, own=20),
    Key("guidance_scale", "WanPreviewSettings.cfg", kind=float, own=7.0),
    Key("seed", "WanPreviewSettings.seed", kind=int),
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
    for name, keys in TABLES.items():
        if not name:
            take_over(keys, job, job.ledger)
            continue
        section = job.ledger.get(name, object, None)
        if section is None:
            continue
        inner = ledger_of(f"{source}, {name}", cast("dict[str, Any]", section) if isinstance(section, dict) else {})
        take_over(keys, job, inner)
        job.ledger.absorb(inner, name)
    name = str(config.get("name") or "imported")
    job.put("TrainLoRA.run_name", "imported" if stands_for_more(name) else run_name(name))
    if "sample" not in job.ledger:
        job.put("TrainLoRA.preview_every_n_steps", 0)
    dropped = [to.number(one.get("caption_dropout_rate")) for one in processes[0].get("datasets") or () if one]
    rates = [float(rate) for rate in dropped if isinstance(rate, int | float)]
    if rates:
        job.put("WanTrainSettings.caption_dropout", max(rates))
        job.ledger.take(
            "caption_dropout_rate of the datasets -> caption_dropout {rate}, for all of them", rate=f"{max(rates):g}"
        )
    if len(processes) > 1:
        job.hint("{n} more processes of the file are not read; import one at a time", n=len(processes) - 1)
    return job
