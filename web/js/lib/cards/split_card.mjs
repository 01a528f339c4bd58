// @ts-check
/** The card of Split Across GPUs: a strip of blocks in the colours of their devices, and the memory of each device. */

import { element, fill } from "../page/dom.mjs";
import { counted, t } from "../page/words.mjs";
import { memoryBar } from "../panel/parts.mjs";
import { Card, notYet } from "./card.mjs";
import { list, text } from "./lists.mjs";
import { coverText, deviceRows, mapText, planned } from "./split.mjs";
import { timeline } from "./timeline.mjs";

/** @typedef {import("./split.mjs").Split} Split */

/** Maximum number of drawn copies; the card shows the number of the others. */
const MOST_COPIES = 8;

export class SplitCard extends Card {
  /** @param {import("../page/pacing.mjs").Frames} frames @param {() => void} grew */
  constructor(frames, grew) {
    super(frames, { label: t("Blocks and devices"), kind: "split", grew });
    this.step = element("div", { hidden: true });
    /** @type {Split | null} */
    this.split = null;
    /** @type {import("../fit/sentences.mjs").Device[]} memory of each device in the last plan */
    this.needs = [];
    this.show(null);
  }

  /** @param {Split | null} split */
  show(split) {
    this.split = split;
    if (!split) fill(this.body, notYet(t("Shows which block goes to which device.")));
    else this.fill(split);
    this.ask();
  }

  /** Shows timeline and memory of the devices. @param {import("../fit/sentences.mjs").Plan | null} plan */
  showPlan(plan) {
    const drawn = JSON.stringify([plan?.cards, plan?.devices]);
    if (this.step.dataset.drawn === drawn) return;
    const step = plan?.cards ?? null;
    this.step.dataset.drawn = drawn;
    this.step.hidden = !step;
    this.needs = list(plan?.devices);
    this.element.insertBefore(this.step, this.body); // below the bar of fit/fit_bar.mjs
    fill(this.step, step && timeline(step));
    this.show(this.split);
  }

  /** @param {Split} facts */
  fill(facts) {
    const split = planned(facts, this.needs);
    const copies = list(split.copies);
    const rest = copies.length - MOST_COPIES;
    fill(
      this.body,
      element("strong", {}, text(split.model)),
      ...copies.slice(0, MOST_COPIES).map((blocks) => strip(split, blocks)),
      rest > 0 ? element("p", {}, moreText(rest)) : null,
      element("ul", { class: "wan-devices" }, ...deviceRows(split).map(deviceRow)),
      element("p", { class: "wan-hint" }, coverText(split)),
    );
  }
}

/** One copy of the model. @param {Split} split @param {number[]} blocks */
function strip(split, blocks) {
  const part = (/** @type {number} */ device, /** @type {string} */ kind) =>
    element("span", { "data-device": device, "data-part": kind });
  const first = list(blocks)[0] ?? 0;
  return element(
    "div",
    { class: "wan-strip", role: "img", "aria-label": mapText(split, blocks) },
    part(first, "end"),
    ...list(blocks).map((device) => part(Number(device), "block")),
    part(list(blocks).at(-1) ?? 0, "end"),
  );
}

/** @param {import("./split.mjs").Row} row @param {number} index */
function deviceRow(row, index) {
  const swatch = element("span", { "data-device": index, "data-part": "key", "aria-hidden": true });
  const bar = memoryBar({ ...row, device: row.name, peak: null });
  bar.firstElementChild?.prepend(swatch);
  return element(
    "li",
    {},
    bar,
    element("div", { class: "wan-holds" }, [row.title, row.holds].filter(Boolean).join(" · ")),
  );
}

/** @param {number} count */
function moreText(count) {
  return counted(count, "and 1 more copy", "and {n} more copies");
}
