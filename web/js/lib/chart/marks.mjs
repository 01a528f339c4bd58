// @ts-check
/**
 * The marks of a chart, drawn at planned positions: grid, dots, lines, evaluation losses, saves and previews, the
 * suggested step, and the histogram of noise levels.
 */

import { t } from "../page/words.mjs";
import { short } from "../run/format.mjs";

/**
 * @typedef {import("./chart.mjs").Plan} Plan
 * @typedef {import("./chart.mjs").Theme} Theme
 * @typedef {import("./chart.mjs").View} View
 * @typedef {import("../run/series.mjs").Point} Point
 */

/** Margins around the curves, in CSS pixels. */
export const LEFT = 46;
export const RIGHT = 16;
export const TOP = 8;
export const BOTTOM = 20;
const DOT = 2;

/** @param {CanvasRenderingContext2D} context @param {Plan} plan @param {number} width @param {Theme} theme */
export function drawGrid(context, plan, width, theme) {
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
export function drawMarkers(context, plan, view, theme) {
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
 * Problems at their steps: a vertical line with a warning sign, and a cross at the bottom for a skipped step.
 * @param {CanvasRenderingContext2D} context
 * @param {Plan} plan
 * @param {View} view
 * @param {Theme} theme
 */
export function drawWarnings(context, plan, view, theme) {
  context.strokeStyle = theme.warning;
  context.fillStyle = theme.warning;
  context.lineWidth = 1.5;
  for (const { step } of view.skipped ?? []) {
    const [x, y] = [plan.x.at(step), plan.floor - 4];
    segment(context, x - 3, y - 3, x + 3, y + 3);
    segment(context, x - 3, y + 3, x + 3, y - 3);
  }
  for (const { step } of view.marks ?? []) {
    const x = Math.round(plan.x.at(Math.max(step, plan.x.from(LEFT)))) + 0.5;
    segment(context, x, TOP + 12, x, plan.floor);
    polygon(context, [x - 6, TOP + 12], [x + 6, TOP + 12], [x, TOP + 1]);
  }
}

/**
 * Shades the steps in which a run over-fits.
 * @param {CanvasRenderingContext2D} context
 * @param {Plan} plan
 * @param {number} from
 * @param {number} width
 * @param {Theme} theme
 */
export function drawOverfit(context, plan, from, width, theme) {
  const left = plan.x.at(from);
  context.globalAlpha = 0.5;
  context.fillStyle = theme.grid;
  context.fillRect(left, TOP, Math.max(0, width - RIGHT - left), plan.floor - TOP);
  context.globalAlpha = 1;
}

/** @param {CanvasRenderingContext2D} context @param {Plan} plan @param {number} step @param {Theme} theme */
export function drawStar(context, plan, step, theme) {
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

/** Y position of the suggested step's star: on the evaluation curve, else above the mark of the save. @param {Plan} plan @param {number} step */
function starHeight(plan, step) {
  const found = plan.evaluations.flat().find((point) => point.step === step);
  return found && found.value > plan.lowest ? plan.y.at(found.value) : plan.floor - 18;
}

/** @param {CanvasRenderingContext2D} context @param {Plan} plan @param {Point[]} points @param {string} ink */
export function drawDots(context, plan, points, ink) {
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
export function drawLine(context, plan, points, ink, width) {
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
export function drawEvaluations(context, plan, points, ink, theme) {
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
export function drawTimesteps(context, counts, top, width, height, theme) {
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
export function drawCursor(context, plan, step, theme) {
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
