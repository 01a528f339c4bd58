// @ts-check
/**
 * Draws curves of runs on a canvas: dots, a smoothed line, evaluation losses, markers of saves and previews, and how
 * often each noise level was drawn. Keeps nothing; what is drawn where is `layout`, which needs no page.
 */

import { t } from "../page/words.mjs";
import { short } from "../run/format.mjs";
import { halfLife, smooth } from "../run/series.mjs";
import { range, scale, ticks } from "./axes.mjs";

/**
 * @typedef {import("../run/series.mjs").Point} Point
 * @typedef {import("../run/series.mjs").Series} Series
 * @typedef {{ name: string, color: string, loss?: Series, evaluation?: Series }} Curve
 * @typedef {{ curves: Curve[], saves?: Point[], samples?: Point[], timesteps?: number[] | null, log: boolean,
 *   best?: number | null, overfitsFrom?: number | null,
 *   smoothing: number, steps?: number, dots?: boolean, cursor?: number | null }} View
 * @typedef {{ text: string, grid: string, ground: string, marker: string }} Theme
 */

const LEFT = 46;
const RIGHT = 16;
const TOP = 8;
const BOTTOM = 20;
const HISTOGRAM = 44;
const DOT = 2;

/** Told apart on dark and on light ground, by those who see fewer colours too: chart.test.mjs measures it. */
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

/**
 * Ranges, scales and lines for a place of `width` by `height`.
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
    ...[...all.map((one) => one.points), ...evaluations].map((p) => p.at(-1)?.step ?? -Infinity),
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
 * @returns {Plan | null} where things are, or null when there was nothing to draw
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
  context.rect(LEFT, 0, width - LEFT - RIGHT + 4, plan.floor + 3);
  context.clip();
  view.curves.forEach((curve, index) => {
    if (view.dots !== false) drawDots(context, plan, plan.dots[index], curve.color);
    drawLine(context, plan, plan.lines[index], curve.color, 2);
    drawEvaluations(context, plan, plan.evaluations[index], curve.color, theme);
  });
  context.restore();
  if (view.best) drawStar(context, plan, view.best, theme);
  if (view.timesteps)
    drawTimesteps(context, view.timesteps, plan.floor + BOTTOM, width, height, theme);
  if (view.cursor !== null && view.cursor !== undefined)
    drawCursor(context, plan, view.cursor, theme);
  return plan;
}

/**
 * What stands at a step: the nearest point of each curve.
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

/** @param {CanvasRenderingContext2D} context @param {Plan} plan @param {number} width @param {Theme} theme */
function drawGrid(context, plan, width, theme) {
  context.font = "11px sans-serif";
  context.lineWidth = 1;
  context.strokeStyle = theme.grid;
  context.fillStyle = theme.text;
  context.textBaseline = "middle";
  context.textAlign = "right";
  for (const tick of plan.yTicks) {
    const y = Math.round(plan.y.at(tick)) + 0.5;
    segment(context, LEFT, y, width - RIGHT, y);
    context.fillText(short(tick, 3), LEFT - 6, y);
  }
  context.textBaseline = "top";
  context.textAlign = "center";
  for (const tick of plan.xTicks) context.fillText(String(tick), plan.x.at(tick), plan.floor + 6);
  segment(context, LEFT, plan.floor + 0.5, width - RIGHT, plan.floor + 0.5);
}

/** @param {CanvasRenderingContext2D} context @param {Plan} plan @param {View} view @param {Theme} theme */
function drawMarkers(context, plan, view, theme) {
  context.strokeStyle = theme.grid;
  context.fillStyle = theme.marker;
  context.setLineDash([2, 3]);
  for (const { step } of view.saves ?? []) {
    const x = Math.round(plan.x.at(step)) + 0.5;
    segment(context, x, TOP, x, plan.floor);
  }
  context.setLineDash([]);
  for (const { step } of view.saves ?? []) {
    const x = plan.x.at(step);
    polygon(context, [x - 4, plan.floor], [x + 4, plan.floor], [x, plan.floor - 7]);
  }
  for (const { step } of view.samples ?? []) {
    const x = plan.x.at(Math.max(step, plan.x.from(LEFT)));
    polygon(context, [x - 3, 1], [x - 3, 9], [x + 4, 5]);
  }
}

/**
 * The steps in which a run over-fits, shaded.
 * @param {CanvasRenderingContext2D} context
 * @param {Plan} plan
 * @param {number} from
 * @param {number} width
 * @param {Theme} theme
 */
function drawOverfit(context, plan, from, width, theme) {
  const left = plan.x.at(from);
  context.globalAlpha = 0.5;
  context.fillStyle = theme.grid;
  context.fillRect(left, TOP, Math.max(0, width - RIGHT - left), plan.floor - TOP);
  context.globalAlpha = 1;
}

