// @ts-check
/** A chart with smoothing slider, switches, legend and values; drawn on request, at most once per frame. */

import { element, fill, mark, toggle, write } from "../page/dom.mjs";
import { t } from "../page/words.mjs";
import { draw, ink, reading } from "./chart.mjs";

/**
 * @typedef {import("./chart.mjs").Curve} Curve
 * @typedef {import("./chart.mjs").View} View
 * @typedef {{ name: string, place?: number, faded?: boolean, loss?: import("../run/series.mjs").Series,
 *   evaluation?: import("../run/series.mjs").Series }} Line `place`: index of its colour and dashes; default: its index
 * @typedef {{ lines: Line[], saves?: import("../run/series.mjs").Point[], samples?: import("../run/series.mjs").Point[],
 *   priors?: Line[], levels?: Line[], best?: number | null, overfitsFrom?: number | null, marks?: { step: number }[], skipped?: { step: number }[], timesteps?: number[], steps?: number,
 *   summary: string, empty: string }} Facts
 */

const SHARPEST = 4;

export class Plot {
  /**
   * @param {import("../page/pacing.mjs").Frames} frames
   * @param {() => Facts} facts called for each redraw
   * @param {{ dots?: boolean, timesteps?: boolean, legend?: boolean }} options `legend`: false if the caller has its own
   */
  constructor(frames, facts, { dots = true, timesteps = true, legend = true } = {}) {
    this.facts = facts;
    this.dots = dots;
    this.smoothing = 0.4;
    this.log = false;
    this.histogram = false;
    /** Whether the chart shows the evaluation of each timestep instead of the mean. */
    this.byLevel = false;
    /** @type {number | null} */
    this.cursor = null;
    /** Number of draws. */
    this.draws = 0;
    this.dark = true;
    /** The last drawn view. @type {View | null} */
    this.view = null;
    /** @type {import("./chart.mjs").Plan | null} */
    this.plan = null;
    this.ask = () => frames.ask(this.draw);
    this.draw = this.draw.bind(this);
    this.canvas = element("canvas", {
      class: "wan-canvas",
      role: "img",
      tabindex: 0,
      onkeydown: (/** @type {KeyboardEvent} */ event) => this.moveCursor(event),
      onpointermove: (/** @type {PointerEvent} */ event) => this.point(event),
      onpointerleave: () => this.read(null),
      onblur: () => this.read(null),
    });
    this.reading = element("div", { class: "wan-reading" });
    this.empty = element("div", { class: "wan-empty" });
    this.legend = element("ul", { class: "wan-legend" });
    this.hasLegend = legend;
    /** Smoothing and switches, above the canvas unless the caller moves them. */
    this.controls = this.makeControls(timesteps);
    this.element = element(
      "div",
      { class: "wan-plot" },
      this.controls,
      element("div", { class: "wan-canvas-box" }, this.canvas, this.empty, this.reading),
      legend ? this.legend : null,
    );
    new ResizeObserver(this.ask).observe(this.canvas);
  }

  /** @param {boolean} timesteps */
  makeControls(timesteps) {
    const slider = element("input", {
      type: "range",
      min: 0,
      max: 100,
      step: 1,
      value: this.smoothing * 100,
      oninput: () => {
        this.smoothing = Number(slider.value) / 100;
        this.ask();
      },
    });
    const log = toggle(t("log"), t("Logarithmic loss axis"), this.log, (on) => {
      this.log = on;
      this.ask();
    });
    const bins = toggle(
      t("timesteps"),
      t("How often each noise level was trained"),
      this.histogram,
      (on) => {
        this.histogram = on;
        this.ask();
      },
    );
    const levels = toggle(
      t("by timestep"),
      t("The evaluation loss at each timestep instead of their mean"),
      this.byLevel,
      (on) => {
        this.byLevel = on;
        this.ask();
      },
    );
    const label = element("label", { class: "wan-slider" }, `${t("smoothing")} `, slider);
    return element(
      "div",
      { class: "wan-controls" },
      label,
      log,
      timesteps ? bins : null,
      timesteps ? levels : null,
    );
  }

  draw() {
    const box = this.canvas.getBoundingClientRect();
    const [width, height] = [this.canvas.clientWidth, this.canvas.clientHeight];
    if (!width || !height) return;
    this.draws += 1;
    const style = getComputedStyle(this.canvas);
    const facts = this.facts();
    this.view = this.look(facts, isDark(style.backgroundColor));
    const context = /** @type {CanvasRenderingContext2D} */ (this.canvas.getContext("2d"));
    // As many pixels as the screen shows at the page's zoom, up to a limit.
    const sharp = Math.min(SHARPEST, Math.max(1, devicePixelRatio * (box.width / width)));
    const [wide, high] = [Math.round(width * sharp), Math.round(height * sharp)];
    if (this.canvas.width !== wide || this.canvas.height !== high) {
      Object.assign(this.canvas, { width: wide, height: high });
    }
    context.setTransform(sharp, 0, 0, sharp, 0, 0);
    this.plan = draw(context, this.view, width, height, theme(style));
    this.tell(facts, this.view);
  }

