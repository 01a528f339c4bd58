// @ts-check
/** The layout of the panel: its parts, their positions, and the run's data in each. */

import { element, fill, write } from "../page/dom.mjs";
import { told } from "../page/server_sentences.mjs";
import { t } from "../page/words.mjs";
import { headlineOf } from "../run/headline.mjs";
import { Buttons } from "./buttons.mjs";
import { Meters } from "./meters.mjs";
import { SuggestionLine } from "./suggestion_line.mjs";

/**
 * @typedef {import("../page/routes.mjs").Detail} Detail
 * @typedef {import("../run/history.mjs").RunHistory} RunHistory
 * @typedef {import("../run/stages.mjs").StageClock} StageClock
 * @typedef {ConstructorParameters<typeof Buttons>[0]} Act
 */

export class Face {
  /**
   * @param {{ line: import("./status_line.mjs").StatusLine, trouble: import("./trouble_box.mjs").TroubleBox,
   *   plot: import("../chart/plot.mjs").Plot, player: import("./player.mjs").Player }} parts that the panel holds itself
   * @param {{ act: Act, use: (step: number) => void }} pressed
   */
  constructor({ line, trouble, plot, player }, { act, use }) {
    this.line = line;
    this.trouble = trouble;
    this.plot = plot;
    this.player = player;
    this.name = element("strong", { class: "wan-name" });
    this.meters = new Meters();
    this.buttons = new Buttons(act);
    this.spoken = element("div", { class: "wan-spoken", role: "status", "aria-live": "polite" });
    const { stages, numbers, memory } = this.meters;
    this.suggestion = new SuggestionLine(use);
    this.marks = new MarksLine();
    const said = [this.marks.element, this.suggestion.element];
    this.left = element("div", { class: "wan-left" }, numbers, memory, plot.element, ...said);
    this.body = element("div", { class: "wan-body" }, this.left, player.element);
    this.element = element(
      "section",
      { class: "wan-panel", "aria-label": t("Training run") },
      line.headline,
      stages,
      element("div", { class: "wan-head" }, this.name, line.element),
      trouble.element,
      this.body,
      this.buttons.element,
      this.spoken,
    );
  }

  /** To screen readers. @param {string} text */
  speak(text) {
    write(this.spoken, text);
  }

  /**
   * Everything but the curve.
   * @param {{ run: string | null, live: boolean, gone: boolean, detail: Detail | null, history: RunHistory, clock: StageClock,
   *   about: import("../run/line.mjs").About | null }} read
   * @param {number} now milliseconds
   */
  draw({ run, live: trains, gone, detail, history, clock, about }, now) {
    const live = trains && !gone;
    write(this.name, run ?? "");
    const broke = gone || Boolean(this.trouble.broke);
    const chip = clock.active;
    this.line.draw(live, broke ? null : headlineOf({ chip, about, live, detail, history }));
    const kept = gone ? (history.saves.newest?.step ?? 0) : null;
    this.trouble.draw(run ?? "", detail, history.newest?.step, kept);
    // The headline of the box has the same text.
    const isSaid = [t("failed"), t("ComfyUI does not answer.")].includes(this.line.text);
    this.line.element.hidden = isSaid && !this.trouble.element.hidden;
    this.meters.draw(history, detail, clock, now, gone);
    const canUse = Boolean(run && detail) && !live && !gone;
    const inUse = canUse ? (detail?.in_use ?? null) : null;
    this.player.suggest(history.suggestion?.best ?? null, canUse, inUse);
    this.marks.draw(history.marks);
    this.suggestion.draw(history.suggestion, inUse, canUse);
    this.buttons.draw({ run, live, canPreview: detail?.can_preview !== false });
  }

  /** @returns {number | null} the height everything needs at this width; null while it is not on the page */
  measure() {
    const { element: plot, canvas } = this.plot;
    const { element, body, left } = this;
    return neededHeight({ element, body, left, plot, canvas, player: this.player.element });
  }
}

const MOST = 3;

export class MarksLine {
  constructor() {
    this.element = element("ul", { class: "wan-marks", hidden: true });
    this.known = "";
  }

  /** @param {import("../run/history.mjs").Mark[]} marks */
  draw(marks) {
    const shown = marks.slice(-MOST).reverse();
    const texts = shown.map((one) => `⚠ ${told(one.text)}`);
    this.element.hidden = !texts.length;
    if (this.known === texts.join("\n")) return;
    this.known = texts.join("\n");
    fill(this.element, ...texts.map((text) => element("li", {}, text)));
  }
}

export const CHART_MIN = 150;
// As in the style sheet.
const GAP = 6;
const PADDING = 8;

/**
 * Height everything needs at this width, with the chart at its least, in CSS pixels.
 * @param {{ element: HTMLElement, body: HTMLElement, left: HTMLElement, plot: HTMLElement, canvas: HTMLElement,
 *   player: HTMLElement }} parts
 * @returns {number | null} null while it is not on the page
 */
export function neededHeight({ element, body, left, plot, canvas, player }) {
  if (!element.clientWidth) return null;
  const chart = CHART_MIN - canvas.clientHeight;
  const facts = natural(left) - plot.offsetHeight + natural(plot) + chart;
  const clips = player.hidden ? 0 : natural(player) + GAP;
  const beside = getComputedStyle(body).flexDirection === "row";
  const inside = beside ? Math.max(facts, clips) : facts + clips;
  return Math.ceil(natural(element) - body.offsetHeight + inside + 2 * PADDING);
}

/** Heights of what is inside, one below the other. @param {HTMLElement} place */
function natural(place) {
  const shown = [...place.children].map((child) => /** @type {HTMLElement} */ (child).offsetHeight);
  const rows = shown.filter((height) => height > 1);
  return rows.reduce((sum, height) => sum + height + GAP, -GAP);
}
