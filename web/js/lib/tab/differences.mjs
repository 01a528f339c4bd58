// @ts-check
/** What differs between runs, as a table: a column for each setting that is not the same in all, and for what came of it. Pure. */

/**
 * @typedef {import("../page/routes.mjs").Summary} Summary
 * @typedef {{ key: string, setting: boolean, values: unknown[], best: number | null }} Column `values` in the order of the
 *   runs; `best` is the lowest of them, where lower is better
 * @typedef {{ key: string, down: boolean }} Order
 */

/** What came of a run, behind its settings. */
export const OUTCOMES = ["step", "loss", "eval_loss", "seconds_per_step"];
const LOWER_IS_BETTER = ["loss", "eval_loss", "seconds_per_step"];
/** More columns than a sidebar can show. */
const MOST_SETTINGS = 12;

/** The runs whose name has every word of `words`. @param {Summary[]} runs @param {string} words */
export function named(runs, words) {
  const wanted = words.toLowerCase().split(/\s+/).filter(Boolean);
  return runs.filter((run) => wanted.every((word) => run.id.toLowerCase().includes(word)));
}

/** @param {Summary[]} runs @returns {Column[]} */
export function columnsOf(runs) {
  const keys = [...new Set(runs.flatMap((run) => Object.keys(run.settings ?? {})))].sort();
  const settings = keys
    .map((key) => ({ key, values: runs.map((run) => run.settings?.[key] ?? null) }))
    .filter(({ values }) => new Set(values.map((one) => JSON.stringify(one))).size > 1)
    .slice(0, MOST_SETTINGS)
    .map((column) => ({ ...column, setting: true, best: null }));
  const outcomes = OUTCOMES.map((key) => {
    const values = runs.map((run) => /** @type {any} */ (run)[key] ?? null);
    return { key, setting: false, values, best: bestOf(key, values) };
  }).filter(({ values }) => values.some((one) => one !== null));
  return [...settings, ...outcomes];
}

/** The lowest of values where lower is better, and they are not all alike. @param {string} key @param {unknown[]} values */
export function bestOf(key, values) {
  const numbers = values.filter((one) => typeof one === "number");
  const judged = LOWER_IS_BETTER.includes(key) && new Set(numbers).size > 1;
  return judged ? Math.min(...numbers) : null;
}

/**
 * The runs by the name they were asked for: a sweep writes settings and their values behind it, of one name the later runs
 * have a number, and a mean of saved steps has its width. Groups stand where their first run stood.
 * @param {Summary[]} runs
 * @returns {[string, Summary[]][]}
 */
export function grouped(runs) {
  /** @type {Map<string, Summary[]>} */
  const groups = new Map();
  const settings = new Set(runs.flatMap((run) => Object.keys(run.settings ?? {})));
  for (const run of runs) {
    const plain = run.id.replace(/(?:_\d{3}|_ema[\d.]+)+$/, "");
    const swept = [...settings].map((key) => plain.indexOf(`_${key}_`)).filter((at) => at > 0);
    const name = plain.slice(0, Math.min(plain.length, ...swept));
    groups.set(name, [...(groups.get(name) ?? []), run]);
  }
  return [...groups];
}

/**
 * The runs by a column; what is not known stands last, and runs that are alike keep their order, so that sorting by a
 * setting groups them.
 * @param {Summary[]} runs
 * @param {Order | null} order
 */
export function sorted(runs, order) {
  if (!order) return runs;
  const value = (/** @type {Summary} */ run) =>
    order.key === "id"
      ? run.id
      : (run.settings?.[order.key] ?? /** @type {any} */ (run)[order.key]);
  return [...runs].sort((one, other) => compare(value(one), value(other), order.down));
}

/** @param {any} one @param {any} other @param {boolean} down */
function compare(one, other, down) {
  const missing = (/** @type {any} */ value) => value === null || value === undefined;
  if (missing(one) || missing(other)) return Number(missing(one)) - Number(missing(other));
  const numbers = typeof one === "number" && typeof other === "number";
  const rank = numbers
    ? one - other
    : String(one).localeCompare(String(other), undefined, { numeric: true });
  return down ? -rank : rank;
}
