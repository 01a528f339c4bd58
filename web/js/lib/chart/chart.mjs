// @ts-check
/**
 * Draws curves of runs on a canvas, without state. `layout` computes positions without a page; marks.mjs draws each
 * mark.
 */

import { t } from "../page/words.mjs";
import { short } from "../run/format.mjs";
import { halfLife, smooth } from "../run/series.mjs";
import { range, scale, ticks } from "./axes.mjs";
import {
  BOTTOM,
  drawCursor,
  drawDots,
  drawEvaluations,
  drawGrid,
  drawLine,
  drawMarkers,
  drawOverfit,
  drawStar,
  drawTimesteps,
  drawWarnings,
  LEFT,
  RIGHT,
  TOP,
} from "./marks.mjs";

/**
 * @typedef {import("../run/series.mjs").Point} Point
 * @typedef {import("../run/series.mjs").Series} Series
 * @typedef {{ name: string, color: string, dash?: number, faded?: boolean, loss?: Series, evaluation?: Series }} Curve
 * @typedef {{ curves: Curve[], saves?: Point[], samples?: Point[], timesteps?: number[] | null, log: boolean,
 *   best?: number | null, overfitsFrom?: number | null, marks?: { step: number }[], skipped?: { step: number }[],
 *   smoothing: number, steps?: number, dots?: boolean, cursor?: number | null }} View
 * @typedef {{ text: string, grid: string, ground: string, marker: string, warning: string }} Theme
 */

/** Height of the histogram of noise levels, in CSS pixels. */
const HISTOGRAM = 44;

/** Opacity of the other curves while one is highlighted. */
const FADED = 0.15;

/** Distinguishable on dark and light backgrounds, also with colour blindness (chart.test.mjs measures it). */
export const PALETTES = {
  dark: ["#6cb6ff", "#ffa657", "#39fdb9", "#f10f58", "#f8dd0b", "#886cfe", "#d4e7ff", "#d530a0"],
  light: ["#0b61b8", "#b04a00", "#ec2b61", "#9006ff", "#6d3015", "#4e0db3", "#d16ea8", "#5b2370"],
};

/**
 * @param {number} index
 * @param {boolean} dark
 */
export function color(index, dark) {
  const palette = PALETTES[dark ? "dark" : "light"];
  return palette[index % palette.length];
}

/** Dash patterns of lines of the same colour; with eight colours they give 32 different curves. */
export const DASHES = [[], [9, 4], [2, 3], [9, 3, 2, 3]];

/**
 * Colour and dashes of the curve with index `place`.
 * @param {number} place
 * @param {boolean} dark
 */
export function ink(place, dark) {
  const many = PALETTES.dark.length;
  return { color: color(place % many, dark), dash: Math.floor(place / many) % DASHES.length };
}

/**
 * Ranges, scales and lines for an area of `width` by `height`.
 * @param {View} view
 * @param {number} width
 * @param {number} height
 */
export function layout(view, width, height) {
  const all = view.curves.map((curve) => ({ curve, points: curve.loss?.points ?? [] }));
  const evaluations = view.curves.map((curve) => curve.evaluation?.points ?? []);
  const first = Math.min(
    ...[...all.map((one) => one.points), ...evaluations].map((p) => p[0]?.step ?? Infinity),
  );
  const last = Math.max(
    ...[...all.map((one) => one.points), ...evaluations, view.skipped ?? []].map(
      (p) => p.at(-1)?.step ?? -Infinity,
    ),
  );
  if (!Number.isFinite(first)) return null;
  const xRange = {
    low: Math.min(first, 1),
    high: Math.max(last, first + 1, Math.min(view.steps ?? 0, last * 1.15)),
    log: false,
  };
  const lines = view.curves.map((curve) =>
    smooth(curve.loss?.means ?? [], halfLife(view.smoothing, xRange.high - xRange.low)),
  );
  const shown = [...(view.dots === false ? lines : all.map((one) => one.points)), ...evaluations];
  const yRange = range(values(shown), view.log) ?? { low: 0, high: 1, log: false };
  const floor = height - BOTTOM - (view.timesteps ? HISTOGRAM : 0);
  return {
    x: scale(xRange, LEFT, width - RIGHT),
    y: scale(yRange, floor, TOP),
    xTicks: ticks(xRange, Math.max(2, width / 60)).filter(Number.isInteger),
    yTicks: ticks(yRange, Math.max(2, floor / 40)),
    dots: all.map((one) => one.points),
    lines,
    evaluations,
    floor,
    lowest: yRange.log ? yRange.low : Number.NEGATIVE_INFINITY,
  };
}

/**
 * Draw a view on a canvas context of `width` by `height` CSS pixels.
 * @param {CanvasRenderingContext2D} context
 * @param {View} view
 * @param {number} width
 * @param {number} height
 * @param {Theme} theme
 * @returns {Plan | null} the layout, or null without data
 */
export function draw(context, view, width, height, theme) {
  context.clearRect(0, 0, width, height);
  const plan = layout(view, width, height);
  if (!plan) return null;
  if (view.overfitsFrom) drawOverfit(context, plan, view.overfitsFrom, width, theme);
  drawGrid(context, plan, width, theme);
  drawMarkers(context, plan, view, theme);
  context.save();
  context.beginPath();
  // The left margin shows an evaluation at step 0, which lies on the axis.
  context.rect(LEFT - 5, 0, width - LEFT - RIGHT + 9, plan.floor + 3);
  context.clip();
  const pointed = view.curves.some((curve) => curve.faded);
  view.curves.forEach((curve, index) => {
    if (view.dots !== false) drawDots(context, plan, plan.dots[index], curve.color);
    context.globalAlpha = curve.faded ? FADED : 1;
    context.setLineDash(DASHES[curve.dash ?? 0]);
    drawLine(context, plan, plan.lines[index], curve.color, pointed && !curve.faded ? 3 : 2);
    context.setLineDash([]);
    drawEvaluations(context, plan, plan.evaluations[index], curve.color, theme);
    context.globalAlpha = 1;
  });
  context.restore();
  drawWarnings(context, plan, view, theme);
  if (view.best) drawStar(context, plan, view.best, theme);
  if (view.timesteps)
    drawTimesteps(context, view.timesteps, plan.floor + BOTTOM, width, height, theme);
  if (view.cursor !== null && view.cursor !== undefined)
    drawCursor(context, plan, view.cursor, theme);
  return plan;
}

/**
 * The values at a step: the nearest point of each curve.
 * @param {View} view
 * @param {number} step
 * @returns {string}
 */
export function reading(view, step) {
  const parts = view.curves.flatMap((curve) => {
    const loss = nearest(curve.loss?.points ?? [], step);
    const evaluation = nearest(curve.evaluation?.points ?? [], step);
    const name = curve.name ? `${curve.name} ` : "";
    const text = (/** @type {Point} */ { step, value }) => ({ step, loss: short(value, 4) });
    return [
      loss ? `${name}${t("step {step}: loss {loss}", text(loss))}` : "",
      evaluation ? t("evaluation loss {loss} at step {step}", text(evaluation)) : "",
    ];
  });
  return parts.filter(Boolean).join(", ");
}

/** @param {Point[]} points in order @param {number} step @returns {Point | null} */
function nearest(points, step) {
  let best = points[0] ?? null;
  for (const point of points)
    if (Math.abs(point.step - step) < Math.abs(best.step - step)) best = point;
  return best;
}

/** @param {Point[][]} groups */
function* values(groups) {
  for (const group of groups) for (const point of group) yield point.value;
}

/** @typedef {NonNullable<ReturnType<typeof layout>>} Plan */
