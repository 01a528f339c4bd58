// @ts-check
/** Two compared runs side by side: their newest previews, and only the results and settings that differ. */

import { element, fill, mark, writeName } from "../page/dom.mjs";
import { samplePath } from "../page/routes.mjs";
import { t } from "../page/words.mjs";
import { stateName } from "../run/names.mjs";
import { bestOf, between, figureOf } from "./differences.mjs";
import { cellText } from "./run_row.mjs";
import { titleOf } from "./run_table.mjs";

/** @typedef {import("../page/routes.mjs").Summary} Summary */

export class Pair {
  /** @param {(path: string) => string} address turns a route's path into an address for a video element */
  constructor(address) {
    this.address = address;
    this.drawn = "";
    this.clips = element("tr", {});
    this.rows = element("tbody", {});
    this.heads = element("tr", {});
    this.element = element(
      "table",
      { class: "wan-pair", hidden: true, "aria-label": t("What differs") },
      element("colgroup", {}, element("col")),
      element("thead", {}, this.heads, this.clips),
      this.rows,
    );
  }

  /**
   * @param {Summary[]} runs the compared ones; hidden unless there are two
   * @param {(run: string) => import("./run_row.mjs").Ink} inkOf returns colour and dashes of a run's curve
   */
  draw(runs, inkOf) {
    this.element.hidden = runs.length !== 2;
    if (this.element.hidden) runs = [];
    this.#play(runs);
    const keys = runs.length ? between(runs[0], runs[1]) : [];
    const colors = runs.map(({ id }) => inkOf(id)?.color ?? "");
    const drawn = JSON.stringify([
      runs.map(({ id }) => id),
      colors,
      keys.map((key) => runs.map((run) => figureOf(run, key))),
    ]);
    if (drawn === this.drawn) return;
    this.drawn = drawn;
    fill(this.heads, element("td", {}), ...runs.map(({ id }, at) => head(id, colors[at])));
    const none = element("td", { colspan: 3, class: "wan-hint" }, t("Nothing differs."));
    const rows = keys.map((key) => row(key, runs));
    fill(this.rows, ...(rows.length ? rows : [element("tr", {}, none)]));
  }

  /** Draws the newest previews, if any. @param {Summary[]} runs */
  #play(runs) {
    const sources = runs.map(({ id, preview }) =>
      preview ? this.address(samplePath(id, preview)) : "",
    );
    if (this.clips.dataset.of === String(sources)) return;
    mark(this.clips, "data-of", String(sources));
    for (const video of this.clips.querySelectorAll("video")) {
      video.removeAttribute("src");
      video.load();
    }
    const cells = sources.map((source) => element("td", {}, source ? clip(source) : null));
    fill(this.clips, ...(sources.some(Boolean) ? [element("td", {}), ...cells] : []));
  }
}

/** @param {string} run @param {string} color */
function head(run, color) {
  const made = element("span", {});
  writeName(made, run);
  const cell = element("th", { scope: "col", title: run }, made);
  cell.style.borderTopColor = color;
  return cell;
}

/** @param {string} key @param {Summary[]} runs */
function row(key, runs) {
  const best = bestOf(key, runs);
  const cells = runs.map((run) => {
    const value = key === "state" ? stateName(run.state) : cellText(run, key, 0);
    const isBest = best !== null && figureOf(run, key) === best;
    return element("td", { "data-best": String(isBest) }, value || "–");
  });
  return element("tr", {}, element("th", { scope: "row" }, titleOf(key)), ...cells);
}

/** @param {string} source */
function clip(source) {
  const video = element("video", {
    loop: true,
    playsinline: true,
    autoplay: !matchMedia("(prefers-reduced-motion: reduce)").matches,
    "aria-label": t("Newest preview"),
  });
  video.muted = true;
  video.src = source;
  return video;
}
