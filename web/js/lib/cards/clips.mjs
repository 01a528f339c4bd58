// @ts-check
/** Labels of clips on the card of Validate Video. Pure. */

import { t } from "../page/words.mjs";
import { short } from "../run/format.mjs";
import { records, text } from "./lists.mjs";

/**
 * The output `wan_clips` of ValidateVideo: a row per prompt and seed; in a row a clip of the base model (without step) and
 * of every saved step and strength, from the same noise. While it renders, it has the clips rendered so far.
 * @typedef {{ step?: unknown, lora?: unknown, strength?: unknown, file?: unknown, still?: unknown }} Clip
 * @typedef {{ width?: unknown, height?: unknown, rows?: { prompt?: unknown, seed?: unknown, clips?: Clip[] }[] }} Clips
 * @typedef {{ label: string, file: unknown, still: unknown }} Shown
 */

/**
 * The rows to draw; several rows have titles.
 * @param {Clips} facts
 * @returns {{ title: string, clips: Shown[] }[]}
 */
export function rows(facts) {
  const all = records(facts.rows);
  const prompts = [...new Set(all.map((row) => text(row.prompt)))];
  return all.map((row) => {
    const prompt = text(row.prompt);
    const number = t("prompt {n}", { n: prompts.indexOf(prompt) + 1 });
    const seed = Number.isFinite(row.seed) ? t("seed {seed}", { seed: String(row.seed) }) : "";
    const several = [prompts.length > 1 ? number : "", seed].filter(Boolean).join(", ");
    const clips = records(row.clips).map((clip) => ({
      label: label(clip),
      file: clip.file,
      still: clip.still,
    }));
    return { title: [several, prompt].filter(Boolean).join(": "), clips };
  });
}

/** @param {Clip} clip */
function label({ step, lora, strength }) {
  const name = text(lora);
  if (!Number.isFinite(step) && !name) return t("base model");
  const words = [name || t("step {step}", { step: Number(step) })];
  if (Number.isFinite(strength))
    words.push(t("strength {value}", { value: short(Number(strength)) }));
  return words.join(" · ");
}

/**
 * Aspect ratio of a clip in CSS syntax.
 * @param {Clips} facts
 */
export function shape({ width, height }) {
  return Number(width) > 0 && Number(height) > 0
    ? `${Number(width)} / ${Number(height)}`
    : "16 / 9";
}
