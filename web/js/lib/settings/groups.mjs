// @ts-check
/** Which settings of Wan Train Settings belong together, and which of them its node shows. Pure. */

import { t } from "../page/words.mjs";

/**
 * @typedef {{ name: string, value: unknown, usual: unknown, text: string, linked: boolean }} Setting
 *   `usual` is its default, `text` what a search looks in, `linked` whether its value comes from another node
 * @typedef {{ open: Set<string>, query: string }} View
 */

/** Shown always: what people turn first. */
const FIRST = [
  ...["batch_size", "gradient_accumulation_steps", "optimizer", "lr_scheduler"],
  ...["lr_warmup_steps", "timestep_sampling"],
];

/** What people look for here and find in another node, by the ids of the nodes. @type {Record<string, string[]>} */
export const ELSEWHERE = {
  TrainLoRA: [
    ...["learning_rate", "steps", "rank", "alpha", "seed", "save_every_n_steps", "run_name"],
    ...["preview_every_n_steps", "blocks_to_swap", "start_from_lora", "expert"],
  ],
  LoadWanModel: ["attention", "base_precision"],
  WanPreviewSettings: ["sampler_name", "cfg", "prompts", "negative_prompt"],
  WanDatasetSettings: ["held_out_ratio"],
  WanVideoDataset: ["num_repeats"],
};

/** A setting that no group names is in the last one. @type {Record<string, string[]>} */
export const GROUPS = {
  batch: [
    ...["batch_size", "gradient_accumulation_steps", "global_batch_size", "max_train_epochs"],
    ...["max_train_hours", "bucket_sampling", "caption_dropout"],
    ...["first_frame_conditioning_p", "max_bad_steps"],
  ],
  optimizer: [
    ...["optimizer", "optimizer_class", "optimizer_args", "weight_decay", "max_grad_norm"],
    ...["adam_beta1", "adam_beta2", "adam_epsilon", "loraplus_lr_ratio", "ema_decay"],
  ],
  schedule: [
    ...["lr_scheduler", "lr_warmup_steps", "lr_warmup_share", "lr_scheduler_num_cycles"],
    ...["lr_scheduler_power", "lr_scheduler_min_lr_ratio", "lr_decay_share", "lr_scaling"],
    "lr_patterns",
  ],
  objective: [
    ...["timestep_sampling", "discrete_flow_shift", "sigmoid_scale", "logit_mean", "logit_std"],
    ...["mode_scale", "min_timestep", "max_timestep", "loss_type", "huber_delta", "loss_weighting"],
    ...["timestep_range", "timestep_list", "timestep_strata", "tread_routes"],
    "loss_scaling",
  ],
  memory: [
    ...["memory", "gradient_checkpointing", "checkpointing_policy", "checkpointing_names_saved"],
    ...["checkpointing_names_offloaded", "unchecked_blocks", "offload_activations", "compile"],
    "offload_optimizer",
  ],
  pair: [
    ...["high_noise_share", "expert_order", "expert_turn_steps", "low_noise_learning_rate"],
    "low_noise_rank",
  ],
  evaluation: [
    ...["eval_items", "eval_timesteps", "eval_every_n_steps", "save_dtype", "keep_last_saves"],
  ],
  more: [],
};

/** @param {string} group @returns {string} what its button says */
export function groupTitle(group) {
  switch (group) {
    case "batch":
      return t("Batches");
    case "optimizer":
      return t("Optimizer");
    case "schedule":
      return t("Learning rate");
    case "objective":
      return t("Noise and loss");
    case "memory":
      return t("Memory");
    case "pair":
      return t("Both experts");
    case "evaluation":
      return t("Evaluation, saves");
    default:
      return t("LoRA and more");
  }
}

/**
 * Which node has a widget of that name, or of one that begins so.
 * @param {string} query what is looked for
 * @returns {{ name: string, kind: string } | null}
 */
export function elsewhere(query) {
  const word = query.trim().toLowerCase().replace(/\s+/g, "_");
  if (word.length < 2) return null;
  for (const [kind, names] of Object.entries(ELSEWHERE)) {
    const name = names.find((one) => one.startsWith(word));
    if (name) return { name, kind };
  }
  return null;
}

/** @param {string} name of a setting @returns {string} its group */
export function groupOf(name) {
  return Object.keys(GROUPS).find((group) => GROUPS[group].includes(name)) ?? "more";
}

/** @param {Setting} setting */
export function isChanged({ value, usual }) {
  return value !== usual;
}

/**
 * Whether the node shows a setting. What was changed or is linked is never out of sight, but for a search.
 * @param {Setting} setting
 * @param {View} view
 */
export function isShown(setting, { open, query }) {
  const words = query.toLowerCase().split(/\s+/).filter(Boolean);
  const text = `${setting.name} ${setting.text}`.toLowerCase();
  if (words.length) return setting.linked || words.every((word) => text.includes(word));
  const { name, linked } = setting;
  return FIRST.includes(name) || linked || isChanged(setting) || open.has(groupOf(name));
}
