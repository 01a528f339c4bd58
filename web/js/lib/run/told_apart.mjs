// @ts-check
/**
 * What the server says of a failure, taken apart: what happened, the remedies, and the closing words, which a panel with a
 * button does not repeat. scripts/generators/refusals.py takes the same off the sentences that are translated. Pure.
 */

import { inOneText, t } from "../page/words.mjs";

/** @typedef {{ what: string, helps: string[], ifAgain: boolean, closing: string }} Apart `ifAgain`: nothing need be done the first time */

const PARTS =
  /^(.*?)(?: (W|If it ends again by itself, w)hat helps most, in this order: (.*?)\.)?(?: (Saved steps are kept\.|Saved steps are kept; (?:press Run|queue) again to resume\.|(?:Press Run|Queue) again to resume\.))?$/s;

/** @param {string} text as the server said it @returns {Apart} */
export function apart(text) {
  const [, what = text, when = "", helps = "", closing = ""] = PARTS.exec(text) ?? [];
  return { what, helps: helps ? helps.split("; ") : [], ifAgain: when.startsWith("If"), closing };
}

/**
 * The parts in the language of the page, as one text again.
 * @param {Apart} parts
 * @param {(text: string) => string} told one of them, in the language of the page
 */
export function together({ what, helps, ifAgain, closing }, told) {
  return inOneText([
    told(what),
    helps.length ? helpingText(helps.map(told).join("; "), ifAgain) : "",
    closingText(closing),
  ]);
}

/** @param {string} helps @param {boolean} ifAgain */
function helpingText(helps, ifAgain) {
  return ifAgain
    ? t("If it ends again by itself, what helps most, in this order: {helps}.", { helps })
    : t("What helps most, in this order: {helps}.", { helps });
}

/** @param {string} closing */
function closingText(closing) {
  if (/^(Press|Queue)/.test(closing)) return t("Press Run again to resume.");
  if (/resume/.test(closing)) return t("Saved steps are kept; press Run again to resume.");
  return closing && t("Saved steps are kept.");
}
