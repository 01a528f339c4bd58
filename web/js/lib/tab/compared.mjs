// @ts-check
/**
 * The compared runs: one chart of all their curves, and a legend with colour and dashes of each run. A run is highlighted
 * while the mouse points at it or it has the focus. Only the user adds and removes runs.
 */

import { ink } from "../chart/chart.mjs";
import { Plot } from "../chart/plot.mjs";
import { button, element, fill, mark } from "../page/dom.mjs";
import { t } from "../page/words.mjs";
import { comparedLines } from "../run/chart_facts.mjs";
import { RunHistory } from "../run/history.mjs";
import { Pair } from "./pair.mjs";

/** @typedef {import("../page/routes.mjs").Routes} Routes */

export class Compared {
  /**
   * @param {Routes} routes
   * @param {import("../page/pacing.mjs").Frames} frames
   * @param {{ changed: () => void, save: () => void, address: (path: string) => string }} actions
   */
  constructor(routes, frames, { changed, save, address }) {
    this.routes = routes;
    this.frames = frames;
    this.changed = changed;
    /** Histories by run, in the order of ticking. @type {Map<string, RunHistory>} */
    this.runs = new Map();
    /** Run -> index of its colour and dashes, unchanged while it is compared. @type {Map<string, number>} */
    this.places = new Map();
    /** The highlighted run. @type {string | null} */
    this.pointed = null;
    this.drawn = "";
    this.plot = new Plot(frames, () => this.view(), {
      dots: false,
      timesteps: false,
      legend: false,
    });
    this.legend = element("ul", {
      class: "wan-legend",
      "aria-label": t("Compared runs"),
    });
    this.legend.classList.add("wan-compared-runs");
    this.tools = element(
      "div",
      { class: "wan-compared-tools" },
      button(t("Untick all"), t("Remove all runs from the chart"), () => this.clear()),
      button(t("Curves as CSV"), t("Save every step of the compared runs as a CSV file"), save),
    );
    this.pair = new Pair(address);
    this.element = element(
      "section",
      { class: "wan-compared", hidden: true, "aria-label": t("Curves") },
      this.pair.element,
      this.plot.element,
      this.tools,
      this.legend,
    );
  }

  /** @param {string} run @param {boolean} on */
  set(run, on) {
    if (on === this.runs.has(run)) return;
    if (on) {
      const taken = new Set(this.places.values());
      let place = 0;
      while (taken.has(place)) place += 1;
      this.places.set(run, place);
      this.runs.set(run, new RunHistory());
    } else {
      this.runs.delete(run);
      this.places.delete(run);
      if (this.pointed === run) this.pointed = null;
    }
  }

  clear() {
    for (const run of [...this.runs.keys()]) this.set(run, false);
    this.changed();
  }

  /** Colour and dashes of a run; null if it is not compared. @param {string} run @returns {import("./run_row.mjs").Ink} */
  inkOf(run) {
    const place = this.places.get(run);
    return place === undefined ? null : ink(place, this.plot.dark);
  }

  /** Reads new lines of every run. @returns {Promise<boolean>} whether there are more */
  async read() {
    let more = false;
    for (const [run, history] of [...this.runs]) {
      const since = history.lines;
      more = history.take(since, await this.routes.metrics(run, since)) || more;
    }
    return more;
  }

  /**
   * Draws chart and legend, and the differences between two runs. Called at most once per frame.
   * @param {import("../page/routes.mjs").Summary[]} runs all runs
   */
  draw(runs) {
    this.element.hidden = !this.runs.size;
    this.frames.once(this.plot.draw);
    const compared = [...this.runs.keys()].flatMap((id) => runs.find((run) => run.id === id) ?? []);
    this.pair.draw(compared, (run) => this.inkOf(run));
    const drawn = JSON.stringify([[...this.places], this.plot.dark]);
    if (drawn !== this.drawn) {
      this.drawn = drawn;
      const focused = document.activeElement?.closest("li")?.dataset.run;
      fill(this.legend, ...[...this.runs.keys()].map((run) => this.entry(run)));
      if (focused && !this.legend.contains(document.activeElement))
        this.legend.querySelector("button")?.focus();
    }
    for (const row of this.legend.children)
      mark(
        row,
        "data-state",
        /** @type {HTMLElement} */ (row).dataset.run === this.pointed ? "on" : "",
      );
  }

  /** @param {string} run */
  entry(run) {
    const { color, dash } = /** @type {NonNullable<import("./run_row.mjs").Ink>} */ (
      this.inkOf(run)
    );
    const swatch = element("span", {
      class: "wan-swatch",
      "aria-hidden": "true",
      "data-dash": dash,
    });
    swatch.style.color = color;
    const point = (/** @type {string | null} */ to) => () => this.point(to);
    const out = element(
      "button",
      {
        type: "button",
        class: "wan-out",
        title: t("Remove {run} from the chart", { run }),
        "aria-label": t("Remove {run} from the chart", { run }),
        onclick: () => {
          this.set(run, false);
          this.changed();
        },
        onfocus: point(run),
        onblur: point(null),
      },
      "×",
    );
    return element(
      "li",
      { "data-run": run, onpointerenter: point(run), onpointerleave: point(null) },
      swatch,
      element("span", { title: run }, run),
      out,
    );
  }

  /** @param {string | null} run the one to highlight */
  point(run) {
    if (run === this.pointed) return;
    this.pointed = run;
    this.plot.ask();
    for (const row of this.legend.children)
      mark(row, "data-state", /** @type {HTMLElement} */ (row).dataset.run === run ? "on" : "");
  }

  /** @returns {import("../chart/plot.mjs").Facts} */
  view() {
    const lines = comparedLines(this.runs).map((line) => ({
      ...line,
      place: this.places.get(line.run) ?? 0,
      faded: this.pointed !== null && line.run !== this.pointed,
    }));
    const names = lines.map((line) => line.name).join(", ");
    return {
      lines,
      summary: t("Loss of {names}", { names }),
      empty: t("Reading …"),
    };
  }
}
