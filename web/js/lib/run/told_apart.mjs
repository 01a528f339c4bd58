// @ts-check
/**
 * What the server says of a failure, taken apart: what happened, the remedies, and the closing words, which a panel with a
 * button does not repeat. scripts/refusals.py takes the same off the sentences that are translated. Pure.
 */

import { inOneText, t } from "../page/words.mjs";

/** @typedef {{ what: string, helps: string[], closing: string }} Apart */

const PARTS =
  /^(.*?)(?: What helps most, in this order: (.*?)\.)?(?: (Saved steps are kept\.|Saved steps are kept; (?:press Run|queue) again to resume\.|(?:Press Run|Queue) again to resume\.))?$/s;

/** @param {string} text as the server said it @returns {Apart} */
export function apart(text) {
  const [, what = text, helps = "", closing = ""] = PARTS.exec(text) ?? [];
  return { what, helps: helps ? helps.split("; ") : [], closing };
}

/**
 * The parts in the language of the page, as one text again.
 * @param {Apart} parts
 * @param {(text: string) => string} told one of them, in the language of the page
 */
export function together({ what, helps, closing }, told) {
  const helping = helps.map(told).join("; ");
  return inOneText([
    told(what),
    helping && t("What helps most, in this order: {helps}.", { helps: helping }),
    closingText(closing),
  ]);
}

/** @param {string} closing */
function closingText(closing) {
  if (/^(Press|Queue)/.test(closing)) return t("Press Run again to resume.");
  if (/resume/.test(closing)) return t("Saved steps are kept; press Run again to resume.");
  return closing && t("Saved steps are kept.");
}
