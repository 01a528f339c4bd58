// @ts-check
/**
 * Every node of ours, with its widgets in each order they have had, the newest first.
 * Written by scripts/generators/make_workflows.py, which only adds: saved workflows hold such positions.
 * @type {Record<string, string[]>}
 */
// biome-ignore format: one order a line, whatever their number
export const ORDERS = {
  AddFrozenLora: [
    "lora,strength,low_noise_lora,strength_low_noise,only_what_fits",
    "lora,strength,low_noise_lora,strength_low_noise",
  ],
  ApplyWanLoRA: [
    "saved_step,strength_high_noise,strength_low_noise",
    "saved_step,strength_high_noise",
  ],
  CacheLatents: [
    "mode",
  ],
  Fp8Quantize: [
    "scheme,keep_high_precision,include,exclude",
  ],
  LoadWanModel: [
    "diffusion_model,low_noise_model,variant,base_precision,precision_policy,device,attention",
    "diffusion_model,low_noise_model,variant,base_precision,precision_policy,device",
    "diffusion_model,variant,base_precision,precision_policy,device",
  ],
  PlanMemory: [
    "rank,expert,blocks_to_swap",
  ],
  PrecisionAudit: [
    "clips,timesteps,alone",
  ],
  SplitAcrossGPUs: [
    "mode,devices,split_at",
  ],
  TrainLoRA: [
    "run_name,steps,learning_rate,rank,alpha,expert,save_every_n_steps,preview_every_n_steps,resume,start_from_lora,seed,steps_this_queue,blocks_to_swap",
    "run_name,steps,learning_rate,rank,alpha,expert,save_every_n_steps,preview_every_n_steps,resume,start_from_lora,seed,steps_this_queue",
  ],
  ValidateVideo: [
    "saved_steps,strengths,baseline,seeds,grid_format",
    "saved_steps,strengths,baseline",
  ],
  WanCacheFromLatents: [
  ],
  WanCacheFromTFRecord: [
    "folder,raw_latents",
  ],
  WanDatasetFromFile: [
    "file,other_file,path_column,caption_column,repeats_column,control_column,mask_column,trigger_word,caption_extension,width,height,num_frames,force_rate,num_repeats,weight,enable_bucket,use_file_settings",
  ],
  WanDatasetFromImages: [
    "captions,batch_is,fps,width,height,num_frames,num_repeats,enable_bucket",
  ],
  WanDatasetSettings: [
    "frame_extraction,frame_stride,frame_sample,frame_buckets,frame_rounding,crop,horizontal_flip,variants,split_scenes,scene_threshold,recursive,weight,caption_prefix,caption_shuffles,keep_tokens,missing_captions,mask_use,held_out_ratio,held_out,latent_dtype,cache_compression,cache_limit_gb,prior_preservation",
    "frame_extraction,frame_stride,frame_sample,frame_buckets,frame_rounding,crop,horizontal_flip,variants,split_scenes,scene_threshold,recursive,weight,caption_prefix,caption_shuffles,keep_tokens,missing_captions,mask_use,held_out_ratio,held_out,latent_dtype,cache_compression,cache_limit_gb",
    "frame_extraction,frame_stride,frame_sample,frame_buckets,frame_rounding,crop,horizontal_flip,variants,split_scenes,scene_threshold",
  ],
  WanLoraFile: [
    "lora,strength,low_noise_lora,strength_low_noise,only_what_fits",
    "lora,strength,low_noise_lora,strength_low_noise",
  ],
  WanPrecisionPolicy: [
    "preset,residual,norm,qk_norm,time,modulation,head,rope_table,rope,attention,adapter,matmul",
    "preset,residual,norm,qk_norm,time,modulation,head,rope_table,rope,attention,adapter",
  ],
  WanPreviewSettings: [
    "prompts,negative_prompt,sampling,width,height,num_frames,steps,cfg,shift,seed,sampler_name,scheduler,cfg_low_noise,cfg_passes,cfg_zero_star,skip_layer_guidance,skip_layers,skip_layer_scale,skip_layer_start,skip_layer_end,trigger_word,preview_size",
    "prompts,negative_prompt,sampling,width,height,num_frames,steps,cfg,shift,seed,sampler_name,scheduler,cfg_low_noise,cfg_passes,cfg_zero_star,skip_layer_guidance,skip_layers,skip_layer_scale,skip_layer_start,skip_layer_end,trigger_word",
    "prompts,negative_prompt,sampling,width,height,num_frames,steps,cfg,shift,seed",
  ],
  WanSweepSettings: [
    "setting,values",
  ],
  WanSyntheticDataset: [
    "count,width,height,num_frames,text_length,seed",
  ],
  WanTrainSettings: [
    "batch_size,gradient_accumulation_steps,optimizer,lr_scheduler,lr_warmup_steps,timestep_sampling,discrete_flow_shift,sigmoid_scale,weight_decay,max_grad_norm,adam_beta1,adam_beta2,adam_epsilon,caption_dropout,lora_dropout,lora_targets,gradient_checkpointing,eval_items,eval_timesteps,save_dtype,max_bad_steps,first_frame_conditioning_p,bucket_sampling,checkpointing_policy,checkpointing_names_saved,checkpointing_names_offloaded,unchecked_blocks,memory,offload_activations,compile,optimizer_class,optimizer_args,loraplus_lr_ratio,lr_warmup_share,lr_scheduler_num_cycles,lr_scheduler_power,lr_scheduler_min_lr_ratio,lr_decay_share,lr_scaling,ema_decay,loss_type,huber_delta,loss_weighting,min_timestep,max_timestep,high_noise_share,expert_order,expert_turn_steps,low_noise_learning_rate,low_noise_rank,eval_every_n_steps,keep_last_saves,logit_mean,logit_std,mode_scale,adapter,adapter_init,target_preset,rank_patterns,rank_dropout,module_dropout,scale_weight_norms,lokr_factor,tread_routes,timestep_range,timestep_list,timestep_strata,max_train_epochs,max_train_hours,global_batch_size,lr_patterns,loss_scaling,also_train,offload_optimizer",
    "batch_size,gradient_accumulation_steps,optimizer,lr_scheduler,lr_warmup_steps,timestep_sampling,discrete_flow_shift,sigmoid_scale,weight_decay,max_grad_norm,adam_beta1,adam_beta2,adam_epsilon,caption_dropout,lora_dropout,lora_targets,gradient_checkpointing,eval_items,eval_timesteps,save_dtype,max_bad_steps,first_frame_conditioning_p,bucket_sampling,checkpointing_policy,checkpointing_names_saved,checkpointing_names_offloaded,unchecked_blocks,memory,offload_activations,compile,optimizer_class,optimizer_args,loraplus_lr_ratio,lr_warmup_share,lr_scheduler_num_cycles,lr_scheduler_power,lr_scheduler_min_lr_ratio,lr_decay_share,lr_scaling,ema_decay,loss_type,huber_delta,loss_weighting,min_timestep,max_timestep,high_noise_share,expert_order,expert_turn_steps,low_noise_learning_rate,low_noise_rank,eval_every_n_steps,keep_last_saves,logit_mean,logit_std,mode_scale,adapter,adapter_init,target_preset,rank_patterns,rank_dropout,module_dropout,scale_weight_norms,lokr_factor,tread_routes,timestep_range,timestep_list,timestep_strata,max_train_epochs,max_train_hours,global_batch_size,lr_patterns,loss_scaling,also_train",
    "batch_size,gradient_accumulation_steps,optimizer,lr_scheduler,lr_warmup_steps,timestep_sampling,discrete_flow_shift,sigmoid_scale,weight_decay,max_grad_norm,adam_beta1,adam_beta2,adam_epsilon,caption_dropout,lora_dropout,lora_targets,gradient_checkpointing,eval_items,eval_timesteps,save_dtype,max_bad_steps,first_frame_conditioning_p,bucket_sampling,checkpointing_policy,checkpointing_names_saved,checkpointing_names_offloaded,unchecked_blocks,memory,offload_activations,compile,optimizer_class,optimizer_args,loraplus_lr_ratio,lr_warmup_share,lr_scheduler_num_cycles,lr_scheduler_power,lr_scheduler_min_lr_ratio,lr_decay_share,lr_scaling,ema_decay,loss_type,huber_delta,loss_weighting,min_timestep,max_timestep,high_noise_share,expert_order,expert_turn_steps,low_noise_learning_rate,low_noise_rank,eval_every_n_steps,keep_last_saves,logit_mean,logit_std,mode_scale,adapter,adapter_init,target_preset,rank_patterns,rank_dropout,module_dropout,scale_weight_norms,lokr_factor,tread_routes,timestep_range,timestep_list,timestep_strata,max_train_epochs,max_train_hours,global_batch_size,lr_patterns,loss_scaling",
    "batch_size,gradient_accumulation_steps,optimizer,lr_scheduler,lr_warmup_steps,timestep_sampling,discrete_flow_shift,sigmoid_scale,weight_decay,max_grad_norm,adam_beta1,adam_beta2,adam_epsilon,caption_dropout,lora_dropout,lora_targets,gradient_checkpointing,eval_items,eval_timesteps,save_dtype,max_bad_steps,first_frame_conditioning_p,bucket_sampling,checkpointing_policy,checkpointing_names_saved,checkpointing_names_offloaded,unchecked_blocks,memory,offload_activations,compile,optimizer_class,optimizer_args,loraplus_lr_ratio,lr_warmup_share,lr_scheduler_num_cycles,lr_scheduler_power,lr_scheduler_min_lr_ratio,lr_decay_share,lr_scaling,ema_decay,loss_type,huber_delta,loss_weighting,min_timestep,max_timestep,high_noise_share,expert_order,expert_turn_steps,low_noise_learning_rate,low_noise_rank,eval_every_n_steps,keep_last_saves,logit_mean,logit_std,mode_scale,adapter,adapter_init,target_preset,rank_patterns,rank_dropout,module_dropout,scale_weight_norms,lokr_factor,tread_routes,timestep_range,timestep_list,timestep_strata,max_train_epochs,max_train_hours,global_batch_size,lr_patterns",
    "batch_size,gradient_accumulation_steps,optimizer,lr_scheduler,lr_warmup_steps,timestep_sampling,discrete_flow_shift,sigmoid_scale,weight_decay,max_grad_norm,adam_beta1,adam_beta2,adam_epsilon,caption_dropout,lora_dropout,lora_targets,gradient_checkpointing,eval_items,eval_timesteps,save_dtype,max_bad_steps,first_frame_conditioning_p,bucket_sampling,checkpointing_policy,checkpointing_names_saved,checkpointing_names_offloaded,unchecked_blocks,memory,offload_activations,compile,optimizer_class,optimizer_args,loraplus_lr_ratio,lr_warmup_share,lr_scheduler_num_cycles,lr_scheduler_power,lr_scheduler_min_lr_ratio,lr_decay_share,lr_scaling,ema_decay,loss_type,huber_delta,loss_weighting,min_timestep,max_timestep,high_noise_share,expert_order,expert_turn_steps,low_noise_learning_rate,low_noise_rank,eval_every_n_steps,keep_last_saves,logit_mean,logit_std,mode_scale,adapter,adapter_init,target_preset,rank_patterns,rank_dropout,module_dropout,scale_weight_norms,lokr_factor,tread_routes,timestep_range,timestep_list,timestep_strata",
    "batch_size,gradient_accumulation_steps,optimizer,lr_scheduler,lr_warmup_steps,timestep_sampling,discrete_flow_shift,sigmoid_scale,weight_decay,max_grad_norm,adam_beta1,adam_beta2,adam_epsilon,caption_dropout,lora_dropout,lora_targets,gradient_checkpointing,eval_items,eval_timesteps,save_dtype,max_bad_steps,first_frame_conditioning_p,bucket_sampling,checkpointing_policy,checkpointing_names_saved,checkpointing_names_offloaded,unchecked_blocks,memory,offload_activations,compile,optimizer_class,optimizer_args,loraplus_lr_ratio,lr_warmup_share,lr_scheduler_num_cycles,lr_scheduler_power,lr_scheduler_min_lr_ratio,lr_decay_share,lr_scaling,ema_decay,loss_type,huber_delta,loss_weighting,min_timestep,max_timestep,high_noise_share,expert_order,expert_turn_steps,low_noise_learning_rate,low_noise_rank,eval_every_n_steps,keep_last_saves,logit_mean,logit_std,mode_scale,adapter,adapter_init,target_preset,rank_patterns,rank_dropout,module_dropout,scale_weight_norms,lokr_factor,tread_routes",
    "batch_size,gradient_accumulation_steps,optimizer,lr_scheduler,lr_warmup_steps,timestep_sampling,discrete_flow_shift,sigmoid_scale,weight_decay,max_grad_norm,adam_beta1,adam_beta2,adam_epsilon,caption_dropout,lora_dropout,lora_targets,gradient_checkpointing,eval_items,eval_timesteps,save_dtype,max_bad_steps,first_frame_conditioning_p,bucket_sampling,checkpointing_policy,checkpointing_names_saved,checkpointing_names_offloaded,unchecked_blocks,memory,offload_activations,compile,optimizer_class,optimizer_args,loraplus_lr_ratio,lr_warmup_share,lr_scheduler_num_cycles,lr_scheduler_power,lr_scheduler_min_lr_ratio,lr_decay_share,lr_scaling,ema_decay,loss_type,huber_delta,loss_weighting,min_timestep,max_timestep,high_noise_share,expert_order,expert_turn_steps,low_noise_learning_rate,low_noise_rank,eval_every_n_steps,keep_last_saves,logit_mean,logit_std,mode_scale,adapter,adapter_init,target_preset,rank_patterns,rank_dropout,module_dropout,scale_weight_norms,lokr_factor",
    "batch_size,gradient_accumulation_steps,optimizer,lr_scheduler,lr_warmup_steps,timestep_sampling,discrete_flow_shift,sigmoid_scale,weight_decay,max_grad_norm,adam_beta1,adam_beta2,adam_epsilon,caption_dropout,lora_dropout,lora_targets,gradient_checkpointing,eval_items,eval_timesteps,save_dtype,max_bad_steps,first_frame_conditioning_p,bucket_sampling,checkpointing_policy,checkpointing_names_saved,checkpointing_names_offloaded,unchecked_blocks,memory,offload_activations,compile,optimizer_class,optimizer_args,loraplus_lr_ratio,lr_warmup_share,lr_scheduler_num_cycles,lr_scheduler_power,lr_scheduler_min_lr_ratio,lr_decay_share,lr_scaling,ema_decay,loss_type,huber_delta,loss_weighting,min_timestep,max_timestep,high_noise_share,expert_order,expert_turn_steps,low_noise_learning_rate,low_noise_rank,eval_every_n_steps,keep_last_saves,logit_mean,logit_std,mode_scale",
    "batch_size,gradient_accumulation_steps,optimizer,lr_scheduler,lr_warmup_steps,timestep_sampling,discrete_flow_shift,sigmoid_scale,weight_decay,max_grad_norm,adam_beta1,adam_beta2,adam_epsilon,caption_dropout,lora_dropout,lora_targets,gradient_checkpointing,eval_items,eval_timesteps,save_dtype,max_bad_steps,first_frame_conditioning_p,bucket_sampling,checkpointing_policy,checkpointing_names_saved,checkpointing_names_offloaded,unchecked_blocks,memory,offload_activations,compile,optimizer_class,optimizer_args,loraplus_lr_ratio,lr_warmup_share,lr_scheduler_num_cycles,lr_scheduler_power,lr_scheduler_min_lr_ratio,lr_decay_share,lr_scaling,ema_decay,loss_type,huber_delta,loss_weighting,min_timestep,max_timestep,high_noise_share,expert_order,expert_turn_steps,low_noise_learning_rate,low_noise_rank,eval_every_n_steps,keep_last_saves",
    "batch_size,gradient_accumulation_steps,optimizer,lr_scheduler,lr_warmup_steps,timestep_sampling,discrete_flow_shift,sigmoid_scale,weight_decay,max_grad_norm,adam_beta1,adam_beta2,adam_epsilon,caption_dropout,lora_dropout,lora_targets,gradient_checkpointing,eval_items,eval_timesteps,save_dtype,max_bad_steps,first_frame_conditioning_p,bucket_sampling,checkpointing_policy,checkpointing_names_saved,checkpointing_names_offloaded,unchecked_blocks,memory,offload_activations,compile,optimizer_class,optimizer_args,loraplus_lr_ratio,lr_warmup_share,lr_scheduler_num_cycles,lr_scheduler_power,lr_scheduler_min_lr_ratio,lr_decay_share,lr_scaling,ema_decay,loss_type,huber_delta,loss_weighting,min_timestep,max_timestep,high_noise_share,expert_order,expert_turn_steps,low_noise_learning_rate,low_noise_rank",
    "batch_size,gradient_accumulation_steps,optimizer,lr_scheduler,lr_warmup_steps,timestep_sampling,discrete_flow_shift,sigmoid_scale,weight_decay,max_grad_norm,adam_beta1,adam_beta2,adam_epsilon,caption_dropout,lora_dropout,lora_targets,gradient_checkpointing,eval_items,eval_timesteps,save_dtype,max_bad_steps,first_frame_conditioning_p,bucket_sampling,checkpointing_policy,checkpointing_names_saved,checkpointing_names_offloaded,unchecked_blocks,memory,offload_activations,compile,optimizer_class,optimizer_args,loraplus_lr_ratio,lr_warmup_share,lr_scheduler_num_cycles,lr_scheduler_power,lr_scheduler_min_lr_ratio,lr_decay_share,lr_scaling,ema_decay,loss_type,huber_delta,loss_weighting,min_timestep,max_timestep",
    "batch_size,gradient_accumulation_steps,optimizer,lr_scheduler,lr_warmup_steps,timestep_sampling,discrete_flow_shift,sigmoid_scale,weight_decay,max_grad_norm,adam_beta1,adam_beta2,adam_epsilon,caption_dropout,lora_dropout,lora_targets,gradient_checkpointing,eval_items,eval_timesteps,save_dtype,max_bad_steps,first_frame_conditioning_p,bucket_sampling,checkpointing_policy,checkpointing_names_saved,checkpointing_names_offloaded,unchecked_blocks,memory,offload_activations,compile",
    "batch_size,gradient_accumulation_steps,optimizer,lr_scheduler,lr_warmup_steps,timestep_sampling,discrete_flow_shift,sigmoid_scale,weight_decay,max_grad_norm,adam_beta1,adam_beta2,adam_epsilon,caption_dropout,lora_dropout,lora_targets,gradient_checkpointing,eval_items,eval_timesteps,save_dtype,max_bad_steps,first_frame_conditioning_p,bucket_sampling,checkpointing_policy,checkpointing_names_saved,checkpointing_names_offloaded,unchecked_blocks,memory,offload_activations",
    "batch_size,gradient_accumulation_steps,optimizer,lr_scheduler,lr_warmup_steps,timestep_sampling,discrete_flow_shift,sigmoid_scale,weight_decay,max_grad_norm,adam_beta1,adam_beta2,adam_epsilon,caption_dropout,lora_dropout,lora_targets,gradient_checkpointing,eval_items,eval_timesteps,save_dtype,max_bad_steps,first_frame_conditioning_p,bucket_sampling",
    "batch_size,gradient_accumulation_steps,optimizer,lr_scheduler,lr_warmup_steps,timestep_sampling,discrete_flow_shift,sigmoid_scale,weight_decay,max_grad_norm,adam_beta1,adam_beta2,adam_epsilon,caption_dropout,lora_dropout,lora_targets,gradient_checkpointing,eval_items,eval_timesteps,save_dtype,max_bad_steps,first_frame_conditioning_p",
    "batch_size,gradient_accumulation_steps,optimizer,lr_scheduler,lr_warmup_steps,timestep_sampling,discrete_flow_shift,sigmoid_scale,weight_decay,max_grad_norm,adam_beta1,adam_beta2,adam_epsilon,caption_dropout,lora_dropout,lora_targets,gradient_checkpointing,eval_items,eval_timesteps,save_dtype,max_bad_steps",
  ],
  WanVideoDataset: [
    "folder,trigger_word,caption_extension,width,height,num_frames,force_rate,num_repeats,enable_bucket",
  ],
};
