// @ts-check
/** The clips of a run for the player: channels, steps and comparisons. Pure. */

import { t } from "../page/words.mjs";
import { short } from "./format.mjs";

/**
 * @typedef {import("../page/routes.mjs").Sample} Sample
 * @typedef {{ step: number, saved: boolean, evalLoss: number | null, clips: Map<string, Sample> }} Stop
 *   a position of the slider; `clips` by channel
 * @typedef {{ key: string, base: string, title: string }} Channel
 *   clips that differ only in their step: one prompt of the previews, or one prompt, seed and strength of a rendering
 *   by Validate Video; `base`: the channel of the clips at step 0, shown for comparison
 */

/**
 * The channels of the player, previews of training first.
 * @param {Sample[]} samples in the server's order
 * @returns {Channel[]}
 */
export function channels(samples) {
  const renderings = [...new Set(samples.map(renderingOf).filter(Boolean))];
  /** @type {Map<string, Channel>} */
  const found = new Map();
  for (const sample of samples) {
    const rendering = renderings.indexOf(renderingOf(sample));
    if (rendering >= 0 && isBase(sample)) continue;
    const key = keyOf(sample);
    found.set(key, { key, base: baseOf(sample), title: titleOf(sample, rendering + 1) });
  }
  const all = [...found.values()];
  return [
    ...all.filter(({ base }) => !base.includes("/")),
    ...all.filter(({ base }) => base.includes("/")),
  ];
}

/**
 * Positions of the slider: all saved steps, and steps with a clip.
 * @param {Sample[]} samples
 * @param {{ step: number, eval_loss?: number | null }[]} saves
 * @returns {Stop[]} in order
 */
export function stops(samples, saves) {
  /** @type {Map<number, Stop>} */
  const found = new Map();
  const at = (/** @type {number} */ step) => {
    const stop = found.get(step) ?? { step, saved: false, evalLoss: null, clips: new Map() };
    found.set(step, stop);
    return stop;
  };
  for (const { step, eval_loss } of saves)
    Object.assign(at(step), { saved: true, evalLoss: eval_loss ?? null });
  for (const sample of samples) at(sample.step).clips.set(keyOf(sample), sample);
  return [...found.values()].sort((a, b) => a.step - b.step);
}

/**
 * The last position with a clip of a channel, else the last position.
 * @param {Stop[]} stops
 * @param {string} key of the channel
 */
export function lastWithClip(stops, key) {
  const found = stops.findLastIndex((stop) => stop.clips.has(key));
  return found < 0 ? Math.max(0, stops.length - 1) : found;
}

/**
 * The position of the slider after an update: the chosen step if it exists, else the newest clip. A step is saved before its
 * clip is rendered, so the last position may have no clip.
 * @param {Stop[]} stops
 * @param {string} key of the channel
 * @param {number | undefined} chosen step that the user chose
 */
export function position(stops, key, chosen) {
  const kept = stops.findIndex((stop) => stop.step === chosen);
  return kept < 0 ? lastWithClip(stops, key) : kept;
}

/**
 * The caption of a clip.
 * @param {Stop} stop
 * @param {string} key of the channel it belongs to
 * @param {number | null} best the suggested step
 * @param {string} judged names of the evaluated experts; empty for a single model
 */
export function caption(stop, key, best = null, judged = "") {
  if (stop.step === 0) return key.includes("/") ? t("base model") : t("before training");
  const words = [t("step {step}", { step: stop.step })];
  if (stop.step === best) words[0] = `★ ${words[0]}`;
  if (stop.evalLoss !== null)
    words.push(t("eval {loss}", { loss: short(stop.evalLoss) }) + (judged && ` (${judged})`));
  if (!stop.saved) words.push(t("not saved"));
  if (!stop.clips.has(key)) words.push(t("no preview"));
  return words.join(" · ");
}

/** @param {Sample} sample @returns {string} empty for a preview of training */
function renderingOf(sample) {
  return String(sample.rendering ?? "");
}

/** @param {Sample} sample @returns {boolean} whether the LoRA was off */
function isBase(sample) {
  return sample.step === 0 && typeof sample.strength !== "number";
}

/** @param {Sample} sample */
function baseOf(sample) {
  const rendering = renderingOf(sample);
  const prompt = Number(sample.prompt ?? 0);
  const asked = sample.seed ? `${prompt},${sample.seed}` : `${prompt}`;
  return rendering ? `${rendering}/${asked}` : asked;
}

/** @param {Sample} sample */
function keyOf(sample) {
  return typeof sample.strength === "number"
    ? `${baseOf(sample)}/${sample.strength}`
    : baseOf(sample);
}

/** @param {Sample} sample @param {number} rendering its number, 0 for a preview */
function titleOf(sample, rendering) {
  const number = t("prompt {n}", { n: Number(sample.prompt ?? 0) + 1 });
  const prompt = [number, sample.name].filter(Boolean).join(": ");
  if (!rendering) return prompt;
  const strength = t("strength {value}", { value: short(sample.strength) });
  const seed = sample.seed ? t("seed {seed}", { seed: sample.seed }) : "";
  return [t("validation {n}", { n: rendering }), prompt, seed, strength]
    .filter(Boolean)
    .join(" · ");
}
