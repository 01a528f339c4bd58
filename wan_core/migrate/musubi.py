"""Training settings of musubi-tuner: its command line, or the TOML file of --config_file (musubi-tuner's
docs/wan.md)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..errors import ConfigError
from . import musubi_values as to
from .foreign_job import UNKNOWN_MODEL, ForeignJob
from .keys import Key, also, base_precision, dataset, drops, every, if_so, ledger_of, same, take_over
from .learning import alpha_of, copies, only_for, rank_of, save_dtype, scheduler
from .models import expert_shown, kind_of, level_of, lora_file, merged, said_kind, text_encoder, vae_file


class NotOfMusubiError(ConfigError):
    """Settings without any key of musubi-tuner."""


KEYS = (
    Key("task", "LoadWanModel.diffusion_model", "says which model it is", own="t2v-14B", read=said_kind),
    Key("dit", "LoadWanModel.diffusion_model", "its file; with dit_high_noise it is low_noise_model", read=to.dit),
    Key("dit_high_noise", "LoadWanModel.high_noise_model", "both experts are trained", read=to.high),
    Key("vae", "VAELoader.vae_name", "the file that ComfyUI has", read=vae_file),
    Key("t5", "CLIPLoader.clip_name", "the file that ComfyUI has", read=text_encoder),
    Key("dataset_config", "WanDatasetFromFile.other_file", "the datasets, read as they are", read=dataset),
    Key("output_name", "run_name", read=to.whole_name),
    *same(int, "seed gradient_accumulation_steps blocks_to_swap save_every_n_steps"),
    *same(float, "lr_scheduler_min_lr_ratio scale_weight_norms sigmoid_scale logit_mean logit_std mode_scale"),
    *same(bool, "gradient_checkpointing compile"),
    Key("max_train_steps", "steps", kind=int, own=1600, read=to.steps),
    Key("max_train_epochs", "max_train_epochs", "leads over max_train_steps", kind=int, read=to.epochs),
    Key("learning_rate", "learning_rate", kind=float, own=2e-6),
    Key("optimizer_type", "optimizer", "torchao's and pytorch-optimizer's classes", own="AdamW", read=to.optimizer),
    *also("optimizer_args", "optimizer_args", "weight_decay, betas and eps have widgets of their own"),
    Key("max_grad_norm", "max_grad_norm", kind=float, own=1.0),
    Key("lr_scheduler", "lr_scheduler", own="constant", read=scheduler),
    Key("lr_warmup_steps", "lr_warmup_steps", "below 1 a share: lr_warmup_share", kind=float, read=to.warmup),
    Key("lr_decay_steps", "lr_decay_share", "as a share of the run", kind=float, read=to.decay),
    Key("lr_scheduler_num_cycles", "lr_scheduler_num_cycles", kind=int, own=1, read=only_for("cosine_with_restarts")),
    Key("lr_scheduler_power", "lr_scheduler_power", kind=float, own=1.0, read=only_for("polynomial")),
    *drops("lr_scheduler_type lr_scheduler_args lr_scheduler_timescale", "the menu has these schedules"),
    Key("network_module", "adapter", "LoRA, LoHa, LoKr; of LyCORIS what algo says", read=to.network),
    Key("network_dim", "rank", "above 1024, for whole matrices: 1024", kind=int, own=4, read=rank_of),
    Key("network_alpha", "alpha", kind=float, own=1.0, read=alpha_of),
    Key("network_dropout", "lora_dropout", kind=float),
    Key("network_args", "lora_targets", "patterns; loraplus_lr_ratio has a widget of its own", kind=object,
        read=to.network_args),
    Key("network_weights", "start_from_lora", "its file, in ComfyUI's loras folder", read=lora_file),
    *drops("dim_from_weights", "set rank to that of the file"),
    Key("base_weights", "AddFrozenLora.lora", "beside the model, not merged into it", kind=object, read=merged),
    *also("base_weights_multiplier", "AddFrozenLora.strength"),
    Key("timestep_sampling", "timestep_sampling", own="sigma", read=to.sampling),
    Key("discrete_flow_shift", "discrete_flow_shift", kind=float, own=1.0, read=to.shift),
    Key("weighting_scheme", "loss_weighting", "logit_normal and mode are distributions, so they "
        "become timestep_sampling", read=to.weighting),
    Key("min_timestep", "min_timestep", kind=float, read=to.noise_range),
    Key("max_timestep", "max_timestep", kind=float, read=to.noise_range),
    Key("preserve_distribution_shape", "timestep_range", "cut, else rescaled", bool, read=lambda _value, _job: None),
    *drops("num_timestep_buckets", "each step draws independently, by its seed"),
    *drops("timestep_boundary", "each expert has the model's own: 875 for T2V, 900 for I2V"),
    Key("fp8_base", "Fp8Quantize.scheme", kind=bool, read=to.fp8),
    Key("fp8_scaled", "Fp8Quantize.scheme", kind=bool, read=to.fp8_scaled),
    Key("gradient_checkpointing_cpu_offload", "offload_activations", kind=bool,
        read=lambda value, _job: "on" if value else "auto"),
    Key("mixed_precision", "LoadWanModel.base_precision", "bf16 is usual; others are a format of the base weights",
        read=base_precision),
    Key("save_precision", "save_dtype", own="fp32", read=save_dtype),
    Key("sdpa", "LoadWanModel.attention", kind=bool, read=if_so("sdpa")),
    Key("flash_attn", "LoadWanModel.attention", kind=bool, read=if_so("flash_attn")),
    Key("flash3", "LoadWanModel.attention", kind=bool, read=if_so("flash_attn_3")),
    Key("xformers", "LoadWanModel.attention", kind=bool, read=if_so("xformers")),
    *drops("sage_attn", "it has no backward pass; sdpa is used"),
    Key("save_every_n_epochs", "save_every_n_steps", "as steps", kind=int, read=every),
    Key("save_last_n_steps", "keep_last_saves", "counted in saves", kind=int, read=to.keep),
    Key("save_last_n_epochs", "keep_last_saves", "counted in saves", kind=int),
    Key("sample_every_n_steps", "preview_every_n_steps", kind=int),
    Key("sample_every_n_epochs", "preview_every_n_steps", "as steps", kind=int, read=every),
    Key("sample_prompts", "preview.prompts", "the text of the file, where it is found", read=to.prompts),
    *drops("force_v2_1_time_embedding", "the time embedding is that of the model"),
    Key("num_processes", "SplitAcrossGPUs.mode", "above 1", kind=int, read=copies),
    *drops("clip block_swap_* use_pinned_memory_for_block_swap offload_inactive_dit split_attn compile_* dynamo_* "
           "cuda_* save_last_n_steps_state save_last_n_epochs_state save_state* resume resume_* sample_at_first "
           "one_frame fp8_t5 fp8_llm vae_* disable_numpy_memmap img_in_txt_in_offloading guidance_scale dit_* "
           "text_encoder1 text_encoder2 output_dir logging_dir log_* wandb_* huggingface_* async_upload no_metadata "
           "training_comment metadata_* max_data_loader_n_workers persistent_data_loader_workers ddp_* "
           "num_cpu_threads_per_process show_timesteps"),
)  # fmt: skip
FLAGS = {name for key in KEYS for name in key.names.split() if key.kind is bool}
"""flags without a value on a command line, of keys that become widgets"""
OF_MUSUBI = frozenset({"dit", "task", "network_module", "dataset_config", "network_dim"})
"""keys of musubi-tuner; every job has some of them"""


def _differ(task: str, file: str) -> bool:
    """Returns whether task and file name state different models. A file name may be less exact than the task."""
    if file == "T2V-14B":
        return False
    return task[:3] != file[:3] or (file != "I2V-14B-480P" and task.partition("B-")[0] != file.partition("B-")[0])


def _expert_of(said: Mapping[str, Any]) -> str:
    """Returns the trained expert by its file name, else by the noise levels."""
    if "dit_high_noise" in said:
        return "both"
    levels = [level_of(said.get(name), usual) for name, usual in (("min_timestep", 0.0), ("max_timestep", 1000.0))]
    return expert_shown(str(said.get("dit", "")), *levels)


def flat_settings(data: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the settings of a --config_file without its sections, which have no meaning."""
    flat: dict[str, Any] = {}
    for key, value in data.items():
        flat |= value if isinstance(value, dict) else {key: value}
    return {str(key).replace("-", "_"): value for key, value in flat.items()}


