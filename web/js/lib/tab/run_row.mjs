// @ts-check
/** One run as a row of the table: checkbox for comparing, still of the newest preview, state and figures. */

import { element, mark, write, writeName } from "../page/dom.mjs";
import { samplePath } from "../page/routes.mjs";
import { told } from "../page/server_sentences.mjs";
import { t } from "../page/words.mjs";
import { ago, known, short } from "../run/format.mjs";
import { stateName } from "../run/names.mjs";
import { stepOf } from "../run/trouble.mjs";
import { figureOf } from "./differences.mjs";

/**
 * @typedef {import("../page/routes.mjs").Summary} Summary
 * @typedef {import("./differences.mjs").Column} Column
 * @typedef {{ open: (run: string) => void, compare: (run: string, on: boolean) => void, address: (path: string) => string }} RowActions
 * @typedef {{ color: string, dash: number } | null} Ink colour and dashes of its curve; null if it is not compared
 */

/** Milliseconds in view after which a row loads its still; rows that scroll past load nothing. */
const SETTLED = 150;
/** Fragment of an address: 0.1 s into the clip, because the first frame of a fade-in is black. */
const STILL = "#t=0.1";

export class RunRow {
  /** @param {string} id @param {RowActions} actions */
  constructor(id, actions) {
    this.id = id;
    this.actions = actions;
    /** The preview of the shown still. */
    this.shown = "";
    this.check = element("input", {
      type: "checkbox",
      "aria-label": t("Compare {run}", { run: id }),
      onchange: () => actions.compare(id, this.check.checked),
    });
    this.swatch = element("span", { class: "wan-swatch", "aria-hidden": "true" });
    this.still = element("span", { class: "wan-still", "aria-hidden": "true" });
    this.name = element("button", {
      type: "button",
      class: "wan-open",
      title: id,
      "aria-label": id,
      onclick: () => actions.open(id),
    });
    this.state = element("span", { class: "wan-chip" });
    /** @type {HTMLElement[]} */
    this.cells = [];
    this.head = element(
      "th",
      { scope: "row", class: "wan-run-name" },
      element("div", {}, this.check, this.swatch, this.still, this.name),
    );
    this.element = element("tr", {}, this.head);
  }

  /**
   * @param {Summary} run
   * @param {{ columns: Column[], bests: Record<string, number | null>, opened: boolean, ink: Ink, index: number, now: number, group: string }} view
   *   `group`: name of its group, which the row does not repeat
   */
  update(run, { columns, bests, opened, ink, index, now, group }) {
    const isInside = group && run.id !== group && run.id.startsWith(group);
    writeName(this.name, isInside ? run.id.slice(group.length).replace(/^_/, "") : run.id);
    mark(this.element, "aria-rowindex", String(index));
    mark(this.name, "aria-expanded", String(opened));
    this.check.checked = ink !== null;
    this.swatch.hidden = ink === null;
    if (ink) {
      this.swatch.style.color = ink.color;
      mark(this.swatch, "data-dash", String(ink.dash));
    }
    this.show(run.preview ?? "");
    while (this.cells.length < columns.length) {
      const made = element("td", {});
      this.cells.push(made);
      this.element.append(made);
    }
    while (this.cells.length > columns.length) this.cells.pop()?.remove();
    columns.forEach(({ key }, place) => {
      this.write(this.cells[place], run, key, bests[key] ?? null, now);
    });
  }

  /** @param {HTMLElement} cell @param {Summary} run @param {string} key @param {number | null} best @param {number} now */
  write(cell, run, key, best, now) {
    mark(cell, "data-key", key);
    if (key === "state") {
      if (this.state.parentElement !== cell) cell.replaceChildren(this.state);
      write(this.state, stateName(run.state));
      mark(this.state, "data-state", run.live ? "active" : "seen");
      mark(this.state, "data-run-state", run.state);
      const why = run.state === "done" ? "" : told(run.reason ?? "");
      mark(cell, "title", [stateName(run.state), why].filter(Boolean).join(": "));
      return;
    }
    if (cell.contains(this.state)) cell.replaceChildren();
    const text = cellText(run, key, now);
    mark(cell, "title", titleText(run, key, text));
    const is = best !== null && figureOf(run, key) === best;
    mark(cell, "data-best", String(is));
    write(cell, text);
  }

  /** Called when the row leaves the view: removes the clip's source, because browsers limit the number of loaded clips. */
  leave() {
    this.shown = "";
    const clip = this.still.querySelector("video");
    clip?.removeAttribute("src");
    clip?.load();
    this.element.remove();
  }

  /** Loads the still of a preview after the row has been in view for a moment. @param {string} preview */
  show(preview) {
    if (preview === this.shown) return;
    this.shown = preview;
    if (!preview) {
      this.still.replaceChildren();
      return;
    }
    setTimeout(() => {
      // The row is out of view, or the table is too narrow for stills; the next list tries again.
      if (this.shown !== preview || !this.still.clientWidth) {
        this.shown = "";
        return;
      }
      const clip = element("video", {
        muted: true,
        playsinline: true,
        preload: "metadata",
        tabindex: -1,
        src: this.actions.address(samplePath(this.id, preview)) + STILL,
        onerror: () => clip.remove(),
      });
      this.still.replaceChildren(clip);
    }, SETTLED);
  }
}

/** @param {Summary} run @param {string} key @param {number} now unix seconds */
export function cellText(run, key, now) {
  if (key === "step") return `${stepOf(run)} / ${run.steps}`;
  if (key === "updated") return run.updated ? ago(now - run.updated) : "";
  const value = figureOf(run, key);
  if (!known(value) && typeof value !== "string") return value === undefined ? "" : plain(value);
  return typeof value === "number" ? number(value) : value;
}

/** @param {unknown} value */
function plain(value) {
  return value === null ? "" : JSON.stringify(value);
}

/** Tooltip of a cell, for text that does not fit. @param {Summary} run @param {string} key @param {string} text */
function titleText(run, key, text) {
  if (key !== "eval_best" || !text) return text.length > 12 ? text : "";
  const at = t("lowest evaluation, at step {step}", { step: run.eval_best_step ?? 0 });
  return run.eval_held_out === false ? `${at}, ${t("on training clips")}` : at;
}

/** @param {number} value */
function number(value) {
  return Number.isInteger(value) ? `${value}` : short(value, 4);
}
