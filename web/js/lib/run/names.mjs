// @ts-check
/** Words for states, stages and experts of the server; an unknown one is shown as it is. */

import { t } from "../page/words.mjs";

/** The LoRA of a saved step, which is named after it. */
const OF_A_STEP = /_\d{6}\.safetensors$/;

/**
 * The state of a run as people read it.
 * @param {string} state as the server says it
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
 * A stage as its chip shows it.
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
 * An expert as people call it; a model without experts has no name.
 * @param {string} expert as metrics and settings say it
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
 * Of which experts an evaluation is that stands for a saved step; empty in a run of one model.
 * @param {string[]} experts that were measured
 */
export function judgedText(experts) {
  if (experts.length > 1) return t("mean of both experts");
  const expert = expertName(experts[0] ?? "");
  return expert && t("{expert} expert", { expert });
}

/** The newest LoRA as loader lists spell it; of both experts a line each. @param {{ lora_names?: string[] } | null} run */
export function loraNames(run) {
  const names = run?.lora_names ?? [];
  const newest = names.filter((name) => !OF_A_STEP.test(name));
  return (newest.length ? newest : names.slice(0, 1)).join("\n");
}