def read_musubi_job(data: Mapping[str, Any], source: str, unset: Mapping[str, str] | None = None) -> ForeignJob:
    """Returns the job of settings, flat or in sections. `unset`: key -> text of a value that the file does not
    define."""
    flat = flat_settings(data)
    if not OF_MUSUBI & (flat.keys() | (unset or {}).keys()):
        raise NotOfMusubiError(
            f"{source} holds no training settings of musubi-tuner. Choose the file or command line that names its dit."
        )
    becomes = {name for key in KEYS if key.at for name in key.names.split()}
    # The account shows the text of undefined values, also for dropped keys.
    flat |= {key: value for key, value in (unset or {}).items() if key not in becomes}
    unset = {key: value for key, value in (unset or {}).items() if key in becomes}
    job = ForeignJob("musubi-tuner", source, ledger_of(source, flat), unset=unset)
    job.expert = _expert_of({**flat, **job.unset})
    take_over(KEYS, job, job.ledger)
    task, file = (kind_of(str(flat.get(key, ""))) for key in ("task", "dit"))
    if task is not None and file is not None and _differ(task.name, file.name):
        differ = "task {task} and the file name of dit state different models, {one} and {other}"
        job.hint(differ, task=flat["task"], one=task.name, other=file.name)
    high = job.values.get("LoadWanModel", {}).pop("high_noise_model", "")
    if high:
        job.put("LoadWanModel.low_noise_model", job.values["LoadWanModel"].get("diffusion_model", "none"))
        job.put("LoadWanModel.diffusion_model", high)
        job.mend(
            "musubi-tuner trains one LoRA for both experts; here each has its own, in one run: see expert_order and "
            "high_noise_share of Wan Train Settings"
        )
    if not {"dit", "task"} & (flat.keys() | job.unset.keys()):
        job.put("LoadWanModel.diffusion_model", UNKNOWN_MODEL)
        job.hint("the file does not say which Wan model is trained; choose it in Load Wan Model")
    if not {"sample_every_n_steps", "sample_every_n_epochs"} & flat.keys():
        job.put("preview_every_n_steps", 0)
        job.hint("no previews are requested; set preview_every_n_steps to see clips during training")
    return job
