"""Training settings of diffusion-pipe: the TOML file of diffusion-pipe's train.py (examples/main_example.toml)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..errors import ConfigError
from ..words import filled
from .foreign_job import ForeignJob
from .keys import (
    Changed,
    Key,
    Without,
    also,
    dataset,
    drops,
    every,
    ledger_of,
    same,
    shown,
    take_over,
    take_over_tables,
)
from .learning import adapter, at_least_0, last_folder, optimizer, quantized, rank_of, save_dtype, scheduler
from .models import expert_shown, fused, level_of, lora_file, model_file, model_unless_set, text_encoder

_EVAL = "clips are held out by held_out_ratio of Wan Dataset Settings"


def _batch(value: Any, job: ForeignJob) -> Any:
    """Reads a batch size, or a list of (resolution, batch size)."""
    if isinstance(value, int):
        return value
    numbers = [pair[1] for pair in value if isinstance(pair, list) and len(pair) == 2]
    if not numbers or not all(isinstance(number, int) for number in numbers):
        raise ConfigError(f"{job.source}: micro_batch_size_per_gpu is {shown(value)!r}; it must be a whole number.")
    return Changed(min(numbers), "one batch size for all resolutions: the smallest")


def _stages(value: int, job: ForeignJob) -> Any:
    if value < 2:
        return None
    return Changed("split blocks", filled("over {n} GPUs; set devices if this machine has more", n=value))


def _every_example(value: int, job: ForeignJob) -> Any:
    batch = max(1, job.of("batch_size") * job.of("gradient_accumulation_steps"))
    return Changed(max(1, value // batch), filled("a step trains on {n} clips", n=batch))


def _epochs(value: int, job: ForeignJob) -> Any:
    if "max_steps" in job.ledger:
        return Without("max_steps takes precedence")
    job.epochs = ("epochs", value)
    return None


def _constant(value: float, job: ForeignJob) -> Any:
    job.put("lr_scheduler", "constant")
    return Changed(value, "with lr_scheduler constant")


def _checkpointing(value: Any, job: ForeignJob) -> Any:
    if value == "unsloth":
        job.put("offload_activations", "on")
        return Changed(True, "with offload_activations on, like unsloth")
    return bool(value)


def _huber(value: float, job: ForeignJob) -> Any:
    job.put("huber_delta", value)
    return Changed(
        "pseudo_huber",
        filled("with huber_delta {delta}; the loss is that times {times}", delta=f"{value:g}", times=f"{value:g}"),
    )


def _clip_mode(value: str, _job: ForeignJob) -> Any:
    return {
        "single_beginning": "head",
        "multiple_overlapping": Changed("chunk", "parts are consecutive and do not overlap"),
    }.get(value, Changed("head", "clips are cut from their start"))


def _type(value: str, job: ForeignJob) -> None:
    if not value.strip():
        raise ConfigError(f"{job.source}: the type of [model] is empty. Write wan there.")
    if "wan" not in value.lower():
        raise ConfigError(f"{job.source} trains {value[:40]!r}. Only Wan models are trained here.")


def _timesteps(value: str, job: ForeignJob) -> Any:
    model: dict[str, Any] = job.ledger.get("model", dict, {})
    by_size, shift = bool(model.get("flux_shift")), model.get("shift")
    if value == "uniform":
        if not shift:
            job.put("discrete_flow_shift", 1.0)
        return "uniform"
    ours = "shift" if shift else "flux_shift" if by_size else "sigmoid"
    return Changed(ours, "the same draws")


def _edge(value: float, _job: ForeignJob) -> Any:
    return Changed(value * 1000, "noise levels go from 0 to 1000")


def _optimizer(value: str, job: ForeignJob) -> Any:
    section: dict[str, Any] = job.ledger.get("optimizer", dict, {})
    given = {name: said for name, said in section.items() if name not in ("type", "lr", "gradient_release")}
    given.pop("beta2_half_life", None)
    return optimizer(value, given, job, library="pytorch_optimizer")


_TOP = (
    Key("output_dir", "run_name", "the last folder of it", read=last_folder),
    Key("dataset", "WanDatasetFromFile.other_file", "the datasets, read as they are", read=dataset),
    *same(int, "gradient_accumulation_steps blocks_to_swap save_every_n_steps eval_every_n_steps"),
    Key("epochs", "max_train_epochs", kind=int, read=_epochs),
    Key("max_steps", "steps", "leads over epochs", kind=int),
    Key("micro_batch_size_per_gpu", "batch_size", kind=object, read=_batch),
    *drops("image_micro_batch_size_per_gpu", "one batch size for stills and clips"),
    Key("pipeline_stages", "SplitAcrossGPUs.mode", "above 1", kind=int, read=_stages),
    Key("partition_split", "SplitAcrossGPUs.split_at", kind=list, read=lambda value, _job: ", ".join(map(str, value))),
    Key("gradient_clipping", "max_grad_norm", kind=float, own=1.0),
    Key("warmup_steps", "lr_warmup_steps", kind=int),
    Key("lr_scheduler", "lr_scheduler", own="constant", read=scheduler),
    Key("pseudo_huber_c", "loss_type", "with huber_delta", kind=float, read=_huber),
    Key("activation_checkpointing", "gradient_checkpointing", "unsloth: offload_activations on too", kind=object,
        read=_checkpointing),
    Key("compile", "compile", kind=bool),
    Key("uncond_fraction", "caption_dropout", kind=float),
    Key("save_dtype", "save_dtype", read=save_dtype),
    Key("save_every_n_epochs", "save_every_n_steps", "as steps", kind=float, read=every),
    Key("save_every_n_examples", "save_every_n_steps", "as steps", kind=int, read=_every_example),
    Key("eval_every_n_epochs", "eval_every_n_steps", "as steps", kind=float, read=every),
    Key("eval_every_n_examples", "eval_every_n_steps", "as steps", kind=int, read=_every_example),
    Key("checkpoint_every_n_minutes", "save_every_n_minutes", "with the LoRA", kind=float),
    *drops("eval_datasets", _EVAL),
    Key("video_clip_mode", "WanDatasetSettings.frame_extraction", "multiple_overlapping: chunk", read=_clip_mode),
    *drops("partition_method disable_block_swap_for_eval reentrant_activation_checkpointing "
           "checkpoint_every_n_epochs eval_before_first_step eval_micro_batch_size_per_gpu "
           "image_eval_micro_batch_size_per_gpu eval_gradient_accumulation_steps caching_batch_size map_num_proc "
           "steps_per_print logging_steps x_axis_examples resume_from_checkpoint"),
)  # fmt: skip
_MODEL = (
    Key("type", "", "a Wan model", read=_type),
    Key("transformer_path", "LoadWanModel.diffusion_model", "its file", read=model_file),
    Key("ckpt_path", "LoadWanModel.diffusion_model", "its file, where transformer_path says none",
        read=model_unless_set),
    Key("llm_path", "CLIPLoader.clip_name", "the file that ComfyUI has", read=text_encoder),
    *drops("dtype", "the precision policy computes in bf16"),
    Key("transformer_dtype", "Fp8Quantize.scheme", "float8", read=quantized),
    Key("timestep_sample_method", "timestep_sampling", own="logit_normal", read=_timesteps),
    Key("shift", "discrete_flow_shift", kind=float),
    *also("flux_shift", "timestep_sampling"),
    Key("sigmoid_scale", "sigmoid_scale", kind=float),
    Key("min_t", "min_timestep", "times 1000", kind=float, read=_edge),
    Key("max_t", "max_timestep", "times 1000", kind=float, read=_edge),
    *drops("text_encoder_fp8 cache_text_embeddings guidance"),
)  # fmt: skip
_ADAPTER = (
    Key("type", "adapter", "LoRA, LoKr", read=adapter),
    Key("rank", "rank", kind=int, read=rank_of),
    *drops("alpha", "diffusion-pipe always takes the rank, as alpha 0 does here"),
    *drops("dtype", "the LoRA is trained in float32"),
    Key("dropout", "lora_dropout", kind=float),
    Key("rank_dropout", "rank_dropout", kind=float),
    Key("decompose_factor", "lokr_factor", "-1 is 0", kind=int, read=at_least_0),
    Key("init_from_existing", "start_from_lora", "its file, in ComfyUI's loras folder", read=lora_file),
    Key("fuse_adapters", "AddFrozenLora.lora", "path and weight of each; in front of the trained one, not merged",
        kind=object, read=fused),
    *drops("exclude_modules", "name the layers to train in lora_targets"),
)  # fmt: skip
_OPTIMIZER = (
    Key("lr", "learning_rate", kind=float),
    Key("type", "optimizer", "torchao's and pytorch-optimizer's classes", own="adamw_optimi", read=_optimizer),
    *also("betas", "adam_beta1"),
    *also("weight_decay", "weight_decay"),
    *also("eps", "adam_epsilon"),
    *drops("beta2_half_life", "set adam_beta2"),
    *drops("stabilize gradient_release"),
)  # fmt: skip
_MONITORING = drops("enable_wandb wandb_api_key wandb_tracker_name wandb_run_name")
TABLES: Mapping[str, tuple[Key, ...]] = {
    "": _TOP,
    "model": _MODEL,
    "adapter": _ADAPTER,
    "optimizer": _OPTIMIZER,
    "monitoring": _MONITORING,
}
"""table of the file -> keys of the table"""
_LAST = (Key("force_constant_lr", "learning_rate", "with lr_scheduler constant", kind=float, read=_constant),)


def read_diffusion_pipe_job(data: Mapping[str, Any], source: str) -> ForeignJob:
    job = ForeignJob("diffusion-pipe", source, ledger_of(source, data))
    model: dict[str, Any] = job.ledger.get("model", dict, {})
    levels = [1000 * level_of(model.get(key), usual) for key, usual in (("min_t", 0.0), ("max_t", 1.0))]
    job.expert = expert_shown(str(model.get("transformer_path") or model.get("ckpt_path") or ""), *levels)
    more = sorted(job.ledger.get("optimizer", dict, {}).keys() - {key.names for key in _OPTIMIZER})
    take_over_tables({**TABLES, "optimizer": (*_OPTIMIZER, *also(" ".join(more), "optimizer_args"))}, job)
    take_over(_LAST, job, job.ledger)
    if "adapter" not in data:
        job.mend("no [adapter] is set, so diffusion-pipe would train the full model; here it is a LoRA")
    job.put("preview_every_n_steps", 0)
    job.hint("diffusion-pipe makes no previews; set preview_every_n_steps to see clips during training")
    return job
