// @ts-check
/** The head of a group of runs: folds the group, and compares all its runs. */

import { element, mark, write } from "../page/dom.mjs";
import { counted, t } from "../page/words.mjs";

/** @typedef {import("../page/routes.mjs").Summary} Summary */

export class GroupRow {
  /** @param {(name: string) => void} fold @param {(runs: Summary[], on: boolean) => void} compare */
  constructor(fold, compare) {
    /** @type {import("./differences.mjs").Group} */
    this.group = { name: "", runs: [] };
    this.check = element("input", {
      type: "checkbox",
      onchange: () => compare(this.group.runs, this.check.checked),
    });
    this.name = element("button", {
      type: "button",
      class: "wan-open",
      onclick: () => fold(this.group.name),
    });
    this.cell = element("td", { class: "wan-group" }, element("div", {}, this.check, this.name));
    this.element = element("tr", {}, this.cell);
  }

  /** Called when the row leaves the view. */
  leave() {
    this.element.remove();
  }

  /**
   * @param {import("./differences.mjs").Group} group
   * @param {{ wide: number, open: boolean, compared: number, index: number }} view `compared`: number of its compared runs
   */
  update(group, { wide, open, compared, index }) {
    this.group = group;
    const count = group.runs.length;
    mark(this.element, "aria-rowindex", String(index));
    mark(this.cell, "colspan", String(wide));
    mark(this.name, "aria-expanded", String(open));
    write(this.name, `${open ? "▾" : "▸"} ${heading(group.name, count)}`);
    mark(this.check, "aria-label", t("Compare all of {name}", { name: group.name }));
    this.check.checked = compared === count;
    this.check.indeterminate = compared > 0 && compared < count;
  }
}

/** @param {string} name @param {number} n number of its runs */
function heading(name, n) {
  return counted(n, "{name}, 1 run", "{name}, {n} runs", { name });
}