/** @param {CanvasRenderingContext2D} context @param {Plan} plan @param {number} step @param {Theme} theme */
function drawStar(context, plan, step, theme) {
  const [x, y] = [plan.x.at(step), starHeight(plan, step)];
  const corners = Array.from({ length: 10 }, (_, index) => {
    const [far, turn] = [index % 2 ? 4 : 9, (index * Math.PI) / 5];
    return /** @type {[number, number]} */ ([x + far * Math.sin(turn), y - far * Math.cos(turn)]);
  });
  context.fillStyle = theme.text;
  context.strokeStyle = theme.ground;
  polygon(context, ...corners);
  context.stroke();
}

/** On the evaluation curve, else above the mark of the save. @param {Plan} plan @param {number} step */
function starHeight(plan, step) {
  const found = plan.evaluations.flat().find((point) => point.step === step);
  return found && found.value > plan.lowest ? plan.y.at(found.value) : plan.floor - 18;
}

/** @param {CanvasRenderingContext2D} context @param {Plan} plan @param {Point[]} points @param {string} ink */
function drawDots(context, plan, points, ink) {
  const many = points.length > 300;
  context.globalAlpha = many ? 0.45 : 0.75;
  context.fillStyle = ink;
  const size = many ? DOT : DOT + 1;
  for (const { step, value } of points) {
    if (value > plan.lowest)
      context.fillRect(plan.x.at(step) - size / 2, plan.y.at(value) - size / 2, size, size);
  }
  context.globalAlpha = 1;
}

/**
 * @param {CanvasRenderingContext2D} context
 * @param {Plan} plan
 * @param {Point[]} points
 * @param {string} ink
 * @param {number} width
 */
function drawLine(context, plan, points, ink, width) {
  context.strokeStyle = ink;
  context.lineWidth = width;
  context.lineJoin = "round";
  context.beginPath();
  for (const { step, value } of points)
    if (value > plan.lowest) context.lineTo(plan.x.at(step), plan.y.at(value));
  context.stroke();
  context.lineWidth = 1;
}

/**
 * @param {CanvasRenderingContext2D} context
 * @param {Plan} plan
 * @param {Point[]} points
 * @param {string} ink
 * @param {Theme} theme
 */
function drawEvaluations(context, plan, points, ink, theme) {
  context.setLineDash([5, 4]);
  drawLine(context, plan, points, ink, 1.5);
  context.setLineDash([]);
  context.strokeStyle = theme.ground;
  for (const { step, value } of points) {
    if (!(value > plan.lowest)) continue;
    const [x, y] = [plan.x.at(step), plan.y.at(value)];
    context.fillStyle = ink;
    polygon(context, [x - 5, y], [x, y - 5], [x + 5, y], [x, y + 5]);
    context.stroke();
  }
}

/**
 * @param {CanvasRenderingContext2D} context
 * @param {number[]} counts
 * @param {number} top
 * @param {number} width
 * @param {number} height
 * @param {Theme} theme
 */
function drawTimesteps(context, counts, top, width, height, theme) {
  const most = Math.max(...counts, 1);
  const wide = (width - LEFT - RIGHT) / counts.length;
  const floor = height - 14;
  context.fillStyle = theme.marker;
  counts.forEach((count, index) => {
    const high = (count / most) * (floor - top - 2);
    context.fillRect(LEFT + index * wide + 1, floor - high, wide - 2, high);
  });
  context.strokeStyle = theme.grid;
  segment(context, LEFT, floor + 0.5, width - RIGHT, floor + 0.5);
  context.fillStyle = theme.text;
  context.textBaseline = "top";
  context.textAlign = "left";
  context.fillText("0", LEFT, floor + 3);
  context.textAlign = "center";
  context.fillText(t("timestep"), (LEFT + width - RIGHT) / 2, floor + 3);
  context.textAlign = "right";
  context.fillText("1000", width - RIGHT, floor + 3);
}

/** @param {CanvasRenderingContext2D} context @param {Plan} plan @param {number} step @param {Theme} theme */
function drawCursor(context, plan, step, theme) {
  context.strokeStyle = theme.text;
  const x = Math.round(plan.x.at(step)) + 0.5;
  segment(context, x, TOP, x, plan.floor);
}

/** @param {CanvasRenderingContext2D} context @param {number} x @param {number} y @param {number} toX @param {number} toY */
function segment(context, x, y, toX, toY) {
  context.beginPath();
  context.moveTo(x, y);
  context.lineTo(toX, toY);
  context.stroke();
}

/** @param {CanvasRenderingContext2D} context @param {[number, number][]} corners */
function polygon(context, ...corners) {
  context.beginPath();
  for (const [x, y] of corners) context.lineTo(x, y);
  context.closePath();
  context.fill();
}
