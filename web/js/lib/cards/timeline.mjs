// @ts-check
/** The predicted timeline of a step: a row for each GPU, a block for each pass. */

import { element } from "../page/dom.mjs";
import { told } from "../page/server_sentences.mjs";
import { counted, t } from "../page/words.mjs";
import { known, short } from "../run/format.mjs";
import { list, text } from "./lists.mjs";

/**
 * `cards` of a plan (wan_core/plan/cards_of_step.py). Times are fractions of the step.
 * @typedef {[forward: boolean, micro: number, begin: number, end: number]} Pass
 * @typedef {{ mode?: string, reason?: string, seconds?: number, idle?: number,
 *   cards?: { name?: string, work?: Pass[] }[] }} Step
 */

/** Maximum number of drawn rows; the card shows the number of the others. */
const MOST_ROWS = 8;

/** @param {unknown} work @returns {Pass[]} the passes that can be drawn */
function passesOf(work) {
  return list(work).filter(
    (pass) => Array.isArray(pass) && pass.length === 4 && pass.slice(1).every(known),
  );
}

/** Text of a GPU's passes, for screen readers. @param {string} name @param {Pass[]} passes */
export function rowText(name, passes) {
  const busy = passes.reduce((sum, [, , begin, end]) => sum + end - begin, 0);
  return t("{card} is busy {percent} % of a step", { card: name, percent: Math.round(100 * busy) });
}

/** Duration of a step, and the GPUs' share of idle time. @param {Step} step */
export function timeText({ seconds, idle }) {
  const values = { seconds: short(seconds), percent: Math.round(100 * Number(idle)) };
  return values.percent > 0
    ? t("One step, predicted: {seconds} s, of which the cards wait {percent} %.", values)
    : t("One step, predicted: {seconds} s; no card waits.", values);
}

/** @param {Step} step @returns {HTMLElement} card.mjs sets the colours */
export function timeline(step) {
  const cards = list(step.cards);
  const more = cards.length - MOST_ROWS;
  const drawn = cards.some((card) => passesOf(card?.work).length);
  return element(
    "figure",
    { class: "wan-timeline" },
    element("figcaption", {}, element("strong", {}, text(step.mode)), " ", told(text(step.reason))),
    ...(drawn ? cards.slice(0, MOST_ROWS).map(row) : []),
    drawn && more > 0
      ? element("p", { class: "wan-hint" }, counted(more, "and 1 more card", "and {n} more cards"))
      : null,
    element(
      "p",
      { class: "wan-hint" },
      known(step.seconds) && known(step.idle) ? `${timeText(step)} ` : "",
      ...(drawn ? [key("forward", t("forward")), " ", key("backward", t("backward"))] : []),
    ),
  );
}

/** @param {{ name?: string, work?: Pass[] } | null} card @param {number} index */
function row(card, index) {
  const name = text(card?.name);
  const passes = passesOf(card?.work);
  const blocks = passes.map(([forward, micro, begin, end]) => {
    const part = forward ? "forward" : "backward";
    const block = element("span", { "data-device": index, "data-part": part }, `${micro + 1}`);
    block.style.left = `${100 * begin}%`;
    block.style.width = `${100 * (end - begin)}%`;
    return block;
  });
  return element(
    "div",
    { class: "wan-timeline-row" },
    element("span", {}, name),
    element(
      "div",
      { class: "wan-lane", role: "img", "aria-label": rowText(name, passes) },
      ...blocks,
    ),
  );
}

/** @param {string} part @param {string} name */
function key(part, name) {
  const swatch = element("span", { class: "wan-key", "data-part": part, "aria-hidden": "true" });
  return element("span", { class: "wan-word" }, swatch, name);
}
