"""Training settings of SimpleTuner: config.json, with or without dashes before its keys (SimpleTuner's
documentation/OPTIONS.md)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from . import simpletuner_values as to
from .foreign_job import ForeignJob
from .keys import Key, also, base_precision, dataset, drops, every, if_so, ledger_of, same, shown, take_over
from .learning import copies, last_folder, only_for, quantized, scheduler
from .models import assistant, lora_file, model_file, model_unless_set, vae_file

_SET = "each dataset sets it in its own settings"

KEYS = (
    Key("model_family", "", "wan", read=to.family),
    Key("model_flavour", "LoadWanModel.diffusion_model", "its file", read=to.flavour),
    Key("pretrained_transformer_model_name_or_path", "LoadWanModel.diffusion_model", "its file", read=model_file),
    Key("pretrained_model_name_or_path", "LoadWanModel.diffusion_model", "its file, where no flavour says it",
        read=model_unless_set),
    Key("pretrained_vae_model_name_or_path", "VAELoader.vae_name", "the file that ComfyUI has", read=vae_file),
    Key("data_backend_config", "WanDatasetFromFile.other_file", "the datasets, read as they are", read=dataset),
    Key("output_dir", "run_name", "the last folder of it", read=last_folder),
    *same(int, "gradient_accumulation_steps seed lr_warmup_steps"),
    Key("num_train_epochs", "max_train_epochs", kind=int, read=to.epochs),
    Key("max_train_steps", "steps", "leads over epochs", kind=int, read=to.steps),
    *drops("strict_epoch_limit ignore_final_epochs", "exactly this number of steps is trained"),
    Key("train_batch_size", "batch_size", kind=int, own=4),
    Key("lora_rank", "rank", kind=int, own=16),
    Key("lora_alpha", "alpha", kind=float),
    Key("lora_dropout", "lora_dropout", kind=float, own=0.1),
    Key("lora_type", "adapter", "LoRA; lycoris: what lycoris_config says", read=to.lora_type),
    *also("lycoris_config", "adapter", "algo, factor, linear_dim and linear_alpha of the file"),
    Key("use_dora", "adapter", "DoRA", kind=bool, read=if_so("DoRA")),
    Key("lora_init_type", "adapter_init", "gaussian, PiSSA, OLoRA", read=to.init),
    *drops("peft_lora_mode init_lokr_norm singlora_ramp_up_steps lora_format slider_lora_target",
           "the LoRA is initialised to no effect"),
    Key("init_lora", "start_from_lora", "its file, in ComfyUI's loras folder", read=lora_file),
    Key("peft_lora_target_modules", "lora_targets", "by the original names", kind=object, read=to.modules),
    Key("assistant_lora_path", "AddFrozenLora.lora", "a file; one of a repository is named as something to do",
        read=assistant),
    *also("assistant_lora_strength", "AddFrozenLora.strength"),
    *also("assistant_lora_inference_strength", "AddFrozenLora.preview_strength", "0 where it is not set"),
    Key("learning_rate", "learning_rate", kind=float, own=4e-7),
    Key("optimizer", "optimizer", "torchao's and pytorch-optimizer's classes", own="adamw_bf16", read=to.optimizer),
    *also("optimizer_config", "optimizer_args"),
    *also("optimizer_beta1", "adam_beta1"),
    *also("optimizer_beta2", "adam_beta2"),
    *also("adam_beta1", "adam_beta1"),
    *also("adam_beta2", "adam_beta2"),
    *also("adam_weight_decay", "weight_decay"),
    *also("adam_epsilon", "adam_epsilon"),
    Key("optimizer_cpu_offload_method", "offload_optimizer", read=to.offloads),
    Key("max_grad_norm", "max_grad_norm", "by norm; max_grad_value by value", kind=float, read=to.clipping),
    Key("grad_clip_method", "max_grad_value", own="value", read=lambda _value, _job: None),
    Key("lr_scheduler", "lr_scheduler", own="constant_with_warmup", read=scheduler),
    Key("lr_num_cycles", "lr_scheduler_num_cycles", kind=int, own=1, read=only_for("cosine_with_restarts")),
    Key("lr_power", "lr_scheduler_power", kind=float, own=0.8, read=only_for("polynomial")),
    Key("lr_end", "lr_scheduler_min_lr_ratio", "as a share of the learning rate", kind=float, read=to.lowest_rate),
    Key("lr_scale", "lr_scaling", "linear", kind=bool, read=if_so("linear")),
    Key("lr_scale_sqrt", "lr_scaling", "sqrt", kind=bool, read=if_so("sqrt")),
    Key("caption_dropout_probability", "caption_dropout", kind=float, own=0.1),
    Key("flow_schedule_shift", "discrete_flow_shift", kind=float, own=3.0),
    Key("flow_schedule_auto_shift", "timestep_sampling", "flux_shift", kind=bool, read=if_so("flux_shift")),
    Key("flow_sigmoid_scale", "sigmoid_scale", kind=float),
    Key("flow_use_uniform_schedule", "timestep_sampling", "uniform", kind=bool, read=if_so("uniform")),
    Key("flow_use_beta_schedule", "timestep_sampling", "beta (2, 2)", kind=bool, read=if_so("beta")),
    *drops("flow_beta_schedule_alpha flow_beta_schedule_beta", "beta is Beta(2, 2)"),
    Key("flow_custom_timesteps", "timestep_list", "up to 1 they are noise levels, times 1000", kind=object,
        read=to.timesteps),
    *drops("flow_timesteps_mode", "listed noise levels are trained equally often"),
    *drops("flow_cubic_schedule_weights timestep_bias_strategy "
           "timestep_bias_begin timestep_bias_end timestep_bias_multiplier timestep_bias_portion "
           "disable_segmented_timestep_sampling", "noise levels are drawn at random, each from the seed of its step"),
    Key("loss_type", "loss_type", "huber is pseudo_huber here", read=to.loss),
    *also("huber_c", "huber_delta"),
    *drops("huber_schedule", "one width for all noise levels"),
    *drops("snr_gamma use_soft_min_snr soft_min_snr_sigma_data", "SimpleTuner does not read it for flow matching; "
           "loss_weighting min_snr is the analogue here"),
    *drops("noise_offset noise_offset_probability input_perturbation input_perturbation_steps", "noise is not changed"),
    *drops("masked_loss_probability", "masks of a dataset always count"),
    Key("use_ema", "ema_decay", "0 is off", kind=bool, read=to.ema),
    *also("ema_decay ema_update_interval", "ema_decay"),
    Key("tread_config", "tread_routes", "the same routes", kind=object, read=to.routes),
    Key("base_model_precision", "Fp8Quantize.scheme", "8 bits", read=quantized),
    Key("mixed_precision", "LoadWanModel.base_precision", "bf16 is usual", read=base_precision),
    Key("gradient_checkpointing", "gradient_checkpointing", kind=bool),
    Key("musubi_blocks_to_swap", "blocks_to_swap", kind=int, read=lambda value, _job: value or None),
    Key("attention_mechanism", "LoadWanModel.attention", "Sage has no backward pass", read=to.attention),
    Key("num_processes", "SplitAcrossGPUs.mode", "above 1", kind=int, read=copies),
    Key("dynamo_backend", "compile", "inductor", read=lambda value, _job: True if value == "inductor" else None),
    Key("checkpoint_step_interval checkpointing_steps", "save_every_n_steps", kind=int),
    Key("checkpoint_epoch_interval", "save_every_n_steps", "as steps", kind=int, read=every),
    Key("checkpoints_total_limit", "keep_last_saves", kind=int, own=5),
    Key("validation_step_interval validation_steps", "preview_every_n_steps", kind=int, own=100),
    Key("validation_epoch_interval", "preview_every_n_steps", "as steps", kind=int, read=every),
    Key("validation_prompt", "preview.prompts", read=to.prompt),
    Key("user_prompt_library", "preview.prompts", "the text of the file, where it is found", kind=object,
        read=to.library),
    Key("validation_prompt_library", "preview.prompts", "prompts of SimpleTuner itself are not here", kind=object,
        read=to.library),
    Key("validation_negative_prompt", "preview.negative_prompt"),
    Key("validation_resolution", "preview.width", "and height", read=to.size),
    Key("validation_num_video_frames", "preview.num_frames", kind=int),
    Key("validation_num_inference_steps", "preview.steps", kind=int, own=30),
    Key("validation_guidance", "preview.cfg", kind=float),
    Key("validation_seed", "preview.seed", kind=int),
    Key("validation_guidance_skip_layers", "preview.skip_layers", "skip_layer_guidance extra pass", kind=object,
        read=to.skipped),
    Key("validation_guidance_skip_layers_start", "preview.skip_layer_start", kind=float),
    Key("validation_guidance_skip_layers_stop", "preview.skip_layer_end", kind=float),
    Key("validation_guidance_skip_scale", "preview.skip_layer_scale", kind=float),
    *drops("eval_dataset_id eval_steps_interval eval_epoch_interval num_eval_images eval_timesteps evaluation_type",
           "clips are held out by held_out_ratio of Wan Dataset Settings"),
    *drops("resolution resolution_type minimum_image_size maximum_image_size target_downsample_size framerate "
           "caption_strategy instance_prompt prepend_instance_prompt only_instance_prompt metadata_update_interval "
           "max_upscale_threshold", _SET),
    *drops("data_backend_sampling", "bucket_sampling of Wan Train Settings"),
    *drops("model_type pretrained_* revision variant trust_remote_code disable_assistant_lora optimizer_* "
           "fuse_optimizer gradient_precision ema_* quantize_via quantization_config base_model_default_dtype sdnq_* "
           "text_encoder_* gradient_checkpointing_* ramtorch* musubi_block_swap_device enable_group_offload "
           "group_offload_* sageattention_usage sla_config context_parallel_* fsdp_* deepspeed_config "
           "accelerate_config num_machines dynamo_* resume_from_checkpoint disable_* validation_* "
           "num_validation_images aspect_bucket_* allow_dataset_oversubscription compress_disk_cache cache_dir* "
           "preserve_data_backend_cache override_dataset_config skip_file_discovery vae_* text_cache_ondemand "
           "write_batch_size read_batch_size image_processing_batch_size delete_* keep_vae_loaded tokenizer_max_length "
           "offload_during_startup fully_unload_text_encoder hub_model_id push_* model_card_private report_to "
           "tracker_* logging_dir webhook_config distillation_* dataloader_prefetch* max_workers torch_num_threads "
           "enable_multiprocessing set_grads_to_none i_know_what_i_am_doing"),
)  # fmt: skip


def read_simpletuner_job(data: Mapping[str, Any], source: str) -> ForeignJob:
    flat = {key.lstrip("-"): value for key, value in data.items()}
    job = ForeignJob("SimpleTuner", source, ledger_of(source, flat))
    take_over(KEYS, job, job.ledger)
    if str(flat.get("model_type", "full")) != "lora":
        said = "model_type {type} trains the full model; here it is a LoRA"
        job.mend(said, type=shown(flat.get("model_type", "full")))
    return job
