// @ts-check
/** The runs as a table of what differs between them: found by their names, sorted by any column, grouped by name, the best in bold. */

import { element, fill, toggle } from "../page/dom.mjs";
import { t } from "../page/words.mjs";
import { short } from "../run/format.mjs";
import { bestOf, columnsOf, grouped, named, sorted } from "./differences.mjs";

/** @typedef {import("../page/routes.mjs").Summary} Summary */

export class RunTable {
  constructor() {
    /** @type {Summary[]} */
    this.runs = [];
    /** @type {import("./differences.mjs").Order | null} */
    this.order = null;
    /** Whether runs of one name stand together, each group with a best of its own. */
    this.groups = false;
    /** What is drawn: made anew only when it changes, so that nobody loses the button they are on. */
    this.drawn = "";
    this.find = element("input", {
      type: "search",
      placeholder: t("Find runs by name"),
      "aria-label": t("Find runs by name"),
      oninput: () => this.draw(),
    });
    this.table = element("table", { class: "wan-table" });
    this.element = element(
      "div",
      { class: "wan-table-box" },
      element(
        "span",
        {},
        this.find,
        toggle(
          t("Group by name"),
          t("Runs of one name together, the best of each in bold"),
          false,
          (on) => {
            this.groups = on;
            this.draw();
          },
        ),
      ),
      element("div", { class: "wan-table-scroll" }, this.table),
    );
  }

  /** @param {Summary[]} runs */
  update(runs) {
    this.runs = runs;
    this.draw();
  }

  draw() {
    const found = sorted(named(this.runs, this.find.value), this.order);
    /** @type {[string, Summary[]][]} */
    const groups = this.groups ? grouped(found) : [["", found]];
    const columns = columnsOf(groups.flatMap(([, runs]) => runs));
    const drawn = JSON.stringify([found.map((run) => run.id), columns, this.order, this.groups]);
    if (drawn === this.drawn) return;
    this.drawn = drawn;
    const heads = [{ key: "id" }, ...columns].map(({ key }) => this.head(key));
    let from = 0;
    const bodies = groups.map(([name, runs]) => {
      const part = columns.map(({ key, setting, values }) => {
        const own = values.slice(from, from + runs.length);
        return { values: own, best: setting ? null : bestOf(key, own) };
      });
      from += runs.length;
      const head = this.groups && runs.length > 1 ? [groupHead(name, columns.length + 1)] : [];
      return element("tbody", {}, ...head, ...runs.map((run, row) => line(run, row, part)));
    });
    fill(this.table, element("thead", {}, element("tr", {}, ...heads)), ...bodies);
  }

  /** @param {string} key */
  head(key) {
    const down = this.order?.key === key ? this.order.down : null;
    const made = element("th", {
      scope: "col",
      "aria-sort": down === null ? "none" : down ? "descending" : "ascending",
    });
    const press = element(
      "button",
      { type: "button", onclick: () => this.sort(key) },
      `${titleOf(key)}${down === null ? "" : down ? " ▾" : " ▴"}`,
    );
    made.append(press);
    return made;
  }

  /** Ascending, then descending, then as listed. @param {string} key */
  sort(key) {
    const same = this.order?.key === key ? this.order : null;
    this.order = same?.down ? null : { key, down: Boolean(same) };
    this.draw();
  }
}

/** @param {Summary} run @param {number} row @param {{ values: unknown[], best: number | null }[]} columns */
function line(run, row, columns) {
  return element(
    "tr",
    {},
    element("th", { scope: "row" }, run.id),
    ...columns.map(({ values, best }) => cell(values[row], best)),
  );
}

/** @param {string} name @param {number} wide columns */
function groupHead(name, wide) {
  const made = element("th", { scope: "rowgroup", class: "wan-group" }, name);
  made.setAttribute("colspan", `${wide}`);
  return element("tr", {}, made);
}

/** @param {string} key */
function titleOf(key) {
  /** @type {Record<string, string>} */
  const told = {
    id: t("run"),
    step: t("step"),
    loss: t("loss"),
    eval_loss: t("evaluation"),
    seconds_per_step: t("s/step"),
  };
  return told[key] ?? key;
}

/** @param {unknown} value @param {number | null} best */
function cell(value, best) {
  const text = typeof value === "number" ? number(value) : value === null ? "" : String(value);
  const made = element("td", {});
  made.append(best !== null && value === best ? element("strong", {}, text) : text);
  return made;
}

/** @param {number} value */
function number(value) {
  return Number.isInteger(value) ? `${value}` : short(value, 4);
}
