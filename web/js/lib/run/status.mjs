// @ts-check
/** Texts of the status line, and when to refresh the loader lists. Pure. */

import { rows } from "../cards/clips.mjs";
import { counted, t } from "../page/words.mjs";
import { stateText } from "./facts.mjs";

/**
 * A `wan_trainer.status` message. Facts stay in later messages of the same node until they change. `graph`: id of the queued
 * workflow, or empty; `run`: the run that the node trains; `of_run`: a run that it uses otherwise; `about`: facts of this
 * text only.
 * @typedef {{ node: string, text: string, about?: import("./line.mjs").About | null, graph?: string, prompt_id?: string, stage?: string | null, state?: string,
 *   run?: string, of_run?: string, saved_step?: number, sample?: string, metrics_lines?: number }} Status
 */

/** Names of a LoRA and its model in the loader lists. @typedef {{ lora: string, model: string, strength?: number, trigger?: string }} Use */

/**
 * The ui output `wan_run` of TrainLoRA.
 * @typedef {{ status: string, step: number, steps: number, lora_name?: string, reason?: string,
 *   use?: Use[], template?: string, eval_loss_first?: number | null, eval_loss_last?: number | null, eval_held_out?: boolean | null }} RunSummary
 */

/**
 * The line of an ended run: step, change of the evaluation loss, name of the LoRA.
 * @param {RunSummary} run
 * @returns {string}
 */
export function summaryText(run) {
  const { eval_loss_first: first, eval_loss_last: last } = run;
  const measured = Number.isFinite(first) && Number.isFinite(last);
  const losses = { first: Number(first).toFixed(4), last: Number(last).toFixed(4) };
  const said =
    run.eval_held_out === false
      ? t("evaluation loss {first} → {last} on training clips", losses)
      : t("evaluation loss {first} → {last}", losses);
  const ofBoth = (run.use ?? []).filter(({ strength }) => strength === undefined).length > 1;
  const whose = ofBoth ? ` (${t("mean of both experts")})` : "";
  const loss = measured ? `, ${said}${whose}` : "";
  const use = closingLines(run);
  const names = use.length ? use : [run.lora_name ?? ""].filter(Boolean);
  return [`${stateText({ ...run, state: run.status })}${loss}`, ...names].join("\n");
}

/**
 * The state of a run from its files; for an ended run, also how to use its LoRAs.
 * @param {import("../page/routes.mjs").Detail} run
 * @returns {string}
 */
export function standingText(run) {
  const ended = !run.live && (run.state === "done" || run.state === "stopped");
  return [stateText(run), ...(ended ? closingLines(run) : [])].join("\n");
}

/**
 * The model and strength of each LoRA, and the template of a graph for it.
 * @param {{ use?: Use[], template?: string }} run
 * @returns {string[]}
 */
function closingLines({ use = [], template }) {
  const lines = use.map(({ lora, model, strength }) =>
    strength === undefined
      ? t("{lora}: on {model}, at strength 1.0", { lora, model })
      : t("{lora}: on {model}, at strength {strength}, in addition", { lora, model, strength }),
  );
  const words = use.at(-1)?.trigger;
  if (words) lines.push(t("Write {words} into the prompt.", { words }));
  if (!use.length || !template) return lines;
  const models = new Set(use.map(({ model }) => model)).size;
  const where = counted(
    models,
    "In ComfyUI's template {template}, with LoraLoaderModelOnly after Load Diffusion Model:",
    "In ComfyUI's template {template}, with a LoraLoaderModelOnly after each Load Diffusion Model:",
    { template },
  );
  const exact = t(
    "Or use Apply Wan LoRA, which applies exactly what was trained, on quantized models too.",
  );
  return [where, ...lines, exact];
}

/**
 * The line of a node with an output; empty without text.
 * @param {any} output
 * @returns {string}
 */
export function outputText(output) {
  if (output?.wan_run?.[0]) return summaryText(output.wan_run.at(-1));
  const clips = output?.wan_clips?.[0]
    ? rows(output.wan_clips[0]).flatMap((row) => row.clips).length
    : 0;
  if (!clips) return "";
  return counted(clips, "done: 1 clip", "done: {n} clips");
}

/** Detects each save and each end of a run, once: the lists of LoRA loaders are then outdated. */
export class SaveWatch {
  constructor() {
    /** @type {Map<string, string>} */
    this.seen = new Map();
  }

  /**
   * @param {Status} status
   * @returns {boolean}
   */
  isNew(status) {
    const ended = status.state === "done" || status.state === "stopped";
    if (status.saved_step === undefined && !ended) return false;
    const key = JSON.stringify([status.run, status.saved_step, ended && status.state]);
    if (this.seen.get(status.node) === key) return false;
    this.seen.set(status.node, key);
    return true;
  }
}

/**
 * Source of the line's text: none; a run's summary; an error of reading it; a message of a training run; its last
 * message, which has more than the summary; or the result of a button.
 * @typedef {"" | "summary" | "error" | "progress" | "end" | "said"} Origin
 */

const ENDED = ["done", "stopped", "failed"];

/** @param {string | undefined} state of a run, as messages and summaries say it */
export function hasEnded(state) {
  return ENDED.includes(state ?? "");
}

/**
 * Whether the summary replaces the line. Messages of a live run are newer than its summary; an ended run, or one trained
 * elsewhere, sends no messages.
 * @param {Origin} origin of the line
 * @param {{ live: boolean, isNews: boolean }} summary `live`: this server trains the run; `isNews`: its text has changed
 */
export function isOld(origin, { live, isNews }) {
  if (origin === "progress") return !live;
  if (origin === "said") return !live && isNews;
  return origin !== "end";
}
