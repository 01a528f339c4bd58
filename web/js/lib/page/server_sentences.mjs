// @ts-check
/**
 * What the server says, in the language of the page. A sentence is English text; the template it was filled from and its
 * values come beside it under `sentences`, and the page fills its translation of the template. The text itself is never
 * read: what came without a template, or has no translation, is shown as it came. Pure.
 */

import { withLabels } from "./labels.mjs";
import { inOneText, isTranslated, t } from "./words.mjs";

/**
 * @typedef {{ template: string, values: Record<string, string | string[]> }} Sentence a value may be the text of another one
 * @typedef {{ what: string, good: number | null, again: string, helps: string[], ifAgain: boolean }} Failure `good`: the last step that
 *   is good, 0 for none, where it says so; `again`: what the same run would do; `ifAgain`: nothing need be done the first time
 */

/** Sentences that are kept: a panel says the same ones again and again. */
const KEPT = 2000;
/** How deep a sentence may stand in the hole of another one. */
const DEPTH = 5;
const HOLES = /\{\w+\}/g;

/** @type {Map<string, Sentence>} */
const known = new Map();

/** Templates and values by text. @param {any} sentences as a message of the server has them, if it has any */
export function learnSentences(sentences) {
  for (const [text, { template, values }] of Object.entries(sentences ?? {})) {
    known.delete(text);
    known.set(text, { template, values });
  }
  for (const text of known.keys()) {
    if (known.size <= KEPT) break;
    known.delete(text);
  }
}

/** What the server said, in the language of the page. @param {string} text */
export function told(text) {
  return withLabels(inWords(text, DEPTH));
}

/** @param {string} text @param {number} depth @returns {string} */
function inWords(text, depth) {
  const { template = text, values = {} } = known.get(text) ?? {};
  const sentence = template.trim();
  if (!depth || (!isTranslated(sentence) && /\p{L}/u.test(sentence.replace(HOLES, ""))))
    return text;
  const words = Object.entries(values).map(([name, value]) => [
    name,
    [value]
      .flat()
      .map((one) => inWords(String(one), depth - 1))
      .join("; "),
  ]);
  const said = template.replace(sentence, () => t(sentence, Object.fromEntries(words)));
  return said === text ? text : inOneText([said]);
}

/** The template of what the server said; the text itself where it has none. @param {string} text */
function templateOf(text) {
  return known.get(text)?.template ?? text;
}

/** A value of what the server said; empty where it has none of that name. @param {string} text @param {string} name @returns {any} */
function valueIn(text, name) {
  return known.get(text)?.values[name] ?? "";
}

/** Why a run ended, in parts (wan_core/errors.py: failure). @param {string} text @returns {Failure} */
export function failureOf(text) {
  const remedies = valueIn(text, "remedies");
  const stands = valueIn(text, "stands");
  return {
    what: templateOf(text).startsWith("{what}") ? valueIn(text, "what") : text,
    good: stands ? Number(valueIn(stands, "step")) : null,
    again: valueIn(text, "again"),
    helps: valueIn(remedies, "helps") || [],
    ifAgain:
      templateOf(remedies) ===
      "If it ends again by itself, what helps most, in this order: {helps}.",
  };
}

/** What a remedy asks for that begins a new run; empty for one after which the run goes on. @param {string} text @returns {string} */
export function inANewRun(text) {
  return templateOf(text) === "{remedy} (begins a new run)" ? valueIn(text, "remedy") : "";
}
