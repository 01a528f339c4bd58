// @ts-check
/**
 * All previews of a run in a dialog: a row per prompt, a column per step. First frames load when they come into view. A clip
 * plays under the mouse pointer; a button plays all clips in view in sync.
 */

import { button, element, fill, mark, write } from "../page/dom.mjs";
import { samplePath } from "../page/routes.mjs";
import { told } from "../page/server_sentences.mjs";
import { counted, t } from "../page/words.mjs";
import { Cell } from "./cell.mjs";
import { InStep, play } from "./in_step.mjs";
import { Large } from "./large.mjs";
import { Posters } from "./posters.mjs";
import { neighbour, tableOf } from "./table.mjs";

/**
 * @typedef {import("./table.mjs").Sample} Sample
 * @typedef {import("../page/routes.mjs").Detail} Detail
 * @typedef {{ row: number, column: number }} Place
 * @typedef {{ routes: import("../page/routes.mjs").Routes, address: (path: string) => string,
 *   used?: (step: number) => void }} Page `address` turns a route's path into an address for a video element; `used` is
 *   called with the step that became the run's LoRA
 */

/** Milliseconds between two reads of a running run. */
const LOOK = 4000;
/** Maximum number of playing clips; browsers allow about 75. */
const MOST_PLAYING = 40;
/** Milliseconds under the mouse pointer after which a clip plays. */
const POINTED = 120;
/** @type {Record<string, [number, number]>} */
const KEYS = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };

/** Opens the previews of a run in a dialog. @param {string} run @param {Page} page */
export function showPreviews(run, page) {
  const grid = new SamplesGrid(run, page);
  document.body.append(grid.element);
  grid.element.showModal();
  grid.read();
  return grid;
}

