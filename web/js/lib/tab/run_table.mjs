// @ts-check
/**
 * A table of runs and of the settings that differ: sorted by any column, grouped by name, best values bold. It draws only
 * rows in view; arrow keys reach all rows.
 */

import { element, fill, mark, wordsOf, writeName } from "../page/dom.mjs";
import { t } from "../page/words.mjs";
import { bestOf, columnsOf, grouped, sorted } from "./differences.mjs";
import { GroupRow } from "./group_row.mjs";
import { cellText, RunRow } from "./run_row.mjs";
import { inView, scrolledTo } from "./window.mjs";

/**
 * @typedef {import("../page/routes.mjs").Summary} Summary
 * @typedef {import("./differences.mjs").Column} Column
 * @typedef {import("./differences.mjs").Group} Group
 * @typedef {{ group: Group, bests: Record<string, number | null>, run: Summary | null }} Item a run, or a group's head (null)
 * @typedef {import("./run_row.mjs").RowActions & { ink: (run: string) => import("./run_row.mjs").Ink,
 *   opened: () => string | null, group: (runs: Summary[], on: boolean) => void }} TableActions
 */

/** The same value as in the style sheet. */
const ROW = 36;
const HEAD = 40;
/** Minimum and maximum width of a column in characters, and width of a character in pixels. */
const [NARROW, WIDE, CHARACTER] = [4, 22, 7.6];
/** Width of the column of names, in pixels. */
const [NAME_LEAST, NAME_MOST] = [120, 320];
/** Width of a state shown as a sign only, in pixels. */
const SIGN = 46;
/** Number of columns next to the names that fit without scrolling. */
const FIRST = ["eval_best", "state"];
/** Width of the table in pixels below which states are signs only, and names have no still. */
const SMALL = 420;

export class RunTable {
  /** @param {import("../page/pacing.mjs").Frames} frames @param {TableActions} actions */
  constructor(frames, actions) {
    this.actions = actions;
    /** @type {Summary[]} */
    this.runs = [];
    /** Found runs, sorted. @type {Summary[]} */
    this.shown = [];
    /** @type {Item[]} */
    this.items = [];
    /** @type {Column[]} */
    this.columns = [];
    /** @type {import("./differences.mjs").Order | null} */
    this.order = null;
    /** Whether runs are grouped by name; each group has its own best values. */
    this.groups = false;
    /** Names of folded groups. @type {Set<string>} */
    this.folded = new Set();
    /** Drawn rows, by run or group. @type {Map<string, RunRow | GroupRow>} */
    this.rows = new Map();
    this.drawn = "";
    /** The table's width at the last layout, in pixels. */
    this.fitted = -1;
    /** Whether the table is too narrow for stills and words of states. */
    this.small = false;
    this.draw = this.draw.bind(this);
    this.ask = () => frames.ask(this.draw);
    this.sizes = element("colgroup");
    this.heads = element("tr", { "aria-rowindex": 1 });
    this.above = space();
    this.below = space();
    this.body = element("tbody", {}, this.above, this.below);
    this.table = element(
      "table",
      { class: "wan-table", "aria-label": t("Training runs") },
      this.sizes,
      element("thead", {}, this.heads),
      this.body,
    );
    this.element = element(
      "div",
      {
        class: "wan-table-scroll",
        tabindex: -1,
        onscroll: this.ask,
        onkeydown: (/** @type {KeyboardEvent} */ event) => this.walk(event),
      },
      this.table,
    );
    new ResizeObserver(this.ask).observe(this.element);
  }

  /** @param {Summary[]} runs the found runs */
  update(runs) {
    this.runs = runs;
    this.arrange();
  }

