// @ts-check
/** The layout of the panel: five parts and the details, filled with the run's data. */

import { element, write } from "../page/dom.mjs";
import { t } from "../page/words.mjs";
import { headlineOf } from "../run/headline.mjs";
import { Buttons } from "./buttons.mjs";
import { Details } from "./details.mjs";
import { Meters } from "./meters.mjs";
import { SuggestionLine } from "./suggestion_line.mjs";
import { UseBox } from "./use_box.mjs";

/**
 * @typedef {import("../page/routes.mjs").Detail} Detail
 * @typedef {import("../run/history.mjs").RunHistory} RunHistory
 * @typedef {import("../run/stages.mjs").StageClock} StageClock
 * @typedef {ConstructorParameters<typeof Buttons>[0]} Act
 */

export class Face {
  /**
   * @param {{ line: import("./status_line.mjs").StatusLine, trouble: import("./trouble_box.mjs").TroubleBox,
   *   plot: import("../chart/plot.mjs").Plot, player: import("./player.mjs").Player,
   *   notifier: import("./notifier.mjs").Notifier }} parts that the panel holds itself
   * @param {{ act: Act, use: (step: number) => void, copy: (text: string) => Promise<void>, turned: () => void }} pressed
   *   `turned`: the details were opened or closed
   */
  constructor({ line, trouble, plot, player, notifier }, { act, use, copy, turned }) {
    this.line = line;
    this.trouble = trouble;
    this.plot = plot;
    this.player = player;
    this.meters = new Meters();
    this.buttons = new Buttons(act);
    this.suggestion = new SuggestionLine(use);
    this.use = new UseBox(copy);
    /** Container of the fit bar. */
    this.fit = element("div", {});
    const { meters, buttons } = this;
    this.details = new Details({ line, meters, buttons, plot, notifier }, turned);
    this.spoken = element("div", { class: "wan-spoken", role: "status", "aria-live": "polite" });
    line.headline.append(buttons.stop);
    this.clips = element("div", { class: "wan-left" }, player.element, this.suggestion.element);
    this.body = element("div", { class: "wan-body" }, this.clips, plot.element);
    this.element = element(
      "section",
      { class: "wan-panel", "aria-label": t("Training run") },
      line.headline,
      line.said,
      trouble.element,
      this.body,
      this.use.element,
      this.fit,
      this.details.element,
      this.spoken,
    );
  }

  /** Parts whose height changes without a redraw. */
  get moving() {
    const { details, player, plot, suggestion, trouble, use, fit } = this;
    const lists = [player, suggestion, details, use].map((one) => one.element);
    return [this.element, ...lists, fit, plot.legend, trouble.log, this.meters.folded];
  }

  /** Announces a text to screen readers. @param {string} text */
  speak(text) {
    write(this.spoken, text);
  }

  /**
   * Draws everything except the curve.
   * @param {{ run: string | null, live: boolean, gone: boolean, noFolder: boolean, detail: Detail | null, history: RunHistory, clock: StageClock,
   *   about: import("../run/line.mjs").About | null }} read
   * @param {number} now milliseconds
   */
  draw({ run, live: trains, gone, noFolder, detail, history, clock, about }, now) {
    const live = trains && !gone;
    const broke = gone || Boolean(this.trouble.broke);
    const chip = clock.active;
    const kept = gone ? (history.saves.newest?.step ?? 0) : null;
    this.trouble.draw(run ?? "", detail, history.newest?.step, kept);
    const fits = !this.fit.querySelector('[data-state="short"]');
    const read = { chip, about, live, detail, history, fits, noFolder };
    const headline = broke ? null : headlineOf(read);
    // The trouble box has the same headline.
    const isSaid = [t("failed"), t("ComfyUI does not answer.")].includes(this.line.text);
    this.line.draw(headline, isSaid && !this.trouble.element.hidden);
    this.meters.draw(history, detail, clock, now, gone);
    const ended = Boolean(run && detail) && !live && !gone;
    const inUse = ended ? (detail?.in_use ?? null) : null;
    this.player.suggest(history.suggestion?.best ?? null, ended, inUse);
    const hasClips = !this.player.element.hidden;
    this.suggestion.draw(history.suggestion, { inUse, canUse: ended, hasClips });
    this.plot.element.hidden = !history.points;
    this.fit.hidden = live; // no plans are requested while a run trains
    this.use.draw(ended && ["done", "stopped"].includes(detail?.state ?? "") ? detail : null);
    this.details.draw(run, history);
    this.buttons.draw({ run, live, canPreview: detail?.can_preview !== false });
  }

  /** @returns {number | null} height of all parts at this width; null if the panel is not on the page */
  measure() {
    const { element: plot, canvas } = this.plot;
    const { element, body, clips } = this;
    return neededHeight({ element, body, clips, plot, canvas });
  }
}

export const CHART_MIN = 116;
// The same values as in the style sheet.
const GAP = 6;
const PADDING = 8;

/**
 * Height of all parts at this width, with the smallest chart, in CSS pixels.
 * @param {{ element: HTMLElement, body: HTMLElement, clips: HTMLElement, plot: HTMLElement, canvas: HTMLElement }} parts
 * @returns {number | null} null if the panel is not on the page
 */
export function neededHeight({ element, body, clips, plot, canvas }) {
  if (!element.clientWidth) return null;
  const left = Math.max(0, natural(clips));
  const chart = plot.hidden ? 0 : natural(plot) - canvas.clientHeight + CHART_MIN;
  const beside = getComputedStyle(body).flexDirection === "row";
  const gap = left && chart ? GAP : 0;
  const inside = beside ? Math.max(left, chart) : left + gap + chart;
  return Math.ceil(natural(element) - body.offsetHeight + inside + 2 * PADDING);
}

/** Sum of the children's heights. @param {HTMLElement} place */
function natural(place) {
  const shown = [...place.children].map((child) => /** @type {HTMLElement} */ (child).offsetHeight);
  const rows = shown.filter((height) => height > 1);
  return rows.reduce((sum, height) => sum + height + GAP, -GAP);
}
