// @ts-check
/** The card of Wan Train Settings: how often each timestep will be trained; it follows the widgets. */

import { color } from "../chart/chart.mjs";
import { isDark, theme } from "../chart/plot.mjs";
import { element, fill, mark, write } from "../page/dom.mjs";
import { inOneText, t } from "../page/words.mjs";
import { Card } from "./card.mjs";
import { paint } from "./density_plot.mjs";
import {
  drawable,
  drawOf,
  percent,
  quarters,
  rangeOf,
  readingAt,
  sentences,
} from "./timesteps.mjs";

/** @typedef {import("./timesteps.mjs").Trainer} Trainer */

const HEIGHT = 120;
const SHARPEST = 4;
const STEP = 10;

export class DensityCard extends Card {
  /**
   * @param {import("../page/pacing.mjs").Frames} frames
   * @param {() => void} grew
   * @param {() => { widgets: import("./card_facts.mjs").Widgets, trainers: Trainer[] }} facts called for each redraw
   */
  constructor(frames, grew, facts) {
    super(frames, { label: t("Timesteps that are trained"), kind: "density", grew });
    this.facts = facts;
    /** The timestep under the mouse pointer. @type {number | null} */
    this.cursor = null;
    this.canvas = element("canvas", {
      class: "wan-canvas",
      role: "img",
      tabindex: 0,
      onkeydown: (/** @type {KeyboardEvent} */ event) => this.move(event),
      onpointermove: (/** @type {PointerEvent} */ event) => this.point(event),
      onpointerleave: () => this.read(null),
      onblur: () => this.read(null),
    });
    this.reading = element("div", { class: "wan-reading" });
    this.box = element(
      "div",
      { class: "wan-plot", "data-high": HEIGHT },
      element("div", { class: "wan-canvas-box" }, this.canvas, this.reading),
    );
    this.quarters = element("dl", { class: "wan-facts" });
    this.said = element("p", { class: "wan-hint" });
    const title = element("h4", {}, t("Timesteps that are trained"));
    fill(this.body, title, this.box, this.quarters, this.said);
    this.ask();
  }

  draw() {
    const { widgets, trainers } = this.facts();
    const range = rangeOf(trainers);
    const draw = drawOf(widgets, range);
    const sound = draw !== null && drawable(draw);
    this.box.hidden = !sound;
    this.quarters.hidden = !sound;
    const lines = draw
      ? sentences(draw, range)
      : [t("The curve cannot be drawn: one of the values is not valid.")];
    write(this.said, inOneText(lines));
    mark(this.canvas, "aria-label", inOneText(lines));
    if (draw && sound) this.plot(draw, range.boundary);
    super.draw();
  }

  /** @param {import("./density.mjs").Draw} draw @param {number | null} boundary */
  plot(draw, boundary) {
    this.tell(draw);
    const [width, height] = [this.canvas.clientWidth, this.canvas.clientHeight];
    if (!width || !height) return;
    const style = getComputedStyle(this.canvas);
    const context = /** @type {CanvasRenderingContext2D} */ (this.canvas.getContext("2d"));
    // As many pixels as the screen shows at the page's zoom, up to a limit.
    const zoom = this.canvas.getBoundingClientRect().width / width;
    const sharp = Math.min(SHARPEST, Math.max(1, devicePixelRatio * zoom));
    const [wide, high] = [Math.round(width * sharp), Math.round(height * sharp)];
    if (this.canvas.width !== wide || this.canvas.height !== high) {
      Object.assign(this.canvas, { width: wide, height: high });
    }
    context.setTransform(sharp, 0, 0, sharp, 0, 0);
    const view = { draw, whole: { ...draw, low: 0, high: 1 }, boundary, cursor: this.cursor };
    const ink = color(0, isDark(style.backgroundColor));
    this.plan = paint(context, view, width, height, theme(style), ink);
  }

  /** @param {import("./density.mjs").Draw} draw */
  tell(draw) {
    const parts = quarters(draw).map(({ from, to, part }) =>
      element("div", {}, element("dt", {}, `${from}–${to}`), element("dd", {}, percent(part))),
    );
    fill(this.quarters, ...parts);
    write(this.reading, this.cursor === null ? "" : readingAt(draw, this.cursor));
  }

  /** @param {PointerEvent} event */
  point(event) {
    const box = this.canvas.getBoundingClientRect();
    const place = ((event.clientX - box.left) / (box.width || 1)) * this.canvas.clientWidth;
    this.read(this.plan ? 1000 * this.plan.from(place) : null);
  }

  /** Moves the cursor with the arrow keys, starting from the middle. @param {KeyboardEvent} event */
  move(event) {
    const way = { ArrowLeft: -STEP, ArrowRight: STEP }[event.key];
    if (!way) return;
    event.preventDefault();
    event.stopPropagation();
    this.read((this.cursor ?? 500) + way);
  }

  /** @param {number | null} at a timestep */
  read(at) {
    const cursor = at === null ? null : Math.min(1000, Math.max(0, Math.round(at)));
    if (cursor === this.cursor) return;
    this.cursor = cursor;
    this.ask();
  }
}
