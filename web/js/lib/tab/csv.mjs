// @ts-check
/** Runs and curves as CSV, with unrounded numbers. Pure. */

import { differing, figureOf } from "./differences.mjs";

/**
 * @typedef {import("../page/routes.mjs").Summary} Summary
 * @typedef {import("../run/history.mjs").Answer} Answer
 */

const ABOUT = ["id", "state", "step", "steps", "eval_best", "eval_best_step", "eval_loss", "loss"];
const MORE = ["seconds_per_step", "updated", "reason"];
const CURVE = ["step", "expert", "loss", "lr", "grad_norm", "seconds", "eval_loss", "held_out"];

/** A row; an apostrophe precedes texts that a spreadsheet would read as formulas. @param {unknown[]} values */
export function row(values) {
  return `${values.map(field).join(",")}\r\n`;
}

/** @param {unknown} value */
function field(value) {
  if (value === null || value === undefined) return "";
  if (typeof value === "number" || typeof value === "boolean") return String(value);
  const text = typeof value === "string" ? value : JSON.stringify(value);
  const plain = /^[=+\-@\t\r]/.test(text) ? `'${text}` : text;
  return /[",\r\n]/.test(plain) ? `"${plain.replaceAll('"', '""')}"` : plain;
}

/** A row for each run, in order; every differing setting is a column. @param {Summary[]} runs */
export function runsCsv(runs) {
  const settings = differing([{ name: "", runs }], Number.POSITIVE_INFINITY);
  const lines = runs.map((run) =>
    row([
      ...ABOUT.map((key) => figureOfRun(run, key)),
      ...settings.map((key) => run.settings?.[key]),
      ...MORE.map((key) => figureOfRun(run, key)),
    ]),
  );
  return [row([...ABOUT, ...settings, ...MORE]), ...lines];
}

/** @param {Summary} run @param {string} key */
function figureOfRun(run, key) {
  const value = figureOf({ ...run, settings: {} }, key);
  return key === "updated" && value ? new Date(value * 1000).toISOString() : value;
}

/**
 * A row for each step and each evaluation of the runs; of a step trained twice, the later row.
 * @param {string[]} runs
 * @param {(run: string, since: number) => Promise<Answer>} read reads lines from number `since`
 * @param {(run: string, lines: number) => void} told called with the progress
 * @returns {Promise<string[]>}
 */
export async function curvesCsv(runs, read, told = () => {}) {
  const parts = [row(["run", ...CURVE])];
  for (const run of runs) {
    let since = 0;
    for (let more = true; more; ) {
      const answer = await read(run, since);
      if (answer.restarted) break;
      const lines = answer.records.filter(({ event }) => event === "step" || event === "evaluated");
      parts.push(
        lines
          .map((line) => row([run, ...CURVE.map((key) => /** @type {any} */ (line)[key])]))
          .join(""),
      );
      more = Boolean(answer.more) && answer.next > since;
      since = answer.next;
      told(run, since);
    }
  }
  return parts;
}