  /** Computes order, groups and columns. */
  arrange() {
    const all = sorted(this.runs, this.order);
    const groups = this.groups ? grouped(all) : [{ name: "", runs: all }];
    this.shown = groups.flatMap(({ runs }) => runs);
    this.columns = columnsOf(groups);
    this.items = groups.flatMap((group) => {
      const bests = Object.fromEntries(
        this.columns.map(({ key }) => [key, bestOf(key, group.runs)]),
      );
      const rows = group.runs.map((run) => ({ group, bests, run }));
      if (!this.groups || group.runs.length < 2) return rows;
      return [{ group, bests, run: null }, ...(this.folded.has(group.name) ? [] : rows)];
    });
    this.drawHeads();
    this.ask();
  }

  drawHeads() {
    const room = this.element.clientWidth;
    this.small = room > 0 && room < SMALL;
    const columns = this.columns.map(({ key }) => this.width(key));
    const first = columns.filter((_, place) => FIRST.includes(this.columns[place].key));
    const name = Math.min(NAME_MOST, Math.max(NAME_LEAST, room - sum(first)));
    const widths = [name, ...columns];
    this.fitted = room;
    const drawn = JSON.stringify([this.columns, widths, this.order, this.small]);
    if (drawn === this.drawn) return;
    this.drawn = drawn;
    mark(this.table, "data-small", String(this.small));
    fill(this.sizes, ...widths.map((wide) => element("col", { style: `width: ${wide}px` })));
    this.table.style.width = `${sum(widths)}px`;
    const focused = document.activeElement?.closest("th")?.dataset.key;
    fill(this.heads, ...[{ key: "id" }, ...this.columns].map(({ key }) => this.head(key)));
    if (focused) this.heads.querySelector(`[data-key="${focused}"] button`)?.focus();
  }

  /** Width of a column in pixels. @param {string} key */
  width(key) {
    if (key === "state" && this.small) return SIGN;
    const now = Date.now() / 1000;
    const texts = this.shown.map((run) => cellText(run, key, now).length);
    const longest = Math.max(...wordsOf(this.headOf(key)).map((word) => word.length));
    const most = texts.reduce((a, b) => Math.max(a, b), longest);
    const beside = key === "state" ? 6 : 2;
    return Math.round((Math.min(WIDE, Math.max(NARROW, most)) + beside) * CHARACTER);
  }

  /** Title of a column. @param {string} key */
  headOf(key) {
    return this.small && key === "eval_best" ? t("best eval") : titleOf(key);
  }

  /** @param {string} key */
  head(key) {
    const down = this.order?.key === key ? this.order.down : null;
    const sign = down === null ? "" : down ? " ▾" : " ▴";
    const title = element("button", { type: "button", onclick: () => this.sort(key) });
    writeName(title, this.headOf(key) + sign);
    return element(
      "th",
      {
        scope: "col",
        "data-key": key,
        title: titleOf(key),
        "aria-sort": down === null ? "none" : down ? "descending" : "ascending",
      },
      title,
    );
  }

  /** Switches the order of a column: ascending, descending, unsorted. @param {string} key */
  sort(key) {
    const same = this.order?.key === key ? this.order : null;
    this.order = same?.down ? null : { key, down: Boolean(same) };
    this.element.scrollTop = 0;
    this.arrange();
  }

  /** Draws the rows in view. */
  draw() {
    if (this.fitted !== this.element.clientWidth) this.drawHeads();
    const { scrollTop, clientHeight } = this.element;
    const { first, end, above, below } = inView(this.items.length, ROW, scrollTop, clientHeight);
    mark(this.table, "aria-rowcount", String(this.items.length + 1));
    mark(this.table, "aria-colcount", String(this.columns.length + 1));
    const items = this.items.slice(first, end);
    const keys = new Set(items.map(keyOf));
    for (const [key, row] of this.rows) {
      if (keys.has(key)) continue;
      row.leave();
      this.rows.delete(key);
    }
    this.above.style.height = `${above}px`;
    this.below.style.height = `${below}px`;
    const now = Date.now() / 1000;
    /** @type {Element} */
    let before = this.above;
    items.forEach((item, place) => {
      const row = this.row(item);
      if (before.nextElementSibling !== row.element) before.after(row.element);
      before = row.element;
      this.fill(row, item, first + place + 2, now);
    });
  }

