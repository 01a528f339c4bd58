// @ts-check
/**
 * Whole sentences of the account of another trainer's settings, as wan_core/migrate says them, and what it says of a setting
 * before an arrow. Why a single setting is another one here: reason_sentences.mjs. Pure.
 */

import { t } from "../page/words.mjs";

/** @typedef {(values: Record<string, string>) => string} Says */

/** @type {Says[]} */
export const HEADS = [(v) => t("{key} is not stated: {value}, {trainer}'s own", v)];

/** @type {Says[]} */
export const SENTENCES = [
  (v) => t("which Wan model is trained does not show; choose it in Load Wan Model", v),
  (v) => t("{key} is {value}, which nothing in the file sets: choose it in the nodes", v),
  (v) => t("{key} -> skipped: nothing in the file says what it stands for", v),
  (v) => t("{key} -> skipped: nothing in the file says which expert is trained", v),
  (v) => t("which expert is trained does not show: choose its file in Load Wan Model", v),
  (v) =>
    t(
      "which expert {file} is does not show: choose its file in Load Wan Model, and set expert of Train Wan LoRA",
      v,
    ),
  (v) => t("{file} holds other weights than the original: choose their file in Load Wan Model", v),
  (v) => t("{n} commands train, and {name} is taken: import the others from files of their own", v),
  (v) =>
    t(
      "two commands, one for each expert -> one run of both, each with its own rate, rank and steps",
      v,
    ),
  (v) =>
    t("one expert is trained by epochs and the other by steps: set steps and high_noise_share", v),
  (v) =>
    t(
      "network_alpha {alpha} of low noise -> {to}: alpha follows the rank where both are trained",
      v,
    ),
  (v) =>
    t(
      "min_timestep {min}, max_timestep {max} of {expert} noise -> skipped: each expert is trained on all of its own noise levels where both are trained",
      v,
    ),
  (v) =>
    t(
      "low noise: {values} -> skipped: both experts share it, as the high noise command says it",
      v,
    ),
  (v) => t("low noise: {key} -> skipped: not known here", v),
  (v) => t("{file} was not found, so its settings are not here; import it with that file", v),
  (v) => t("{words} stands behind no option that the command has: look what it is", v),
  (v) => t("task {task} and the name of dit say different models, {one} and {other}", v),
  (v) =>
    t(
      "the model files are {file} and {low}, {vae} and {encoder}; choose yours in the nodes where they are called otherwise",
      v,
    ),
  (v) =>
    t(
      "the model files are {files}, {vae} and {encoder}; choose yours in the nodes where they are called otherwise",
      v,
    ),
  (v) => t("its clips are not counted: {reason}", v),
  (v) =>
    t(
      "on the command line, --look-in names the folder that they lie in, --clips how many an epoch has",
      v,
    ),
  (v) => t("{file} was not found, so its prompts are not here; write them into prompts", v),
  (v) => t("{file}: prompts in TOML are not read; write them into prompts, one a line", v),
  (v) => t("<token> stands in prompts for a word of yours: write the word", v),
  (v) =>
    t("{file} was not found: adapter is LoKr, LyCORIS's usual kind; set lokr_factor and rank", v),
  (v) =>
    t(
      "alpha {alpha} of rank {rank}: the LoRA is scaled by {share}, as in {trainer}, and learns slowly; alpha 0 is the rank",
      v,
    ),
  (v) => t("each expert may need its own: look at the two LoRAs of Add Frozen LoRA", v),
  (v) => t("put the file of {file} among your LoRAs, and add it by Add Frozen LoRA", v),
  (v) =>
    t(
      "optimizer {name} is given no {arguments}: its own arguments may have other names here. See optimizer_args of Wan Train Settings",
      v,
    ),
  (v) =>
    t(
      "{value}: 4-bit and smaller bases are trained here from GGUF files (Q4_K, Q5_K, Q6_K); choose one in Load Wan Model, and remove Fp8 / Int8 Quantize",
      v,
    ),
  (v) => t("no previews are asked for; set preview_every_n_steps to see clips while it trains", v),
  (v) =>
    t(
      "diffusion-pipe makes no previews; set preview_every_n_steps to see clips while it trains",
      v,
    ),
  (v) => t("{n} more processes of the file are not read; import one at a time", v),
  (v) => t("network_kwargs {name} {value} has no counterpart: see lora_targets", v),
  (v) =>
    t(
      "warm-up of {n} steps in a run of {steps} -> {to}: the learning rate would never have been reached",
      v,
    ),
  (v) => t("lr_scheduler -> constant: schedule_free replaces the schedule", v),
  (v) => t("ema_decay -> 0: schedule_free keeps a mean of its own", v),
  (v) => t("loraplus_lr_ratio -> 1: Prodigy has one learning rate for all weights", v),
  (v) =>
    t("gradient_checkpointing -> true: blocks that travel need it, and it changes no number", v),
  (v) => t("previews of {n} frames -> {to} (Wan needs 4n+1)", v),
  (v) => t("previews of {side} {n} -> {to} (a multiple of 16)", v),
  (v) =>
    t("learning_rate {rate} -> 1: Prodigy finds the rate itself, and this is a factor of it", v),
  (v) =>
    t(
      "musubi-tuner trains one LoRA for both experts; here each has its own, in one run: see expert_order and high_noise_share of Wan Train Settings",
      v,
    ),
  (v) => t("model_type {type} trains the whole model; here it is a LoRA", v),
  (v) =>
    t(
      "no [adapter] is stated, so diffusion-pipe would train the whole model; here it is a LoRA",
      v,
    ),
  (v) => t("batch_size of {file} -> batch_size {n}", v),
  (v) => t("caption_dropout_rate of the datasets -> caption_dropout {rate}, for all of them", v),
  (v) => t("lycoris_config: algo {algo} -> adapter, and {keys}", v),
  (v) => t("lycoris_config: {keys} -> skipped: lora_targets and rank_patterns name layers", v),
  (v) => t("{key} alone -> that expert's file", v),
  (v) => t("{key}: empty -> Wan's own negative prompt", v),
  (v) => t("{key} -> lora_targets, which names the layers to train", v),
  (v) => t("{key} -> lora_targets, by the original names", v),
  (v) => t("{key} -> Add Frozen LoRA, strength {strength}: it acts, and is not trained", v),
  (v) => t("{key} -> skipped: it names no file", v),
  (v) => t("{key} -> skipped: {n} LoRAs are taken over", v),
  (v) => t("{file}: {suffixes} behind a prompt -> skipped: they are not read here", v),
  (v) =>
    t(
      "{key} -> max_train_epochs {n}, about {steps} steps ({clips} clips an epoch, {batch} a step)",
      v,
    ),
  (v) => t("{file}: {n} prompts -> prompts", v),
];
