// @ts-check
/**
 * Translates sentences of the server. A sentence is English text with its template and values under `sentences`; the
 * page fills its translation of the template and never parses the text. Without template or translation the text is
 * shown. Pure.
 */

import { withLabels } from "./labels.mjs";
import { inOneText, isTranslated, t } from "./words.mjs";

/**
 * @typedef {{ template: string, values: Record<string, string | string[]> }} Sentence a value may be another sentence's text
 * @typedef {{ what: string, good: number | null, again: string, helps: string[], ifAgain: boolean }} Failure `good`: the last
 *   good step, 0 for none, null if unknown; `again`: effect of running again; `ifAgain`: remedies only if it fails again
 */

/** Maximum number of cached translations; a panel shows the same sentences repeatedly. */
const KEPT = 2000;
/** Nesting limit of sentences as values of others. */
const DEPTH = 5;
const HOLES = /\{\w+\}/g;

/** @type {Map<string, Sentence>} */
const known = new Map();

/** Stores templates and values by text. @param {any} sentences of a server message, or undefined */
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

/** The translation of a sentence. @param {string} text */
export function told(text) {
  return withLabels(inWords(text, DEPTH));
}

/** The translation without widget labels, for a text that also names keys of other programs. @param {string} text */
export function toldBare(text) {
  return inWords(text, DEPTH);
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

/** The template of a sentence; the text itself without one. @param {string} text */
function templateOf(text) {
  return known.get(text)?.template ?? text;
}

/** A value of a sentence; empty if it has none of that name. @param {string} text @param {string} name @returns {any} */
function valueIn(text, name) {
  return known.get(text)?.values[name] ?? "";
}

/** The parts of a failure's sentence (wan_core/errors.py: failure). @param {string} text @returns {Failure} */
export function failureOf(text) {
  const remedies = valueIn(text, "remedies");
  const stands = valueIn(text, "stands");
  const isInParts = /^\{what\}( \{\w+\})*$/.test(templateOf(text)); // other refusals may also begin with {what}
  return {
    what: isInParts ? valueIn(text, "what") : text,
    good: stands ? Number(valueIn(stands, "step")) : null,
    again: valueIn(text, "again"),
    helps: valueIn(remedies, "helps") || [],
    ifAgain: templateOf(remedies) === "If it stops again, what helps most, in this order: {helps}.",
  };
}

/**
 * The setting by which a remedy starts a new run; empty if the run resumes.
 * @param {string} text @returns {string}
 */
export function inANewRun(text) {
  return templateOf(text) === "{remedy} (begins a new run)" ? valueIn(text, "remedy") : "";
}
