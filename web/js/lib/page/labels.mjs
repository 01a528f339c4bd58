// @ts-check
/**
 * Adds translated widget labels to ids in sentences of the server: in Chinese the widget reads 触发词, so `trigger_word`
 * alone names nothing on the page. Only ids with an underscore, which are no words of a sentence. Pure.
 */

import { OURS } from "./ids.mjs";

/** @type {Map<string, string>} */
let labels = new Map();
/** Label with its id, as in tooltips. @type {(label: string, id: string) => string} */
let together = (label, id) => `${label} (${id})`;

/** @type {Record<string, (label: string, id: string) => string>} */
const TOGETHER = {
  zh: (label, id) => `${label}（${id}）`,
  ja: (label, id) => `${label}（${id}）`,
  ko: (label, id) => `${label}(${id})`,
};

/** An id outside of file names, paths, quotes, assignments, and brackets after its label. */
const ID =
  /(?<![\w./\\:*\x22\x27\x60{（(-])[a-z0-9]+(?:_[a-z0-9]+)+(?![\w/\\*\x22\x27\x60}=-]|\.\w)/g;

/**
 * Names of widgets, in place of those known so far.
 * @param {any} nodeDefs of one language, as `/i18n` gives them; others' nodes do not count
 * @param {string} language
 */
export function learnLabels(nodeDefs, language) {
  labels = new Map();
  together = TOGETHER[language.split("-")[0]] ?? ((label, id) => `${label} (${id})`);
  for (const node of OURS) {
    for (const [id, input] of Object.entries(nodeDefs?.[node]?.inputs ?? {})) {
      const label = /** @type {any} */ (input)?.name;
      const named = typeof label === "string" && label !== id && !label.includes(id);
      if (named && id.includes("_") && !labels.has(id)) labels.set(id, label);
    }
  }
}

/** A sentence in which widgets are called as the page calls them. @param {string} text @returns {string} */
export function withLabels(text) {
  if (!labels.size) return text;
  return text.replace(ID, (id) => {
    const label = labels.get(id);
    return label ? together(label, id) : id;
  });
}