export class SamplesGrid {
  /** @type {import("./table.mjs").Table} */
  #table = { columns: [], rows: [] };
  /** Cells by sample id. @type {Map<string, Cell>} */
  #cells = new Map();
  /** @type {WeakMap<Element, Cell>} */
  #byElement = new WeakMap();
  /** Cells in view; the others do not play. @type {Set<Cell>} */
  #seen = new Set();
  /** The cell with the keyboard focus, which is also shown large. @type {Place} */
  #at = { row: 0, column: 0 };
  /** @type {Detail | null} */
  #detail = null;
  #playing = false;
  #drawn = "";
  #timer = 0;
  #pointing = 0;
  /** The cell under the mouse pointer. @type {Cell | null} */
  #pointed = null;
  #inStep = new InStep();
  #posters = new Posters(() => {
    const video = element("video", { preload: "auto", playsinline: true });
    video.muted = true;
    return video;
  });

  /** @param {string} run @param {Page} page */
  constructor(run, { routes, address, used = () => {} }) {
    this.run = run;
    this.routes = routes;
    this.used = used;
    this.address = (/** @type {Sample} */ sample) => address(samplePath(run, sample.id));
    this.large = new Large({
      address: this.address,
      move: (down, right) => this.#move(down, right),
      back: () => this.#closeLarge(),
      use: (step) => this.#use(step),
    });
    this.#build();
    this.near = this.#sight("300px", (cell, isNear) => {
      if (cell.isKnown) return;
      if (!isNear) this.#posters.forget(cell.source);
      else
        this.#posters.want(cell.source, {
          taken: (video) => cell.draw(video),
          failed: () => cell.fail(),
        });
    });
    this.inView = this.#sight("0px", (cell, isSeen) => {
      if (isSeen) this.#seen.add(cell);
      else this.#seen.delete(cell);
      this.#playSeen();
    });
  }

  #build() {
    const title = t("Previews of {run}", { run: this.run });
    this.count = element("span", { class: "wan-count" });
    this.all = button(t("Play all"), t("Plays all visible clips in sync"), () => this.#switch());
    this.said = element("p", { class: "wan-hint", role: "status" }, t("Reading …"));
    this.table = element("table", { class: "wan-grid-table", "aria-label": title });
    this.scroll = element("div", { class: "wan-grid-scroll", tabindex: -1 }, this.table);
    const close = button("✕", t("Close"), () => this.element.close());
    mark(close, "aria-label", t("Close"));
    const heading = element("h2", { title: this.run }, title);
    this.element = element(
      "dialog",
      {
        class: "wan-grid",
        "aria-label": title,
        onclose: () => this.#leave(),
        onkeydown: (event) => this.#key(event),
        onkeyup: (event) => event.stopPropagation(),
      },
      element("header", { class: "wan-grid-head" }, heading, this.count, this.all, close),
      this.said,
      this.scroll,
      this.large.element,
    );
    for (const kind of ["pointerover", "focusin"])
      this.scroll.addEventListener(kind, (event) => this.#point(event.target));
    this.scroll.addEventListener("pointerleave", () => this.#point(null));
  }

  /** @param {string} margin @param {(cell: Cell, isIn: boolean) => void} changed */
  #sight(margin, changed) {
    return new IntersectionObserver(
      (entries) => {
        for (const { target, isIntersecting } of entries) {
          const cell = this.#byElement.get(target);
          if (cell) changed(cell, isIntersecting);
        }
      },
      { root: this.scroll, rootMargin: margin },
    );
  }

  /** Reads the run, and schedules the next read of a running run. */
  async read() {
    clearTimeout(this.#timer);
    try {
      this.#detail = await this.routes.detail(this.run);
      if (!this.element.open) return;
      this.#draw(this.#detail);
    } catch (error) {
      this.#say(told(error instanceof Error ? error.message : String(error)));
    }
    if (this.element.open && this.#detail?.live)
      this.#timer = window.setTimeout(() => this.read(), LOOK);
  }

  /** @param {Detail} detail */
  #draw({ samples = [], saves = [], best = null }) {
    const table = tableOf(samples, saves, best);
    const drawn = JSON.stringify(table);
    if (drawn !== this.#drawn) {
      this.#drawn = drawn;
      this.#table = table;
      const { columns, rows } = table;
      const heads = columns.map((column) => head(column));
      this.table.toggleAttribute("data-before", columns[0]?.step === 0 && columns.length > 1);
      fill(
        this.table,
        element("thead", {}, element("tr", {}, element("td", {}), ...heads)),
        element("tbody", {}, ...rows.map((row, at) => this.#row(row, at))),
      );
      this.#rove(this.#at);
      const many = samples.length;
      write(this.count, many ? counted(many, "1 preview", "{n} previews") : "");
      this.#explain();
    }
    this.all.hidden = !samples.length;
    if (this.large.shown) this.#enlarge(this.#at);
  }

  /** Help on the keys and the mouse. */
  #explain() {
    if (!this.#cells.size) this.#say(t("This run has no clips."));
    else if (this.large.shown) this.#say(t("Arrow keys go through steps and prompts."));
    else this.#say(t("Point at a clip to play it; click it to enlarge it."));
  }

  /** @param {import("./table.mjs").Row} row @param {number} at */
  #row({ title, text, cells }, at) {
    return element(
      "tr",
      {},
      element(
        "th",
        { scope: "row", title: text },
        element("strong", {}, title),
        element("span", {}, text),
      ),
      ...cells.map((sample, column) =>
        element("td", {}, sample && this.#cell(sample, { row: at, column }).element),
      ),
    );
  }

  /** @param {Sample} sample @param {Place} place */
  #cell(sample, place) {
    const known = this.#cells.get(sample.id);
    if (known) return known;
    const { rows, columns } = this.#table;
    const made = new Cell(this.address(sample), {
      label: `${rows[place.row].title}, ${columns[place.column].title}`,
      press: () => this.#enlarge(this.#placeOf(sample) ?? place),
      sized: (shape) => this.table.style.setProperty("--wan-shape", shape),
    });
    this.#cells.set(sample.id, made);
    this.#byElement.set(made.element, made);
    this.near.observe(made.element);
    this.inView.observe(made.element);
    return made;
  }

  /** The current cell of a clip; a running run gets further columns. @param {Sample} sample @returns {Place | null} */
  #placeOf({ id }) {
    const row = this.#table.rows.findIndex(({ cells }) => cells.some((one) => one?.id === id));
    if (row < 0) return null;
    return { row, column: this.#table.rows[row].cells.findIndex((one) => one?.id === id) };
  }

  /** @param {Place} place @returns {Sample | null} */
  #sampleAt({ row, column }) {
    return this.#table.rows[row]?.cells[column] ?? null;
  }

  /** @param {Place} place @returns {Cell | undefined} */
  #cellAt(place) {
    return this.#cells.get(this.#sampleAt(place)?.id ?? "");
  }

  /** Makes one cell reachable with the Tab key; arrow keys move on from there. @param {Place} place */
  #rove(place) {
    this.#cellAt(this.#at)?.element.setAttribute("tabindex", "-1");
    this.#at = this.#sampleAt(place) ? place : neighbour(this.#table, place, 0, 1);
    this.#cellAt(this.#at)?.element.setAttribute("tabindex", "0");
  }

  /** @param {number} down @param {number} right */
  #move(down, right) {
    this.#rove(neighbour(this.#table, this.#at, down, right));
    if (this.large.shown) this.#enlarge(this.#at);
    else this.#cellAt(this.#at)?.element.focus();
  }

  /** @param {KeyboardEvent} event */
  #key(event) {
    event.stopPropagation(); // keeps the key from the canvas's shortcuts
    const isWinding = event.target instanceof HTMLVideoElement;
    if (event.key in KEYS && !isWinding && !event.altKey && !event.ctrlKey && !event.metaKey) {
      event.preventDefault();
      this.#move(...KEYS[event.key]);
    } else if (event.key === "Escape" && this.large.shown) {
      event.preventDefault();
      this.#closeLarge();
    }
  }

  /** @param {Place} place */
  #enlarge(place) {
    const sample = this.#sampleAt(place);
    const detail = this.#detail;
    if (!sample || !detail) return;
    const isOpen = Boolean(this.large.shown);
    this.#rove(place);
    this.#point(null);
    const { columns, rows } = this.#table;
    const { title, about, saved, step } = columns[place.column];
    const canUse = saved && detail.live === false;
    this.large.show({
      sample,
      caption: [title, about].filter(Boolean).join(" · "),
      before: columns[0].step === 0 ? rows[place.row].cells[0] : null,
      canUse,
      isUsed: canUse && detail.in_use === step,
    });
    this.scroll.inert = true;
    this.#playSeen();
    if (isOpen) return;
    this.large.back.focus();
    this.#explain();
  }

  #closeLarge() {
    this.large.hide();
    this.scroll.inert = false;
    this.#cellAt(this.#at)?.element.focus();
    this.#explain();
    this.#playSeen();
  }

  /** @param {number} step the saved step that becomes the run's LoRA */
  async #use(step) {
    try {
      await this.routes.use(this.run, step);
      this.#say(t("Step {step} is the run's LoRA now.", { step }));
      this.used(step);
    } catch (error) {
      this.#say(told(error instanceof Error ? error.message : String(error)));
    }
    await this.read();
  }

  /** Plays only the clip under the mouse pointer. @param {EventTarget | null} target */
  #point(target) {
    const on = target instanceof Element ? target.closest(".wan-grid-clip") : null;
    const cell = on ? (this.#byElement.get(on) ?? null) : null;
    if (cell === this.#pointed) return;
    clearTimeout(this.#pointing);
    if (!this.#playing) this.#pointed?.hide();
    this.#pointed = cell;
    const isStill = matchMedia("(prefers-reduced-motion: reduce)").matches;
    if (!cell || this.#playing || isStill || this.large.shown) return;
    this.#pointing = window.setTimeout(() => {
      const video = cell.show();
      video.loop = true;
      play(video);
    }, POINTED);
  }

  #switch() {
    this.#playing = !this.#playing;
    write(this.all, this.#playing ? t("Pause all") : t("Play all"));
    mark(this.all, "aria-pressed", String(this.#playing));
    this.#playSeen();
  }

  /** Plays the clips in view, and stops all others. */
  #playSeen() {
    const shown = this.#playing && !this.large.shown ? [...this.#seen].slice(0, MOST_PLAYING) : [];
    for (const cell of this.#cells.values()) {
      if (!cell.video || shown.includes(cell)) continue;
      if (!this.#playing && cell === this.#pointed && !this.large.shown) continue;
      this.#inStep.remove(cell.video);
      cell.hide();
    }
    for (const cell of shown) {
      const video = cell.show();
      if (!this.#inStep.clips.has(video)) this.#inStep.add(video);
    }
  }

  /** @param {string} text */
  #say(text) {
    write(this.said, text);
  }

  #leave() {
    clearTimeout(this.#timer);
    clearTimeout(this.#pointing);
    this.#playing = false;
    this.#pointed = null;
    this.#posters.clear();
    for (const sight of [this.near, this.inView]) sight.disconnect();
    this.large.hide();
    this.#playSeen();
    this.element.remove();
  }
}

/** @param {import("./table.mjs").Column} column */
function head({ title, about }) {
  return element("th", { scope: "col" }, element("strong", {}, title), element("span", {}, about));
}
