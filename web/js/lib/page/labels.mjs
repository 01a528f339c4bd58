// @ts-check
/**
 * Adds translated widget labels to widget ids in server sentences: in Chinese the label is 触发词, so a user cannot find
 * `trigger_word`. Only for ids with an underscore, because other ids may be ordinary words. Pure.
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

/** An id outside of file names, paths, quotes, assignments, and brackets after a label. */
const ID =
  /(?<![\w./\\:*\x22\x27\x60{（(-])[a-z0-9]+(?:_[a-z0-9]+)+(?![\w/\\*\x22\x27\x60}=-]|\.\w)/g;

/**
 * Replaces the known widget labels.
 * @param {any} nodeDefs of one language, from `/i18n`; other packs' nodes are skipped
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

/** Adds labels to the widget ids in a sentence. @param {string} text @returns {string} */
export function withLabels(text) {
  if (!labels.size) return text;
  return text.replace(ID, (id) => {
    const label = labels.get(id);
    return label ? together(label, id) : id;
  });
}
