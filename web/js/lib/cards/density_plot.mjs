// @ts-check
/** Draws the distribution of timesteps: a filled curve, darker between its quartiles, and the border of the experts. */

import { ticks } from "../chart/axes.mjs";
import { t } from "../page/words.mjs";
import { densities, quantile } from "./density.mjs";

/**
 * @typedef {import("./density.mjs").Draw} Draw
 * @typedef {{ text: string, grid: string, ground: string, marker: string }} Theme
 * @typedef {{ draw: Draw, whole: Draw, boundary: number | null, cursor: number | null }} View
 *   `whole`: the distribution over the complete range of both experts; `cursor`: a timestep
 */

const BINS = 200;
const SIDE = 14;
const TOP = 14;
const BOTTOM = 18;
/** Limit of a peak in multiples of the mean, so that the other values stay visible. */
const HIGHEST = 12;

/**
 * Layout of the plot in an area of `width` by `height`.
 * @param {View} view
 * @param {number} width
 * @param {number} height
 */
export function layout({ draw, whole }, width, height) {
  const values = densities(draw, BINS);
  const cut = draw.low > 0 || draw.high < 1;
  const ghost = cut ? densities(whole, BINS) : [];
  const most = Math.min(HIGHEST, Math.max(...values, ...ghost));
  const floor = height - BOTTOM;
  return {
    values,
    ghost,
    floor,
    top: TOP,
    at: (/** @type {number} */ sigma) => SIDE + sigma * (width - 2 * SIDE),
    from: (/** @type {number} */ place) => (place - SIDE) / (width - 2 * SIDE),
    up: (/** @type {number} */ value) => floor - (Math.min(value, HIGHEST) / most) * (floor - TOP),
    ticks: ticks({ low: 0, high: 1000, log: false }, width < 260 ? 2 : 5),
  };
}

/**
 * @param {CanvasRenderingContext2D} context
 * @param {View} view
 * @param {number} width
 * @param {number} height
 * @param {Theme} theme
 * @param {string} ink
 */
export function paint(context, view, width, height, theme, ink) {
  const plan = layout(view, width, height);
  context.fillStyle = theme.ground;
  context.fillRect(0, 0, width, height);
  if (plan.ghost.length) outline(context, plan, plan.ghost, theme.grid);
  context.fillStyle = ink;
  context.globalAlpha = 0.25;
  area(context, plan, [0, 1]);
  context.globalAlpha = 0.4;
  area(context, plan, [quantile(view.draw, 0.25), quantile(view.draw, 0.75)]);
  context.globalAlpha = 1;
  outline(context, plan, plan.values, ink);
  axis(context, plan, theme, width);
  if (view.boundary !== null) boundary(context, plan, view.boundary, theme, width);
  if (view.cursor !== null) line(context, plan, view.cursor / 1000, theme.text);
  return plan;
}

/** @typedef {ReturnType<typeof layout>} Plan */

/** @param {CanvasRenderingContext2D} context @param {Plan} plan @param {number[]} values @param {string} ink */
function outline(context, plan, values, ink) {
  context.strokeStyle = ink;
  context.lineWidth = 1.5;
  context.beginPath();
  values.forEach((value, bin) => {
    if (value > 0) context.lineTo(plan.at((bin + 0.5) / values.length), plan.up(value));
  });
  context.stroke();
}

/** @param {CanvasRenderingContext2D} context @param {Plan} plan @param {number[]} between noise levels */
function area(context, plan, [low, high]) {
  const count = plan.values.length;
  context.beginPath();
  plan.values.forEach((value, bin) => {
    const [from, to] = [Math.max(low, bin / count), Math.min(high, (bin + 1) / count)];
    if (from >= to || !value) return;
    const left = plan.at(from);
    context.rect(left, plan.up(value), plan.at(to) - left, plan.floor - plan.up(value));
  });
  context.fill();
}

/** @param {CanvasRenderingContext2D} context @param {Plan} plan @param {Theme} theme @param {number} width */
function axis(context, plan, theme, width) {
  context.font = "11px sans-serif";
  context.lineWidth = 1;
  context.strokeStyle = theme.grid;
  context.fillStyle = theme.text;
  context.textBaseline = "top";
  context.beginPath();
  context.moveTo(SIDE, plan.floor + 0.5);
  context.lineTo(width - SIDE, plan.floor + 0.5);
  context.stroke();
  context.textAlign = "center";
  for (const tick of plan.ticks) context.fillText(`${tick}`, plan.at(tick / 1000), plan.floor + 5);
}

/** @param {CanvasRenderingContext2D} context @param {Plan} plan @param {number} sigma @param {Theme} theme @param {number} width */
function boundary(context, plan, sigma, theme, width) {
  context.setLineDash([3, 3]);
  line(context, plan, sigma, theme.marker);
  context.setLineDash([]);
  context.fillStyle = theme.text;
  context.textAlign = "right";
  context.textBaseline = "top";
  const label = t("boundary of the experts: {timestep}", { timestep: Math.round(sigma * 1000) });
  context.fillText(label, Math.min(plan.at(sigma) + 8, width - 2), 1);
}

/** @param {CanvasRenderingContext2D} context @param {Plan} plan @param {number} sigma @param {string} ink */
function line(context, plan, sigma, ink) {
  context.strokeStyle = ink;
  context.lineWidth = 1;
  const x = Math.round(plan.at(sigma)) + 0.5;
  context.beginPath();
  context.moveTo(x, plan.top);
  context.lineTo(x, plan.floor);
  context.stroke();
}