  /** @param {Facts} facts @param {boolean} dark @returns {View} */
  look(facts, dark) {
    this.dark = dark;
    const losses = [...facts.lines, ...(facts.priors ?? [])];
    const lines = this.byLevel && facts.levels?.length ? facts.levels : losses;
    return {
      ...facts,
      curves: lines.map((line, index) => ({ ...line, ...ink(line.place ?? index, dark) })),
      timesteps: this.histogram ? facts.timesteps : null,
      log: this.log,
      smoothing: this.smoothing,
      dots: this.dots,
      cursor: this.cursor,
    };
  }

  /** @param {Facts} facts @param {View} view */
  tell(facts, view) {
    write(this.empty, this.plan ? "" : facts.empty);
    mark(this.canvas, "aria-label", this.plan ? facts.summary : facts.empty);
    write(this.reading, this.cursor === null ? "" : reading(view, this.cursor));
    if (!this.hasLegend) return;
    const rows = [...view.curves.map(legendText), ...markerTexts(facts, warning(this.dark))];
    const known = rows.map((row) => `${row.text}${row.color}${row.written}`).join("|");
    if (this.legend.dataset.known === known) return;
    this.legend.dataset.known = known;
    fill(this.legend, ...rows.map(legendRow));
  }

  /** @param {PointerEvent} event */
  point(event) {
    const box = this.canvas.getBoundingClientRect();
    const place = ((event.clientX - box.left) / (box.width || 1)) * this.canvas.clientWidth;
    this.read(this.plan ? Math.max(0, Math.round(this.plan.x.from(place))) : null);
  }

  /** Moves the cursor with the arrow keys, starting from the newest or the first step. @param {KeyboardEvent} event */
  moveCursor(event) {
    const way = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!way || !this.view) return;
    event.preventDefault();
    event.stopPropagation();
    const steps = this.view.curves.flatMap((curve) =>
      (curve.loss?.points ?? []).map((point) => point.step),
    );
    const order = [...new Set(steps)].sort((a, b) => way * (a - b));
    const from = this.cursor ?? way * Number.NEGATIVE_INFINITY;
    this.read(order.find((step) => way * (step - from) > 0) ?? this.cursor);
  }

  /** @param {number | null} step */
  read(step) {
    if (step === this.cursor) return;
    this.cursor = step;
    this.ask();
  }
}

/** @param {Curve} curve */
function legendText({ name, color: ink, loss, evaluation }) {
  const curve = name || t("loss");
  if (!loss && evaluation?.length) return { text: `◆ ${curve}`, color: ink, written: "" };
  const text = evaluation?.length ? t("{curve} (◆ evaluation)", { curve }) : curve;
  return { text, color: ink, written: "" };
}

/** @param {Facts} facts @param {string} warns colour of problems, as in the chart */
function markerTexts({ saves, samples, best, overfitsFrom, marks, skipped }, warns) {
  const texts = [
    saves?.length ? t("▲ saved") : "",
    samples?.length ? t("▶ preview") : "",
    best ? t("★ suggested: step {step}", { step: best }) : "",
    overfitsFrom ? t("▒ over-fits after step {step}", { step: overfitsFrom }) : "",
    marks?.length ? t("⚠ problem at step {step}", { step: steps(marks) }) : "",
    skipped?.length ? t("× skipped: not finite") : "",
  ];
  const written = (/** @type {string} */ text) => (/^[⚠×]/.test(text) ? warns : "");
  return texts.filter(Boolean).map((text) => ({ text, color: "", written: written(text) }));
}

/** The newest marks. @param {{ step: number }[]} marks */
function steps(marks) {
  return [...new Set(marks.map((one) => one.step))].slice(-5).join(", ");
}

/** @param {{ text: string, color: string, written: string }} row `written`: text colour, "" for the default */
function legendRow({ text, color: ink, written }) {
  const swatch = ink ? element("span", { class: "wan-swatch", "aria-hidden": "true" }) : null;
  if (swatch) swatch.style.backgroundColor = ink;
  const row = element("li", {}, swatch, text);
  row.style.color = written;
  return row;
}

/** @param {CSSStyleDeclaration} style */
export function theme(style) {
  return {
    text: style.color,
    ground: style.backgroundColor,
    grid: style.getPropertyValue("--wan-line").trim() || "#8884",
    marker: style.getPropertyValue("--wan-muted-ink").trim() || style.color,
    warning: warning(isDark(style.backgroundColor)),
  };
}

/** Colour of problems. @param {boolean} dark */
function warning(dark) {
  return dark ? "#ffb02e" : "#b45309";
}

/**
 * Whether a background needs light text.
 * @param {string} ground as the browser computes it: rgb(r, g, b) or color(srgb r g b)
 */
export function isDark(ground) {
  const [red, green, blue] = (ground.match(/[\d.]+/g) ?? ["0", "0", "0"]).map(Number);
  const light = 0.2126 * red + 0.7152 * green + 0.0722 * blue;
  return ground.startsWith("color") ? light < 0.5 : light < 128;
}
