"""Training settings of SimpleTuner: config.json, with or without dashes before its keys (SimpleTuner's
documentation/OPTIONS.md)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from . import simpletuner_values as to
from .foreign_job import ForeignJob
from .keys import Key, base_precision, drops, every, if_so, ledger_of, shown, take_over
from .learning import copies, only_for, quantized, scheduler
from .models import assistant, base_name, model_file, vae_file

_SET = "each dataset sets it in its own settings"

KEYS = (
    Key("model_family", "", "wan", read=to.family),
    Key("model_flavour", "LoadWanModel.diffusion_model", "its file", read=to.flavour),
    Key("pretrained_transformer_model_name_or_path", "LoadWanModel.diffusion_model", "its file", read=model_file),
    Key("pretrained_model_name_or_path", "LoadWanModel.diffusion_model", "its file, where no flavour says it",
        read=to.base),
    Key("pretrained_vae_model_name_or_path", "VAELoader.vae_name", "the file that ComfyUI has", read=vae_file),
    Key("data_backend_config", "WanDatasetFromFile.other_file", "the datasets, read as they are", read=to.data),
    Key("output_dir", "TrainLoRA.run_name", "the last folder of it", read=to.name),
    Key("num_train_epochs", "WanTrainSettings.max_train_epochs", kind=int, read=to.epochs),
    Key("max_train_steps", "TrainLoRA.steps", "leads over epochs", kind=int, read=to.steps),
    *drops("strict_epoch_limit ignore_final_epochs", "exactly this number of steps is trained"),
    Key("train_batch_size", "WanTrainSettings.batch_size", kind=int, own=4),
    Key("gradient_accumulation_steps", "WanTrainSettings.gradient_accumulation_steps", kind=int),
    Key("seed", "TrainLoRA.seed", kind=int),
    Key("lora_rank", "TrainLoRA.rank", kind=int, own=16),
    Key("lora_alpha", "TrainLoRA.alpha", kind=float),
    Key("lora_dropout", "WanTrainSettings.lora_dropout", kind=float, own=0.1),
    Key("lora_type", "WanTrainSettings.adapter", "LoRA; lycoris: what lycoris_config says", read=to.lora_type),
    Key("lycoris_config", "WanTrainSettings.adapter", "algo, factor, linear_dim and linear_alpha of the file",
        read=lambda _value, _job: None),
    Key("use_dora", "WanTrainSettings.adapter", "DoRA", kind=bool, read=to.dora),
    Key("lora_init_type", "WanTrainSettings.adapter_init", "gaussian, PiSSA, OLoRA", read=to.init),
    *drops("peft_lora_mode init_lokr_norm singlora_ramp_up_steps lora_format slider_lora_target",
           "the LoRA is initialised to no effect"),
    Key("init_lora", "TrainLoRA.start_from_lora", "its file, in ComfyUI's loras folder",
        read=lambda value, _job: base_name(value)),
    Key("peft_lora_target_modules", "WanTrainSettings.lora_targets", "by the original names", kind=object,
        read=to.modules),
    Key("assistant_lora_path", "AddFrozenLora.lora", "a file; one of a repository is named as something to do",
        read=assistant),
    Key("assistant_lora_strength", "AddFrozenLora.strength", kind=float, read=lambda _value, _job: None),
    Key("assistant_lora_inference_strength", "AddFrozenLora.preview_strength", "0 where it is not set", kind=float,
        read=lambda _value, _job: None),
    Key("learning_rate", "TrainLoRA.learning_rate", kind=float, own=4e-7),
    Key("optimizer", "WanTrainSettings.optimizer", "torchao's and pytorch-optimizer's classes", own="adamw_bf16",
        read=to.optimizer),
    *(Key(name, at, kind=object, read=lambda _value, _job: None) for name, at in (
        ("optimizer_config", "WanTrainSettings.optimizer_args"), ("optimizer_beta1", "WanTrainSettings.adam_beta1"),
        ("optimizer_beta2", "WanTrainSettings.adam_beta2"), ("adam_beta1", "WanTrainSettings.adam_beta1"),
        ("adam_beta2", "WanTrainSettings.adam_beta2"), ("adam_weight_decay", "WanTrainSettings.weight_decay"),
        ("adam_epsilon", "WanTrainSettings.adam_epsilon"))),
    Key("optimizer_cpu_offload_method", "WanTrainSettings.offload_optimizer", read=to.offloads),
    Key("max_grad_norm", "WanTrainSettings.max_grad_norm", "by norm; max_grad_value by value",
        kind=float, read=to.clipping),
    Key("grad_clip_method", "WanTrainSettings.max_grad_value", own="value", read=lambda _value, _job: None),
    Key("lr_scheduler", "WanTrainSettings.lr_scheduler", own="constant_with_warmup", read=scheduler),
    Key("lr_warmup_steps", "WanTrainSettings.lr_warmup_steps", kind=int),
    Key("lr_num_cycles", "WanTrainSettings.lr_scheduler_num_cycles", kind=int, own=1,
        read=only_for("cosine_with_restarts")),
    Key("lr_power", "WanTrainSettings.lr_scheduler_power", kind=float, own=0.8, read=only_for("polynomial")),
    Key("lr_end", "WanTrainSettings.lr_scheduler_min_lr_ratio", "as a share of the learning rate", kind=float,
        read=to.lowest_rate),
    Key("lr_scale", "WanTrainSettings.lr_scaling", "linear", kind=bool, read=if_so("linear")),
    Key("lr_scale_sqrt", "WanTrainSettings.lr_scaling", "sqrt", kind=bool, read=if_so("sqrt")),
    Key("caption_dropout_probability", "WanTrainSettings.caption_dropout", kind=float, own=0.1),
    Key("flow_schedule_shift", "WanTrainSettings.discrete_flow_shift", kind=float, own=3.0),
    Key("flow_schedule_auto_shift", "WanTrainSettings.timestep_sampling", "flux_shift", kind=bool,
        read=if_so("flux_shift")),
    Key("flow_sigmoid_scale", "WanTrainSettings.sigmoid_scale", kind=float),
    Key("flow_use_uniform_schedule", "WanTrainSettings.timestep_sampling", "uniform", kind=bool,
        read=if_so("uniform")),
    Key("flow_use_beta_schedule", "WanTrainSettings.timestep_sampling", "beta (2, 2)", kind=bool,
        read=if_so("beta")),
    *drops("flow_beta_schedule_alpha flow_beta_schedule_beta", "beta is Beta(2, 2)"),
    Key("flow_custom_timesteps", "WanTrainSettings.timestep_list", "up to 1 they are noise levels, times 1000",
        kind=object, read=to.timesteps),
    *drops("flow_timesteps_mode", "listed noise levels are trained equally often"),
    *drops("flow_cubic_schedule_weights timestep_bias_strategy "
           "timestep_bias_begin timestep_bias_end timestep_bias_multiplier timestep_bias_portion "
           "disable_segmented_timestep_sampling", "noise levels are drawn at random, each from the seed of its step"),
    Key("loss_type", "WanTrainSettings.loss_type", "huber is pseudo_huber here", read=to.loss),
    Key("huber_c", "WanTrainSettings.huber_delta", kind=float, read=lambda _value, _job: None),
    *drops("huber_schedule", "one width for all noise levels"),
    *drops("snr_gamma use_soft_min_snr soft_min_snr_sigma_data", "SimpleTuner does not read it for flow matching; "
           "loss_weighting min_snr is the analogue here"),
    *drops("noise_offset noise_offset_probability input_perturbation input_perturbation_steps", "noise is not changed"),
    *drops("masked_loss_probability", "masks of a dataset always count"),
    Key("use_ema", "WanTrainSettings.ema_decay", "0 is off", kind=bool, read=to.ema),
    *(Key(name, "WanTrainSettings.ema_decay", kind=object, read=lambda _value, _job: None)
      for name in ("ema_decay", "ema_update_interval")),
    Key("tread_config", "WanTrainSettings.tread_routes", "the same routes", kind=object, read=to.routes),
    Key("base_model_precision", "Fp8Quantize.scheme", "8 bits", read=quantized),
    Key("mixed_precision", "LoadWanModel.base_precision", "bf16 is usual", read=base_precision),
    Key("gradient_checkpointing", "WanTrainSettings.gradient_checkpointing", kind=bool),
    Key("musubi_blocks_to_swap", "TrainLoRA.blocks_to_swap", kind=int, read=lambda value, _job: value or None),
    Key("attention_mechanism", "LoadWanModel.attention", "Sage has no backward pass", read=to.attention),
    Key("num_processes", "SplitAcrossGPUs.mode", "above 1", kind=int, read=copies),
    Key("dynamo_backend", "WanTrainSettings.compile", "inductor",
        read=lambda value, _job: True if value == "inductor" else None),
    Key("checkpoint_step_interval checkpointing_steps", "TrainLoRA.save_every_n_steps", kind=int),
    Key("checkpoint_epoch_interval", "TrainLoRA.save_every_n_steps", "as steps", kind=int,
        read=every("TrainLoRA.save_every_n_steps", "checkpoint_epoch_interval")),
    Key("checkpoints_total_limit", "WanTrainSettings.keep_last_saves", kind=int, own=5),
    Key("validation_step_interval validation_steps", "TrainLoRA.preview_every_n_steps", kind=int, own=100),
    Key("validation_epoch_interval", "TrainLoRA.preview_every_n_steps", "as steps", kind=int,
        read=every("TrainLoRA.preview_every_n_steps", "validation_epoch_interval")),
    Key("validation_prompt", "WanPreviewSettings.prompts", read=to.prompt),
    Key("user_prompt_library", "WanPreviewSettings.prompts", "the text of the file, where it is found", kind=object,
        read=to.library),
    Key("validation_prompt_library", "WanPreviewSettings.prompts", "prompts of SimpleTuner itself are not here",
        kind=object, read=to.library),
    Key("validation_negative_prompt", "WanPreviewSettings.negative_prompt"),
    Key("validation_resolution", "WanPreviewSettings.width", "and height", read=to.size),
    Key("validation_num_video_frames", "WanPreviewSettings.num_frames", kind=int),
    Key("validation_num_inference_steps", "WanPreviewSettings.steps", kind=int, own=30),
    Key("validation_guidance", "WanPreviewSettings.cfg", kind=float),
    Key("validation_seed", "WanPreviewSettings.seed", kind=int),
    Key("validation_guidance_skip_layers", "WanPreviewSettings.skip_layers", "skip_layer_guidance extra pass",
        kind=object, read=to.skipped),
    Key("validation_guidance_skip_layers_start", "WanPreviewSettings.skip_layer_start", kind=float),
    Key("validation_guidance_skip_layers_stop", "WanPreviewSettings.skip_layer_end", kind=float),
    Key("validation_guidance_skip_scale", "WanPreviewSettings.skip_layer_scale", kind=float),
    *drops("eval_dataset_id eval_steps_interval eval_epoch_interval num_eval_images eval_timesteps evaluation_type",
           "clips are held out by held_out_ratio of Wan Dataset Settings"),
    *drops("resolution resolution_type minimum_image_size maximum_image_size target_downsample_size framerate "
           "caption_strategy instance_prompt prepend_instance_prompt only_instance_prompt metadata_update_interval "
           "max_upscale_threshold", _SET),
    *drops("data_backend_sampling", "bucket_sampling of Wan Train Settings"),
    *drops(
        "model_type pretrained_t5_model_name_or_path pretrained_transformer_subfolder revision variant "
        "trust_remote_code disable_assistant_lora "
        "optimizer_offload_gradients fuse_optimizer optimizer_release_gradients gradient_precision "
        "ema_validation ema_device ema_cpu_only ema_foreach_disable ema_warmup_steps quantize_via "
        "quantization_config base_model_default_dtype sdnq_weights_dtype sdnq_group_size "
        "text_encoder_1_precision text_encoder_2_precision text_encoder_3_precision "
        "text_encoder_4_precision gradient_checkpointing_backend gradient_checkpointing_interval "
        "gradient_checkpointing_segment_stride gradient_checkpointing_offload_attention "
        "gradient_checkpointing_offload_pin_memory_max_buckets gradient_checkpointing_offload_prefetch "
        "ramtorch ramtorch_target_modules ramtorch_text_encoder ramtorch_vae ramtorch_controlnet "
        "ramtorch_transformer_percent ramtorch_text_encoder_percent ramtorch_disable_sync_hooks "
        "ramtorch_disable_extensions musubi_block_swap_device enable_group_offload group_offload_type "
        "group_offload_blocks_per_group group_offload_use_stream group_offload_to_disk_path "
        "sageattention_usage sla_config context_parallel_size context_parallel_comm_strategy fsdp_enable "
        "fsdp_version deepspeed_config accelerate_config num_machines dynamo_mode dynamo_fullgraph "
        "dynamo_dynamic dynamo_use_regional_compilation resume_from_checkpoint disable_benchmark "
        "validation_on_startup num_validation_images validation_disable_unconditional validation_randomize "
        "validation_seed_source validation_guidance_rescale validation_noise_scheduler "
        "validation_torch_compile validation_preview validation_preview_steps validation_using_datasets "
        "validation_method validation_lycoris_strength validation_image_format aspect_bucket_rounding "
        "aspect_bucket_alignment disable_bucket_pruning allow_dataset_oversubscription compress_disk_cache "
        "cache_dir cache_dir_vae cache_dir_text preserve_data_backend_cache override_dataset_config "
        "skip_file_discovery vae_cache_ondemand vae_cache_disable text_cache_ondemand write_batch_size "
        "read_batch_size image_processing_batch_size delete_problematic_images delete_unwanted_images "
        "vae_batch_size vae_enable_tiling vae_enable_slicing vae_dtype keep_vae_loaded "
        "text_encoder_batch_size vae_enable_patch_conv vae_enable_temporal_roll tokenizer_max_length "
        "offload_during_startup delete_model_after_load fully_unload_text_encoder hub_model_id push_to_hub "
        "push_checkpoints_to_hub push_to_hub_background model_card_private report_to tracker_project_name "
        "tracker_run_name logging_dir webhook_config distillation_method distillation_config "
        "dataloader_prefetch dataloader_prefetch_qlen max_workers torch_num_threads enable_multiprocessing "
        "disable_tf32 set_grads_to_none i_know_what_i_am_doing",
    ),
)  # fmt: skip


def read_simpletuner_job(data: Mapping[str, Any], source: str) -> ForeignJob:
    flat = {key.lstrip("-"): value for key, value in data.items()}
    job = ForeignJob("SimpleTuner", source, ledger_of(source, flat))
    take_over(KEYS, job, job.ledger)
    if str(flat.get("model_type", "full")) != "lora":
        job.mend(
            "model_type {type} trains the full model; here it is a LoRA", type=shown(flat.get("model_type", "full"))
        )
    return job
