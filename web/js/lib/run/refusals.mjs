// @ts-check
/**
 * What the server refuses, in the language of the page. The sentences stand in web/js/sentences, a file for each language,
 * written from the code by scripts/make_sentences.py; an English page asks for none of them. What nobody translated is shown
 * as it came. Pure, but for the one request.
 */

import { wanted } from "../page/words.mjs";
import { filled, formOf, readForm } from "./forms.mjs";

/** @typedef {{ form: import("./forms.mjs").Form, said: string }} Known */

const LANGUAGES = ["es", "ja", "ko", "zh"];
/** How deep a sentence may stand in the hole of another one. */
const DEPTH = 4;
/** A text of more sentences is a log's. */
const SENTENCES = 12;
/** Texts that are remembered: a panel says the same ones again and again. */
const REMEMBERED = 100;

/** @type {Known[]} */
let known = [];
/** @type {Map<string, string>} */
const remembered = new Map();

/**
 * Translations by English sentence, in place of those known so far.
 * @param {unknown} translations anything but texts is left out
 */
export function learnRefusals(translations) {
  known = Object.entries(translations ?? {})
    .filter(([, said]) => typeof said === "string")
    .map(([english, said]) => ({ form: formOf(english), said }))
    .sort((a, b) => weight(b.form) - weight(a.form));
  remembered.clear();
}

/** Of two sentences that a text may be, it is the one with more words of its own. @param {import("./forms.mjs").Form} form */
function weight({ literals }) {
  return literals.join("").length;
}

/**
 * Ask for the sentences of the page's language. A page without an answer shows them as they come.
 * @param {(address: URL) => Promise<Response>} fetchFile
 * @param {string} locale as ComfyUI names it
 */
export async function loadRefusals(fetchFile, locale) {
  const language = wanted(locale).find((name) => LANGUAGES.includes(name));
  if (!language) return;
  try {
    const answer = await fetchFile(new URL(`../../sentences/${language}.json`, import.meta.url));
    if (answer.ok) learnRefusals(await answer.json());
  } catch (error) {
    console.warn("[WanTrainer] Refusals stay English:", error);
  }
}

/** A refusal in the language of the page, as far as it is known. @param {string} text */
export function refusal(text) {
  if (!known.length) return text;
  const before = remembered.get(text);
  if (before !== undefined) return before;
  const said = tell(text, DEPTH);
  if (remembered.size >= REMEMBERED) remembered.clear();
  remembered.set(text, said);
  return said;
}

/** @param {string} text @param {number} depth @returns {string} */
function tell(text, depth) {
  const core = text.trim();
  if (!core || !depth) return text;
  const said = whole(core, depth) ?? inTurn(core, depth);
  return said === null ? text : text.replace(core, () => said);
}

/** A text that is one sentence; null where it is none. @param {string} text @param {number} depth */
function whole(text, depth) {
  for (const { form, said } of known) {
    const values = readForm(form, text, 0);
    if (values) {
      const told = Object.entries(values).map(([name, value]) => [name, tell(value, depth - 1)]);
      return filled(said, Object.fromEntries(told));
    }
  }
  return null;
}

/** A text that is several sentences, some of them known; null where none is. @param {string} text @param {number} depth */
function inTurn(text, depth) {
  const sentences = text.split(/(?<=[.!?:]) (?=\S)/);
  const many = sentences.length;
  if (many < 2 || many > SENTENCES) return null;
  for (let first = 0; first < many; first += 1) {
    for (let end = first ? many : many - 1; end > first; end -= 1) {
      const said = whole(sentences.slice(first, end).join(" "), depth);
      if (said !== null) {
        const before = sentences.slice(0, first);
        const rest = tell(sentences.slice(end).join(" "), depth);
        return [...before, joined(said, rest)].join(" ");
      }
    }
  }
  return null;
}

/** @param {string} one @param {string} next */
function joined(one, next) {
  return next ? `${one}${one.endsWith("。") ? "" : " "}${next}` : one;
}
