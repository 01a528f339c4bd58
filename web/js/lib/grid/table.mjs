// @ts-check
/** The previews of a run as a table: a row for each prompt, a column for each step with a preview. Pure. */

import { t } from "../page/words.mjs";
import { channels, stops } from "../run/clips.mjs";
import { short } from "../run/format.mjs";

/**
 * @typedef {import("../page/routes.mjs").Sample} Sample
 * @typedef {{ step: number, saved: boolean, title: string, about: string }} Column `about`: facts of the step
 * @typedef {{ title: string, text: string, cells: (Sample | null)[] }} Row `text`: the prompt; a cell for each column
 * @typedef {{ columns: Column[], rows: Row[] }} Table
 */

/**
 * The first column has the base model's clips, if any. Clips of the same prompt, seed and strength share a row, including
 * clips of Validate Video.
 * @param {Sample[]} samples in the server's order
 * @param {{ step: number, eval_loss?: number | null }[]} saves
 * @param {number | null} best the suggested step
 * @returns {Table}
 */
export function tableOf(samples, saves, best = null) {
  const shown = stops(samples, saves).filter(({ clips }) => clips.size);
  const rows = channels(samples).map(({ key, base, title }) => {
    const cells = shown.map(({ step, clips }) => clips.get(step === 0 ? base : key) ?? null);
    return { title, text: cells.findLast((one) => one?.text)?.text ?? "", cells };
  });
  const columns = shown.map(({ step, saved, evalLoss }) => ({
    step,
    saved,
    title: step === 0 ? t("before training") : `${step === best ? "★ " : ""}${stepName(step)}`,
    about: evalLoss === null ? "" : t("eval {loss}", { loss: short(evalLoss) }),
  }));
  return { columns, rows };
}

/** @param {number} step */
function stepName(step) {
  return t("step {step}", { step });
}

/**
 * The next cell with a clip in a direction; the same cell if there is none.
 * @param {Table} table
 * @param {{ row: number, column: number }} from
 * @param {number} down rows
 * @param {number} right columns
 */
export function neighbour({ columns, rows }, from, down, right) {
  let { row, column } = from;
  for (;;) {
    row += down;
    column += right;
    if (row < 0 || column < 0 || row >= rows.length || column >= columns.length) return from;
    if (rows[row].cells[column]) return { row, column };
  }
}