  /** @param {Item} item */
  row(item) {
    const key = keyOf(item);
    const made =
      this.rows.get(key) ??
      (item.run
        ? new RunRow(item.run.id, this.actions)
        : new GroupRow((name) => this.fold(name), this.actions.group));
    this.rows.set(key, made);
    return made;
  }

  /** @param {RunRow | GroupRow} row @param {Item} item @param {number} index @param {number} now */
  fill(row, { group, bests, run }, index, now) {
    if (row instanceof GroupRow) {
      const compared = group.runs.filter(({ id }) => this.actions.ink(id) !== null).length;
      const open = !this.folded.has(group.name);
      row.update(group, { wide: this.columns.length + 1, open, compared, index });
    } else if (run) {
      const opened = this.actions.opened() === run.id;
      const view = {
        columns: this.columns,
        bests,
        opened,
        ink: this.actions.ink(run.id),
        index,
        now,
        group: this.groups && group.runs.length > 1 ? group.name : "",
      };
      row.update(run, view);
    }
  }

  /** @param {string} name */
  fold(name) {
    if (!this.folded.delete(name)) this.folded.add(name);
    this.arrange();
  }

  /**
   * Handles keys: arrows, Page Up and Down, Home and End move between all rows, drawn or not.
   * @param {KeyboardEvent} event
   */
  walk(event) {
    const focused = document.activeElement;
    const at = Number(focused?.closest("tr")?.getAttribute("aria-rowindex")) - 2;
    if (!(at >= 0)) return;
    const page = Math.max(1, Math.floor((this.element.clientHeight - HEAD) / ROW) - 1);
    const last = this.items.length - 1;
    /** @type {Record<string, number>} */
    const ways = {
      ArrowUp: at - 1,
      ArrowDown: at + 1,
      PageUp: at - page,
      PageDown: at + page,
      Home: 0,
      End: last,
    };
    if (!(event.key in ways)) return;
    event.preventDefault();
    event.stopPropagation();
    const isCheck = focused instanceof HTMLInputElement;
    this.reach(Math.min(last, Math.max(0, ways[event.key])), isCheck ? "input" : "button");
  }

  /** Moves the focus to a run, if the table has it. @param {string} id */
  focus(id) {
    const place = this.items.findIndex((item) => item.run?.id === id);
    if (place >= 0) this.reach(place, "button");
  }

  /** Scrolls to a row and focuses an element in it. @param {number} place @param {string} what */
  reach(place, what) {
    this.draw(); // updates the scroll height, if a list has come since the last frame
    const { scrollTop, clientHeight } = this.element;
    this.element.scrollTop = scrolledTo(place, ROW, scrollTop, clientHeight, HEAD);
    this.draw();
    const row = this.rows.get(keyOf(this.items[place]));
    /** @type {HTMLElement | null | undefined} */ (row?.element.querySelector(what))?.focus();
  }
}

/** @param {Item} item */
function keyOf({ group, run }) {
  return run ? `run ${run.id}` : `group ${group.name}`;
}

/** @param {number[]} numbers */
function sum(numbers) {
  return numbers.reduce((all, one) => all + one, 0);
}

/** Empty space in place of rows that are not drawn. */
function space() {
  return element("tr", { "aria-hidden": "true", class: "wan-space" });
}

/** @param {string} key */
export function titleOf(key) {
  /** @type {Record<string, string>} */
  const titles = {
    id: t("run"),
    state: t("state"),
    step: t("step"),
    eval_best: t("best evaluation"),
    loss: t("loss"),
    seconds_per_step: t("s/step"),
    updated: t("last change"),
    data: t("data"),
    model: t("model"),
  };
  return titles[key] ?? key;
}
