// @ts-check
/** Translated names of states, stages and experts; an unknown one is shown untranslated. */

import { t } from "../page/words.mjs";

/** Pattern of a LoRA name that ends with its step. */
const OF_A_STEP = /_\d{6}\.safetensors$/;

/**
 * The translated state of a run.
 * @param {string} state from the server
 */
export function stateName(state) {
  switch (state) {
    case "running":
      return t("running");
    case "done":
      return t("done");
    case "stopped":
      return t("stopped");
    case "failed":
      return t("failed");
    default:
      return state;
  }
}

/**
 * The translated name of a stage, for its chip.
 * @param {string} chip a key of STAGES
 */
export function stageName(chip) {
  switch (chip) {
    case "Load":
      return t("Load");
    case "Cache":
      return t("Cache");
    case "Train":
      return t("Train");
    case "Validate":
      return t("Validate");
    case "Save":
      return t("Save");
    default:
      return chip;
  }
}

/**
 * The translated name of an expert; empty for a model without experts.
 * @param {string} expert from metrics or settings
 */
export function expertName(expert) {
  switch (expert) {
    case "auto":
    case "single":
      return "";
    case "high":
    case "high_noise":
      return t("high noise");
    case "low":
    case "low_noise":
      return t("low noise");
    case "both":
      return t("both");
    default:
      return expert;
  }
}

/**
 * Names the experts of a saved step's evaluation; empty for a run of one model.
 * @param {string[]} experts the evaluated ones
 */
export function judgedText(experts) {
  if (experts.length > 1) return t("mean of both experts");
  const expert = expertName(experts[0] ?? "");
  return expert && t("{expert} expert", { expert });
}

/** The newest LoRA's name in the loader lists; a pair has a line for each expert. @param {{ lora_names?: string[] } | null} run */
export function loraNames(run) {
  const names = run?.lora_names ?? [];
  const newest = names.filter((name) => !OF_A_STEP.test(name));
  return (newest.length ? newest : names.slice(0, 1)).join("\n");
}
